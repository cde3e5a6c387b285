# SPDX-License-Identifier: Apache-2.0
"""Many ops at once, in any order, with and without names; deadlines, a full table and the event descriptor."""
import random

import pytest

from hvt import Rank, Status, arith, wait_until
from hvt.job import job_of

INT32 = arith.DTYPES["int32"]


@pytest.fixture(scope="module")
def job():
    with job_of(3) as running:
        yield running


def one(value: int) -> bytes:
    return arith.pack(INT32, [value])


def test_a_thousand_ops_in_flight_in_a_different_order_on_every_rank(job):
    count = 1000
    ops = []
    for number, rank in enumerate(job.ranks):
        order = list(range(count))
        random.Random(number).shuffle(order)
        outcomes = rank.ask_all([{"do": "submit", "kind": "allreduce", "name": f"t{name}", "dtype": INT32.number,
                                  "dims": [1], "data": one(name).hex(), "reduce_op": 1} for name in order])
        assert all(outcome.ok for outcome in outcomes)
        ops.append(dict(zip(order, outcomes)))
    for rank, mine in zip(job.ranks, ops):
        for name in range(count):
            outcome = rank.outcome(mine[name].op)
            assert outcome.ok and outcome.data == one(name * job.size)


def test_small_and_large_ops_mixed_in_shuffled_orders_all_get_their_own_result(job):
    shapes = [1, 5000, 3, 70_000, 1200, 2, 300_000, 9]
    ops = []
    for number, rank in enumerate(job.ranks):
        order = list(range(len(shapes)))
        random.Random(100 + number).shuffle(order)
        mine = {place: rank.submit("allreduce", f"mix{place}", dtype="int32", dims=[shapes[place]],
                                   data=one(place + number) * shapes[place], reduce_op="sum",
                                   memory=("malloc", "shared")[number % 2]) for place in order}
        ops.append(mine)
    for rank, mine in zip(job.ranks, ops):
        for place, op in mine.items():
            outcome = rank.outcome(op)
            assert outcome.ok and outcome.data == one(job.size * place + 3) * shapes[place]


def test_unnamed_ops_meet_by_kind_and_turn(job):
    ops = {rank: [] for rank in job.ranks}
    for number, rank in enumerate(job.ranks):
        kinds = ["allreduce", "allreduce", "broadcast", "allreduce", "broadcast"]
        if number == 1:  # another interleaving of the kinds, the same order within each kind
            kinds = ["broadcast", "allreduce", "broadcast", "allreduce", "allreduce"]
        turn = {"allreduce": 0, "broadcast": 0}
        for kind in kinds:
            more = {"reduce_op": "sum"} if kind == "allreduce" else {"root": 2}
            value = 10 * turn[kind] + number
            ops[rank].append((kind, turn[kind], rank.submit(kind, None, dtype="int32", dims=[1], data=one(value),
                                                            **more)))
            turn[kind] += 1
    for rank in job.ranks:
        for kind, turn, op in ops[rank]:
            outcome = rank.outcome(op)
            assert outcome.ok, outcome
            assert outcome.data == one(30 * turn + 3 if kind == "allreduce" else 10 * turn + 2)
            assert outcome.name.startswith(f"{kind}.noname.")


def test_a_wait_with_a_deadline_times_out_and_the_op_goes_on(job):
    first = job.ranks[0].submit("barrier", "late")
    outcome = job.ranks[0].wait(first, 0.03)
    assert outcome.status == Status.ERR_TIMEOUT
    assert "late" in outcome.text
    others = [rank.submit("barrier", "late") for rank in job.ranks[1:]]
    for rank, op in zip(job.ranks, [first, *others]):
        assert rank.outcome(op).ok


def test_more_ops_than_fit_are_refused_as_ring_full_and_nothing_is_lost(job):
    limit = 4096  # HVD_OPS_MAX

    def submit_all(rank: Rank) -> list[int]:
        """Every op, again while the ring to the engine is momentarily full."""
        ops, names = [], [f"full{number}" for number in range(limit)]

        def some() -> bool:
            outcomes = rank.ask_all([{"do": "submit", "kind": "barrier", "name": name} for name in names])
            assert {outcome.status for outcome in outcomes} <= {Status.OK, Status.ERR_RING_FULL}
            ops.extend(outcome.op for outcome in outcomes if outcome.ok)
            names[:] = [name for name, outcome in zip(names, outcomes) if not outcome.ok]
            return not names

        wait_until(some, "room for the 4096 ops in flight that the header promises")
        return ops

    rows = [submit_all(job.ranks[0])]
    for _ in range(3):
        outcome = job.ranks[0].try_submit("barrier", "one too many")
        assert outcome.status == Status.ERR_RING_FULL and outcome.text, outcome
    rows += [submit_all(rank) for rank in job.ranks[1:]]
    for rank, row in zip(job.ranks, rows):
        waited = rank.ask_all([{"do": "wait", "op": op, "timeout_ms": 20_000} for op in row])
        assert all(outcome.ok for outcome in waited)
        rank.ask_all([{"do": "free", "op": op} for op in row])
    job.check_usable()


def test_the_event_descriptor_becomes_readable_when_a_completion_waits(job):
    rank = job.ranks[0]
    reply = rank.ask("event", timeout_ms=0)
    assert reply["status"] == Status.OK and not reply["readable"]
    first = rank.submit("barrier", "event")
    assert not rank.ask("event", timeout_ms=20)["readable"]
    rank.post("event", timeout_ms=5000)
    others = [other.submit("barrier", "event") for other in job.ranks[1:]]
    assert rank.collect()["readable"]
    assert rank.test(first).ok
    assert not rank.ask("event", timeout_ms=0)["readable"], "still readable after everything was taken"
    rank.free(first)
    for other, op in zip(job.ranks[1:], others):
        assert other.outcome(op).ok


def test_ops_freed_while_in_flight_finish_without_their_owner(job):
    for turn in range(20):
        op = job.ranks[0].submit("allreduce", f"orphan{turn}", dtype="int32", dims=[8], memory="malloc")
        job.ranks[0].ask("abandon", op=op)
        for rank, other in [(rank, rank.submit("allreduce", f"orphan{turn}", dtype="int32", dims=[8]))
                            for rank in job.ranks[1:]]:
            assert rank.outcome(other).ok
    job.check_usable()
