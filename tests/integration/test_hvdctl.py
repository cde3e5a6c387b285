# SPDX-License-Identifier: Apache-2.0
"""hvdctl against real daemons: tables, JSON, exit codes, and short answers where no daemon is."""
import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

from hvt import CtlError, Status, check_prompt, procs, program, scaled, stopped, wait_until
from hvt.daemon import clean_environment
from hvt.job import Job


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """hvdctl without any daemon configured."""
    return subprocess.run([program("hvdctl"), *arguments], env=clean_environment() | environment, capture_output=True,
                          text=True, timeout=scaled(30), check=False, stdin=subprocess.DEVNULL)


# ---- a running daemon ------------------------------------------------------------------------------------------------


def test_status_says_who_and_where(daemon):
    status = daemon.ctl.json("status")["daemon"]
    assert status["pid"] == daemon.pid and status["uid"] == os.geteuid() and status["state"] == "running"
    assert status["runtime_dir"] == str(daemon.address) and status["uptime_ns"] > 0
    assert status["gpu_program"].endswith("/libexec/hvdd/hvdd-gpu") and status["gpu_kernels"] == status["gpu_library_path"] == ""
    table = daemon.ctl.run("status")
    assert table.returncode == 0 and f"pid {daemon.pid}, user " in table.stdout and str(daemon.address) in table.stdout
    assert not table.stderr and "\033" not in table.stdout


def test_jobs_and_ranks_show_a_running_job(daemon):
    job = Job(daemon, 2, name="shown")
    job.check_usable()
    for words in (("jobs",), ("job", "list")):
        row = next(row for row in daemon.ctl.json(*words)["jobs"] if row["job"] == "shown")
        assert row["size"] == row["attached"] == 2 and row["state"] == "running" and row["uid"] == os.geteuid()
        assert procs.cmdline(row["engine_pid"]).split()[0].endswith("hvdd-engine")
    for words in (("ranks", "shown"), ("job", "ranks", "shown")):
        rows = daemon.ctl.json(*words)["ranks"]
        assert [row["rank"] for row in rows] == [0, 1]
        for row, rank in zip(rows, job.ranks):
            assert row["pid"] == rank.pid and row["state"] == "attached" and row["origin"] == "arguments"
            assert row["ops"] >= 1 and row["in_flight"] == 0
    table = daemon.ctl.run("ranks", "shown").stdout
    assert re.search(rf"^ +0 +{job.ranks[0].pid} +\S+ +attached +(sleeping|running) \(", table, re.MULTILINE), table
    assert "  2/2  " in daemon.ctl.run("jobs").stdout


def test_stalls_name_tensor_and_missing_rank_and_that_it_is_stopped(daemon):
    job = Job(daemon, 3, name="stuck")
    ops = [job.ranks[rank].submit("barrier", "the_gate") for rank in (0, 2)]
    with stopped(job.ranks[1].pid):
        rows = wait_until(lambda: daemon.ctl.json("stalls", "stuck")["stalls"], "the op to show up", step=0.05)
        assert [row["tensor"] for row in rows] == ["the_gate"]
        assert rows[0]["op"] == "barrier" and rows[0]["ready"] == [0, 2] and rows[0]["age_ns"] > 0
        assert rows[0]["missing"] == [{"rank": 1, "pid": job.ranks[1].pid, "process": "T",
                                       "waits_in": rows[0]["missing"][0]["waits_in"]}]
        table = daemon.ctl.run("stalls").stdout
        assert f"1 (pid {job.ranks[1].pid}, stopped (T)" in table and "0,2" in table, table
        assert not daemon.ctl.json("stalls", "--min-age", "1000")["stalls"]
        assert daemon.ctl.run("stalls", "--min-age", "1000").stdout == "nothing waits\n"
    assert job.ranks[1].submit("barrier", "the_gate") is not None
    assert all(job.ranks[rank].wait(op).ok for rank, op in zip((0, 2), ops))


def test_a_rank_that_has_not_come_is_not_attached(daemon):
    lonely = daemon.rank()
    lonely.open("half", 0, 2)
    lonely.submit("barrier", "wait")
    row = wait_until(lambda: daemon.ctl.json("stalls", "half")["stalls"], "the op to show up", step=0.05)[0]
    assert row["missing"][0]["rank"] == 1 and row["missing"][0]["pid"] == 0
    assert "1 (not attached)" in daemon.ctl.run("stalls", "half").stdout


def test_job_stop_ends_a_job_with_the_reason_on_its_ranks(daemon):
    daemon.allow("rank-lost", "job-stopped", "stopped", "job-stop")
    job = Job(daemon, 2, name="unwanted")
    op = job.ranks[0].submit("barrier", "never")
    done = daemon.ctl.run("job", "stop", "unwanted", "--reason", "the weather is too nice")
    assert done.returncode == 0 and "unwanted" in done.stdout, done.stderr
    outcome = job.ranks[0].wait(op)
    assert outcome.status == Status.ERR_JOB_STOPPED and "the weather is too nice" in outcome.text
    wait_until(lambda: "unwanted" not in [row["job"] for row in daemon.jobs()], "the job to end", step=0.05)


@pytest.mark.parametrize("lead", ["", "x"])
def test_a_long_reason_is_cut_between_characters(daemon, lead):
    daemon.allow("rank-lost", "job-stopped", "stopped", "job-stop")
    job = Job(daemon, 2, name=127 * "j")
    op = job.ranks[0].submit("barrier", "never")
    assert daemon.ctl.run("job", "stop", job.name, "--reason", lead + 400 * "\u00fc").returncode == 0
    outcome = job.ranks[0].wait(op)
    assert outcome.status == Status.ERR_JOB_STOPPED and "\u00fc\u00fc" in outcome.text, outcome
    wait_until(lambda: job.ranks[1].state().status == Status.ERR_JOB_STOPPED, "the idle rank to be told")


@pytest.mark.parametrize("words", [("ranks", "nobody"), ("stalls", "nobody"), ("job", "stop", "nobody")])
def test_an_unknown_job_is_exit_code_1(daemon, words):
    done = daemon.ctl.run(*words)
    assert done.returncode == 1 and "nobody" in done.stderr and not done.stdout
    done = daemon.ctl.run(*words, "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["status"] == Status.ERR_NOT_FOUND and error["name"] == "ERR_NOT_FOUND" and "nobody" in error["text"]


def test_an_empty_daemon_says_so_in_words(daemon):
    assert daemon.ctl.run("jobs").stdout == "no jobs\n"
    assert daemon.ctl.run("stalls").stdout == "nothing waits\n"
    assert daemon.ctl.json("jobs")["jobs"] == [] and daemon.ctl.json("stalls")["stalls"] == []


def test_version_names_both(daemon):
    assert re.fullmatch(r"hvdctl (\S+)\nhvdd \1\n", daemon.ctl.run("version").stdout)
    versions = daemon.ctl.json("version")
    assert versions["hvdctl"] == versions["hvdd"] and versions["protocol"] == 1
    assert "hvdd (none running)" in run("version", "--address", "/nonexistent").stdout


def test_colours_are_for_terminals_without_no_color(daemon):
    def on_terminal(**environment: str) -> bytes:
        master, slave = pty.openpty()
        inherited = {name: value for name, value in daemon.ctl.environment.items() if name not in ("NO_COLOR", "TERM")}
        process = subprocess.Popen([program("hvdctl"), "status"], env=inherited | {"TERM": "xterm"} | environment,
                                   stdout=slave, stdin=subprocess.DEVNULL)
        os.close(slave)
        assert process.wait(scaled(20)) == 0
        seen = b""
        while select.select([master], [], [], 0.2)[0]:
            try:
                part = os.read(master, 4096)
            except OSError:
                break
            seen += part
        os.close(master)
        return seen

    assert b"\033[" in on_terminal() and b"\033[" not in on_terminal(NO_COLOR="1")


def test_options_may_stand_anywhere(daemon):
    for words in (("--json", "status"), ("status", "--json"), ("--timeout", "9", "status", "--json")):
        assert json.loads(daemon.ctl.run(*words).stdout)["daemon"]["pid"] == daemon.pid


# ---- no daemon -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("status",), ("jobs",), ("ranks", "x"), ("stalls",), ("job", "stop", "x")])
def test_no_daemon_is_exit_code_3_at_once(words):
    began_ns = time.monotonic_ns()
    done = run(*words, "--address", "/nonexistent/hvdd")
    check_prompt("hvdctl ended", time.monotonic_ns() - began_ns, 1_000_000_000)
    assert done.returncode == 3
    assert "/nonexistent/hvdd (nothing there)" in done.stderr and "Start one" in done.stderr and not done.stdout


def test_every_place_that_was_tried_is_named():
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder:
        done = run("status", XDG_RUNTIME_DIR=folder)
        if done.returncode == 0:
            pytest.skip("a hvdd of the system runs here")
        assert done.returncode == 3
        places = [f"{folder}/hvdd", "/run/hvdd", f"/tmp/hvdd-{os.geteuid()}"]
        assert [done.stderr.index(f"{place} (") for place in places] == sorted(
            done.stderr.index(f"{place} (") for place in places)


def test_json_without_a_daemon_is_json():
    done = run("jobs", "--json", "--address", "/nonexistent/hvdd")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["name"] == "ERR_NO_DAEMON"


def test_a_stale_socket_is_no_daemon(daemon):
    daemon.kill()
    assert daemon.admin_path.exists()
    began_ns = time.monotonic_ns()
    done = daemon.ctl.run("status")
    check_prompt("hvdctl ended", time.monotonic_ns() - began_ns, 1_000_000_000)
    assert done.returncode == 3
    assert "nobody listens" in done.stderr
    daemon.start()
    assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid


def test_a_stopped_daemon_is_given_up_after_the_timeout(daemon):
    with stopped(daemon.pid):
        began_ns = time.monotonic_ns()
        done = daemon.ctl.run("status", "--timeout", "0.5")
        took_ns = time.monotonic_ns() - began_ns
    check_prompt("hvdctl ended", took_ns, 3_000_000_000)
    assert done.returncode == 3 and took_ns >= 500_000_000
    assert "did not answer within 500.0 ms" in done.stderr and str(daemon.address) in done.stderr


def test_something_else_on_the_socket_is_given_up_too():
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/admin.sock")
        server.listen(8)
        done = run("status", "--address", folder, "--timeout", "0.3")
        assert done.returncode == 3 and "did not answer" in done.stderr


def test_a_timeline_waits_for_its_place_in_a_queue_that_is_full():
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, \
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as queued:
        server.bind(f"{folder}/attach.sock")
        server.listen(0)
        server.settimeout(scaled(5))
        queued.connect(f"{folder}/attach.sock")
        full = run("timeline", "j", "stop", "--address", folder, "--timeout", "0.2")
        assert full.returncode == 3 and "queue of connections stays full" in full.stderr
        opener = threading.Timer(0.3, lambda: [server.accept()[0].close() for _ in range(2)])
        opener.start()
        done = run("timeline", "j", "stop", "--address", folder)
        opener.join()
        assert done.returncode == 3 and "did not answer" in done.stderr


def test_a_path_too_long_for_a_socket_is_usage():
    done = run("status", "--address", "/" + "x" * 150)
    assert done.returncode == 2 and "longer than" in done.stderr


# ---- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, part", [
    ((), "which command"), (("frobnicate",), "frobnicate"), (("job", "frobnicate"), "job frobnicate"), (("ranks",), "JOB"),
    (("ranks", "a", "b"), "JOB"), (("status", "x"), "usage: hvdctl status\n"), (("job",), "See hvdctl help job."),
    (("timeline", "j"), "JOB stop"), (("status", "--timeout", "soon"), "soon"),
    (("stalls", "--min-age", "-1"), "-1"), (("ranks", "no/slash"), "no/slash"), (("help", "frobnicate"), "frobnicate")])
def test_wrong_usage_is_exit_code_2_and_says_what(words, part):
    done = run(*words)
    assert done.returncode == 2 and part in done.stderr and not done.stdout


def test_an_unknown_option_is_usage():
    done = run("status", "--frobnicate")
    assert done.returncode == 2 and "frobnicate" in done.stderr


def test_help_lists_every_command():
    done = run("help")
    assert done.returncode == 0 and done.stdout == run("--help").stdout
    for words in ("status", "jobs", "ranks JOB", "stalls [JOB]", "job stop JOB", "doctor", "version"):
        assert f"\n  {words} " in done.stdout
    assert "job stop" in run("help", "job").stdout and "doctor" not in run("help", "job").stdout.split("Options")[0]


# ---- doctor ----------------------------------------------------------------------------------------------------------


def doctor(*arguments: str, **environment: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and the checks by name."""
    done = run("doctor", "--json", *arguments, **environment)
    document = json.loads(done.stdout)
    checks = {check["check"]: check for check in document["checks"]}
    assert all(check["result"] in ("ok", "note", "problem") for check in checks.values())
    problems = [name for name, check in checks.items() if check["result"] == "problem"]
    assert document["problems"] == len(problems) and done.returncode == (1 if problems else 0)
    for name in problems:
        assert checks[name]["next"], f"{name} is a problem without a next step"
    return done.returncode, checks


def test_doctor_looks_at_everything():
    _, checks = doctor()
    assert set(checks) >= {"kernel", "cores", "memory", "sealed memfd", "pidfd", "open files", "locked memory", "/dev/shm",
                           "huge pages (shmem)", "ptrace scope", "runtime directory", "systemd", "CUDA driver", "NCCL",
                           "GPU kernels", "hvdd", "host name", "interface", "MTU", "ports", "socket buffers"}
    assert checks["sealed memfd"]["result"] == "ok" and checks["pidfd"]["result"] == "ok"
    assert f"{len(os.sched_getaffinity(0))} usable" in checks["cores"]["value"]


def test_doctor_knows_a_running_daemon_and_an_absent_one(daemon):
    _, checks = doctor(HVD_ADDRESS=str(daemon.address))
    assert checks["hvdd"]["result"] == "ok" and f"pid {daemon.pid}" in checks["hvdd"]["value"]
    _, checks = doctor(HVD_ADDRESS="/nonexistent")
    assert checks["hvdd"]["result"] == "note" and "/nonexistent" in checks["hvdd"]["value"]


def test_doctor_notes_a_runtime_directory_that_is_not_used():
    with tempfile.TemporaryDirectory(prefix="hvt-") as folder:
        pathlib.Path(folder).chmod(0o777)
        _, checks = doctor(XDG_RUNTIME_DIR=folder)
        assert checks["runtime directory"]["result"] == "note"
        assert "0777" in checks["runtime directory"]["value"] and "mode 0700" in checks["runtime directory"]["next"]
    _, checks = doctor(XDG_RUNTIME_DIR=f"{folder}/gone")
    assert checks["runtime directory"]["result"] == "note" and "/tmp will do" in checks["runtime directory"]["value"]


def test_doctor_finds_too_few_descriptors():
    done = subprocess.run(["sh", "-c", f"ulimit -n 100; exec {program('hvdctl')} doctor"], env=clean_environment(),
                          capture_output=True, text=True, timeout=scaled(30), check=False)
    assert done.returncode == 1
    assert re.search(r"^problem +open files +100 open files", done.stdout, re.MULTILINE)
    assert "-> ulimit -n 4096" in done.stdout and "1 problem\n" in done.stdout


def test_doctor_does_not_hang_on_a_stopped_daemon(daemon):
    with stopped(daemon.pid):
        began_ns = time.monotonic_ns()
        _, checks = doctor(HVD_ADDRESS=str(daemon.address))
        check_prompt("hvdctl ended", time.monotonic_ns() - began_ns, 5_000_000_000)
    assert "does not answer" in checks["hvdd"]["value"]


def test_a_refusal_is_an_error_with_hvdds_sentence(daemon):
    with pytest.raises(CtlError) as error:
        daemon.ctl.json("ranks", "nobody")
    assert error.value.code == 1


def test_a_closed_output_is_no_crash(daemon):
    process = subprocess.Popen([program("hvdctl"), "help"], env=daemon.ctl.environment, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(scaled(10)) in (0, 1, -signal.SIGPIPE)
