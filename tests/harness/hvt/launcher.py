# SPDX-License-Identifier: Apache-2.0
"""hvdrun under a test's control."""
import contextlib
import os
import pathlib
import re
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time

from hvt import procs
from hvt.build import program, scaled
from hvt.daemon import clean_environment
from hvt.wait import Expired, wait_until


class Launcher:
    """hvdrun runs in a runtime directory and with a token of this test's own; leaving checks that nothing is left."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hvt-run-"))
        self.token = secrets.token_hex(8)
        self.environment = dict(clean_environment(), XDG_RUNTIME_DIR=str(self.folder), HVD_TEST_TOKEN=self.token)

    def start(self, *arguments: str, **more) -> subprocess.Popen:
        """A running hvdrun with pipes for all three streams, unless told otherwise."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        environment = self.environment | streams.pop("environment", {})
        called = streams.pop("called", "hvdrun")
        return subprocess.Popen([called, *arguments], executable=program("hvdrun"), env=environment, cwd=self.folder, **streams)

    def run(self, *arguments: str, given: bytes | None = None, seconds: float = 30, **more) -> subprocess.CompletedProcess:
        """A finished hvdrun with its output as text (or as bytes, with text=False)."""
        text = more.pop("text", True)
        if given is not None:
            more["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **more)
        try:
            out, err = process.communicate(given, timeout=scaled(seconds))
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise Expired(f"hvdrun {' '.join(arguments)} did not end") from error
        if text:
            out, err = (out or b"").decode(), (err or b"").decode()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def processes(self) -> dict[int, str]:
        """Everything that this test has started and that still runs."""
        return procs.with_token(self.token)

    def directories(self) -> list[str]:
        """Runtime directories of private daemons."""
        return [name for name in os.listdir(self.folder) if name.startswith("hvdrun-")]

    def check_gone(self) -> None:
        """No process and no runtime directory is left."""
        wait_until(lambda: not self.processes(), lambda: f"processes to end: {self.processes()}", 10, 0.02)
        wait_until(lambda: not self.directories(), lambda: f"directories to go: {self.directories()}", 10, 0.02)

    def sweep(self) -> None:
        """Ends whatever a failed test has left."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def send_again(process: subprocess.Popen, number: signal.Signals) -> None:
    """A second signal to hvdrun, late enough to kill."""
    time.sleep(0.25)  # not a wait for something: those that come together, within 200 ms, do not kill
    process.send_signal(number)


def line_of(stream, pattern: bytes, seconds: float = 15) -> bytes:
    """Reads until a line matches."""
    deadline = time.monotonic() + scaled(seconds)
    seen = b""
    while time.monotonic() < deadline:
        if not select.select([stream], [], [], 0.1)[0]:
            continue
        part = os.read(stream.fileno(), 65536)
        seen += part
        for line in seen.split(b"\n"):
            if re.search(pattern, line):
                return line
        assert part, f"the stream ended without {pattern!r}: {seen!r}"
    raise Expired(f"no line matches {pattern!r}: {seen!r}")
