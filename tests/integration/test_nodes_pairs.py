# SPDX-License-Identifier: Apache-2.0
"""Send and recv between ranks of two nodes, and process sets that their members alone open, on one node and over both."""
import re

import pytest

from hvt import Status, arith
from hvt.job import outcomes_of
from hvt.spread import SpreadJob
from hvt.wait import wait_until

INT32 = arith.DTYPES["int32"]
SIZES = (0, 1, 4097, 300_000, 3_000_001)
#: Ranks 0 and 1 are on the first node; both nodes' ranks with two memories of their own, whose bytes go another way.
WAYS = ((1, 3, "shared", "malloc"), (3, 0, "malloc", "registered"), (2, 1, "adopted", "lasting"))


def send(job, rank, to, data, tag=0, **more):
    return job.ranks[rank], job.ranks[rank].submit("send", root=to, tag=tag, data=data, dims=[len(data)], dtype="uint8", **more)


def recv(job, rank, source, count, tag=0, **more):
    return job.ranks[rank], job.ranks[rank].submit("recv", root=source, tag=tag, dims=[count], dtype="uint8", **more)


def check_every_size_arrives(job):
    for sender, taker, out_of, into in WAYS:
        for count in SIZES:
            sent = job.ranks[sender].submit("send", root=taker, dims=[count], dtype="uint8", pattern=3, memory=out_of)
            got = job.ranks[taker].submit("recv", root=sender, dims=[count], dtype="uint8", memory=into)
            reply = job.ranks[taker].ask("wait", op=got, timeout_ms=20000, pattern=3)
            assert reply["status"] == Status.OK and reply["wrong"] == 0, (sender, count, reply)
            assert job.ranks[sender].outcome(sent).ok
            job.ranks[taker].free(got)


def check_order_and_any_rank(job):
    """A ring of all ranks, twice in each direction; and from whoever comes, of this node and the other."""
    ops = [send(job, rank, (rank + 1) % 4, bytes([rank * 16 + turn])) for turn in range(4) for rank in range(4)]
    takers = [recv(job, rank, (rank - 1) % 4, 1) for turn in range(4) for rank in range(4)]
    outcomes = outcomes_of(takers)
    assert [outcome.data[0] for outcome in outcomes] == [(rank - 1) % 4 * 16 + turn for turn in range(4) for rank in range(4)]
    assert all(outcome.ok for outcome in outcomes_of(ops))
    ops = [send(job, rank, 1, bytes([rank]), 4) for rank in (3, 0, 2)]
    taken = {(outcome.data, outcome.source) for outcome in outcomes_of([recv(job, 1, -1, 1, 4) for _ in range(3)])}
    assert taken == {(bytes([rank]), rank) for rank in (0, 2, 3)}
    assert all(outcome.ok for outcome in outcomes_of(ops))


def check_mismatch_and_cancel(job):
    for outcome in outcomes_of([send(job, 0, 2, bytes(4), 1), recv(job, 2, 0, 5, 1, out_fill=7)]):
        assert outcome.status == Status.ERR_MISMATCH
        assert outcome.text == "send '0-to-2.tag-1': ranks disagree on number of elements: rank 0 said 4; rank 2 said 5"
    rank, first = send(job, 3, 0, b"1")
    second = send(job, 3, 0, b"2")
    assert rank.cancel(first).ok
    assert rank.outcome(first).status == Status.ERR_CANCELLED
    got, sent = outcomes_of([recv(job, 0, 3, 1), second])
    assert sent.ok and got.data == b"2"


def open_set(job, ranks, tag=0):
    outcomes = outcomes_of([(job.ranks[rank], job.ranks[rank].submit("set_open", ranks=ranks, tag=tag)) for rank in ranks])
    assert all(outcome.ok for outcome in outcomes), outcomes
    number, = {outcome.process_set for outcome in outcomes}
    return number


def close_set(job, ranks, number):
    assert all(outcome.ok for outcome in outcomes_of(
        [(job.ranks[rank], job.ranks[rank].submit("set_close", set=number)) for rank in ranks]))


def check_is_stranger(job, rank, number):
    """To a set that others have opened: the words are those of one node (test_pairs.py)."""
    outcome = job.ranks[rank].try_submit("barrier", process_set=number)
    assert outcome.status == Status.ERR_NOT_FOUND, outcome
    assert f"there is no process set {number} that rank {rank} knows" in outcome.text, outcome.text


def check_opened_sets(job):
    """On the first node, on the second, over both; with ops and a send; and the ids are one for all."""
    lists = [[0, 1], [2, 3], [1, 2], [0, 1, 3], [2, 3]]
    opened = [open_set(job, ranks, tag) for tag, ranks in enumerate(lists)]
    assert len(set(opened)) == len(opened)
    for ranks, number in zip(lists, opened):
        inputs = [arith.pack(INT32, [rank + 1, 5]) for rank in ranks]
        for _ in range(3):
            for outcome in job.run("allreduce", dtype="int32", dims=[2], data=inputs, reduce_op="sum", ranks=ranks, process_set=number):
                assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
        got, sent = outcomes_of([recv(job, ranks[0], ranks[-1], 1, process_set=number),
                                 send(job, ranks[-1], ranks[0], b"s", process_set=number)])
        assert sent.ok and got.data == b"s"
        for rank in set(range(4)) - set(ranks):  # of the node that has members, and of the one that has none
            check_is_stranger(job, rank, number)
    for ranks, number in zip(lists[:3], opened[:3]):
        close_set(job, ranks, number)
    assert job.add_set([0, 2]) not in opened[3:]
    for ranks, number in zip(lists[3:], opened[3:]):
        close_set(job, ranks, number)


def check_waits_are_named(job):
    """The engine of the node that waits knows for whom."""
    taker = recv(job, 0, 3, 1, 77)
    wait_until(lambda: "recv waits for rank 3 on node 1 (n2)" in job.said(), "the recv to be named")
    opener = job.ranks[2].submit("set_open", ranks=[1, 2])
    wait_until(lambda: "process_set_open waits for ranks on node 0 (n1)" in job.said(), "the opening to be named")
    other = job.ranks[1].submit("set_open", ranks=[1, 2])
    outcomes = outcomes_of([taker, send(job, 3, 0, b"x", 77), (job.ranks[1], other), (job.ranks[2], opener)])
    assert all(outcome.ok for outcome in outcomes), outcomes


WHERE_TO_LOOK = "barrier waits for ranks on node 0 (n1) (the log of rank 0's node and hvdctl stalls say which)"


def check_late_ranks_are_named(job, late, *words):
    """In the log, and to the ranks of the first node by the library, whether they are late or not."""
    name, before = f"late{late[0]}", len(job.said())
    for rank in job.ranks[:2]:
        rank.log()
    ops = [(job.ranks[rank], job.ranks[rank].submit("barrier", name)) for rank in range(4) if rank not in late]
    for each in words:
        wait_until(lambda: re.search(each, job.said()[before:]), lambda: f"{each!r} in {job.said()[before:]}")  # pylint: disable=cell-var-from-loop
    ops += [(job.ranks[rank], job.ranks[rank].submit("barrier", name)) for rank in late]
    assert all(outcome.ok for outcome in outcomes_of(ops))
    for rank in job.ranks[:2]:
        assert any(name in line for line in rank.log()), rank.number


def test_sends_and_opened_sets_over_two_nodes(make_nodes):
    nodes = make_nodes(2, ssh=True)
    job = SpreadJob(nodes, (2, 2), "-x", "HVD_STALL_CHECK_TIME_SECONDS=1")
    check_every_size_arrives(job)
    check_order_and_any_rank(job)
    check_mismatch_and_cancel(job)
    check_opened_sets(job)
    check_waits_are_named(job)
    check_late_ranks_are_named(job, [0, 1], r"barrier of ranks on other nodes waits for ranks 0,1 on node 0 \(n1\)", re.escape(WHERE_TO_LOOK))
    check_late_ranks_are_named(job, [1], r"barrier waits for rank 1 \(pid \d+, \w+\)", re.escape(WHERE_TO_LOOK))
    check_late_ranks_are_named(job, [2, 3], r"barrier waits for ranks 2,3 on node 1 \(n2\)")
    job.check_usable()
    job.close()
    assert job.await_end() == 0, job.said()
    for node in nodes:
        node.check_clean()


@pytest.mark.parametrize("kind", ["recv", "set_open"])
def test_a_killed_rank_ends_the_wait_of_the_other_node(make_nodes, kind):
    job = SpreadJob(make_nodes(2, ssh=True), (1, 2))
    job.check_usable()  # the engines are connected
    more = {"ranks": [0, 2]} if kind == "set_open" else {"root": 2, "dims": [4], "dtype": "uint8"}
    op = job.ranks[0].submit(kind, **more)
    job.ranks[0].post_wait(op)
    job.ranks[2].kill()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 2, outcome
    assert "was killed by signal 9" in outcome.text
    for rank in job.ranks[:2]:
        rank.kill()
    job.await_end()
