"""The fault table: what is read from table.toml, and whether it still fits the tree. Reads files, changes none."""

import fnmatch
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FIELDS = {"name", "rules", "file", "find", "replace", "tests", "why"}
OPTIONAL = {"hole"}
SDK = "client-sdk-ts"


class TableError(Exception):
    """The table itself is wrong. The message says where."""


@dataclass(frozen=True)
class Test:
    """A test that must catch a fault: the package it is in, and the name of its function (of a TypeScript test, its title)."""

    package: str
    name: str

    def __str__(self):
        return f"{self.package} {self.name}"


@dataclass(frozen=True)
class Fault:
    name: str
    rules: tuple[str, ...]
    file: str
    find: str
    replace: str
    tests: tuple[Test, ...]
    why: str
    # Of a fault that is known to survive: which test is missing, and where. Empty: it must be caught.
    hole: str = ""

    @property
    def packages(self):
        return tuple(dict.fromkeys(test.package for test in self.tests))


def parse(text):
    """The faults of a table, in its order."""
    faults = [fault(entry) for entry in tomllib.loads(text).get("fault", [])]
    names = [f.name for f in faults]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{name}: two faults have this name")
    return faults


def fault(entry):
    name = entry.get("name", "a fault without a name")
    if not FIELDS <= entry.keys() <= FIELDS | OPTIONAL:
        odd = ", ".join(sorted((entry.keys() - OPTIONAL) ^ FIELDS))
        raise TableError(f"{name}: every fault has {', '.join(sorted(FIELDS))}; missing or odd here: {odd}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise TableError(f"{name}: a name is words with hyphens between them")
    if not entry["rules"] or not entry["tests"]:
        raise TableError(f"{name}: a fault breaks a rule, and a test catches it")
    if entry["find"] == entry["replace"]:
        raise TableError(f"{name}: it changes nothing")
    tests = tuple(Test(*words) for words in (test.split(" ", 1) for test in entry["tests"]) if len(words) == 2)
    if len(tests) != len(entry["tests"]):
        raise TableError(f"{name}: a test is written as its package, a space, and its name")
    return Fault(**entry | {"rules": tuple(entry["rules"]), "tests": tests})


def chosen(faults, patterns):
    """Those whose names fit one of the patterns; all where there is none."""
    if not patterns:
        return list(faults)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(f.name, pattern) for f in faults):
            raise TableError(f"{pattern}: no fault has this name")
    return [f for f in faults if any(fnmatch.fnmatchcase(f.name, pattern) for pattern in patterns)]


def applied(text, fault):
    """The text with the fault in it."""
    count = text.count(fault.find)
    if count != 1:
        raise TableError(f"{fault.name}: the lines to find occur {count} times in {fault.file}, not once")
    return text.replace(fault.find, fault.replace)


class Packages:
    """The folders of the workspace's packages, and what tests are written in them."""

    def __init__(self, root):
        self.root = root
        members = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["members"]
        manifests = {member: tomllib.loads((root / member / "Cargo.toml").read_text()) for member in members}
        self.folders = {manifest["package"]["name"]: root / member for member, manifest in manifests.items()}
        self.others = set(self.folders.values())

    def sources(self, package):
        """The Rust files of a package, those of packages inside its folder left out."""
        folder = self.folders[package]
        inner = [other for other in self.others if other != folder and folder in other.parents]
        for part in ("src", "tests"):
            for path in sorted((folder / part).rglob("*.rs")):
                if not any(other in path.parents for other in inner):
                    yield path

    def missing(self, test):
        """Why a named test is not there; None: it is."""
        if test.package == SDK:
            return None if title_file(self.root, test.name) else f"no test of {SDK} has the title {test.name!r}"
        if test.package not in self.folders:
            return f"no package is named {test.package}"
        # Not behind `fn` only: macros make tests of names.
        word = re.compile(rf"\b{re.escape(test.name)}\b")
        if any(word.search(path.read_text()) for path in self.sources(test.package)):
            return None
        return f"{test.package} has no test {test.name}"


def title_file(root, title):
    """The file of the SDK's test with this title."""
    for path in sorted((root / SDK / "test").rglob("*.test.ts")):
        if re.search(rf"\btest\((['\"`]){re.escape(title)}\1", path.read_text()):
            return path
    return None


def problems(root, faults):
    """Every way in which the table no longer fits the tree, one line each."""
    packages = Packages(root)
    found = []
    for fault in faults:
        try:
            applied((root / fault.file).read_text(), fault)
        except FileNotFoundError:
            found.append(f"{fault.name}: there is no {fault.file}")
        except TableError as error:
            found.append(str(error))
        found += [f"{fault.name}: {why}" for why in map(packages.missing, fault.tests) if why]
    return found


def load(path=Path(__file__).with_name("table.toml")):
    return parse(path.read_text())
