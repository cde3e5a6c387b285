# SPDX-License-Identifier: Apache-2.0
"""Garbage on every socket: the sender is refused or dropped, everybody else goes on."""
import contextlib
import os
import random
import signal
import socket
import tempfile
import time

import pytest

from hvt import Daemon, Status, check_prompt, procs, scaled, wait_until, wire
from hvt.job import Job
from hvt.zmtp import Zmtp

DEADLINE_NS = 100_000_000
ATTACH = wire.attach_request("garbage")
TRUNCATIONS = [ATTACH[:length] for length in range(1, len(ATTACH), 3)]
MESSAGES = {
    "zeros": bytes(100), "ones": b"\xff" * 100, "text": b"GET / HTTP/1.1\r\n\r\n", "one byte": b"\x00",
    "unknown body": wire.field(500, b"x"), "no body": wire.field(99, 1),
    "detach first": wire.field(wire.DETACH, wire.field(1, 1)), "reply": wire.field(wire.ATTACH_REPLY, b""),
    "engine start": wire.field(wire.ENGINE_START, b""), "empty attach": wire.field(wire.ATTACH_REQUEST, b""),
    "deep": wire.field(wire.ATTACH_REQUEST, wire.field(13, wire.field(1, b"HVD_X" * 2000) + wire.field(2, b""))),
    "not utf-8": wire.field(wire.ATTACH_REQUEST, wire.message((1, 1), (2, 1), (3, b"\xff\xfe"), (5, 0), (6, 1))),
    "too many settings": wire.attach_request("many", settings=[(f"HVD_{n}", "v") for n in range(5000)]),
    "long setting": wire.attach_request("long", settings=[("HVD_X", "v" * 60_000)]),
    "empty hello": wire.field(wire.ENGINE_HELLO, b""),
}


def memfd() -> int:
    return os.memfd_create("garbage")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_first_message_that_is_no_attach_is_refused_with_a_reason(daemon, name):
    daemon.allow("attach-refused", "hello-refused")
    with wire.Raw(daemon.attach_path) as raw:
        began_ns = time.monotonic_ns()
        raw.send(MESSAGES[name])
        for data in raw.wait_closed():
            reply = wire.Reply(data, [])
            assert reply.status < 0 and reply.text
        check_prompt("the connection was closed", time.monotonic_ns() - began_ns, DEADLINE_NS)
    assert not daemon.jobs()
    assert daemon.rank().try_open("after", 0, 1).ok


def test_every_truncation_and_a_thousand_mutations_of_an_attach_are_survived(daemon):
    daemon.allow("attach-refused", "rank-lost", "rank-ended")
    source = random.Random(7)
    for number in range(1000 + len(TRUNCATIONS)):
        data = bytearray(ATTACH if number >= len(TRUNCATIONS) else TRUNCATIONS[number])
        if number >= len(TRUNCATIONS):
            for _ in range(source.randrange(1, 4)):
                data[source.randrange(len(data))] = source.randrange(256)
        with wire.Raw(daemon.attach_path) as raw:
            raw.send(bytes(data))
    assert daemon.rank().try_open("after", 0, 1).ok


def test_an_oversized_message_is_refused(daemon):
    daemon.allow("attach-refused")
    with wire.Raw(daemon.attach_path) as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        began_ns = time.monotonic_ns()
        raw.send(ATTACH + bytes(160 * 1024))
        for data in raw.wait_closed():
            assert wire.Reply(data, []).status < 0
        check_prompt("the connection was closed", time.monotonic_ns() - began_ns, DEADLINE_NS)
    assert not daemon.jobs()


@pytest.mark.parametrize("count", [1, 8, 200])
def test_descriptors_with_the_first_message_are_closed(daemon, count):
    daemon.allow("attach-refused")
    held = [memfd() for _ in range(count)]
    before = len(procs.fds(daemon.pid))
    for data in (ATTACH, b"\xff"):
        with wire.Raw(daemon.attach_path) as raw, contextlib.suppress(PermissionError):  # where the kernel refuses them
            began_ns = time.monotonic_ns()
            raw.send(data, held)
            for answer in raw.wait_closed():
                assert wire.Reply(answer, []).status < 0
            check_prompt("the connection was closed", time.monotonic_ns() - began_ns, DEADLINE_NS)
    for descriptor in held:
        os.close(descriptor)
    began_ns = time.monotonic_ns()
    wait_until(lambda: len(procs.fds(daemon.pid)) <= before, "hvdd to close what it was sent")
    check_prompt("hvdd had closed what it was sent", time.monotonic_ns() - began_ns, DEADLINE_NS)


def test_a_message_without_a_byte_but_with_descriptors_is_survived(daemon):
    daemon.allow("attach-refused")
    held = memfd()
    with wire.Raw(daemon.attach_path) as raw, contextlib.suppress(PermissionError):  # where the kernel refuses them
        raw.send(b"", [held])
        raw.wait_closed()
    os.close(held)


def test_a_silent_connection_is_closed_after_the_deadline():
    with Daemon(options={"attach-timeout": "100ms"}) as daemon:
        daemon.allow("attach-refused")
        began_ns = time.monotonic_ns()
        with wire.Raw(daemon.attach_path) as raw:
            answers = raw.wait_closed()
            took_ns = time.monotonic_ns() - began_ns
        assert [wire.Reply(data, []).status for data in answers] == [Status.ERR_ATTACH_TIMEOUT]
        assert took_ns >= 100_000_000, "it was not given its time"
        check_prompt("the connection was closed", took_ns - 100_000_000, DEADLINE_NS)


def test_a_flood_of_connections_is_limited_and_ends_with_it():
    with Daemon(options={"max-pending": 16}) as daemon:
        daemon.allow("attach-refused")
        job = Job(daemon, 2)
        wait_until(lambda: daemon.jobs()[0]["state"] == "running", "hvdd to know that both are attached")
        with contextlib.ExitStack() as stack:
            with daemon.as_trainer():
                crowd = [stack.enter_context(wire.Raw(daemon.attach_path)) for _ in range(100)]
            job.check_usable()
            refused = 0
            for raw in crowd[16:]:
                data, _ = raw.receive()
                refused += wire.Reply(data, []).status == Status.ERR_DAEMON_LIMIT
            assert refused == 84
            assert daemon.rank().try_open("crowded", 0, 1).status == Status.ERR_DAEMON_LIMIT
        wait_until(lambda: daemon.rank().try_open("after", 0, 1).ok, "attaches to work again", step=0.05)


def test_a_client_that_connects_and_dies_in_between_leaves_nothing(daemon):
    for number in range(50):
        with wire.Raw(daemon.attach_path) as raw:
            if number % 2:
                raw.send(wire.attach_request(f"gone{number}", 0, 2))
    daemon.allow("rank-lost")
    daemon.wait_no_jobs(10)


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, b"\xff" * 64, random.Random(3).randbytes(5000),
                                  b"\xff" + bytes(8) + b"\x7f\x03\x00NULL"], ids=["nothing", "zeros", "ones", "random",
                                                                                "half a greeting"])
def test_garbage_on_the_admin_socket_is_survived(daemon, data):
    with Zmtp(daemon.admin_path) as raw:
        raw.send(data)
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    assert daemon.ctl.json("status")


def test_wrong_admin_messages_are_answered_or_dropped_and_the_next_one_works(daemon):
    daemon.allow("bad-request")
    source = random.Random(5)
    with Zmtp(daemon.admin_path) as raw:
        raw.handshake()
        for parts in ([b""], [b"", b""], [b"\xff" * 50], [b"", b"\xff" * 50], [b"a"] * 20, [bytes(300_000)],
                      [b"", wire.field(77, b"?")], [b"", wire.message((1, 1), (2, 1))],
                      [b"", wire.message((1, 999), (2, 1), (3, b""))]):
            raw.message(*parts)
        for _ in range(200):
            raw.message(b"", source.randbytes(source.randrange(1, 60)))
        assert daemon.ctl.json("status")["daemon"]["pid"] == daemon.pid
    assert daemon.ctl.json("status")


def test_an_admin_flood_that_reads_no_answers_does_not_stop_attaches(daemon):
    request = wire.message((1, wire.PROTOCOL_VERSION), (2, 1), (3, b""))
    with Zmtp(daemon.admin_path) as raw:
        raw.handshake()
        raw.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(20_000):
                raw.message(b"", request)
        assert daemon.rank().try_open("meanwhile", 0, 1).ok
        assert daemon.ctl.json("status")


@contextlib.contextmanager
def fake_engine(daemon: Daemon, job: str, generation: int, after: bytes = b""):
    """A process of hvdd's user that says EngineHello, `after`, and then listens until it is closed or killed."""
    owner = os.geteuid() if daemon.trainers is None else daemon.trainers
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            if daemon.user:
                os.setgroups([])
                os.setgid(daemon.user["group"])
                os.setuid(daemon.user["user"])
            hello = wire.message((1, wire.PROTOCOL_VERSION), (2, job), (3, generation), (4, 2), (5, owner), (6, os.getpid()))
            raw = wire.Raw(daemon.attach_path)
            raw.send(wire.field(wire.ENGINE_HELLO, hello))
            if after:
                raw.send(after)
            raw.wait_closed()
        os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("after", [b"\xff" * 64, wire.field(wire.ATTACH_REQUEST, b""),
                                   wire.field(wire.ENGINE_SESSION, wire.message((1, 99), (2, 1), (3, 1))),
                                   wire.field(wire.ENGINE_SESSION, wire.message((1, 0), (2, 1), (3, 77))),
                                   wire.field(wire.ENGINE_REPORT, wire.message((1, 12345)))],
                         ids=["garbage", "attach", "bad rank", "bad state", "unasked report"])
def test_a_fake_engine_of_the_same_user_can_hurt_only_its_own_job(daemon, after):
    daemon.allow("attach-refused", "hello-refused", "engine-killed", "engine-ended", "bad-engine")
    job = Job(daemon, 2)
    with fake_engine(daemon, "ghost", 1, after):
        assert daemon.ctl.json("status")
        job.check_usable()
    wait_until(lambda: [row["job"] for row in daemon.jobs()] == [job.name], "the ghost to be forgotten")


def test_a_second_engine_for_a_running_job_is_refused(daemon):
    daemon.allow("hello-refused")
    job = Job(daemon, 2)
    row = daemon.jobs()[0]
    with fake_engine(daemon, job.name, row["generation"]):
        daemon.expect_line("hello-refused", job.name)
        assert daemon.jobs()[0]["engine_pid"] == row["engine_pid"]
    job.check_usable()
    assert [found["engine_pid"] for found in daemon.jobs()] == [row["engine_pid"]]


ENGINES = {"ends at once": "#!/bin/sh\nexit 1\n", "kills itself": "#!/bin/sh\nkill -9 $$\n",
           "talks nonsense": "#!/bin/sh\necho nonsense >&3\nexit 0\n", "cannot be run": "", "is silent": None}


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_does_not_work_is_a_clear_error_at_the_client(kind):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "hvdd-engine")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexec sleep 30\n" if ENGINES[kind] is None else ENGINES[kind])
        os.chmod(path, 0o755)
        with Daemon(options={"engine": path, "attach-timeout": "300ms"}) as daemon:
            daemon.allow("attach-refused", "no-engine", "engine-silent", "engine-killed", "engine-ended", "bad-engine")
            if kind == "cannot be run":
                os.chmod(path, 0o644)
            began_ns = time.monotonic_ns()
            outcome = daemon.rank().try_open("x", 0, 1, timeout_ms=int(scaled(10) * 1000))
            assert outcome.status in (Status.ERR_DAEMON, Status.ERR_ENGINE_LOST), outcome
            assert "engine" in outcome.text
            check_prompt("the rank was told", time.monotonic_ns() - began_ns, 8_000_000_000)
            daemon.wait_no_jobs(10)
