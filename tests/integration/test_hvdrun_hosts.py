# SPDX-License-Identifier: Apache-2.0
"""hvdrun over several hosts, with a command in the place of ssh: ranks of /bin/sh start, talk and end together, and nothing is
left on any of them. test_hvdrun_ssh.py is the same with a real sshd."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from hvt import procs, program, sanitized, scaled, wait_until
from hvt.hosts import Hosts
from hvt.launcher import line_of, send_again

HELLO = """#!{python}
import os, sys
def field(number, kind, data): return bytes([number << 3 | kind]) + data
def text(number, data): return field(number, 2, bytes([len(data)]) + data)
hello = field(1, 0, bytes([{launch}])) + text(2, b"{version}") + text(3, b"{machine}")
message = text(1, hello)
os.write(1, b"\\nhvdrun --node speaks:\\n" + len(message).to_bytes(4, "big") + message)
sys.stdin.read()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Other hosts; afterwards nothing may be left on them."""
    yield from _hosts(relay=False)


@pytest.fixture
def relayed() -> Iterator[Hosts]:
    """The same, where what stands for ssh can be killed alone."""
    yield from _hosts(relay=True)


def _hosts(relay: bool) -> Iterator[Hosts]:
    running = Hosts(relay)
    try:
        yield running
        running.check_gone()
    finally:
        running.sweep()


def variables(done: subprocess.CompletedProcess) -> dict[int, dict[str, str]]:
    """What `env` of every rank has printed."""
    found: dict[int, dict[str, str]] = {}
    for rank, name, value in re.findall(r"^\[(\d+)\]<stdout>:(\w+)=(.*)$", done.stdout, re.MULTILINE):
        found.setdefault(int(rank), {})[name] = value
    return found


def agents(hosts: Hosts) -> list[int]:
    """The agents that run; their guards have a name of their own."""
    return [pid for pid, line in hosts.processes().items() if line.endswith("hvdrun --node") and procs.name(pid) == "hvdrun"]


@contextlib.contextmanager
def running(hosts: Hosts, *arguments: str, **more) -> Iterator[subprocess.Popen]:
    """A hvdrun whose two ranks have said that they are ready."""
    process = hosts.start(*arguments, **more)
    try:
        seen = b""
        while seen.count(b"ready") < 2:
            part = os.read(process.stdout.fileno(), 65536)
            assert part, process.stderr.read()
            seen += part
        yield process
    finally:
        process.kill()
        process.communicate()


# ---- what the ranks get ----------------------------------------------------------------------------------------------


def test_ranks_are_numbered_over_the_hosts(hosts):
    done = hosts.run("-H", "h1:1,h2:3", "env")
    assert done.returncode == 0 and not done.stderr
    seen = variables(done)
    expected = {0: (0, 1, 0, 2), 1: (0, 3, 1, 2), 2: (1, 3, 0, 1), 3: (2, 3, 0, 1)}
    for rank, numbers in expected.items():
        for family in ("HVD", "HOROVOD"):
            names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            assert tuple(int(seen[rank][f"{family}_{name}"]) for name in names) == numbers
            assert (seen[rank][f"{family}_RANK"], seen[rank][f"{family}_SIZE"]) == (str(rank), "4")
        assert [seen[rank][name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == [
            str(rank), "4", str(numbers[0]), str(numbers[1])]
    assert {seen[rank]["MASTER_ADDR"] for rank in seen} == {"127.0.0.1"} and len({seen[rank]["MASTER_PORT"] for rank in seen}) == 1
    assert len({seen[rank]["HVD_JOB_KEY"] for rank in seen}) == 1 and len({seen[rank]["HVD_JOB_ID"] for rank in seen}) == 1
    assert seen[0]["HVD_ADDRESS"] != seen[1]["HVD_ADDRESS"] == seen[3]["HVD_ADDRESS"]
    assert sorted(hosts.words()) == [f"{host} '{program('hvdrun')}' --node" for host in ("h1", "h2")]


def test_np_limits_the_ranks_and_a_hostfile_names_the_hosts(hosts):
    (hosts.folder / "file").write_text("# two of three\nh1 slots=1 max_slots=3\nh2:2  # full\nh3\n")
    done = hosts.run("-np", "3", "--hostfile", "file", "sh", "-c",
                     "echo $HVD_LOCAL_RANK of $HVD_LOCAL_SIZE on $HOROVOD_HOSTNAME ${RANK-none}", called="horovodrun")
    assert sorted(done.stdout.splitlines()) == [
        "[0]<stdout>:0 of 1 on h1 none", "[1]<stdout>:0 of 2 on h2 none", "[2]<stdout>:1 of 2 on h2 none"]
    assert sorted(line.split()[0] for line in hosts.words()) == ["h1", "h2"]


def test_two_names_of_this_machine_are_two_hosts_without_ssh(hosts):
    done = hosts.run("-H", "localhost:1,127.0.0.1:2", "env")
    seen = variables(done)
    assert done.returncode == 0 and not hosts.words()
    assert len({values["HVD_ADDRESS"] for values in seen.values()}) == 2
    assert [seen[rank]["HVD_CROSS_SIZE"] for rank in range(3)] == ["2", "2", "1"]
    assert {values["MASTER_ADDR"] for values in seen.values()} == {"127.0.0.1"}


def test_one_other_host_alone_is_reached_too(hosts):
    done = hosts.run("-H", "h1:2", "sh", "-c", "echo $HOME $HVD_CROSS_SIZE")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:/home-of-h1 1" for rank in range(2)]


def test_the_master_is_reached_by_an_address_that_leads_there(hosts):
    def address(*words: str) -> str:
        done = hosts.run(*words, "sh", "-c", "echo $MASTER_ADDR")
        assert done.returncode == 0, done.stderr
        found, = {line.split(":", 1)[1] for line in done.stdout.splitlines()}
        return found

    assert address("-H", "h1:1,localhost:1") == "127.0.0.1", "as sshd says"
    # Without sshd's word it is the name, which this machine does not know.
    done = hosts.run("-H", "me@mute:1,localhost:1", "--start-timeout", "4", "true")
    assert done.returncode == 1 and "localhost: its hvdd has not reached that of the first host at mute:" in done.stderr, done.stderr
    assert address("-H", "localhost:1,h1:1") == "127.0.0.1", "the way to the other host"
    assert address("-H", "localhost:1,h1:1", "--network-interfaces", "lo") == "127.0.0.1"
    done = hosts.run("-H", "h1:1", "--network-interfaces", "lo,eth9", "env")
    for word in ("NCCL_SOCKET_IFNAME=lo,eth9", "HOROVOD_GLOO_IFACE=lo", "HVD_INTERFACE=lo,eth9"):
        assert f"[0]<stdout>:{word}\n" in done.stdout
    for no_name in ("^lo", "lo,127.0.0.1"):
        assert "NCCL_SOCKET" not in hosts.run("-H", "h1:1", "--network-interfaces", no_name, "env").stdout
    done = hosts.run("-H", "localhost:1,h1:1", "--network-interfaces", "nonexistent0", "touch", "ran")
    assert done.returncode == 1 and not (hosts.folder / "ran").exists()
    assert done.stderr == "hvdrun: the hosts' hvdds cannot meet: HVD_INTERFACE=nonexistent0 names no interface of this machine that is up; see `ip address`\n"


def test_variables_travel_by_horovods_rules(hosts):
    given = {"TRAVELS": "a b\nc=d", "OWN": "overwritten", "CUDA_VISIBLE_DEVICES": "3", "BASH_FUNC_f%%": "() { :; }",
             "SSH_AUTH_SOCK": "/s", "DISPLAY": ":9", "HOSTNAME": "wrong", "HOME": "/home-here", "EMPTY": "",
             "HVD_RANK": "77", "HOROVOD_CYCLE_TIME": "5", "HVD_CYCLE_TIME": "5"}
    done = hosts.run("-H", "h1:1", "--cycle-time-ms", "3", "sh", "-c", "tr '\\0\\n' '\\n_' < /proc/self/environ", environment=given)
    seen = variables(done)[0]
    assert seen["TRAVELS"] == "a b_c=d" and seen["OWN"] == "overwritten" and seen["EMPTY"] == ""
    assert seen["HOME"] == "/home-of-h1" and seen["HVD_RANK"] == "0"
    assert seen["HOROVOD_CYCLE_TIME"] == "3" and "HVD_CYCLE_TIME" not in seen
    assert not {"CUDA_VISIBLE_DEVICES", "SSH_AUTH_SOCK", "DISPLAY", "HOSTNAME", "HVD_SSH"} & set(seen)
    assert "BASH_FUNC" not in done.stdout


def test_variables_can_be_given(hosts):
    done = hosts.run("-H", "h1:1,localhost:1", "-x", "HOME", "-x", "COLOUR=red", "-x", "DISPLAY=:1", "--tcp", "env",
                     environment={"HOME": "/home-here"})
    for seen in variables(done).values():
        assert (seen["HOME"], seen["COLOUR"], seen["DISPLAY"]) == ("/home-here", "red", ":1")
        assert seen["NCCL_IB_DISABLE"] == "1"


@pytest.mark.parametrize("option", ["--network-interface", "--network-interfaces"])
def test_variables_win_over_what_the_interfaces_say(hosts, option):
    done = hosts.run("-H", "h1:1,localhost:1", "-x", "NCCL_SOCKET_IFNAME=eth7", option, "lo", "env")
    assert [(seen["NCCL_SOCKET_IFNAME"], seen["HOROVOD_GLOO_IFACE"]) for seen in variables(done).values()] == [("eth7", "lo")] * 2
    done = hosts.run("-H", "h1:1", option, "lo", "-x", "HOROVOD_GLOO_IFACE", "env", environment={"HOROVOD_GLOO_IFACE": "eth8"})
    assert [(seen["NCCL_SOCKET_IFNAME"], seen["HOROVOD_GLOO_IFACE"]) for seen in variables(done).values()] == [("lo", "eth8")]


def test_the_command_is_found_in_the_path_of_here(hosts):
    (hosts.folder / "bin").mkdir()
    hosts.script("bin/trainer", "#!/bin/sh\necho found in $PWD\n")
    path = {"PATH": f"{hosts.folder}/bin:/usr/bin:/bin"}
    done = hosts.run("-H", "h1:1,localhost:1", "trainer", environment=path)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:found in {hosts.folder}" for rank in range(2)]
    (hosts.folder / "other").mkdir()
    done = hosts.run("-H", "h1:1,localhost:1", "--remote-dir", f"{hosts.folder}/other", "trainer", environment=path)
    assert sorted(done.stdout.splitlines()) == [f"[0]<stdout>:found in {hosts.folder}/other",
                                                f"[1]<stdout>:found in {hosts.folder}"]
    done = hosts.run("-H", "h1:1", "-x", f"PATH={hosts.folder}/bin:/usr/bin:/bin", "trainer")
    assert done.returncode == 0, done.stderr


def test_rank_zero_has_hvdruns_input_on_its_host(hosts):
    done = hosts.run("-H", "h1:2,h2:1", "sh", "-c", "wc -c", given=b"x" * 3_000_000)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:3000000", "[1]<stdout>:0", "[2]<stdout>:0"]


def test_input_that_nobody_reads_keeps_nothing_up(hosts):
    done = hosts.run("-H", "h1:1,h2:1", "sh", "-c", "exec 0<&-; echo done", given=b"x" * 3_000_000)
    assert done.returncode == 0 and done.stdout.count("done") == 2


def test_input_comes_as_it_is_typed(hosts):
    process = hosts.start("-H", "h1:1,h2:1", "sh", "-c", "[ $HVD_RANK = 0 ] && while read x; do echo got $x; done",
                          stdin=subprocess.PIPE)
    try:
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            line_of(process.stdout, b"got " + word, 10)
    finally:
        process.communicate(timeout=scaled(20))


# ---- output ----------------------------------------------------------------------------------------------------------


def test_output_has_prefixes_and_files_here(hosts):
    done = hosts.run("-H", "h1:1,h2:1", "--output-filename", "logs", "sh", "-c", "echo o$HVD_RANK; echo e$HVD_RANK >&2; printf end")
    assert sorted(done.stdout.replace("end[", "end\n[").splitlines()) == [
        "[0]<stdout>:end", "[0]<stdout>:o0", "[1]<stdout>:end", "[1]<stdout>:o1"]
    assert sorted(done.stderr.splitlines()) == ["[0]<stderr>:e0", "[1]<stderr>:e1"]
    for rank in range(2):
        assert (hosts.folder / f"logs/rank.{rank}/stdout").read_text() == f"o{rank}\nend"
        assert (hosts.folder / f"logs/rank.{rank}/stderr").read_text() == f"e{rank}\n"


def test_any_bytes_pass(hosts):
    path = hosts.folder / "bytes"
    path.write_bytes(os.urandom(3_000_000))
    done = hosts.run("-H", "h1:1", "--no-prefix", "cat", str(path), text=False)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(path.read_bytes()).digest()


def test_lines_of_hosts_are_never_torn_and_none_is_lost(hosts):
    done = hosts.run("-H", "h1:2,h2:2", "sh", "-c", "yes begin-$HVD_RANK-end | head -n 50000")
    lines = done.stdout.splitlines()
    assert len(lines) == 200_000
    assert {line for line in lines} == {f"[{rank}]<stdout>:begin-{rank}-end" for rank in range(4)}


def test_memory_stays_bounded_while_nobody_reads(hosts):
    process = hosts.start("-H", "h1:1,h2:1", "yes")
    try:
        wait_until(lambda: sum(line == "yes" for line in hosts.processes().values()) == 2, "the ranks to start")
        time.sleep(1)  # not a wait for something: enough to fill every buffer, and to overflow one without a bound
        for pid in [process.pid, *agents(hosts)]:
            assert procs.rss_bytes(pid) < (64 << 20) * (8 if "SAN" in os.environ else 1), procs.cmdline(pid)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "yes" not in hosts.processes().values(), "the ranks to end")
        send_again(process, signal.SIGTERM)
        assert process.wait(scaled(20)) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_ranks_end_when_nobody_reads_hvdrun_any_more(hosts):
    process = hosts.start("-H", "h1:1,h2:1", "yes")
    os.read(process.stdout.fileno(), 100)
    process.stdout.close()
    assert process.wait(scaled(20)) == 128 + signal.SIGPIPE
    process.stderr.close()


def test_what_a_shell_prints_at_login_is_no_output(hosts):
    done = hosts.run("-H", "noisy:1,h2:1", "echo", "x")
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["[0]<stdout>:x", "[1]<stdout>:x"]
    assert done.stderr == "a warning of noisy\n"


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script, code", [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_ranks(hosts, script, code):
    assert hosts.run("-H", "h1:1,h2:1", "sh", "-c", script).returncode == code


def test_a_failure_on_another_host_ends_all_and_is_named_with_its_host(hosts):
    done = hosts.run("-H", "h1:2,h2:2", "sh", "-c", "if [ $HVD_RANK = 2 ]; then sleep 0.2; kill -9 $$; fi; sleep 1000 & wait")
    assert done.returncode == 137
    assert re.search(r"hvdrun: rank 2 \(pid \d+\) on h2 was killed by signal 9 \(SIGKILL\)\n"
                     r"hvdrun: Terminating remaining workers after failure of Process 2\.\n", done.stderr), done.stderr
    assert "hvdrun:   rank 2 on h2: was killed by signal 9 (SIGKILL), the first to fail\n" in done.stderr
    assert "hvdrun:   ranks 0-1,3: ended by hvdrun (SIGTERM)\n" in done.stderr
    assert done.stderr.endswith("Process name: 2\nExit code: 137\n")


def test_of_a_kill_and_its_consequences_on_another_host_the_kill_is_blamed(hosts):
    """The kernel takes some 70 ms for a GiB before a killed process is a zombie; the other rank sees it die and exits."""
    has_room = procs.available_bytes() > 3 << 30 and not sanitized()
    fill = {"do": "fill", "bytes": (1 << 30) if has_room else (64 << 20)}
    (hosts.folder / "lines").write_text(json.dumps(fill) + "\n" + json.dumps({"do": "exit", "signal": 9}) + "\n")
    script = (f"if [ $HVD_RANK = 1 ]; then echo $$ > pid; exec {program('hvt-rank')} < lines >/dev/null; fi; "
              "until [ -s pid ]; do :; done; read pid < pid; "
              "while [ -n \"$(head -c 1 /proc/$pid/maps 2>/dev/null)\" ]; do :; done; exit 1")
    done = hosts.run("-H", "h1:1,h2:1", "sh", "-c", script)
    assert done.returncode == 137 and "rank 1 on h2: was killed by signal 9 (SIGKILL), the first to fail" in done.stderr, done.stderr


def test_ranks_that_ignore_sigterm_are_killed_on_every_host(hosts):
    done = hosts.run("-H", "h1:1,h2:1", "--grace", "0.5", "sh", "-c",
                     "trap '' TERM; if [ $HVD_RANK = 0 ]; then sleep 0.2; exit 9; fi; while :; do sleep 0.1; done")
    assert done.returncode == 9 and "rank 1: killed by hvdrun (SIGKILL)" in done.stderr, done.stderr


def test_what_ranks_leave_running_ends_on_every_host(hosts):
    done = hosts.run("-H", "h1:1,h2:1", "--grace", "1", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo ok")
    assert done.returncode == 0 and done.stdout.count(":ok\n") == 2
    hosts.check_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_every_rank(hosts, number):
    script = f"trap 'echo caught; exit 0' {number.name[3:]}; echo ready; while :; do sleep 0.02; done"
    with running(hosts, "-H", "h1:1,h2:1", "sh", "-c", script) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=scaled(20))
        assert process.returncode == 0 and out.count(b"caught") == 2, err
        assert f"received signal {number} ({number.name}); passed on to every rank".encode() in err


def test_a_second_interrupt_kills(hosts):
    with running(hosts, "-H", "h1:1,h2:1", "sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 0.02; done") as process:
        process.send_signal(signal.SIGINT)
        line_of(process.stderr, rb"passed on to every rank")
        send_again(process, signal.SIGINT)
        assert process.wait(scaled(20)) == 137


# ---- hosts that fail -------------------------------------------------------------------------------------------------


def test_every_host_that_fails_is_named_and_nothing_runs(hosts):
    done = hosts.run("-H", "dead1:1,h2:1,dead2:1,localhost:1", "touch", "ran")
    assert done.returncode == 1 and not (hosts.folder / "ran").exists()
    assert done.stderr.splitlines() == [
        f"hvdrun: {host}: cannot be reached: ssh: connect to host {host} port 22: No route to host" for host in ("dead1", "dead2")]


def test_a_dropped_connection_is_tried_again(hosts):
    done = hosts.run("-H", "busy:1,h2:1", "echo", "x")
    assert done.returncode == 0 and done.stdout.count(":x\n") == 2 and not done.stderr
    assert [line.split()[0] for line in hosts.words()].count("busy") == 3


def test_a_host_without_hvdrun_is_named(hosts):
    done = hosts.run("-H", "localhost:1,h1:1,h2:1", "--remote-hvdrun", "/nonexistent/hvdrun", "true")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"hvdrun: {host}: there is no /nonexistent/hvdrun; install the same version there, or "
                                        "say where it is with --remote-hvdrun" for host in ("h1", "h2")]


def test_every_host_without_hvdd_is_named(hosts):
    """By the first one's the others' would have met."""
    (hosts.folder / "bin").mkdir()
    copy = hosts.folder / "bin/hvdrun"
    copy.write_bytes(pathlib.Path(program("hvdrun")).read_bytes())
    copy.chmod(0o755)
    done = hosts.run("-H", "h1:1,localhost:1,h2:1", "--remote-hvdrun", str(copy), "touch", "ran")
    assert done.returncode == 1 and not (hosts.folder / "ran").exists()
    assert [line.split(" (")[0] for line in done.stderr.splitlines()] == [
        f"hvdrun: {host}: cannot start hvdd: No such file or directory" for host in ("h1", "h2")]


def test_a_directory_that_is_not_there_is_named(hosts):
    done = hosts.run("-H", "localhost:1,h1:1", "--remote-dir", "/nonexistent", "true")
    assert done.returncode == 1
    assert done.stderr == ("hvdrun: h1: cannot enter /nonexistent: No such file or directory; --remote-dir names another "
                           "directory\n")


@pytest.mark.parametrize("launch, version, machine, word", [
    (9, "7.7.7", os.uname().machine, "hvdrun there is version 7.7.7 (launch protocol 9), the one here is version "),
    (1, "7.7.7", os.uname().machine, "hvdrun there is version 7.7.7 (launch protocol 1), the one here is version "),
    (1, None, "pdp11", f"the host is of another architecture (pdp11) than this one ({os.uname().machine})")])
def test_another_version_or_architecture_is_refused(hosts, launch, version, machine, word):
    version = version or hosts.run("--version").stdout.split()[1]
    agent = hosts.script("agent", HELLO.format(python=program_python(), launch=launch, version=version, machine=machine))
    done = hosts.run("-H", "localhost:1,h1:1", "--remote-hvdrun", agent, "true")
    assert done.returncode == 1 and f"hvdrun: h1: {word}" in done.stderr, done.stderr


def program_python() -> str:
    """A Python that every host has."""
    return "/usr/bin/python3"


@pytest.mark.parametrize("script, word", [
    ("echo hvdrun: unknown option --node >&2; exit 2", "exited with code 2 before it was ready: hvdrun: unknown option --node"),
    ("printf '\\nhvdrun --node speaks:\\n\\377\\377\\377\\377'; cat", "what comes from there makes no sense"),
    ("printf '\\nhvdrun --node speaks:\\n\\0\\0\\0\\2xx'; cat", "what comes from there makes no sense"),
    ("yes", "what the login shell prints has no end")])
def test_what_is_no_agent_is_refused(hosts, script, word):
    agent = hosts.script("agent", f"#!/bin/sh\n{script}\n")
    done = hosts.run("-H", "localhost:1,h1:1", "--remote-hvdrun", agent, "true")
    assert done.returncode == 1 and done.stderr.startswith("hvdrun: h1: ") and word in done.stderr, done.stderr


def test_a_host_that_does_not_answer_is_given_up(hosts):
    started = time.monotonic()
    done = hosts.run("-H", "deaf:1,h2:1,dead:1", "--start-timeout", "0.7", "true")
    assert done.returncode == 1 and 0.7 <= time.monotonic() - started < scaled(12)
    assert "hvdrun: deaf: did not answer within 0.7 s (--start-timeout)\n" in done.stderr and "hvdrun: dead: " in done.stderr
    assert "h2" not in done.stderr


def test_ranks_that_have_started_finish_their_words_where_another_cannot_start(hosts):
    """The host of rank 0 has no descriptors for all of its ranks."""
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    done = hosts.run("-H", "localhost:20,127.0.0.1:1", "sh", "-c", "trap '' TERM; echo on; sleep 1; echo end",
                     preexec_fn=limit)  # pylint: disable=subprocess-popen-preexec-fn
    assert done.returncode == 1 and "Too many open files; raise their limit (ulimit -n)" in done.stderr
    assert "makes no sense" not in done.stderr
    on, end = (set(re.findall(rf"^\[(\d+)\]<stdout>:{word}$", done.stdout, re.MULTILINE)) for word in ("on", "end"))
    assert on == end and "0" in on and "19" not in on, done.stdout


def test_an_interrupt_at_the_start_ends_it(hosts):
    process = hosts.start("-H", "deaf:1,h2:1", "true")
    wait_until(lambda: len(hosts.words()) == 2, "both hosts to be called")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 128 + signal.SIGINT and b"interrupted while the hosts were starting" in err


def test_a_command_that_is_nowhere_is_127(hosts):
    done = hosts.run("-H", "h1:1,h2:1", "no-such-command")
    assert done.returncode == 127 and "h1: cannot start rank 0: no-such-command: command not found" in done.stderr


def test_a_command_that_one_host_lacks_ends_the_ranks_of_the_others(hosts):
    script = hosts.script("trainer", "#!/bin/sh\nexec sleep 1000\n")
    (hosts.folder / "empty").mkdir()
    done = hosts.run("-H", "localhost:1,h2:1", "--remote-dir", f"{hosts.folder}/empty", f"./{pathlib.Path(script).name}")
    assert done.returncode == 127 and "h2: cannot start rank 1: ./trainer: command not found" in done.stderr, done.stderr
    assert "rank 0" not in done.stderr, "that one was fine"


# ---- what is killed --------------------------------------------------------------------------------------------------

READY = "trap '' HUP; echo ready; sleep 1000 & wait"


def test_nothing_is_left_when_the_way_to_a_host_is_killed(relayed):
    with running(relayed, "-H", "h1:1,h2:1", "sh", "-c", READY) as process:
        ways = {pid: line for pid, line in relayed.processes().items() if "relay.py" in line}
        assert len(ways) == 2
        os.kill(max(ways), signal.SIGKILL)
        _, err = process.communicate(timeout=scaled(20))
        text = err.decode()
        assert process.returncode != 0
        lost = re.search(r"hvdrun: lost the agent on (h\d): ssh was killed by signal 9 \(SIGKILL\)", text)
        assert lost and re.search(rf"rank \d \(pid \d+\) on {lost[1]} is gone", text), text


@pytest.mark.parametrize("where", ["localhost", "h1"])
def test_nothing_is_left_when_an_agent_is_killed(hosts, where):
    with running(hosts, "-H", f"{where}:1,h2:1", "sh", "-c", READY) as process:
        os.kill(agents(hosts)[0], signal.SIGKILL)
        _, err = process.communicate(timeout=scaled(20))
        assert process.returncode != 0 and b"hvdrun: lost the agent on " in err, err


def test_an_agent_that_stands_still_is_given_up_when_all_is_killed(relayed):
    with running(relayed, "-H", "h1:1,h2:1", "sh", "-c", "echo ready; sleep 1000") as process:
        stopped = agents(relayed)[0]
        os.kill(stopped, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        line_of(process.stderr, rb"passed on to every rank")
        send_again(process, signal.SIGINT)
        assert process.wait(scaled(20)) != 0
        assert b"lost the agent on " in process.stderr.read()
        os.kill(stopped, signal.SIGCONT)
        relayed.check_gone()


def test_an_agent_that_stands_still_is_given_up_after_the_silence_time(relayed):
    """Its ranks have all ended, but it cannot say so."""
    with running(relayed, "-H", "h1:1,h2:1", "--silence-time", "2", "sh", "-c", "echo ready; sleep 0.5") as process:
        stopped = agents(relayed)[0]
        os.kill(stopped, signal.SIGSTOP)
        _, err = process.communicate(timeout=scaled(20))
        assert process.returncode == 1
        assert re.search(rb"hvdrun: lost the agent on h[12]: it has said nothing for 2 s \(--silence-time\)", err), err
        os.kill(stopped, signal.SIGCONT)
        relayed.check_gone()


def test_an_agent_that_hears_nothing_of_hvdrun_ends_its_ranks(hosts):
    """As when a cable is cut: hvdrun is there, but nothing comes."""
    with running(hosts, "-H", "h1:1,h2:1", "--silence-time", "3", "sh", "-c", READY) as process:
        time.sleep(3.5)  # not a wait for something: beats keep the agents for longer than the silence
        assert len(agents(hosts)) >= 2
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not agents(hosts), "the agents to end", 15)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=scaled(20))
        assert process.returncode != 0


def test_a_job_that_is_stopped_at_the_terminal_stays(hosts):
    with running(hosts, "-H", "h1:1,h2:1", "--silence-time", "2", "sh", "-c", "echo ready; sleep 4; echo done") as process:
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: procs.state(process.pid) == "T", "hvdrun to stop")
        time.sleep(3)  # not a wait for something: longer than the silence
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=scaled(20))
        assert process.returncode == 0 and out.count(b"done") == 2, err


def test_nothing_is_left_when_hvdrun_is_killed(relayed):
    with running(relayed, "-H", "localhost:1,h2:1", "sh", "-c", READY) as process:
        process.kill()
        process.wait()
        relayed.check_gone()


def test_nothing_is_left_when_hvdrun_is_killed_at_any_moment(hosts):
    for turn in range(12):
        process = hosts.start("-H", "localhost:1,h2:1", "sh", "-c", READY)
        time.sleep(0.01 * turn)  # not a wait for something: another moment in each turn
        process.kill()
        process.communicate()
        hosts.check_gone()


def test_a_job_goes_on_without_the_hvdd_of_a_host(hosts):
    with running(hosts, "-H", "h1:1,h2:1", "sh", "-c", "echo ready; sleep 0.7; echo done") as process:
        os.kill(next(pid for pid, line in hosts.processes().items() if line.split()[0].endswith("/hvdd")), signal.SIGKILL)
        out, err = process.communicate(timeout=scaled(20))
        assert process.returncode == 0 and out.count(b"done") == 2
        assert re.search(rb"hvdrun: h[12]: the private hvdd \(pid \d+\) was killed", err), err


# ---- secrets, and many -----------------------------------------------------------------------------------------------


def test_no_secret_is_on_a_command_line_or_with_others(hosts):
    secret = "correct-horse-battery-staple"
    with running(hosts, "-H", "h1:1,localhost:1", "sh", "-c", "echo ready; exec sleep 1000",
                 environment={"MY_TOKEN": secret}) as process:
        ranks = [pid for pid, line in hosts.processes().items() if line.startswith(("sh -c echo", "sleep"))]
        environs = [dict(entry.split("=", 1) for entry in
                         pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry) for pid in ranks]
        environ = environs[0]
        assert environ["MY_TOKEN"] == secret and len(environ["HVD_JOB_KEY"]) == 32
        files = [pathlib.Path(each["HVD_ADDRESS"]) / "mesh.key" for each in environs]
        mesh = {re.search(r"^secret (\S{40})$", file.read_text(), re.MULTILINE)[1] for file in files}
        assert len(mesh) == 2 and {file.stat().st_mode & 0o777 for file in files} == {0o600}
        for pid in procs.pids():
            line = procs.cmdline(pid)
            assert not any(each in line for each in (secret, environ["HVD_JOB_KEY"], *mesh)), line
        for pid, line in hosts.processes().items():
            held = pathlib.Path(f"/proc/{pid}/environ").read_text()
            assert not any(each in held for each in mesh), line
            assert pid in ranks or environ["HVD_JOB_KEY"] not in held, line
        process.terminate()
        process.communicate(timeout=scaled(20))


def test_thirty_six_hosts_with_a_hvdd_each_are_one_job(hosts):
    done = hosts.run("-H", ",".join(f"h{number}" for number in range(36)), "sh", "-c", "echo $HVD_RANK", seconds=60)
    assert done.returncode == 0, done.stderr
    assert sorted(int(line.split(":")[1]) for line in done.stdout.splitlines()) == list(range(36))
