# SPDX-License-Identifier: Apache-2.0
"""hvdrun: ranks of /bin/sh (and of hvt-rank and hvd-perf where ops matter) start, talk and end together."""
import contextlib
import ctypes.util
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from hvt import Daemon, procs, program, sanitized, scaled, wait_until
from hvt.build import BUILD as BUILD_FOLDER, SOURCE
from hvt.containers import may_be_made
from hvt.launcher import Launcher, line_of, send_again
from hvt.namespaces import NEW_FS, NEW_MOUNT, Inside


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """A Launcher; afterwards nothing may be left."""
    running = Launcher()
    try:
        yield running
        running.check_gone()
    finally:
        running.sweep()


# ---- what the ranks get ----------------------------------------------------------------------------------------------


def test_every_rank_gets_its_identity_and_an_address(launcher):
    done = launcher.run("-np", "3", "sh", "-c", "env | grep -E '^(HVD|HOROVOD)_|^PYTHONUNBUFFERED'")
    assert done.returncode == 0 and not done.stderr
    ranks = {rank: {} for rank in "012"}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"\[(\d)\]<stdout>:(\w+)=(.*)", line)
        ranks[match[1]][match[2]] = match[3]
    for rank, seen in ranks.items():
        for family in ("HVD", "HOROVOD"):
            assert [seen[f"{family}_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK",
                                                          "CROSS_SIZE")] == [rank, "3", rank, "3", "0", "1"]
        assert seen["HOROVOD_HOSTNAME"] == os.uname().nodename
        assert seen["PYTHONUNBUFFERED"] == "1"
        assert seen["HVD_ADDRESS"].startswith(f"{launcher.folder}/hvdrun-")
        assert re.fullmatch(r"hvdrun-[0-9a-f]{16}", seen["HVD_JOB_ID"])
        assert re.fullmatch(r"[0-9a-f]{32}", seen["HVD_JOB_KEY"])
    assert len({seen["HVD_JOB_ID"] for seen in ranks.values()}) == 1
    again = launcher.run("-np", "1", "sh", "-c", "echo $HVD_JOB_ID")
    assert ranks["0"]["HVD_JOB_ID"] not in again.stdout, "two launches have the same job id"


def test_the_private_directory_is_closed_to_others(launcher):
    done = launcher.run("-np", "1", "sh", "-c", "stat -c %a $HVD_ADDRESS; ls $HVD_ADDRESS")
    assert "[0]<stdout>:700\n" in done.stdout
    assert "attach.sock" in done.stdout and "admin.sock" in done.stdout


def test_options_for_the_ranks_reach_their_environment(launcher):
    inherited = {"HVD_LOG_LEVEL": "trace", "HOROVOD_LOG_LEVEL": "trace", "HVD_FUSION_THRESHOLD": "7", "HVD_KEPT": "1"}
    done = launcher.run("-np", "2", "--log-level", "ERROR", "--no-stall-check", "--stall-check-warning-time-seconds", "7",
                        "--fusion-threshold-mb", "3", "--cache-capacity=0", "--log-without-timestamp", "--autotune",
                        "--autotune-log", "a.csv", "--hierarchical-allreduce", "sh", "-c", "env", environment=inherited)
    assert done.returncode == 0
    for rank in range(2):
        seen = dict(re.findall(rf"^\[{rank}\]<stdout>:(\w+)=(.*)$", done.stdout, re.MULTILINE))
        wanted = {"LOG_LEVEL": "ERROR", "STALL_CHECK_DISABLE": "1", "STALL_CHECK_TIME_SECONDS": "7",
                  "FUSION_THRESHOLD": str(3 << 20), "CACHE_CAPACITY": "0", "LOG_HIDE_TIME": "1", "AUTOTUNE": "1",
                  "AUTOTUNE_LOG": "a.csv", "HIERARCHICAL_ALLREDUCE": "1"}
        assert {name: seen.get(f"HOROVOD_{name}") for name in wanted} == wanted
        assert not [name for name in wanted if f"HVD_{name}" in seen], "an inherited HVD_X would win"
        assert seen["HVD_KEPT"] == "1"
    assert done.stderr.splitlines() == [
        "hvdrun: --autotune, --autotune-log-file: accepted without effect: hvdd has nothing of what it tunes (fusion buffer, "
        "cycle time, response cache, hierarchy)",
        "hvdrun: --hierarchical-allreduce: accepted without effect: there is no hierarchy to choose"]


def test_a_job_without_options_tells_the_ranks_nothing_more(launcher):
    done = launcher.run("-np", "1", "sh", "-c", "env")
    names = set(re.findall(r"^\[0\]<stdout>:((?:HVD|HOROVOD)_\w+)=", done.stdout, re.MULTILINE))
    each = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert names == {f"{family}_{name}" for family in ("HVD", "HOROVOD") for name in each} | {
        "HOROVOD_HOSTNAME", "HVD_ADDRESS", "HVD_JOB_ID", "HVD_JOB_KEY", "HVD_TEST_TOKEN"}


def manual_example() -> str:
    """The configuration file that the man page shows."""
    page = (SOURCE / "docs/man/hvdrun.1.scd").read_text()
    return re.search(r"^# CONFIGURATION FILE\n.*?^```\n(.*?)^```\n", page, re.MULTILINE | re.DOTALL)[1]


def test_a_configuration_file_reaches_the_ranks_and_the_command_line_wins(launcher):
    (launcher.folder / "config.yaml").write_text(manual_example())
    done = launcher.run("-np", "1", "--config-file", "config.yaml", "--cache-capacity", "5", "--no-stall-check", "sh", "-c",
                        "env")
    assert done.returncode == 0 and "ignored" not in done.stderr, done.stderr
    for setting in ("FUSION_THRESHOLD=1048576", "CYCLE_TIME=1", "CACHE_CAPACITY=5", "TIMELINE=timeline.json",
                    "STALL_CHECK_DISABLE=1", "STALL_CHECK_TIME_SECONDS=60", "LOG_LEVEL=INFO", "LOG_HIDE_TIME=0"):
        assert f"[0]<stdout>:HOROVOD_{setting}\n" in done.stdout
    (launcher.folder / "config.yaml").write_text("timeline:\n  filename: t.json\n  mark_cycles: sometimes\n")
    done = launcher.run("-np", "1", "--config-file", "config.yaml", "true")
    assert done.returncode == 2 and "config.yaml:3: timeline.mark_cycles cannot be 'sometimes'" in done.stderr


def test_the_manual_shows_every_key_of_the_configuration_file():
    rows = (SOURCE / "tools/hvdrun/flags.def").read_text().partition("\nRUN_GROUP")[2]
    keys = set(re.findall(r'"((?:controller|[a-z_]+\.[a-z_]+))(?:=\w+)?"', rows))
    shown, section = set(), ""
    for line in manual_example().splitlines():
        indent, name = re.match(r"( *)(\w+):", line).groups()
        section = section if indent else name
        shown.add(f"{section}.{name}" if indent else name)
    assert keys and shown - {key.split(".")[0] for key in keys if "." in key} == keys


def test_ranks_find_what_torch_distributed_looks_for(launcher):
    done = launcher.run("-np", "2", "sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT")
    rows = [line.split(":", 1)[1].split() for line in sorted(done.stdout.splitlines())]
    assert [row[:5] for row in rows] == [[str(rank), "2", str(rank), "2", "127.0.0.1"] for rank in range(2)]
    assert rows[0][5] == rows[1][5] and 0 < int(rows[0][5]) < 65536


def test_a_hostfile_gives_the_slots(launcher):
    (launcher.folder / "hosts").write_text("# this machine, named twice\nlocalhost slots=1\nlocalhost:2\n")
    done = launcher.run("-hostfile", "hosts", "sh", "-c", "echo $HVD_LOCAL_RANK of $HVD_LOCAL_SIZE")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{rank} of 3" for rank in range(3)]
    done = launcher.run("-np", "4", "--hostfile", "hosts", "true")
    assert done.returncode == 2 and "Requested more processes (4) than there are available slots (3)" in done.stderr


def test_rank_zero_has_hvdruns_input_and_the_others_have_none(launcher):
    done = launcher.run("-np", "3", "sh", "-c", "wc -c", given=b"x" * 100000)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:100000", "[1]<stdout>:0", "[2]<stdout>:0"]


def test_signals_are_as_a_shell_would_leave_them(launcher):
    """hvdrun blocks signals and ignores SIGPIPE for itself: its children must not."""
    done = launcher.run("-np", "1", "sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status")
    masks = dict(re.findall(r"(Sig\w+):\s+([0-9a-f]+)", done.stdout))
    mine = dict(re.findall(r"(Sig\w+):\s+([0-9a-f]+)", pathlib.Path("/proc/self/status").read_text()))
    assert int(masks["SigBlk"], 16) == 0
    assert not int(masks["SigIgn"], 16) & ~int(mine["SigIgn"], 16)


def test_a_parent_that_ignores_ends_of_children_hurts_nobody(launcher):
    """An ignored SIGCHLD is inherited: the kernel would reap every child, and its exit status would be lost."""
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    for command, code in ((("sh", "-c", "exit 3"), 3), ((program("hvd-perf"), "-b", "4", "-e", "4", "-i", "5"), 0)):
        done = launcher.run("-np", "2", *command, preexec_fn=ignore)  # pylint: disable=subprocess-popen-preexec-fn
        assert done.returncode == code, done.stderr


def test_ranks_are_bound_to_one_core_each_when_asked(launcher):
    usable = sorted(os.sched_getaffinity(0))
    ranks = len(usable) + 1
    script = "grep Cpus_allowed_list /proc/self/status"
    done = launcher.run("-np", str(ranks), "--bind-to", "core", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    cores = dict(re.findall(r"^\[(\d+)\]<stdout>:\s*Cpus_allowed_list:\s*(\S+)$", done.stdout, re.MULTILINE))
    assert cores == {str(rank): str(usable[rank % len(usable)]) for rank in range(ranks)}, done.stdout
    done = launcher.run("-np", "1", "--bind-to", "socket", "true")
    assert done.returncode == 2 and "--bind-to takes core, host or none, not 'socket'" in done.stderr


def test_a_closed_standard_input_hurts_nobody(launcher):
    done = launcher.run("-np", "2", "sh", "-c", "echo ok", stdin=None,
                        preexec_fn=lambda: os.close(0))  # pylint: disable=subprocess-popen-preexec-fn
    assert done.returncode == 0 and done.stdout.count(":ok\n") == 2


# ---- output ----------------------------------------------------------------------------------------------------------


def test_lines_carry_rank_and_stream(launcher):
    done = launcher.run("-np", "2", "sh", "-c", "echo out $HVD_RANK; echo err $HVD_RANK >&2; printf end")
    assert sorted(done.stdout.replace("end[", "end\n[").splitlines()) == [
        "[0]<stdout>:end", "[0]<stdout>:out 0", "[1]<stdout>:end", "[1]<stdout>:out 1"]
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>:err 0", "[1]<stderr>:err 1"]


def test_lines_of_many_ranks_are_never_torn(launcher):
    done = launcher.run("-np", "6", "sh", "-c", "i=0; while [ $i -lt 300 ]; do echo begin-$HVD_RANK-$i-end; i=$((i+1)); done")
    lines = done.stdout.splitlines()
    assert len(lines) == 1800
    order = {rank: [] for rank in range(6)}
    for line in lines:
        match = re.fullmatch(r"\[(\d)\]<stdout>:begin-(\d)-(\d+)-end", line)
        assert match and match[1] == match[2], line
        order[int(match[1])].append(int(match[3]))
    assert all(seen == list(range(300)) for seen in order.values()), "a rank's lines are out of order"


def test_half_a_gigabyte_passes_without_losing_a_byte(launcher):
    script = "yes 0123456789abcdef0123456789abcdef0123456789abcdef | head -c 49000000"
    digest = subprocess.run(["sh", "-c", script + " | md5sum"], capture_output=True, check=True).stdout.split()[0]
    done = subprocess.run(["sh", "-c", f"{program('hvdrun')} -np 1 --no-prefix sh -c '{script}' | md5sum"],
                          env=launcher.environment, capture_output=True, check=True, timeout=scaled(60))
    assert done.stdout.split()[0] == digest
    # Lines are not counted: one whose writer was kept from running for 200 ms is shown in two parts.
    count = r"""LC_ALL=C awk -F: '!/^\[[0-9]\]<stdout>:[0-9a-f]*$/ {bad++} {bytes += length($2)} END {print bad + 0, bytes}'"""
    counted = subprocess.run(["sh", "-c", f"{program('hvdrun')} -np 10 sh -c '{script}' | {count}"],
                             env=launcher.environment, capture_output=True, text=True, check=True, timeout=scaled(120))
    assert counted.stdout.split() == ["0", str(10 * 1_000_000 * 48)]


@pytest.mark.parametrize("where", [("-np", "3"), ("-H", "localhost:2,127.0.0.1:1")], ids=["one host", "two hosts"])
def test_a_slow_reader_tears_no_line(launcher, where):
    """Everything is full for longer than an unfinished line is held back."""
    process = launcher.start(*where, "sh", "-c", "yes 0123456789abcdef | head -c 17000000")
    time.sleep(0.8)  # not a wait for something: longer than a partial line is held
    lines = process.communicate(timeout=scaled(60))[0].decode().splitlines()
    assert len(lines) == 3_000_000
    assert {line[3:] for line in lines} == {"<stdout>:0123456789abcdef"}


def test_the_last_words_wait_for_their_reader(launcher):
    """The pipe has room for what the rank prints, and for no more of hvdrun's own words than how the rank has ended."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
    script = "head -c 4000 /dev/zero | tr '\\0' x; echo; exit 3"
    process = launcher.start("-np", "1", "--no-prefix", "sh", "-c", script, stdout=into, stderr=into)
    os.close(into)
    with open(out, "rb") as stream:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits now, or is about to
            process.wait(scaled(1.5))
        text = stream.read().decode()
    assert process.wait(scaled(20)) == 3
    assert text.startswith("x" * 4000 + "\nhvdrun: rank 0") and text.endswith("Exit code: 3\n"), text[4000:]


def test_any_bytes_pass(launcher):
    path = launcher.folder / "bytes"
    path.write_bytes(os.urandom(3_000_000))
    done = launcher.run("-np", "1", "--no-prefix", "cat", str(path), text=False)
    assert done.stdout == path.read_bytes()
    done = launcher.run("-np", "1", "cat", str(path), text=False)
    assert done.stdout.replace(b"[0]<stdout>:", b"") == path.read_bytes()


def test_a_very_long_line_passes(launcher):
    done = launcher.run("-np", "1", "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo")
    assert done.stdout == "[0]<stdout>:" + "x" * 5_000_000 + "\n"


def test_a_prompt_without_newline_is_shown_soon(launcher):
    process = launcher.start("-np", "1", "sh", "-c", "printf 'name? '; read x; echo hello $x", stdin=subprocess.PIPE)
    try:
        line_of(process.stdout, rb"name\? $", 5)
        process.stdin.write(b"you\n")
        process.stdin.flush()
        line_of(process.stdout, rb"hello you", 5)
        assert process.wait(scaled(10)) == 0
    finally:
        process.kill()
        process.communicate()


def test_timestamps_precede_the_prefix(launcher):
    done = launcher.run("-np", "1", "--prefix-output-with-timestamp", "echo", "x")
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x\n", done.stdout)


def test_output_files_hold_what_each_rank_wrote(launcher):
    done = launcher.run("-np", "11", "--output-filename", "logs/of/it", "sh", "-c", "echo o$HVD_RANK; echo e$HVD_RANK >&2")
    assert done.returncode == 0 and "[10]<stdout>:o10\n" in done.stdout
    logs = launcher.folder / "logs/of/it"
    assert sorted(path.name for path in logs.iterdir()) == [f"rank.{rank:02}" for rank in range(11)]
    for rank in range(11):
        assert (logs / f"rank.{rank:02}/stdout").read_text() == f"o{rank}\n"
        assert (logs / f"rank.{rank:02}/stderr").read_text() == f"e{rank}\n"


def test_one_rank_needs_no_padding(launcher):
    assert launcher.run("-np", "1", "--output-filename", "logs", "true").returncode == 0
    assert (launcher.folder / "logs/rank.0/stdout").exists()


def test_an_impossible_output_directory_is_an_error_before_anything_runs(launcher):
    (launcher.folder / "file").touch()
    done = launcher.run("-np", "2", "--output-filename", "file/logs", "sh", "-c", "echo ran")
    assert done.returncode == 1 and "file/logs" in done.stderr and "ran" not in done.stdout


def test_ranks_end_when_nobody_reads_hvdrun_any_more(launcher):
    process = launcher.start("-np", "2", "yes")
    os.read(process.stdout.fileno(), 100)
    process.stdout.close()
    assert process.wait(scaled(20)) == 128 + signal.SIGPIPE
    assert b"SIGPIPE" in process.stderr.read()
    process.stderr.close()


def test_a_full_disk_is_told_and_does_not_end_the_job(launcher):
    with open("/dev/full", "wb") as full:
        done = launcher.run("-np", "1", "sh", "-c", "echo x; sleep 0.3; echo y; echo done >&2", stdout=full)
    assert done.returncode == 1
    assert "cannot write to stdout: No space left on device" in done.stderr and "[0]<stderr>:done" in done.stderr


def test_a_reader_that_sleeps_does_not_keep_signals_out(launcher):
    """stdout is full and nobody reads: a signal still ends everything."""
    process = launcher.start("-np", "2", "yes")
    try:
        wait_until(lambda: len(launcher.processes()) >= 4, "the ranks to start")
        time.sleep(0.5)  # not a wait for something: enough to fill every buffer
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not any(line == "yes" for line in launcher.processes().values()), "the ranks to end")
        send_again(process, signal.SIGTERM)
        assert process.wait(scaled(20)) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_terminal_is_relayed_to_rank_zero(launcher):
    """Rank 0 is in a background process group: reading the terminal itself would stop it."""
    master, slave = pty.openpty()
    script = f"exec {program('hvdrun')} -np 2 --no-prefix sh -c 'read x; echo got-$x-$HVD_RANK'"
    process = subprocess.Popen(["setsid", "-c", "sh", "-c", script], env=launcher.environment, stdin=slave, stdout=slave,
                               stderr=slave)
    os.close(slave)
    seen = b""
    try:
        os.write(master, b"hello\n")
        deadline = time.monotonic() + scaled(15)
        while not (b"got-hello-0" in seen and b"got--1" in seen) and time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 4096)
        assert b"got-hello-0" in seen and b"got--1" in seen, seen
        assert process.wait(scaled(10)) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_hvdd_and_its_engine_have_the_session_of_hvdrun_and_process_groups_of_their_own(launcher):
    """The kernel shares cores among sessions. A Ctrl-C is for all of a process group."""
    process = launcher.start("-np", "2", program("hvd-perf"), "--idle", "60", start_new_session=True)
    try:
        wait_until(lambda: "hvdd-engine" in map(procs.name, launcher.processes()), "an engine")
        ours = [pid for pid in launcher.processes() if procs.name(pid).startswith("hvdd")]
        assert len(ours) >= 2, launcher.processes()
        assert {os.getsid(pid) for pid in ours} == {process.pid}
        assert len({os.getpgid(pid) for pid in [*ours, process.pid]}) == len(ours) + 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(20)) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    launcher.check_gone()


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script, code", [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137),
                                          ("kill -TERM $$", 143), ("kill -SEGV $$", 139)])
def test_the_exit_code_is_the_ranks(launcher, script, code):
    assert launcher.run("-np", "2", "sh", "-c", script).returncode == code


def test_a_rank_that_ends_early_and_well_is_fine(launcher):
    done = launcher.run("-np", "3", "sh", "-c", "[ $HVD_RANK = 1 ] || { sleep 0.5; echo late; }")
    assert done.returncode == 0 and done.stdout.count(":late\n") == 2 and not done.stderr


def test_a_failure_ends_the_others_and_is_named(launcher):
    process = launcher.start("-np", "4", "sh", "-c",
                             "if [ $HVD_RANK = 2 ]; then sleep 0.2; kill -9 $$; fi; sleep 1000 & wait")
    _, err = process.communicate(timeout=scaled(20))
    text = err.decode()
    assert process.returncode == 137
    first = re.search(r"hvdrun: rank 2 \(pid (\d+)\) was killed by signal 9 \(SIGKILL\)\n"
                      r"hvdrun: Terminating remaining workers after failure of Process 2\.\n", text)
    assert first, text
    assert "hvdrun:   rank 2: was killed by signal 9 (SIGKILL), the first to fail\n" in text
    assert "hvdrun:   ranks 0-1,3: ended by hvdrun (SIGTERM)\n" in text
    assert text.endswith("hvdrun detected that one or more processes exited with non-zero status, thus causing the job to be "
                         "terminated. The first process to do so was:\nProcess name: 2\nExit code: 137\n")


def test_called_horovodrun_it_speaks_as_horovod(launcher):
    done = launcher.run("-np", "1", "sh", "-c", "echo ${RANK-none} $HOROVOD_HOSTNAME $HOROVOD_CPU_OPERATIONS; exit 3",
                        called="horovodrun")
    assert done.stdout == "[0]<stdout>:none localhost gloo\n"
    assert done.returncode == 3 and done.stderr.endswith(
        "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The "
        "first process to do so was:\nProcess name: 0\nExit code: 3\n")
    assert launcher.run("--version", called="horovodrun").stdout == launcher.run("-v").stdout.removeprefix("hvdrun ")
    assert launcher.run("--help", called="horovodrun").stdout.startswith("Usage: horovodrun -np N ")


def test_of_a_kill_and_its_consequences_the_kill_is_blamed(launcher):
    """The others fail at the same moment because of it."""
    done = launcher.run("-np", "3", "sh", "-c",
                        "echo $$ > pid.$HVD_RANK; [ $HVD_RANK = 1 ] && { sleep 0.3; kill -9 $$; }; "
                        "until [ -s pid.1 ]; do :; done; read pid < pid.1; "
                        "while [ \"$(cut -d' ' -f3 /proc/$pid/stat)\" != Z ]; do :; done; exit 1")
    assert done.returncode == 137 and "hvdrun: rank 1 (pid" in done.stderr


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_time(launcher):
    started = time.monotonic()
    done = launcher.run("-np", "3", "--grace", "0.5", "sh", "-c",
                        "trap '' TERM; if [ $HVD_RANK = 0 ]; then sleep 0.2; exit 9; fi; while :; do sleep 0.1; done")
    assert done.returncode == 9
    assert 0.5 <= time.monotonic() - started < scaled(10)
    assert "2 ranks are still running after the grace time; killing" in done.stderr
    assert "ranks 1-2: killed by hvdrun (SIGKILL)" in done.stderr


def test_ranks_may_finish_their_work_within_the_grace_time(launcher):
    ready = launcher.folder / "ready"
    done = launcher.run("-np", "2", "sh", "-c",
                        f"if [ $HVD_RANK = 0 ]; then while [ ! -e {ready} ]; do sleep 0.02; done; exit 4; fi; "
                        f"trap 'echo saving; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done")
    ready.unlink()
    assert done.returncode == 4 and "[1]<stdout>:saving\n" in done.stdout


def test_a_stopped_rank_is_ended_too(launcher):
    done = launcher.run("-np", "2", "--grace", "3", "sh", "-c", "if [ $HVD_RANK = 1 ]; then kill -STOP $$; fi; sleep 0.3; exit 5")
    assert done.returncode == 5


def test_grandchildren_end_with_their_rank(launcher):
    done = launcher.run("-np", "2", "--grace", "1", "sh", "-c",
                        "sh -c \"trap '' TERM; sleep 1000\" & [ $HVD_RANK = 0 ] && exit 1; wait")
    assert done.returncode == 1
    launcher.check_gone()


def test_what_successful_ranks_leave_running_ends_too(launcher):
    done = launcher.run("-np", "2", "--grace", "1", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ok")
    assert done.returncode == 0 and done.stdout.count(":ok\n") == 2
    launcher.check_gone()


@pytest.mark.parametrize("start", ["", "setsid "])
def test_orphans_of_ranks_are_gone_once_they_have_ended(launcher, start):
    wait = "i=0; while kill -0 $pid; do i=$((i+1)); [ $i -lt 600 ] || exit 3; sleep 0.05; done"
    orphan = f"pid=$(sh -c '{start}sleep $HVD_RANK.2 >/dev/null & echo $!'); {wait}"  # rank 1's when rank 0 has ended
    done = launcher.run("-np", "2", "sh", "-c", orphan)
    assert done.returncode == 0, done.stderr


def test_late_output_of_a_rank_that_has_ended_is_shown(launcher):
    done = launcher.run("-np", "1", "sh", "-c", "(sleep 0.3; echo late) & exit 0")
    assert done.returncode == 0 and done.stdout == "[0]<stdout>:late\n"


def test_a_process_that_left_its_group_holds_nobody_up(launcher):
    started = time.monotonic()
    done = launcher.run("-np", "1", "sh", "-c", "setsid sleep 30 & echo $! > pid; exit 0")
    assert done.returncode == 0 and time.monotonic() - started < scaled(15)
    for pid, line in launcher.processes().items():
        assert line == "sleep 30"
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("command, code, word", [("hvt-no-such-command", 127, "command not found"),
                                                 ("/etc/passwd", 126, "Permission denied")])
def test_a_command_that_cannot_run_is_named(launcher, command, code, word):
    done = launcher.run("-np", "2", command)
    assert done.returncode == code and command in done.stderr and word in done.stderr


# ---- signals ---------------------------------------------------------------------------------------------------------

TRAPS = ("trap 'echo got-INT; exit 0' INT; trap 'echo got-TERM; exit 0' TERM; trap 'echo got-HUP; exit 0' HUP; "
         "trap 'echo got-QUIT; exit 0' QUIT; trap 'echo got-USR1; exit 0' USR1; trap 'echo got-USR2; exit 0' USR2; "
         "echo ready; while :; do sleep 0.02; done")


def ready(process: subprocess.Popen, ranks: int) -> bytes:
    """Reads stdout until every rank has said that it is ready."""
    seen = b""
    deadline = time.monotonic() + scaled(15)
    while seen.count(b":ready\n") < ranks:
        assert time.monotonic() < deadline, seen
        if select.select([process.stdout], [], [], 0.1)[0]:
            seen += os.read(process.stdout.fileno(), 65536)
    return seen


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_are_passed_on_to_every_rank(launcher, name):
    process = launcher.start("-np", "3", "sh", "-c", TRAPS)
    ready(process, 3)
    process.send_signal(getattr(signal, f"SIG{name}"))
    out, err = process.communicate(timeout=scaled(20))
    assert sorted(out.decode().splitlines()) == [f"[{rank}]<stdout>:got-{name}" for rank in range(3)]
    assert process.returncode == 0
    assert ("received signal" in err.decode()) == (not name.startswith("USR"))


def test_an_interrupted_job_ends_with_the_signals_code(launcher):
    process = launcher.start("-np", "2", "sh", "-c", "echo ready; sleep 1000")
    ready(process, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 130
    assert "received signal 2 (SIGINT); passed on to every rank" in err.decode()


def test_a_second_signal_kills(launcher):
    process = launcher.start("-np", "2", "--grace", "1000", "sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.02; done")
    ready(process, 2)
    process.send_signal(signal.SIGTERM)
    line_of(process.stderr, rb"passed on to every rank")
    send_again(process, signal.SIGTERM)
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 137 and "killing" in err.decode()


def test_stopping_hvdrun_stops_the_ranks_and_continuing_continues_them(launcher):
    process = launcher.start("-np", "2", "sh", "-c", "echo ready; sleep 0.2; exec sleep 1000")
    ready(process, 2)
    ranks = wait_until(lambda: [pid for pid, line in launcher.processes().items() if line == "sleep 1000"],
                       "the ranks to sleep")
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: [procs.state(pid) for pid in (*ranks, process.pid)] == ["T"] * (len(ranks) + 1), "all to stop")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: [procs.state(pid) for pid in (*ranks, process.pid)] == ["S"] * (len(ranks) + 1), "all to go on")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=scaled(20))
    assert process.returncode == 128 + signal.SIGTERM


def test_an_ignored_hangup_stays_ignored(launcher):
    process = launcher.start("-np", "1", "sh", "-c", "echo ready; sleep 0.5; echo survived",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    ready(process, 1)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 0 and b"survived" in out


def test_everything_goes_when_hvdrun_is_killed(launcher):
    process = launcher.start("-np", "3", "sh", "-c", "sleep 1000 & echo ready; sleep 1000")
    ready(process, 3)
    assert launcher.directories()
    process.kill()
    process.communicate()
    launcher.check_gone()


def test_everything_goes_when_all_that_bears_hvdruns_name_is_killed(launcher):
    """As pkill -9 does, by name and by command line."""
    process = launcher.start("-np", "2", "sh", "-c", "sleep 1000 & echo ready; sleep 1000")
    ready(process, 2)
    named = [pid for pid, line in launcher.processes().items() if "hvdrun" in procs.name(pid) or "hvdrun" in line]
    assert process.pid in named
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    launcher.check_gone()


def test_everything_goes_when_hvdrun_is_killed_at_any_moment(launcher):
    for step in range(15):
        process = launcher.start("-np", "2", "sh", "-c", "sleep 1000 & sleep 1000")
        time.sleep(step * 0.004)  # a random moment, not a wait
        process.kill()
        process.communicate()
    launcher.check_gone()


# ---- the daemon ------------------------------------------------------------------------------------------------------


def test_a_daemon_that_is_named_is_used_and_outlives_the_job(launcher):
    with Daemon() as daemon:
        done = launcher.run("-np", "2", "--address", str(daemon.address), "--gpu-mps", "sh", "-c", "echo $HVD_ADDRESS")
        assert done.stdout.count(f"<stdout>:{daemon.address}\n") == 2 and not launcher.directories()
        assert f"--gpu-mps does nothing here: the hvdd at {daemon.address} has no MPS; start that hvdd with" in done.stderr
        done = launcher.run("-np", "2", "sh", "-c", "echo $HVD_ADDRESS", environment={"HVD_ADDRESS": str(daemon.address)})
        assert done.stdout.count(f"<stdout>:{daemon.address}\n") == 2
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid


def test_a_named_daemon_that_is_not_there_is_an_error(launcher):
    started = time.monotonic()
    done = launcher.run("-np", "2", "--address", "/nonexistent/hvdd", "true")
    assert done.returncode == 1 and "/nonexistent/hvdd" in done.stderr and time.monotonic() - started < scaled(5)


def test_a_daemon_that_cannot_start_says_why(launcher):
    done = launcher.run("-np", "2", "--hvdd", "/nonexistent/hvdd", "true")
    assert done.returncode == 1 and "/nonexistent/hvdd" in done.stderr
    script = launcher.folder / "hvdd"
    script.write_text("#!/bin/sh\necho the dog >&2; echo ate my sockets >&2\nexit 1\n")
    script.chmod(0o755)
    done = launcher.run("-np", "2", "--hvdd", str(script), "true")
    assert done.returncode == 1 and done.stderr == "hvdrun: the private hvdd failed to start: the dog ate my sockets\n"
    assert not launcher.directories()


def test_a_daemon_that_never_gets_ready_is_given_up(launcher):
    script = launcher.folder / "hvdd"
    script.write_text("#!/bin/sh\nsleep 1000\n")
    script.chmod(0o755)
    started = time.monotonic()
    done = launcher.run("-np", "2", "--start-timeout", "0.5", "--hvdd", str(script), "true")
    assert done.returncode == 1 and "ready in time" in done.stderr
    assert time.monotonic() - started < scaled(15)


def test_only_a_signal_that_asks_to_end_interrupts_the_start(launcher, tmp_path):
    """hvdd is starting: a batch system's warning is no end, and is left for the ranks."""
    slow = tmp_path / "hvdd"
    slow.write_text("#!/bin/sh\nuntil test -e ready; do sleep 0.01; done\nexec " + program("hvdd") + ' "$@"\n')
    slow.chmod(0o755)

    def is_starting() -> bool:  # and it is not hvdrun, which names it as well
        return any(line.startswith(f"/bin/sh {slow}") for line in launcher.processes().values())

    ranks = ["-np", "1", "--hvdd", str(slow), "sh", "-c", "trap 'exit 5' USR1; echo on; while :; do sleep 0.02; done"]
    process = launcher.start(*ranks)
    wait_until(is_starting, "hvdd to start")
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGUSR2)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=scaled(20))[1]
    assert process.returncode == 128 + signal.SIGINT and b"interrupted while hvdd was starting" in err
    process = launcher.start(*ranks)
    wait_until(is_starting, "hvdd to start")
    process.send_signal(signal.SIGCONT)
    (launcher.folder / "ready").touch()
    line_of(process.stdout, b"on")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=scaled(20))
    assert process.returncode == 5


def test_a_limited_file_size_is_named(launcher):
    """It holds for shared memory too."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    done = launcher.run("-np", "1", program("hvd-perf"), "-b", "4", "-e", "4", "-i", "5",
                        preexec_fn=limit)  # pylint: disable=subprocess-popen-preexec-fn
    assert done.returncode == 1 and "cannot take rank 0: out of file descriptors" in done.stderr, done.stderr
    assert "the size of a file is limited (LimitFSIZE=, ulimit -f)" in done.stderr


def test_jobs_go_on_when_the_private_daemon_dies(launcher):
    # libzmq's own thread forgets an answer that arrives as hvdd dies, now and then: 75 bytes, in its frames alone.
    leaks = {"ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))}
    process = launcher.start("-np", "2", "sh", "-c", "echo ready; sleep 0.7; echo done", environment=leaks)
    ready(process, 2)
    daemon = [pid for pid, line in launcher.processes().items() if line.split()[0].endswith("/hvdd")]
    os.kill(daemon[0], signal.SIGKILL)
    out, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 0 and out.count(b":done\n") == 2, (process.returncode, out, err)
    assert "the private hvdd" in err.decode() and "SIGKILL" in err.decode()


def test_more_ranks_than_cores_are_fine(launcher):
    done = launcher.run("-np", "40", "sh", "-c", "echo $HVD_RANK")
    assert sorted(int(line.split(":")[1]) for line in done.stdout.splitlines()) == list(range(40))


def test_a_timeline_is_written(launcher):
    done = launcher.run("-np", "2", "--timeline-filename", "trace.json", "--timeline-mark-cycles", program("hvd-perf"), "-o",
                        "allreduce", "-b", "64", "-e", "64", "-i", "3")
    assert done.returncode == 0 and "hvdrun" not in done.stderr, done.stderr
    events = json.loads((launcher.folder / "trace.json").read_text())
    names = {event.get("name") for event in events}
    assert {"process_name", "NEGOTIATE_ALLREDUCE", "CYCLE_START"} <= names, names


WAITS_FOR_RANK_1 = ("(echo '{\"do\": \"open\"}'; [ $HVD_RANK = 0 ] && "
                    "echo '{\"do\": \"submit\", \"kind\": \"barrier\", \"name\": \"lonely\"}'; sleep 3) | ")


def test_what_the_private_daemon_warns_about_is_shown(launcher):
    script = WAITS_FOR_RANK_1 + program("hvt-rank")
    done = launcher.run("-np", "2", "--stall-check-warning-time-seconds", "0.5", "sh", "-c", script)
    assert done.returncode == 0 and re.search(r"^\S+Z hvdd-engine\[\d+\] warning .*lonely", done.stderr, re.MULTILINE)
    done = launcher.run("-np", "2", "--no-stall-check", "sh", "-c", script)
    assert done.returncode == 0 and not done.stderr


def test_a_stall_may_end_the_job(launcher):
    submit_and_wait = "\"name\": \"lonely\"}' && echo '{\"do\": \"wait\", \"op\": 0, \"timeout_ms\": 20000}'"
    script = WAITS_FOR_RANK_1.replace("\"name\": \"lonely\"}'", submit_and_wait) + program("hvt-rank")
    done = launcher.run("-np", "2", "--stall-check-warning-time-seconds", "0.2", "--stall-check-shutdown-time-seconds",
                        "0.6", "sh", "-c", script)
    assert "STALL_SHUTDOWN_TIME_SECONDS" in "".join(line for line in done.stdout.splitlines() if line.startswith("[0]"))


# ---- with real ops ---------------------------------------------------------------------------------------------------


def lines_of(launcher: Launcher, name: str, *commands: dict) -> str:
    """A file with what one hvt-rank is told: its path."""
    path = launcher.folder / name
    path.write_text("".join(json.dumps(command) + "\n" for command in commands))
    return str(path)


@contextlib.contextmanager
def busy_machine(busy: bool) -> Iterator[None]:
    """Twice as many processes as cores that never sleep."""
    spinners = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 * os.cpu_count() if busy else 0)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def survivors_of_a_killed_rank(launcher: Launcher, *before: dict) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Rank 2 of four does `before` and is killed; what hvdrun came to, and the ranks that printed an error that names rank 2."""
    meet = [{"do": "open"}, {"do": "submit", "kind": "barrier", "name": "together"}, {"do": "wait", "op": 0, "timeout_ms": 20000}]
    lines_of(launcher, "lines.2", *before, *meet, {"do": "exit", "signal": int(signal.SIGKILL)})
    for rank in (0, 1, 3):
        lines_of(launcher, f"lines.{rank}", *meet, {"do": "submit", "kind": "barrier", "name": "never"},
                 {"do": "wait", "op": 1, "timeout_ms": 20000}, {"do": "exit", "code": 1})
    done = launcher.run("-np", "4", "sh", "-c", f"exec {program('hvt-rank')} <lines.$HVD_RANK")
    told = re.findall(r"^\[([013])\]<stdout>:.*rank 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\)", done.stdout, re.MULTILINE)
    return done, sorted(told)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_every_survivor_of_a_killed_rank_prints_its_error(launcher, busy):
    """Their errors and SIGTERM would otherwise be a race, which hvdrun's report time decides."""
    with busy_machine(busy):
        for turn in range(10 if busy else 50):
            done, told = survivors_of_a_killed_rank(launcher)
            assert told == ["0", "1", "3"] and done.returncode == 137, (turn, done.stdout, done.stderr)
            assert "ranks 0-1,3: exited with code 1" in done.stderr, (turn, done.stderr)


def test_a_killed_rank_is_blamed_although_its_survivors_end_before_it(launcher):
    """The kernel takes some 70 ms for a GiB before a killed process is a zombie."""
    has_room = procs.available_bytes() > 3 << 30 and not sanitized()
    done, told = survivors_of_a_killed_rank(launcher, {"do": "fill", "bytes": (1 << 30) if has_room else (64 << 20)})
    assert told == ["0", "1", "3"] and done.returncode == 137, done.stderr
    assert "rank 2: was killed by signal 9 (SIGKILL), the first to fail" in done.stderr


def test_survivors_that_end_by_themselves_are_not_waited_for(launcher):
    started = time.monotonic()
    done = launcher.run("-np", "3", "--report-time", "1000", "sh", "-c", "exit 3")
    assert done.returncode == 3 and time.monotonic() - started < scaled(10)


def test_survivors_that_report_nothing_get_sigterm_after_the_report_time(launcher):
    stubborn = "[ $HVD_RANK = 0 ] && exit 3; sleep 1000"
    for seconds in ("0", "0.5"):
        started = time.monotonic()
        done = launcher.run("-np", "2", "--report-time", seconds, "--grace", "1000", "sh", "-c", stubborn)
        assert done.returncode == 3 and float(seconds) <= time.monotonic() - started < scaled(10)
        assert "rank 1: ended by hvdrun (SIGTERM)" in done.stderr, done.stderr


def test_an_interrupt_in_the_report_time_is_passed_on_at_once(launcher):
    process = launcher.start("-np", "2", "--report-time", "1000", "sh", "-c",
                             "[ $HVD_RANK = 0 ] && exit 3; trap 'exit 0' INT; echo ready; while :; do sleep 0.02; done")
    ready(process, 1)
    line_of(process.stderr, rb"Terminating remaining workers")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=scaled(20))
    assert process.returncode == 3


def test_peers_of_a_killed_rank_are_told_rank_pid_and_signal(launcher):
    """What hvdrun sees is what the survivors' error says."""
    path = launcher.folder / "lines"
    path.write_text("".join(json.dumps(line) + "\n" for line in [
        {"do": "open"}, {"do": "submit", "kind": "barrier", "name": "together"},
        {"do": "wait", "op": 0, "timeout_ms": 20000}, {"do": "submit", "kind": "barrier", "name": "never"},
        {"do": "wait", "op": 1, "timeout_ms": 20000}]))
    victim = launcher.folder / "victim"
    victim.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    script = (f"mkfifo in.$HVD_RANK; exec 3<>in.$HVD_RANK; f={path}; [ $HVD_RANK = 2 ] && f={victim}; cat $f >&3; "
              f"[ $HVD_RANK = 2 ] && echo pid $$; trap '' TERM; exec {program('hvt-rank')} <&3")
    process = launcher.start("-np", "3", "--grace", "2", "sh", "-c", script)
    seen = b""
    try:
        deadline = time.monotonic() + scaled(20)
        while seen.count(b'"op"') < 5 and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.1)[0]:
                seen += os.read(process.stdout.fileno(), 65536)
        pid = int(re.search(rb"pid (\d+)", seen)[1])
        wait_until(lambda: procs.state(pid) == "S", "the victim to wait")
        os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=scaled(20))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 137, err
    assert f"hvdrun: rank 2 (pid {pid}) was killed by signal 9 (SIGKILL)" in err.decode()
    text = (seen + out).decode()
    assert text.count(f"rank 2 (pid {pid}) was killed by signal 9 (SIGKILL)") >= 2, text


@pytest.mark.parametrize("op", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"])
def test_hvd_perf_measures_and_checks(launcher, op):
    done = subprocess.run([program("hvd-perf"), "-o", op, "-n", "3", "-b", "4", "-e", "64K", "-f", "16", "-i", "5", "-c",
                           "--json"], env=launcher.environment, capture_output=True, text=True, timeout=scaled(60),
                          check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == (1 if op == "barrier" else 4)
    for row in rows:
        assert row["op"] == op and row["np"] == 3 and row["errors"] == (None if op == "barrier" else 0)
        assert row["iterations"] == 5
        assert 0 < row["time_us_min"] <= row["time_us"] <= row["time_us_p99"]


@pytest.mark.parametrize("memory", ["shared", "malloc", "registered", "adopted"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64"])
def test_hvd_perf_checks_every_memory_and_dtype(launcher, memory, dtype):
    done = subprocess.run([program("hvd-perf"), "-n", "2", "-b", "1000", "-e", "300K", "-f", "300", "-i", "2", "-c", "-m",
                           memory, "-d", dtype, "--json", "--outstanding", "3", "-r", "average"],
                          env=launcher.environment, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["errors"] for row in rows] == [0, 0]
    assert {(row["memory"], row["dtype"], row["reduce_op"], row["outstanding"]) for row in rows} == {
        (memory, dtype, "average", 3)}


def test_hvd_perf_shows_what_the_machine_could_do(launcher):
    done = subprocess.run([program("hvd-perf"), "-n", "2", "-b", "1M", "-e", "4M", "-i", "3", "--memcpy", "--json"],
                          env=launcher.environment, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    rows = {(row["op"], row["bytes"]): row for row in map(json.loads, done.stdout.splitlines())}
    both = {(op, size) for op in ("allreduce", "memcpy", "onepass") for size in (1 << 20, 4 << 20)}
    assert set(rows) in (both, both | {("onepass-huge", 4 << 20)}), "huge pages from 2 MiB on, where the kernel has any"
    assert rows["allreduce", 1 << 20]["errors"] is None, "nobody checked"
    assert rows["memcpy", 1 << 20]["threads"] == 1
    assert rows["onepass", 4 << 20]["threads"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("memory", ["shared", "malloc", "registered"])
def test_hvd_perf_reduces_the_gradients_of_a_file(launcher, tmp_path, memory):
    (tmp_path / "sizes").write_text("# a model\n1000 fc.bias\n70000 conv.weight\n\n3\n")
    done = subprocess.run([program("hvd-perf"), "-o", "gradients", "--sizes", str(tmp_path / "sizes"), "-n", "3", "-i", "4",
                           "-c", "--json", "-m", memory], env=launcher.environment, capture_output=True, text=True,
                          timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["op"], row["count"], row["bytes"], row["outstanding"]) == ("gradients", 71003, 284012, 3)
    assert row["errors"] == 0 and row["memory"] == memory and row["iterations"] == 4


def test_hvd_perf_idles_as_long_as_it_is_told(launcher):
    started = time.monotonic()
    done = subprocess.run([program("hvd-perf"), "-n", "2", "--idle", "0.2"], env=launcher.environment, capture_output=True,
                          text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "idle\n" and time.monotonic() - started >= 0.2


def test_hvd_perf_attaches_and_leaves_no_descriptor(launcher):
    done = subprocess.run([program("hvd-perf"), "-n", "2", "--attach", "20", "--json"], env=launcher.environment,
                          capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["op"] == "attach" and row["iterations"] == 20 and row["fds_before"] == row["fds_after"]


def test_hvd_perf_is_one_rank_under_a_launcher(launcher):
    done = launcher.run("-np", "2", program("hvd-perf"), "-n", "7", "-o", "barrier", "-i", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.removeprefix("[0]<stdout>:"))["np"] == 2


def test_hvd_perf_starts_its_ranks_from_the_shell_of_an_allocation(launcher):
    """salloc with use_interactive_step: a step of Slurm's, but no launch."""
    shell = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    done = subprocess.run([program("hvd-perf"), "-n", "2", "-o", "barrier", "-i", "3", "--json"],
                          env=launcher.environment | shell, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["np"] == 2, done.stderr


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line, word", [
    ("-np 0 true", "-np"), ("-np x true", "'x'"), ("true", "-np N"), ("-np 2", "which command"),
    ("-np 2 -H -other:2 true", "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."),
    ("-np 2 --hostfile h true", "cannot read the hostfile h"),
    ("-np 2 -H other true", "Requested more processes (2) than there are available slots (1)"),
    ("-np 3 -H localhost:2 true", "Requested more processes (3) than there are available slots (2)"),
    ("-np 2 --cycle-time-ms -1 true", "cycle_time_ms=-1 must be >= 0"), ("-np 2 --min-np 1 true", "give -np N"),
    ("-np 2 --nonsense true", "--nonsense")])
def test_wrong_usage_is_exit_code_2_and_says_what(launcher, line, word):
    done = launcher.run(*line.split())
    assert done.returncode == 2 and word in done.stderr and "--help" in done.stderr and not done.stdout


def test_version_and_help(launcher):
    assert re.fullmatch(r"hvdrun \d+\.\d+\.\d+\n", launcher.run("--version").stdout)
    assert "-np, --num-proc N" in launcher.run("--help").stdout


BUILD = """{name}:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [ ] Gloo
    [X] hvdd

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [ ] Gloo
    [X] hvdd
"""


def test_check_build_asks_python_which_frameworks_there_are(launcher):
    """A framework counts when it and its binding are there; neither is imported."""
    version = launcher.run("--version").stdout.split()[1]
    for name in ("hvd", "hvd/torch", "hvd/tensorflow", "torch"):
        (launcher.folder / "site" / name).mkdir(parents=True)
        (launcher.folder / "site" / name / "__init__.py").write_text("raise SystemExit('imported')\n")
    (launcher.folder / "site/tensorflow").mkdir()  # a directory that happens to be there
    python = {"PYTHONPATH": str(launcher.folder / "site"), "PATH": "/usr/bin:/bin"}
    done = launcher.run("--check-build", environment=python)
    assert done.returncode == 0
    assert done.stdout == BUILD.format(name=f"hvd v{version}", torch="X", tensorflow=" ")
    assert done.stderr == "hvdrun: the frameworks are those of /usr/bin/python3 (HVDRUN_PYTHON names another)\n"
    done = launcher.run("-cb", called="horovodrun", environment=python | {"HVDRUN_PYTHON": "/usr/bin/python3"})
    assert done.stdout == BUILD.format(name=f"Horovod v{version}", torch="X", tensorflow=" ") and not done.stderr
    (launcher.folder / "site/hvd/torch/__init__.py").unlink()
    assert "[ ] PyTorch" in launcher.run("--check-build", environment=python).stdout


def test_check_build_ticks_nccl_where_workers_find_it_and_a_driver(launcher):
    """As hvdd-gpu --can says, which opens the libraries: here those of the fake."""
    fakes = {"LD_LIBRARY_PATH": str(BUILD_FOLDER / "fakegpu"), "HVDRUN_PYTHON": "/usr/bin/python3"}
    told = subprocess.run([program("hvdd-gpu"), "--can"], env=fakes, capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: int(line.split()[1]) for line in told.splitlines()}
    assert (found["driver"], found["nccl"]) == (13000, 22809) and found["kernels"] in (0, 1), told
    mark = "X" if found["kernels"] else " "
    assert f"    [{mark}] NCCL\n" in launcher.run("--check-build", environment=fakes).stdout
    none = {"HVD_NCCL_LIB": "/nonexistent/libnccl.so.2"}
    assert "    [ ] NCCL\n" in launcher.run("--check-build", environment=fakes | none).stdout


def test_a_worker_that_came_with_the_python_package_finds_nccls_wheel_beside_it(tmp_path):
    """PyTorch brings that wheel along, into the same site-packages."""
    there = tmp_path / "hvd" / "_native_files" / "libexec" / "hvdd" / "hvdd-gpu"
    wheel = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    for place in (there, wheel):
        place.parent.mkdir(parents=True)
    shutil.copy(program("hvdd-gpu"), there)
    if not ctypes.util.find_library("nccl"):
        assert "\nnccl 0 " in subprocess.run([there, "--can"], capture_output=True, text=True, check=True).stdout
    wheel.symlink_to(BUILD_FOLDER / "fakegpu" / "libnccl.so.2")
    told = subprocess.run([there, "--can"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^nccl [1-9]", told, re.MULTILINE), told


@pytest.mark.parametrize("options, mark", [({"gpu-kernels": "/etc/hostname"}, "X"), ({"gpu-kernels": "/etc/hostname", "gpu": "no"}, " "),
                                           ({"gpu-kernels": "/nonexistent"}, " ")], ids=str)
def test_check_build_is_about_the_hvdd_that_runs(launcher, options, mark):
    """Its program, its kernels, and whether it starts workers at all."""
    with Daemon(options=options) as daemon:
        environment = {"LD_LIBRARY_PATH": str(BUILD_FOLDER / "fakegpu"), "HVDRUN_PYTHON": "/usr/bin/python3",
                       "HVD_ADDRESS": str(daemon.address)}
        assert f"    [{mark}] NCCL\n" in launcher.run("--check-build", environment=environment).stdout


@pytest.mark.skipif(os.geteuid() != 0 or not may_be_made(), reason="needs root, to make a namespace")
def test_check_build_asks_a_worker_that_is_there_and_nobody_elses(launcher, tmp_path):
    """The path that hvdd outside names is not to be seen there."""
    outside, own = tmp_path / "outside" / "hvdd-gpu", tmp_path / "own" / "libexec" / "hvdd" / "hvdd-gpu"
    for place, kernels in ((outside, 0), (own, 1)):
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\necho kernels {kernels}\necho driver 13000\necho nccl 22809\n")
        place.chmod(0o755)
    hvdrun = tmp_path / "own" / "bin" / "hvdrun"
    hvdrun.parent.mkdir()
    shutil.copy(program("hvdrun"), hvdrun)
    container = Inside("container", NEW_FS | NEW_MOUNT)
    with Daemon(options={"gpu-program": str(outside)}) as daemon:
        environment = launcher.environment | {"HVDRUN_PYTHON": "/usr/bin/python3", "HVD_ADDRESS": str(daemon.address)}

        def told() -> str:
            return container.call(subprocess.run, [hvdrun, "--check-build"], env=environment, stdout=subprocess.PIPE, text=True,
                                  check=True, timeout=scaled(30)).stdout
        assert "    [ ] NCCL\n" in told()
        for written in (outside, outside.parent):  # anybody may have written it, or put it there
            written.chmod(0o777)
            assert "    [X] NCCL\n" in told()
            written.chmod(0o755)
        assert "    [ ] NCCL\n" in told()
        container.hide(outside.parent)
        assert "    [X] NCCL\n" in told()


@pytest.mark.parametrize("python, why", [("/nonexistent/python", "No such file or directory"), ("/bin/false", "it failed")])
def test_check_build_without_a_python_has_no_framework(launcher, python, why):
    done = launcher.run("--check-build", environment={"HVDRUN_PYTHON": python})
    assert done.returncode == 0 and "[ ] PyTorch" in done.stdout
    assert done.stderr == (f"hvdrun: cannot ask {python} which frameworks there are: {why}; name a Python in "
                           "HVDRUN_PYTHON\n")
