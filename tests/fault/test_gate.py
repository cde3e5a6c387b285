# SPDX-License-Identifier: Apache-2.0
"""hvdd-gate, killed and stopped under requests and under a job."""
import os
import pathlib
import re
import signal
import threading
import time

from hvt import check_prompt, procs, sanitized, wait_until
from hvt.job import Job


def test_a_killed_gate_costs_hvdctl_a_moment_and_a_job_nothing(daemon):
    daemon.allow("gate-ended")
    job = Job(daemon, 2)
    first = daemon.gate()
    os.kill(first, signal.SIGKILL)
    began_ns = time.monotonic_ns()
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    check_prompt("hvdctl was answered", time.monotonic_ns() - began_ns, 1_000_000_000)
    assert daemon.gate() not in (0, first)
    job.check_usable()
    assert len(daemon.engines()) == 1


def test_a_stopped_gate_is_replaced_and_attaches_go_on(daemon):
    daemon.allow("gate-ended", "gate-killed")
    job = Job(daemon, 2)
    gate = wait_until(daemon.gate, "the gate to run")
    os.kill(gate, signal.SIGSTOP)
    began_ns = time.monotonic_ns()
    assert daemon.rank().try_open("meanwhile", 0, 1).ok
    check_prompt("a rank attached", time.monotonic_ns() - began_ns, 1_000_000_000)
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    check_prompt("hvdctl was answered", time.monotonic_ns() - began_ns, 3_000_000_000)
    assert procs.state(gate) == "X"
    job.check_usable()


def test_a_gate_has_no_capability_and_limits_of_its_own(daemon):
    gate = wait_until(daemon.gate, "the gate to run")
    daemon.ctl.json("status")  # it has set itself up by then
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{gate}/status").read_text(encoding="ascii").splitlines())
    assert int(status["CapPrm"], 16) == int(status["CapEff"], 16) == int(status["CapInh"], 16) == 0
    assert int(status["NoNewPrivs"]) == 1 and (sanitized() or int(status["Threads"]) == 1)
    limits = pathlib.Path(f"/proc/{gate}/limits").read_text(encoding="ascii")
    found = {name: int(re.search(rf"^{name} +(\d+)", limits, re.MULTILINE).group(1)) for name in
             ["Max open files"] + ([] if sanitized() else ["Max data size", "Max core file size"])}
    assert found.pop("Max open files") <= 4096
    assert sanitized() or found == {"Max data size": 640 << 20, "Max core file size": 0}


def test_hvdctl_is_answered_each_time_while_gates_are_killed(daemon):
    """Also a question that the gate has read already."""
    daemon.allow("gate-ended")
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.3):
            gate = daemon.gate()
            if gate:
                os.kill(gate, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(5):
            assert daemon.ctl.json("jobs")["jobs"] == []
    finally:
        over.set()
        killer.join()
