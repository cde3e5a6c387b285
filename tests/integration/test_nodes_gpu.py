# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of GPUs of several nodes, on the fake driver: NCCL moves them, the nodes' engines agree on the order and the id."""
import json
from collections.abc import Callable, Sequence

import pytest

from hvt import Status, arith
from hvt.gpu import FAKE
from hvt.job import outcomes_of
from hvt.nodes import Node, Nodes
from hvt.rank import Rank
from hvt.spread import SpreadJob

INT32 = arith.DTYPES["int32"]


@pytest.fixture(name="gpu_nodes")
def make_gpu_nodes(make_nodes) -> Callable[..., Nodes]:
    """Makes nodes with two fake GPUs each; `more`: further words of FAKEGPU, `also`: variables, for those that are not the first."""
    def make(count: int = 2, more: str = "", also: dict[str, str] | None = None) -> Nodes:
        def environment(node: Node) -> dict[str, str]:  # hvdrun carries what the first has to all
            own = {} if node.number == 1 else {"FAKEGPU_NODE": f"node={node.number}{more}"} | (also or {})
            return own | {"FAKEGPU": f"devices=2;free=keeps;node=1;meet={node.folder.parent / 'shared'}", "LD_LIBRARY_PATH": str(FAKE)}
        return make_nodes(count, ssh=True, environment=environment)
    return make


def reduce_on(job: SpreadJob, gpu_of: Sequence[int], elements: int = 64, *, ranks: Sequence[int] | None = None, **more) -> None:
    """An allreduce of tensors on these GPUs."""
    inputs = [arith.pack(INT32, [rank * 1000 + i % 97 for i in range(elements)]) for rank in range(len(gpu_of))]
    expected = arith.pack(INT32, [sum(rank * 1000 + i % 97 for rank in range(len(gpu_of))) for i in range(elements)])
    for outcome in job.run("allreduce", dtype="int32", dims=[elements], data=inputs, reduce_op="sum", memory="device", ranks=ranks,
                           each={"gpu": list(gpu_of)}, **more):
        assert outcome.ok, outcome
        assert outcome.data == expected


def check_allreduces(job: SpreadJob, gpu_of: Sequence[int]) -> None:
    """Small ones, large ones, ones without bytes; averages of floats."""
    for elements in (0, 1, 20_001):
        reduce_on(job, gpu_of, elements)
        reduce_on(job, gpu_of, elements, in_place=True)
    row = arith.DTYPES["float32"]
    inputs = [arith.pack(row, [rank + 1.0, 8.0]) for rank in range(job.size)]
    for outcome in job.run("allreduce", dtype="float32", dims=[2], data=inputs, reduce_op="average", memory="device", each={"gpu": gpu_of}):
        assert outcome.ok and outcome.data == arith.pack(row, [(job.size + 1) / 2, 8.0]), outcome
    small = [arith.pack(arith.DTYPES["int16"], [rank, 5 - rank]) for rank in range(job.size)]  # which NCCL has not
    for outcome in job.run("allreduce", dtype="int16", dims=[2], data=small, reduce_op="max", memory="device", each={"gpu": gpu_of}):
        assert outcome.ok and outcome.data == arith.allreduce(arith.DTYPES["int16"], "max", small), outcome


def check_moves(job: SpreadJob, gpu_of: Sequence[int], named: bool = False) -> None:
    """Kinds that move bytes as they are."""
    def name(of: str) -> dict[str, str]:
        return {"name": of} if named else {}
    each, size = {"gpu": list(gpu_of)}, job.size
    rows = [3 * rank + 1 for rank in range(size)]
    gathered = [arith.pack(INT32, [rank * 100 + i for i in range(2 * rows[rank])]) for rank in range(size)]
    for outcome in job.run("allgather", dtype="int32", dims=[[count, 2] for count in rows], data=gathered, memory="device", each=each,
                           out_dims=[sum(rows), 2], **name("gather")):
        assert outcome.ok and outcome.data == b"".join(gathered), outcome
    for root in range(size):
        cast = [arith.pack(INT32, [rank * 7 + i for i in range(500)]) for rank in range(size)]
        for outcome in job.run("broadcast", dtype="int32", dims=[500], data=cast, root=root, memory="device", each=each,
                               **name(f"cast{root}")):
            assert outcome.ok and outcome.data == cast[root], outcome
    blocks = [[bytes([16 * a + b]) * (a + 2 * b) for b in range(size)] for a in range(size)]
    sent = [b"".join(row) for row in blocks]
    outcomes = job.run("alltoall", dtype="uint8", dims=[[len(data)] for data in sent], data=sent, memory="device", out_dims=[100],
                       each=each | {"splits": [[len(block) for block in row] for row in blocks]}, **name("all"))
    for rank, outcome in enumerate(outcomes):
        assert outcome.ok and outcome.data == b"".join(row[rank] for row in blocks), outcome
        assert outcome.splits == [len(row[rank]) for row in blocks]
    inputs = [arith.pack(INT32, [rank + i for i in range(2 * size + 1)]) for rank in range(size)]
    counts = [3] + [2] * (size - 1)
    outcomes = job.run("reducescatter", dtype="int32", dims=[2 * size + 1], data=inputs, reduce_op="sum", memory="device",
                       each=each | {"out_dims": [[count] for count in counts]}, **name("scatter"))
    assert b"".join(outcome.data for outcome in outcomes) == arith.allreduce(INT32, "sum", inputs)


def check_sends(job: SpreadJob, gpu_of: Sequence[int]) -> None:
    """Each rank to its successor, so within nodes and between them; with bytes and without."""
    for count in (0, 1000):
        ops = []
        for rank in range(job.size):
            following = (rank + 1) % job.size
            one, other = job.ranks[rank], job.ranks[following]
            ops += [(one, one.submit("send", root=following, dtype="uint8", dims=[count], data=bytes([rank]) * count, memory="device",
                                     gpu=gpu_of[rank])),
                    (other, other.submit("recv", root=rank, dtype="uint8", dims=[count], memory="device", gpu=gpu_of[following]))]
        outcomes = outcomes_of(ops)
        assert all(outcome.ok for outcome in outcomes), outcomes
        assert [outcome.data for outcome in outcomes[1::2]] == [bytes([rank]) * count for rank in range(job.size)]


def check_groups_and_sets(job: SpreadJob, gpu_of: Sequence[int]) -> None:
    """Groups; sets of one node and of both; a join."""
    inputs = [arith.pack(INT32, [rank, 3]) for rank in range(job.size)]
    ops = [(rank, op) for number, rank in enumerate(job.ranks)
           for op in rank.group("allreduce", "g", [{"dtype": "int32", "dims": [2], "data": inputs[number], "memory": "device",
                                                    "gpu": gpu_of[number]}] * 5, reduce_op="sum")]
    assert all(outcome.data == arith.allreduce(INT32, "sum", inputs) for outcome in outcomes_of(ops))
    for members in ([0, 1], [0, job.size - 1]) if job.size > 2 else ():
        number = job.add_set(members)
        reduce_on(job, [gpu_of[rank] for rank in members], ranks=members, process_set=number)
        job.remove_set(number)
    joined = job.ranks[1].submit("join")
    others = [rank for rank in range(job.size) if rank != 1]
    reduce_on(job, [gpu_of[rank] for rank in others], ranks=others)
    joins = [(job.ranks[rank], job.ranks[rank].submit("join")) for rank in others]
    assert all(rank.outcome(op).ok for rank, op in joins + [(job.ranks[1], joined)])


LAYOUTS = [((1, 1), [[1, 0]]), ((2, 2), [[0, 1, 0, 1], [0, 0, 1, 1]]), ((3, 1), [[0, 1, 0, 1]])]


@pytest.mark.parametrize("slots, layouts", LAYOUTS, ids=str)
def test_every_op_is_right_between_gpus_of_two_nodes(gpu_nodes, slots, layouts):
    job = SpreadJob(gpu_nodes(), slots)
    for gpu_of in layouts:
        check_allreduces(job, gpu_of)
        check_moves(job, gpu_of)
        check_sends(job, gpu_of)
    check_groups_and_sets(job, layouts[0])
    job.check_usable()  # tensors of the host beside them
    job.close()
    assert job.await_end() == 0 and "warning" not in job.said(), job.said()


def test_gpus_of_three_nodes_in_two_generations(gpu_nodes):
    job = SpreadJob(gpu_nodes(3), (1, 1, 2))
    check_allreduces(job, [0, 1, 0, 1])
    job.reopen()
    check_allreduces(job, [0, 1, 0, 1])
    check_moves(job, [0, 0, 0, 0])
    job.close()


def messages_of(job: SpreadJob) -> int:
    """Messages between two nodes' engines so far. To ask costs some, always as many."""
    here, = (row for row in job.ctl_of(0).json("nodes")["job_nodes"] if row["here"])
    link, = (link for link in here["links"] if link["kind"] == "control")
    return link["messages_sent"] + link["messages_received"]


def play_group(job: SpreadJob, name: str, gpu_of: Sequence[int], members: int = 20) -> None:
    """A step of many small tensors, which differ."""
    inputs = [[arith.pack(INT32, [rank + at, 3 * at]) for at in range(members)] for rank in range(job.size)]
    ops = [[(rank, op) for op in rank.group("allreduce", name, [{"dtype": "int32", "dims": [2], "data": data, "memory": "device",
                                                                  "gpu": gpu_of[number]} for data in inputs[number]], reduce_op="sum")]
           for number, rank in enumerate(job.ranks)]
    for each in ops:
        for at, outcome in enumerate(outcomes_of(each)):
            assert outcome.data == arith.allreduce(INT32, "sum", [data[at] for data in inputs]), (at, outcome)


def test_a_group_in_a_step_that_repeats_costs_four_messages(gpu_nodes):
    """Two say that it has been started, two that it is over: on one node, and on both."""
    job = SpreadJob(gpu_nodes(), (1, 1))
    for _ in range(8):
        play_group(job, "g", [0, 0])
    before = messages_of(job)
    start = messages_of(job)
    for _ in range(10):
        play_group(job, "g", [0, 0])
    assert messages_of(job) - start - (start - before) == 40
    play_group(job, "g", [1, 0])  # a rank has its tensors elsewhere
    for _ in range(3):
        play_group(job, "g", [0, 0])
        reduce_on(job, [0, 0], name="another")
    job.close()
    assert job.await_end() == 0 and "warning" not in job.said(), job.said()


def replayed(job: SpreadJob) -> int:
    """Ops of the first rank that have started without the root."""
    ctl = job.ctl_of(0)
    name, = (row["job"] for row in ctl.json("jobs")["jobs"])
    return next(row["replayed"] for row in ctl.json("ranks", name)["ranks"] if row["rank"] == 0)


def test_moves_in_a_step_that_repeats_are_replayed(gpu_nodes):
    job = SpreadJob(gpu_nodes(), (1, 1))
    for _ in range(8):
        check_moves(job, [0, 0], named=True)
    before = replayed(job)
    for _ in range(4):
        check_moves(job, [0, 0], named=True)
    assert replayed(job) - before == 4 * 5
    check_moves(job, [1, 0], named=True)  # a rank has its tensors elsewhere
    job.close()
    assert job.await_end() == 0 and "warning" not in job.said(), job.said()


def test_what_differs_in_a_step_that_is_replayed_is_right(gpu_nodes):
    """Nodes that begin with different ops, and one that lets another wait, so that what it has started is withdrawn."""
    job = SpreadJob(gpu_nodes(), (1, 1))
    inputs = [arith.pack(INT32, [rank, 5]) for rank in range(2)]

    def submit(rank: int, name: str) -> tuple[Rank, int]:
        return job.ranks[rank], job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], data=inputs[rank], reduce_op="sum",
                                                       memory="device", gpu=0)

    def check(ops: Sequence[tuple[Rank, int]]) -> None:
        for outcome in outcomes_of(ops):
            assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome

    for turn in range(8):
        check([submit(rank, name) for name in "ab" for rank in range(2)])
    check([submit(0, "a"), submit(1, "b"), submit(0, "b"), submit(1, "a")])
    for turn in range(16):
        check([submit(rank, name) for name in "ab" for rank in range(2)])
    first = submit(0, "a")
    assert job.ranks[0].wait(first[1], 0.5).status == Status.ERR_TIMEOUT  # longer than a step stands still
    check([first, *(submit(1, name) for name in "ab"), submit(0, "b")])
    job.close()
    assert job.await_end() == 0 and "warning" not in job.said(), job.said()


def test_a_timeline_has_what_the_streams_of_all_nodes_took(gpu_nodes):
    job = SpreadJob(gpu_nodes(), (1, 1))
    name, = (row["job"] for row in job.ctl_of(0).json("jobs")["jobs"])
    reduce_on(job, [0, 0], name="unseen")
    file = job.nodes.shared / "timeline.json"
    assert job.ctl_of(0).run("timeline", name, "start", str(file)).returncode == 0
    for turn in range(6):
        reduce_on(job, [0, 0], name="seen")
    assert job.ctl_of(0).run("timeline", name, "stop").returncode == 0
    events = json.loads(file.read_text(encoding="utf-8"))
    rows = {event["args"]["name"].split(":")[0]: event["pid"] for event in events
            if event.get("name") == "process_name" and "GPU-" in event["args"].get("name", "")}
    assert set(rows) == {"0 n1", "1 n2"}
    for pid in rows.values():
        took = [event for event in events if event.get("pid") == pid and event["ph"] == "X"]
        assert sum(event["args"]["ops"] for event in took) == 6 and {event["name"] for event in took} == {"NCCL_ALLREDUCE"}, took
    traced = [row for row in job.ctl_of(1).json("trace", name)["trace"] if row["tensor"] == "seen"]
    assert len(traced) == 12 and all(row["device_ns"] > 0 for row in traced), traced
    job.close()
    assert job.await_end() == 0 and "warning" not in job.said(), job.said()


def test_ranks_that_disagree_on_memory_hear_who_said_what(gpu_nodes):
    job = SpreadJob(gpu_nodes(), (1, 1))
    where = ({"memory": "device", "gpu": 0}, {})
    ops = [rank.submit("allreduce", "m", dtype="int32", dims=[2], data=bytes(8), reduce_op="sum", **more)
           for rank, more in zip(job.ranks, where)]
    for rank, op in zip(job.ranks, ops):
        outcome = rank.outcome(op)
        assert outcome.status == Status.ERR_MISMATCH and "rank 0 said GPU; rank 1 said host" in outcome.text, outcome
    reduce_on(job, [0, 0])
    job.close()


def test_nodes_with_different_nccl_are_told_both_versions(gpu_nodes):
    job = SpreadJob(gpu_nodes(more=";nccl=22703"), (1, 1))
    for turn in range(2):
        outcomes = job.run("allreduce", dtype="int32", dims=[2], data=[bytes(8)] * 2, reduce_op="sum", memory="device", gpu=0)
        for outcome in outcomes:
            assert outcome.status == Status.ERR_UNSUPPORTED, (turn, outcome)
            assert all(word in outcome.text for word in ("n1", "n2", "22809", "22703")), outcome.text
    job.check_usable()
    job.close()


def test_variables_of_nccl_that_differ_between_nodes_are_told_once_with_their_values(gpu_nodes):
    job = SpreadJob(gpu_nodes(also={"NCCL_ALGO": "Tree", "NCCL_HOSTID": "two"}), (1, 1), environment={"NCCL_PROTO": "Simple"})
    for gpu_of in ([0, 0], [0, 0], [1, 0]):  # two communicators
        reduce_on(job, gpu_of)
    told = [line for line in job.ranks[0].log() if "NCCL" in line]
    assert len(told) == 1 and "NCCL_ALGO is not set for rank 0 on node 0 (n1) and \"Tree\" for rank 1 on node 1 (n2)" in told[0], told
    assert "NCCL_HOSTID" not in told[0] and "NCCL_PROTO" not in told[0], told  # a node's own; alike
    job.close()
    assert job.await_end() == 0 and job.said().count("NCCL_ALGO is not set") == 1, job.said()


def test_an_op_waits_for_a_stream_of_another_node_and_its_result_is_in_order(gpu_nodes):
    job = SpreadJob(gpu_nodes(), (1, 1))
    streams = [rank.ask("stream", gpu=0)["stream"] for rank in job.ranks]
    inputs = [arith.pack(INT32, [rank + i for i in range(3000)]) for rank in range(2)]
    job.ranks[1].ask("gate", stream=streams[1])
    ops = [rank.submit("allreduce", dtype="int32", dims=[3000], data=inputs[number], reduce_op="sum", memory="device", gpu=0,
                       stream=streams[number]) for number, rank in enumerate(job.ranks)]
    assert job.ranks[0].ask("stream_wait", op=ops[0], stream=streams[0])["status"] == Status.OK
    assert not job.ranks[0].ask("drain", stream=streams[0], timeout_ms=100)["ended"], "the stream did not wait"
    job.ranks[1].ask("gate", stream=streams[1], open=True)
    assert job.ranks[0].ask("drain", stream=streams[0], timeout_ms=10000)["ended"]
    for rank, op in zip(job.ranks, ops):
        outcome = rank.outcome(op)
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
    job.close()
