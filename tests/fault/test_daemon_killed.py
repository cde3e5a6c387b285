# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of hvdd: running jobs go on, and a new hvdd in the same directory takes them over."""
import os
import signal
import time

from hvt import Daemon, Status, check_prompt, procs, scaled, wait_until
from hvt.job import Job


def restart(daemon: Daemon) -> None:
    daemon.start()


def test_a_running_job_goes_on_without_the_daemon_and_is_found_again_by_a_new_one(daemon):
    job = Job(daemon, 3)
    before = daemon.jobs()[0]
    for rank in job.ranks:
        rank.post("loop", name="steady", for_ms=int(scaled(60) * 1000), until_stdin=True)
    daemon.kill()
    assert procs.state(before["engine_pid"]) in "RSD"
    outcome = daemon.rank().try_open("new", 0, 1, timeout_ms=500)
    assert outcome.status == Status.ERR_NO_DAEMON, outcome
    restart(daemon)
    ready_ns = time.monotonic_ns()
    after = wait_until(daemon.jobs, "the engine to say hello to the new daemon")
    check_prompt("the new hvdd knew of the job", time.monotonic_ns() - ready_ns, 350_000_000)
    assert len(after) == 1
    for name in ("job", "uid", "size", "engine_pid", "generation"):
        assert after[0][name] == before[name], name
    assert after[0]["attached"] == 3
    rows = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
    assert {rank: row["pid"] for rank, row in rows.items()} == {n: rank.pid for n, rank in enumerate(job.ranks)}
    assert all(row["state"] == "attached" for row in rows.values())
    fresh = Job(daemon, 2)
    fresh.check_usable()
    for rank in job.ranks:
        rank.post("stop")
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > 0
        rank.collect()
    job.check_usable()


def test_a_rank_that_comes_before_the_engine_has_said_hello_meets_its_peers(daemon):
    first, second, alone = (daemon.rank() for _ in range(3))
    first.open("half", 0, 2)
    engine = daemon.jobs()[0]["engine_pid"]
    os.kill(engine, signal.SIGSTOP)
    daemon.kill()
    restart(daemon)
    second.post("open", job="half", rank=1, size=2)
    alone.post("open", job="other", rank=0, size=1)
    asked_ns = time.monotonic_ns()
    time.sleep(0.1)
    os.kill(engine, signal.SIGCONT)
    assert second.collect()["status"] == Status.OK
    assert alone.collect()["status"] == Status.OK
    check_prompt("a job whose engine is no earlier hvdd's began", time.monotonic_ns() - asked_ns, 500_000_000)
    assert [job["engine_pid"] for job in daemon.jobs() if job["job"] == "half"] == [engine]
    ops = [rank.submit("barrier", "met") for rank in (first, second)]
    for rank, op in zip((first, second), ops):
        assert rank.outcome(op).ok


def test_the_rules_of_attach_hold_for_a_recovered_job(daemon):
    daemon.allow("attach-refused")
    first = daemon.rank()
    first.open("half", 0, 2, key="k")
    daemon.kill()
    restart(daemon)
    wait_until(daemon.jobs, "the job to come back")
    assert daemon.rank().try_open("half", 0, 2, key="k").status == Status.ERR_DUPLICATE_RANK
    assert daemon.rank().try_open("half", 1, 3, key="k").status == Status.ERR_BAD_SIZE
    assert daemon.rank().try_open("half", 1, 2, key="wrong").status == Status.ERR_REFUSED
    second = daemon.rank()
    second.open("half", 1, 2, key="k")
    ops = [rank.submit("barrier", "met") for rank in (first, second)]
    for rank, op in zip((first, second), ops):
        assert rank.outcome(op).ok


def test_a_rank_that_dies_while_the_daemon_is_away_is_lost_to_its_peers_and_to_the_new_daemon(daemon):
    job = Job(daemon, 2)
    daemon.kill()
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    job.ranks[1].kill()
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and "SIGKILL" in outcome.text
    restart(daemon)
    wait_until(daemon.jobs, "the job to come back")
    rows = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
    assert rows[1]["state"] == "lost" and rows[0]["state"] == "attached"
    daemon.expect_line("rank-lost")


def test_an_engine_whose_ranks_leave_while_the_daemon_is_away_exits(daemon):
    job = Job(daemon, 2)
    engines = daemon.engines()
    daemon.kill()
    job.close()
    wait_until(lambda: not daemon.engines(), f"the engine {engines} to exit")
    restart(daemon)
    assert not daemon.jobs()


def test_job_stop_reaches_a_recovered_job(daemon):
    job = Job(daemon, 2)
    daemon.kill()
    restart(daemon)
    wait_until(daemon.jobs, "the job to come back")
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    daemon.ctl.json("job", "stop", job.name)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_JOB_STOPPED, outcome
    daemon.allow("job-stopped", "session-ended", "rank-ended")
