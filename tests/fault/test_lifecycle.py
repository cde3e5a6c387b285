# SPDX-License-Identifier: Apache-2.0
"""hvdd's own life: one per directory, draining, reloading, stale sockets, a directory that is not its own."""
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest

from hvt import Daemon, Status, check_prompt, program, scaled, stopped, wait_until
from hvt.environment import clean_environment
from hvt.job import Job
from hvt.rank import Rank


def run_second(daemon: Daemon, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run([*daemon.command(), *more], env=daemon.environment, capture_output=True, text=True,
                          timeout=scaled(20), check=False, cwd="/", **daemon.command_user())


def test_a_second_daemon_in_the_same_directory_is_refused_naming_the_first(daemon):
    job = Job(daemon, 2)
    done = run_second(daemon)
    assert done.returncode != 0
    assert str(daemon.address) in done.stderr
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    job.check_usable()


def test_the_sockets_of_a_killed_daemon_are_taken_over(daemon):
    daemon.kill()
    assert daemon.attach_path.exists()
    daemon.start()
    assert daemon.rank().try_open("x", 0, 1).ok


def test_sigterm_refuses_new_ranks_lets_the_job_finish_and_exits_with_zero():
    with Daemon(options={"drain-timeout": "20s"}) as daemon:
        job = Job(daemon, 2)
        daemon.process.terminate()
        wait_until(lambda: daemon.ctl.json("status")["daemon"]["state"] == "draining", "draining to be shown")
        outcome = daemon.rank().try_open("late", 0, 1, timeout_ms=2000)
        assert outcome.status == Status.ERR_DRAINING, outcome
        job.check_usable()
        assert daemon.process.poll() is None
        job.close()
        assert daemon.wait() == 0


def pid_of(folder: pathlib.Path) -> int:
    """Of the hvdd that serves there."""
    return int((folder / "hvdd.lock").read_text(encoding="ascii").split()[0])


@pytest.mark.parametrize("wrong", [["--port-range=x"], ["--net-transport=mail"], ["--mesh-listen=*:0", "--mesh-join=a:1"]], ids=str)
def test_an_option_that_stays_wrong_ends_hvdd_with_2(tmp_path, wrong):
    """A service manager does not start it again."""
    done = subprocess.run([program("hvdd"), "--private=yes", f"--runtime-dir={tmp_path}", *wrong], env=clean_environment(),
                          capture_output=True, timeout=scaled(20), check=False)
    assert done.returncode == 2, done


def test_a_private_hvdd_that_takes_no_new_sessions_is_replaced_by_another_one(tmp_path):
    """As one does that is about to end by itself. Nobody has named it."""
    environment = clean_environment() | {"XDG_RUNTIME_DIR": str(tmp_path), "HVDD_PROGRAM": program("hvdd")}
    first, late = Rank(environment), Rank(environment)
    try:
        first.open("j", 0, 1)
        old = pid_of(tmp_path / "hvdd")
        os.kill(old, signal.SIGTERM)
        late.post("open", job="k", rank=0, size=1)
        time.sleep(0.3)
        assert not late.has_reply(), late.collect()
        first.close()
        outcome = late.collect_outcome()
        assert outcome.ok, outcome
        assert pid_of(tmp_path / "hvdd") != old
        late.close()
    finally:
        first.stop()
        late.stop()
    os.kill(pid_of(tmp_path / "hvdd"), signal.SIGTERM)
    wait_until(lambda: not (tmp_path / "hvdd" / "hvdd.lock").exists(), "the last hvdd to end")


def test_a_drain_that_takes_too_long_stops_the_jobs_with_a_reason():
    with Daemon(options={"drain-timeout": "200ms"}) as daemon:
        daemon.allow("job-stopped", "drain-timeout", "session-ended", "rank-ended", "drain-expired", "drained")
        job = Job(daemon, 2)
        op = job.ranks[0].submit("barrier", "b")
        job.ranks[0].post_wait(op)
        assert daemon.terminate() == 0
        outcome = job.ranks[0].collect_outcome()
        assert outcome.status == Status.ERR_JOB_STOPPED and outcome.text, outcome


def test_the_end_of_a_drain_has_a_bound_although_an_engine_does_nothing():
    with Daemon(options={"drain-timeout": "200ms"}) as daemon:
        daemon.allow("drain-timeout", "drain-expired", "engine-silent", "engine-killed", "engine-ended")
        job = Job(daemon, 2)
        assert daemon.jobs()[0]["attached"] == 2  # the engine has told hvdd of both
        with stopped(daemon.engines()[0]):
            began_ns = time.monotonic_ns()
            assert daemon.terminate() == 0
            check_prompt("hvdd ended", time.monotonic_ns() - began_ns - 200_000_000, 5_100_000_000)
        wait_until(lambda: job.ranks[0].state().status == Status.ERR_ENGINE_LOST, "rank 0 to be told")


def test_a_second_sigterm_skips_the_wait():
    with Daemon(options={"drain-timeout": "1h"}) as daemon:
        daemon.allow("job-stopped", "drain-timeout", "session-ended", "rank-ended", "drain-expired", "drained")
        job = Job(daemon, 2)
        daemon.process.terminate()
        wait_until(lambda: daemon.ctl.json("status")["daemon"]["state"] == "draining", "draining to be shown")
        began_ns = time.monotonic_ns()
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.wait() == 0
        check_prompt("hvdd ended", time.monotonic_ns() - began_ns, 3_000_000_000)
        wait_until(lambda: job.ranks[0].state().status == Status.ERR_JOB_STOPPED, "rank 0 to be told")


def test_sighup_reloads_what_can_be_reloaded_and_says_what_cannot(daemon):
    del daemon.options["log-level"]
    daemon.terminate()
    daemon.start()
    assert not daemon.lines("op-stalled")
    daemon.config_path.write_text("stall-warn = 100ms\nmax-jobs = 1\nadmin-mode = 0600\n", encoding="utf-8")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.expect_line("option-needs-restart", "admin-mode")
    daemon.allow("option-needs-restart", "attach-refused")
    job = Job(daemon, 2)
    assert daemon.rank().try_open("second", 0, 1).status == Status.ERR_DAEMON_LIMIT
    op = job.ranks[0].submit("barrier", "stuck")
    daemon.expect_line("op-stalled", "stuck")
    assert job.ranks[1].outcome(job.ranks[1].submit("barrier", "stuck")).ok
    assert job.ranks[0].outcome(op).ok


def test_a_broken_file_on_sighup_keeps_the_old_configuration(daemon):
    daemon.config_path.write_text("max-jobs = many\n", encoding="utf-8")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "max-jobs" in daemon.log_text(), "a line that names the bad option")
    daemon.allow(*{line.id for line in daemon.lines() if "max-jobs" in line.raw})
    Job(daemon, 2).check_usable()


@pytest.mark.parametrize("text", ["no-such-option = 1\n", "max-jobs = -4\n", "= 3\n", "max-jobs\n"], ids=repr)
def test_a_broken_file_at_the_start_is_an_error_with_file_and_line(daemon, text):
    daemon.config_path.write_text(text, encoding="utf-8")
    done = run_second(daemon, "--print-config")
    assert done.returncode == 2, done
    assert str(daemon.config_path) in done.stderr


def test_a_runtime_directory_that_others_can_write_is_refused():
    daemon = Daemon()
    try:
        daemon.address.mkdir(mode=0o777)
        daemon.address.chmod(0o777)
        done = run_second(daemon)
        assert done.returncode not in (0, None)
        assert str(daemon.address) in done.stderr
    finally:
        daemon._sweep()


def test_job_stop_fails_everything_with_the_reason_and_the_other_job_goes_on(daemon):
    daemon.allow("job-stopped", "session-ended", "rank-ended")
    job, other = Job(daemon, 2), Job(daemon, 2)
    ops = [rank.submit("barrier", "b") for rank in job.ranks[:1]]
    job.ranks[0].post_wait(ops[0])
    daemon.ctl.json("job", "stop", job.name)
    outcome = job.ranks[0].collect_outcome()
    assert outcome.status == Status.ERR_JOB_STOPPED and outcome.text, outcome
    wait_until(lambda: [row["job"] for row in daemon.jobs()] == [other.name], "the stopped job to end")
    other.check_usable()
    done = daemon.ctl.run("job", "stop", job.name)
    assert done.returncode == 1


def test_sigterm_to_an_idle_daemon_ends_it_quickly_whatever_the_drain_time():
    with Daemon(options={"drain-timeout": "1h"}) as daemon:
        began_ns = time.monotonic_ns()
        assert daemon.terminate() == 0
        check_prompt("hvdd ended", time.monotonic_ns() - began_ns, 2_000_000_000)


def test_an_idle_daemon_and_engine_use_no_processor(daemon):
    job = Job(daemon, 2)
    job.check_usable()
    watched = [daemon.pid, *daemon.engines(), *(rank.pid for rank in job.ranks)]

    def ticks() -> list[int]:
        values = []
        for pid in watched:
            fields = open(f"/proc/{pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
            values.append(int(fields[11]) + int(fields[12]))
        return values

    before = ticks()
    threading.Event().wait(1.0)  # what is measured is a second of doing nothing
    used = [after - start for start, after in zip(before, ticks())]
    assert max(used) <= 0.05 * os.sysconf("SC_CLK_TCK"), f"ticks in one idle second: {dict(zip(watched, used))}"


def test_jobs_still_start_after_the_package_was_removed(tmp_path):
    engine = shutil.copy2(program("hvdd-engine"), tmp_path / "hvdd-engine")
    with Daemon(options={"engine": engine}) as daemon:
        os.unlink(engine)
        Job(daemon, 2).check_usable()
