# SPDX-License-Identifier: Apache-2.0
"""Descriptors that do not close: sockets with SO_LINGER whose peer takes nothing. The last process that has one waits, in close()
or where the message that holds it is thrown away. That process must not be hvdd, whoever has sent it: a stranger, or a gate that
a stranger has taken over."""
import contextlib
import fcntl
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hvt import Daemon, Status, as_service, being, check_prompt, procs, program, stopped, wait_until, wire
from hvt.job import Job
from hvt.zmtp import GREETING, READY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")

NOBODY = 65534
# Sends each message of argv with such a socket, keeps nothing of it, and hangs up, as often as it is told to.
LINGERING = """
import array, os, socket, struct, sys, threading
server = socket.create_server(("127.0.0.1", 0))
keep = []
def lingering():
    one = socket.create_connection(server.getsockname())
    keep.append(server.accept()[0])  # which never reads
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        return one
"""
LINGER = LINGERING + """
path, kind, plain, hostile, count = sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), bytes.fromhex(sys.argv[4]), int(sys.argv[5])
for _ in range(count):
    one = lingering()
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as to:
        to.connect(path)
        if plain:
            to.send(plain)
        try:
            to.sendmsg([hostile], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
        except BrokenPipeError:  # it has been hung up on already
            pass
        threading.Thread(target=one.close, daemon=True).start()  # which waits itself where it comes last
print("sent", flush=True)
sys.stdin.read()
"""

# A gate that serves honestly, unless the file that argv[1] names is there: then it sends such sockets instead.
GATE = """
real, mark = sys.argv[1:]
if not os.path.exists(mark):
    os.execv(real, [real])
os.unlink(mark)
link = socket.socket(fileno=3)
link.recv(1 << 17)
for hostile in (b"", bytes.fromhex("2202080b"), b"\\xff" * 20) * 2:
    one = lingering()
    try:
        link.sendmsg([hostile], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
    except OSError:  # hvdd has seen enough
        pass
    threading.Thread(target=one.close, daemon=True).start()
threading.Event().wait(60)
"""

ATTACH = wire.attach_request("theirs")
TIMELINE = wire.field(wire.TIMELINE_REQUEST, wire.message((1, wire.PROTOCOL_VERSION), (2, "mine"), (3, True)))
# What comes first without a descriptor, and what comes with one. Behind an attach it would come to the stranger's own engine.
SENT = {"with an attach": (b"", ATTACH), "without a byte": (b"", b""), "with garbage": (b"", b"\xff" * 20),
        "behind garbage": (b"\xff" * 20, b"more"), "to another user's timeline": (b"", TIMELINE)}


@contextlib.contextmanager
def stranger(path: pathlib.Path, plain: bytes, hostile: bytes, kind: str = "SOCK_SEQPACKET") -> Iterator[None]:
    """A process of another user that has sent these, with such a descriptor, five times."""
    with subprocess.Popen([sys.executable, "-c", LINGER, str(path), kind, plain.hex(), hostile.hex(), "5"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", user=NOBODY, group=NOBODY,
                          extra_groups=[]) as process:
        try:
            assert process.stdout.readline() == "sent\n"
            yield
        finally:
            process.kill()


def test_a_descriptor_that_does_not_close_holds_up_no_other_user():
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("attach-refused")
        job = Job(daemon, 2, name="mine")
        rank = daemon.rank()
        before = len(procs.fds(daemon.pid))
        for kind, (plain, hostile) in SENT.items():
            with stranger(daemon.attach_path, plain, hostile):
                began_ns = time.monotonic_ns()
                outcome = rank.try_open("meanwhile", 0, 1, timeout_ms=5000)
                assert outcome.ok, (kind, outcome)
                check_prompt(f"root attached after a descriptor {kind}", time.monotonic_ns() - began_ns, 100_000_000)
                rank.close()
                wait_until(lambda: len(procs.fds(daemon.pid)) <= before, f"hvdd to keep nothing of a descriptor {kind}")
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
        job.check_usable()


QUESTION = wire.message((1, wire.PROTOCOL_VERSION), (2, 7), (3, b""))
SENT_TO_GATE = {"instead of a greeting": (b"", b"x"), "behind half of it": (GREETING[:20], GREETING[20:]),
                "with a question": (GREETING + READY, bytes((0, len(QUESTION))) + QUESTION),
                "behind a question": (GREETING + READY + bytes((0, len(QUESTION))) + QUESTION, b"x")}


def test_a_descriptor_that_does_not_close_does_not_stop_the_gate():
    """It stands still while they are sent, so that it is the last to have them."""
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        gate = daemon.gate()
        before = len(procs.fds(gate))
        for kind, (plain, hostile) in SENT_TO_GATE.items():
            with contextlib.ExitStack() as stack:
                with stopped(gate):
                    stack.enter_context(stranger(daemon.admin_path, plain, hostile, "SOCK_STREAM"))
                began_ns = time.monotonic_ns()
                assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
                check_prompt(f"hvdctl was answered after a descriptor {kind}", time.monotonic_ns() - began_ns, 500_000_000)
                wait_until(lambda: len(procs.fds(gate)) <= before, f"the gate to keep nothing of a descriptor {kind}")
        assert daemon.gate() == gate


def sealed(size: int) -> int:
    """A memfd as the engine wants it."""
    fd = os.memfd_create("hvt-sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def test_descriptors_that_a_trainer_does_not_read_keep_no_other_user_out():
    """The kernel counts those on their way by the user that has sent them: here the engines' one."""
    files = 192
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service(),
                preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) as daemon:
        daemon.allow("rank-lost", "session-ended", "rank-ended", "attach-refused")
        job = Job(daemon, 2)
        with being(NOBODY):
            raw = [wire.Raw(daemon.attach_path) for _ in range(2)]
        with raw[0], raw[1]:
            region = sealed(8192)
            for rank, one in enumerate(raw):
                one.send(wire.attach_request("theirs", rank, 2))
                reply = one.attach_reply()
                assert reply.status == Status.OK, reply.text
                for fd in reply.descriptors:
                    os.close(fd)
            raw[0].send(wire.field(wire.REGION_ADD, wire.message((1, 1), (2, 1), (3, 8192))), [region])
            assert wire.decode(wire.decode(raw[0].receive()[0])[wire.ACK][0])[2] == [0]
            os.close(region)
            for _ in range(2 * files):
                raw[1].send(wire.field(wire.PEER_ASK, wire.message((1, 0), (2, 1))))
            wait_until(lambda: daemon.ctl.json("ranks", "theirs", user=NOBODY)["ranks"], "the engine to have read it")
            rank = daemon.rank()
            outcome = rank.try_open("meanwhile", 0, 1, timeout_ms=5000)
            assert outcome.ok, outcome
            rank.close()
        job.check_usable()


def taken_over(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The program of a gate, and the file that makes the next one hostile."""
    path, mark, code = folder / "hvdd-gate", folder / "mark", folder / "code.py"
    code.write_text(LINGERING + GATE, encoding="utf-8")
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {code} {program('hvdd-gate')} {mark}\n", encoding="utf-8")
    path.chmod(0o755)
    return path, mark


def test_a_gate_that_was_taken_over_holds_up_nobody(tmp_path):
    gate, mark = taken_over(tmp_path)
    with Daemon(options={"gate": gate}) as daemon:
        daemon.allow("gate-ended")
        job, rank = Job(daemon, 2), daemon.rank()
        before = len(procs.fds(daemon.pid))
        mark.touch()
        os.kill(daemon.gate(), signal.SIGKILL)
        daemon.expect_line("gate-killed", "a descriptor")
        began_ns = time.monotonic_ns()
        assert rank.try_open("meanwhile", 0, 1, timeout_ms=5000).ok
        check_prompt("a rank attached", time.monotonic_ns() - began_ns, 100_000_000)
        rank.close()
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
        wait_until(lambda: len(procs.fds(daemon.pid)) <= before, "hvdd to keep nothing of it")
        job.check_usable()
