# SPDX-License-Identifier: Apache-2.0
"""Two hvdds that meet over the mesh, on the loopback, with engines that only say what the rendezvous told them."""
import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from hvt import Daemon, Status, check_prompt, new_keys, procs, scaled, wait_until, wire
from hvt.build import BUILD, program
from hvt.crowd import crowd
from hvt.ports import free_port
from hvt.zmtp import Zmtp

ENGINE = BUILD / "tests" / "hvt_fake_engine"


@pytest.fixture(name="keys")
def _keys(tmp_path: pathlib.Path) -> pathlib.Path:
    return new_keys(tmp_path / "mesh")


def listener(keys: pathlib.Path, **options: str) -> Daemon:
    """A hvdd that others join."""
    return Daemon(options={"engine": ENGINE, "mesh-listen": "127.0.0.1:0", "mesh-key": keys,
                           "port-range": "9632-9731"} | {name.replace("_", "-"): value for name, value in options.items()})


def joiner(keys: pathlib.Path, port: int, **options: str) -> Daemon:
    """A hvdd that joins."""
    return Daemon(options={"engine": ENGINE, "mesh-join": f"127.0.0.1:{port}", "mesh-key": keys}
                  | {name.replace("_", "-"): value for name, value in options.items()})


def port_of(daemon: Daemon) -> int:
    """Where it listens, as everything says that tells it."""
    port = int((daemon.address / "mesh.port").read_text(encoding="ascii"))
    assert daemon.ctl.json("status")["daemon"]["mesh_port"] == port
    return port


@contextlib.contextmanager
def attached(daemon: Daemon, job: str, ranks: list[int], size: int, *, key: str | None = None) -> Iterator[None]:
    """Connections that hold these ranks of the job on this node."""
    with contextlib.ExitStack() as stack:
        for place, rank in enumerate(ranks):
            raw = stack.enter_context(wire.Raw(daemon.attach_path))
            raw.send(wire.attach_request(job, rank, size, key=key, extra=wire.message((7, place), (8, len(ranks)))))
            reply = raw.attach_reply()
            assert reply.status == Status.OK, reply.text
        yield


def roster(daemon: Daemon, job: str, seconds: float = 10) -> dict[str, str]:
    """What the engine of the job was told."""
    def look() -> dict[str, str] | None:
        return next((line.pairs | {"text": line.text} for line in daemon.lines("roster") if line.pairs["job"] == job), None)

    return wait_until(look, f"a roster of job {job}", seconds, 0.02)


def epochs(daemon: Daemon) -> list[str]:
    """Of all rosters. One that says why the other node's engine has gone has none."""
    return [line.pairs["epoch"] for line in daemon.lines("roster") if line.pairs["status"] == "0"]


def check_met(first: Daemon, second: Daemon, job: str) -> None:
    """Both engines have the same roster, and each knows which node it is."""
    here, there = roster(first, job), roster(second, job)
    assert here["status"] == there["status"] == "0", (here, there)
    assert here["nodes"] == there["nodes"] and here["key"] == there["key"] and here["epoch"] == there["epoch"]
    assert {here["node"], there["node"]} == {"0", "1"}
    assert len(here["key"]) == 64


def meet(first: Daemon, second: Daemon, job: str = "j") -> None:
    """A job of two nodes with two ranks each."""
    with attached(first, job, [0, 1], 4), attached(second, job, [3, 2], 4):
        check_met(first, second, job)


def test_the_nodes_of_a_job_get_one_roster_by_their_lowest_rank(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        with attached(first, "j", [2, 3], 4), attached(second, "j", [1, 0], 4):
            check_met(first, second, "j")
            assert roster(second, "j")["nodes"] == "127.0.0.1:9999/1,0;127.0.0.1:9999/2,3"
            nodes = first.ctl.json("nodes")["nodes"]
            assert [row["state"] for row in nodes] == ["listens", "joined"]
            assert [row["jobs"] for row in nodes] == ["j", "j"]
            assert nodes[0]["port"] == port_of(first) and nodes[1]["address"] == "127.0.0.1"
            assert [row["state"] for row in second.ctl.json("nodes")["nodes"]] == ["listens", "joined"]
        wait_until(lambda: first.ctl.json("nodes")["nodes"][1]["jobs"] == "", "the job to be forgotten")


def test_nodes_that_come_and_go_are_events_where_the_mesh_listens(keys):
    with listener(keys) as first, Zmtp(first.address / "admin.sock") as subscriber:
        subscriber.subscribe()
        with joiner(keys, port_of(first)):
            joined, more = subscriber.event(), subscriber.event()
        lost, less = subscriber.event(), subscriber.event()
        assert [event[1] for event in (joined, more, lost, less)] == [[6], [9], [7], [9]], (joined, more, lost, less)
        assert (more[10], less[10]) == ([2], [1]) and 12 not in more and 11 not in less and more[11] == less[12]
        assert joined[8] == lost[8] == [socket.gethostname().encode()]
        assert 3 not in joined and b"its connection has ended" in lost[9]


def test_jobs_side_by_side_and_the_next_generation_meet_in_epochs_of_their_own(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        with attached(first, "a", [0], 2), attached(second, "b", [0], 2), attached(second, "a", [1], 2):
            check_met(first, second, "a")
            assert not second.lines("job-met")[1:]
            with attached(first, "b", [1], 2):
                check_met(first, second, "b")
        wait_until(lambda: not first.jobs() and not second.jobs(), "the jobs to end")
        with attached(first, "a", [0], 2), attached(second, "a", [1], 2):
            wait_until(lambda: len(epochs(first)) == 3, "the next generation's roster")
            assert len(set(epochs(first))) == 3


def test_a_job_that_comes_again_is_not_taken_for_the_one_whose_end_nobody_told(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        second.allow("gate-ended", "mesh-not-joined")
        with attached(first, "j", [0, 1], 4), attached(second, "j", [3, 2], 4):
            check_met(first, second, "j")
            gate = second.gate()
            os.kill(gate, signal.SIGSTOP)
        wait_until(lambda: all(daemon.lines("engine-ended") for daemon in (first, second)), "the job to end")
        os.kill(gate, signal.SIGKILL)
        with attached(first, "j", [0, 1], 4), attached(second, "j", [3, 2], 4):
            wait_until(lambda: len(epochs(first)) == len(epochs(second)) == 2, "the next roster", 10)
            assert len({*epochs(first), *epochs(second)}) == 2


def test_ipv6_and_an_announced_address(keys):
    with listener(keys, mesh_listen="[::1]:0", interface="127.0.0.0/8") as first:
        with joiner(keys, port_of(first), mesh_join=f"[::1]:{port_of(first)}") as second:
            with attached(first, "j", [0], 2), attached(second, "j", [1], 2):
                assert roster(second, "j")["nodes"] == "127.0.0.1:9999/0;::1:9999/1"


def test_a_name_with_addresses_of_both_families_is_found_at_either(make_nodes):
    """localhost is ::1 and 127.0.0.1 there; n9 is nobody's address of IPv6, and n1's of IPv4."""
    nodes = make_nodes(2)
    node, keys = nodes[1], new_keys(nodes.shared / "mesh")
    with node.path("/etc/hosts").open("a", encoding="ascii") as hosts:
        hosts.write(f"fd00:77::99 n9\n{nodes[0].address} n9\n")
    options = {"engine": ENGINE, "mesh-key": keys}
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(Daemon(node=node, options=options | {"mesh-listen": "127.0.0.1:0", "port-range": "9632-9731"}))
        there = stack.enter_context(Daemon(node=nodes[0], options=options | {"mesh-listen": f"{nodes[0].address}:9600"}))
        for first, place in ((here, f"localhost:{port_of(here)}"), (there, "n9:9600")):
            began_ns = time.monotonic_ns()
            with Daemon(node=node, options=options | {"mesh-join": place}) as second:
                second.allow("mesh-not-joined")
                meet(first, second)
                check_prompt("the nodes met", time.monotonic_ns() - began_ns, 5_000_000_000)


def test_without_the_mesh_no_network_socket_is_open_and_a_job_on_two_nodes_is_refused(daemon):
    daemon.allow("attach-refused")
    with wire.Raw(daemon.attach_path) as raw:
        raw.send(wire.attach_request("j", 0, 4, extra=wire.message((7, 0), (8, 2))))
        reply = raw.attach_reply()
    assert reply.status == Status.ERR_UNSUPPORTED and "--mesh-listen or --mesh-join" in reply.text
    assert "no mesh" in daemon.ctl.run("nodes").stdout
    for pid in (daemon.pid, daemon.gate()):
        inodes = {target[8:-1] for target in procs.fds(pid).values() if target.startswith("socket:")}
        for table in ("tcp", "tcp6", "udp", "udp6"):
            rows = pathlib.Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
            assert not inodes & {row.split()[9] for row in rows}


# ---- keys ----


def test_a_missing_key_is_one_sentence_that_says_how_to_make_one(tmp_path):
    daemon = Daemon(options={"engine": ENGINE, "mesh-listen": "127.0.0.1:0", "mesh-key": tmp_path / "none"})
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.__enter__()
    done = subprocess.run([program("hvdd"), "--private", f"--runtime-dir={tmp_path}/run", "--mesh-listen=127.0.0.1:0"],
                          capture_output=True, text=True, timeout=scaled(20), check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert f"the mesh key {tmp_path}/run/mesh.key.server cannot be used: No such file or directory; make a pair with " \
           "`hvdctl key new PREFIX`" in done.stderr
    # The wrong one of the pair.
    keys = new_keys(tmp_path / "mesh")
    done = subprocess.run([program("hvdd"), "--private", f"--runtime-dir={tmp_path}/run", "--mesh-listen=127.0.0.1:0",
                           f"--mesh-key={keys}.client"],
                          capture_output=True, text=True, timeout=scaled(20), check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "needs the file PREFIX.server" in done.stderr


def test_keys_are_made_for_their_owner_alone_and_never_replaced(tmp_path):
    keys = new_keys(tmp_path / "mesh")
    for name in (f"{keys}.server", f"{keys}.client"):
        assert os.stat(name).st_mode & 0o777 == 0o600
    before = pathlib.Path(f"{keys}.client").read_text(encoding="ascii")
    done = subprocess.run([program("hvdctl"), "key", "new", str(keys)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "File exists" in done.stderr
    assert pathlib.Path(f"{keys}.client").read_text(encoding="ascii") == before


def test_a_node_with_another_pair_of_keys_gets_nothing_but_an_error(keys, tmp_path):
    other = new_keys(tmp_path / "other")
    with listener(keys) as first, joiner(other, port_of(first), start_timeout="1s") as second:
        with attached(second, "j", [1], 2):
            second.expect_line("mesh-not-joined", "not of one pair")
            second.allow("job-not-met")
            told = roster(second, "j")
            assert told["status"] == str(int(Status.ERR_ATTACH_TIMEOUT)) and "not of one pair" in told["text"]
        assert len(first.ctl.json("nodes")["nodes"]) == 1


def test_a_client_that_the_listener_does_not_know_is_refused_by_name(keys, tmp_path):
    """It has the server's public key, and a key of its own."""
    other = new_keys(tmp_path / "other")
    server = pathlib.Path(f"{keys}.client").read_text(encoding="ascii").splitlines()[0]
    mixed = pathlib.Path(f"{other}.client")
    mixed.write_text("\n".join([server, *mixed.read_text(encoding="ascii").splitlines()[1:], ""]), encoding="ascii")
    with listener(keys) as first, joiner(other, port_of(first)) as second:
        second.expect_line("mesh-not-joined", "does not know our key")
        first.expect_line("mesh-refused", "a node whose key is not in the mesh key file was refused")
        assert len(first.ctl.json("nodes")["nodes"]) == 1
        # The listener learns the key: the node comes in by itself.
        with open(f"{keys}.server", "a", encoding="ascii") as allowed:
            allowed.write(mixed.read_text(encoding="ascii").splitlines()[1] + "\n")
        first.allow("gate-ended")
        os.kill(first.gate(), signal.SIGKILL)
        second.expect_line("mesh-joined", seconds=10)
        meet(first, second)


# ---- errors of jobs ----


def test_a_rank_on_two_nodes_is_an_error_on_both(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        for daemon in (first, second):
            daemon.allow("job-not-met")
        with attached(first, "j", [0, 1], 4), attached(second, "j", [1, 2], 4):
            for daemon in (first, second):
                told = roster(daemon, "j")
                assert told["status"] == str(int(Status.ERR_DUPLICATE_RANK))
                assert "rank 1 of job 'j' is on two nodes" in told["text"]


def test_missing_nodes_are_named_after_the_start_timeout(keys):
    with listener(keys, start_timeout="1s") as first, joiner(keys, port_of(first)) as second:
        for daemon in (first, second):
            daemon.allow("job-not-met")
        began_ns = time.monotonic_ns()
        with attached(first, "j", [0, 1], 6), attached(second, "j", [4], 6):
            for daemon in (first, second):
                told = roster(daemon, "j")
                check_prompt("the node was told", time.monotonic_ns() - began_ns - 1_000_000_000, 1_000_000_000)
                assert told["status"] == str(int(Status.ERR_ATTACH_TIMEOUT))
                assert "ranks 2-3,5 of 6 are missing" in told["text"] and "with ranks 0-1" in told["text"]


def test_another_job_key_is_refused(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        for daemon in (first, second):
            daemon.allow("job-not-met")
        with attached(first, "j", [0], 2, key="one"):
            first.expect_line("node-complete")
            with attached(second, "j", [1], 2, key="another"):
                # The one that reaches the rendezvous second; on a busy machine that may be the node that has the rendezvous.
                wait_until(lambda: first.lines("roster") + second.lines("roster"), "a roster", 10, 0.02)
                told, = first.lines("roster") + second.lines("roster")
                assert told.pairs["status"] == str(int(Status.ERR_REFUSED)) and "another job key" in told.text


def test_engines_without_a_common_version_are_refused_with_both_named(keys):
    second = joiner(keys, 1)
    second.environment["FAKE_ENGINE_WIRE"] = "2"
    with listener(keys) as first:
        second.options["mesh-join"] = f"127.0.0.1:{port_of(first)}"
        with second:
            for daemon in (first, second):
                daemon.allow("job-not-met")
            with attached(first, "j", [0], 2), attached(second, "j", [1], 2):
                for daemon in (first, second):
                    told = roster(daemon, "j")
                    assert told["status"] == str(int(Status.ERR_VERSION))
                    assert "speaks 1 to 1" in told["text"] and "speaks 2 to 2" in told["text"]


# ---- peers that have a key and misuse it ----


class Peer:
    """A DEALER that has the client's key, through libzmq itself."""

    def __init__(self, keys: pathlib.Path, port: int, node: int):
        lines = dict(line.split() for line in pathlib.Path(f"{keys}.client").read_text(encoding="ascii").splitlines())
        self._zmq = ctypes.CDLL("libzmq.so.5")
        for name in ("zmq_ctx_new", "zmq_socket"):
            getattr(self._zmq, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._zmq.zmq_ctx_new())
        self._socket = ctypes.c_void_p(self._zmq.zmq_socket(self._context, 5))
        for option, value in ((50, lines["server"]), (48, lines["client"]), (49, lines["secret"]), (5, f"{node:016x}")):
            data = value.encode()
            assert self._zmq.zmq_setsockopt(self._socket, option, data, ctypes.c_size_t(len(data))) == 0
        for option, number in ((17, 0), (27, int(scaled(5) * 1000))):
            value = ctypes.c_int(number)
            assert self._zmq.zmq_setsockopt(self._socket, option, ctypes.byref(value), ctypes.c_size_t(4)) == 0
        assert self._zmq.zmq_connect(self._socket, f"tcp://127.0.0.1:{port}".encode()) == 0

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._zmq.zmq_close(self._socket)
        self._zmq.zmq_ctx_term(self._context)

    def send(self, data: bytes) -> None:
        """One message."""
        assert self._zmq.zmq_send(self._socket, data, ctypes.c_size_t(len(data)), 0) == len(data)

    def receive(self) -> dict[int, list[int | bytes]]:
        """The fields of the next message."""
        room = ctypes.create_string_buffer(65536)
        length = self._zmq.zmq_recv(self._socket, room, ctypes.c_size_t(65536), 0)
        assert length >= 0, "no message came"
        return wire.decode(room.raw[:length])


def hello(node: int, *, oldest: int = 1, newest: int = 1, talk: int = 5) -> bytes:
    """A MeshMessage with a MeshHello."""
    return wire.message((1, oldest), (2, newest), (3, node), (4, talk), (6, 1), (20, wire.message((1, "peer"))))


def test_a_peer_of_another_version_is_told_both(keys):
    with listener(keys) as first, Peer(keys, port_of(first), 7) as peer:
        peer.send(hello(7, oldest=3, newest=4))
        answer = peer.receive()
        assert wire.signed(answer[8][0]) == Status.ERR_VERSION
        text = answer[9][0].decode()
        assert "node peer speaks versions 3 to 4 of the mesh" in text and "speaks 1 to 1" in text
        first.expect_line("mesh-version", "versions 3 to 4")
        assert first.ctl.json("nodes")["nodes"][1]["state"] == "refused"


def test_a_peer_with_a_key_can_neither_be_another_node_nor_end_the_gate(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second, Peer(keys, port_of(first), 7) as peer:
        wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
        other = int(first.ctl.json("nodes")["nodes"][1]["node"], 16)
        peer.send(hello(other))
        first.expect_line("mesh-message-refused", "a node claims to be another one")
        for data in (b"", b"\xff" * 100, os.urandom(5000), hello(7)[:-3], hello(7) + b"\x0f"):
            peer.send(data)
        peer.send(hello(7))
        assert peer.receive()[7] == [1], "the hello was not confirmed"
        # A roster from a node that joins, and a registration that holds no EngineNode.
        registered = wire.message((1, "j"), (2, 0), (3, 1), (4, ""), (5, b"nonsense"))
        for number, body in ((2, 23), (2, 21), (3, 21)):
            peer.send(wire.message((1, 1), (2, 1), (3, 7), (4, 5), (6, number), (body, registered)))
        told = wire.decode(wait_until(lambda: peer.receive().get(23), "an answer to the registration", step=0)[0])
        refused = wire.decode(wire.decode(told[4][0])[23][0])
        assert told[3] == [1] and wire.signed(refused[1][0]) == Status.ERR_VERSION, refused  # the peer has said no version of its hvdd
        assert b"cannot read what the engine of node peer (hvdd ) says of it; install the same hvdd" in refused[2][0], refused
        meet(first, second)
        assert first.gate() and not first.lines("gate-ended")


def test_a_user_may_have_other_numbers_on_other_nodes(keys):
    """Both hvdds are private, and the key says that their user is one."""
    node = wire.field(22, wire.message((1, 2), (2, 1), (3, 4242), (4, 1), (5, 1)))
    with listener(keys) as first, Peer(keys, port_of(first), 7) as peer, attached(first, "j", [0], 2):
        peer.send(hello(7))
        registered = wire.message((1, "j"), (2, 12345), (3, 9), (4, ""), (5, node))
        peer.send(wire.message((1, 1), (2, 1), (3, 7), (4, 5), (6, 2), (21, registered)))
        assert roster(first, "j")["nodes"] == "127.0.0.1:9999/0;127.0.0.1:4242/1"
        told = wait_until(lambda: peer.receive().get(23), "the roster", step=0)
        assert wire.decode(told[0])[3] == [9]


# ---- failures ----


def test_gates_that_are_killed_while_nodes_wait_lose_nothing(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        for daemon in (first, second):
            daemon.allow("gate-ended", "mesh-not-joined")
        port = port_of(first)
        with attached(second, "j", [2, 3], 4):
            wait_until(lambda: "j" in [row["jobs"] for row in first.ctl.json("nodes")["nodes"]], "the node to register")
            for daemon in (first, second, first):
                os.kill(wait_until(daemon.gate, "a gate"), signal.SIGKILL)
                time.sleep(0.2)
            with attached(first, "j", [0, 1], 4):
                check_met(first, second, "j")
        assert port_of(first) == port


def test_killed_gates_after_the_roster_change_nothing(keys):
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        for daemon in (first, second):
            daemon.allow("gate-ended", "mesh-not-joined")
        with attached(first, "j", [0], 2), attached(second, "j", [1], 2):
            check_met(first, second, "j")
            for daemon in (first, second):
                os.kill(daemon.gate(), signal.SIGKILL)
            meet(first, second, "k")
            for daemon in (first, second):  # at its end an engine may hear that the ranks of the other one have gone
                assert [line.pairs["job"] for line in daemon.lines("roster") if line.pairs["status"] == "0"] == ["j", "k"]


def test_a_joiner_that_is_killed_makes_room_for_the_next_one(keys):
    with listener(keys) as first:
        with joiner(keys, port_of(first)) as second:
            with attached(second, "j", [1], 2):
                wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
                second.kill()
            wait_until(lambda: not procs.with_token(second.token, str(second.address)), "gate and engine to end")
            second.start()
            meet(first, second)


def test_a_listener_that_is_killed_and_comes_back_is_joined_again(keys):
    port = free_port()
    with listener(keys, mesh_listen=f"127.0.0.1:{port}") as first, joiner(keys, port) as second:
        second.allow("mesh-not-joined")
        with attached(second, "j", [1], 2):
            wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
            first.kill()
            wait_until(lambda: not procs.with_token(first.token, str(first.address)), "the gate to end")
            first.start()
            with attached(first, "j", [0], 2):
                check_met(first, second, "j")


@pytest.mark.parametrize("told", [False, True])
def test_a_listener_that_ends_is_told_of_where_that_lasts(keys, told):
    """The hvdds of a job end together, one of them first."""
    with listener(keys) as first, joiner(keys, port_of(first)) as second:
        wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
        assert first.terminate() == 0
        wait_until(lambda: second.ctl.json("nodes")["nodes"][0]["state"] == "apart", "the joiner to miss it", 2)
        if told:
            second.expect_line("mesh-not-joined", "connection")


class Relay:
    """A TCP relay to a port, whose connections can be cut."""

    def __init__(self, port: int):
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._over = False
        self.silent = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()
        self.cut()
        self._listening.close()

    def cut(self) -> None:
        """Ends every connection."""
        for pair in self._pairs:
            for one in pair:
                one.close()
        self._pairs = []

    def _run(self) -> None:
        while not self._over:
            ends = {one: other for a, b in list(self._pairs) for one, other in ((a, b), (b, a)) if one.fileno() >= 0}
            try:
                ready, _, _ = select.select([self._listening, *ends], [], [], 0.02)
            except (OSError, ValueError):
                continue
            for one in ready:
                with contextlib.suppress(OSError):
                    self._serve(one, ends)

    def _serve(self, one: socket.socket, ends: dict[socket.socket, socket.socket]) -> None:
        if one is self._listening:
            self._pairs.append((one.accept()[0], socket.create_connection(("127.0.0.1", self._to))))
            return
        data = one.recv(65536)
        if not data:
            self._pairs = [pair for pair in self._pairs if one not in pair]
            one.close()
            ends[one].close()
        elif not self.silent:
            ends[one].sendall(data)


def test_what_a_cut_connection_swallows_is_said_again(keys):
    """The relay swallows everything, then cuts: neither side is told what was lost."""
    with listener(keys) as first, Relay(port_of(first)) as relay, joiner(keys, relay.port) as second:
        second.allow("mesh-not-joined")
        wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
        for number in range(3):
            relay.silent = True
            with attached(first, f"j{number}", [0], 2), attached(second, f"j{number}", [1], 2):
                second.expect_line("node-complete", f"job=j{number}")
                time.sleep(0.1)
                relay.cut()
                relay.silent = False
                check_met(first, second, f"j{number}")
        assert len(epochs(first)) == len(epochs(second)) == 3


def test_strangers_at_the_port_are_refused_and_disturb_nobody(keys):
    """A hundred connections with bytes of all kinds, and as many that say nothing. The log has a line a second of them."""
    began = time.monotonic()
    with listener(keys) as first, joiner(keys, port_of(first)) as second, contextlib.ExitStack() as stack:
        wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to join")
        for number in range(200):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(first))))
            if number % 2:
                with contextlib.suppress(OSError):
                    one.sendall(os.urandom(300) if number % 4 == 1 else b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(300))
        began_ns = time.monotonic_ns()
        meet(first, second)
        check_prompt("the nodes met", time.monotonic_ns() - began_ns, 2_000_000_000)
        # On a machine that stood still for a second the node's connection was cut, too. It is back at once.
        wait_until(lambda: len(first.ctl.json("nodes")["nodes"]) == 2, "the node to be there, and no stranger")
        # libzmq may close a connection with nonsense before the gate asks for its address. A silent one stays for 2 s.
        wait_until(lambda: any(line.pairs["address"] == "127.0.0.1" for line in first.lines("mesh-refused")),
                   "a stranger to be named by its address")
        gate = first.gate()
        assert gate
        stack.close()
        wait_until(lambda: sum("socket" in target for target in procs.fds(gate).values()) < 20, "the strangers to go")
        assert first.gate() == gate and not first.lines("gate-ended")
        first.expect_line("mesh-refused", "a connection to the mesh ended without a message of a node")
        refused = first.lines("mesh-refused")
        assert len(refused) <= time.monotonic() - began + 1, refused


def test_a_crowd_of_silent_connections_from_one_address_keeps_no_node_out(keys):
    with listener(keys) as first:
        first.allow("mesh-refused")
        with crowd(subprocess.Popen, "127.0.0.2", ("127.0.0.1", port_of(first))):
            first.expect_line("mesh-refused")
            time.sleep(0.5)  # they are all there
            for number in range(3):
                with joiner(keys, port_of(first)) as second:
                    second.allow("mesh-not-joined")
                    began_ns = time.monotonic_ns()
                    meet(first, second, f"j{number}")
                    check_prompt("the nodes met", time.monotonic_ns() - began_ns, 2_000_000_000)
