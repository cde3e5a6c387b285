# SPDX-License-Identifier: Apache-2.0
"""Reducescatter and alltoall against the plain reference: whose rows go where, for every number of ranks."""
import random

import pytest

from hvt import Status, arith
from hvt.job import Job, job_of

MEMORIES = ("shared", "malloc", "registered")
INT32 = arith.DTYPES["int32"]


@pytest.fixture(scope="module", params=(1, 2, 3, 4), ids=lambda size: f"np{size}")
def job(request):
    with job_of(request.param, "op-failed") as running:
        yield running


def rows_of(rank: int, size: int, rows: int) -> slice:
    """The rows of set rank `rank`: the first rows % size ranks get one more."""
    begin = rank * (rows // size) + min(rank, rows % size)
    return slice(begin, begin + rows // size + (rank < rows % size))


def check_reducescatter(job: Job, dtype: str, rows: int, width: int, reduce_op: str, **more) -> None:
    row = arith.DTYPES[dtype]
    inputs = [arith.sample(row, rows * width, f"scatter {rank}") for rank in range(job.size)]
    wanted = arith.allreduce(row, reduce_op, inputs, more.get("prescale", 1.0), more.get("postscale", 1.0))
    step = width * row.bytes
    outcomes = job.run("reducescatter", dtype=dtype, dims=[rows, width], data=inputs, reduce_op=reduce_op, **more)
    for rank, outcome in enumerate(outcomes):
        mine = rows_of(rank, job.size, rows)
        assert outcome.ok, outcome
        assert outcome.dims == [mine.stop - mine.start, width]
        assert outcome.data == wanted[mine.start * step:mine.stop * step], f"rank {rank} of {dtype} {reduce_op}"


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
def test_reducescatter_deals_out_the_reduced_rows(job, dtype):
    for reduce_op in ("sum", "average", "min", "max", "product"):
        if not arith.supported(dtype, reduce_op):
            continue
        for rows in (0, 1, 4, 7, 32):
            check_reducescatter(job, dtype.name, rows, 3, reduce_op)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("rows", [5, 8, 40_003])
def test_reducescatter_into_given_memory_of_every_kind(job, memory, rows):
    for given in (False, True):
        each = {}
        if given:
            parts = [rows_of(rank, job.size, rows) for rank in range(job.size)]
            each["out_dims"] = [[part.stop - part.start, 2] for part in parts]
        check_reducescatter(job, "float32", rows, 2, "sum", memory=memory, each=each)


def test_reducescatter_scales_inputs_and_result(job):
    check_reducescatter(job, "float32", 9, 2, "sum", prescale=0.5, postscale=0.25)
    check_reducescatter(job, "float64", 9, 2, "average", prescale=2.0)


def test_a_given_output_without_room_is_refused_before_it_is_sent(job):
    outcome = job.ranks[0].try_submit("reducescatter", "wrong", dtype="int32", dims=[8, 2],
                                      out_dims=[rows_of(0, job.size, 8).stop - 1, 2])
    assert outcome.status == Status.ERR_INVALID
    assert "rows" in outcome.text
    job.check_usable()


def exchange(dtype: arith.Dtype, width: int, splits: list[list[int]], inputs: list[bytes]) -> list[bytes]:
    """What each rank receives."""
    step = width * dtype.bytes
    received = []
    for to in range(len(splits)):
        parts = []
        for sender, mine in enumerate(splits):
            begin = sum(mine[:to])
            parts.append(inputs[sender][begin * step:(begin + mine[to]) * step])
        received.append(b"".join(parts))
    return received


def check_alltoall(job: Job, dtype: str, width: int, splits: list[list[int]], rest: int = 0, **more) -> None:
    row = arith.DTYPES[dtype]
    rows = [sum(mine) + rest for mine in splits]
    inputs = [arith.sample(row, count * width, f"exchange {rank}") for rank, count in enumerate(rows)]
    wanted = exchange(row, width, splits, inputs)
    outcomes = job.run("alltoall", dtype=dtype, dims=[[count, width] for count in rows], data=inputs,
                       each={"splits": splits} | more.pop("each", {}), **more)
    for rank, outcome in enumerate(outcomes):
        received = [mine[rank] for mine in splits]
        assert outcome.ok, outcome
        assert outcome.splits == received
        assert outcome.dims == [sum(received), width]
        assert outcome.data == wanted[rank], f"rank {rank}, {dtype}"


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
def test_alltoall_with_splits_of_every_size(job, dtype):
    source = random.Random(dtype.name)
    for _ in range(4):
        splits = [[source.randrange(5) for _ in range(job.size)] for _ in range(job.size)]
        check_alltoall(job, dtype.name, 3, splits, rest=source.randrange(3))
    check_alltoall(job, dtype.name, 2, [[0] * job.size] * job.size)


@pytest.mark.parametrize("memory", MEMORIES)
def test_alltoall_of_every_kind_of_memory_large_and_small(job, memory):
    for scale in (1, 20_000):
        splits = [[(to + 1) * scale + sender for to in range(job.size)] for sender in range(job.size)]
        room = [[sum(mine[rank] for mine in splits) + extra, 1] for rank, extra in zip(range(job.size), (0, 3, 0, 9))]
        check_alltoall(job, "int16", 1, splits, memory=memory)
        check_alltoall(job, "int16", 1, splits, memory=memory, each={"out_dims": room})


def test_alltoall_without_splits_sends_equal_parts(job):
    inputs = [arith.pack(INT32, range(100 * rank, 100 * rank + 2 * job.size)) for rank in range(job.size)]
    wanted = exchange(INT32, 1, [[2] * job.size] * job.size, inputs)
    for rank, outcome in enumerate(job.run("alltoall", dtype="int32", dims=[2 * job.size, 1], data=inputs)):
        assert outcome.ok, outcome
        assert outcome.data == wanted[rank]
        assert outcome.splits == [2] * job.size


@pytest.mark.parametrize(("dims", "splits", "words"), [
    ([4, 1], "long", "2 are left"), ([4, 1], "negative", "-1"), ([5, 1], None, "no multiple"), ([], None, "scalar")],
    ids=["sum", "negative", "uneven", "scalar"])
def test_splits_that_make_no_sense_are_refused_before_they_are_sent(job, dims, splits, words):
    if job.size == 1 and words in ("2 are left", "no multiple"):
        return
    said = {"long": [2, 3] + [0] * (job.size - 2), "negative": [-1] * job.size, None: None}[splits]
    outcome = job.ranks[0].try_submit("alltoall", "bad", dtype="int32", dims=dims, splits=said,
                                      data=bytes(4) if dims == [] else None)
    if words == "no multiple" and 5 % job.size == 0:
        return
    assert outcome.status == Status.ERR_INVALID, outcome
    assert words in outcome.text
    job.check_usable()


def test_a_given_output_that_is_too_small_fails_on_every_rank(job):
    room = [[job.size, 1] for _ in range(job.size)]
    room[-1] = [job.size - 1, 1]
    outcomes = job.run("alltoall", dtype="int32", dims=[job.size, 1], data=[bytes(4 * job.size)] * job.size,
                       each={"out_dims": room})
    for outcome in outcomes:
        assert outcome.status == Status.ERR_TOO_SMALL, outcome
        assert str(job.size - 1) in outcome.text
    job.check_usable()
