# SPDX-License-Identifier: Apache-2.0
"""Opening, closing, meeting again; several sessions in a process and several jobs on a daemon."""
import time

import pytest

from hvt import Daemon, Status, arith, check_prompt, procs, sanitized, wait_until
from hvt.job import Job
from hvt.rank import open_job

INT32 = arith.DTYPES["int32"]


def test_three_hundred_cycles_leak_no_descriptor_no_mapping_and_no_memory(daemon):
    ranks = [daemon.rank() for _ in range(2)]

    def cycle(turn: int) -> None:
        open_job(ranks, "cycles")
        ops = [rank.submit("allreduce", f"c{turn}", dtype="int32", dims=[2000], memory="malloc", reduce_op="sum")
               for rank in ranks]
        for rank, op in zip(ranks, ops):
            outcome = rank.outcome(op, want_output=False)
            assert outcome.ok, (turn, outcome)
        for rank in ranks:
            rank.close()

    for turn in range(20):
        cycle(turn)
    before = [(len(procs.fds(rank.pid)), procs.map_count(rank.pid), procs.rss_bytes(rank.pid)) for rank in ranks]
    daemon_before = procs.rss_bytes(daemon.pid)
    for turn in range(280):
        cycle(turn)
    for rank, (fds, maps, rss) in zip(ranks, before):
        assert len(procs.fds(rank.pid)) <= fds, procs.fds(rank.pid)
        assert not procs.memfds(rank.pid)
        if not sanitized():  # their allocators keep what was freed
            assert procs.map_count(rank.pid) <= maps + 2
            assert procs.rss_bytes(rank.pid) <= rss + (1 << 20)
    assert sanitized() or procs.rss_bytes(daemon.pid) <= daemon_before + (2 << 20)


def test_a_rank_that_reopens_early_waits_for_the_others_in_the_next_generation(daemon):
    ranks = [daemon.rank() for _ in range(3)]
    open_job(ranks, "again")
    ranks[0].close()
    ranks[0].open("again", 0, 3)
    early = ranks[0].submit("barrier", "met")
    assert ranks[0].wait(early, 0.05).status == Status.ERR_TIMEOUT
    assert len(daemon.jobs()) == 2
    for number in (1, 2):
        ranks[number].close()
        ranks[number].open("again", number, 3)
    others = [rank.submit("barrier", "met") for rank in ranks[1:]]
    for rank, op in zip(ranks, [early, *others]):
        assert rank.outcome(op).ok
    wait_until(lambda: len(daemon.jobs()) == 1, "the old generation to end")


def test_a_rank_that_comes_late_begins_where_the_others_have_begun():
    with Daemon(options={"engine-linger": "50ms"}) as daemon:
        early, late = daemon.rank(), daemon.rank()
        early.open("late", 0, 2)
        early.close()
        time.sleep(0.4)  # nobody is attached for longer than that time
        for rank, number in ((early, 0), (late, 1)):
            rank.open("late", number, 2)
        late.close()
        late.open("late", 1, 2)
        ops = [rank.submit("barrier", "met") for rank in (early, late)]
        assert all(rank.outcome(op).ok for rank, op in zip((early, late), ops))


def test_a_rank_that_leaves_fails_the_ops_that_wanted_it_and_the_others_can_meet_again(daemon):
    job = Job(daemon, 3)
    ops = [rank.submit("allreduce", "wanted", dtype="int32", dims=[1]) for rank in job.ranks[:2]]
    for rank, op in zip(job.ranks, ops):
        rank.post_wait(op)
    began_ns = time.monotonic_ns()
    job.ranks[2].close()
    for rank in job.ranks[:2]:
        outcome = rank.collect_outcome()
        assert outcome.status == Status.ERR_RANK_LEFT, outcome
        check_prompt("the others learned of it", outcome.at_ns - began_ns, 100_000_000)
        assert outcome.culprit == 2
        assert "2" in outcome.text
    later = job.ranks[0].submit("barrier", "later")
    assert job.ranks[0].outcome(later).status == Status.ERR_RANK_LEFT
    for number in (0, 1):
        job.ranks[number].close()
    open_job(job.ranks, job.name)
    job.check_usable()


@pytest.mark.parametrize("size, elements", [(1, 1), (1, 300_000), (2, 1), (2, 300_000)])
def test_closing_with_ops_that_are_ready_or_in_the_middle_is_clean(daemon, size, elements):
    daemon.allow("op-failed")
    for turn in range(10 if sanitized() else 30):
        ranks = [daemon.rank() for _ in range(size)]
        open_job(ranks, f"hasty{turn}")
        for rank in ranks:
            for number in range(3):
                rank.post("submit", kind="allreduce", name=f"x{number}", dtype=INT32.number, dims=[elements],
                          memory="malloc", reduce_op=1)
            rank.post("close", session=0)
        for rank in ranks:
            replies = [rank.collect() for _ in range(4)]
            assert replies[-1]["status"] == Status.OK, replies
            rank.stop()
            daemon.ranks.remove(rank)


def test_a_finished_job_leaves_the_table(daemon):
    job = Job(daemon, 2)
    assert [row["job"] for row in daemon.jobs()] == [job.name]
    job.close()
    wait_until(lambda: not daemon.jobs(), "the job to leave the table")
    assert daemon.ctl.run("ranks", job.name).returncode == 1


def test_one_process_holds_several_ranks_and_two_processes_several_jobs(daemon):
    one = daemon.rank()
    for number in range(4):
        assert one.open("inside", number, 4, session=number)["rank"] == number
    ops = [one.submit("allreduce", "x", session=number, dtype="int32", dims=[1], data=arith.pack(INT32, [number]),
                      reduce_op="sum") for number in range(4)]
    for op in ops:
        assert one.outcome(op).data == arith.pack(INT32, [6])
    other = Job(daemon, 2, name="outside")
    other.check_usable()
    for number in (2, 0, 3, 1):
        one.close(session=number)
    other.check_usable()


def test_two_jobs_with_the_same_tensor_names_do_not_meet(daemon):
    first, second = Job(daemon, 2, name="a"), Job(daemon, 2, name="b")
    half = [first.ranks[0].submit("barrier", "same"), second.ranks[0].submit("barrier", "same")]
    assert first.ranks[0].wait(half[0], 0.05).status == Status.ERR_TIMEOUT
    ops = [first.ranks[1].submit("barrier", "same"), second.ranks[1].submit("barrier", "same")]
    for job, op, last in zip((first, second), half, ops):
        assert job.ranks[0].outcome(op).ok and job.ranks[1].outcome(last).ok


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(daemon):
    job = Job(daemon, 2)
    reply = job.ranks[0].ask("forked")
    assert reply["status"] == Status.ERR_FORKED, reply
    job.check_usable()


def test_an_attached_rank_is_shown_with_its_work(daemon):
    job = Job(daemon, 2)
    for _ in range(5):
        job.run("allreduce", dtype="float32", dims=[1000], reduce_op="sum")
    rows = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
    assert set(rows) == {0, 1}
    for number, rank in enumerate(job.ranks):
        assert rows[number]["pid"] == rank.pid
        assert rows[number]["state"] == "attached"
        assert rows[number]["ops"] == 5
        assert rows[number]["bytes"] == 5 * 4000
        assert rows[number]["origin"] == "arguments"
    status = daemon.ctl.json("status")["daemon"]
    assert status["jobs"] == 1 and status["sessions"] == 2 and status["attaches"] == 2


def test_memory_that_an_op_uses_is_busy_and_is_given_back_with_the_session(daemon):
    job = Job(daemon, 2)
    rank = job.ranks[0]
    memory = rank.ask("alloc", bytes=1 << 20)
    assert memory["status"] == Status.OK
    rows = daemon.ctl.json("ranks", job.name)["ranks"]
    assert rows[0]["region_bytes"] >= 1 << 20 > rows[1]["region_bytes"]
    assert rank.ask("unalloc", memory=memory["memory"])["status"] == Status.OK
    assert not rank.ask("alloc", bytes=4096)["status"]
    rank.close()
    assert not procs.memfds(rank.pid)


@pytest.mark.parametrize("stopped", [False, True], ids=["closed", "stopped"])
def test_memory_that_stays_is_not_written_to_after_the_session(daemon, stopped):
    """Under ops that take some time the session is over, and what hvd_mem_alloc gave is used for something else."""
    daemon.allow("rank-left", "job-stopped")
    elements, ops = (4 << 20, 6 if stopped else 3) if "thread" in sanitized() else (16 << 20, 3)  # which take some tenths of a second
    interrupted = turn = 0
    while turn < 3 or (stopped and not interrupted and turn < 6):
        elements <<= turn >= 3  # the stop has come too late
        more = {"dtype": "float32", "dims": [elements], "memory": "lasting", "reduce_op": "sum"}
        ranks = [daemon.rank() for _ in range(2)]
        open_job(ranks, f"stays{turn}")
        for number in range(ops):
            ranks[1].submit("allreduce", f"big{number}", **more)
        last = [ranks[0].submit("allreduce", f"big{number}", **more) for number in range(ops)][-1]
        if stopped:
            assert daemon.ctl.run("job", "stop", f"stays{turn}").returncode == 0
            interrupted += not ranks[0].wait(last, 20).ok
        ranks[0].post("close", session=0, watch=True)
        reply = ranks[0].collect()
        assert reply["status"] == Status.OK and reply["wrong"] == 0, (turn, reply)
        daemon.close_ranks()
        turn += 1
    assert interrupted > 0 or not stopped, "every job was stopped too late"
