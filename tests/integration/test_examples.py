# SPDX-License-Identifier: Apache-2.0
"""The trainer in examples/digits: its curve, its bits, its result, and what it says when something is wrong."""
import csv
import hashlib
import math
import pathlib
import re
import subprocess

import pytest

from hvt.build import BUILD, SOURCE, program, sanitized, scaled
from hvt.daemon import clean_environment
from hvt.job import Job

DIGITS = str(BUILD / "examples/digits")
EPOCHS = "3" if sanitized() else "12"


def train(ranks: int, *arguments: str) -> str:
    """One training run by hvdrun; what rank 0 wrote."""
    done = subprocess.run([program("hvdrun"), "-np", str(ranks), DIGITS, *arguments], env=clean_environment(),
                          capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curve(ranks: int, folder: pathlib.Path, *arguments: str) -> list[float]:
    """The loss of each step."""
    path = folder / f"loss{ranks}.csv"
    train(ranks, "--csv", str(path), *arguments)
    with open(path, newline="", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def final_hash(output: str) -> str:
    return re.search(r"hash ([0-9a-f]{16}) \(the same on all", output).group(1)


@pytest.mark.parametrize("batch", ["64", "50"], ids=["shared-evenly", "shared-unevenly"])
def test_one_rank_and_four_have_the_same_loss_curve(tmp_path, batch):
    alone, together = (curve(ranks, tmp_path, "--epochs", EPOCHS, "--batch", batch) for ranks in (1, 4))
    assert len(alone) == len(together) >= 23 * int(EPOCHS)
    assert all(math.isfinite(loss) for loss in alone)
    assert max(abs(a - b) / a for a, b in zip(alone, together)) <= 1e-5
    assert together[-1] < together[0] / 5


def test_two_runs_with_four_ranks_end_with_the_same_bits():
    first, second = (train(4, "--hash", "--epochs", EPOCHS) for _ in range(2))
    assert final_hash(first) == final_hash(second)


@pytest.mark.skipif(bool(sanitized()), reason="too slow under a sanitizer")
def test_four_ranks_reach_95_percent_on_the_test_images():
    accuracy = float(re.findall(r"test +([0-9.]+) %", train(4))[-1])
    assert accuracy >= 95


def test_another_seed_ends_with_other_bits():
    """The hash can differ."""
    first, second = (final_hash(train(2, "--hash", "--epochs", "1", "--seed", seed)) for seed in ("1", "2"))
    assert first != second


@pytest.mark.parametrize("arguments", [["--epochs", "x"], ["--batch", "0"], ["--lr", "nan"], ["--no-such"], ["word"]],
                         ids=" ".join)
def test_wrong_arguments_are_usage_errors(arguments):
    done = subprocess.run([DIGITS, *arguments], env=clean_environment(), capture_output=True, text=True, timeout=10,
                          check=False)
    assert done.returncode == 2
    assert "--epochs N" in done.stderr


@pytest.mark.parametrize("text,says", [("1,2,3\n", "line 1 is not an image"), ("", "too few images")])
def test_a_file_without_images_is_refused(tmp_path, text, says):
    path = tmp_path / "images.csv"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run([DIGITS, "--data", str(path)], env=clean_environment(), capture_output=True, text=True,
                          timeout=10, check=False)
    assert done.returncode == 1
    assert f"{path}: {says}" in done.stderr


def test_without_a_daemon_the_error_names_rank_status_and_sentence(tmp_path):
    environment = dict(clean_environment(), HVD_ADDRESS=str(tmp_path / "nowhere"))
    done = subprocess.run([DIGITS], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert re.search(r"digits: rank -?\d+: open: HVD_ERR_NO_DAEMON: .* at_ns=\d+", done.stderr)


def test_the_monitor_names_the_rank_that_was_killed_and_stops_the_job(daemon):
    daemon.allow("rank-lost", "job-stopped", "session-ended", "rank-ended")
    job = Job(daemon, 2, name="watched")
    environment = dict(clean_environment(), HVD_ADDRESS=str(daemon.address))
    with subprocess.Popen([str(BUILD / "examples/watch"), "watched"], env=environment, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout.readline() == "watching watched\n"
        pid = job.ranks[1].pid
        job.ranks[1].kill()
        assert re.fullmatch(rf"rank 1 \(pid {pid}\) was lost: .*SIGKILL.*\n", watch.stdout.readline())
        for rank in job.ranks[:1]:
            rank.stop(20)
        assert watch.wait(scaled(20)) == 1


def test_the_images_are_those_that_the_attribution_names():
    folder = SOURCE / "examples/digits"
    digest = hashlib.sha256((folder / "digits.csv").read_bytes()).hexdigest()
    assert f"SHA-256 of digits.csv: `{digest}`" in (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
