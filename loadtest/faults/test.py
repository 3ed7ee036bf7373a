"""What the parts of loadtest/faults/run make of small inputs. Run by .ci/run."""

import contextlib
import tempfile
import unittest
from pathlib import Path

import rotation
import table
import trial

FAULT = """
[[fault]]
name = "a-b"
rules = ["A1"]
why = "x"
file = "src/a.rs"
find = '''one'''
replace = '''two'''
tests = ["p a1_is_true", "client-sdk-ts v4 a title"]
"""
RUST = table.Test("p", "a1_is_true")
TITLE = table.Test("client-sdk-ts", "v4 a title")


@contextlib.contextmanager
def workspace(source, tests="#[test] fn a1_is_true() {}"):
    """A small workspace on disk: a package p, inside its folder a package q, and the SDK."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {
            "Cargo.toml": '[workspace]\nmembers = ["p", "p/src/q"]',
            "p/Cargo.toml": '[package]\nname = "p"',
            "p/src/q/Cargo.toml": '[package]\nname = "q"',
            "p/src/q/src/lib.rs": "#[test] fn only_in_q() {}",
            "p/tests/main.rs": tests,
            "src/a.rs": source,
            "client-sdk-ts/test/a.test.ts": "test('v4 a title', () => {});",
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        yield root


class Table(unittest.TestCase):
    def test_a_table_is_read(self):
        (fault,) = table.parse(FAULT)
        self.assertEqual((fault.name, fault.rules, fault.tests), ("a-b", ("A1",), (RUST, TITLE)))
        self.assertEqual(fault.packages, ("p", "client-sdk-ts"))

    def test_what_cannot_be_meant_is_refused_by_name(self):
        for wrong, why in [
            (FAULT.replace("why =", "what ="), "odd here: what, why"),
            (FAULT.replace('"a-b"', '"A b"'), "words with hyphens"),
            (FAULT.replace('["A1"]', "[]"), "breaks a rule"),
            (FAULT.replace("two", "one"), "changes nothing"),
            (FAULT.replace('"p a1_is_true"', '"a1_is_true"'), "package, a space"),
            (FAULT + FAULT, "two faults"),
        ]:
            with self.assertRaisesRegex(table.TableError, why):
                table.parse(wrong)

    def test_faults_are_chosen_by_pattern(self):
        faults = table.parse(FAULT + FAULT.replace("a-b", "b-c"))
        self.assertEqual([f.name for f in table.chosen(faults, ["b-*"])], ["b-c"])
        self.assertEqual(len(table.chosen(faults, [])), 2)
        with self.assertRaisesRegex(table.TableError, "no fault"):
            table.chosen(faults, ["c"])

    def test_a_fault_applies_where_its_lines_are_there_once(self):
        (fault,) = table.parse(FAULT)
        self.assertEqual(table.applied("zero one", fault), "zero two")
        for text in ["zero", "one one"]:
            with self.assertRaises(table.TableError):
                table.applied(text, fault)

    def test_a_table_that_has_rotted_is_told(self):
        faults = table.parse(FAULT)
        with workspace("one") as root:
            self.assertEqual(table.problems(root, faults), [])
        with workspace("one one", tests="#[test] fn a1_is_true_no_more() {}") as root:
            self.assertEqual(len(table.problems(root, faults)), 2)
        elsewhere = table.parse(FAULT.replace("p a1_is_true", "p only_in_q"))
        with workspace("one") as root:
            self.assertEqual(table.problems(root, elsewhere), ["a-b: p has no test only_in_q"])


REPORT = """<testsuites><testsuite name="p::main"><testcase name="m::a1_is_true::pg18">{}</testcase></testsuite></testsuites>"""
FAILURE = "<failure type='{}'>thread 'x' panicked at a.rs:1:2:\nassertion failed: {}\nnote: more</failure>"


class Results(unittest.TestCase):
    def test_what_nextest_reports_is_read(self):
        self.assertEqual(trial.rust_result(REPORT.format(""), [RUST], "18").passed, {RUST})
        failed = trial.rust_result(REPORT.format(FAILURE.format("test failure", "no")), [RUST], "18").failed
        self.assertEqual(failed, {RUST: "assertion failed: no"})
        failed = trial.rust_result(REPORT.format(FAILURE.format("test timeout", "no")), [RUST], "18").failed
        self.assertEqual(failed, {RUST: "ended after waiting too long"})

    def test_a_test_that_did_not_run_and_a_schema_that_does_not_load_prove_nothing(self):
        with self.assertRaisesRegex(trial.Broken, "did not run"):
            trial.rust_result("<testsuites/>", [RUST], "18")
        with self.assertRaisesRegex(trial.Broken, "does not load"):
            trial.rust_result(REPORT.format(FAILURE.format("test failure", "build a template: x")), [RUST], "18")

    def test_what_vitest_reports_is_read(self):
        def report(status, *cases):
            return {"testResults": [{"status": status, "message": "SyntaxError", "assertionResults": list(cases)}]}

        case = {"title": TITLE.name, "status": "failed", "failureMessages": ["AssertionError: no\n  at x"]}
        self.assertEqual(trial.typescript_result(report("failed", case), [TITLE]).failed, {TITLE: "AssertionError: no"})
        passed = trial.typescript_result(report("passed", case | {"status": "passed"}), [TITLE]).passed
        self.assertEqual(passed, {TITLE})
        for wrong in [report("failed"), report("passed", case | {"status": "skipped"})]:
            with self.assertRaises(trial.Broken):
                trial.typescript_result(wrong, [TITLE])


class Rotation(unittest.TestCase):
    def test_a_seed_gives_one_order_and_seeds_come_round_to_every_fault(self):
        texts = [FAULT.replace("a-b", f"f-{n}").replace("p a1_is_true", f"p{n % 3} a1_is_true") for n in range(9)]
        faults = table.parse("".join(texts))
        self.assertEqual(rotation.order(faults, "x"), rotation.order(faults, "x"))
        self.assertEqual(len({rotation.order(faults, str(seed))[0].name for seed in range(200)}), 9)
        packages = [fault.packages[0] for fault in rotation.order(faults, "x")]
        self.assertEqual(len([1 for a, b in zip(packages, packages[1:]) if a != b]), 2, "a package at a time")

    def test_another_fault_begins_only_while_there_is_time_for_the_slowest(self):
        self.assertTrue(rotation.fits(100, 200, [30, 100]))
        self.assertFalse(rotation.fits(101, 200, [30, 100]))
        self.assertFalse(rotation.fits(200 - rotation.GUESS_SECONDS + 1, 200, []))
