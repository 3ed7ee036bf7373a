"""Builds the scratch copy and runs named tests in it. Cargo and nextest for Rust, vitest for the SDK; their own result files are read."""

import json
import re
import subprocess
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

from table import SDK, title_file

# What nextest says of the reason why it ran nothing.
NEXTEST_TESTS_FAILED = 100
NEXTEST_BUILD_FAILED = 101
NEXTEST_NO_TESTS = 4

# A schema that does not load fails every test alike: as little a catch as code that does not compile.
UNLOADABLE = re.compile(r"build a template: ")


class Broken(Exception):
    """No test could tell: it does not build, or a named test is not there. The message says what."""


@dataclass
class Result:
    """What became of named tests: of each that failed, the first line of why."""

    passed: set = field(default_factory=set)
    failed: dict = field(default_factory=dict)

    def add(self, other):
        self.passed |= other.passed
        self.failed |= other.failed


class Trial:
    def __init__(self, scratch, major, log):
        self.scratch = scratch
        self.major = major
        self.log = log
        self.environment = scratch.environment(major)
        self._installed = False

    def run(self, tests):
        """Runs tests, package by package. Raises [`Broken`]."""
        result = Result()
        for package in dict.fromkeys(test.package for test in tests):
            wanted = [test for test in tests if test.package == package]
            result.add(self.vitest(wanted) if package == SDK else self.nextest(package, wanted))
        return result

    def command(self, *arguments, at):
        """Runs a command, with its output to the log. Gives its exit status and its output."""
        child = subprocess.Popen(
            arguments, cwd=at, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = child.communicate()
        except BaseException:
            # In order, so that it ends its own tests.
            child.terminate()
            child.wait()
            raise
        self.log.write(f"$ {' '.join(arguments)}\n{output}\n")
        self.log.flush()
        return child.returncode, output

    def nextest(self, package, tests):
        config = Path(__file__).with_name("nextest.toml")
        # Its place does not follow the target folder.
        report = self.scratch.tree / "target/nextest/default/junit.xml"
        report.unlink(missing_ok=True)
        expression = f"test(/(^|::)({'|'.join(test.name for test in tests)})(::pg{self.major})?$/)"
        status, output = self.command(
            *("cargo", "nextest", "run", "--config-file", str(config), "--package", package, "-E", expression),
            at=self.scratch.tree,
        )
        if status == NEXTEST_NO_TESTS:
            raise Broken(f"{package}: no such test: {expression}")
        if status not in (0, NEXTEST_TESTS_FAILED):
            raise Broken("does not build" if status == NEXTEST_BUILD_FAILED else f"{package}: {last(output)}")
        return rust_result(report.read_text(), tests, self.major)

    def vitest(self, tests):
        at = self.scratch.tree / SDK
        if not self._installed:
            self._installed = True
            lock, stamp = at / "package-lock.json", at / "node_modules/.tidegate-faults"
            if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
                status, output = self.command("npm", "ci", "--no-fund", "--no-audit", at=at)
                if status != 0:
                    raise Broken(f"npm ci: {last(output)}")
                stamp.write_bytes(lock.read_bytes())
        # vitest takes the types away without a look at them.
        if self.command("npm", "run", "--silent", "typecheck", at=at)[0] != 0:
            raise Broken("does not build")
        report = self.scratch.folder / "vitest.json"
        report.unlink(missing_ok=True)
        files = {str(title_file(self.scratch.tree, test.name).relative_to(at)) for test in tests}
        titles = "|".join(re.escape(test.name) for test in tests)
        self.command(
            *("npx", "vitest", "run", "--reporter=json", f"--outputFile={report}", "-t", titles, *sorted(files)), at=at
        )
        if not report.exists():
            raise Broken("vitest gave no report")
        return typescript_result(json.loads(report.read_text()), tests)


def last(output):
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def reason(text):
    """The line of a failure that says most."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    after_panic = [lines[i + 1] for i, line in enumerate(lines[:-1]) if re.search(r"panicked at .*:\d+:\d+:?$", line)]
    return (after_panic or [line for line in lines if line.startswith("Error: ")] or lines or ["failed"])[0][:200]


def rust_result(report, tests, major):
    result = Result()
    named = {test.name: test for test in tests}
    for case in xml.fromstring(report).iter("testcase"):
        test = named.get(case.get("name").removesuffix(f"::pg{major}").rsplit("::", 1)[-1])
        if test is None:
            continue
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failure is None:
            result.passed.add(test)
            continue
        if UNLOADABLE.search(failure.text or ""):
            raise Broken(f"the schema does not load: {reason(failure.text)}")
        timed_out = "timeout" in (failure.get("type") or "")
        result.failed[test] = "ended after waiting too long" if timed_out else reason(failure.text)
    return everyone(result, tests)


def typescript_result(report, tests):
    result = Result()
    named = {test.name: test for test in tests}
    for suite in report["testResults"]:
        if suite["status"] == "failed" and not suite["assertionResults"]:
            raise Broken(f"does not load: {reason(suite.get('message'))}")
        for case in suite["assertionResults"]:
            test = named.get(case["title"])
            if test is None or case["status"] not in ("passed", "failed"):
                continue
            if case["status"] == "passed":
                result.passed.add(test)
            else:
                result.failed[test] = reason("\n".join(case["failureMessages"]))
    return everyone(result, tests)


def everyone(result, tests):
    for test in tests:
        if test not in result.passed and test not in result.failed:
            raise Broken(f"{test} did not run")
    return result
