# SPDX-License-Identifier: Apache-2.0
"""Death and standstill between any two steps of a small op that the ranks do themselves (docs/adr/0005): nobody waits for
ever, nobody gets a wrong result, and all survivors get the same one."""
import os
import signal
import time

import pytest

from hvt import Status, arith, check_prompt, procs, wait_until
from hvt.job import Job

ROW = arith.DTYPES["int32"]
NAMES = ["express", None]  # None: unnamed ops, which meet by their number
# Who comes last does the op: the steps only it passes, and those that everybody passes.
EVERYBODYS = ["slot-before-arrival", "slot-arrived", "slot-before-copy"]
THE_LASTS = ["slot-before-combining", "slot-before-publishing", "slot-published"]
NTH = 4
DEADLINE_NS = 100_000_000


def inputs(size: int, number: int) -> list[bytes]:
    return [arith.pack(ROW, [number * 10 + rank, rank]) for rank in range(size)]


def post(job: Job, rank: int, name: str | None, number: int) -> None:
    job.ranks[rank].post_submit("allreduce", name, dtype="int32", dims=[2], data=inputs(job.size, number)[rank],
                                reduce_op="sum")


def submit(job: Job, rank: int, name: str | None, number: int) -> int:
    return job.ranks[rank].submit("allreduce", name, dtype="int32", dims=[2], data=inputs(job.size, number)[rank],
                                  reduce_op="sum")


def check_sum(job: Job, outcome, number: int) -> None:
    assert outcome.status == Status.OK, outcome
    assert outcome.data == arith.allreduce(ROW, "sum", inputs(job.size, number)), outcome


def go_round(job: Job, name: str | None, number: int, victim: int, last: bool) -> None:
    """One op of which everybody gets the right sum; the victim submits first or last."""
    others = [rank for rank in range(job.size) if rank != victim]
    order = [*others, victim] if last else [victim, *others]
    ops = {rank: submit(job, rank, name, number) for rank in order}
    for rank, op in ops.items():
        job.ranks[rank].post_wait(op, want_output=True)
    for rank, op in ops.items():
        check_sum(job, job.ranks[rank].collect_outcome(), number)
        job.ranks[rank].free(op)


def job_with_victim(daemon, size: int, victim: int, step: str, number: int) -> Job:
    """The NTH time the victim passes the step, the signal is raised."""
    return Job(daemon, size, environments={victim: {"HVT_STEP": f"{step} {NTH} {int(number)}"}})


def has_happened(job: Job, victim: int) -> bool:
    """The victim is dead or stopped, and has not answered."""
    pid = job.ranks[victim].pid
    wait_until(lambda: job.ranks[victim].has_reply() or procs.state(pid) in ("T", "Z", "X"),
               "the victim to answer, to stop or to die")
    return procs.state(pid) in ("T", "Z", "X")


def run_until_it_happens(job: Job, victim: int, last: bool, name: str | None) -> tuple[int, dict[int, int], int]:
    """Rounds of which everybody gets the right sum, up to the one in which it happens: its number, the others' ops, which
    they wait for, and the time from when on they can learn of it. The victim submits first or last. (A round that takes
    long goes through the engine and passes no step.)"""
    others = [rank for rank in range(job.size) if rank != victim]
    for number in range(100):
        ops = {}
        if not last:
            post(job, victim, name, number)
            wait_until(lambda: job.ranks[victim].has_reply() or procs.state(job.ranks[victim].pid) in ("T", "Z", "X"),
                       "the victim to come first")
        began_ns = time.monotonic_ns()
        for rank in others:
            ops[rank] = submit(job, rank, name, number)
            job.ranks[rank].post_wait(ops[rank], want_output=True)
        if last:
            post(job, victim, name, number)
        if has_happened(job, victim):
            return number, ops, job.daemon.step_ns(job.ranks[victim]) if last else began_ns
        ops[victim] = job.ranks[victim].collect_outcome().op
        job.ranks[victim].post_wait(ops[victim], want_output=True)
        for rank, op in ops.items():
            check_sum(job, job.ranks[rank].collect_outcome(), number)
            job.ranks[rank].free(op)
    raise AssertionError("the step was never passed: no op was done in a slot")


CASES = [(step, last) for step in EVERYBODYS for last in (False, True)] + [(step, True) for step in THE_LASTS]
CASES.remove(("slot-before-copy", False))  # it copies when it is told to wait: the others are done by then


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step, last", CASES)
def test_killed_at_a_step(daemon, size, step, last, name):
    daemon.allow("rank-lost")
    victim = size - 1
    job = job_with_victim(daemon, size, victim, step, signal.SIGKILL)
    number, ops, began_ns = run_until_it_happens(job, victim, last, name)
    outcomes = [job.ranks[rank].collect_outcome() for rank in ops]
    assert len({outcome.status for outcome in outcomes}) == 1, outcomes
    published = step in ("slot-published", "slot-before-copy")
    for outcome in outcomes:
        if published:
            check_sum(job, outcome, number)
            continue
        if step != "slot-before-arrival" and outcome.status == Status.OK:  # it has said all it had to say
            check_sum(job, outcome, number)
            continue
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == victim, outcome
        assert f"signal {int(signal.SIGKILL)}" in outcome.text, outcome
        check_prompt("the others learned of it", outcome.at_ns - began_ns, DEADLINE_NS)
    late = job.ranks[0].submit("allreduce", "late", dtype="int32", dims=[2])
    assert job.ranks[0].outcome(late).status == Status.ERR_RANK_LOST


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step, last", CASES)
def test_stopped_at_a_step(daemon, step, last, name):
    """A standstill is no death: nobody fails, and everybody gets the right sum in the end. What a stopped rank has already
    brought is enough for the others."""
    size, victim = 3, 2
    job = job_with_victim(daemon, size, victim, step, signal.SIGSTOP)
    number, ops, began_ns = run_until_it_happens(job, victim, last, name)
    pid = job.ranks[victim].pid
    if step == "slot-before-arrival":
        wait_until(lambda: (name or "allreduce.noname") in daemon.ctl.run("stalls", "--min-age", "0").stdout, "the op to be in the stall table")
        os.kill(pid, signal.SIGCONT)
    outcomes = [job.ranks[rank].collect_outcome() for rank in ops]
    for outcome in outcomes:
        check_sum(job, outcome, number)
        if step != "slot-before-arrival":
            check_prompt("the others got the sum without it", outcome.at_ns - began_ns, DEADLINE_NS)
    os.kill(pid, signal.SIGCONT)
    victim_op = job.ranks[victim].collect_outcome().op
    check_sum(job, job.ranks[victim].outcome(victim_op), number)
    for rank, op in ops.items():
        job.ranks[rank].free(op)
    for more in range(1, 4):
        go_round(job, name, number + more, victim, last)

