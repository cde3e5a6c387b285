# SPDX-License-Identifier: Apache-2.0
"""A job on GPUs of two nodes loses a process of one node, or the node, while the other one's GPU waits for its GPU in NCCL: the rank
that waits is told why, its stream goes on, and the ranks that are left go on in the next generation."""
import os
import signal
import time

import pytest

from hvt import Status, arith, check_prompt, scaled
from hvt.gpu import FAKE
from hvt.job import outcomes_of
from hvt.spread import SpreadJob

INT32 = arith.DTYPES["int32"]
TOLD_NS = 1_200_000_000  # half a second of grace, and what the worker takes to abort
SILENT_NS = 3_500_000_000  # the same after a cable was cut


class Case:
    """A rank on each node. One waits on the host and in its stream for the other, whose stream has not come. `members`: what waits is
    a group of so many, in a step that is replayed, so that it is one batch."""

    def __init__(self, make_nodes, waits=0, members=0):
        def environment(node):
            return {"FAKEGPU": f"devices=1;free=keeps;meet={node.folder.parent / 'shared'}", "LD_LIBRARY_PATH": str(FAKE)}
        self.nodes = make_nodes(2, ssh=True, environment=environment)
        self.job = SpreadJob(self.nodes, (1, 1))
        self.warm()
        self.streams = [rank.ask("stream", gpu=0)["stream"] for rank in self.job.ranks]
        for _ in range(8 if members else 0):
            assert all(outcome.ok for outcome in outcomes_of([(rank, op) for number, rank in enumerate(self.job.ranks)
                                                              for op in self.submit(number, members)]))
        self.job.ranks[1 - waits].ask("gate", stream=self.streams[1 - waits])
        ops = [self.submit(number, members) for number in range(2)]
        self.rank, self.stream, self.ops = self.job.ranks[waits], self.streams[waits], ops[waits]
        for op in self.ops:
            self.rank.ask("stream_wait", op=op, stream=self.stream)
        assert self.rank.wait(self.ops[0], 0.3).status == Status.ERR_TIMEOUT

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

    def hear(self, at_ns, within_ns, *statuses):
        """What the rank that waits is told, in time; its stream goes on."""
        for op in self.ops:
            outcome = self.rank.wait(op, 20)
            assert outcome.status in statuses, outcome
        check_prompt("the rank was told", time.monotonic_ns() - at_ns, within_ns)
        assert self.rank.ask("drain", stream=self.stream, timeout_ms=int(scaled(5) * 1000))["ended"], "the stream waits for ever"
        return outcome.text

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


def kill(pid):
    at_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return at_ns


def test_a_worker_is_killed(case):
    at_ns = kill(case.job.process_of(case.nodes[1], "hvdd-gpu"))
    text = case.hear(at_ns, TOLD_NS, Status.ERR_WORKER_LOST)
    assert "GPU-" in text and "signal 9" in text, text
    case.job.ranks[1].ask("gate", stream=case.streams[1], open=True)
    case.job.reopen()
    case.warm()
    case.end()


def test_a_trainer_is_killed(case):
    at_ns = kill(case.job.pid_of(1))
    assert "rank 1" in case.hear(at_ns, TOLD_NS, Status.ERR_RANK_LOST)
    case.end()


def test_a_trainer_is_killed_in_a_step_that_is_replayed(make_nodes):
    case = Case(make_nodes, members=5)
    at_ns = kill(case.job.pid_of(1))
    assert "rank 1" in case.hear(at_ns, TOLD_NS, Status.ERR_RANK_LOST)
    case.end()


def test_an_engine_is_killed(case):
    at_ns = kill(case.job.process_of(case.nodes[1], "hvdd-engine"))
    assert "node 1" in case.hear(at_ns, TOLD_NS, Status.ERR_NODE_LOST)
    case.job.ranks[1].ask("gate", stream=case.streams[1], open=True)
    case.job.reopen()
    case.warm()
    case.end()


def test_the_engine_of_the_first_node_is_killed(make_nodes):
    case = Case(make_nodes, waits=1)
    at_ns = kill(case.job.process_of(case.nodes[0], "hvdd-engine"))
    assert "node 0" in case.hear(at_ns, TOLD_NS, Status.ERR_NODE_LOST)
    case.job.ranks[0].ask("gate", stream=case.streams[0], open=True)
    case.job.reopen()
    case.warm()
    case.end()


def test_the_cable_is_cut(case):
    at_ns = time.monotonic_ns()
    case.nodes[1].cut()
    assert "node 1" in case.hear(at_ns, SILENT_NS, Status.ERR_NODE_LOST)
    case.nodes[1].heal()
    case.end()
