"""The scratch copy: the committed tree in a folder of its own, where faults are put in and taken out. Kept between runs, so that only
what has changed is built again."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import table

# As the test servers do: in memory where there is room, because a new database is hundreds of files.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30


# Of the workspace itself, and so not to be taken over: its packages, its test binaries, its examples.
OURS = re.compile(r"(lib)?(tidegate|main-|arrows-|loadtest)")


def seed(built, target):
    """Takes over what the workspace depends on from where it has been built: most of a first build."""
    for folder in (".fingerprint", "build", "deps"):
        for path in (built / folder).glob("*"):
            if OURS.match(path.name):
                continue
            copy = target / folder / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            # With their times: Cargo goes by them.
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy2(path, copy)


class Scratch:
    def __init__(self, root, folder):
        self.root = root
        self.folder = folder
        self.tree = folder / "tree"
        self.target = Path(os.environ.get("CARGO_TARGET_DIR") or folder / "build").resolve()
        if self.target == root / "target":
            # Cargo knows a workspace's packages by where they stand in it: what was built with a fault would pass for sound.
            raise table.TableError("CARGO_TARGET_DIR is the work tree's own build folder: give another one, or none")
        self.commit = self.git("rev-parse", "HEAD")
        self._lock = None

    def git(self, *arguments, at=None):
        done = subprocess.run(["git", *arguments], cwd=at or self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.folder / "lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise table.TableError(f"{self.folder} is in use by another run") from None
        if (self.tree / ".git").exists():
            self.git("checkout", "--quiet", "--force", "--detach", self.commit, at=self.tree)
            self._tidy()
        else:
            shutil.rmtree(self.tree, ignore_errors=True)
            self.git("worktree", "prune")
            self.git("worktree", "add", "--quiet", "--force", "--detach", str(self.tree), self.commit)
        if not self.target.exists():
            seed(self.root / "target/debug", self.target / "debug")
        return self

    def __exit__(self, *_):
        self._lock.close()

    def _tidy(self):
        """What tests leave behind where they fail, such as the seeds of properties, must not reach the next ones."""
        self.git("clean", "--quiet", "--force", "-d", at=self.tree)

    def remove(self):
        """Nothing of it stays behind."""
        if self.tree.exists():
            self.git("worktree", "remove", "--force", "--force", str(self.tree))
        shutil.rmtree(self.folder)

    @contextlib.contextmanager
    def fault(self, fault):
        """The tree with one fault in it, for as long as this lasts."""
        path = self.tree / fault.file
        sound = path.read_text()
        path.write_text(table.applied(sound, fault))
        try:
            yield
        finally:
            path.write_text(sound)
            self._tidy()

    def environment(self, major):
        """For builds and tests in it. Servers of its own: a faulty loader must not make the databases of other tests."""
        memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
        servers = MEMORY / f"tidegate-faults-{os.getuid()}" if memory else self.folder / "servers"
        # What is asked is whether the usual tests notice.
        usual = {name: value for name, value in os.environ.items() if name != "TIDEGATE_SCALE"}
        return usual | {
            "CARGO_TARGET_DIR": str(self.target),
            "TIDEGATE_TEST_DIR": str(servers),
            "TIDEGATE_TEST_PG": major,
        }
