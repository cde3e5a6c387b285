# SPDX-License-Identifier: Apache-2.0
"""Small ops that the ranks do themselves (docs/adr/0005): when they are, when they are not, and that nobody can tell by the
results."""
import os
import random
import time

import pytest

from hvt import Daemon, Status, arith, procs, scaled, wait_until
from hvt.daemon import stopped
from hvt.job import Job, job_of

INT32 = arith.DTYPES["int32"]


def rows(job: Job) -> list[dict]:
    return job.daemon.ctl.json("ranks", job.name)["ranks"]


def express(job: Job) -> int:
    return rows(job)[0]["express"]


def pairs(job: Job, value: int) -> list[bytes]:
    return [arith.pack(INT32, [value, rank]) for rank in range(job.size)]


def go(job: Job, name: str | None, value: int = 1, process_set: int = 0, ranks: list[int] | None = None) -> None:
    """One op on every rank, or on those of a set. None: an unnamed one."""
    ranks = ranks or list(range(job.size))
    data = [pairs(job, value)[rank] for rank in ranks]
    ops = [(rank, submit(job, rank, name, value, process_set=process_set)) for rank in ranks]
    for rank, op in ops:
        job.ranks[rank].post_wait(op, want_output=True)
    for rank, op in ops:
        outcome = job.ranks[rank].collect_outcome()
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", data), outcome
        job.ranks[rank].free(op)


def settle(job: Job, name: str | None, **more) -> None:
    """Until the ops of this name, or the unnamed ones, are done without the engine."""
    first = (more.get("ranks") or [0])[0]
    before = rows(job)[first]["express"]

    def is_express() -> bool:
        go(job, name, **more)
        return rows(job)[first]["express"] > before

    wait_until(is_express, f"'{name}' to be done by the ranks themselves", scaled(10))


def shown(name: str | None) -> str:
    """What tools and sentences call it, or how that begins."""
    return name or "allreduce.noname."


@pytest.fixture(name="job")
def a_job(daemon):
    return Job(daemon, 3)


def test_the_second_op_of_a_name_needs_no_engine_and_is_seen_all_the_same(job):
    settle(job, "steady")
    before = rows(job)
    for value in range(20):
        go(job, "steady", value)
    after = rows(job)
    for old, new in zip(before, after):
        assert new["ops"] == old["ops"] + 20, (old, new)
        assert new["bytes"] == old["bytes"] + 20 * 8
        assert new["express"] > old["express"]
        assert new["negotiated"] + new["replayed"] + new["express"] == new["ops"]
        assert new["lag_ops"] >= old["lag_ops"] + 20
    traced = job.daemon.ctl.json("trace", job.name, "--rank", "0", "--last", "5")["trace"]
    assert [row["tensor"] for row in traced] == ["steady"] * 5 and all(row["op"] == "allreduce" for row in traced)


@pytest.mark.parametrize("name", ["changing", None])
def test_whatever_differs_goes_to_the_engine_and_comes_back(job, name):
    settle(job, name)
    steps = express(job)
    data = [arith.pack(INT32, [rank, rank, rank]) for rank in range(3)]
    for reduce_op in ("sum", "max"):
        ops = [rank.submit("allreduce", name, dtype="int32", dims=[3], data=data[i], reduce_op=reduce_op)
               for i, rank in enumerate(job.ranks)]
        for rank, op in zip(job.ranks, ops):
            outcome = rank.outcome(op)
            assert outcome.ok and outcome.data == arith.allreduce(INT32, reduce_op, data)
        assert express(job) == steps, "an op that differs from what was agreed on must be negotiated"
    settle(job, name)


@pytest.mark.parametrize("name", ["odd", None])
@pytest.mark.parametrize("odd", range(3))
def test_one_rank_that_differs_fails_the_op_on_all_and_only_that_one(job, odd, name):
    """Two have arrived in the slot, or come later: whichever way, all get the sentence that says who said what."""
    job.daemon.allow("op-failed")
    settle(job, name)
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        ops = {}
        for rank in order:
            dims = [3] if rank == odd else [2]
            ops[rank] = job.ranks[rank].submit("allreduce", name, dtype="int32", dims=dims, reduce_op="sum",
                                               data=arith.pack(INT32, [1] * dims[0]))
        for rank, op in ops.items():
            job.ranks[rank].post_wait(op)
        for rank, op in ops.items():
            outcome = job.ranks[rank].collect_outcome()
            assert outcome.status == Status.ERR_MISMATCH, outcome
            assert f"allreduce '{shown(name)}" in outcome.text and "': ranks disagree on shape" in outcome.text
            assert f"rank {odd} said [3]" in outcome.text
            job.ranks[rank].free(op)
        settle(job, name)


@pytest.mark.parametrize("name", ["stalls", None])
def test_an_op_that_waits_in_a_slot_is_in_the_stall_table(job, name):
    settle(job, name)
    op = job.ranks[1].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 1)[1])
    job.ranks[1].post_wait(op, want_output=True)

    def row() -> dict | None:
        return next((row for row in job.daemon.ctl.json("stalls")["stalls"] if row["tensor"].startswith(shown(name))), None)

    wait_until(row, "the op to be in the stall table")
    assert row()["ready"] == [1] and sorted(missing["rank"] for missing in row()["missing"]) == [0, 2]
    ops = [job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum",
                                  data=pairs(job, 1)[rank]) for rank in (0, 2)]
    assert job.ranks[1].collect_outcome().ok
    for rank, late in zip((0, 2), ops):
        assert job.ranks[rank].outcome(late).data == arith.allreduce(INT32, "sum", pairs(job, 1))
    job.ranks[1].free(op)
    settle(job, name)


def test_cancelled_while_it_waits_in_a_slot(job):
    settle(job, "cancelled")
    op = job.ranks[0].submit("allreduce", "cancelled", dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 9)[0])
    assert job.ranks[0].cancel(op).ok
    assert job.ranks[0].outcome(op).status == Status.ERR_CANCELLED
    go(job, "cancelled", 4)
    settle(job, "cancelled")


def test_cancelled_in_a_slot_while_the_engine_stands_still(job):
    settle(job, "late")
    with stopped(job.daemon.jobs()[0]["engine_pid"]):
        op = submit(job, 0, "late", 9)
        assert job.ranks[0].cancel(op).ok
    assert job.ranks[0].outcome(op).status == Status.ERR_CANCELLED
    go(job, "late", 4)
    settle(job, "late")


@pytest.mark.parametrize("name", ["released", None])
def test_released_while_it_waits_in_a_slot(job, name):
    settle(job, name)
    op = job.ranks[0].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 5)[0])
    job.ranks[0].ask("abandon", op=op)
    others = {rank: job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum",
                                           data=pairs(job, 5)[rank]) for rank in (1, 2)}
    for rank, other in others.items():
        assert job.ranks[rank].outcome(other).data == arith.allreduce(INT32, "sum", pairs(job, 5))
    go(job, name, 6)


def test_whoever_waits_for_one_of_several_is_woken(job):
    settle(job, "a")
    settle(job, "b")
    ops = [job.ranks[0].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 2)[0])
           for name in ("a", "b")]
    job.ranks[0].post("wait_any", ops=ops, timeout_ms=int(scaled(10) * 1000))
    others = [(rank, job.ranks[rank].submit("allreduce", "b", dtype="int32", dims=[2], reduce_op="sum",
                                            data=pairs(job, 2)[rank])) for rank in (1, 2)]
    reply = job.ranks[0].collect()
    assert reply["status"] == Status.OK and reply["index"] == 1, reply
    others += [(rank, job.ranks[rank].submit("allreduce", "a", dtype="int32", dims=[2], reduce_op="sum",
                                             data=pairs(job, 2)[rank])) for rank in (1, 2)]
    assert job.ranks[0].wait_all(ops).ok
    for rank, op in others:
        assert job.ranks[rank].outcome(op).ok


def submit(job: Job, rank: int, name: str | None, value: int, **more) -> int:
    return job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, value)[rank],
                                  **more)


def stalls(job: Job) -> list[str]:
    return [row["tensor"] for row in job.daemon.ctl.json("stalls")["stalls"]]


def test_the_result_of_an_op_that_the_engine_took_over_survives_the_next_one(job):
    """Its result lies in the slot that the next op of the name uses, and it has not been looked at yet."""
    settle(job, "again")
    first = submit(job, 0, "again", 3)
    other = submit(job, 0, "other", 4)
    job.ranks[0].post_wait(other)
    wait_until(lambda: "other" in stalls(job), "the other op to wait in the engine")
    others = [(1, submit(job, 1, "again", 3)), (1, submit(job, 1, "other", 4))]

    def seized() -> bool:
        job.ranks[1].test(others[0][1])
        return "again" in stalls(job)

    wait_until(seized, "the op to be the engine's")
    others += [(2, submit(job, 2, "again", 3)), (2, submit(job, 2, "other", 4))]
    assert job.ranks[0].collect_outcome().ok, "it has read both completions now"
    second = submit(job, 0, "again", 50)
    assert job.ranks[0].outcome(first).data == arith.allreduce(INT32, "sum", pairs(job, 3))
    for rank, op in others:
        assert job.ranks[rank].outcome(op).ok
    seconds = [(rank, submit(job, rank, "again", 50)) for rank in (1, 2)]
    for rank, op in [(0, second), *seconds]:
        assert job.ranks[rank].outcome(op).data == arith.allreduce(INT32, "sum", pairs(job, 50))


def test_the_event_descriptor_shows_an_op_that_ended_before_it_was_asked_for(job):
    settle(job, "early")
    op = submit(job, 0, "early", 3)
    rest = [(rank, submit(job, rank, "early", 3)) for rank in (1, 2)]
    for rank, other in rest:
        assert job.ranks[rank].outcome(other).ok
    assert job.ranks[0].ask("event", timeout_ms=0)["readable"]
    assert job.ranks[0].outcome(op).ok


def test_an_op_that_is_only_polled_is_in_the_stall_table_too(job):
    settle(job, "polled")
    op = submit(job, 0, "polled", 3)

    def seen() -> bool:
        assert job.ranks[0].test(op).status == Status.INPROGRESS
        return "polled" in stalls(job)

    wait_until(seen, "the polled op to be in the stall table")
    rest = [(rank, submit(job, rank, "polled", 3)) for rank in (1, 2)]
    for rank, other in [(0, op), *rest]:
        assert job.ranks[rank].outcome(other).data == arith.allreduce(INT32, "sum", pairs(job, 3))


def wait_for_rest(job: Job) -> None:
    """Until the engine has not been woken for 1.5 s."""
    pid, = job.daemon.engines()
    seen = [-1, 0.0]

    def rests() -> bool:
        now = procs.sleeps(pid)
        if now != seen[0]:
            seen[:] = [now, time.monotonic()]
        return time.monotonic() - seen[1] > 1.5

    wait_until(rests, "the engine to rest", 15, 0.05)


@pytest.mark.parametrize("rested", [False, True])
def test_an_op_that_nobody_looks_at_again_is_in_the_stall_table_too(rested):
    with Daemon(options={"engine-silence": "0"}) as daemon:  # else hvdd wakes the engine every second
        forget_an_op(Job(daemon, 3), rested)


def forget_an_op(job: Job, rested: bool) -> None:
    settle(job, "forgotten")
    if rested:
        wait_for_rest(job)
    op = submit(job, 0, "forgotten", 3)
    wait_until(lambda: "forgotten" in stalls(job), "the forgotten op to be in the stall table", 5, 0.05)
    rest = [(rank, submit(job, rank, "forgotten", 3)) for rank in (1, 2)]
    for rank, other in [(0, op), *rest]:
        assert job.ranks[rank].outcome(other).data == arith.allreduce(INT32, "sum", pairs(job, 3))
    settle(job, "forgotten")


def test_an_op_that_is_cancelled_after_a_join_does_not_wait_for_the_joined(job):
    op = submit(job, 0, "left", 3)
    join = job.ranks[0].submit("join")
    assert job.ranks[0].cancel(op).ok
    assert job.ranks[0].outcome(op).status == Status.ERR_CANCELLED
    rest = [(rank, submit(job, rank, "left", 3)) for rank in (1, 2)]
    for rank, other in rest:
        assert job.ranks[rank].outcome(other).data == arith.allreduce(INT32, "sum", pairs(job, 3)[1:])
    joins = [(0, join)] + [(rank, job.ranks[rank].submit("join")) for rank in (1, 2)]
    for rank, other in joins:
        job.ranks[rank].post_wait(other)
    for rank, _ in joins:
        assert job.ranks[rank].collect_outcome().ok


def test_the_event_descriptor_wakes_for_ops_that_lay_in_slots_before(job):
    settle(job, "event")
    op = job.ranks[0].submit("allreduce", "event", dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 3)[0])
    assert not job.ranks[0].ask("event", timeout_ms=0)["readable"]
    job.ranks[0].post("event", timeout_ms=int(scaled(10) * 1000))
    others = [(rank, job.ranks[rank].submit("allreduce", "event", dtype="int32", dims=[2], reduce_op="sum",
                                            data=pairs(job, 3)[rank])) for rank in (1, 2)]
    assert job.ranks[0].collect()["readable"]
    assert job.ranks[0].outcome(op).data == arith.allreduce(INT32, "sum", pairs(job, 3))
    for rank, other in others:
        assert job.ranks[rank].outcome(other).ok


@pytest.mark.parametrize("name", ["joined", None])
def test_a_rank_that_joins_takes_no_part_in_slots_either(job, name):
    settle(job, name)
    join = job.ranks[2].submit("join")
    data = pairs(job, 7)
    ops = [(rank, job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], reduce_op="sum",
                                         data=data[rank])) for rank in (0, 1)]
    for rank, op in ops:
        assert job.ranks[rank].outcome(op).data == arith.allreduce(INT32, "sum", data[:2])
    joins = [(2, join)] + [(rank, job.ranks[rank].submit("join")) for rank in (0, 1)]
    for rank, op in joins:
        job.ranks[rank].post_wait(op)
    for rank, _ in joins:
        assert job.ranks[rank].collect_outcome().ok
    settle(job, name)


@pytest.mark.parametrize("name", ["x", None])
def test_sets_meet_in_slots_of_their_own(daemon, name):
    """The second set has the first one's number, and knows nothing of it."""
    job = Job(daemon, 4)
    for members in ([1, 3], [0, 1, 3]):
        adds = [rank.submit("set_add", ranks=members) for rank in job.ranks]
        number = [rank.outcome(op) for rank, op in zip(job.ranks, adds)][0].process_set
        settle(job, name, process_set=number, ranks=members)
        settle(job, name)
        removals = [rank.submit("set_remove", set=number) for rank in job.ranks]
        for rank, op in zip(job.ranks, removals):
            assert rank.outcome(op).ok
        settle(job, name)


def test_unnamed_ops_in_slots_are_counted_and_traced_with_their_numbers(job):
    settle(job, None)
    before = rows(job)
    for value in range(20):
        go(job, None, value)
    for old, new in zip(before, rows(job)):
        assert new["ops"] == old["ops"] + 20 and new["bytes"] == old["bytes"] + 20 * 8
        assert new["express"] > old["express"]
        assert new["negotiated"] + new["replayed"] + new["express"] == new["ops"]
    traced = job.daemon.ctl.json("trace", job.name, "--rank", "0", "--last", "5")["trace"]
    newest = before[0]["ops"] + 20
    assert [row["tensor"] for row in traced] == [f"allreduce.noname.{newest - back}" for back in range(4, -1, -1)], traced


@pytest.mark.parametrize("kind", ["broadcast", "barrier"])
def test_unnamed_ops_of_other_kinds_have_lanes_of_their_own(job, kind):
    said = {"dtype": "int32", "dims": [2], "root": 1} if kind == "broadcast" else {}
    settle(job, None)
    before = express(job)

    def is_express() -> bool:
        ops = [rank.submit(kind, **said, **({"data": pairs(job, 4)[i]} if said else {}))
               for i, rank in enumerate(job.ranks)]
        for rank, op in zip(job.ranks, ops):
            outcome = rank.outcome(op)
            assert outcome.ok and (not said or outcome.data == pairs(job, 4)[1]), outcome
        return express(job) > before

    wait_until(is_express, f"an unnamed {kind} to be done by the ranks themselves", scaled(10))
    steps = express(job)
    go(job, None)
    assert express(job) > steps, "the other kind's ops have not moved this one's"


def test_an_unnamed_op_that_was_done_long_before_it_is_looked_at(job):
    """Rank 0 goes on through its ring while its op is done in the slot, which the engine takes and opens again."""
    settle(job, None)
    with stopped(job.daemon.jobs()[0]["engine_pid"]):
        for value in range(4):  # so that the grant was worth it, and the next one is not held back
            go(job, None, value)
        ops = [(0, number, submit(job, 0, None, number)) for number in (1, 2)]
        ops += [(rank, 1, submit(job, rank, None, 1)) for rank in (1, 2)]
        for rank, number, op in ops[2:]:
            job.ranks[rank].post_wait(op, want_output=True)
            assert job.ranks[rank].collect_outcome().data == arith.allreduce(INT32, "sum", pairs(job, number))
        ops[2:] = [(rank, 2, submit(job, rank, None, 2)) for rank in (1, 2)]
    rest = [ops[1], *ops[2:]]
    for rank, number, op in rest:
        assert job.ranks[rank].outcome(op).data == arith.allreduce(INT32, "sum", pairs(job, number))
    assert job.ranks[0].outcome(ops[0][2]).data == arith.allreduce(INT32, "sum", pairs(job, 1))
    settle(job, None)


def test_unnamed_ops_cancelled_in_a_slot_are_cancelled_one_by_one(job):
    settle(job, None)
    for rank in job.ranks:
        op = rank.submit("allreduce", dtype="int32", dims=[2], reduce_op="sum", data=pairs(job, 9)[0])
        assert rank.cancel(op).ok
        assert rank.outcome(op).status == Status.ERR_CANCELLED
    settle(job, None)


@pytest.mark.parametrize("window", [2, 3, 16])
def test_unnamed_ops_that_overtake_each_other(job, window):
    """Several in flight at a time: some in the slot, some through the ring, all in order."""
    for value in range(0, 30 * window, window):
        settle_every = value % (10 * window) == 0
        if settle_every:
            settle(job, None)
        ops = [(rank, value + i, submit(job, rank, None, value + i)) for i in range(window) for rank in (2, 0, 1)]
        for rank, number, op in reversed(ops) if value % 2 else ops:
            assert job.ranks[rank].outcome(op).data == arith.allreduce(INT32, "sum", pairs(job, number))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_results_are_the_engines_to_the_bit(size):
    """Every type and reduction, in slots and through the engine (HVD_EXPRESS=0), three times each."""
    shuffled = random.Random(7)
    cases = [(dtype, op) for dtype in arith.DTYPES for op in ("sum", "average", "min", "max", "product")
             if not (dtype == "bool" and op in ("sum", "average", "product"))]
    inputs = {case: [shuffled.randbytes(13 * arith.DTYPES[case[0]].bytes) for _ in range(size)] for case in cases}
    if any(dtype == "bool" for dtype, _ in cases):
        for case in cases:
            if case[0] == "bool":
                inputs[case] = [bytes(byte & 1 for byte in data) for data in inputs[case]]
    results = []
    for setting in ("1", "0"):
        with job_of(size) as job:
            if setting == "0":
                job.close()
                job = Job(job.daemon, size, environment=dict(os.environ, HVD_EXPRESS="0"))
            got = {}
            for case in cases:
                for _ in range(3):
                    outcomes = job.run("allreduce", dtype=case[0], dims=[13], data=inputs[case], reduce_op=case[1],
                                       name=f"{case[0]}-{case[1]}", prescale=0.5 if "float" in case[0] else None)
                    assert all(outcome.ok for outcome in outcomes), (case, outcomes)
                    got.setdefault(case, []).extend(outcome.data for outcome in outcomes)
            assert (express(job) > 0) == (setting == "1")
            results.append(got)
    assert results[0] == results[1]
    for case, datas in results[0].items():
        assert len(set(datas)) == 1, case
