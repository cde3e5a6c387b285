# SPDX-License-Identifier: Apache-2.0
"""A job on GPUs of two nodes loses a process of one node, or the node, while the other one's GPU waits for its GPU in NCCL: the rank
that waits is told why, its stream goes on, and the ranks that are left go on in the next generation."""
import contextlib
import os
import signal
import time

import pytest

from hvt import Status, arith, check_prompt, scaled, wait_until
from hvt.gpu import FAKE
from hvt.job import outcomes_of
from hvt.spread import SpreadJob

INT32 = arith.DTYPES["int32"]
TOLD_NS = 700_000_000  # half a second of grace, and what the worker takes to abort
SILENT_NS = 2_600_000_000  # the same after a cable was cut
SILENCE_NS = 5_000_000_000  # gpu-silence
ENDED_NS = 1_700_000_000  # hvdd asks each second; then as above
PROMISED_NS = 100_000_000


class Case:
    """A rank on each node. One waits on the host and in its stream for the other, whose stream has not come. `members`: what waits is
    a group of so many, in a step that is replayed, so that it is one batch. `joins`: the stream has come, and the second node's GPU
    never joins their communicator."""

    def __init__(self, make_nodes, waits=0, members=0, joins=False):
        def environment(node):
            fault = {"FAKEGPU_FAULT": "hvdd-gpu/nccl-join-hang@1"} if joins and node.number == 2 else {}
            return fault | {"FAKEGPU": f"devices=1;free=keeps;meet={node.folder.parent / 'shared'}", "LD_LIBRARY_PATH": str(FAKE)}
        self.nodes = make_nodes(2, ssh=True, environment=environment)
        self.job = SpreadJob(self.nodes, (1, 1))
        if not joins:
            self.warm()
        self.streams = [rank.ask("stream", gpu=0)["stream"] for rank in self.job.ranks]
        for _ in range(8 if members else 0):
            assert all(outcome.ok for outcome in outcomes_of([(rank, op) for number, rank in enumerate(self.job.ranks)
                                                              for op in self.submit(number, members)]))
        self.late = 1 - waits
        self.rank, self.stream = self.job.ranks[waits], self.streams[waits]
        self.ops, self.late_ops = [], []
        self.wait(members, joins)

    def wait(self, members=0, joins=False):
        """One waits for the other."""
        before = self.meetings()
        if not joins:
            self.job.ranks[self.late].ask("gate", stream=self.streams[self.late])
        ops = [self.submit(number, members) for number in range(2)]
        self.ops, self.late_ops = ops[1 - self.late], ops[self.late]
        for op in self.ops:
            self.rank.ask("stream_wait", op=op, stream=self.stream)
        assert self.rank.wait(self.ops[0], 0.3).status == Status.ERR_TIMEOUT
        assert bool(self.meetings() - before) == joins

    def meetings(self):
        """Files of communicators that not all have joined."""
        return set(self.nodes.shared.glob("fakegpu-nccl-*"))

    def submit(self, number, members):
        """What waits, of one rank."""
        rank, stream = self.job.ranks[number], self.streams[number]
        tensor = {"dtype": "int32", "dims": [2], "data": bytes(8), "memory": "device", "gpu": 0, "stream": stream}
        if members:
            return rank.group("allreduce", "gated", [tensor] * members, reduce_op="sum", stream=stream)
        return [rank.submit("allreduce", "gated", reduce_op="sum", **tensor)]

    def warm(self):
        """An op that works."""
        inputs = [arith.pack(INT32, [rank + 1, 7]) for rank in range(2)]
        for outcome in self.job.run("allreduce", dtype="int32", dims=[2], data=inputs, reduce_op="sum", memory="device", gpu=0):
            assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome

    def hear(self, status, *words):
        """What the rank that waits is told; its stream goes on. When it was told, and its stream had gone on."""
        for op in self.ops:
            outcome = self.rank.wait(op, 20)
            assert outcome.status == status and all(word in outcome.text for word in words), outcome
        stream = self.rank.ask("drain", stream=self.stream, timeout_ms=int(scaled(5) * 1000))
        assert stream["ended"], "the stream waits for ever"
        return stream["at_ns"]

    def open_gate(self):
        """The stream that has not come does."""
        self.job.ranks[self.late].ask("gate", stream=self.streams[self.late], open=True)

    def go_on(self):
        """And the next generation works."""
        self.open_gate()
        self.job.reopen()
        self.warm()

    def end_workers(self):
        """What hangs in a join would end 2 s after its engine."""
        def left():
            return [pid for node in self.nodes for pid, line in node.processes().items() if "hvdd-gpu" in line.split(" ")[0]]
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not left(), "the workers to end")

    def end(self):
        """Nothing is left."""
        for rank in self.job.ranks:
            rank.stop(20)
        self.job.await_end()
        for node in self.nodes:
            node.check_clean(10)


@pytest.fixture(name="case")
def make_case(make_nodes):
    return Case(make_nodes)


def kill(pid, number=signal.SIGKILL):
    at_ns = time.monotonic_ns()
    os.kill(pid, number)
    return at_ns


def check_told(took_ns):
    """Of a process that has ended."""
    check_prompt("the rank was told and its stream went on", took_ns, TOLD_NS)


def test_a_worker_is_killed(case):
    at_ns = kill(case.job.process_of(case.nodes[1], "hvdd-gpu"))
    check_told(case.hear(Status.ERR_WORKER_LOST, "GPU-", "signal 9") - at_ns)
    case.go_on()
    case.end()


def test_a_trainer_is_killed(case):
    at_ns = kill(case.job.pid_of(1))
    check_told(case.hear(Status.ERR_RANK_LOST, "rank 1") - at_ns)
    case.end()


def test_a_trainer_is_killed_in_a_step_that_is_replayed(make_nodes):
    case = Case(make_nodes, members=5)
    at_ns = kill(case.job.pid_of(1))
    check_told(case.hear(Status.ERR_RANK_LOST, "rank 1") - at_ns)
    case.end()


def test_an_engine_is_killed(case):
    at_ns = kill(case.job.process_of(case.nodes[1], "hvdd-engine"))
    check_told(case.hear(Status.ERR_NODE_LOST, "node 1") - at_ns)
    case.go_on()
    case.end()


def test_the_engine_of_the_first_node_is_killed(make_nodes):
    case = Case(make_nodes, waits=1)
    at_ns = kill(case.job.process_of(case.nodes[0], "hvdd-engine"))
    check_told(case.hear(Status.ERR_NODE_LOST, "node 0") - at_ns)
    case.go_on()
    case.end()


def test_one_is_killed_while_a_communicator_is_joined(make_nodes):
    case = Case(make_nodes, joins=True)
    for name, status, word in (("hvdd-gpu", Status.ERR_WORKER_LOST, "signal 9"), ("hvdd-engine", Status.ERR_NODE_LOST, "node 1")):
        at_ns = kill(case.job.process_of(case.nodes[1], name))
        check_told(case.hear(status, word) - at_ns)
        case.end_workers()
        case.job.reopen()
        case.wait(joins=True)
    at_ns = kill(case.job.pid_of(1))
    check_told(case.hear(Status.ERR_RANK_LOST, "rank 1") - at_ns)
    case.end_workers()
    case.end()


def test_hvdds_are_killed_and_nobody_notices(case):
    for node in case.nodes:
        kill(case.job.process_of(node, "hvdd"))
    at_ns = time.monotonic_ns()
    case.open_gate()
    check_prompt("the op was done", case.hear(Status.OK) - at_ns, PROMISED_NS)
    assert all(case.job.ranks[1].wait(op).ok for op in case.late_ops)
    case.warm()
    case.end()


def test_an_engine_that_stands_still_is_missed_and_a_worker_is_ended_after_its_silence(case):
    pid = case.job.process_of(case.nodes[1], "hvdd-engine")
    at_ns = kill(pid, signal.SIGSTOP)
    check_prompt("the rank was told and its stream went on", case.hear(Status.ERR_NODE_LOST, "node 1") - at_ns, SILENT_NS)
    kill(pid, signal.SIGCONT)
    case.go_on()
    case.wait()
    at_ns = kill(case.job.process_of(case.nodes[1], "hvdd-gpu"), signal.SIGSTOP)
    took_ns = case.hear(Status.ERR_WORKER_LOST, "gpu-silence") - at_ns
    check_prompt("the rank was told and its stream went on", took_ns - SILENCE_NS, ENDED_NS)
    case.go_on()
    case.end()


def test_the_cable_is_cut(case):
    at_ns = time.monotonic_ns()
    case.nodes[1].cut()
    check_prompt("the rank was told and its stream went on", case.hear(Status.ERR_NODE_LOST, "node 1") - at_ns, SILENT_NS)
    case.nodes[1].heal()
    case.end()
