# SPDX-License-Identifier: Apache-2.0
"""Many ops at once, in any order, with and without names; deadlines, a full table and the event descriptor."""
import random

import pytest

from hvt import Status, arith
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
        mine = {}
        for name in order:
            rank.post("submit", kind="allreduce", name=f"t{name}", dtype=INT32.number, dims=[1], data=one(name).hex(),
                      reduce_op=1)
        for name in order:
            mine[name] = rank.collect_outcome()
            assert mine[name].ok, mine[name]
        ops.append(mine)
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
    rank, limit = job.ranks[0], 4096
    accepted = []
    for number in range(limit + 1):
        rank.post("submit", kind="barrier", name=f"full{number}")
    for _ in range(limit + 1):
        outcome = rank.collect_outcome()
        if outcome.ok:
            accepted.append(outcome.op)
        else:
            assert outcome.status == Status.ERR_RING_FULL, outcome
            assert outcome.text
    assert len(accepted) >= 1024, "the header promises room for 4096 ops in flight"
    assert len(accepted) <= limit
    others = []
    for other in job.ranks[1:]:
        for number in range(len(accepted)):
            other.post("submit", kind="barrier", name=f"full{number}")
        others.append([other.collect_outcome() for _ in accepted])
    refused = [outcome for row in others for outcome in row if not outcome.ok]
    if refused:
        pytest.fail(f"another rank could not submit as many: {refused[0]}")
    for other, row in zip(job.ranks, [[None] * 0, *others]):
        for outcome in row:
            assert other.outcome(outcome.op).ok
    for op in accepted:
        assert rank.outcome(op).ok
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
