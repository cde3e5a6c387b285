# SPDX-License-Identifier: Apache-2.0
"""Death and standstill between any two steps of a large op that the ranks do in each other's memory (docs/adr/0011): nobody
waits for ever, nobody gets a wrong result, and all survivors get the same one. The ranks go round and round, and each
checks every sum it gets."""
import json
import os
import signal
import subprocess
import time

import pytest

from hvt import Status, check_prompt, procs, scaled, wait_until
from hvt.job import Job

NAMES = ["large", ""]  # "": unnamed ops
ELEMENTS = 64 * 1024  # 256 KiB: 16 units
# What only the last to come passes, and what everybody passes who waits.
THE_LASTS = ["medium-before-start", "medium-started"]
EVERYBODYS = ["medium-claimed", "medium-reduced", "medium-finished"]
WITH_A_UNIT = ["medium-claimed", "medium-reduced"]
NTH = 40
NTH_LAST = 4  # nobody need come last often
DEADLINE_NS = 100_000_000
UNIT = 64 * 1024


def go_round(job: Job, name: str, memory: str = "shared", keep: bool = False) -> None:
    for rank in job.ranks:
        rank.post("loop", name=name, elements=ELEMENTS, memory=memory, for_ms=120_000, until_stdin=True, keep=keep)


def job_with_victim(daemon, size: int, step: str, number: int) -> tuple[Job, int]:
    """The NTH time the victim passes the step, the signal is raised."""
    victim = size - 1
    nth = NTH_LAST if step in THE_LASTS else NTH
    return Job(daemon, size, environments={victim: {"HVT_STEP": f"{step} {nth} {int(number)}"}}), victim


def wait_until_it_happens(job: Job, victim: int) -> int:
    """When it did (CLOCK_MONOTONIC, ns)."""
    at_ns = job.daemon.step_ns(job.ranks[victim])
    pid = job.ranks[victim].pid
    wait_until(lambda: procs.state(pid) in ("T", "Z", "X"), "the victim to be stopped or dead", 20)
    return at_ns


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", THE_LASTS + EVERYBODYS)
def test_killed_at_a_step(daemon, size, step, name):
    daemon.allow("rank-lost")
    job, victim = job_with_victim(daemon, size, step, signal.SIGKILL)
    go_round(job, name)
    began_ns = wait_until_it_happens(job, victim)
    replies = [job.ranks[rank].collect() for rank in range(size) if rank != victim]
    for reply in replies:
        assert reply["status"] == Status.ERR_RANK_LOST, reply
        assert f"signal {int(signal.SIGKILL)}" in reply["text"], reply
        check_prompt("the others learned of it", reply["at_ns"] - began_ns, DEADLINE_NS)
    assert len({reply["done"] for reply in replies}) == 1, "an op ends the same way for all"
    assert replies[0]["done"] > 1, "the ops before were done"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", THE_LASTS + EVERYBODYS)
def test_stopped_at_a_step(daemon, step, name):
    """A standstill is no death. Who holds a unit is waited for, and the stall table says so; otherwise the op is done
    without him, and the next one waits."""
    daemon.allow("op-stalled")
    job, victim = job_with_victim(daemon, 3, step, signal.SIGSTOP)
    go_round(job, name)
    began_ns = wait_until_it_happens(job, victim)

    def row(min_age: str = "0.2") -> dict | None:
        for stall in daemon.ctl.json("stalls", "--min-age", min_age)["stalls"]:
            if [missing["rank"] for missing in stall["missing"]] == [victim]:
                return stall
        return None

    wait_until(lambda: row("0") is not None, "the op to be in the stall table", step=0.001)
    check_prompt("the op was in the stall table", time.monotonic_ns() - began_ns, DEADLINE_NS)
    seen = wait_until(row, "the op to have waited for 200 ms")
    assert seen and seen["missing"][0]["process"] == "T", seen
    assert seen["tensor"].startswith(name or "allreduce.noname."), seen
    assert (seen["missing"][0].get("waits_in") == "its part of the reduction") == (step in WITH_A_UNIT), seen
    os.kill(job.ranks[victim].pid, signal.SIGCONT)
    wait_until(lambda: row() is None, "the stall to be over")
    for rank in job.ranks:
        rank.post("stop")
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > 1, reply
        rank.collect()
    job.check_usable()


def test_a_stopped_rank_with_a_unit_is_warned_of(daemon):
    daemon.allow("op-stalled")
    environment = {"HVD_STALL_CHECK_TIME_SECONDS": "0.3"}
    job = Job(daemon, 3, environments={0: environment, 1: environment,
                                       2: environment | {"HVT_STEP": f"medium-claimed {NTH} {int(signal.SIGSTOP)}"}})
    go_round(job, "held")
    wait_until_it_happens(job, 2)
    wait_until(lambda: "op-stalled" in daemon.log_text() and "in the middle of its part" in daemon.log_text(),
               "the warning")
    assert f"allreduce 'held' waits for rank 2 (pid {job.ranks[2].pid}, stopped)" in daemon.log_text()
    os.kill(job.ranks[2].pid, signal.SIGCONT)
    for rank in job.ranks:
        rank.post("stop")
    for rank in job.ranks:
        assert rank.collect()["status"] == Status.OK
        rank.collect()


def test_a_stopped_rank_with_a_unit_stops_the_job_if_the_policy_says_so(daemon):
    daemon.allow("op-stalled", "stall-stops-job", "rank-lost", "engine-ended")
    environment = {"HVD_STALL_CHECK_TIME_SECONDS": "0.2", "HVD_STALL_SHUTDOWN_TIME_SECONDS": "0.5"}
    job = Job(daemon, 2, environments={0: environment,
                                       1: environment | {"HVT_STEP": f"medium-claimed {NTH} {int(signal.SIGSTOP)}"}})
    go_round(job, "held")
    wait_until_it_happens(job, 1)
    reply = job.ranks[0].collect()
    assert reply["status"] == Status.ERR_JOB_STOPPED, reply
    assert "in the middle of its part of the reduction" in reply["text"], reply
    job.ranks[1].kill()


def test_the_engine_dies_under_ranks_that_need_it_for_nothing(daemon):
    daemon.allow("engine-ended", "engine-killed")
    job = Job(daemon, 2)
    go_round(job, "steady")
    wait_until(lambda: daemon.ctl.json("ranks", job.name)["ranks"][0]["express"] > 20, "large ops to need no engine")
    pid = daemon.engine_of(job.name)
    began_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    for rank in job.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.ERR_ENGINE_LOST, reply
        check_prompt("the rank learned of it", reply["at_ns"] - began_ns, DEADLINE_NS)


def end_job(daemon, job: Job, how: str) -> Status:
    if how == "stopped":
        assert daemon.ctl.run("job", "stop", job.name).returncode == 0
        return Status.ERR_JOB_STOPPED
    os.kill(daemon.engine_of(job.name), signal.SIGKILL)
    return Status.ERR_ENGINE_LOST


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_rank_that_goes_on_after_the_job_is_over_writes_no_more_than_its_unit(daemon, how):
    daemon.allow("op-stalled", "engine-ended", "engine-killed", "job-stopped", "rank-lost", "rank-ended")
    job, victim = job_with_victim(daemon, 3, "medium-claimed", signal.SIGSTOP)
    go_round(job, "held", keep=True)
    wait_until_it_happens(job, victim)
    began_ns = time.monotonic_ns()
    expected = end_job(daemon, job, how)
    for rank in job.ranks[:victim]:
        reply = rank.collect()
        assert reply["status"] == expected, reply
        # The engine of a stopped job gives ranks a second to finish their units before it ends.
        check_prompt("the rank learned of it", reply["at_ns"] - began_ns, 1_100_000_000 if how == "stopped" else DEADLINE_NS)
    os.kill(job.ranks[victim].pid, signal.SIGCONT)
    reply = job.ranks[victim].collect()
    assert reply["status"] == expected, reply
    for rank in job.ranks[:victim]:
        written = rank.ask("kept")
        assert written["status"] == Status.OK and written["first"] >= 0, "the stopped rank had nothing to write"
        assert written["first"] // UNIT == written["last"] // UNIT, f"more than one unit of {UNIT} bytes: {written}"


BIG = 1 << 20  # bytes: 16 units


def submit_big(job: Job, rank: int, name: str | None, **more) -> int:
    return job.ranks[rank].submit("allreduce", name, dtype="uint8", dims=[BIG], pattern=1, reduce_op="sum", memory="malloc",
                                  **more)


STAGED = {"HVD_FOREIGN_MEMORY": "never"}  # so that the operands lie in regions that are used again
VICTIMS = STAGED | {"HVT_STEP": f"medium-claimed 4 {int(signal.SIGSTOP)}"}


def hold(daemon, name: str | None, in_a_set: bool = False) -> tuple[Job, dict[int, int], int]:
    """Rank 2 stands still with a unit of an op in its hands, of which ranks 0 and 1 have submitted theirs: these, and the
    process set."""
    daemon.allow("op-stalled")
    job = Job(daemon, 4 if in_a_set else 3, environments={rank: STAGED for rank in range(4)} | {2: VICTIMS})
    number = job.add_set([0, 1, 2]) if in_a_set else 0
    return job, hold_one(job, name, number), number


def hold_one(job: Job, name: str | None, number: int) -> dict[int, int]:
    """The ops of ranks 0 and 1 of the process set."""
    pid = job.ranks[2].pid
    for _ in range(500):
        ops = {2: submit_big(job, 2, name, process_set=number)}
        job.ranks[2].post("wait", op=ops[2], timeout_ms=20_000, pattern=3)
        for rank in (0, 1):
            ops[rank] = submit_big(job, rank, name, process_set=number)
        wait_until(lambda: job.ranks[2].has_reply() or procs.state(pid) == "T", "the victim to answer or to stop")
        if procs.state(pid) == "T":
            return {rank: ops[rank] for rank in (0, 1)}
        assert job.ranks[2].collect()["wrong"] == 0
        for rank in (0, 1):
            check_big(job, rank, ops[rank])
        for rank, op in ops.items():
            job.ranks[rank].free(op)
    raise AssertionError("the victim never took a unit")


def cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def let_go(job: Job) -> None:
    os.kill(job.ranks[2].pid, signal.SIGCONT)
    assert job.ranks[2].collect()["wrong"] == 0


def check_big(job: Job, rank: int, op: int) -> None:
    reply = job.ranks[rank].ask("wait", op=op, timeout_ms=10_000, pattern=3)
    assert reply["status"] == Status.OK and reply["wrong"] == 0, reply


def test_whoever_waits_for_one_of_several_that_is_held_up_rests_and_keeps_its_deadline(daemon):
    job, ops, _ = hold(daemon, "held")
    engine, = daemon.engines()
    before = cpu(engine) + cpu(job.ranks[0].pid)
    began_ns = time.monotonic_ns()
    reply = job.ranks[0].ask("wait_any", ops=[ops[0]], timeout_ms=1500)
    took_ns = reply["at_ns"] - began_ns
    assert reply["status"] == Status.ERR_TIMEOUT and took_ns >= 1_500_000_000, reply
    check_prompt("the wait ended after its deadline", took_ns - 1_500_000_000, DEADLINE_NS)
    used = cpu(engine) + cpu(job.ranks[0].pid) - before
    assert used * 1e9 < took_ns / 2, "nobody burns a core over an op that is held up"
    let_go(job)
    for rank, op in ops.items():
        check_big(job, rank, op)


def test_the_event_descriptor_wakes_for_an_op_that_was_held_up(daemon):
    job, ops, _ = hold(daemon, "held")
    assert not job.ranks[0].ask("event", timeout_ms=0)["readable"]
    job.ranks[0].post("event", timeout_ms=10_000)
    let_go(job)
    assert job.ranks[0].collect()["readable"]
    for rank, op in ops.items():
        check_big(job, rank, op)


def test_whoever_closes_while_another_stands_still_with_a_unit_is_told(daemon):
    """Memory of the session may still be written to; hvd_close does not wait for ever for that to end."""
    job, _, _ = hold(daemon, "held")
    began_ns = time.monotonic_ns()
    reply = job.ranks[0].ask("close", session=0)
    took_ns = time.monotonic_ns() - began_ns
    assert reply["status"] == Status.ERR_TIMEOUT and took_ns >= 1_000_000_000, reply
    check_prompt("hvd_close ended after its second", took_ns - 1_000_000_000, DEADLINE_NS)
    let_go(job)
    assert job.ranks[1].ask("close", session=0)["status"] == Status.OK


def test_a_liar_is_told_after_a_second_although_another_stands_still_with_a_unit(daemon):
    """Rank 3 is the liar. The others do their op in a set of theirs."""
    daemon.allow("op-stalled", "rank-ended", "session-ended", "rank-lost")
    job = Job(daemon, 0)
    job.ranks = [daemon.rank(environment=environment) for environment in (STAGED, STAGED, VICTIMS)]
    for number, rank in enumerate(job.ranks):
        rank.open(job.name, number, 4)
    opening = [rank.submit("set_open", ranks=[0, 1, 2]) for rank in job.ranks]
    opened = {rank.outcome(op).process_set for rank, op in zip(job.ranks, opening)}
    ops = hold_one(job, "held", min(opened))
    path, more = daemon.trainer("hvt-liar")
    liar = subprocess.Popen([path, f"--address={daemon.address}", f"--job={job.name}", "--lie=seq_gap", "--rank=3", "--size=4",
                             f"--wait-ms={int(scaled(10) * 1000)}"], stdout=subprocess.PIPE, text=True, **more)
    while liar.poll() is None:  # the engine answers all the time
        asked_ns = time.monotonic_ns()
        daemon.ctl.json("ranks", job.name)
        check_prompt("hvdctl was answered", time.monotonic_ns() - asked_ns, DEADLINE_NS)
        time.sleep(0.01)
    ended_ns = time.monotonic_ns()
    told = json.loads(liar.stdout.read())
    assert liar.returncode == 0 and told["status"] in (Status.ERR_PROTOCOL, 0), told
    assert ended_ns - told["lied_ns"] >= 1_000_000_000, "rank 2 may write to memory of the others"
    check_prompt("the liar was told", ended_ns - told["lied_ns"], 1_100_000_000)
    for rank, op in ops.items():
        outcome = job.ranks[rank].outcome(op)
        assert outcome.status == Status.ERR_RANK_LOST and outcome.culprit == 3, outcome
    os.kill(job.ranks[2].pid, signal.SIGCONT)
    assert job.ranks[2].collect()["status"] == Status.ERR_RANK_LOST


def test_killed_with_a_unit_of_an_op_whose_set_is_being_removed(daemon):
    daemon.allow("rank-lost")
    job, ops, number = hold(daemon, None, in_a_set=True)
    removals = {rank: job.ranks[rank].submit("set_remove", set=number) for rank in (0, 1)}
    job.ranks[2].kill()
    for rank in (0, 1):
        assert job.ranks[rank].outcome(ops[rank]).status == Status.ERR_RANK_LOST
        assert job.ranks[rank].outcome(removals[rank]).status == Status.ERR_RANK_LOST


@pytest.mark.parametrize("pause_us", [0, 60, 400])
def test_two_buffers_by_turns_and_ranks_that_come_late(daemon, pause_us):
    """Operands change from op to op while the engine looks on: whoever does not wait at once calls it."""
    job = Job(daemon, 3)
    for rank in job.ranks:
        rank.post("loop", name="", elements=20_000, memory="shared", count=3000, pause_us=pause_us, buffers=2)
    for rank in job.ranks:
        assert rank.collect(60)["status"] == Status.OK
