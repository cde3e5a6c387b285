# SPDX-License-Identifier: Apache-2.0
"""A real training run: the same curve for one rank and four, the same bits twice, and it learns."""
import csv
import math
import pathlib
import re
import subprocess

import pytest

from hvt import BUILD, Daemon, sanitized, scaled

EPOCHS = 3 if sanitized() else 12


def train(daemon: Daemon, size: int, job: str, folder: pathlib.Path) -> tuple[list[float], str]:
    """The losses of all steps and what rank 0 printed."""
    program = BUILD / "examples" / "digits"
    curve = folder / f"{job}.csv"
    ranks = []
    for rank in range(size):
        environment = dict(daemon.environment, HVD_ADDRESS=str(daemon.address), HVD_RANK=str(rank),
                           HVD_SIZE=str(size), HVD_JOB_ID=job)
        ranks.append(subprocess.Popen([program, "--epochs", str(EPOCHS), "--csv", str(curve), "--hash"],
                                      env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        said = [process.communicate(timeout=scaled(120)) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (_, errors) in zip(ranks, said):
        assert process.returncode == 0, errors
        assert not errors
    with curve.open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)], said[0][0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    with Daemon() as daemon:
        yield {"one": train(daemon, 1, "one", folder), "four": train(daemon, 4, "four", folder),
               "again": train(daemon, 4, "again", folder)}


def test_one_rank_and_four_give_the_same_loss_curve(runs):
    one, four = runs["one"][0], runs["four"][0]
    assert len(one) == len(four) > 10 * EPOCHS
    worst = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one, four))
    assert worst <= 1e-5, f"the curves differ by {worst:.2e}"
    assert all(math.isfinite(loss) for loss in one)


def test_two_runs_with_four_ranks_are_bitwise_identical(runs):
    assert runs["four"][0] == runs["again"][0]
    hashes = [re.search(r"^hash ([0-9a-f]{16})", runs[name][1], re.MULTILINE)[1] for name in ("four", "again")]
    assert hashes[0] == hashes[1]


@pytest.mark.skipif(bool(sanitized()), reason="too few epochs under a sanitizer")
def test_it_recognises_at_least_95_percent_of_digits_it_has_never_seen(runs):
    for name in ("one", "four"):
        accuracy = float(re.findall(r"test +([\d.]+) %", runs[name][1])[-1])
        assert accuracy >= 95.0, f"{name}: {accuracy} %"
