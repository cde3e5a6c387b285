# SPDX-License-Identifier: Apache-2.0
"""A trainer that is stopped: the stall table names tensor and rank, a warning is logged, and the job goes on, or not."""
import re
import subprocess
import time

from hvt import Daemon, Status, check_prompt, program, stopped, wait_until
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
            age_ms = int(line.pairs["age_ms"])
            assert age_ms >= 200, line
            check_prompt("the warning came after stall-warn", (age_ms - 200) * 1_000_000, 100_000_000)
            ranks = {row["rank"]: row for row in daemon.ctl.json("ranks", job.name)["ranks"]}
            assert ranks[2]["process"] == "T" and ranks[2]["state"] == "attached"
            assert job.ranks[0].test(ops[0]).status == Status.INPROGRESS
        ops.append(job.ranks[2].submit("allreduce", "layer1/w", dtype="float32", dims=[8]))
        for rank, op in zip(job.ranks, ops):
            assert rank.outcome(op).ok
        assert not daemon.ctl.json("stalls", job.name)["stalls"]
        job.check_usable()


def test_the_default_is_a_minute():
    done = subprocess.run([program("hvdd"), "--print-config"], capture_output=True, text=True, check=True)
    assert re.search(r"^stall-warn = (60s|1m)$", done.stdout, re.MULTILINE), done.stdout


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
        daemon.allow("op-stalled")  # a busy machine may take longer over that op
        before = len(daemon.lines("op-stalled"))
        time.sleep(0.5)  # not a wait: a while in which nothing must come
        assert not daemon.ctl.json("stalls")["stalls"]
        assert len(daemon.lines("op-stalled")) == before


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
        if number % 500 == 499:  # the rings take 1024: let the engine catch up
            assert job.ranks[0].wait(ops[-1][0]).ok
    with stopped(job.ranks[1].pid):
        for op, _ in ops:
            assert job.ranks[0].outcome(op).ok
        other.check_usable()
    for _, op in ops:
        assert job.ranks[1].outcome(op).ok


def job_with(daemon, size, **settings):
    """A job whose ranks have these HVD_* settings."""
    return Job(daemon, size, environment={f"HVD_{name}": value for name, value in settings.items()})


def test_every_rank_is_told_of_a_stall(daemon):
    daemon.allow("op-stalled")
    job = job_with(daemon, 3, STALL_CHECK_TIME_SECONDS="0.5")
    with stopped(job.ranks[2].pid):
        ops = [rank.submit("allreduce", "layer1/w", dtype="float32", dims=[8]) for rank in job.ranks[:2]]
        for rank, op in zip(job.ranks, ops):
            text = wait_until(lambda rank=rank, op=op: rank.wait(op, seconds=0.2).status == Status.ERR_TIMEOUT and rank.log(),
                              "the warning")[0]
            assert text.startswith("One or more tensors were submitted to be reduced, gathered or broadcasted by subset")
            assert f"\nMissing ranks:\n2: [layer1/w] (pid {job.ranks[2].pid}, stopped)" in text, text
    ops.append(job.ranks[2].submit("allreduce", "layer1/w", dtype="float32", dims=[8]))
    for rank, op in zip(job.ranks, ops):
        assert rank.outcome(op).ok


def test_fail_op_fails_the_op_with_the_missing_ranks_and_the_job_goes_on(daemon):
    daemon.allow("op-stalled", "op-failed")
    job = job_with(daemon, 3, STALL_CHECK_TIME_SECONDS="0.5", STALL_SHUTDOWN_TIME_SECONDS="1.5", STALL_POLICY="fail-op")
    with stopped(job.ranks[2].pid):
        ops = [rank.submit("allreduce", "w", dtype="float32", dims=[8]) for rank in job.ranks[:2]]
        for rank, op in zip(job.ranks, ops):
            outcome = rank.outcome(op)
            assert outcome.status == Status.ERR_STALLED and outcome.culprit == 2
            assert re.match(r"allreduce 'w' has waited \d+\.\d s for "
                            rf"rank 2 \(pid {job.ranks[2].pid}, stopped\)", outcome.text), outcome
            assert "more than the 1.5 s that HVD_STALL_POLICY=fail-op allows" in outcome.text, outcome
    job.check_usable()


def test_stop_job_ends_the_job_as_horovod_does(daemon):
    daemon.allow("op-stalled", "stall-stops-job", "rank-ended", "rank-lost")
    job = job_with(daemon, 2, STALL_CHECK_TIME_SECONDS="0.1", STALL_SHUTDOWN_TIME_SECONDS="0.3")
    op = job.ranks[0].submit("barrier", "gate")
    outcome = job.ranks[0].wait(op)
    assert outcome.status == Status.ERR_JOB_STOPPED
    said = re.search(rf"barrier 'gate' has waited (\d+\.\d) s for rank 1 \(pid {job.ranks[1].pid}, (sleeping|running)\)",
                     outcome.text)
    assert said and float(said[1]) >= 0.3, outcome
    wait_until(lambda: job.ranks[1].state().status == Status.ERR_JOB_STOPPED, "the idle rank to be told")


def test_two_ranks_that_wait_for_each_other_can_be_told_apart(daemon):
    job = Job(daemon, 2)
    ops = [rank.submit("barrier", name) for rank, name in zip(job.ranks, "ab")]
    rows = wait_until(lambda: len(rows := daemon.ctl.json("stalls", job.name)["stalls"]) == 2 and rows, "both to wait")
    assert {row["tensor"]: row["missing"][0]["waits_in"] for row in rows} == {"a": "barrier 'b'", "b": "barrier 'a'"}
    assert "sleeping (S) in barrier 'b'" in daemon.ctl.run("stalls").stdout
    ops += [rank.submit("barrier", name) for rank, name in zip(job.ranks, "ba")]
    assert all(rank.outcome(op).ok for rank, op in zip(job.ranks * 2, ops))
