# SPDX-License-Identifier: Apache-2.0
"""Every op, element type, reduction, world size and kind of memory against the plain reference, bit for bit."""
import itertools

import pytest

from hvt import Status, arith, sanitized
from hvt.job import Job, job_of

SIZES = (2, 3) if sanitized() else (1, 2, 3, 4)  # numbers are the release build's concern
MEMORIES = ("shared", "malloc", "registered", "adopted", "lasting")
REDUCTIONS = ("sum", "average", "min", "max", "product")
COUNTS = (1, 7, 64)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"np{size}")
def job(request):
    with job_of(request.param, "op-failed") as running:
        yield running


def allreduce_inputs(job: Job, dtype: arith.Dtype, count: int) -> list[bytes]:
    return [arith.sample(dtype, count, f"rank {rank}") for rank in range(job.size)]


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
def test_allreduce_gives_the_reference_result_on_every_rank(job, dtype):
    for reduce_op, memory, count, in_place in itertools.product(REDUCTIONS, MEMORIES, COUNTS, (False, True)):
        if not arith.supported(dtype, reduce_op):
            continue
        inputs = allreduce_inputs(job, dtype, count)
        wanted = arith.allreduce(dtype, reduce_op, inputs)
        outcomes = job.run("allreduce", dtype=dtype.name, dims=[count], data=inputs, reduce_op=reduce_op,
                           memory=memory, in_place=in_place)
        for rank, outcome in enumerate(outcomes):
            assert outcome.ok, outcome
            assert outcome.data == wanted, (
                f"rank {rank}: {reduce_op} of {dtype.name}[{count}] in {memory} memory, in place: {in_place}")
            assert outcome.dims == [count]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_large_allreduce_that_is_split_among_threads_gives_the_same_bits(job, dtype, memory):
    row = arith.DTYPES[dtype]
    period = arith.sample(row, 64, "large")
    # Three chunks and a bit, the last one short, repeated so that the reference stays cheap.
    repeats = (800_000 // len(period)) + 1
    tail = period[:24]
    inputs = [arith.sample(row, 64, f"large {rank}") for rank in range(job.size)]
    wanted = arith.allreduce(row, "sum", inputs)
    outcomes = job.run("allreduce", dtype=dtype, dims=[(repeats * len(period) + len(tail)) // row.bytes],
                       data=[data * repeats + data[:24] for data in inputs], reduce_op="sum", memory=memory)
    for outcome in outcomes:
        assert outcome.ok, outcome
        assert outcome.data == wanted * repeats + wanted[:24]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_scales_multiply_each_input_and_the_result(job, dtype):
    row = arith.DTYPES[dtype]
    for prescale, postscale in ((0.5, 1.0), (1.0, 0.25), (2.0, 0.125)):
        inputs = allreduce_inputs(job, row, 33)
        wanted = arith.allreduce(row, "sum", inputs, prescale, postscale)
        for outcome in job.run("allreduce", dtype=dtype, dims=[33], data=inputs, reduce_op="sum", prescale=prescale,
                               postscale=postscale):
            assert outcome.ok and outcome.data == wanted


def test_a_scale_that_is_not_a_number_is_agreed_on_like_any_other(job):
    for outcome in job.run("allreduce", dtype="float32", dims=[2], reduce_op="sum", prescale=float("nan")):
        assert outcome.ok and all(value != value for value in arith.unpack(arith.DTYPES["float32"], outcome.data))


def test_integer_scales_are_applied_in_double_and_truncated(job):
    row = arith.DTYPES["int32"]
    inputs = [arith.pack(row, [10 * (rank + 1), -7, 3]) for rank in range(job.size)]
    total = [sum(10 * (rank + 1) for rank in range(job.size)), -7 * job.size, 3 * job.size]
    wanted = arith.pack(row, [int(value * 0.5) for value in total])
    for outcome in job.run("allreduce", dtype="int32", dims=[3], data=inputs, reduce_op="sum", postscale=0.5):
        assert outcome.ok and outcome.data == wanted


def test_nan_and_infinity_travel_through_min_max_and_sum(job):
    row = arith.DTYPES["float32"]
    inputs = [arith.pack(row, [float("nan") if rank == job.size - 1 else 1.0, float("inf"), -0.0])
              for rank in range(job.size)]
    for reduce_op in ("min", "max", "sum"):
        for outcome in job.run("allreduce", dtype="float32", dims=[3], data=inputs, reduce_op=reduce_op):
            values = arith.unpack(row, outcome.data)
            assert values[0] != values[0], f"{reduce_op} lost the NaN of rank {job.size - 1}"
            assert values[1] == float("inf")


@pytest.mark.parametrize("reduce_op", ["sum", "average", "product"])
def test_what_booleans_do_not_offer_is_refused_at_submission_and_the_job_goes_on(job, reduce_op):
    for rank in job.ranks:
        outcome = rank.try_submit("allreduce", "truth", dtype="bool", dims=[4], reduce_op=reduce_op)
        assert outcome.status == Status.ERR_UNSUPPORTED, outcome
        assert reduce_op in outcome.text and "bool" in outcome.text
    job.check_usable()


def test_adasum_of_equal_vectors_is_the_vector_and_of_orthogonal_ones_the_sum(job):
    row = arith.DTYPES["float32"]
    same = [arith.pack(row, [3.0, -4.0])] * job.size
    for outcome in job.run("allreduce", dtype="float32", dims=[2], data=same, reduce_op="adasum"):
        assert outcome.ok, outcome
        assert arith.unpack(row, outcome.data) == [3.0, -4.0]
    axes = [arith.pack(row, [float(rank == i) for i in range(job.size)]) for rank in range(job.size)]
    for outcome in job.run("allreduce", dtype="float32", dims=[job.size], data=axes, reduce_op="adasum"):
        assert arith.unpack(row, outcome.data) == [1.0] * job.size


def test_adasum_of_integers_is_an_error_on_every_rank_and_the_job_goes_on(job):
    for outcome in job.run("allreduce", dtype="int32", dims=[4], reduce_op="adasum"):
        assert outcome.status == Status.ERR_UNSUPPORTED, outcome
        assert "adasum is not supported for int32" in outcome.text
    job.check_usable()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("dims", [[], [0], [3, 0, 2], [1, 1, 1, 1, 1, 1, 1, 1], [2, 3, 4]], ids=str)
def test_shapes_from_scalar_to_eight_dimensions_and_empty_ones(job, dims, memory):
    count = 1
    for dim in dims:
        count *= dim
    row = arith.DTYPES["int32"]
    inputs = allreduce_inputs(job, row, count)
    for outcome in job.run("allreduce", dtype="int32", dims=dims, data=inputs, reduce_op="sum", memory=memory):
        assert outcome.ok, outcome
        assert outcome.dims == dims
        assert outcome.data == arith.allreduce(row, "sum", inputs)


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
def test_broadcast_copies_the_root_everywhere(job, dtype):
    for root, memory, in_place in itertools.product(range(job.size), MEMORIES, (False, True)):
        inputs = [arith.sample(dtype, 50, f"broadcast {rank}") for rank in range(job.size)]
        for outcome in job.run("broadcast", dtype=dtype.name, dims=[5, 10], data=inputs, root=root, memory=memory,
                               in_place=in_place):
            assert outcome.ok, outcome
            assert outcome.data == inputs[root]


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("output", ["library", "given", "larger"])
def test_allgather_concatenates_different_first_dimensions_by_rank(job, dtype, output):
    for memory, rows in itertools.product(MEMORIES, ([2] * job.size, list(range(job.size)), [0] * job.size,
                                                     [5, 0, 3, 1][:job.size])):
        inputs = [arith.sample(dtype, count * 3, f"gather {rank}") for rank, count in enumerate(rows)]
        out_dims = {"library": None, "given": [sum(rows), 3], "larger": [sum(rows) + 4, 3]}[output]
        outcomes = job.run("allgather", dtype=dtype.name, dims=[[count, 3] for count in rows], data=inputs,
                           memory=memory, out_dims=out_dims)
        for outcome in outcomes:
            assert outcome.ok, outcome
            assert outcome.dims == [sum(rows), 3]
            assert outcome.data == b"".join(inputs)


def test_a_large_allgather_and_broadcast_move_every_byte(job):
    rows = [200_000 + 7 * rank for rank in range(job.size)]
    inputs = [arith.sample(arith.DTYPES["uint8"], count, f"big {rank}") for rank, count in enumerate(rows)]
    for memory in MEMORIES:
        for outcome in job.run("allgather", dtype="uint8", dims=[[count] for count in rows], data=inputs,
                               memory=memory):
            assert outcome.ok and outcome.data == b"".join(inputs)
    whole = [arith.sample(arith.DTYPES["uint8"], 1_500_001, f"cast {rank}") for rank in range(job.size)]
    for outcome in job.run("broadcast", dtype="uint8", dims=[1_500_001], data=whole, root=job.size - 1):
        assert outcome.ok and outcome.data == whole[-1]


def test_an_output_that_is_too_small_fails_on_every_rank_naming_who_needs_what(job):
    outcomes = [rank.outcome(op) for rank, op in [
        (rank, rank.submit("allgather", "small", dtype="int32", dims=[2, 3], data=bytes(24),
                           out_dims=[1 if number == 0 else 2 * job.size, 3]))
        for number, rank in enumerate(job.ranks)]]
    for outcome in outcomes:
        assert outcome.status == Status.ERR_TOO_SMALL, outcome
        assert "small" in outcome.text and "0" in outcome.text
    job.check_usable()


def test_a_barrier_holds_until_the_last_rank_has_come(job):
    early = [rank.submit("barrier", "gate") for rank in job.ranks[:-1]]
    for rank, op in zip(job.ranks, early):
        assert rank.test(op).status == Status.INPROGRESS
    last = job.ranks[-1].submit("barrier", "gate")
    for rank, op in zip(job.ranks, early + [last]):
        assert rank.outcome(op).ok
