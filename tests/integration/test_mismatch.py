# SPDX-License-Identifier: Apache-2.0
"""Ranks that disagree: one text on every rank, nothing executed, and the session stays usable."""
import time

import pytest

from hvt import Status, check_prompt
from hvt.job import job_of

HONEST = {"kind": "allreduce", "dtype": "float32", "dims": [10, 4], "reduce_op": "sum"}

CASES = {
    "dtype": (HONEST, {"dtype": "float64"}, ("dtype", "float32", "float64")),
    "shape": (HONEST, {"dims": [10, 5]}, ("shape", "[10, 4]", "[10, 5]")),
    "dimensions": (HONEST, {"dims": [40]}, ("shape", "[10, 4]", "[40]")),
    "scalar": (HONEST, {"dims": []}, ("shape", "[]")),
    "reduce op": (HONEST, {"reduce_op": "max"}, ("sum", "max")),
    "prescale": (HONEST, {"prescale": 0.5}, ("prescale", "0.5")),
    "postscale": (HONEST, {"postscale": 0.5}, ("postscale", "0.5")),
    "op": (HONEST, {"kind": "broadcast", "root": 0, "reduce_op": None}, ("allreduce", "broadcast")),
    "barrier": (HONEST, {"kind": "barrier", "dims": None, "dtype": None, "reduce_op": None}, ("allreduce", "barrier")),
    "root": ({"kind": "broadcast", "dtype": "int32", "dims": [3], "root": 0}, {"root": 1}, ("root", "0", "1")),
    "gathered dimensions": ({"kind": "allgather", "dtype": "int32", "dims": [3, 4]}, {"dims": [3, 5]},
                            ("[3, 4]", "[3, 5]")),
    "gathered dtype": ({"kind": "allgather", "dtype": "int32", "dims": [3, 4]}, {"dtype": "int64"},
                       ("int32", "int64")),
}


@pytest.fixture(scope="module")
def job():
    with job_of(3, "op-failed") as running:
        yield running


@pytest.mark.parametrize("odd", [0, 1, 2], ids=lambda rank: f"rank{rank}")
@pytest.mark.parametrize("case", CASES)
def test_a_disagreement_fails_on_every_rank_with_one_text(job, case, odd):
    honest, changes, words = CASES[case]
    ops = []
    for number, rank in enumerate(job.ranks):
        said = {name: value for name, value in (honest | (changes if number == odd else {})).items()
                if value is not None}
        began_ns = time.monotonic_ns()  # in the end, of the last one
        ops.append(rank.submit(said.pop("kind"), "w1", **said))
    outcomes = [rank.outcome(op) for rank, op in zip(job.ranks, ops)]
    for outcome in outcomes:
        assert outcome.status == Status.ERR_MISMATCH, outcome
        check_prompt("the ranks were told", outcome.at_ns - began_ns, 100_000_000)
    text = outcomes[0].text
    assert {outcome.text for outcome in outcomes} == {text}
    assert "w1" in text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    others = ",".join(str(rank) for rank in range(3) if rank != odd)
    assert f"rank {odd} said" in text or f"rank {odd} " in text, text
    assert others in text, f"the ranks {others} are not named in: {text}"
    job.check_usable()


def test_the_output_is_untouched_when_nothing_is_executed(job):
    ops = [rank.submit("allreduce", "w2", dtype="int32", dims=[2 if number else 3], data=bytes(8 if number else 12),
                       out_fill=0x5a) for number, rank in enumerate(job.ranks)]
    for rank, op in zip(job.ranks, ops):
        outcome = rank.outcome(op, want_output=True)
        assert outcome.status == Status.ERR_MISMATCH
        assert set(outcome.data) == {0x5a}, "a failed op wrote to its output"


def test_the_same_name_twice_in_flight_is_refused_at_once_and_the_first_goes_on(job):
    first = job.ranks[0].submit("allreduce", "twice", dtype="int32", dims=[1], data=bytes(4))
    second = job.ranks[0].try_submit("allreduce", "twice", dtype="int32", dims=[1], data=bytes(4))
    assert second.status == Status.ERR_DUPLICATE_NAME
    assert "twice" in second.text
    others = [rank.submit("allreduce", "twice", dtype="int32", dims=[1], data=bytes(4)) for rank in job.ranks[1:]]
    for rank, op in zip(job.ranks, [first, *others]):
        assert rank.outcome(op).ok


@pytest.mark.parametrize("bad", [
    {"dtype": 99}, {"dtype": -1}, {"ndim": 9}, {"ndim": -1}, {"dims": [-1]}, {"dims": [1 << 62, 8]},
    {"reduce_op": 77}, {"name": ""}, {"name": "x" * 1024}, {"name_hex": "61ff"}], ids=str)
def test_a_bad_argument_is_refused_before_it_is_sent(job, bad):
    said = {"name": "bad", "dtype": "int32", "dims": [1], "data": bytes(4)} | bad
    outcome = job.ranks[0].try_submit("allreduce", said.pop("name"), **said)
    assert outcome.status in (Status.ERR_INVALID, Status.ERR_UNSUPPORTED), outcome
    assert outcome.text
    job.check_usable()
