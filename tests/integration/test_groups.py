# SPDX-License-Identifier: Apache-2.0
"""Grouped ops: nothing runs before everything is ready, all finish together, and one failure is everybody's. And
cancelling, waiting for one of many, waiting for all."""
import pytest

from hvt import Status, arith
from hvt.job import Job, job_of

INT32 = arith.DTYPES["int32"]


@pytest.fixture(scope="module", params=(1, 2, 4), ids=lambda size: f"np{size}")
def job(request):
    with job_of(request.param, "op-failed", "op-stalled") as running:
        yield running


@pytest.fixture(scope="module")
def trio():
    with job_of(3, "op-failed", "op-stalled") as running:
        yield running


def ints(*values: int) -> bytes:
    return arith.pack(INT32, values)


def member(*values: int, **more) -> dict:
    return {"dtype": "int32", "dims": [len(values)], "data": ints(*values)} | more


def outcomes(job: Job, ops: list[list[int]]) -> list[list]:
    """Of every rank's members. All ranks wait at the same time, as library-provided memory needs."""
    for rank, mine in zip(job.ranks, ops):
        rank.post("wait_all", ops=mine, timeout_ms=20000)
    for rank in job.ranks:
        rank.collect_outcome()
    return [[rank.outcome(op) for op in mine] for rank, mine in zip(job.ranks, ops)]


@pytest.mark.parametrize("name", ["group", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("memory", ["shared", "malloc"])
def test_a_grouped_allreduce_of_different_shapes_and_types(job, name, memory):
    def members(rank: int) -> list[dict]:
        return [member(rank, 1, memory=memory), member(*range(rank, rank + 5000), memory=memory),
                {"dtype": "float64", "dims": [], "data": arith.pack(arith.DTYPES["float64"], [rank + 0.5])},
                {"dtype": "int32", "dims": [0]}]
    for _ in range(3):
        ops = [rank.group("allreduce", name, members(number), reduce_op="sum") for number, rank in
               enumerate(job.ranks)]
        total = sum(range(job.size))
        for mine in outcomes(job, ops):
            assert all(outcome.ok for outcome in mine), mine
            assert mine[0].data == ints(total, job.size)
            assert mine[1].data == ints(*(total + i * job.size for i in range(5000)))
            assert mine[2].data == arith.pack(arith.DTYPES["float64"], [total + 0.5 * job.size])
            assert mine[3].data == b""
            if name:
                assert [outcome.name for outcome in mine] == [f"group_{i}of4" for i in (1, 2, 3, 4)]


def test_a_grouped_allgather_and_reducescatter(job):
    ops = [rank.group("allgather", "gathers", [member(*[number] * number), member(number, 5)])
           for number, rank in enumerate(job.ranks)]
    for mine in outcomes(job, ops):
        assert all(outcome.ok for outcome in mine), mine
        assert mine[0].data == ints(*(number for number in range(job.size) for _ in range(number)))
        assert mine[1].data == b"".join(ints(number, 5) for number in range(job.size))
    ops = [rank.group("reducescatter", "scatters", [member(*range(job.size)), member(1)], reduce_op="sum")
           for rank in job.ranks]
    for number, mine in enumerate(outcomes(job, ops)):
        assert all(outcome.ok for outcome in mine), mine
        assert mine[0].data == ints(number * job.size)
        assert mine[1].data == (ints(job.size) if number == 0 else b"")


def test_a_hundred_and_sixty_members_and_the_most_there_can_be(job):
    for count in (161, 1024):
        ops = [rank.group("allreduce", f"many{count}", [member(i) for i in range(count)], reduce_op="sum")
               for rank in job.ranks]
        for mine in outcomes(job, ops):
            assert [outcome.data for outcome in mine] == [ints(i * job.size) for i in range(count)]


def test_nothing_runs_until_every_member_is_ready_everywhere(trio):
    first = [rank.group("allreduce", "hold", [member(1), member(2)], reduce_op="sum") for rank in trio.ranks[:2]]
    trio.check_usable()
    for rank, mine in zip(trio.ranks, first):
        for op in mine:
            assert rank.test(op).status == Status.INPROGRESS
    last = trio.ranks[2].group("allreduce", "hold", [member(1), member(2)], reduce_op="sum")
    for mine in outcomes(trio, first + [last]):
        assert [outcome.data for outcome in mine] == [ints(3), ints(6)]


@pytest.mark.parametrize(("change", "words"), [
    ({"dims": [3], "data": bytes(12)}, ("odd_2of2", "rank 1 said [3]", "ranks 0,2 said [1]")),
    ({"dtype": "float32"}, ("odd_2of2", "float32", "int32"))], ids=["shape", "dtype"])
def test_one_member_that_disagrees_fails_the_group_with_one_sentence(trio, change, words):
    ops = [rank.group("allreduce", "odd", [member(1), member(2) | (change if number == 1 else {})], reduce_op="sum")
           for number, rank in enumerate(trio.ranks)]
    found = [outcome for mine in outcomes(trio, ops) for outcome in mine]
    assert {outcome.status for outcome in found} == {Status.ERR_MISMATCH}, found
    assert len({outcome.text for outcome in found}) == 1, found
    for word in words:
        assert word in found[0].text, found[0].text
    trio.check_usable()


def test_groups_of_different_make_up_fail_on_every_rank(trio):
    """What is a group to some is two single ops to rank 0."""
    ops = []
    for number, rank in enumerate(trio.ranks):
        names = [f"make_{i}of2" for i in (1, 2)]
        if number == 0:  # the same two names, ungrouped
            ops.append([rank.submit("allreduce", name, reduce_op="sum", **member(1)) for name in names])
        else:
            ops.append(rank.group("allreduce", "make", [member(1)] * 2, reduce_op="sum"))
    found = [outcome for mine in outcomes(trio, ops) for outcome in mine]
    assert {outcome.status for outcome in found} == {Status.ERR_MISMATCH}, found
    assert all("make_" in outcome.text and "group" in outcome.text for outcome in found), found
    trio.check_usable()


def test_a_bad_member_keeps_the_group_back(trio):
    outcome, ops = trio.ranks[0].try_group("allreduce", "bad", [member(1), {"dtype": "int32", "dims": [-1]}])
    assert outcome.status == Status.ERR_INVALID
    assert "bad_2of2" in outcome.text
    assert ops == []
    trio.check_usable()


def test_an_empty_group_is_refused(trio):
    outcome, _ = trio.ranks[0].try_group("allreduce", "none", [], count=0)
    assert outcome.status == Status.ERR_INVALID


# ---- cancel ---------------------------------------------------------------------------------------------------------


def test_a_waiting_op_can_be_taken_back_and_submitted_again(trio):
    waiting = [rank.submit("allreduce", "back", reduce_op="sum", **member(1)) for rank in trio.ranks[:2]]
    assert trio.ranks[0].cancel(waiting[0]).ok
    assert trio.ranks[0].outcome(waiting[0]).status == Status.ERR_CANCELLED
    last = trio.ranks[2].submit("allreduce", "back", reduce_op="sum", **member(1))
    trio.check_usable()
    assert trio.ranks[1].test(waiting[1]).status == Status.INPROGRESS  # the others go on waiting
    again = trio.ranks[0].submit("allreduce", "back", reduce_op="sum", **member(5))
    for rank, op in zip(trio.ranks, (again, waiting[1], last)):
        outcome = rank.outcome(op)
        assert outcome.ok and outcome.data == ints(7)


def test_a_cancelled_op_does_not_touch_its_output(trio):
    op = trio.ranks[0].submit("allreduce", "untouched", reduce_op="sum", out_fill=0x5a, **member(1))
    assert trio.ranks[0].cancel(op).ok
    outcome = trio.ranks[0].outcome(op)
    assert outcome.status == Status.ERR_CANCELLED
    assert set(outcome.data) == {0x5a}


def test_a_finished_op_cannot_be_taken_back(trio):
    ops = [rank.submit("allreduce", "over", reduce_op="sum", **member(1)) for rank in trio.ranks]
    for rank, op in zip(trio.ranks, ops):
        assert rank.wait(op).ok
        assert rank.cancel(op).ok
        assert rank.outcome(op).ok


def test_everything_taken_back_leaves_nothing(trio):
    ops = [rank.submit("allreduce", "nobody", reduce_op="sum", **member(1)) for rank in trio.ranks[:2]]
    for rank, op in zip(trio.ranks, ops):
        assert rank.cancel(op).ok
        assert rank.outcome(op).status == Status.ERR_CANCELLED
    for outcome in trio.run("allreduce", name="nobody", dtype="float32", dims=[2], reduce_op="max"):
        assert outcome.ok, outcome  # nothing is left that this could disagree with


# ---- waiting for many -----------------------------------------------------------------------------------------------


def test_any_and_all(trio):
    mine = [[rank.submit("allreduce", f"many{i}", reduce_op="sum", **member(i)) for i in range(4)]
            for rank in trio.ranks[:2]]
    assert trio.ranks[0].wait_any(mine[0], 0.05).status == Status.ERR_TIMEOUT
    assert trio.ranks[0].wait_all(mine[0], 0.05).status == Status.ERR_TIMEOUT
    third = [trio.ranks[2].submit("allreduce", "many2", reduce_op="sum", **member(2))]
    outcome = trio.ranks[0].wait_any(mine[0])
    assert outcome.ok and outcome.index == 2
    trio.ranks[0].post("wait_all", ops=mine[0], timeout_ms=20000)
    for i in (0, 1, 3):
        third.append(trio.ranks[2].submit("allreduce", f"many{i}", reduce_op="sum", **member(i)))
    assert trio.ranks[0].collect_outcome().ok
    for rank, ops in zip(trio.ranks, mine + [third]):
        assert rank.wait_all(ops).ok
        for op in ops:
            rank.free(op)
