# SPDX-License-Identifier: Apache-2.0
"""hvdrun over a real sshd on this machine's loopback addresses, which it reaches as another host because a user is named."""
import contextlib
import getpass
import os
import pathlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from hvt import procs, program, scaled, wait_until
from hvt.launcher import Launcher, line_of
from hvt.ports import free_port

SSHD = "/usr/sbin/sshd"

SERVER = """Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PermitRootLogin prohibit-password
SetEnv HVD_TEST_TOKEN={token} XDG_RUNTIME_DIR={folder}
"""

CLIENT = """UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
IdentitiesOnly yes
IdentityAgent none
LogLevel ERROR
Host n1 n2
  User {user}
  Port {port}
  IdentityFile {folder}/id
Host n1
  HostName 127.0.0.1
Host n2
  HostName 127.0.0.2
"""


class Server(Launcher):
    """A Launcher with a sshd of its own."""

    def __init__(self):
        super().__init__()
        self.user = getpass.getuser()
        for name in ("hostkey", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)
        (self.folder / "authorized_keys").write_text((self.folder / "id.pub").read_text())
        self.port = free_port("127.0.0.1", "127.0.0.2")
        key = " ".join((self.folder / "hostkey.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text("".join(f"[127.0.0.{last}]:{self.port} {key}\n" for last in (1, 2)))
        values = {"folder": self.folder, "token": self.token, "user": self.user, "port": self.port}
        (self.folder / "server").write_text(SERVER.format(**values))
        (self.folder / "client").write_text(CLIENT.format(**values))
        if os.geteuid() == 0:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        assert os.access(SSHD, os.X_OK), f"there is no {SSHD}; scripts/deps.sh test installs openssh-server"
        self.environment["HVD_SSH"] = f"ssh -F {self.folder}/client"
        with (self.folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.folder / "server")], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        wait_until(self._answers, lambda: f"sshd to listen: {(self.folder / 'server.log').read_text()}")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.2", self.port)) == 0

    def stop(self) -> None:
        """Ends sshd; the sessions that it has go on."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    """A sshd; afterwards nothing may be left but that."""
    running = Server()
    try:
        yield running
        running.stop()
        running.check_gone()
    finally:
        running.stop()
        running.sweep()


def test_ranks_run_where_ssh_leads(server):
    done = server.run("-H", "n1:1,n2:2", "env")
    assert done.returncode == 0 and not done.stderr, done.stderr
    seen: dict[str, dict[str, str]] = {}
    for rank, name, value in re.findall(r"^\[(\d)\]<stdout>:(\w+)=(.*)$", done.stdout, re.MULTILINE):
        seen.setdefault(rank, {})[name] = value
    assert [seen[rank]["SSH_CONNECTION"].split()[2] for rank in "012"] == ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
    assert {values["MASTER_ADDR"] for values in seen.values()} == {"127.0.0.1"}
    assert seen["0"]["HVD_ADDRESS"] != seen["1"]["HVD_ADDRESS"] == seen["2"]["HVD_ADDRESS"]


def test_port_and_key_can_be_given(server):
    hosts = ",".join(f"{server.user}@127.0.0.{last}:1" for last in (1, 2))
    done = server.run("-H", hosts, "-p", str(server.port), "-i", str(server.folder / "id"), "sh", "-c",
                      "[ $HVD_RANK = 0 ] && cat; exit 5", given=b"typed\n")
    assert done.returncode == 5 and "[0]<stdout>:typed\n" in done.stdout, done.stderr


@contextlib.contextmanager
def key_of_an_agent(server: Server) -> Iterator[None]:
    """An ssh-agent alone has the key, and other hosts may ask it, too."""
    path = server.folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as agent:
        try:
            wait_until(path.exists, "ssh-agent to listen")
            server.environment["SSH_AUTH_SOCK"] = str(path)
            subprocess.run(["ssh-add", "-q", str(server.folder / "id")], env=server.environment, check=True)
            (server.folder / "id").unlink()
            client = server.folder / "client"
            left = [line for line in client.read_text().splitlines() if "Identit" not in line]
            client.write_text("\n".join(["ForwardAgent yes", *left, ""]))
            yield
        finally:
            agent.terminate()


def test_a_key_may_be_an_agents_which_a_relay_uses_too(server):
    with key_of_an_agent(server):
        done = server.run("-H", "n1:1,n2:1", "--fan-out", "1", "--verbose", "echo", "here")
    assert done.returncode == 0 and done.stdout.count(":here\n") == 2, done.stderr
    assert "hvdrun: n2: through n1\n" in done.stderr and "n2: ssh is pid" not in done.stderr, done.stderr


def test_what_people_configure_for_their_sessions_is_not_done(server):
    with (server.folder / "client").open("a") as client:
        client.write(f"Host *\n  RequestTTY force\n  LocalForward {free_port('127.0.0.1')} 127.0.0.1:1\n  ExitOnForwardFailure yes\n"
                     f"  ControlMaster auto\n  ControlPath {server.folder}/master-%C\n")
    done = server.run("-H", "n1:1,n2:1", "sh", "-c", f"ls {server.folder}/master-* 2>/dev/null; echo here")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:here" for rank in range(2)] and not done.stderr, done.stderr


def test_this_machine_may_be_among_the_hosts(server):
    done = server.run("-H", "localhost:1,n2:1", "sh", "-c", "echo $MASTER_ADDR")
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:127.0.0.1" for rank in range(2)], done.stderr


def test_any_bytes_pass(server):
    path = server.folder / "bytes"
    path.write_bytes(os.urandom(3_000_000))
    done = server.run("-H", "n1:1", "--no-prefix", "cat", str(path), text=False)
    assert done.stdout == path.read_bytes()


def test_a_key_that_is_not_accepted_is_named(server):
    (server.folder / "authorized_keys").write_text("")
    done = server.run("-H", "n1:1,localhost:1,n2:1", "touch", "ran")
    assert done.returncode == 1 and not (server.folder / "ran").exists()
    assert [line.split(": ")[1:3] for line in done.stderr.splitlines()] == [["n1", "cannot be reached"], ["n2", "cannot be reached"]]
    assert "Permission denied (publickey)" in done.stderr


def test_a_host_key_that_is_not_known_is_named(server):
    (server.folder / "known_hosts").write_text("")
    done = server.run("-H", "n1:1", "true")
    assert done.returncode == 1 and "hvdrun: n1: cannot be reached: Host key verification failed." in done.stderr


def test_no_sshd_is_named(server):
    server.stop()
    done = server.run("-H", "n1:1", "true")
    assert done.returncode == 1 and "hvdrun: n1: cannot be reached: ssh: connect to host 127.0.0.1 port" in done.stderr


def test_a_host_without_hvdrun_is_named(server):
    done = server.run("-H", "n1:1", "--remote-hvdrun", "/nonexistent/hvdrun", "true")
    assert done.returncode == 1 and "hvdrun: n1: there is no /nonexistent/hvdrun; " in done.stderr


READY = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done"


def start(server: Server) -> subprocess.Popen:
    """A job on both addresses, once both ranks run."""
    process = server.start("-H", "n1:1,n2:1", "sh", "-c", READY)
    seen = b""
    while seen.count(b"ready") < 2:
        part = os.read(process.stdout.fileno(), 65536)
        assert part, process.stderr.read()
        seen += part
    return process


def test_a_signal_reaches_the_ranks(server):
    process = start(server)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 3 and out.count(b"caught") == 2


def test_nothing_is_left_when_ssh_is_killed(server):
    process = start(server)
    ways = [pid for pid, line in server.processes().items() if line.startswith("ssh -F") and "127" not in line]
    assert len(ways) == 2, server.processes()
    os.kill(ways[0], signal.SIGKILL)
    line_of(process.stderr, rb"lost the agent on n\d: ssh was killed by signal 9 \(SIGKILL\)")
    process.communicate(timeout=scaled(20))
    assert process.returncode != 0
    server.check_gone()


def test_nothing_is_left_when_hvdrun_is_killed(server):
    process = start(server)
    process.kill()
    process.communicate()
    server.check_gone()


def test_only_the_agent_is_seen_on_command_lines(server):
    server.environment["MY_TOKEN"] = "correct-horse-battery-staple"
    process = start(server)
    lines = [procs.cmdline(pid) for pid in procs.pids()]
    assert not [line for line in lines if "correct-horse" in line]
    assert [line for line in lines if line.endswith(f"n1 '{program('hvdrun')}' --node")], lines
    process.terminate()
    process.communicate(timeout=scaled(20))
