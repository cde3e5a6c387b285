# SPDX-License-Identifier: Apache-2.0
"""The examples learn the digits with two ranks."""
from __future__ import annotations

import re
from typing import Any

import pytest

from conftest import SOURCE


@pytest.mark.parametrize("name, arguments, least", [
    ("custom_loop", ["--epochs", "15"], 91), ("monitored_session", ["--steps", "1500"], 90)])
def test_an_example_learns_the_digits(ranks: Any, name: str, arguments: list[str], least: float) -> None:
    done = ranks.run(2, str(SOURCE / "examples" / "tensorflow" / f"{name}.py"), *arguments, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"^\[0\]<stdout>:.* loss ([0-9.]+)", done.stdout, re.MULTILINE)]
    assert losses[-1] < losses[0] / 2
    accuracy = re.search(r"^\[0\]<stdout>:accuracy ([0-9.]+) %", done.stdout, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= least, done.stdout


def test_all_ranks_go_on_from_the_checkpoint_of_rank_0(ranks: Any, tmp_path: Any) -> None:
    for steps in (100, 300):
        done = ranks.run(2, str(SOURCE / "examples" / "tensorflow" / "monitored_session.py"), "--steps", str(steps),
                         "--checkpoint-dir", str(tmp_path), timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"step (\d+):", done.stdout) == ["100", "150"]


@pytest.mark.parametrize("name, arguments, least", [
    ("digits", ["--split", "shard", "--epochs", "10"], 88), ("digits", ["--split", "steps", "--epochs", "10"], 88),
    ("digits", ["--split", "epochs", "--epochs", "10"], 86), ("accumulate", [], 78)])
def test_an_example_with_fit_learns_the_digits(ranks: Any, tmp_path: Any, name: str, arguments: list[str],
                                               least: float) -> None:
    saved = tmp_path / "model.keras"
    more = ["--save", str(saved)] if name == "digits" else []
    done = ranks.run(2, str(SOURCE / "examples" / "keras" / f"{name}.py"), *arguments, *more, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.findall(r"accuracy ([0-9.]+) %", done.stdout)
    assert len(accuracy) == 1 and float(accuracy[0]) >= least, done.stdout
    assert saved.exists() or not more
