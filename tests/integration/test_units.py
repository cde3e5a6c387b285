# SPDX-License-Identifier: Apache-2.0
"""hvdd with units for its engines and its gate, as hvdd.service has them."""
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

from hvt import SERVICE, Daemon, Status, as_service, check_prompt, new_keys, procs, wait_until
from hvt.build import program, program_for_strangers, scaled
from hvt.job import Job
from hvt.namespaces import NEW_NET, Inside
from hvt.nodes import missing
from hvt.rank import Outcome, Rank
from hvt.units import ACTIVATE, UnitDaemon

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
    with UnitDaemon(options={"drain-timeout": "0"}) as daemon:
        daemon.allow("job-stopped", "session-ended", "rank-ended")
        job = Job(daemon, 2)
        engine, gate = daemon.engines()[0], wait_until(daemon.gate, "the gate to run")
        op = job.ranks[0].submit("barrier", "b")
        job.ranks[0].post_wait(op)
        began_ns = time.monotonic_ns()
        assert daemon.terminate() == 0
        check_prompt("hvdd ended", time.monotonic_ns() - began_ns, 5_100_000_000)
        outcome = job.ranks[0].collect_outcome()
        assert outcome.status == Status.ERR_JOB_STOPPED and "shuts down" in outcome.text, outcome
        assert procs.state(engine) in "ZX" and procs.state(gate) in "ZX"


# ---- units that do not do what they should ----


def refused(daemon: UnitDaemon, timeout_s: float = 5) -> str:
    """What a rank is told, a second after attach-timeout at the latest."""
    rank = daemon.rank()
    began_ns = time.monotonic_ns()
    outcome = rank.try_open("a", 0, 1)
    check_prompt("the rank was told", time.monotonic_ns() - began_ns - round(timeout_s * 1e9), 1_000_000_000)
    assert outcome.status == Status.ERR_DAEMON, outcome
    daemon.allow("attach-refused", "engine-killed")  # the latter where it had ended before it was told what to do
    assert not daemon.jobs()
    return outcome.text


def test_a_unit_that_is_not_there_is_named():
    with UnitDaemon(without=["engine"]) as daemon:
        text = refused(daemon)
        assert str(daemon.socket("engine")) in text and "No such file" in text, text
        daemon.expect_line("no-engine", "No such file")
        daemon.start_unit("engine")
        Job(daemon, 1).check_usable()


@pytest.mark.parametrize("command", [["false"], ["sleep", "60"], ["sh", "-c", "exec 3>&-; exec sleep 60"]],
                         ids=["ends at once", "is silent", "closes the connection"])
def test_an_engine_that_its_unit_cannot_start_is_an_error_that_says_where_to_look(command):
    with UnitDaemon(programs={"engine": command}, options={"attach-timeout": f"{scaled(0.4)}s"}) as daemon:
        assert "journalctl -u hvdd-engine.socket -u 'hvdd-engine@*'" in refused(daemon, scaled(0.4))
        daemon.expect_line("engine-ended", "did not start")
        daemon.stop_unit("engine")


@pytest.mark.parametrize("unit", ["engine", "gate"])
def test_a_unit_that_starts_something_else_is_named(unit):
    says = f"printf 'hvdd-{unit}, protocol 0' >&3; exec sleep 60"
    with UnitDaemon() as daemon:
        daemon.allow("engine-ended", "gate-killed", "gate-ended", "no-gate", "attach-refused")
        daemon.stop_unit(unit)
        daemon.start_unit(unit, ["sh", "-c", says])
        if unit == "engine":
            assert "journalctl" in refused(daemon)
        daemon.expect_line(f"bad-{unit}-unit", f"no hvdd-{unit} of this version")
        daemon.stop_unit(unit)
        daemon.start_unit(unit)
        Job(daemon, 1).check_usable()


def test_an_engine_of_another_user_serves_no_hvdd():
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    engine, environment = program_for_strangers("hvdd-engine", {})
    as_another = ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", engine]
    with UnitDaemon(programs={"engine": as_another}, unit_settings=environment) as daemon:
        assert "journalctl" in refused(daemon)
        daemon.allow("engine-ended")
        daemon.expect_line("no-start")


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
