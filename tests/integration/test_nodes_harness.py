# SPDX-License-Identifier: Apache-2.0
"""The harness's nodes: they are apart, they reach each other, every fault does what it says, and nothing of them remains."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from hvt import Daemon, Expired, Job, Nodes, check_prompt, procs, scaled, wait_until

HARNESS = pathlib.Path(__file__).resolve().parents[1] / "harness"
SILENCE_S = 0.4  # how long nothing has to come
FAMILIES = (socket.AF_INET, socket.AF_INET6)


@pytest.fixture(autouse=True)
def possible(make_nodes):
    """Also tests that make nodes by themselves are skipped where there are none."""
    return make_nodes


def address(node, family):
    return node.address if family == socket.AF_INET else node.address6


class Pair:
    """A connection between two nodes."""

    def __init__(self, client, server, family=socket.AF_INET, port=0):
        self.listener = server.call(socket.create_server, (address(server, family), port), family=family)
        self.port = self.listener.getsockname()[1]
        self.client = client.call(socket.create_connection, (address(server, family), self.port), scaled(5))
        self.server, _ = self.listener.accept()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in (self.client, self.server, self.listener):
            each.close()

    def to_server(self, seconds=None):
        return carries(self.client, self.server, seconds)

    def to_client(self, seconds=None):
        return carries(self.server, self.client, seconds)


def carries(sender, receiver, seconds):
    """Whether a word arrives within the time, after those that were sent before."""
    word = os.urandom(8)
    sender.sendall(word)
    deadline, got = time.monotonic() + (seconds or scaled(5)), b""
    while word not in got and time.monotonic() < deadline:
        receiver.settimeout(max(deadline - time.monotonic(), 0.001))
        with contextlib.suppress(TimeoutError):
            got += receiver.recv(4096)
    return word in got


def connects(client, server, port, family=socket.AF_INET, seconds=SILENCE_S):
    """Whether a connection can be made; what refuses it is raised."""
    with contextlib.suppress(TimeoutError):
        client.call(socket.create_connection, (address(server, family), port), seconds).close()
        return True
    return False


def check_connected(nodes):
    for one in nodes:
        for other in nodes:
            for family in FAMILIES:
                with Pair(one, other, family) as pair:
                    assert pair.to_server() and pair.to_client(), (one.name, other.name, family)


# ---- apart and together ----

def test_two_nodes_are_made_within_300_ms():
    start = time.monotonic_ns()
    with Nodes(2):
        check_prompt("two nodes", time.monotonic_ns() - start, 300_000_000)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nodes_reach_each_other_by_name_and_by_both_families(make_nodes, count):
    nodes = make_nodes(count, bridge=count != 2)
    check_connected(nodes)
    for node in nodes:
        found = nodes[0].call(socket.getaddrinfo, node.name, 1)
        assert {each[4][0] for each in found} == {node.address, node.address6}


@pytest.mark.parametrize("family,other", [(4, socket.AF_INET6), (6, socket.AF_INET)])
def test_nodes_may_have_one_family_only(make_nodes, family, other):
    n1, n2 = make_nodes(families=(family,))
    assert {each[0] for each in n1.call(socket.getaddrinfo, "n2", 1)} == {socket.AF_INET if family == 4 else socket.AF_INET6}
    with pytest.raises(OSError):
        n1.call(socket.create_connection, (address(n2, other), 9), 1)


def test_names_and_numbers_of_processes_are_a_nodes_own(make_nodes):
    n1, n2 = make_nodes(host_names=["twin", "twin"])
    assert [node.run(["hostname"]).stdout for node in (n1, n2)] == ["twin\n"] * 2
    process = n1.popen(["sleep", "60"])
    inner = n1.inner_pid(process.pid)
    assert 1 < inner != process.pid
    assert n1.run(["kill", "-0", str(inner)]).returncode == 0
    assert n2.run(["sh", "-c", f"tr '\\0' ' ' </proc/{inner}/cmdline"]).stdout != "sleep 60 "
    n1.kill_all()


@pytest.mark.parametrize("place", ["/tmp", "/run", "/dev/shm", "$HOME", "$XDG_RUNTIME_DIR"])
def test_a_file_in_a_private_place_is_seen_by_its_node_alone(make_nodes, place):
    n1, n2 = make_nodes()
    path = n1.run(["sh", "-c", f"echo mine >{place}/hvt-private; echo {place}/hvt-private"], check=True).stdout.strip()
    assert n1.path(path).read_text() == "mine\n"
    assert n2.run(["cat", path]).returncode != 0
    assert place == "$HOME" or (n1.files() == [path] and not pathlib.Path(path).exists())


def test_abstract_sockets_are_a_nodes_own_and_shared_files_are_not(make_nodes, tmp_path):
    nodes = make_nodes(share=[tmp_path])
    n1, n2 = nodes
    with n1.call(socket.socket, socket.AF_UNIX) as bound:
        bound.bind("\0hvt-nodes")
        with n2.call(socket.socket, socket.AF_UNIX) as other, pytest.raises(ConnectionRefusedError):
            other.connect("\0hvt-nodes")
    for folder in (nodes.shared, tmp_path):
        n1.run(["sh", "-c", f"echo all >{folder}/all"], check=True)
        assert n2.run(["cat", f"{folder}/all"]).stdout == (folder / "all").read_text() == "all\n"


def test_a_process_that_loses_its_parent_is_reaped_by_its_node(make_nodes):
    n1, _n2 = make_nodes()
    pid = int(n1.run(["sh", "-c", "setsid sh -c 'sleep 0.1' >/dev/null 2>&1 & echo $!"], check=True).stdout)
    wait_until(lambda: not n1.path(f"/proc/{pid}").exists(), "the orphan to be reaped")


def test_a_program_starts_in_a_directory_that_all_nodes_have(make_nodes):
    nodes = make_nodes()
    assert [node.run(["pwd"]).stdout for node in nodes] == [f"{nodes.shared}\n"] * 2


def test_two_sets_of_nodes_do_not_meet(make_nodes):
    first, second = make_nodes(), make_nodes()
    with Pair(first[0], first[1]) as pair, pytest.raises(ConnectionRefusedError):
        second[0].call(socket.create_connection, (second[1].address, pair.port), scaled(5))


def test_a_hvdd_in_each_node_knows_only_its_own_ranks(make_nodes):
    nodes = make_nodes()
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(node=node)) for node in nodes]
        jobs = [Job(daemon, 2, "same") for daemon in daemons]
        for job, daemon, node in zip(jobs, daemons, nodes):
            job.check_usable()
            assert [row["pid"] for row in daemon.ctl.json("ranks", "same")["ranks"]] == [
                node.inner_pid(rank.pid) for rank in job.ranks]
            assert {daemon.pid, daemon.gate(), *daemon.engines(), *(rank.pid for rank in job.ranks)} == set(node.processes())


# ---- ssh ----

@pytest.mark.parametrize("port", [22, 2222])
def test_ssh_runs_a_command_in_another_node(make_nodes, port):
    nodes = make_nodes(ssh=True, ssh_port=port)
    n1, n2 = nodes
    how = [] if port == 22 else ["-p", str(port)]
    for name in ("n2", n2.address, n2.address6, "n1"):
        done = n1.run(["ssh", *how, name, "hostname; echo $HOME; exit 3"])
        where = n1 if name == "n1" else n2
        assert (done.returncode, done.stdout, done.stderr) == (3, f"{where.name}\n{where.home}\n", "")
    done = n1.run(["ssh", *how, "-F", "none", "-i", str(nodes.key), "-o", "BatchMode=yes", "n2", "true"])
    assert done.returncode == 0, done.stderr


def test_ssh_without_the_key_or_to_a_host_with_another_key_is_refused(make_nodes):
    n1, n2 = make_nodes(ssh=True)
    for node, file, said in ((n1, "known_hosts", "Host key verification failed"), (n2, "authorized_keys", "Permission denied")):
        path = node.home / ".ssh" / file
        kept = path.read_text()
        path.write_text(kept.replace("AAAAC3Nza", "AAAAC3NzB"))
        done = n1.run(["ssh", "-o", "BatchMode=yes", "n2", "true"])
        assert done.returncode == 255 and said in done.stderr
        path.write_text(kept)


# ---- faults ----

@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("direction,to_server,to_client", [("both", False, False), ("in", False, True), ("out", True, False)])
def test_a_cut_is_silence_in_its_directions_until_it_heals(make_nodes, family, direction, to_server, to_client):
    n1, n2 = make_nodes()
    with Pair(n1, n2, family) as pair:
        assert pair.to_server() and pair.to_client()
        n2.cut(direction)
        assert not connects(n1, n2, pair.port, family)
        assert pair.to_server(None if to_server else SILENCE_S) == to_server
        assert pair.to_client(None if to_client else SILENCE_S) == to_client
        n2.heal()
        assert pair.to_server() and pair.to_client() and connects(n1, n2, pair.port, family, 5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_partition_leaves_the_other_pairs_alone(make_nodes, family):
    nodes = make_nodes(3)
    n1, n2, n3 = nodes
    with Pair(n1, n2, family) as cut, Pair(n1, n3, family) as kept, Pair(n2, n3, family) as kept_too:
        nodes.partition([n1], [n2])
        assert not cut.to_server(SILENCE_S) and not cut.to_client(SILENCE_S)
        assert kept.to_server() and kept.to_client() and kept_too.to_server() and kept_too.to_client()
        n1.heal()
        assert cut.to_server() and cut.to_client()


def test_a_dropped_port_is_silent_and_no_other(make_nodes):
    n1, n2 = make_nodes()
    with Pair(n1, n2) as dropped, Pair(n1, n2) as other:
        n2.drop_port(dropped.port)
        assert not connects(n1, n2, dropped.port) and not dropped.to_server(SILENCE_S)
        assert connects(n1, n2, other.port, seconds=5) and other.to_server()
        n2.heal()
        assert dropped.to_server()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reset_port_resets_and_refuses(make_nodes, family):
    n1, n2 = make_nodes()
    with Pair(n1, n2, family) as pair:
        n2.reset_port(pair.port)
        with pytest.raises(ConnectionRefusedError):
            connects(n1, n2, pair.port, family, 5)
        with pytest.raises(ConnectionResetError):
            pair.client.sendall(b"x")
            pair.client.settimeout(scaled(5))
            pair.client.recv(1)
        n2.heal()
        assert connects(n1, n2, pair.port, family, 5)


def test_loss_takes_its_share_of_the_packets_and_tcp_goes_on(make_nodes):
    n1, n2 = make_nodes()

    def arrived():
        with n2.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as to, \
                n1.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM) as sender:
            to.bind((n2.address, 0))
            for _ in range(150):
                sender.sendto(b"x" * 10, to.getsockname())
            to.settimeout(scaled(0.2))
            count = 0
            with contextlib.suppress(TimeoutError):
                while to.recv(100):
                    count += 1
            return count
    wait_until(arrived, "a first packet")
    assert arrived() == 150
    n2.lose(30)
    assert 60 < arrived() < 145
    n2.lose(10)  # of what is left
    assert 50 < arrived() < 135
    n2.heal()
    n2.lose(10)  # at 37 % one handshake in 150 took a minute
    with Pair(n1, n2) as pair:
        assert pair.to_server(scaled(20)) and pair.to_client(scaled(20))
    n2.heal()
    assert arrived() == 150


def test_a_rate_is_kept(make_nodes):
    n1, n2 = make_nodes()
    size = 2 << 20

    def took():
        with Pair(n1, n2) as pair:
            start = time.monotonic()
            thread = threading.Thread(target=pair.client.sendall, args=(bytes(size),))
            thread.start()
            left = size
            while left:
                left -= len(pair.server.recv(1 << 20))
            thread.join()
            return time.monotonic() - start
    n1.limit_rate("20mbit")
    limited = took()
    assert limited > 8 * (size - (256 << 10)) / 20e6 * 0.9
    n1.heal()
    assert took() < limited


@pytest.mark.parametrize("bridge", [False, True])
def test_without_its_link_a_node_is_silent_and_comes_back_with_its_addresses(make_nodes, bridge):
    nodes = make_nodes(bridge=bridge)
    n1, n2 = nodes
    with Pair(n1, n2) as pair, Pair(n1, n2, socket.AF_INET6) as pair6:
        n2.unplug()
        assert not pair.to_client(SILENCE_S) and not pair6.to_client(SILENCE_S)
        carrier = n1.path("/sys/class/net/eth0/carrier").read_text().strip()
        assert carrier == str(int(bridge))  # a switch hides it
        n2.heal()
        assert pair.to_client() and pair6.to_client() and pair.to_server() and pair6.to_server()
    check_connected(nodes)


def test_a_restarted_node_is_silent_first_and_then_knows_no_connection(make_nodes):
    nodes = make_nodes(3, ssh=True)
    n1, n2, _n3 = nodes
    n2.run(["touch", "/tmp/old"], check=True)
    process = n2.popen(["sleep", "60"])
    with Pair(n1, n2) as pair:
        nodes.restart(n2)
        assert process.poll() == -signal.SIGKILL and not n2.files()
        with pytest.raises(ConnectionResetError):
            pair.client.sendall(b"x")
            pair.client.settimeout(scaled(5))
            pair.client.recv(1)
    check_connected(nodes)
    assert n1.run(["ssh", "n2", "hostname"]).stdout == "n2\n"


# ---- what remains ----

def test_what_remains_is_told_and_everything_in_a_node_can_be_killed(make_nodes):
    nodes = make_nodes(ssh=True)
    n1, n2 = nodes
    assert not n2.remains()
    n1.run(["ssh", "n2", "setsid sleep 61 >/dev/null 2>&1 </dev/null & touch /run/left"], check=True)
    mine = n2.popen([sys.executable, "-c", "import socket, time; s = socket.create_server(('', 7777)); time.sleep(60)"])
    listens = ["tcp [0.0.0.0]:7777 [0.0.0.0]:0 LISTEN"]
    wait_until(lambda: n2.sockets() == listens, "the port to be there, and nothing of ssh")
    found = n2.remains()
    assert "sleep 61" in found["processes"].values() and mine.pid in found["processes"]
    assert found["files"] == ["/run/left"] and found["sockets"] == listens
    assert not n1.remains()
    n2.kill_all()
    assert n2.remains() == {"files": ["/run/left"]} and mine.wait(timeout=10) == -signal.SIGKILL
    assert n1.run(["ssh", "n2", "true"]).returncode == 255
    n2.start_sshd()
    assert n1.run(["ssh", "n2", "rm /run/left"]).returncode == 0
    for node in nodes:
        node.check_clean()


def links():
    return sorted(os.listdir("/sys/class/net"))


def folders():
    return set(pathlib.Path(tempfile.gettempdir()).glob("hvt-nodes-*"))


def test_a_process_that_is_left_fails_the_test_and_ends(monkeypatch):
    monkeypatch.setattr("hvt.wait.scaled", lambda _seconds: 0.2)
    before, threads = (links(), os.listdir("/proc/self/fd")), threading.active_count()
    with pytest.raises(Expired, match="sleep 62"), Nodes(3) as nodes:
        left = nodes[1].popen(["sleep", "62"])
    assert left.returncode == -signal.SIGKILL and not nodes.folder.exists()
    assert (links(), os.listdir("/proc/self/fd")) == before and threading.active_count() == threads


def test_an_error_in_the_test_is_the_one_that_is_told():
    with pytest.raises(ZeroDivisionError), Nodes(2, ssh=True) as nodes:
        left = nodes[1].popen(["sleep", "63"])
        _ = 1 / 0
    assert left.returncode == -signal.SIGKILL and not nodes.folder.exists()


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from hvt.nodes import Nodes
with Nodes(3, ssh=True) as nodes:
    inside = nodes[2].popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
    print(nodes.folder, nodes[0].pid, nodes[2].sshd.pid, inside.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_remains_of_a_test_that_was_killed(number):
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(HARNESS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as test:
        folder, *pids = test.stdout.readline().split()
        assert len(pids) == 3 and pathlib.Path(folder) in folders()
        with Nodes(2):
            assert pathlib.Path(folder).exists()  # it is in use
        test.send_signal(number)
        test.communicate(timeout=scaled(20))
    wait_until(lambda: all(procs.state(pid) in "ZX" for pid in pids), "the nodes to end")
    if number == signal.SIGKILL:
        with Nodes(2):  # removes it, unless another test's nodes have
            pass
    assert not pathlib.Path(folder).exists()
