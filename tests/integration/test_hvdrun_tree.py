# SPDX-License-Identifier: Apache-2.0
"""hvdrun with more hosts than it reaches itself: relays start the agents of the others, and all is as without them. Six hosts and
a fan-out of two are h1 with a relay for h1 to h3, and h4 with one for h4 to h6."""
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from hvt import Daemon, procs, program, scaled, wait_until
from hvt.hosts import Hosts
from hvt.launcher import line_of, send_again

READY = "trap '' HUP; echo ready; sleep 1000 & wait"


@pytest.fixture(name="address", scope="module")
def _address() -> Iterator[str]:
    with Daemon() as daemon:
        yield str(daemon.address)


@pytest.fixture(name="hosts")
def _hosts(address) -> Iterator[Hosts]:
    """Other hosts, with one hvdd for all of them."""
    running = Hosts()
    running.environment["HVD_ADDRESS"] = address
    try:
        yield running
        running.check_gone()
    finally:
        running.sweep()


def tree(*names: str) -> list[str]:
    """The options for these six hosts."""
    return ["-H", ",".join(f"{name}:1" for name in names), "--fan-out", "2"]


SIX = tree("h1", "h2", "h3", "h4", "h5", "h6")


def started(hosts: Hosts) -> set[tuple[str, str]]:
    """Which hosts were logged in to, and for what."""
    return {(line.split()[0], line.split()[-1]) for line in hosts.words()}


def of_kind(hosts: Hosts, kind: str) -> list[int]:
    """Processes of hvdrun, "--node" or "--relay"."""
    return [pid for pid, line in hosts.processes().items() if line.endswith(f"hvdrun {kind}")]


def test_ranks_behind_relays_are_numbered_and_print_and_read_and_fail_as_others(hosts):
    del hosts.environment["HVD_ADDRESS"]  # each has its own
    done = hosts.run(*SIX, "sh", "-c", "echo $HVD_RANK of $HVD_SIZE at $HOME; [ $HVD_RANK != 0 ] || cat; [ $HVD_RANK != 2 ] || exit 7",
                     given=b"input" * 100_000)
    assert done.returncode == 7, done.stderr
    assert re.search(r"rank 2 \(pid \d+\) on h3 exited with code 7", done.stderr), done.stderr
    for rank in (0, 2):
        assert f"[{rank}]<stdout>:{rank} of 6 at /home-of-h{rank + 1}\n" in done.stdout
    assert started(hosts) == {(f"h{n}", "--relay" if n in (1, 4) else "--node") for n in range(1, 7)}


def test_much_output_is_whole_and_waits_for_its_reader(hosts):
    done = hosts.run(*SIX, "sh", "-c", "[ $HVD_RANK != 0 ] || cat; yes $HVD_RANK-end | head -n 20000", given=b"0-end\n" * 50_000)
    said = {rank: "" for rank in range(6)}  # a line whose rest is late may be shown in two
    for rank, text in re.findall(r"^\[(\d)\]<stdout>:(.*)$", done.stdout, re.MULTILINE):
        said[int(rank)] += text
    assert done.returncode == 0 and not done.stderr, done.stderr
    for rank, text in said.items():
        assert text == f"{rank}-end" * (70_000 if rank == 0 else 20_000), len(text)


def test_what_is_called_and_returned_passes_relays(hosts):
    call = os.urandom(2_000_000)
    (hosts.folder / "call").write_bytes(call)
    done = hosts.run(*SIX, "--call-dir", str(hosts.folder), "sh", "-c", "cat $HVD_RUN_CALL > /proc/self/fd/$HVD_RUN_RESULT")
    assert done.returncode == 0 and all((hosts.folder / f"result.{rank}").read_bytes() == call for rank in range(6)), done.stderr


def test_memory_of_relays_stays_bounded_while_nobody_reads(hosts):
    process = hosts.start(*SIX, "yes")
    try:
        wait_until(lambda: sum(line == "yes" for line in hosts.processes().values()) == 6, "the ranks to start")
        time.sleep(1)  # not a wait for something: enough to fill every buffer, and to overflow one without a bound
        for pid in [process.pid, *of_kind(hosts, "--relay")]:
            assert procs.rss_bytes(pid) < (64 << 20) * (8 if "SAN" in os.environ else 1), procs.cmdline(pid)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "yes" not in hosts.processes().values(), "the ranks to end")
        send_again(process, signal.SIGTERM)
        assert process.wait(scaled(20)) != 0
    finally:
        process.kill()
        process.communicate()


def test_every_host_that_fails_is_named_behind_a_relay_and_where_one_should_be(hosts):
    done = hosts.run(*tree("h1", "dead2", "h3", "dead4", "h5", "dead6"), "touch", "ran")
    assert done.returncode == 1 and not (hosts.folder / "ran").exists()
    assert done.stderr.splitlines() == [f"hvdrun: {host}: cannot be reached: ssh: connect to host {host} port 22: No route to host"
                                        for host in ("dead2", "dead4", "dead6")]


def test_what_a_relay_cannot_reach_is_reached_from_here(hosts):
    done = hosts.run(*tree("h1", "far2", "h3", "dead@far4", "h5", "h6"), "echo", "x")
    assert done.returncode == 1 and done.stderr.startswith("hvdrun: dead@far4: cannot be reached"), done.stderr
    done = hosts.run(*tree("h1", "far2", "h3", "h4", "h5", "far6"), "echo", "x")
    assert done.returncode == 0 and done.stdout.count(":x\n") == 6, done.stderr
    assert [line.split()[0] for line in hosts.words()].count("far6") == 2


def test_a_signal_reaches_ranks_behind_relays(hosts):
    process = hosts.start(*SIX, "sh", "-c", "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.02; done")
    seen = b""
    while seen.count(b"ready") < 6:
        seen += os.read(process.stdout.fileno(), 65536)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=scaled(20))
    assert process.returncode == 0 and out.count(b"caught") == 6, err


def ready(hosts: Hosts):
    """hvdrun with six ranks that have said so."""
    process = hosts.start(*SIX, "sh", "-c", READY)
    seen = b""
    while seen.count(b"ready") < 6:
        part = os.read(process.stdout.fileno(), 65536)
        assert part, process.stderr.read()
        seen += part
    return process


def test_a_relay_that_is_killed_takes_its_hosts_along_which_are_named(hosts):
    process = ready(hosts)
    second = max(of_kind(hosts, "--relay"))
    os.kill(second, signal.SIGKILL)
    _, err = process.communicate(timeout=scaled(20))
    text = err.decode()
    assert process.returncode != 0
    lost = re.findall(r"hvdrun: lost the agent on (h\d): it was reached through (h\d), and hvdrun --relay there is lost: .*"
                      r"; it ends its ranks", text)
    assert [name for name, _ in lost] in (["h1", "h2", "h3"], ["h4", "h5", "h6"]), text
    assert {through for _, through in lost} == {lost[0][0]}, text


def test_an_agent_behind_a_relay_that_is_killed_is_named_alone(hosts):
    process = ready(hosts)
    os.kill(of_kind(hosts, "--node")[0], signal.SIGKILL)
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode != 0 and err.count(b"hvdrun: lost the agent on ") == 1, err


def test_a_relay_that_stands_still_is_given_up_when_all_is_killed(hosts):
    process = ready(hosts)
    stopped = of_kind(hosts, "--relay")[0]
    os.kill(stopped, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    line_of(process.stderr, rb"passed on to every rank")
    send_again(process, signal.SIGINT)
    _, err = process.communicate(timeout=scaled(20))
    assert process.returncode != 0 and err.count(b"hvdrun --relay there is lost") == 3, err


def test_nothing_is_left_when_hvdrun_is_killed(hosts):
    process = ready(hosts)
    process.kill()
    process.communicate()
    hosts.check_gone()


def test_a_relay_that_never_speaks_costs_no_more_than_the_start_timeout(hosts):
    done = hosts.run(*tree("deaf1", "h2", "h3", "h4", "h5", "h6"), "--start-timeout", "1", "touch", "ran")
    assert done.returncode == 1 and not (hosts.folder / "ran").exists()
    said = [line.split()[1] for line in done.stderr.splitlines()]
    assert said[0] == "deaf1:", done.stderr  # on a busy machine the others may be late as well
    assert {"deaf1 --node", "h2 --node", "h3 --node"} <= {f"{host} {kind}" for host, kind in started(hosts)}


def test_forty_eight_hosts_make_a_tree_by_themselves(hosts):
    done = hosts.run("-H", ",".join(f"h{n}:1" for n in range(48)), "sh", "-c", "echo $HVD_RANK", seconds=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert sorted(int(line.split(":")[1]) for line in done.stdout.splitlines()) == list(range(48))
    kinds = [kind for _, kind in started(hosts)]
    assert (kinds.count("--relay"), kinds.count("--node")) == (16, 32)


@pytest.mark.soak
def test_every_op_is_right_where_engines_stand_behind_others(hosts):
    """Of 20 nodes three are behind the second one: their reports go up together, and verdicts come down by it."""
    del hosts.environment["HVD_ADDRESS"]  # each has its own
    names = ",".join(f"h{n}:1" for n in range(20))
    command = 'for op in allreduce allgather broadcast alltoall reducescatter barrier; do "$0" -o $op -c -b 4 -e 64K -f 128 -w 1 -i 5 || exit 1; done'
    done = hosts.run("-H", names, "sh", "-c", command, str(program("hvd-perf")), seconds=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
