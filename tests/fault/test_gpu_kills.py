# SPDX-License-Identifier: Apache-2.0
"""Processes of a job on GPUs die or stop, in each of the states that an op has: nobody waits for them longer than docs/design/gpu.md
says, neither on the host nor in a stream."""
import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator

import pytest

from hvt import Status, arith, check_prompt, procs, sanitized, scaled, wait_until
from hvt.gpu import REAL, GpuDaemon, gpus, layouts, patient_gpus, there
from hvt.job import Job
from hvt.rank import Outcome

PROMISED_NS = 100_000_000
DRAINED_NS = 2_000_000_000
UNTOLD_NS = 1_100_000_000  # 1 s after the end of a worker's socket an engine no longer waits for hvdd's word
JOINED_NS = 2_600_000_000  # a worker whose engine is over gives a join up after 2 s, and ends
SILENCE_NS = 1_000_000_000  # gpu-silence, engine-silence and HVD_GPU_TIMEOUT_SECONDS, where a test has set them
DEFAULT_SILENCE_NS = 5_000_000_000  # of both options
INT32 = arith.DTYPES["int32"]
EXPECTED = ("op-failed", "rank-lost", "job-failed", "engine-killed", "engine-exited", "engine-ended", "engine-lost", "engine-silent",
            "worker-lost", "worker-ended", "worker-killed", "worker-state", "worker-silent", "comm-failed", "memory-refused", "no-hvdd", "failed")


class Case:
    """Three ranks, of which rank 2 dies or holds the others up: rank 0 waits on the host, rank 1 in a stream."""

    def __init__(self, daemon: GpuDaemon, gpu_of: list[int], **more):
        self.daemon, self.gpus = daemon, there(gpu_of)
        self.job = Job(daemon, 3, **more)
        self.streams = [rank.ask("stream", gpu=gpu)["stream"] for rank, gpu in zip(self.job.ranks, self.gpus)]
        self.ops: dict[int, int] = {}
        self.name = 0

    def submit(self, number: int) -> None:
        """The next allreduce in the rank's stream."""
        self.ops[number] = self.job.ranks[number].submit("allreduce", f"w{self.name}", **self.operands(number))

    def operands(self, number: int) -> dict:
        """Of the rank's next allreduce."""
        return {"dtype": "int32", "dims": [1000], "data": arith.pack(INT32, [number] * 1000), "reduce_op": "sum", "memory": "device",
                "gpu": self.gpus[number], "stream": self.streams[number]}

    def submit_without_wait(self, number: int) -> None:
        """The same op, which the rank tells of later: it may wait for the import of its memory."""
        self.job.ranks[number].post_submit("allreduce", f"w{self.name}", **self.operands(number))

    def ask(self, number: int, do: str, **more) -> dict:
        """A command about the rank's stream."""
        return self.job.ranks[number].ask(do, stream=self.streams[number], **more)

    def warm(self) -> None:
        """An op that all workers have done."""
        for number in range(3):
            self.submit(number)
        for number, rank in enumerate(self.job.ranks):
            outcome = rank.outcome(self.ops.pop(number))
            assert outcome.ok and outcome.data == arith.pack(INT32, [3] * 1000), outcome
        self.name += 1

    def wait(self, state: str) -> None:
        """Ranks 0 and 1 wait for an op in this state."""
        ranks = self.job.ranks
        if state == "gated":
            ranks[2].ask("gate", stream=self.streams[2])
        for number in (0, 1) if state == "missing" else (0, 1, 2):
            self.submit(number)
        ranks[1].ask("stream_wait", op=self.ops[1], stream=self.streams[1])
        ranks[0].post("wait", op=self.ops[0], timeout_ms=int(scaled(15) * 1000))
        ranks[1].post("drain", stream=self.streams[1], timeout_ms=int(scaled(15) * 1000))
        if state == "gated":
            time.sleep(0.02)

    def meet_again(self, keep: bool) -> None:
        """The next generation works. `keep`: with rank 2's process."""
        ranks = self.job.ranks
        if not keep:
            ranks[2] = self.daemon.rank()
            self.streams[2] = ranks[2].ask("stream", gpu=self.gpus[2])["stream"]
        for number, rank in enumerate(ranks):
            if keep or number < 2:
                wait_until(lambda who=rank: who.state().status < 0, "the rank to know of it")
                rank.close()
        for number, rank in enumerate(ranks):
            rank.post("open", job=self.job.name, rank=number, size=3)
        for rank in ranks:
            outcome = rank.collect_outcome()
            assert outcome.ok, outcome
        self.name += 1
        self.warm()

    def open_gate(self) -> None:
        """Rank 2's stream goes on."""
        self.job.ranks[2].ask("gate", stream=self.streams[2], open=True)


def hear_each(case: Case, status: Status, word: str = "") -> tuple[int, int]:
    """Rank 0 hears this, and rank 1's stream goes on: when."""
    host, stream = case.job.ranks[0].collect_outcome(), case.job.ranks[1].collect()
    assert host.status == status, host
    assert word in host.text, host.text
    assert stream["ended"], "the stream waits for ever"
    outcome = case.job.ranks[1].wait(case.ops[1])
    assert outcome.status == status, outcome
    return host.at_ns, stream["at_ns"]


def hear(case: Case, status: Status, word: str = "") -> int:
    """The same; when the later one did."""
    return max(hear_each(case, status, word))


def check(case: Case, at_ns: int, status: Status, word: str = "") -> None:
    """And in time."""
    check_prompt("the ranks heard and went on", hear(case, status, word) - at_ns, PROMISED_NS)


def kill(pid: int, number: int = signal.SIGKILL) -> int:
    at_ns = time.monotonic_ns()
    os.kill(pid, number)
    return at_ns


def end(pid: int) -> int:
    """Kills a process that has a GPU. When its end can be known: a real driver takes a third of a second for it."""
    descriptor = os.pidfd_open(pid)
    at_ns = kill(pid)
    if REAL:
        select.select([descriptor], [], [], 10)
        at_ns = time.monotonic_ns()
    os.close(descriptor)
    return at_ns


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[int]:
    at_ns = kill(pid, signal.SIGSTOP)
    try:
        yield at_ns
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module", name="daemon")
def one_daemon():
    with gpus("devices=2", *EXPECTED, gpu_idle="1s") as running:
        yield running


def rows(case: Case) -> list[dict]:
    """Of the workers that it uses."""
    return [row for row in case.daemon.ctl.json("gpus")["gpus"] if row["job"] == case.job.name and row["state"] == "up"]


def engine(case: Case) -> int:
    return case.daemon.engine_of(case.job.name)


def victims(case: Case, who: str) -> list[int]:
    """The processes that a kill of these ends: "worker" is the one of rank 2, "both" are the engine and the workers."""
    if who == "trainer":
        return [case.job.ranks[2].pid]
    workers = [row["pid"] for row in sorted(rows(case), key=lambda row: row["gpu"])]
    return {"engine": [engine(case)], "worker": workers[:1], "both": [engine(case), *workers]}[who]


LAYOUTS = [[0, 1, 0]] if sanitized() else layouts([0, 0, 0], [0, 1, 0])  # of ranks on GPUs


@pytest.fixture(name="case", params=LAYOUTS, ids=str)
def make_case(daemon, request):
    case = Case(daemon, request.param)
    case.warm()
    yield case
    case.job.close()


@pytest.fixture(name="pair")
def make_pair(daemon):
    """The same, on two GPUs alone."""
    case = Case(daemon, there([0, 1, 0]))
    case.warm()
    yield case
    case.job.close()


STATES = ("missing", "gated")


# ---- SIGKILL ----


@pytest.mark.parametrize("state", STATES)
def test_a_trainer_is_killed(case, state):
    before = sorted(row["pid"] for row in rows(case))
    case.wait(state)
    check(case, case.job.ranks[2].kill(), Status.ERR_RANK_LOST, "rank 2")
    case.meet_again(keep=False)
    assert sorted(row["pid"] for row in rows(case)) == before, "the workers did not stay"


@pytest.mark.parametrize("state", STATES)
def test_a_worker_is_killed(case, state):
    victim = rows(case)[0]
    case.wait(state)
    check(case, end(victim["pid"]), Status.ERR_WORKER_LOST, f"pid {victim['pid']}) was killed by signal 9")
    wait_until(lambda: case.job.ranks[2].state().status == Status.ERR_WORKER_LOST, "the idle rank to hear of it")
    assert victim["gpu"] in case.job.ranks[2].state().text
    if state == "gated":
        case.open_gate()
    case.meet_again(keep=True)


@pytest.mark.parametrize("state", STATES)
def test_an_engine_is_killed(case, state):
    before = sorted(row["pid"] for row in rows(case))
    case.wait(state)
    check(case, kill(engine(case)), Status.ERR_ENGINE_LOST)
    if state == "gated":
        case.open_gate()
    case.meet_again(keep=True)
    assert sorted(row["pid"] for row in rows(case)) == before, "the workers did not stay"


DELAY_NS = 40_000_000
BEGUN_NS = 60_000_000
LEFT_NS = 7 * DELAY_NS - BEGUN_NS  # a stream has two calls of waits, two kernels around NCCL, and two of words, at most


@pytest.fixture(scope="module", name="slow")
def slow_daemon():
    with gpus("devices=2", *EXPECTED, faults=f"hvdd-gpu/delay@{DELAY_NS // 1000}", gpu_idle="1s") as running:
        yield running


RUNNING = {
    "worker": (lambda case: rows(case)[0]["pid"], Status.ERR_WORKER_LOST),
    "engine": (engine, Status.ERR_ENGINE_LOST),
}


def warm_case(slow: GpuDaemon, gpu_of: list[int]) -> Case:
    case = Case(slow, gpu_of)
    case.warm()
    return case


def begin_slowly(case: Case) -> None:
    """Returns while the batch runs: what the caller needs by then it looks up before."""
    case.wait("running")
    time.sleep(BEGUN_NS / 1e9)
    assert not case.job.ranks[0].has_reply(), "it is over already"


@pytest.mark.parametrize("gpu_of", LAYOUTS, ids=str)
@pytest.mark.parametrize("victim", RUNNING)
def test_one_is_killed_while_a_batch_runs(slow, victim, gpu_of):
    find, status = RUNNING[victim]
    case = warm_case(slow, gpu_of)
    pid = find(case)
    begin_slowly(case)
    at_ns = kill(pid)
    heard_ns, went_on_ns = hear_each(case, status)
    # A worker that lives may write outputs until what it has begun is over.
    is_shared = victim == "worker" and len(set(gpu_of)) > 1
    check_prompt("the host heard", heard_ns - at_ns, DRAINED_NS if is_shared else PROMISED_NS)
    check_prompt("the stream went on", went_on_ns - at_ns, PROMISED_NS if victim == "worker" and not is_shared else DRAINED_NS)
    case.meet_again(keep=True)
    case.job.close()


@pytest.mark.parametrize("gpu_of", LAYOUTS, ids=str)
def test_what_a_dead_trainer_has_brought_is_done_without_it(slow, gpu_of):
    case = warm_case(slow, gpu_of)
    begin_slowly(case)
    at_ns = case.job.ranks[2].kill()
    check_prompt("the ranks heard and went on", hear(case, Status.OK) - at_ns - LEFT_NS, PROMISED_NS)
    case.meet_again(keep=False)
    case.job.close()


def test_a_worker_is_killed_while_it_starts(daemon):
    daemon.wait_no_workers()  # else one that is idle would serve this job
    job = Job(daemon, 1, environment={"FAKEGPU_FAULT": ""})
    rank = job.ranks[0]
    before = set(daemon.workers())
    rank.post_submit("allreduce", "x", dtype="int32", dims=[4], memory="device")
    wait_until(lambda: set(daemon.workers()) - before, "a worker", step=0.0005)
    victim = (set(daemon.workers()) - before).pop()
    at_ns = kill(victim)
    outcome = rank.collect_outcome()
    check_prompt("the rank heard", time.monotonic_ns() - at_ns, PROMISED_NS)
    if not outcome.ok:  # it may have been up already
        assert outcome.status in (Status.ERR_UNSUPPORTED, Status.ERR_WORKER_LOST) and f"pid {victim})" in outcome.text, outcome
    job.close()


INIT_NS = 400_000_000
BEGUN_ANEW_NS = 1_000_000_000  # an engine has found the next hvdd, and a worker's start is all that is left
STARTING = {  # what the rank that waits for the worker hears, and a word of it
    "hvdd": (Status.OK, ""),
    "engine": (Status.ERR_ENGINE_LOST, ""),
    "worker": (Status.ERR_UNSUPPORTED, "was killed by signal 9"),
    "stopped worker": (Status.ERR_UNSUPPORTED, "gpu-silence"),
    "stopped engine": (Status.ERR_ENGINE_LOST, ""),
    "trainer": (Status.ERR_RANK_LOST, "rank 0"),
    "stopped hvdd": (Status.OK, ""),
    "stopped trainer": (Status.OK, ""),
}


def stand_still_or_come_anew(daemon: GpuDaemon, victim: str, pid: int) -> None:
    """What the rank that waits for the worker hears nothing of."""
    if victim == "hvdd":
        daemon.kill()
        daemon.start()
        return
    with stopping(pid):
        if victim == "stopped trainer":
            wait_until(lambda: [row["state"] for row in daemon.ctl.json("gpus")["gpus"]] == ["up"], "the worker to be up")
        else:
            time.sleep(1.5)  # longer than the start, and than a silence


def strike(daemon: GpuDaemon, job: Job, victim: str) -> tuple[Outcome, int]:
    """One is killed or stopped while a worker starts for rank 0. What the first one that is left hears, and how much later: than the
    kill or the stop, than the next hvdd, or than the end of a standstill of which nothing is lost."""
    starting, = wait_until(lambda: [row for row in daemon.ctl.json("gpus")["gpus"] if row["state"] == "starting" and row["pid"]],
                           "a worker that starts", step=0.01)
    pid = {"hvdd": daemon.pid, "trainer": job.ranks[0].pid, "engine": daemon.engine_of(job.name), "worker": starting["pid"]}[victim.split()[-1]]
    assert not job.ranks[0].has_reply(), "it is up already"
    if STARTING[victim][0] == Status.OK:
        stand_still_or_come_anew(daemon, victim, pid)
        at_ns = time.monotonic_ns()
        return job.ranks[0].collect_outcome(), time.monotonic_ns() - at_ns
    if "stopped" in victim:
        with stopping(pid) as at_ns:
            return job.ranks[0].collect_outcome(), time.monotonic_ns() - at_ns
    at_ns = kill(pid)
    if victim == "trainer":
        heard = wait_until(lambda: job.ranks[1].state().status < 0 and job.ranks[1].state(), "the other rank to hear of it")
    else:
        heard = job.ranks[0].collect_outcome()
    return heard, time.monotonic_ns() - at_ns


@pytest.mark.parametrize("victim", [*STARTING][:-2] if sanitized() else STARTING)
def test_one_is_killed_or_stands_still_while_a_worker_starts(victim):
    """And at the end nobody is left behind."""
    status, word = STARTING[victim]
    said = {"dtype": "int32", "dims": [4], "data": bytes(16), "reduce_op": "sum", "memory": "device"}
    with gpus("devices=1", *EXPECTED, faults=f"hvdd-gpu/slow-init@{INIT_NS // 1_000_000}", gpu_silence="1s", engine_silence="1s") as daemon:
        job = Job(daemon, 2)
        job.ranks[0].post_submit("allreduce", "x", **said)
        heard, took_ns = strike(daemon, job, victim)
        assert heard.status == status and word in heard.text, heard
        if victim == "hvdd":
            check_prompt("the rank heard", took_ns - INIT_NS, BEGUN_ANEW_NS)
        elif "stopped" in victim and status != Status.OK:
            check_prompt("the rank heard", took_ns - SILENCE_NS, 1_100_000_000)
        else:
            check_prompt("the rank heard", took_ns, PROMISED_NS)
        if status == Status.OK:
            ops = [heard.op, job.ranks[1].submit("allreduce", "x", **said)]
            assert all(rank.outcome(op).ok for rank, op in zip(job.ranks, ops))
        if status in (Status.OK, Status.ERR_UNSUPPORTED):
            job.check_usable()
        job.close()


# ---- a worker passes to the next job ----


@pytest.fixture(name="patient")
def patient_daemon():
    with patient_gpus("devices=1", *EXPECTED) as running:
        yield running


@contextlib.contextmanager
def passing(daemon: GpuDaemon) -> Iterator[tuple[Job, int]]:
    """A job whose rank 0 waits for its first op, and the worker that passes to it: it stands still."""
    first, second = Job(daemon, 1), Job(daemon, 1)
    outcome, = first.run("allreduce", dtype="int32", dims=[4], data=[bytes(16)], reduce_op="sum", memory="device", gpu=0)
    assert outcome.ok, outcome
    worker, rank = daemon.worker(), second.ranks[0]
    first.close()
    daemon.wait_next_may_have(first.name)
    with stopping(worker):
        rank.post_submit("allreduce", "x", dtype="int32", dims=[4], data=bytes(16), reduce_op="sum", memory="device", gpu=0)
        wait_until(lambda: daemon.lines("worker-passed"), "the worker to pass")
        yield second, worker
    second.close()


def expect_another(job: Job, before: int, at_ns: int) -> None:
    """The op is done, by a worker that is a new one; its start is part of the time."""
    rank = job.ranks[0]
    outcome = rank.collect_outcome()
    assert outcome.ok and rank.outcome(outcome.op).ok, outcome
    check_prompt("the op was done", time.monotonic_ns() - at_ns, 2_000_000_000)
    assert [row["pid"] for row in job.daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name and row["pid"] != before]


def test_a_worker_is_killed_while_it_passes_to_the_next_job(patient):
    with passing(patient) as (job, worker):
        expect_another(job, worker, kill(worker))


def test_an_engine_is_killed_while_a_worker_passes_to_its_job(patient):
    with passing(patient) as (job, worker):
        at_ns = kill(patient.engine_of(job.name))
        outcome = job.ranks[0].collect_outcome()
        check_prompt("the rank heard", time.monotonic_ns() - at_ns, PROMISED_NS)
        assert outcome.status == Status.ERR_ENGINE_LOST, outcome
        os.kill(worker, signal.SIGCONT)
        wait_until(lambda: all(row["state"] != "passing" for row in patient.ctl.json("gpus")["gpus"]), "it to be idle")


def test_hvdd_is_killed_while_a_worker_passes_to_the_next_job(patient):
    with passing(patient) as (job, worker):
        patient.kill()
        patient.start()
        at_ns = time.monotonic_ns()
        os.kill(worker, signal.SIGCONT)
        expect_another(job, worker, at_ns)
        wait_until(lambda: worker not in patient.workers(), "the old one to end")


# ---- an import, a communicator ----


LOST = {"trainer": Status.ERR_RANK_LOST, "engine": Status.ERR_ENGINE_LOST, "worker": Status.ERR_WORKER_LOST}


@pytest.mark.parametrize("victim", LOST)
def test_one_is_killed_while_a_handle_is_opened(victim):
    with own_case([0, 1, 0], faults="hvdd-gpu/slow-open@300") as case:
        case.wait("missing")
        pid, = victims(case, victim)
        case.submit_without_wait(2)
        time.sleep(0.1)
        assert not case.job.ranks[2].has_reply(), "it is open already"
        check(case, kill(pid), LOST[victim])
        if victim != "trainer":
            outcome = case.job.ranks[2].collect_outcome()
            assert outcome.status == LOST[victim], outcome


@pytest.mark.parametrize("victim", LOST)
def test_one_is_killed_while_a_communicator_is_joined(victim):
    with own_case([0, 1, 0], faults="hvdd-gpu/nccl-join-hang@1") as case:
        case.wait("running")
        wait_until(lambda: case.daemon.meetings(), "an id")
        time.sleep(0.05)
        pid, = victims(case, victim)
        at_ns = kill(pid)
        heard_ns, went_on_ns = hear_each(case, LOST[victim])
        check_prompt("the host heard", heard_ns - at_ns, PROMISED_NS)
        check_prompt("the stream went on", went_on_ns - at_ns, JOINED_NS if victim == "engine" else PROMISED_NS)
        for left in case.daemon.workers():  # they would give up 2 s after their engine
            kill(left)


# ---- hvdd ----


@contextlib.contextmanager
def own_case(gpu_of: list[int], faults: str = "", **options) -> Iterator[Case]:
    """With a hvdd of its own, which may die."""
    with gpus("devices=2", *EXPECTED, faults=faults, **options) as daemon:
        case = Case(daemon, gpu_of)
        yield case
        case.job.close()


SLOW_NS = 400_000_000
LASTS_NS = {  # how long an op does that is in this state, when what it waits for has come
    "missing": 0,
    "importing": 2 * SLOW_NS,  # then the workers join
    "joining": SLOW_NS,
    "gated": 0,
    "running": LEFT_NS,
}
AT_WORK = ("importing", "joining")


@pytest.fixture(scope="module", name="lazy")
def lazy_daemon():
    slow_ms = SLOW_NS // 1_000_000
    with gpus("devices=2", *EXPECTED, faults=f"hvdd-gpu/slow-open@{slow_ms};hvdd-gpu/slow-join@{slow_ms}", gpu_silence="2s",
              engine_silence="2s", gpu_idle="1s") as running:
        yield running


@contextlib.contextmanager
def lazily(lazy: GpuDaemon, victim: str, state: str) -> Iterator[tuple[Case, int]]:
    """Rank 2's memory is being opened, or the workers join a communicator. With the pid of the victim."""
    case = Case(lazy, [0, 1, 0])
    try:
        before = set(lazy.meetings())
        case.wait("missing")
        pid, = [lazy.pid] if victim == "hvdd" else victims(case, victim)
        if state == "importing":
            case.submit_without_wait(2)
            time.sleep(0.05)
            assert not case.job.ranks[2].has_reply(), "it is open already"
        else:
            case.submit(2)
            wait_until(lambda: set(lazy.meetings()) - before, "an id", step=0.001)
        yield case, pid
    finally:
        case.job.close()


@contextlib.contextmanager
def reached(request: pytest.FixtureRequest, victim: str, state: str) -> Iterator[tuple[Case, int]]:
    """The same in each state of an op, with the hvdd of other tests."""
    daemon = request.getfixturevalue({"importing": "lazy", "joining": "lazy", "running": "slow"}.get(state, "daemon"))
    if state in AT_WORK:
        with lazily(daemon, victim, state) as found:
            yield found
        return
    case = warm_case(daemon, [0, 1, 0])
    try:
        pid, = [daemon.pid] if victim == "hvdd" else victims(case, victim)
        if state == "running":
            begin_slowly(case)
        else:
            case.wait(state)
        yield case, pid
    finally:
        case.job.close()


def finish(case: Case, state: str) -> None:
    """What the op waits for comes. It is right, and as soon over as if nothing had happened."""
    at_ns = time.monotonic_ns()
    if state == "missing":
        case.submit(2)
    elif state == "gated":
        case.open_gate()
    check_prompt("the ranks heard and went on", hear(case, Status.OK) - at_ns - LASTS_NS[state], PROMISED_NS)


def finish_last(case: Case, state: str) -> None:
    """And of rank 2."""
    if state == "importing":
        outcome = case.job.ranks[2].collect_outcome()
        assert outcome.ok, outcome
        case.ops[2] = outcome.op
    outcome = case.job.ranks[2].outcome(case.ops[2])
    assert outcome.ok and outcome.data == arith.pack(INT32, [3] * 1000), outcome
    case.name += 1


@pytest.mark.parametrize("state", ["gated"] if sanitized() else LASTS_NS)
def test_hvdd_is_killed_and_nobody_notices(request, state):
    with reached(request, "hvdd", state) as (case, _pid):
        daemon = case.daemon
        daemon.kill()
        finish(case, state)
        finish_last(case, state)
        case.warm()
        wait_until(lambda: len(daemon.workers()) == len(set(case.gpus)), "the workers that no engine has to end with hvdd")
        workers = sorted(daemon.workers())
        daemon.start()
        case.warm()
        wait_until(lambda: sorted(row["pid"] for row in rows(case)) == workers, "the new hvdd to have the workers")
        case.job.close()
        daemon.wait_no_jobs()


def test_what_a_new_hvdd_is_told_releases_the_streams_as_before():
    with own_case([0, 1, 0]) as case:
        case.warm()
        case.daemon.kill()
        case.daemon.start()
        wait_until(lambda: [row["job"] for row in case.daemon.jobs()] == [case.job.name], "the engine to come")
        case.wait("missing")
        workers = case.daemon.workers()
        kill(engine(case))
        at_ns = [end(pid) for pid in workers][-1]
        assert case.job.ranks[0].collect_outcome().status in (Status.ERR_ENGINE_LOST, Status.ERR_WORKER_LOST)
        stream = case.job.ranks[1].collect()
        assert stream["ended"]
        check_prompt("the stream went on", stream["at_ns"] - at_ns, PROMISED_NS)


@pytest.mark.parametrize("state", ["missing", "gated"])
def test_engine_and_workers_are_killed_at_once(case, state):
    case.wait(state)
    workers = [row["pid"] for row in rows(case)]
    kill(engine(case))
    at_ns = [end(pid) for pid in workers][-1]
    outcomes = case.job.ranks[0].collect_outcome(), case.job.ranks[1].collect()
    assert outcomes[0].status in (Status.ERR_ENGINE_LOST, Status.ERR_WORKER_LOST), outcomes
    check_prompt("the host heard", outcomes[0].at_ns - at_ns, PROMISED_NS)
    assert outcomes[1]["ended"]
    check_prompt("the stream went on", outcomes[1]["at_ns"] - at_ns, PROMISED_NS)
    if state == "gated":
        case.open_gate()
    case.meet_again(keep=True)


@pytest.mark.parametrize("victim", LOST)
def test_one_is_killed_while_hvdd_stands_still(pair, victim):
    """Nobody but hvdd can say that a worker's process is over."""
    pid, = victims(pair, victim)
    pair.wait("gated")
    with stopping(pair.daemon.pid):
        at_ns = end(pid)
        took_ns = hear(pair, LOST[victim]) - at_ns
    check_prompt("the ranks heard and went on", took_ns, UNTOLD_NS if victim == "worker" else PROMISED_NS)
    if victim != "trainer":
        pair.open_gate()
    pair.meet_again(keep=victim != "trainer")


def test_engine_and_workers_are_killed_while_hvdd_stands_still(pair):
    pids = victims(pair, "both")
    pair.wait("gated")
    with stopping(pair.daemon.pid):
        for pid in pids:  # none of them sees another one die
            kill(pid, signal.SIGSTOP)
        at_ns = [end(pid) for pid in pids][-1]
        host = pair.job.ranks[0].collect_outcome()
        assert host.status == Status.ERR_ENGINE_LOST, host
        check_prompt("the host heard", host.at_ns - at_ns, PROMISED_NS)
        assert not pair.job.ranks[1].has_reply(), "the worker may write"
    at_ns = time.monotonic_ns()
    stream = pair.job.ranks[1].collect()
    assert stream["ended"], "the stream waits for ever"
    check_prompt("the stream went on", stream["at_ns"] - at_ns, PROMISED_NS)
    pair.open_gate()
    pair.meet_again(keep=True)


def test_when_all_are_killed_the_next_call_does_not_let_the_stream_go_on_yet():
    """Nothing says that the worker is dead. 10 s later a call would; unit.client_device has that."""
    with own_case([0, 1, 0]) as case:
        case.warm()
        for number in (0, 1):
            case.submit(number)
        ranks = case.job.ranks
        ranks[1].ask("stream_wait", op=case.ops[1], stream=case.streams[1])
        ranks[0].post("wait", op=case.ops[0], timeout_ms=int(scaled(15) * 1000))
        pids = [case.daemon.pid, engine(case), *case.daemon.workers()]
        for pid in pids:  # none of them sees another one die
            kill(pid, signal.SIGSTOP)
        for pid in reversed(pids):  # hvdd last: children of a dead parent that stand still get SIGCONT
            at_ns = kill(pid)
        case.daemon.wait()
        host = ranks[0].collect_outcome()
        assert host.status == Status.ERR_ENGINE_LOST, host
        check_prompt("the host heard", host.at_ns - at_ns, PROMISED_NS)
        assert not case.ask(1, "drain", timeout_ms=50)["ended"], "nobody is left who could have done that"
        assert ranks[1].test(case.ops[1]).status == Status.ERR_ENGINE_LOST
        assert not case.ask(1, "drain", timeout_ms=50)["ended"], "the worker may write"
        case.daemon.start()


# ---- SIGSTOP ----


SILENT = {"worker": "gpu-silence", "engine": ""}


def stand_still(case: Case, victim: str, pid: int, state: str, silence_ns: int = SILENCE_NS) -> None:
    """The worker or the engine does, and is ended."""
    with stopping(pid) as at_ns:
        heard_ns, went_on_ns = hear_each(case, LOST[victim], SILENT[victim])
    check_prompt("the host heard", heard_ns - at_ns - silence_ns, 1_100_000_000)
    check_prompt("the stream went on", went_on_ns - at_ns - silence_ns, 1_100_000_000)
    if state == "gated":
        case.open_gate()


@pytest.fixture(scope="module", name="brief")
def brief_daemon():
    with gpus("devices=2", *EXPECTED, gpu_silence="1s", engine_silence="1s", gpu_idle="1s") as running:
        yield running


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("victim", SILENT)
def test_one_that_stands_still_is_ended_after_its_silence(brief, victim, state):
    case = Case(brief, there([0, 1, 0]))
    case.warm()
    pid, = victims(case, victim)
    case.wait(state)
    stand_still(case, victim, pid, state)
    case.meet_again(keep=True)
    case.job.close()


@pytest.mark.parametrize("victim", SILENT)
def test_one_that_stands_still_while_a_batch_runs_is_ended_after_its_silence(victim):
    with own_case([0, 1, 0], faults="hvdd-gpu/delay@60000", gpu_silence="1s", engine_silence="1s") as case:
        case.warm()
        pid, = victims(case, victim)
        case.wait("running")
        time.sleep(0.03)
        assert not case.job.ranks[0].has_reply(), "it is over already"
        stand_still(case, victim, pid, "running")


@pytest.mark.parametrize("state", AT_WORK[:1] if sanitized() else AT_WORK)
@pytest.mark.parametrize("victim", SILENT)
def test_one_that_stands_still_while_it_imports_or_joins_is_ended_after_its_silence(lazy, victim, state):
    with lazily(lazy, victim, state) as (case, pid):
        stand_still(case, victim, pid, state, 2 * SILENCE_NS)
        if state == "importing":
            outcome = case.job.ranks[2].collect_outcome()
            assert outcome.status == LOST[victim], outcome


@pytest.mark.parametrize("victim", SILENT)
def test_a_rank_that_waits_for_an_import_hears_of_the_end_of_one_that_stood_still(victim):
    """With the silences that hvdd has if none is said: the rank does not give its import up before."""
    with own_case([0, 1, 0], faults="hvdd-gpu/slow-open@300") as case:
        case.warm()
        case.wait("missing")
        pid, = victims(case, victim)
        case.job.ranks[2].post_submit("allreduce", f"w{case.name}", **case.operands(2) | {"memory": "own"})
        time.sleep(0.05)
        assert not case.job.ranks[2].has_reply(), "it is open already"
        with stopping(pid) as at_ns:
            outcome = case.job.ranks[2].collect_outcome()
            assert outcome.status == LOST[victim], outcome
            check_prompt("the rank heard", time.monotonic_ns() - at_ns - DEFAULT_SILENCE_NS, 1_100_000_000)
            hear(case, LOST[victim])


def goes_on_without(victim: str, state: str) -> bool:
    """Whether ranks 0 and 1 need nothing of it."""
    return victim == "hvdd" or (victim, state) in (("trainer", "joining"), ("trainer", "running"))


STANDSTILLS = [(victim, state) for state in AT_WORK for victim in ("trainer", "worker", "engine", "hvdd")] + [
    ("trainer", "missing"), ("trainer", "running"), ("hvdd", "missing"), ("hvdd", "gated"), ("hvdd", "running")]


@pytest.mark.parametrize("victim, state", STANDSTILLS[1:2] if sanitized() else STANDSTILLS)
def test_one_that_stands_still_and_goes_on_has_lost_nothing(request, victim, state):
    with reached(request, victim, state) as (case, pid):
        with stopping(pid):
            if goes_on_without(victim, state):
                finish(case, state)
            else:
                time.sleep(0.6 if state in AT_WORK else 0.1)  # longer than what is under way, and shorter than a silence
                assert not case.job.ranks[0].has_reply()
        if not goes_on_without(victim, state):
            finish(case, state)
        finish_last(case, state)


def test_a_trainer_that_stands_still_is_named_and_nothing_fails(daemon):
    case = Case(daemon, [0, 0, 0])
    case.warm()
    case.wait("gated")
    with stopping(case.job.ranks[2].pid):
        stalls = wait_until(lambda: daemon.ctl.json("stalls", case.job.name, "--min-age", "0.05")["stalls"], "the op to be shown")
        assert [row["rank"] for row in stalls[0]["missing"]] == [2], stalls
    case.open_gate()
    host, stream = case.job.ranks[0].collect_outcome(), case.job.ranks[1].collect()
    assert host.ok and stream["ended"], (host, stream)
    case.job.close()


# ---- the driver and NCCL ----


@pytest.mark.parametrize("fault, word, gpu_of", [("sticky@13", "ILLEGAL_ADDRESS", [0, 0, 0]), ("nccl-error@2", "NCCL", [0, 1, 0])])
def test_an_error_that_stays_ends_the_worker_with_its_reason(fault, word, gpu_of):
    with own_case(gpu_of, faults=f"hvdd-gpu/{fault}") as case:
        for _ in range(20):
            for number in range(3):
                case.submit(number)
            at_ns = time.monotonic_ns()
            outcomes = [rank.wait(case.ops[number]) for number, rank in enumerate(case.job.ranks)]
            case.name += 1
            if not outcomes[0].ok:
                break
        for outcome in outcomes:
            assert outcome.status == Status.ERR_WORKER_LOST and word in outcome.text, outcome
            check_prompt("the host heard", outcome.at_ns - at_ns, 100_000_000 if word == "ILLEGAL_ADDRESS" else 1_500_000_000)


def test_a_communicator_that_hangs_is_given_up_with_the_set_and_the_ranks_that_have_not_come():
    with own_case([0, 1, 0], faults="hvdd-gpu/nccl-join-hang@1", gpu_comm_timeout="1s") as case:
        case.wait("running")
        wait_until(lambda: case.daemon.meetings(), "an id")
        at_ns = time.monotonic_ns()
        took_ns = hear(case, Status.ERR_WORKER_LOST, "process set 0 waits for a communicator that the GPUs of rank") - at_ns
        check_prompt("the ranks heard and went on", took_ns - SILENCE_NS, 1_000_000_000)


def test_a_join_that_fails_on_one_worker_fails_the_op_and_ends_those_that_are_in_it_with_the_cause():
    with own_case([0, 1, 0], faults="hvdd-gpu/nccl-join-fails@2", gpu_idle="5s") as case:  # the worker that failed stays
        before = time.monotonic_ns()
        case.wait("running")
        cause = "could not join a communicator of 2 GPUs: unhandled cuda error"
        check(case, before, Status.ERR_UNSUPPORTED, cause)
        outcome = case.job.ranks[2].wait(case.ops[2])
        assert outcome.status == Status.ERR_UNSUPPORTED and cause in outcome.text, outcome
        before = time.monotonic_ns()
        for rank in case.job.ranks:
            wait_until(lambda who=rank: who.state().status == Status.ERR_WORKER_LOST, "the worker that joins to end", 10)
            assert "after 2 s; the communicator of process set 0 has failed: " in rank.state().text, rank.state()
            assert cause in rank.state().text, rank.state()
        check_prompt("the ranks heard", time.monotonic_ns() - before, 3_000_000_000)
        case.meet_again(keep=True)


@pytest.mark.parametrize("victim", (0, 1))
def test_no_memory_for_a_communicator_is_that_op_alone(victim):
    """A trainer has filled one of the GPUs."""
    with gpus(f"devices=2;taken={victim}:300", *EXPECTED) as daemon:
        case = Case(daemon, [0, 1, 0])
        for _ in range(2):
            at_ns = time.monotonic_ns()
            case.wait("running")
            check(case, at_ns, Status.ERR_NO_MEMORY, "less than 640 MiB of the GPU are free for a communicator, namely")
            outcome = case.job.ranks[2].wait(case.ops[2])
            assert outcome.status == Status.ERR_NO_MEMORY, outcome
            case.name += 1
        pair = case.job.add_set([0, 2])  # which needs none
        outcomes = case.job.run("allreduce", dtype="int32", dims=[9], data=[arith.pack(INT32, [1] * 9)] * 2, reduce_op="sum", memory="device",
                                each={"gpu": [0, 0]}, ranks=[0, 2], process_set=pair)
        assert all(outcome.ok for outcome in outcomes), outcomes
        case.job.check_usable()
        assert not daemon.lines("worker-lost")
        case.job.close()


def test_an_op_that_hangs_on_a_gpu_is_given_up():
    with own_case([0, 1, 0], faults="hvdd-gpu/nccl-hang@2") as case:
        case.job.close()
        case.job = Job(case.daemon, 3, environment={"HVD_GPU_TIMEOUT_SECONDS": "1"})
        case.streams = [rank.ask("stream", gpu=gpu)["stream"] for rank, gpu in zip(case.job.ranks, case.gpus)]
        case.warm()
        case.wait("running")
        at_ns = time.monotonic_ns()
        took_ns = hear(case, Status.ERR_WORKER_LOST, "HVD_GPU_TIMEOUT_SECONDS") - at_ns
        check_prompt("the ranks heard and went on", took_ns - SILENCE_NS, 1_000_000_000)
        case.meet_again(keep=True)


def test_no_memory_for_an_import_is_that_registration_alone():
    with own_case([0, 0, 0], faults="hvdd-gpu/no-memory@2") as case:
        outcome = case.job.ranks[0].try_submit("allreduce", "x", dtype="int32", dims=[4], memory="own")
        assert outcome.status == Status.ERR_NO_MEMORY, outcome
        assert "OUT_OF_MEMORY" in outcome.text, outcome
        case.job.check_usable()
        assert procs.state(case.daemon.worker()) not in "XZ"


# ---- memory that goes ----


def test_the_memory_of_a_dead_trainer_is_closed_while_its_engine_lives(daemon):
    job = Job(daemon, 2)
    outcomes = job.run("allreduce", dtype="int32", dims=[9], data=[arith.pack(INT32, [1] * 9)] * 2, reduce_op="sum", memory="device",
                       each={"gpu": [0, 0]})
    assert all(outcome.ok for outcome in outcomes), outcomes
    pid = daemon.engine_of(job.name)

    def imports():
        return [row["imports"] for row in daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name]  # told with a beat
    wait_until(lambda: imports() == [2], "the imports of both", 10)
    job.ranks[1].kill()
    wait_until(lambda: job.ranks[0].state().status == Status.ERR_RANK_LOST, "the other rank to know of it")
    wait_until(lambda: imports() == [1], "the dead one's import to go", 5)
    assert daemon.engine_of(job.name) == pid
    job.close()


def test_memory_that_is_forgotten_beside_a_stream_that_does_not_come_holds_up_no_other_set(daemon):
    case = Case(daemon, [0, 0, 0])
    case.warm()
    pair, ranks = case.job.add_set([0, 2]), case.job.ranks
    ops = {}
    for number in (0, 2):
        ops[number] = ranks[number].submit("allreduce", "own", dtype="int32", dims=[9], data=arith.pack(INT32, [1] * 9), reduce_op="sum",
                                           memory="own", gpu=case.gpus[number], process_set=pair)
    assert all(ranks[number].wait(op).ok for number, op in ops.items())
    worker = [row["pid"] for row in rows(case)]
    case.ask(1, "gate")
    for number in range(3):
        case.submit(number)
    at_ns = time.monotonic_ns()
    for number, op in ops.items():
        ranks[number].free(op)  # hvd_device_forget, and then the driver's own free
    for turn in range(3):
        outcomes = case.job.run("allreduce", name=f"beside{turn}", dtype="int32", dims=[9], data=[arith.pack(INT32, [1] * 9)] * 2,
                                reduce_op="sum", memory="device", each={"gpu": [0, 0]}, ranks=[0, 2], process_set=pair)
        assert all(outcome.ok and outcome.data == arith.pack(INT32, [2] * 9) for outcome in outcomes), outcomes
    check_prompt("the other set went on", time.monotonic_ns() - at_ns, 1_000_000_000)
    case.ask(1, "gate", open=True)
    for number, rank in enumerate(ranks):
        assert rank.outcome(case.ops.pop(number)).ok
    assert [row["pid"] for row in rows(case)] == worker
    case.job.close()
