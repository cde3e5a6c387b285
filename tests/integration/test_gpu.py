# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of GPUs, through real hvdd, engines, workers and trainers, on the fake driver. What contract.device does with every
type and kind is done here once, and what only processes have: streams, refusals, generations."""
import itertools
import json
import os
import signal

import pytest

from hvt import Daemon, Status, arith, sanitized, wait_until
from hvt.gpu import COUNT, FAKE, REAL, gpus, layouts, patient_gpus, there
from hvt.job import Job, outcomes_of
from hvt.rank import Rank

FLOAT, INT32 = arith.DTYPES["float32"], arith.DTYPES["int32"]
PAIRS = [[0, 1]] if sanitized() else layouts([0, 0], [0, 1])  # on which GPUs two ranks have their tensors
# The fake ends a rank that frees what a worker has open. A worker that gets no CPU answers before it has closed, after 200 ms.
STRICT = "devices=2" if sanitized() else "devices=2;free=strict"
SEGMENTS = ["segment"] if REAL else ["segment", "fabric"]  # a machine may have no IMEX channel
REFUSED = ("memory-refused", "op-failed", "worker-refused", "worker-ended", "no-device")


@pytest.fixture(scope="module", name="daemon")
def one_daemon():
    with gpus("devices=2", "op-failed", gpu_idle="1s") as running:
        yield running


def inputs_of(count: int, elements: int) -> list[bytes]:
    return [arith.pack(INT32, [rank * 1000 + i % 97 for i in range(elements)]) for rank in range(count)]


def reduce_on(job: Job, gpu_of: list[int], elements: int = 64, memory: str = "device", **more) -> None:
    """An allreduce of tensors on these GPUs."""
    inputs = inputs_of(len(gpu_of), elements)
    for outcome in job.run("allreduce", dtype="int32", dims=[elements], data=inputs, reduce_op="sum", memory=memory,
                           each={"gpu": there(gpu_of)}, **more):
        assert outcome.ok, outcome
        assert outcome.data == arith.allreduce(INT32, "sum", inputs)


# ---- the way of an op ----


@pytest.mark.parametrize("gpu_of", [[0], *PAIRS, *layouts([1, 0, 1])], ids=str)
def test_allreduce(daemon, gpu_of):
    job = Job(daemon, len(gpu_of))
    for elements in (0, 1, 1000, 130_001):
        reduce_on(job, gpu_of, elements)
        reduce_on(job, gpu_of, elements, in_place=True)
    job.check_usable()  # tensors of the host beside them
    job.close()


def exchange(job: Job, gpu_of: list[int]) -> None:
    """Kinds that only move bytes."""
    each, size = {"gpu": there(gpu_of)}, job.size
    rows = [3 * rank for rank in range(size)]
    gathered = [arith.pack(INT32, [rank * 100 + i for i in range(2 * rows[rank])]) for rank in range(size)]
    for outcome in job.run("allgather", dtype="int32", dims=[[count, 2] for count in rows], data=gathered, memory="device",
                           out_dims=[sum(rows), 2], each=each):
        assert outcome.ok and outcome.data == b"".join(gathered), outcome
    cast = inputs_of(size, 500)
    for outcome in job.run("broadcast", dtype="int32", dims=[500], data=cast, root=size - 1, memory="device", each=each):
        assert outcome.ok and outcome.data == cast[-1], outcome
    blocks = [[bytes([16 * a + b]) * (a + 2 * b) for b in range(size)] for a in range(size)]
    sent = [b"".join(row) for row in blocks]
    outcomes = job.run("alltoall", dtype="uint8", dims=[[len(data)] for data in sent], data=sent, memory="device", out_dims=[100],
                       each=each | {"splits": [[len(block) for block in row] for row in blocks]})
    for rank, outcome in enumerate(outcomes):
        assert outcome.ok and outcome.data == b"".join(row[rank] for row in blocks), outcome
        assert outcome.splits == [len(row[rank]) for row in blocks]


@pytest.mark.parametrize("gpu_of", layouts([0, 0, 0], [0, 1, 0]), ids=str)
def test_bytes_arrive_where_they_belong(daemon, gpu_of):
    job = Job(daemon, 3)
    exchange(job, gpu_of)
    inputs = inputs_of(3, 7)
    whole = arith.allreduce(INT32, "sum", inputs)
    outcomes = job.run("reducescatter", dtype="int32", dims=[7], data=inputs, reduce_op="sum", memory="device",
                       each={"gpu": gpu_of, "out_dims": [[3], [2], [2]]})
    assert b"".join(outcome.data for outcome in outcomes) == whole
    job.close()


@pytest.mark.parametrize("gpu_of", PAIRS, ids=str)
def test_a_send_and_a_recv(daemon, gpu_of):
    job = Job(daemon, 2)
    data = bytes(range(200))
    for from_rank in (0, 1):
        one, other = job.ranks[from_rank], job.ranks[1 - from_rank]
        sent = one.submit("send", root=1 - from_rank, dtype="uint8", dims=[200], data=data, memory="device", gpu=gpu_of[from_rank])
        got = other.submit("recv", root=from_rank, dtype="uint8", dims=[200], memory="device", gpu=gpu_of[1 - from_rank])
        outcomes = outcomes_of([(one, sent), (other, got)])
        assert outcomes[0].ok and outcomes[1].ok and outcomes[1].data == data, outcomes
    job.close()


@pytest.mark.parametrize("gpu_of", layouts([0, 0, 0], [0, 0, 1]), ids=str)
def test_groups_sets_joins_and_barriers(daemon, gpu_of):
    job = Job(daemon, 3)
    inputs = inputs_of(3, 20)
    ops = [(rank, op) for number, rank in enumerate(job.ranks)
           for op in rank.group("allreduce", "g", [{"dtype": "int32", "dims": [20], "data": inputs[number], "memory": "device",
                                                    "gpu": gpu_of[number]}] * 5, reduce_op="sum")]
    assert all(outcome.data == arith.allreduce(INT32, "sum", inputs) for outcome in outcomes_of(ops))
    number = job.add_set([0, 2])
    pair = [gpu_of[0], gpu_of[2]]
    reduce_on(job, pair, ranks=[0, 2], process_set=number)
    for outcome in job.run("barrier"):
        assert outcome.ok
    joined = job.ranks[1].submit("join")
    for outcome in job.run("allreduce", dtype="int32", dims=[20], data=inputs[:2], reduce_op="sum", memory="device", ranks=[0, 2],
                           each={"gpu": pair}):
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs[:2]), outcome
    joins = [rank.submit("join") for rank in (job.ranks[0], job.ranks[2])]
    assert all(rank.outcome(op).ok for rank, op in zip((job.ranks[0], job.ranks[2], job.ranks[1]), joins + [joined]))
    job.close()


def test_an_op_that_needs_one_communicator_more_than_a_worker_has_fails_and_the_job_goes_on():
    sets = [[0, *chosen] for count in (1, 2, 3) for chosen in itertools.combinations(range(1, 6), count)][:17]
    with gpus("devices=6", "op-failed", "comm-failed") as daemon:
        job = Job(daemon, 6)
        numbers = [job.add_set(members) for members in sets]
        for members, number in zip(sets[:16], numbers):
            reduce_on(job, members, 4, ranks=members, process_set=number)
        for outcome in job.run("allreduce", dtype="int32", dims=[2], data=[bytes(8)] * len(sets[16]), reduce_op="sum", memory="device",
                               each={"gpu": sets[16]}, ranks=sets[16], process_set=numbers[16]):
            assert outcome.status == Status.ERR_LIMIT and "16 communicators already" in outcome.text, outcome
        reduce_on(job, sets[15], 4, ranks=sets[15], process_set=numbers[15])
        job.check_usable()
        job.close()


LARGE = 140_000  # elements of int32 that NCCL is given where they lie


def registering(*allowed: str, faults: str = ""):
    """A hvdd with two GPUs that can multicast: NCCL registers memory of hvd_device_alloc there."""
    return gpus("devices=2;multicast=on", *allowed, faults=faults, gpu_idle="1s")


def reduce_until(job: Job, daemon: Daemon, what: str, count: int) -> None:
    """The communicator for registered memory is made when workers have nothing else: the second op, or a later one, asks for it."""
    def done() -> bool:
        reduce_on(job, [0, 1], LARGE, memory="made")
        return len(daemon.lines(what)) >= count
    wait_until(done, f"{count} lines {what}")


def test_memory_of_hvd_device_alloc_is_registered_and_given_back():
    with registering("rank-lost", "job-failed", "engine-ended") as daemon:
        job = Job(daemon, 2)
        for _ in range(3):  # the fake ends a worker that mixes registered memory with other
            reduce_on(job, [0, 1], LARGE, memory="made")
            reduce_on(job, [0, 1], LARGE, memory="device")
            reduce_on(job, [0, 1], 100, memory="made", in_place=True)
        reduce_until(job, daemon, "registered", 2)
        reduce_on(job, [0, 1], LARGE, memory="made", in_place=True)
        wait_until(lambda: [row["communicators"] for row in daemon.ctl.json("gpus")["gpus"]] == [2, 2], "two communicators")
        job.ranks[1].kill()  # its memory is closed, and that of the other is not
        wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "the loss to be known")
        job.ranks[0].close()
        job.ranks[1] = daemon.rank()
        for number, rank in enumerate(job.ranks):
            rank.post("open", job=job.name, rank=number, size=2)
        assert all(rank.collect_outcome().ok for rank in job.ranks)
        reduce_until(job, daemon, "registered", 4)  # with the new communicator
        reduce_on(job, [0, 1], LARGE, memory="made")
        job.close()


def test_what_nccl_does_not_register_is_reduced_all_the_same():
    with registering("not-registered", faults="hvdd-gpu/nccl-register") as daemon:
        job = Job(daemon, 2)
        reduce_until(job, daemon, "not-registered", 1)
        daemon.expect_line("not-registered", "unhandled system error")
        reduce_on(job, [0, 1], LARGE, memory="made")
        job.close()
    with gpus("devices=2", gpu_idle="1s") as daemon:  # no multicast
        job = Job(daemon, 2)
        for gpu_of in ([0, 0], [0, 1], [0, 1]):
            reduce_on(job, gpu_of, LARGE, memory="made")
        assert not daemon.lines("registered") and {row["communicators"] for row in daemon.ctl.json("gpus")["gpus"]} <= {0, 1}
        job.close()


def test_many_ops_in_flight_are_done_in_few_batches(daemon, tmp_path):
    job, file = Job(daemon, 2), tmp_path / "timeline.json"
    inputs, gpu_of = inputs_of(2, 33), there([0, 1])
    reduce_on(job, gpu_of)
    assert job.ranks[0].timeline(file).ok
    engine = daemon.engine_of(job.name)
    os.kill(engine, signal.SIGSTOP)  # until all are in flight
    try:
        ops = [[rank.submit("allreduce", f"many{i}", dtype="int32", dims=[33], data=inputs[number], reduce_op="sum", memory="device",
                            gpu=gpu_of[number]) for i in range(150)] for number, rank in enumerate(job.ranks)]
    finally:
        os.kill(engine, signal.SIGCONT)
    for number, rank in enumerate(job.ranks):
        assert rank.wait_all(ops[number]).ok
        for op in ops[number]:
            assert rank.outcome(op).data == arith.allreduce(INT32, "sum", inputs)
    assert job.ranks[0].timeline().ok
    of_gpus = streams_of(json.loads(file.read_text(encoding="utf-8")))
    assert len(of_gpus) == len(set(gpu_of))
    for took in of_gpus.values():
        assert sum(event["args"]["ops"] for event in took) == 150
        assert len(took) < 15, [event["args"]["ops"] for event in took]  # 64 ops are the most that a batch has
    job.close()


def test_memory_that_is_forgotten_is_free_when_the_call_returns():
    with gpus(STRICT) as daemon:
        job = Job(daemon, 2)
        for gpu_of in layouts([0, 0], [0, 1], [1, 1]):
            inputs = inputs_of(2, 100)
            for outcome in job.run("allreduce", dtype="int32", dims=[100], data=inputs, reduce_op="sum", memory="own", each={"gpu": gpu_of}):
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome


def test_memory_that_is_freed_without_a_word_is_not_taken_for_its_successor(daemon):
    job = Job(daemon, 2)
    addresses = set()
    for turn in range(4):
        inputs = inputs_of(2, 100 + turn)
        ops = [rank.submit("allreduce", dtype="int32", dims=[100 + turn], data=inputs[number], reduce_op="sum", memory="own",
                           gpu=there([number])[0])
               for number, rank in enumerate(job.ranks)]
        for rank, op in zip(job.ranks, ops):
            outcome = rank.wait(op, want_output=True)
            assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
            addresses.add(rank.ask("where", op=op)["in"])
            rank.ask("free", op=op, unsaid=True)
    assert len(addresses) < 8, "no address came again"
    job.close()


# ---- memory in chunks ----


@pytest.mark.parametrize("memory", SEGMENTS)
@pytest.mark.parametrize("gpu_of", PAIRS, ids=str)
def test_a_segment_grows_under_ops_and_is_unmapped_after_them(daemon, gpu_of, memory):
    job = Job(daemon, 2)
    for turn in range(2):  # when all is freed it is unmapped; then other memory is mapped there
        waiting = []
        for elements in (10, 200_000, 100_001):  # with results, more than a chunk's 524288
            inputs = inputs_of(2, elements + turn)
            ops = [rank.submit("allreduce", dtype="int32", dims=[elements + turn], data=inputs[number], reduce_op="sum", memory=memory,
                               gpu=gpu_of[number]) for number, rank in enumerate(job.ranks)]
            waiting.append((inputs, ops))
        for inputs, ops in waiting:
            for rank, op in zip(job.ranks, ops):
                outcome = rank.outcome(op)
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
    job.close()


@pytest.mark.parametrize("memory", SEGMENTS)
def test_memory_in_chunks_takes_part_in_streams(daemon, memory):
    job = Job(daemon, 2)
    inputs = inputs_of(2, 270_000)
    gpu_of = there([0, 1])
    streams = [rank.ask("stream", gpu=gpu)["stream"] for rank, gpu in zip(job.ranks, gpu_of)]
    ops = [rank.submit("allreduce", dtype="int32", dims=[270_000], data=inputs[number], reduce_op="sum", memory=memory,
                       gpu=gpu_of[number], stream=streams[number]) for number, rank in enumerate(job.ranks)]
    for number, (rank, op) in enumerate(zip(job.ranks, ops)):
        assert rank.ask("stream_wait", op=op, stream=streams[number])["status"] == Status.OK
        reply = rank.ask("read", op=op, stream=streams[number])
        assert reply["ended"] and bytes.fromhex(reply["data"]) == arith.allreduce(INT32, "sum", inputs)
        assert rank.outcome(op).ok
    job.close()


def test_fabric_handles_that_the_worker_may_not_open_are_copied_or_refused_by_a_sentence():
    if REAL:
        pytest.skip("needs the fake driver")
    with gpus("devices=1", *REFUSED, faults="hvdd-gpu/no-imex@1") as daemon:
        job = Job(daemon, 2)
        for elements in (64, 200_000):
            reduce_on(job, [0, 0], elements, memory="fabric")
        inputs = inputs_of(2, 64)
        stream = job.ranks[0].ask("stream", gpu=0)["stream"]
        ops = [job.ranks[0].submit("allreduce", dtype="int32", dims=[64], data=inputs[0], reduce_op="sum", memory="fabric")]
        text = refuse(job.ranks[0], memory="fabric", stream=stream)
        assert "fabric handles alone" in text, text
        job.ranks[0].ask("drain", stream=stream)  # before its memory is unmapped
        ops.append(job.ranks[1].submit("allreduce", dtype="int32", dims=[64], data=inputs[1], reduce_op="sum", memory="fabric"))
        for rank, op in zip(job.ranks, ops):
            assert rank.outcome(op).data == arith.allreduce(INT32, "sum", inputs)
        reduce_on(job, [0, 0], memory="segment")
        required = Job(daemon, 2, environment={"HVD_GPU": "required"})
        text = refuse(required.ranks[0], memory="fabric")
        assert "CUDA_ERROR_NOT_PERMITTED" in text and "IMEX channel" in text, text
        staged = Job(daemon, 2, environment=STAGED)
        reduce_on(staged, [0, 0], memory="fabric")


def test_memory_of_a_pool_that_can_be_shared():
    with gpus(STRICT) as daemon:
        job = Job(daemon, 2)
        for turn in range(2):
            inputs = inputs_of(2, 100 + turn)
            for outcome in job.run("allreduce", dtype="int32", dims=[100 + turn], data=inputs, reduce_op="sum", memory="pool",
                                   each={"gpu": there([0, 1])}):
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
        job.close()


# ---- streams ----


class Streamer:
    """A job whose ranks have a stream each."""

    def __init__(self, job: Job, gpu_of: list[int]):
        self.job, self.gpus = job, gpu_of
        self.streams = [rank.ask("stream", gpu=gpu)["stream"] for rank, gpu in zip(job.ranks, gpu_of)]

    def submit(self, number: int, data: bytes, **more) -> int:
        """An allreduce in the rank's stream."""
        return self.job.ranks[number].submit("allreduce", dtype="int32", dims=[len(data) // 4], data=data, reduce_op="sum", memory="device",
                                             gpu=self.gpus[number], stream=self.streams[number], **more)

    def ask(self, number: int, do: str, **more):
        """A command about the rank's stream."""
        return self.job.ranks[number].ask(do, stream=self.streams[number], **more)


@pytest.fixture(name="streamer", params=PAIRS, ids=str)
def make_streamer(daemon, request):
    job = Job(daemon, 2)
    yield Streamer(job, request.param)
    job.close()


def test_an_op_waits_for_what_its_streams_have(streamer):
    inputs = inputs_of(2, 5000)
    streamer.ask(0, "gate")
    ops = [streamer.submit(number, inputs[number]) for number in range(2)]
    ranks = streamer.job.ranks
    assert ranks[0].wait(ops[0], 0.1).status == Status.ERR_TIMEOUT
    assert ranks[1].test(ops[1]).status == Status.INPROGRESS
    streamer.ask(0, "gate", open=True)
    for rank, op in zip(ranks, ops):
        outcome = rank.outcome(op)
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome


def test_the_event_descriptor_tells_of_an_op_in_a_stream(streamer):
    rank = streamer.job.ranks[0]
    inputs = inputs_of(2, 3000)
    assert rank.ask("event", timeout_ms=0)["status"] == Status.OK
    streamer.ask(1, "gate")
    ops = [streamer.submit(number, inputs[number]) for number in range(2)]
    assert not rank.ask("event", timeout_ms=20)["readable"]
    rank.post("event", timeout_ms=5000)
    streamer.ask(1, "gate", open=True)
    assert rank.collect()["readable"]
    assert rank.test(ops[0]).ok
    assert not rank.ask("event", timeout_ms=0)["readable"], "still readable after everything was taken"
    for member, op in zip(streamer.job.ranks, ops):
        assert member.outcome(op).data == arith.allreduce(INT32, "sum", inputs)


def test_streams_go_on_when_the_op_is_over_and_have_its_result(streamer):
    inputs = inputs_of(2, 3000)
    first = streamer.submit(0, inputs[0])
    assert streamer.ask(0, "stream_wait", op=first)["status"] == Status.OK
    assert not streamer.ask(0, "drain", timeout_ms=50)["ended"], "the stream did not wait"
    second = streamer.submit(1, inputs[1])
    streamer.ask(1, "stream_wait", op=second)
    for number, op in enumerate((first, second)):
        reply = streamer.ask(number, "read", op=op)
        assert reply["ended"] and bytes.fromhex(reply["data"]) == arith.allreduce(INT32, "sum", inputs)
        assert streamer.job.ranks[number].outcome(op).ok


def test_what_ranks_submit_in_different_orders_does_not_lock_their_streams(streamer):
    inputs = inputs_of(2, 10)
    ops: list[dict[str, int]] = [{}, {}]
    for number, order in enumerate((("a", "b"), ("b", "a"))):
        for name in order:
            ops[number][name] = streamer.submit(number, inputs[number], name=name)
    for number in range(2):
        for op in ops[number].values():
            streamer.ask(number, "stream_wait", op=op)
        assert streamer.ask(number, "drain")["ended"]
        for op in ops[number].values():
            assert streamer.job.ranks[number].outcome(op).data == arith.allreduce(INT32, "sum", inputs)


def test_a_chain_in_streams_needs_no_wait_of_the_host(streamer):
    inputs = inputs_of(2, 40)
    ops: list[list[int]] = [[], []]
    for _ in range(20):
        for number in range(2):
            op = streamer.submit(number, inputs[number])
            assert streamer.ask(number, "stream_wait", op=op)["status"] == Status.OK
            ops[number].append(op)
    for number, rank in enumerate(streamer.job.ranks):
        assert streamer.ask(number, "drain")["ended"]
        assert all(rank.outcome(op).data == arith.allreduce(INT32, "sum", inputs) for op in ops[number])


def test_an_op_that_fails_lets_its_streams_go_on(streamer):
    ops = [streamer.submit(0, bytes(40), name="f"), streamer.submit(1, bytes(48), name="f")]
    for number, op in enumerate(ops):
        streamer.ask(number, "stream_wait", op=op)
        assert streamer.ask(number, "drain")["ended"]
        assert streamer.job.ranks[number].outcome(op).status == Status.ERR_MISMATCH


def test_a_cancelled_op_lets_its_stream_go_on(streamer):
    rank = streamer.job.ranks[0]
    op = streamer.submit(0, bytes(40), name="alone")
    streamer.ask(0, "stream_wait", op=op)
    rank.cancel(op)
    assert streamer.ask(0, "drain")["ended"]
    assert rank.outcome(op).status == Status.ERR_CANCELLED


def test_imports_that_wait_for_a_gate_are_late_and_hold_up_no_other_set():
    """Every call that may wait for the streams of its process does. No GPU has been asked about those of VMM and of pools."""
    with gpus("devices=2;sync=strict", faults="hvdd-gpu/connections@32", environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) as daemon:
        job = Job(daemon, 4, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32"})  # a worker has that by itself
        gated, late, beside = ({"ranks": ranks, "process_set": job.add_set(ranks)} for ranks in ([0, 1], [2, 3], [1, 3]))
        reduce_on(job, [0, 1], **gated)  # there is a communicator, and known memory
        reduce_on(job, [1, 1], **beside)
        stream = job.ranks[0].ask("stream", gpu=0)["stream"]
        inputs = inputs_of(2, 64)

        def said(number: int, gpu: int, of: dict, **more) -> dict:
            return {"dtype": "int32", "dims": [64], "data": inputs[number], "reduce_op": "sum", "memory": "device", "gpu": gpu,
                    "process_set": of["process_set"]} | more

        for memory in ("own", "segment", "fabric", "pool"):
            job.ranks[0].ask("gate", stream=stream)
            ops = [(job.ranks[0], job.ranks[0].submit("allreduce", "gated", **said(0, 0, gated, stream=stream))),
                   (job.ranks[1], job.ranks[1].submit("allreduce", "gated", **said(1, 1, gated)))]
            assert job.ranks[1].wait(ops[1][1], 0.05).status == Status.ERR_TIMEOUT
            job.ranks[2].post_submit("allreduce", "late", **said(0, 1, late, memory=memory))
            for _ in range(3):
                reduce_on(job, [1, 1], **beside)
            assert not job.ranks[2].has_reply(), f"{memory} does not wait"
            job.ranks[0].ask("gate", stream=stream, open=True)
            outcome = job.ranks[2].collect_outcome()
            assert outcome.ok, outcome
            ops += [(job.ranks[2], outcome.op), (job.ranks[3], job.ranks[3].submit("allreduce", "late", **said(1, 1, late)))]
            for outcome in outcomes_of(ops):
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
        job.close()


# ---- what does not go ----


def test_host_and_device_in_one_op_is_a_mismatch(daemon):
    job = Job(daemon, 3)
    outcomes = job.run("allreduce", dtype="int32", dims=[4], reduce_op="sum", name="w", each={"memory": ["device", "malloc", "device"]})
    for outcome in outcomes:
        assert outcome.status == Status.ERR_MISMATCH
        assert outcome.text == "allreduce 'w': ranks disagree on memory: ranks 0,2 said GPU; rank 1 said host", outcome
    reduce_on(job, [0, 0, 1])
    job.close()


def test_in_and_out_lie_on_one_device(daemon):
    job = Job(daemon, 1)
    rank = job.ranks[0]
    refused = rank.try_submit("allreduce", "x", dtype="int32", dims=[4], memory="device", out_memory="malloc")
    assert refused.status == Status.ERR_INVALID and "both must lie in one" in refused.text
    reduce_on(job, [0])
    if COUNT == 1:
        pytest.skip("needs two GPUs")
    refused = rank.try_submit("allreduce", "x", dtype="int32", dims=[4], memory="device", out_gpu=1)
    assert refused.status == Status.ERR_INVALID and "they must lie on one" in refused.text
    other = rank.ask("stream", gpu=1)["stream"]
    refused = rank.try_submit("allreduce", "x", dtype="int32", dims=[4], memory="device", stream=other)
    assert refused.status == Status.ERR_INVALID and "of another device" in refused.text
    assert rank.ask("drain", stream=other)["ended"]  # of the copy of x's input, whose memory is used again
    reduce_on(job, [0])
    job.close()


def refuse(rank: Rank, memory: str = "device", **more):
    """What a rank is told when it comes with memory of a GPU."""
    outcome = rank.try_submit("allreduce", "refused", dtype="int32", dims=[4], memory=memory, **more)
    assert outcome.status == Status.ERR_UNSUPPORTED, outcome
    return outcome.text


STAGED = {"HVD_GPU": "staged"}


def test_staged_needs_no_worker_and_takes_no_stream(daemon):
    job = Job(daemon, 2, environment=STAGED)
    for elements in (1, 3000, 200_000):
        reduce_on(job, [0, 1], elements)
    reduce_on(job, [0, 1], in_place=True)
    exchange(job, [0, 1])
    assert not [row for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name]
    assert any("HVD_GPU=staged" in line for line in job.ranks[0].log())
    stream = job.ranks[0].ask("stream", gpu=0)["stream"]
    assert "HVD_GPU=staged" in refuse(job.ranks[0], stream=stream)
    job.close()


def unsent_of(rank: Rank) -> list[str]:
    """The lines about variables of NCCL that its worker does not get."""
    return [line for line in rank.log() if "do not reach" in line]


def test_variables_of_nccl_that_reach_no_worker_are_named_once_where_a_worker_is_used(daemon):
    stray = {"NCCL_TOPO_FILE": "/nonexistent", "NCCL_OF_THE_FUTURE": "1"}
    sent = {"NCCL_IB_QPS_PER_CONNECTION": "2", "NCCL_VERSION": "2.28.9", "NCCL_DEBUG": "VERSION"}
    job = Job(daemon, 2, environments={0: sent | stray, 1: sent})
    job.check_usable()
    assert unsent_of(job.ranks[0]) == []  # no GPU has been used
    for _ in range(2):
        reduce_on(job, [0, 0])
    told, = unsent_of(job.ranks[0])
    assert sorted(told.split(": ")[-1].split(";")[0].split(", ")) == sorted(stray), told
    assert unsent_of(job.ranks[1]) == []
    job.close()


def test_many_variables_of_nccl_that_reach_no_worker_are_counted(daemon):
    job = Job(daemon, 1, environment={f"NCCL_OF_THE_FUTURE_{number:020}": "" for number in range(30)})
    reduce_on(job, [0])
    told, = unsent_of(job.ranks[0])
    named = told.count("NCCL_OF_THE_FUTURE_")
    assert 1 < named < 30 and f", and {30 - named} more;" in told, told
    job.close()


REFUSALS = {
    "gpu = no": ({"gpu": "no"}, {}, "has no worker for GPUs"),
    "no driver": ({}, {"LD_LIBRARY_PATH": ""}, "libcuda.so.1"),
    "a driver that is too bare": ({}, {"LD_LIBRARY_PATH": str(FAKE / "bare")}, "libcuda.so.1"),
    "no memory operations": ({}, {"FAKEGPU_FAULT": "hvdd-gpu/no-memops"}, "memory operations"),
    "no more workers": ({"gpu-workers": "0"}, {}, "gpu-workers"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_is_missing_and_the_job_goes_on(case):
    options, environment, word = REFUSALS[case]
    if REAL and environment:
        pytest.skip("needs the fake driver")
    driver = {} if REAL else {"LD_LIBRARY_PATH": str(FAKE)}
    with gpus("devices=1", *REFUSED, environment=environment, **options) as daemon:
        job = Job(daemon, 2, environment=driver)
        text = refuse(job.ranks[0])
        assert word in text and "HVD_GPU=staged" in text, text
        job.check_usable()
        refuse(job.ranks[1])
        staged = Job(daemon, 2, environment=driver | STAGED)
        reduce_on(staged, [0, 0])


def test_a_gpu_that_a_rank_names_but_has_no_memory_on_is_its_jobs_no_longer_than_the_job_runs():
    """So may a rank do whose device cgroup denies it that GPU: workers are not in that cgroup."""
    with patient_gpus("devices=2;nvlink=all", *REFUSED) as daemon:
        honest, liar = Job(daemon, 1), Job(daemon, 1, environment={"FAKEGPU": f"named=1;{daemon.environment['FAKEGPU']}"})
        reduce_on(honest, [0])
        for memory in ("device", "segment", "pool"):
            told = liar.ranks[0].try_submit("allreduce", memory, dtype="int32", dims=[4], memory=memory)
            assert not told.ok and "the memory lies on another GPU" in told.text, told
        row, = (row for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == liar.name)
        assert (row["gpu"][-1], row["state"], row["imports"]) == ("1", "up", 0), row
        liar.check_usable()
        for job in (honest, liar):
            job.close()
        wait_until(lambda: [row["job"] for row in daemon.ctl.json("gpus")["gpus"]] == [honest.name], "the liar's worker to end", 5)


# ---- hvdctl, generations ----


def test_hvdctl_shows_the_workers(daemon):
    if COUNT == 1:
        pytest.skip("needs two GPUs")
    job = Job(daemon, 2)
    reduce_on(job, [0, 1])
    rows = [row for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name]
    assert sorted(row["state"] for row in rows) == ["up", "up"] and len({row["gpu"] for row in rows}) == 2, rows
    assert {row["pid"] for row in rows} <= set(daemon.workers())

    def figures():
        return [row for row in daemon.ctl.json("gpus")["gpus"]
                if row["job"] == job.name and row["communicators"] == row["imports"] == 1]  # told with a beat
    wait_until(lambda: len(figures()) == 2, "the workers' figures", 10)
    for row in figures():
        assert row["import_bytes"] > 1 << 20 and row["staging_bytes"] == 80 << 20, row
        assert REAL or (row["driver_version"], row["nccl_version"]) == (13000, 22809), row
    shown = next(line for line in daemon.ctl.run("gpus").stdout.splitlines() if job.name in line.split())
    assert REAL or shown.split()[-2:] == ["13.0", "2.28.9"], shown
    job.close()
    wait_until(lambda: all(row["state"] != "up" for row in daemon.ctl.json("gpus")["gpus"]), "the workers to be idle")


@pytest.mark.parametrize("gpu_of", PAIRS, ids=str)
def test_the_trace_and_the_timeline_have_what_the_streams_took(daemon, tmp_path, gpu_of):
    """From the first look on, and of each GPU."""
    job = Job(daemon, 2)
    gpu_of, file = there(gpu_of), tmp_path / "timeline.json"
    reduce_on(job, gpu_of, name="unseen")
    assert all(row["device_ns"] == 0 for row in daemon.ctl.json("trace", job.name)["trace"])
    reduce_on(job, gpu_of, name="seen")
    rows = [row for row in daemon.ctl.json("trace", job.name)["trace"] if row["tensor"] == "seen"]
    assert [row["rank"] for row in rows] == [0, 1]
    assert all(0 < row["device_ns"] <= row["done_ns"] - row["submit_ns"] for row in rows), rows
    assert job.ranks[0].timeline(file).ok
    for i in range(10):
        reduce_on(job, gpu_of, name=f"drawn{i % 2}")
    assert job.ranks[0].timeline().ok
    events = json.loads(file.read_text(encoding="utf-8"))
    check_streams(events, len(set(gpu_of)), 10)
    assert sum(event.get("name") == "GPU_ALLREDUCE" for event in events) == 10
    job.close()


def streams_of(events: list[dict]) -> dict[int, list[dict]]:
    """The batches in the row of each GPU."""
    pids = [event["pid"] for event in events if event.get("name") == "process_name" and "GPU-" in event["args"].get("name", "")]
    return {pid: [event for event in events if event["pid"] == pid and event["ph"] == "X"] for pid in pids}


def check_streams(events: list[dict], gpus_there: int, ops: int) -> None:
    """Each GPU has a row of its own, with these ops, which do not overlap."""
    of_gpus = streams_of(events)
    assert len(of_gpus) == gpus_there, of_gpus
    for took in of_gpus.values():
        assert {event["name"] for event in took} == {"KERNELS_ALLREDUCE" if gpus_there == 1 else "NCCL_ALLREDUCE"}
        assert sum(event["args"]["ops"] for event in took) == ops and all(event["dur"] > 0 for event in took), took
        for one, following in zip(took, took[1:]):
            assert one["ts"] + one["dur"] <= following["ts"] + 0.0015, (one, following)  # as they are rounded


def test_ranks_and_a_hvdd_that_number_gpus_differently_mean_the_same_one():
    with gpus("devices=3", environment={"CUDA_VISIBLE_DEVICES": "2"}) as daemon:
        job = Job(daemon, 2, environments={0: {"CUDA_VISIBLE_DEVICES": "1,0"}, 1: {"CUDA_VISIBLE_DEVICES": "0,1"}})
        inputs = inputs_of(2, 64)
        for outcome in job.run("allreduce", dtype="int32", dims=[64], data=inputs, reduce_op="sum", memory="device", each={"gpu": [0, 1]}):
            assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
        row, = daemon.ctl.json("gpus")["gpus"]
        assert row["gpu"].endswith("1"), row
        job.close()


def test_a_set_on_one_gpu_needs_no_nccl():
    with gpus("devices=2", "op-failed", "comm-failed", environment={"HVD_NCCL_LIB": "/nonexistent"}) as daemon:
        job = Job(daemon, 2)
        reduce_on(job, [0, 0])
        exchange(job, [0, 0])
        if COUNT > 1:
            for outcome in job.run("allreduce", dtype="int32", dims=[2], data=[bytes(8)] * 2, reduce_op="sum", memory="device",
                                   each={"gpu": [0, 1]}):
                assert outcome.status == Status.ERR_UNSUPPORTED and "/nonexistent" in outcome.text, outcome
        reduce_on(job, [0, 0])
        job.close()


def test_an_instance_of_a_gpu_in_mig_mode_is_a_gpu_of_its_own():
    instance = "MIG-66616b65-2067-7075-206f-66206e6f0003"  # the second, which CUDA shows to a process that names it
    with gpus("devices=2;mig=1") as daemon:
        job = Job(daemon, 2, environment={"CUDA_VISIBLE_DEVICES": instance})
        reduce_on(job, [0, 0])
        assert [row["gpu"] for row in daemon.ctl.json("gpus")["gpus"]] == [instance]
        job.close()
        daemon.allow("op-failed", "comm-failed")  # NCCL takes two instances of a GPU for one device
        job = Job(daemon, 2, environments={rank: {"CUDA_VISIBLE_DEVICES": f"{instance[:-1]}{2 + rank}"} for rank in range(2)})
        for outcome in job.run("allreduce", dtype="int32", dims=[2], data=[bytes(8)] * 2, reduce_op="sum", memory="device", gpu=0):
            assert outcome.status == Status.ERR_UNSUPPORTED and "could not join a communicator of 2 GPUs" in outcome.text, outcome
        job.check_usable()
        job.close()


@pytest.fixture(scope="module", name="joins_once")
def daemon_whose_workers_join_once():
    """A worker's second join would last for ever."""
    with gpus("devices=2", "rank-lost", "job-failed", "engine-ended", faults="" if REAL else "hvdd-gpu/nccl-join-hang@2",
              gpu_idle="900ms") as running:  # too little to pass to the next job
        yield running


@pytest.mark.parametrize("memory", ["device", "segment", "made"])
def test_a_worker_serves_the_next_generation_of_its_job_and_its_communicator_does(joins_once, memory):
    daemon = joins_once
    job = Job(daemon, 2)
    reduce_on(job, [0, 1], memory=memory)
    before = sorted(row["pid"] for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name)
    job.ranks[1].kill()
    wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "the loss to be known")
    job.ranks[0].close()
    job.ranks[1] = daemon.rank()
    for number, rank in enumerate(job.ranks):
        rank.post("open", job=job.name, rank=number, size=2)
    for rank in job.ranks:
        assert rank.collect_outcome().ok
    reduce_on(job, [0, 1], memory=memory)
    assert sorted(row["pid"] for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name) == before
    job.close()


# ---- the next job ----


def pids_of(daemon, job: Job) -> dict[str, int]:
    return {row["gpu"]: row["pid"] for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name}


@pytest.fixture(name="patient")
def patient_daemon():
    with patient_gpus("devices=2") as running:
        yield running


def rest_of(daemon, job: Job) -> list[tuple[int, int, int]]:
    """What hvdctl says that the idle workers of a job still have: imported, staging memory, communicators."""
    return [(row["import_bytes"], row["staging_bytes"], row["communicators"]) for row in daemon.ctl.json("gpus")["gpus"]
            if row["job"] == job.name and row["state"] == "idle"]


def close_and_rest(daemon, job: Job) -> None:
    job.close()
    daemon.wait_next_may_have(job.name)


def test_a_worker_that_passes_alone_leaves_its_communicators_behind(patient):
    if COUNT == 1:
        pytest.skip("needs two GPUs")
    daemon = patient
    pair, single, last = Job(daemon, 2), Job(daemon, 1), Job(daemon, 2)
    reduce_on(single, [0])
    reduce_on(pair, [0, 1])
    before = set(pids_of(daemon, pair).values())
    close_and_rest(daemon, pair)
    reduce_on(single, [1])
    alone = set(pids_of(daemon, single).values()) & before
    assert len(alone) == 1
    wait_until(lambda: [row["communicators"] for row in daemon.ctl.json("gpus")["gpus"] if row["pid"] in alone] == [0], "its figures", 5)
    close_and_rest(daemon, single)
    reduce_on(last, [0, 1])  # of workers that know different ones
    last.close()


def test_the_idle_workers_of_a_job_serve_the_next_one(patient):
    jobs = [Job(patient, 2), Job(patient, 2), Job(patient, 2, environment={"NCCL_P2P_DISABLE": "1"})]  # which a worker is started with
    pids = []
    for job in jobs:
        reduce_on(job, [0, 1])
        pids.append(pids_of(patient, job))
        assert {row["state"] for row in patient.ctl.json("gpus")["gpus"] if row["job"] == job.name} == {"up"}
        if job is not jobs[-1]:
            close_and_rest(patient, job)
            wait_until(lambda who=job: rest_of(patient, who) == [(0, 80 << 20, min(COUNT, 2) - 1)] * min(COUNT, 2), "what idle ones keep", 5)
    jobs[-1].close()
    assert pids[0] == pids[1] and not set(pids[1].values()) & set(pids[2].values()), pids
    assert len(pids[0]) == min(COUNT, 2)
    assert len(patient.lines("worker-passed")) == len(patient.lines("next-job")) == len(pids[0])
