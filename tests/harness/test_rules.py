# SPDX-License-Identifier: Apache-2.0
"""What every run is under, tried where it must fail: skips that no list allows, tests that are late, tests that hang."""
import os
import pathlib
import subprocess
import sys
import time

import pytest

from hvt import program

HARNESS = pathlib.Path(__file__).resolve().parent
CONFTEST = f"""import sys
sys.path.insert(0, {str(HARNESS)!r})
from hvt.plugin import *
"""
LATE = """
import pathlib
from hvt import check_prompt

COUNT = pathlib.Path(__file__).with_name("count")


@pytest.fixture(scope="module")
def shared():
    return []


@pytest.fixture
def own():
    return []


@pytest.mark.parametrize("name", ["a", "b"])
def test_late(name, shared, own, tmp_path):
    shared.append(name)
    own.append(name)
    assert own == [name] and not list(tmp_path.iterdir())
    (tmp_path / "left").touch()
    with COUNT.open("a") as file:
        file.write(name)
    tries = COUNT.read_text().count(name)
    if name == "a":
        assert shared == ["a"], "fixtures of the module are new too"
    check_prompt("it", 10**15 if tries < {tries} else 0, 1)
"""


SOAK = """import pytest

@pytest.mark.soak
def test_x():
    pass
"""


LEAVES = """
from hvt import check_prompt

@pytest.fixture
def f():
    yield
    assert False, "left behind"

def test_a(f):
    check_prompt("it", 10**15, 1)
"""


@pytest.fixture(name="folder")
def a_folder(tmp_path):
    """A folder of tests with a list of its own."""
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "skips.txt").write_text("# nothing\n", encoding="utf-8")
    return tmp_path


def run(folder, text, listed="", environment=()):
    """pytest on one file; its exit status, its output and what it noted."""
    (folder / "test_x.py").write_text("import pytest\n" + text, encoding="utf-8")
    if listed:
        (folder / "skips.txt").write_text(listed, encoding="utf-8")
    events = folder / "events.txt"
    settings = {"HVT_SKIPS": str(folder / "skips.txt"), "HVT_EVENTS": str(events), **dict(environment)}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_x.py"], cwd=folder,
                          env=os.environ | settings, capture_output=True, text=True, timeout=100, check=False)
    noted = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    return done.returncode, done.stdout + done.stderr, noted


SKIPS = {
    "call": """
def test_a():
    pytest.skip("why not")
""", "mark": """
@pytest.mark.skip(reason="why not")
def test_a():
    pass
""", "class": """
@pytest.mark.skipif(True, reason="why not")
class TestA:
    def test_a(self):
        pass
""", "fixture": """
@pytest.fixture
def f():
    pytest.skip("why not")
def test_a(f):
    pass
""", "parameters": """
@pytest.mark.parametrize("x", [])
def test_a(x):
    pass
""", "xfail": """
@pytest.mark.xfail(reason="why not")
def test_a():
    assert False
""", "module": """
pytest.skip("why not", allow_module_level=True)
def test_a():
    pass
""", "import": """
pytest.importorskip("no_such_module")
def test_a():
    pass
"""}


@pytest.mark.parametrize("more, kept", [([], 0), (["--soak"], 2)])
def test_files_of_several_folders_run_together(folder, more, kept):
    """As scripts/nightly.sh has them."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (folder / name / f"test_{name}.py").write_text(SOAK, encoding="utf-8")
    (folder / "conftest.py").unlink()
    (folder / "skips.txt").write_text("test_?.py::test_x  no-soak  why\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, "a/test_a.py", "b/test_b.py"], cwd=folder,
                          env=os.environ | {"HVT_SKIPS": str(folder / "skips.txt")}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and f"{kept or 2} {'passed' if kept else 'skipped'}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("how", SKIPS)
def test_a_skip_that_is_not_listed_is_a_failure(folder, how):
    code, output, noted = run(folder, SKIPS[how], "test_x.py::test_other  no-soak  another\ntest_y.py*  no-soak  another\n")
    assert code in (1, 2) and "test_x.py" in output and "was skipped" in output and "skips.txt allows that here" in output
    assert not noted


@pytest.mark.parametrize("how", SKIPS)
def test_a_skip_that_is_listed_is_none_and_is_noted(folder, how):
    code, output, noted = run(folder, SKIPS[how] + "def test_b():\n    pass\n", "test_x.py*  no-soak  it may be\n")
    assert code in (0, 5), output  # 5: there is nothing else
    assert len(noted) == 1 and noted[0].startswith("listed\ttest_x.py"), noted


def test_a_condition_that_does_not_hold_allows_nothing(folder):
    assert run(folder, SKIPS["call"], "test_x.py::test_a  arm  elsewhere\n")[0] == 1


def test_a_condition_that_nobody_knows_is_an_error(folder):
    assert run(folder, SKIPS["call"], "test_x.py::test_a  on-mondays  elsewhere\n")[0] not in (0, 5)


def test_what_is_late_twice_is_run_a_third_time_with_new_fixtures_and_noted(folder):
    code, output, noted = run(folder, LATE.replace("{tries}", "3"))
    assert code == 0 and (folder / "count").read_text(encoding="utf-8") == "aaabbb", output
    assert [line.split("\t")[:2] for line in noted] == [["late", f"test_x.py::test_late[{name}]"] for name in "aabb"]
    assert output.count("LATE, tried again: ") == 4


def test_what_is_always_late_fails(folder):
    code, output, noted = run(folder, LATE.replace("{tries}", "4"))
    assert code == 1 and (folder / "count").read_text(encoding="utf-8") == "aaabbb" and "promised within" in output
    assert len(noted) == 4


def test_another_failure_is_not_tried_again(folder):
    code, _, noted = run(folder, "def test_a():\n    open('count', 'a').write('a')\n    assert False\n")
    assert code == 1 and (folder / "count").read_text(encoding="utf-8") == "a" and not noted


def test_what_is_late_and_leaves_something_behind_is_not_tried_again(folder):
    code, output, noted = run(folder, LEAVES)
    assert code == 1 and "left behind" in output and not noted


HANGS = {"test": """
def test_a():
    {wait}
""", "fixture": """
@pytest.fixture
def f():
    {wait}
def test_a(f):
    pass
""", "end": """
@pytest.fixture
def f():
    yield
    {wait}
def test_a(f):
    pass
"""}
WAITS = {"python": "threading.Event().wait()", "child": "subprocess.run(['sleep', '98'])"}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("where", HANGS)
def test_what_hangs_is_named_and_ended_and_costs_its_own_time_only(folder, where, wait):
    began = time.monotonic()
    text = "import subprocess, threading\npytestmark = pytest.mark.limit(1)\n" + HANGS[where]
    code, output, _ = run(folder, text.replace("{wait}", WAITS[wait]) + "def test_b():\n    test_a()\n")
    assert code == 1 and "test_x.py::test_a hung: not over after 1 s" in output, output
    assert "stopping after" in output or "hung" in output.splitlines()[-2], output
    assert "Thread 0x" in output or "Current thread" in output, "a dump of the stacks"
    assert wait == "python" or "sleep 98" in output, "its processes"
    assert time.monotonic() - began < 45


CTEST = """add_test(unit.good "/bin/true")
add_test(lint.skips "/bin/sh" "-c" "echo a tool is missing; exit 77")
set_tests_properties(lint.skips PROPERTIES SKIP_RETURN_CODE 77)
add_test(unit.writes "/bin/sh" "-c" "printf '%b' \\"$NOTES\\" >>\\"$HVT_EVENTS\\"")
add_test(unit.off "/bin/false")
set_tests_properties(unit.off PROPERTIES DISABLED TRUE)
add_test(unit.bad "/bin/false")
add_test(chance.once "/bin/sh" "-c" "test -e once || { touch once; exit 1; }")
add_test(chance.twice "/bin/sh" "-c" "echo x >>twice; test $(wc -l <twice) -gt 2")
add_test(chance.race "/bin/sh" "-c" "test -e race || { touch race; echo 'WARNING: ThreadSanitizer: data race'; exit 1; }")
add_test(chance.crash "/bin/sh" "-c" "test -e crash || { touch crash; kill -SEGV $$; }")
add_test(chance.hang "/bin/sh" "-c" "test -e hang || { touch hang; sleep 9; }")
set_tests_properties(chance.hang PROPERTIES TIMEOUT 1)
if(CTEST_CONFIGURATION_TYPE MATCHES "^Nightly$")
  add_test(nightly.bad "/bin/false")
endif()
"""


def ctest(folder, listed, *arguments, notes=""):
    """run-ctest on a folder that looks like a build."""
    (folder / "CTestTestfile.cmake").write_text(CTEST, encoding="utf-8")
    (folder / "CMakeCache.txt").write_text("HVD_SANITIZE:STRING=\n", encoding="utf-8")
    (folder / "skips.txt").write_text(listed, encoding="utf-8")
    environment = os.environ | {"HVT_SKIPS": str(folder / "skips.txt"), "NOTES": notes}
    return subprocess.run([HARNESS / "run-ctest", folder, *arguments], env=environment, capture_output=True, text=True,
                          timeout=100, check=False)


@pytest.mark.parametrize("test", ["lint.skips", "unit.off"])
def test_a_skip_of_ctest_has_to_be_listed(tmp_path, test):
    done = ctest(tmp_path, "lint.other  no-soak  another\n", "-R", test)
    assert done.returncode == 1 and f"SKIPPED, and no line of tests/skips.txt allows that here: 1\n    {test}: " in done.stdout
    done = ctest(tmp_path, f"{test}  no-soak  it may be\n", "-R", test)
    assert done.returncode == 0 and f"skipped, as tests/skips.txt allows: 1\n    {test}: no-soak: it may be" in done.stdout


def test_a_skip_of_a_program_has_to_be_listed(tmp_path):
    notes = "skip\\tunit/a/test_b.c::c\\tnot root\\n"
    done = ctest(tmp_path, "unit/a/test_b.c::d  no-soak  another\n", "-R", "unit.writes", notes=notes)
    assert done.returncode == 1 and "allows that here: 1\n    unit/a/test_b.c::c: not root" in done.stdout
    done = ctest(tmp_path, "unit/a/test_b.c::c  no-soak  it may be\n", "-R", "unit.writes", notes=notes)
    assert done.returncode == 0 and "as tests/skips.txt allows: 1\n    unit/a/test_b.c::c: no-soak: it may be" in done.stdout


def test_a_c_test_notes_what_it_skips(tmp_path):
    """Also where the environment has been cleared."""
    events = tmp_path / "events.txt"
    subprocess.run([program("hvt-skips")], env=os.environ | {"HVT_EVENTS": str(events)}, check=True, timeout=60)
    assert events.read_text(encoding="utf-8") == "skip\tharness/hvt_skips.c::it_is_skipped\tit has to\n"


@pytest.mark.parametrize("count, code", [(5, 0), (6, 1)])
def test_five_tests_may_be_late_in_a_run(tmp_path, count, code):
    notes = "".join(f"late\\tfault/test_x.py::test_{number}\\t12 ms\\n" for number in range(count))
    for _ in range(2):  # what was noted in a run before does not count
        done = ctest(tmp_path, "", "-R", "unit.writes", notes=notes)
        assert done.returncode == code and f"late, of at most 5: {count}\n    fault/test_x.py::test_0: 12 ms" in done.stdout
        assert ("TOO MANY" in done.stdout) == bool(code)


def test_a_test_that_failed_by_chance_is_listed(tmp_path):
    done = ctest(tmp_path, "", "-R", "chance.once|unit.good")
    assert done.returncode == 0, done.stdout
    assert "FLAKY: failed beside others and passed 2 times alone, of at most 2: 1\n    chance.once: " in done.stdout
    done = ctest(tmp_path, "", "-R", "chance.once|unit.good")
    assert done.returncode == 0 and "FLAKY" not in done.stdout


@pytest.mark.parametrize("tests", ["twice", "race", "crash", "hang", "once|unit.bad", "once|race", "once|twice|unit.bad"])
def test_what_fails_twice_crashes_hangs_or_races_did_not_fail_by_chance(tmp_path, tests):
    done = ctest(tmp_path, "", "-R", tests)
    assert done.returncode == 8 and "FLAKY" not in done.stdout, done.stdout


def test_what_the_list_refuses_is_no_failure_that_a_second_run_may_mend(tmp_path):
    """scripts/test.sh runs what failed once more on ctest's status 8; the skip, which it would not see again, is another."""
    for listed, notes in (("", "skip\\tunit/a/test_b.c::c\\tnot root\\n"), ("", "late\\tfault/test_x.py::test_y\\t12 ms\\n" * 6)):
        done = ctest(tmp_path, listed, "-R", "unit.(bad|writes)", notes=notes)
        assert done.returncode == 1 and "tests failed out of 2" in done.stdout, done.stdout
        assert "allows that here: 1" in done.stdout or "TOO MANY" in done.stdout


def test_all_that_failed_is_run_once_more_also_where_some_were_run_alone(tmp_path):
    assert ctest(tmp_path, "", "-R", "chance.twice|unit.bad").returncode == 8
    done = ctest(tmp_path, "", "--rerun-failed")
    assert done.returncode == 8 and "chance.twice" in done.stdout and "unit.bad" in done.stdout, done.stdout


LEFT = "chance.once  ci-asan  it is by chance\nunit.bad  ci-asan  it is bad\nunit.goo  ci-tsan  another step\n"


@pytest.mark.parametrize("more", [[], ["-R", "unit.(good|bad)|chance.(once|crash)"]])
def test_what_a_step_leaves_out_is_a_list_of_whole_names_and_printed(tmp_path, more):
    for again in ([], ["--rerun-failed"]):
        (tmp_path / "crash").unlink(missing_ok=True)
        done = ctest(tmp_path, LEFT + "lint.skips  no-soak  why\nunit.off  no-soak  why\n", "--leave-out", "ci-asan", *more, *again)
        assert done.returncode == 8, done.stdout + done.stderr
        assert "as tests/skips.txt says by ci-asan: 2\n    chance.once: it is by chance\n    unit.bad: it is bad\n" in done.stdout
        assert ("left out by the other arguments, with their labels: 6\n" in done.stdout) == bool(more)
        assert "unit.bad (" not in done.stdout and "chance.once (" not in done.stdout and "chance.crash (" in done.stdout


@pytest.mark.parametrize("listed, step, more, said", [
    ("unit.goo  ci-asan  why\nunit.ba*  ci-asan  why\n", "ci-asan", [], "what is no test here: unit.ba* unit.goo"),
    ("nightly.bad  ci-asan  why\n", "ci-asan", [], "what is no test here: nightly.bad"),
    (LEFT, "ci-msan", [], "'ci-msan'"), (LEFT, "", [], "''"), (LEFT, "ci-asan", ["-E", "bad"], "no -E beside it")])
def test_what_a_step_leaves_out_has_to_be_there(tmp_path, listed, step, more, said):
    done = ctest(tmp_path, listed, *more, "--leave-out", *([step] if step else []))
    assert done.returncode == 1 and said in done.stderr and "Start" not in done.stdout, done.stdout + done.stderr


def test_what_a_step_leaves_out_may_not_be_skipped_elsewhere(tmp_path):
    done = ctest(tmp_path, "lint.skips  ci-asan  why\n", "-R", "lint.skips")
    assert done.returncode == 1 and "SKIPPED, and no line of tests/skips.txt allows that here: 1" in done.stdout


@pytest.mark.parametrize("count, listed, status, code", [
    (5, True, 0, 0), (6, True, 0, 1), (0, False, 0, 1), (6, True, 3, 1), (0, True, 3, 3)])
def test_a_command_is_judged_alike(tmp_path, count, listed, status, code):
    notes = "late\\tfault/test_x.py::test_y\\t12 ms\\n" * count + "skip\\tunit/a/test_b.c::c\\tnot root\\n"
    done = ctest(tmp_path, "unit/a/test_b.c::c  no-soak  it may be\n" * listed, "--", "sh", "-c",
                 f"echo '3 passed in 0.1s'; printf '%b' \"$NOTES\" >>\"$HVT_EVENTS\"; echo; exit {status}", notes=notes)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("TOO MANY" in done.stdout) == (count > 5) and ("SKIPPED, and no line" in done.stdout) == (not listed)
    assert done.stdout.endswith("\n3 passed in 0.1s\n")


def test_a_test_of_one_configuration_that_fails_is_found_again(tmp_path):
    done = ctest(tmp_path, "", "-C", "Nightly", "-R", "nightly.bad")
    assert done.returncode == 8 and "FLAKY" not in done.stdout, done.stdout


def test_the_exit_status_is_ctests(tmp_path):
    assert ctest(tmp_path, "", "-R", "unit.good").returncode == 0
    assert ctest(tmp_path, "", "-R", "unit.bad").returncode == 8
    assert ctest(tmp_path, "", "-R", "none", "--no-tests=error").returncode not in (0, 1)
    assert subprocess.run([HARNESS / "run-ctest", tmp_path / "nothing"], capture_output=True, check=False).returncode == 2
