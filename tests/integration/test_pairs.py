# SPDX-License-Identifier: Apache-2.0
"""Send and recv between two ranks, and process sets that only their members open."""
import pytest

from hvt import Status, arith
from hvt.daemon import Daemon
from hvt.job import Job, job_of, outcomes_of
from hvt.wait import wait_until

INT32 = arith.DTYPES["int32"]
MEMORIES = ("shared", "malloc", "registered", "adopted", "lasting")


@pytest.fixture(scope="module")
def job():
    with job_of(3, "op-failed", "op-stalled") as running:
        yield running


def send(job: Job, from_rank: int, to: int, data: bytes, tag: int = 0, **more) -> tuple:
    rank = job.ranks[from_rank]
    return rank, rank.submit("send", root=to, tag=tag, data=data, dims=more.pop("dims", [len(data)]),
                             dtype=more.pop("dtype", "uint8"), **more)


def recv(job: Job, at: int, from_rank: int, count: int, tag: int = 0, **more) -> tuple:
    rank = job.ranks[at]
    return rank, rank.submit("recv", root=from_rank, tag=tag, dims=more.pop("dims", [count]),
                             dtype=more.pop("dtype", "uint8"), **more)


@pytest.mark.parametrize("dtype", arith.DTYPES.values(), ids=lambda dtype: dtype.name)
def test_every_type_arrives_whatever_its_shape(job, dtype):
    for count in (0, 1, 12):
        data = arith.sample(dtype, count, "send")
        sent, got = outcomes_of([send(job, 2, 0, data, dtype=dtype.name, dims=[count]),
                                 recv(job, 0, 2, 0, dtype=dtype.name, dims=[count // 3, 3] if count > 1 else [count])])
        assert sent.ok and got.ok, (sent, got)
        assert got.data == data and got.source == 2


@pytest.mark.parametrize("into", MEMORIES)
@pytest.mark.parametrize("out_of", MEMORIES)
def test_every_kind_of_memory_and_size(job, out_of, into):
    for count in (1, 4096, 4097, 32768, 262144 + 4, 3_000_001):
        rank, op = job.ranks[1], job.ranks[1].submit("send", root=0, dims=[count], dtype="uint8", pattern=3,
                                                     memory=out_of)
        taker = job.ranks[0].submit("recv", root=1, dims=[count], dtype="uint8", memory=into)
        rank.post("wait", op=op, timeout_ms=20000)
        reply = job.ranks[0].ask("wait", op=taker, timeout_ms=20000, pattern=3)
        assert reply["status"] == Status.OK and reply["wrong"] == 0, (count, reply)
        assert rank.collect_outcome().ok
        rank.free(op)
        job.ranks[0].free(taker)


def test_a_ring_of_sends_and_recvs_does_not_deadlock(job):
    for _ in range(20):
        ops = []
        for rank in range(3):
            ops.append(send(job, rank, (rank + 1) % 3, bytes([rank] * 5)))
            ops.append(recv(job, rank, (rank - 1) % 3, 5))
        outcomes = outcomes_of(ops)
        assert all(outcome.ok for outcome in outcomes), outcomes
        assert [outcome.data[0] for outcome in outcomes[1::2]] == [2, 0, 1]


def test_the_order_of_one_tag_is_kept_and_tags_are_apart(job):
    ops = [send(job, 0, 1, bytes([tag * 16 + number]), tag) for number in range(3) for tag in range(3)]
    wanted = [(tag, number) for tag in (2, 0, 1) for number in range(3)]
    takers = [recv(job, 1, 0, 1, tag) for tag, _ in wanted]
    for (tag, number), outcome in zip(wanted, outcomes_of(takers)):
        assert outcome.ok and outcome.data == bytes([tag * 16 + number])
    assert all(outcome.ok for outcome in outcomes_of(ops))


def test_from_any_rank_names_the_sender(job):
    ops = [send(job, 2, 1, b"c", 4), send(job, 0, 1, b"a", 4)]
    takers = [recv(job, 1, -1, 1, 4) for _ in range(2)]
    assert {(outcome.data, outcome.source) for outcome in outcomes_of(takers)} == {(b"a", 0), (b"c", 2)}
    assert all(outcome.ok for outcome in outcomes_of(ops))


def test_a_mismatch_is_told_to_both_and_nothing_moves(job):
    outcomes = outcomes_of([send(job, 0, 1, bytes(4), 1), recv(job, 1, 0, 5, 1, out_fill=7)])
    for outcome in outcomes:
        assert outcome.status == Status.ERR_MISMATCH
        assert outcome.text == ("send '0-to-1.tag-1': ranks disagree on number of elements: rank 0 said 4; rank 1 "
                                "said 5")
    assert outcomes[1].data == bytes([7] * 5)
    job.check_usable()


def test_what_cannot_be_is_refused_at_once(job):
    rank = job.ranks[1]
    for arguments, text in (({"root": 1}, "rank 1 is this one"), ({"root": 3}, "rank 3 is not a member of process set 0"),
                            ({"root": 0, "tag": -1}, "tag -1 is negative"), ({"root": -2}, "rank -2 is not a member")):
        for kind in ("send", "recv"):
            outcome = rank.try_submit(kind, dims=[1], dtype="uint8", **arguments)
            assert outcome.status == Status.ERR_INVALID and text in outcome.text, outcome
    assert rank.try_submit("send", root=-1, dims=[1], dtype="uint8").status == Status.ERR_INVALID


def test_a_cancelled_send_was_never_submitted(job):
    rank, first = send(job, 0, 2, b"1")
    second = send(job, 0, 2, b"2")
    assert rank.cancel(first).ok
    assert rank.outcome(first).status == Status.ERR_CANCELLED
    got, sent = outcomes_of([recv(job, 2, 0, 1), second])
    assert sent.ok and got.data == b"2"


def test_a_recv_that_waits_is_shown_with_whom_it_misses_and_named_by_its_timeout(job):
    rank, op = recv(job, 1, 2, 1, 77)
    outcome = rank.wait(op, seconds=0.05)
    assert outcome.status == Status.ERR_TIMEOUT and "recv from rank 2 with tag 77" in outcome.text
    row, = wait_until(lambda: job.daemon.ctl.json("stalls", job.name)["stalls"], "the recv to be listed")
    assert row["tensor"] == "2-to-1.tag-77" and row["op"] == "recv"
    assert [missing["rank"] for missing in row["missing"]] == [2]
    assert all(outcome.ok for outcome in outcomes_of([(rank, op), send(job, 2, 1, b"x", 77)]))


# ---- sets ----


def open_set(job: Job, ranks: list[int], tag: int = 0) -> int:
    ops = [(job.ranks[rank], job.ranks[rank].submit("set_open", ranks=ranks, tag=tag)) for rank in ranks]
    outcomes = outcomes_of(ops)
    assert all(outcome.ok for outcome in outcomes), outcomes
    assert len({outcome.process_set for outcome in outcomes}) == 1, outcomes
    return outcomes[0].process_set


def close_set(job: Job, ranks: list[int], number: int) -> None:
    ops = [(job.ranks[rank], job.ranks[rank].submit("set_close", set=number)) for rank in ranks]
    assert all(outcome.ok for outcome in outcomes_of(ops))


def test_members_open_use_and_close_a_set_that_the_others_do_not_know(job):
    before = [rank.sets() for rank in job.ranks]
    first, second = open_set(job, [0, 2]), open_set(job, [2, 0], tag=1)
    assert first != second
    assert job.ranks[1].sets() == before[1] and job.ranks[2].sets()[first] == [0, 2]
    for number in (second, first):
        for outcome in job.run("allreduce", ranks=[0, 2], dtype="int32", dims=[1], reduce_op="sum",
                               data=[arith.pack(INT32, [3]), arith.pack(INT32, [4])], process_set=number):
            assert outcome.ok and outcome.data == arith.pack(INT32, [7])
    refused = job.ranks[1].try_submit("barrier", process_set=first)
    assert refused.status == Status.ERR_NOT_FOUND and f"there is no process set {first} that rank 1 knows" in refused.text, refused
    got, sent = outcomes_of([recv(job, 0, 2, 1, process_set=first), send(job, 2, 0, b"s", process_set=first)])
    assert sent.ok and got.data == b"s"
    for number in (first, second):
        close_set(job, [0, 2], number)
    assert [rank.sets() for rank in job.ranks] == before


def test_all_ranks_may_open_a_set_and_sets_close_without_anybody_waiting(job):
    number = open_set(job, [0, 1, 2])
    for rank in job.ranks:
        rank.ask("abandon", op=rank.submit("set_close", set=number))
    job.check_usable()
    for rank in job.ranks:
        assert rank.try_submit("barrier", process_set=number).status == Status.ERR_NOT_FOUND


def test_a_set_without_this_rank_or_of_others_making_is_refused(job):
    outcome = job.ranks[0].try_submit("set_open", ranks=[1, 2])
    assert outcome.status == Status.ERR_INVALID and "rank 0, this one, is not among the ranks" in outcome.text
    added, opened = job.add_set([0, 1]), open_set(job, [0, 1])
    assert job.ranks[0].try_submit("set_close", set=added).status == Status.ERR_INVALID
    assert job.ranks[0].try_submit("set_remove", set=opened).status == Status.ERR_INVALID
    close_set(job, [0, 1], opened)
    job.remove_set(added)


# ---- ends ----


@pytest.mark.parametrize("kind", ["send", "recv", "set_open"])
def test_a_killed_peer_fails_the_waiting_end(kind):
    with Daemon() as daemon:
        daemon.allow("rank-lost")
        job = Job(daemon, 2)
        rank = job.ranks[0]
        more = {"ranks": [0, 1]} if kind == "set_open" else {"root": 1, "dims": [4], "dtype": "uint8"}
        op = rank.submit(kind, **more)
        rank.post_wait(op)
        job.ranks[1].kill()
        outcome = rank.collect_outcome()
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 1
        assert f"rank 1 (pid {job.ranks[1].pid}) was killed by signal 9" in outcome.text
