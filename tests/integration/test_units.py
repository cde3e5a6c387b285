# SPDX-License-Identifier: Apache-2.0
"""hvdd with units for its engines, its gate and its workers of GPUs, as hvdd.service has them."""
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvt import SERVICE, Daemon, Status, arith, as_service, check_prompt, new_keys, procs, wait_until
from hvt.build import program, program_for_strangers, scaled
from hvt.daemon import being
from hvt.job import Job
from hvt.namespaces import NEW_NET, Inside
from hvt.nodes import missing
from hvt.rank import Outcome, Rank
from hvt.units import ACTIVATE, GpuUnitDaemon, UnitDaemon

INT32 = arith.DTYPES["int32"]
ON_GPU = {"dtype": "int32", "dims": [2], "reduce_op": "sum", "memory": "device", "gpu": 0}  # an allreduce there
pytestmark = pytest.mark.skipif(not ACTIVATE, reason="systemd-socket-activate is not installed")


@pytest.fixture(name="daemon")
def _daemon():
    with UnitDaemon() as running:
        yield running


def test_engine_and_gate_are_what_their_units_have_started(daemon):
    job = Job(daemon, 2)
    job.check_usable()
    row = daemon.jobs()[0]
    assert daemon.engines() == [row["engine_pid"]] and row["attached"] == 2
    assert procs.children(daemon.pid) == [], "hvdd has started something itself"
    assert wait_until(daemon.gate, "the gate to run") not in (0, daemon.pid)
    daemon.expect_line("engine-started", f"pid={row['engine_pid']}")
    first = row["engine_pid"]
    job.close()
    daemon.wait_no_jobs()
    Job(daemon, 1).check_usable()
    assert daemon.engines() != [first], "a job's engine was used again"


def test_ranks_are_told_of_a_killed_engine_and_how_it_died(daemon):
    daemon.allow("engine-ended")
    job, other = Job(daemon, 2), Job(daemon, 1)
    engine = daemon.engine_of(job.name)
    op = job.ranks[0].submit("barrier", "b")
    job.ranks[0].post_wait(op)
    at_ns = time.monotonic_ns()
    os.kill(engine, signal.SIGKILL)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_ENGINE_LOST and str(engine) in outcome.text, outcome
    check_prompt("the rank was told", outcome.at_ns - at_ns, 100_000_000)
    daemon.expect_line("engine-ended", "SIGKILL")
    other.check_usable()
    Job(daemon, 2, name=job.name).check_usable()


def test_a_killed_gate_costs_hvdctl_a_moment(daemon):
    daemon.allow("gate-ended")
    job = Job(daemon, 1)
    first = wait_until(daemon.gate, "the gate to run")
    os.kill(first, signal.SIGKILL)
    began_ns = time.monotonic_ns()
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    check_prompt("hvdctl was answered", time.monotonic_ns() - began_ns, 1_000_000_000)
    daemon.expect_line("gate-ended", "SIGKILL")
    assert daemon.gate() not in (0, first)
    job.check_usable()


def test_a_gate_that_stands_still_is_replaced():
    with UnitDaemon(options={"gate-silence": "500ms"}) as daemon:
        daemon.allow("gate-ended", "gate-killed")
        daemon.ctl.json("status")
        first = daemon.gate()
        os.kill(first, signal.SIGSTOP)
        began_ns = time.monotonic_ns()
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
        check_prompt("hvdctl was answered", time.monotonic_ns() - began_ns - 500_000_000, 1_000_000_000)
        assert procs.state(first) in "ZX"


def test_the_gate_answers_the_watchdog_of_its_unit():
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{folder}/notify")
        manager.settimeout(scaled(5))
        with UnitDaemon(unit_settings={"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "200000"}):
            assert all(b"WATCHDOG=1" in manager.recv(4096) for _ in range(2))


def test_a_job_outlives_hvdd_and_the_gate_does_not(daemon):
    job = Job(daemon, 2)
    before = daemon.jobs()[0]
    gate = daemon.gate()
    daemon.kill()
    wait_until(lambda: procs.state(gate) in "ZX", "the gate to end with hvdd")
    job.check_usable()
    daemon.start()
    ready_ns = time.monotonic_ns()
    after = wait_until(daemon.jobs, "the engine to say hello to the new daemon")
    check_prompt("the new hvdd knew of the job", time.monotonic_ns() - ready_ns, 350_000_000)
    assert [row["engine_pid"] for row in after] == [before["engine_pid"]] and after[0]["attached"] == 2
    job.check_usable()
    Job(daemon, 1).check_usable()
    assert daemon.gate() != gate


def test_a_stop_ends_engines_and_ranks_are_told():
    """Also while the unit of a worker is silent."""
    with GpuUnitDaemon("devices=1", programs={"gpu": ["sleep", "60"]}, options={"drain-timeout": "0"}) as daemon:
        daemon.allow("job-stopped", "session-ended", "rank-ended", "worker-killed", "worker-ended")
        job, waiting = Job(daemon, 2), Job(daemon, 1).ranks[0]
        engine, gate = daemon.engines()[0], wait_until(daemon.gate, "the gate to run")
        op = job.ranks[0].submit("barrier", "b")
        job.ranks[0].post_wait(op)
        waiting.post_submit("allreduce", "unmet", **ON_GPU)
        wait_until(lambda: [row["state"] for row in daemon.ctl.json("gpus")["gpus"]] == ["starting"], "the worker's unit to be asked")
        began_ns = time.monotonic_ns()
        assert daemon.terminate() == 0
        check_prompt("hvdd ended", time.monotonic_ns() - began_ns, 5_100_000_000)
        outcome = job.ranks[0].collect_outcome()
        assert outcome.status == Status.ERR_JOB_STOPPED and "shuts down" in outcome.text, outcome
        assert procs.state(engine) in "ZX" and procs.state(gate) in "ZX"
        assert not waiting.collect_outcome().ok
        daemon.stop_unit("gpu")


# ---- workers of GPUs ----


def reduce_on_gpu(job: Job) -> list[int]:
    """An allreduce, which a worker does; the pids of the job's workers."""
    inputs = [arith.pack(INT32, [rank + 1, 7]) for rank in range(job.size)]
    for outcome in job.run("allreduce", data=inputs, **ON_GPU):
        assert outcome.ok and outcome.data == arith.allreduce(INT32, "sum", inputs), outcome
    return pids_of_workers(job)


def pids_of_workers(job: Job) -> list[int]:
    return [row["pid"] for row in job.daemon.ctl.json("gpus")["gpus"] if row["job"] == job.name and row["state"] == "up"]


@pytest.fixture(name="gpu_daemon")
def _gpu_daemon():
    with GpuUnitDaemon("devices=1") as running:
        yield running


def test_ranks_are_told_of_a_killed_worker_of_a_unit_and_how_it_died(gpu_daemon):
    daemon = gpu_daemon
    daemon.allow("worker-lost", "worker-state")
    job = Job(daemon, 2)
    worker, = reduce_on_gpu(job)
    assert daemon.started("gpu") == [worker] and procs.children(daemon.pid) == []
    daemon.expect_line("worker-started", f"pid={worker}")
    op = job.ranks[0].submit("allreduce", "lone", **ON_GPU)
    job.ranks[0].post_wait(op)
    at_ns = time.monotonic_ns()
    os.kill(worker, signal.SIGKILL)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_WORKER_LOST and f"(pid {worker}) was killed by signal 9" in outcome.text, outcome
    check_prompt("the rank was told", outcome.at_ns - at_ns, 100_000_000)
    daemon.expect_line("worker-ended", "SIGKILL")
    job.close()
    assert reduce_on_gpu(Job(daemon, 2, name=job.name)) not in ([], [worker])


def test_a_new_hvdd_finds_the_worker_of_a_unit_and_gets_further_ones(gpu_daemon):
    daemon = gpu_daemon
    daemon.allow("no-hvdd")
    job = Job(daemon, 2)
    worker, = reduce_on_gpu(job)
    daemon.kill()
    assert all(outcome.ok for outcome in job.run("allreduce", data=[bytes(8)] * 2, **ON_GPU))
    daemon.start()
    ready_ns = time.monotonic_ns()
    wait_until(lambda: pids_of_workers(job) == [worker], "the worker to be back")
    check_prompt("the new hvdd knew of the worker", time.monotonic_ns() - ready_ns, 350_000_000)
    assert reduce_on_gpu(job) == [worker]
    assert {worker, *reduce_on_gpu(Job(daemon, 1))} == set(daemon.started("gpu"))


# ---- units that do not do what they should ----


def refused(daemon: UnitDaemon, unit: str, timeout_s: float = 5) -> str:
    """What a rank is told that needs a program of this unit, a second after attach-timeout or gpu-start at the latest. Nothing of
    the refused program is left."""
    job = Job(daemon, 1) if unit == "gpu" else None
    rank = job.ranks[0] if job else daemon.rank()
    began_ns = time.monotonic_ns()
    outcome = rank.try_submit("allreduce", "refused", **ON_GPU) if job else rank.try_open("a", 0, 1)
    check_prompt("the rank was told", time.monotonic_ns() - began_ns - round(timeout_s * 1e9), 1_000_000_000)
    if job:
        daemon.allow("memory-refused")
        assert outcome.status == Status.ERR_UNSUPPORTED and not daemon.ctl.json("gpus")["gpus"], outcome
        job.check_usable()
        job.close()
    else:
        daemon.allow("attach-refused", "engine-killed")  # the latter where it had ended before it was told what to do
        assert outcome.status == Status.ERR_DAEMON and not daemon.jobs(), outcome
    return outcome.text


def check_served(daemon: UnitDaemon, unit: str) -> None:
    """A job has what the unit starts."""
    job = Job(daemon, 1)
    job.check_usable()
    if unit == "gpu":
        assert reduce_on_gpu(job) == daemon.started("gpu")


@pytest.mark.parametrize("unit", ["engine", "gpu"])
def test_a_unit_that_is_not_there_is_named(unit):
    with GpuUnitDaemon("devices=1", without=[unit]) as daemon:
        text = refused(daemon, unit)
        assert str(daemon.socket(unit)) in text and "No such file" in text, text
        daemon.expect_line({"engine": "no-engine", "gpu": "worker-refused"}[unit], "No such file")
        daemon.start_unit(unit)
        check_served(daemon, unit)


@pytest.mark.parametrize("command", [["false"], ["sleep", "60"], ["sh", "-c", "exec 3>&-; exec sleep 60"]],
                         ids=["ends at once", "is silent", "closes the connection"])
@pytest.mark.parametrize("unit", ["engine", "gpu"])
def test_a_program_that_its_unit_cannot_start_is_an_error_that_says_where_to_look(unit, command):
    option = {"engine": "attach-timeout", "gpu": "gpu-start"}[unit]
    with GpuUnitDaemon("devices=1", programs={unit: command}, options={option: f"{scaled(0.4)}s"}) as daemon:
        assert f"did not start (`journalctl -u hvdd-{unit}.socket -u 'hvdd-{unit}@*'" in refused(daemon, unit, scaled(0.4))
        daemon.expect_line({"engine": "engine-ended", "gpu": "worker-ended"}[unit], "did not start")
        daemon.stop_unit(unit)


@pytest.mark.parametrize("unit", ["engine", "gate", "gpu"])
def test_a_unit_that_starts_something_else_is_named(unit):
    says = f"printf 'hvdd-{unit}, protocol 0' >&3; exec sleep 60"
    with GpuUnitDaemon("devices=1") as daemon:
        daemon.allow("engine-ended", "gate-killed", "gate-ended", "no-gate", "attach-refused", "worker-ended")
        daemon.stop_unit(unit)
        daemon.start_unit(unit, ["sh", "-c", says])
        if unit != "gate":
            assert "journalctl" in refused(daemon, unit)
        daemon.expect_line(f"bad-{unit}-unit", f"no hvdd-{unit} of this version")
        daemon.stop_unit(unit)
        daemon.start_unit(unit)
        check_served(daemon, unit)


@pytest.mark.parametrize("unit", ["engine", "gpu"])
def test_a_program_of_another_user_serves_no_hvdd(unit):
    """And hvdd sends nothing to a socket at which another user listens."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    name, environment = program_for_strangers(f"hvdd-{unit}", {})
    as_another = ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", name]
    with GpuUnitDaemon("devices=1", programs={unit: as_another}, unit_settings=environment) as daemon:
        assert "journalctl" in refused(daemon, unit)
        daemon.allow("engine-ended", "worker-ended", "no-engine", "worker-refused")
        daemon.expect_line("no-start")
        daemon.stop_unit(unit)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(daemon.socket(unit)))
            with being(SERVICE):
                listener.listen()
            assert "Operation not permitted" in refused(daemon, unit)


def test_hvdd_asks_for_a_gate_until_there_is_one(daemon):
    job = Job(daemon, 1)
    daemon.ctl.json("status")
    daemon.stop_unit("gate")
    daemon.expect_line("gate-ended")
    daemon.expect_line("no-gate", "No such file")
    job.check_usable()
    daemon.start_unit("gate")
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid


# ---- several nodes ----


class Netless(UnitDaemon):
    """hvdd itself is in a network namespace of its own, as hvdd.service is by PrivateNetwork=yes; what its units start is not."""

    def start(self) -> None:
        inside = Inside("netless", NEW_NET)
        try:
            inside.call(super().start)
        finally:
            inside.close()


@pytest.fixture(name="folder")
def _folder() -> Iterator[pathlib.Path]:
    """That another user may enter."""
    with tempfile.TemporaryDirectory(prefix="hvt-keys-") as path:
        os.chmod(path, 0o755)
        yield pathlib.Path(path)


def keys_of(folder: pathlib.Path, owner: dict[str, Any]) -> tuple[pathlib.Path, pathlib.Path]:
    """Of the one that listens, who is `owner`, and of the one that joins."""
    new_keys(folder / "mesh")
    if owner:
        os.chown(folder / "mesh.server", owner["user"], owner["group"])
    return folder / "mesh.server", folder / "mesh.client"


def settings(job: str, number: int) -> dict[str, str]:
    """Of one of two ranks, each alone on its node."""
    return {"HVD_JOB_ID": job, "HVD_RANK": str(number), "HVD_SIZE": "2", "HVD_LOCAL_RANK": "0",
            "HVD_LOCAL_SIZE": "1", "HVD_CROSS_RANK": str(number), "HVD_CROSS_SIZE": "2"}


def perf(daemons: tuple[Daemon, Daemon], job: str) -> None:
    """hvd-perf, which checks its results, with a rank on each."""
    command = [program("hvd-perf"), "-c", "-b", "4", "-e", "256K", "-f", "256", "-w", "1", "-i", "2"]
    running = [subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=dict(os.environ, HVD_ADDRESS=str(daemon.address), HVD_SERVICE_UID=str(SERVICE), **settings(job, number))) for number, daemon in enumerate(daemons)]
    for process in running:
        out, err = process.communicate(timeout=scaled(30))
        assert process.returncode == 0 and not err, (out, err)


def open_ranks(daemons: tuple[Daemon, Daemon], job: str) -> list[Rank]:
    ranks = [daemon.rank(environment=settings(job, number)) for number, daemon in enumerate(daemons)]
    for rank in ranks:
        rank.post("open")
    for rank in ranks:
        outcome = rank.collect_outcome()
        assert outcome.ok, outcome
    return ranks


def meet(ranks: list[Rank], name: str) -> list[Outcome]:
    ops = [rank.submit("barrier", name) for rank in ranks]
    return [rank.outcome(op) for rank, op in zip(ranks, ops)]


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def check_job(first: UnitDaemon, second: Daemon) -> None:
    """It outlives hvdd, and is told when its engine dies."""
    ranks = open_ranks((first, second), "steady")
    assert all(outcome.ok for outcome in meet(ranks, "a"))
    engine = first.engines()[0]
    if isinstance(first, Netless):
        assert namespace(first.pid) != namespace(engine) == namespace(first.gate()) == namespace(os.getpid())
    first.kill()
    assert all(outcome.ok for outcome in meet(ranks, "b"))
    first.start()
    wait_until(lambda: [row["engine_pid"] for row in first.jobs()] == [engine], "the engine to say hello to the new hvdd")
    op = ranks[1].submit("barrier", "c")
    os.kill(engine, signal.SIGKILL)
    outcome = ranks[1].outcome(op)
    assert outcome.status == Status.ERR_NODE_LOST, outcome
    outcome = ranks[0].outcome(ranks[0].submit("barrier", "c"))
    assert outcome.status == Status.ERR_ENGINE_LOST, outcome


def test_a_job_over_two_nodes_while_hvdd_itself_has_no_network(folder):
    """The one has units, the other was started by hand."""
    kind = UnitDaemon if missing() else Netless
    server, client = keys_of(folder, as_service())
    ports = {"HVD_PORT_RANGE": "9732-9831"}
    with kind(options={"private": "no", "mesh-listen": "127.0.0.1:0", "mesh-key": server, "port-range": ports["HVD_PORT_RANGE"]},
              folder_mode=0o755, user=as_service(), unit_settings=ports) as first:
        port = (first.address / "mesh.port").read_text(encoding="ascii").strip()
        with Daemon(options={"mesh-join": f"127.0.0.1:{port}", "mesh-key": client}) as second:
            perf((first, second), "perf")
            check_job(first, second)
            first.allow("engine-ended")
            second.allow("node-lost", "job-broken", "not-told")
            perf((first, second), "again")
