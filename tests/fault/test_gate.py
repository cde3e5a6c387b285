# SPDX-License-Identifier: Apache-2.0
"""hvdd-gate, killed and stopped under requests and under a job."""
import os
import signal
import threading
import time

from hvt import check_prompt, procs, wait_until
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
