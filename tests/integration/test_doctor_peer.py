# SPDX-License-Identifier: Apache-2.0
"""hvdctl doctor --peer: the way to another machine, a hvdd's mesh there, and a doctor --peer-server that has the key."""
import contextlib
import json
import pathlib
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

from hvt import Daemon, new_keys, program, scaled
from hvt.daemon import clean_environment

#: This test's own.
PORTS = "9732-9741"


def ask(peer: str, node: Any = None, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and the checks by name."""
    command = [program("hvdctl"), "doctor", "--json", "--peer", peer]
    if node:
        done = node.run(command, env=node.environment() | environment)
    else:
        done = subprocess.run(command, env=clean_environment() | {"HVD_PORT_RANGE": PORTS} | environment, capture_output=True,
                              text=True, timeout=scaled(60), check=False, stdin=subprocess.DEVNULL)
    document = json.loads(done.stdout)
    assert not done.stderr
    return done.returncode, {check["check"]: check for check in document["checks"]}


@contextlib.contextmanager
def server(node: Any = None, **environment: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A doctor --peer-server, and what it has printed. It has to end by itself, in good order."""
    command = [program("hvdctl"), "doctor", "--peer-server", "--json"]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if node:
        process = node.popen(command, env=node.environment() | environment, **more)
    else:
        process = subprocess.Popen(command, env=clean_environment() | {"HVD_PORT_RANGE": PORTS}, stdin=subprocess.DEVNULL, **more)
    try:
        yield process, json.loads(process.stdout.readline())
        assert process.wait(scaled(20)) == 0, process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_two_doctors_measure_what_is_between_them():
    with server() as (process, said):
        code, checks = ask(f"127.0.0.1:{said['port']}", HVD_PEER_KEY=said["key"])
        assert process.wait(scaled(20)) == 0
    assert code in (0, 1)
    assert all(checks[name]["result"] == "ok" for name in
               ("peer's name", "peer's port", "way to the peer", "peer's hvdd", "round trip", "bandwidth", "path MTU")), checks
    assert checks["way to the peer"]["value"].startswith("from 127.0.0.1, lo, MTU ")
    assert checks["peer's hvdd"]["value"].startswith("hvdctl ")
    assert 0 < checks["round trip"]["round_trip_ns"] < scaled(1) * 1e9 and "101 messages" in checks["round trip"]["value"]
    assert checks["bandwidth"]["send_bytes_per_s"] > 1e6 and checks["bandwidth"]["receive_bytes_per_s"] > 1e6
    assert checks["path MTU"]["path_mtu"] > 1000


def test_nothing_is_measured_without_the_key():
    with server() as (process, said):
        code, checks = ask(f"127.0.0.1:{said['port']}")
        assert "wants the key" in checks["peer's hvdd"]["next"] and checks["bandwidth"]["value"] == "not measured"
        code, checks = ask(f"127.0.0.1:{said['port']}", HVD_PEER_KEY="00" * 16)
        assert code == 1 and checks["peer's hvdd"]["result"] == "problem" and "another key" in checks["peer's hvdd"]["value"]
        assert "bandwidth" not in checks
        code, checks = ask(f"127.0.0.1:{said['port']}", HVD_PEER_KEY="00")
        assert code == 1 and checks["peer's hvdd"]["value"] == "HVD_PEER_KEY is no key"
        with socket.create_connection(("127.0.0.1", said["port"])) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n" + bytes(24))  # as long as a hello
            assert stranger.recv(1) == b""
        assert process.poll() is None
        assert ask(f"localhost:{said['port']}", HVD_PEER_KEY=said["key"])[1]["bandwidth"]["result"] == "ok"


def test_the_mesh_of_a_hvdd_is_known_and_left_in_peace(tmp_path: pathlib.Path):
    options = {"mesh-listen": "127.0.0.1:0", "mesh-key": new_keys(tmp_path / "mesh"), "port-range": PORTS}
    with Daemon(options=options) as daemon:
        port = daemon.ctl.json("status")["daemon"]["mesh_port"]
        _, checks = ask(f"127.0.0.1:{port}")
        assert checks["peer's hvdd"]["result"] == "ok" and "a mesh that hvdd could join" in checks["peer's hvdd"]["value"]
        assert "5 connections" in checks["round trip"]["value"] and checks["round trip"]["round_trip_ns"] > 0
        assert len(daemon.ctl.json("nodes")["nodes"]) == 1


def test_each_obstacle_is_named_with_the_next_step():
    code, checks = ask("no-such-host.invalid")
    assert code == 1 and "/etc/hosts" in checks["peer's name"]["next"] and "peer's port" not in checks
    code, checks = ask("[::1:9600")
    assert code == 1 and "is no HOST or HOST:PORT" in checks["peer's name"]["value"]
    _, checks = ask("127.0.0.1")
    assert checks["peer's port"]["result"] == "note" and "port 9732: refused" in checks["peer's port"]["value"]
    assert "doctor --peer-server on 127.0.0.1" in checks["peer's port"]["next"] and "round_trip_ns" in checks["round trip"]
    code, checks = ask("127.0.0.1:9733")
    assert code == 1 and "nothing listens there" in checks["peer's port"]["value"]
    assert "way to the peer" not in checks


def test_a_firewall_and_a_short_link_between_machines_are_told(make_nodes):
    first, second = make_nodes(2)
    with server(second) as (_, said):
        second.drop_port(said["port"])
        code, checks = ask(f"{second.address}:{said['port']}", first, HVD_PEER_KEY=said["key"])
        assert code == 1
        assert "nothing comes back" in checks["peer's port"]["value"] and "firewall" in checks["peer's port"]["next"]
        second.heal()
        first.ip(f"route add {second.address}/32 dev eth0 mtu 1400")
        _, checks = ask(f"{second.address}:{said['port']}", first, HVD_PEER_KEY=said["key"])
        assert checks["way to the peer"]["value"] == f"from {first.address}, eth0, MTU 1500"
        assert checks["bandwidth"]["result"] == "ok" and checks["bandwidth"]["send_bytes_per_s"] > 0
        assert checks["path MTU"]["result"] == "note" and checks["path MTU"]["path_mtu"] == 1400
    code, checks = ask("198.51.100.1", first)
    assert code == 1 and checks["peer's name"]["value"] == "198.51.100.1 is 198.51.100.1" and checks["peer's port"]["result"] == "problem" and "ip route get" in checks["peer's port"]["next"]
