# SPDX-License-Identifier: Apache-2.0
"""A job whose data goes over UCX, its TCP between nodes of one machine: data is right, and a lost engine is told as over TCP. Each night
HVT_TRANSPORT=ucx runs the tests of other files over it."""
import os
import re
import signal
import time

from hvt import Status, check_prompt
from hvt.nodes import UCX
from hvt.spread import SpreadJob

LOST_NS = 1_000_000_000
ELEMENTS = 1 << 18


def test_data_over_it_is_right_and_seen_and_a_killed_engine_is_named(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (2, 2), environment=UCX)
    data = [bytes([rank + 1, 0, 0, 0]) * ELEMENTS for rank in range(4)]
    for outcome in job.run("allreduce", dtype="int32", dims=[ELEMENTS], data=data, reduce_op="sum"):
        assert outcome.ok and outcome.data == b"\12\0\0\0" * ELEMENTS, outcome.status
    links = job.data_links()
    assert len(links) == 2 and all(link["transport"] == "ucx" and link["bytes_sent"] > 4 * ELEMENTS for link in links), links
    assert " net ucx-tcp: the interface has no RDMA device: " in job.said(), job.said()
    for rank in job.ranks:
        rank.post("loop", name="steady", for_ms=60_000, elements=ELEMENTS, until_stdin=True)
    time.sleep(0.3)
    at_ns = time.monotonic_ns()
    os.kill(job.process_of(nodes[1], "hvdd-engine"), signal.SIGKILL)
    for rank in range(4):
        outcome = job.ranks[rank].collect_outcome()
        wanted = Status.ERR_NODE_LOST if rank < 2 else Status.ERR_ENGINE_LOST
        assert outcome.status is wanted and (rank >= 2 or re.search(r"\bn2\b", outcome.text)), outcome
        check_prompt("the rank was told", outcome.at_ns - at_ns, LOST_NS)
    for rank in job.ranks:
        rank.stop(20)
    job.await_end()
    for node in nodes:
        node.check_clean(10)
