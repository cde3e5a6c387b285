# SPDX-License-Identifier: Apache-2.0
"""Descriptors that do not close: sockets with SO_LINGER whose peer takes nothing, and files of a FUSE mount that answers no FLUSH. The
last process that has one waits, in close() or where the message that holds it is thrown away. That process must not be hvdd, whoever
has sent it: a stranger, or a gate that a stranger has taken over. Each is tried as if the kernel could not refuse descriptors, too."""
import contextlib
import fcntl
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import ledger
import pytest

from hvt import Daemon, Status, as_service, being, check_prompt, procs, program, sanitized, scaled, stopped, wait_until, wire
from hvt.job import Job
from hvt.zmtp import GREETING, READY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")

NOBODY = 65534
# What is preloaded; a sanitizer wants to be preloaded first.
KERNELS = {"as it is": None} | ({} if sanitized() else {"before 6.16": "libhvt-old-kernel.so"})
BECOME = """
import os
def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
"""
LINGERING = """
import socket, struct, threading
server = socket.create_server(("127.0.0.1", 0))
keep = []
def hostile():
    one = socket.create_connection(server.getsockname())
    keep.append(server.accept()[0])  # which never reads
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(1 << 16))
    except BlockingIOError:
        return one.detach()
"""
# A mount of the user's, which a process of its own serves: with that, whatever waits for it ends. The file is the mount's root.
SILENT = """
import ctypes, os, signal, struct, threading
INIT, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH = 26, 3, 4, 14, 15, 16, 18, 25
def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def serve(device, uid):
    attributes = struct.pack("<QII6Q10I", 60, 0, 0, 1, 1 << 20, 0, 0, 0, 0, 0, 0, 0, 0o100666, 1, uid, uid, 0, 4096, 0)
    answers = {INIT: struct.pack("<IIIIHHII36x", 7, 31, 0, 0, 12, 9, 1 << 16, 1), GETATTR: attributes, SETATTR: attributes,
               OPEN: bytes(16), RELEASE: b""}
    while True:
        request = os.read(device, 1 << 18)
        _length, kind, unique = struct.unpack_from("<IIQ", request)
        if kind in (FLUSH, 2, 36):  # FORGET and INTERRUPT have no answer
            continue
        body = answers.get(kind)
        if kind == WRITE:
            body = request[56:60] + bytes(4)
        elif kind == READ:
            body = bytes(struct.unpack_from("<I", request, 56)[0])
        os.write(device, struct.pack("<IiQ", 16 + len(body or b""), 0 if body is not None else -38, unique) + (body or b""))
def mounted(folder, uid):
    libc, path = ctypes.CDLL(None, use_errno=True), os.path.join(folder, "silent")
    open(path, "w").close()
    check(libc.unshare(0x20000))  # CLONE_NEWNS
    check(libc.mount(None, b"/", None, 1 << 14 | 1 << 18, None))  # MS_REC, MS_PRIVATE
    device = os.open("/dev/fuse", os.O_RDWR)
    check(libc.mount(b"hvt", path.encode(), b"fuse", 6, b"fd=%d,rootmode=100666,user_id=%d,group_id=%d" % (device, uid, uid)))
    if os.fork() == 0:
        become(uid)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        serve(device, uid)
    os.close(device)
    return path
path = mounted(sys.argv[1], int(sys.argv[2]))
def hostile():
    return os.open(path, os.O_RDWR)
"""
HOSTILE = {"socket": LINGERING, "file": SILENT}
# A kernel that refuses descriptors does not ask what they are.
CASES = [(what, kernel) for what in HOSTILE for kernel in KERNELS if (what, kernel) != ("file", "as it is") or sanitized()]
# Sends each message of argv with such a descriptor, keeps nothing of it, and hangs up, as often as it is told to.
SEND = """
become(int(sys.argv[2]))
import array, socket
path_to, kind, plain, hostile_bytes, count = sys.argv[3], sys.argv[4], bytes.fromhex(sys.argv[5]), bytes.fromhex(sys.argv[6]), int(sys.argv[7])
for _ in range(count):
    one = hostile()
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as to:
        to.connect(path_to)
        if plain:
            to.send(plain)
        try:
            to.sendmsg([hostile_bytes], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one]))])
        except (BrokenPipeError, PermissionError):  # it has been hung up on already; the kernel refuses the descriptor
            pass
        threading.Thread(target=os.close, args=(one,), daemon=True).start()  # which waits itself where it comes last
print("sent", flush=True)
sys.stdin.read()
"""

# A gate that serves honestly, unless the file that argv[1] names is there: then it sends such sockets instead.
GATE = """
import array, os, sys
real, mark = sys.argv[1:]
if not os.path.exists(mark):
    os.execv(real, [real])
os.unlink(mark)
link = socket.socket(fileno=3)
link.recv(1 << 17)
for message in (b"", bytes.fromhex("2202080b"), b"\\xff" * 20) * 2:
    one = hostile()
    try:
        link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one]))])
    except OSError:  # hvdd has seen enough
        pass
    threading.Thread(target=os.close, args=(one,), daemon=True).start()
threading.Event().wait(60)
"""

ATTACH = wire.attach_request("theirs")
TIMELINE = wire.field(wire.TIMELINE_REQUEST, wire.message((1, wire.PROTOCOL_VERSION), (2, "mine"), (3, True)))
# What comes first without a descriptor, and what comes with one. Behind an attach it would come to the stranger's own engine.
SENT = {"with an attach": (b"", ATTACH), "without a byte": (b"", b""), "with garbage": (b"", b"\xff" * 20),
        "behind garbage": (b"\xff" * 20, b"more"), "to another user's timeline": (b"", TIMELINE)}


@contextlib.contextmanager
def process_of(code: str, *arguments: str) -> Iterator[None]:
    """A process that begins as root, in a folder of its own, and has said that it has done its worst."""
    with tempfile.TemporaryDirectory(prefix="hvt-hostile-") as folder:
        os.chmod(folder, 0o755)
        with subprocess.Popen([sys.executable, "-c", "import sys\n" + BECOME + code, folder, str(NOBODY), *arguments],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
            try:
                assert process.stdout.readline() == "sent\n"
                yield
            finally:
                process.kill()


def stranger(path: pathlib.Path, plain: bytes, hostile: bytes, *, what: str = "socket",
             kind: str = "SOCK_SEQPACKET") -> contextlib.AbstractContextManager[None]:
    """A process of another user that has sent these, with such a descriptor, five times."""
    return process_of(HOSTILE[what] + SEND, str(path), kind, plain.hex(), hostile.hex(), "5")


def skip_without_fuse(what: str) -> None:
    if what == "file" and ledger.CONDITIONS["no-fuse"]():
        pytest.skip("no FUSE here")


@pytest.mark.parametrize("what, kernel", CASES)
def test_a_descriptor_that_does_not_close_holds_up_no_other_user(what, kernel):
    skip_without_fuse(what)
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service(),
                preload=KERNELS[kernel]) as daemon:
        daemon.allow("attach-refused", "rank-lost")
        job = Job(daemon, 2, name="mine")
        rank = daemon.rank()
        before = len(procs.fds(daemon.pid))
        for kind, (plain, hostile) in SENT.items():
            with stranger(daemon.attach_path, plain, hostile, what=what):
                began_ns = time.monotonic_ns()
                outcome = rank.try_open("meanwhile", 0, 1, timeout_ms=5000)
                assert outcome.ok, (kind, outcome)
                check_prompt(f"root attached after a descriptor {kind}", time.monotonic_ns() - began_ns, 100_000_000)
                rank.close()
                wait_until(lambda: len(procs.fds(daemon.pid)) <= before, f"hvdd to keep nothing of a descriptor {kind}")
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
        job.check_usable()


# Of its own job: asks at first without the file, and goes on when its answer takes long, or it is hung up on.
TIMELINES = """
become(int(sys.argv[2]))
import array, socket
for _ in range(12):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as to:
        to.connect(sys.argv[3])
        to.send(bytes.fromhex(sys.argv[4]))
        to.recv(1 << 10)
        to.settimeout(0.1)
        one = hostile()
        try:
            to.sendmsg([bytes.fromhex(sys.argv[4])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one]))])
            to.recv(1 << 10)
        except (TimeoutError, ConnectionError):  # or the helper has been ended meanwhile
            pass
    threading.Thread(target=os.close, args=(one,), daemon=True).start()
print("sent", flush=True)
sys.stdin.read()
"""


def test_timelines_in_a_file_that_does_not_close_leave_helpers_for_other_users(tmp_path):
    """Each such file keeps the helper that has passed it on, and the engine of that user's job."""
    skip_without_fuse("file")
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
        daemon.allow("timeline-refused", "engine-silent", "engine-killed", "engine-ended", "rank-lost", "session-ended", "rank-ended")
        job = Job(daemon, 2, name="mine")
        daemon.rank(user=NOBODY).open("theirs", 0, 1)
        request = wire.field(wire.TIMELINE_REQUEST, wire.message((1, wire.PROTOCOL_VERSION), (2, "theirs"), (3, True)))
        with process_of(SILENT + TIMELINES, str(daemon.attach_path), request.hex()):
            def helpers() -> int:
                return len([pid for pid in procs.children(daemon.pid) if pid != daemon.gate() and pid not in daemon.engines()])

            # One that closes connections is among them for a moment.
            wait_until(lambda: 1 < helpers() <= 8, "helpers to wait, and not too many", scaled(5))
            began_ns = time.monotonic_ns()
            done = daemon.ctl.run("timeline", "mine", "start", str(tmp_path / "timeline.json"))
            assert done.returncode == 0, done.stderr
            check_prompt("a timeline of another user's began", time.monotonic_ns() - began_ns, 500_000_000)
            assert daemon.ctl.run("timeline", "mine", "stop").returncode == 0
            job.check_usable()


QUESTION = wire.message((1, wire.PROTOCOL_VERSION), (2, 7), (3, b""))
SENT_TO_GATE = {"instead of a greeting": (b"", b"x"), "behind half of it": (GREETING[:20], GREETING[20:]),
                "with a question": (GREETING + READY, bytes((0, len(QUESTION))) + QUESTION),
                "behind a question": (GREETING + READY + bytes((0, len(QUESTION))) + QUESTION, b"x")}


@pytest.mark.parametrize("what, kernel", CASES)
def test_a_descriptor_that_does_not_close_does_not_stop_the_gate(what, kernel):
    """It stands still while they are sent, so that it is the last to have them."""
    skip_without_fuse(what)
    with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service(),
                preload=KERNELS[kernel]) as daemon:
        gate = daemon.gate()
        before = len(procs.fds(gate))
        for kind, (plain, hostile) in SENT_TO_GATE.items():
            with contextlib.ExitStack() as stack:
                with stopped(gate):
                    stack.enter_context(stranger(daemon.admin_path, plain, hostile, what=what, kind="SOCK_STREAM"))
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
