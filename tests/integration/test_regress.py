# SPDX-License-Identifier: Apache-2.0
"""bench/regress.sh: the interval, and the script on a repository whose hvd-perf prints times as a test wants them."""
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import pytest

from hvt import scaled, wait_until

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import interval  # noqa: E402  # pylint: disable=wrong-import-position,import-error

LIMIT = 1.03


# ---- the interval ----

def noise(source, spread, outliers):
    """A factor as a busy machine makes it: some per cent, and now and then up to three times the time."""
    return math.exp(source.gauss(0, spread)) * (source.uniform(1, 3) if source.random() < outliers else 1)


def turns(source, slower, count=12, spread=0.03, outliers=0.03):
    return [slower * noise(source, spread, outliers) / noise(source, spread, outliers) for _ in range(count)]


@pytest.mark.parametrize("count,outside", [(6, 1), (7, 3), (8, 4), (9, 6), (10, 9), (12, 14), (15, 26), (20, 53)])
def test_the_interval_is_that_of_the_tables_of_the_signed_rank_test(count, outside):
    # One more than the critical value for 5 % on two sides.
    ratios = [math.exp(0.1 * 1.3 ** n / 1.3 ** count) for n in range(count)]
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted((logs[i] + logs[j]) / 2 for i in range(count) for j in range(i, count))
    low, _middle, high = interval.of_ratios(ratios)
    assert math.isclose(math.log(low), means[outside - 1]) and math.isclose(math.log(high), means[-outside])


def test_it_holds_the_true_ratio_in_at_least_95_of_100_experiments_whatever_the_noise():
    source = random.Random(15)
    for outliers in (0.0, 0.1):
        held = 0
        for _ in range(2000):
            low, middle, high = interval.of_ratios(turns(source, 1.1, 8, outliers=outliers))
            held += low <= 1.1 <= high
            assert low <= middle <= high
        assert held >= 0.95 * 2000 - 3 * math.sqrt(2000 * 0.05 * 0.95)


def test_ten_per_cent_more_is_found_and_noise_is_not():
    source = random.Random(15)
    found = sum(interval.of_ratios(turns(source, 1.10))[0] > LIMIT for _ in range(500))
    accused = sum(interval.of_ratios(turns(source, 1.00))[0] > LIMIT for _ in range(500))
    loud = sum(interval.of_ratios(turns(source, 1.00, spread=0.2, outliers=0.1))[0] > LIMIT for _ in range(500))
    assert found > 0.8 * 500 and accused == 0 and loud <= 0.05 * 500


def test_one_turn_that_is_far_out_does_not_hide_what_the_others_say():
    others = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.01]
    assert interval.of_ratios([*(1.1 * ratio for ratio in others), 0.02])[0] > LIMIT
    low, _middle, high = interval.of_ratios([*others, 50.0])
    assert low <= 1 <= high < LIMIT


def test_too_few_turns_are_refused():
    with pytest.raises(ValueError, match="5 turns are too few"):
        interval.of_ratios([1.1] * 5)


# ---- the script ----

PERF = """#!/usr/bin/env python3
import json, os, random, sys, time
words = sys.argv[1:]
memory = words[words.index("-m") + 1]
if "-c" not in words:
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(f"SIDE {memory}\\n")
TROUBLE
print(json.dumps({"op": words[words.index("-o") + 1], "time_us": SLOWER[memory] * random.uniform(0.98, 1.02)}))
"""
CMAKE = """cmake_minimum_required(VERSION 3.22)
project(fake NONE)
configure_file(hvd-perf bin/hvd-perf COPYONLY)
file(WRITE ${CMAKE_BINARY_DIR}/lib/libhvdclient.so.0 "")
"""
EQUAL = {"shared": 100.0, "malloc": 200.0, "adopted": 300.0}


def git(repository, *words):
    return subprocess.run(["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True,
                          capture_output=True, text=True, timeout=scaled(60)).stdout.strip()


class Repository:
    """A tree with this bench/ whose commits build such an hvd-perf."""

    def __init__(self, place):
        self.tree, self.log, self.temporary = place / "tree", place / "log", place / "tmp"
        shutil.copytree(BENCH, self.tree / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        self.temporary.mkdir()
        (self.tree / "CMakeLists.txt").write_text(CMAKE, encoding="utf-8")
        git(self.tree, "init", "-q")

    def commit(self, side, times, trouble=""):
        """Such an hvd-perf; the commit's id."""
        program = self.tree / "hvd-perf"
        program.write_text(PERF.replace("SIDE", side).replace("SLOWER", repr(times)).replace("TROUBLE", trouble), encoding="utf-8")
        program.chmod(0o755)
        git(self.tree, "add", ".")
        git(self.tree, "commit", "-q", "-m", side)
        return git(self.tree, "rev-parse", "HEAD")

    def command(self, *words):
        """The command line and its environment."""
        environment = os.environ | {"TMPDIR": str(self.temporary), "FAKE_LOG": str(self.log)}
        return {"args": [str(self.tree / "bench/regress.sh"), *words], "env": environment, "text": True}

    def regress(self, *words):
        """Runs the script; nothing may be left of it."""
        done = subprocess.run(**self.command(*words), capture_output=True, timeout=scaled(120), check=False)
        self.check_clean()
        return done

    def check_clean(self):
        """No folder, and no worktree that git knows of."""
        assert not list(self.temporary.iterdir())
        assert len(git(self.tree, "worktree", "list").splitlines()) == 1


@pytest.fixture(name="repository")
def repository_of_fakes(tmp_path):
    return Repository(tmp_path)


GRADIENTS = ("--only", "gradients-np2", "--turns", "6", "--seconds", "0.1")


def row(done, memory):
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"| gradients-np2, {memory} |")]
    assert len(lines) == 1, done.stdout + done.stderr
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_a_commit_that_is_ten_per_cent_slower_in_one_memory_fails_and_is_named(repository):
    old = repository.commit("old", EQUAL)
    new = repository.commit("new", EQUAL | {"malloc": 220.0})
    done = repository.regress(*GRADIENTS, old, new)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 3 measures are slower" in done.stdout and "load before the run" in done.stdout
    _name, was, now, ratio, ends, count, said = row(done, "malloc")
    low, high = (float(end) for end in ends.split("–"))
    assert 1.05 < low <= float(ratio) <= high < 1.15 and count == "6" and said == "**slower**"
    assert was.startswith(("19", "20")) and now.startswith(("21", "22"))
    assert row(done, "shared")[-1] != "**slower**"
    sides = [line.split()[0] for line in repository.log.read_text(encoding="utf-8").splitlines() if "malloc" in line]
    assert sides == ["old", "new", "new", "old"] * 3  # by turns, and each begins in every other one


def test_a_commit_of_equal_speed_passes_and_a_faster_one_is_named(repository):
    old = repository.commit("old", EQUAL)
    new = repository.commit("new", EQUAL | {"adopted": 200.0})
    done = repository.regress(*GRADIENTS, old, new)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 3 measures are slower" in done.stdout and row(done, "adopted")[-1] == "faster"


def test_a_measure_that_fails_on_one_side_is_not_judged_and_not_passed_over(repository):
    old = repository.commit("old", EQUAL, trouble='if memory == "adopted": sys.exit("no such memory")')
    done = repository.regress(*GRADIENTS, old, repository.commit("new", EQUAL))
    assert done.returncode == 3 and "1 could not be judged" in done.stdout, done.stdout + done.stderr
    assert "**not judged**: old: exit status 1: no such memory" in row(done, "adopted")[-1]


def test_when_the_minutes_are_over_what_has_too_few_turns_is_not_judged(repository):
    old = repository.commit("old", EQUAL, trouble="time.sleep(0.3)")
    done = repository.regress(*GRADIENTS, "--minutes", "0.01", old, repository.commit("new", EQUAL))
    assert done.returncode == 3 and "the 0.01 minutes are over" in done.stderr, done.stdout + done.stderr
    assert "an interval takes 6" in row(done, "adopted")[-1]


def test_a_commit_that_does_not_build_is_said(repository):
    old = repository.commit("old", EQUAL)
    (repository.tree / "CMakeLists.txt").write_text("message(FATAL_ERROR nonsense)\n", encoding="utf-8")
    done = repository.regress(*GRADIENTS, old, repository.commit("new", EQUAL))
    assert done.returncode == 3 and "nonsense" in done.stderr and "does not build" in done.stderr


@pytest.mark.parametrize("words,said", [
    (("--turns", "5", "HEAD", "HEAD"), "--turns must be at least 6"), (("--only", "nothing", "HEAD", "HEAD"), "no measure"),
    (("HEAD", "no-such"), "there is no commit 'no-such'"), (("HEAD",), "bench/regress.sh"), (("--what",), "what is '--what'?")])
def test_wrong_usage_is_refused_before_anything_is_built(repository, words, said):
    repository.commit("old", EQUAL)
    done = repository.regress(*words)
    assert done.returncode == 2 and said in done.stderr and "building" not in done.stdout


def test_help_says_what_it_does(repository):
    done = repository.regress("--help")
    assert done.returncode == 0 and "--turns N" in done.stdout and "Exit status 0" in done.stdout and "set -" not in done.stdout


def test_when_it_is_ended_it_leaves_nothing(repository):
    trouble = "open(os.environ['FAKE_LOG'] + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    commit = repository.commit("old", EQUAL, trouble=f"if '-c' not in words:\n    {trouble.replace(chr(10), chr(10) + '    ')}")
    with subprocess.Popen(**repository.command(*GRADIENTS, commit, commit), stdout=subprocess.DEVNULL) as process:
        noted = pathlib.Path(f"{repository.log}.pid")
        wait_until(lambda: noted.exists() and noted.read_text(encoding="utf-8"), "a run", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=scaled(30)) == 143
    repository.check_clean()
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text(encoding="utf-8")), 0)
