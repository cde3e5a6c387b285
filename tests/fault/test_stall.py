# SPDX-License-Identifier: Apache-2.0
"""A trainer that is stopped: the stall table names tensor and rank, a warning is logged, and the job goes on."""
from hvt import Daemon, Status, stopped, wait_until
from hvt.job import Job


def test_a_stopped_trainer_is_named_with_its_tensor_and_the_job_continues():
    with Daemon(options={"stall-warn": "200ms"}) as daemon:
        job = Job(daemon, 3)
        with stopped(job.ranks[2].pid):
            ops = [rank.submit("allreduce", "layer1/w", dtype="float32", dims=[8]) for rank in job.ranks[:2]]
            rows = wait_until(lambda: daemon.ctl.json("stalls", job.name)["stalls"], "the stall to be listed")
            assert len(rows) == 1
            assert rows[0]["tensor"] == "layer1/w" and rows[0]["op"] == "allreduce" and rows[0]["job"] == job.name
            assert sorted(rows[0]["ready"]) == [0, 1]
            missing = rows[0]["missing"]
            assert [(row["rank"], row["pid"], row["process"]) for row in missing] == [(2, job.ranks[2].pid, "T")]
            line = daemon.expect_line("op-stalled", "layer1/w", 10)
            assert line.level == "warning" and "2" in line.text and job.name in line.raw
            ranks = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
            assert ranks[2]["process"] == "T" and ranks[2]["state"] == "attached"
            assert job.ranks[0].test(ops[0]).status == Status.INPROGRESS
        ops.append(job.ranks[2].submit("allreduce", "layer1/w", dtype="float32", dims=[8]))
        for rank, op in zip(job.ranks, ops):
            assert rank.outcome(op).ok
        assert not daemon.ctl.json("stalls", job.name)["stalls"]
        job.check_usable()


def test_a_rank_that_never_came_is_missing_as_absent(daemon):
    rank = daemon.rank()
    rank.open("forming", 0, 2)
    op = rank.submit("barrier", "start")
    rows = wait_until(lambda: daemon.ctl.json("stalls")["stalls"], "the op to be listed")
    assert rows[0]["missing"] == [{"rank": 1, "pid": 0, "process": "absent", "waits_in": ""}]
    second = daemon.rank()
    second.open("forming", 1, 2)
    last = second.submit("barrier", "start")
    assert rank.outcome(op).ok and second.outcome(last).ok


def test_an_idle_job_has_no_stalls_and_no_warnings():
    with Daemon(options={"stall-warn": "100ms"}) as daemon:
        job = Job(daemon, 2)
        job.check_usable()
        assert not daemon.ctl.json("stalls")["stalls"]


def test_a_killed_stopped_trainer_is_lost_at_once(daemon):
    job = Job(daemon, 2)
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    with stopped(job.ranks[1].pid):
        job.ranks[1].kill()
        outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_RANK_LOST and "SIGKILL" in outcome.text
    daemon.expect_line("rank-lost")


def test_a_stopped_client_that_reads_no_completions_does_not_hold_up_the_others(daemon):
    job, other = Job(daemon, 2), Job(daemon, 2)
    ops = []
    for number in range(2000):
        ops.append([rank.submit("barrier", f"b{number}") for rank in job.ranks])
    with stopped(job.ranks[1].pid):
        for op, _ in ops:
            assert job.ranks[0].outcome(op).ok
        other.check_usable()
    for _, op in ops:
        assert job.ranks[1].outcome(op).ok
