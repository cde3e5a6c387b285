# SPDX-License-Identifier: Apache-2.0
"""A private hvdd in a fresh directory, with everything it writes captured and everything it leaves behind checked."""
import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hvt import procs
from hvt.build import BUILD, library_for_strangers, program, program_for_strangers, scaled
from hvt.ctl import Ctl
from hvt.environment import clean_environment
from hvt.log import Line, parse_line
from hvt.nodes import Node
from hvt.rank import Rank
from hvt.wait import Expired, wait_until
from hvt.wire import Raw

SERVICE = 64738  # nobody's user id
TRAINERS = 64740  # nor this
# HVT_SERVICE: of a Daemon of which a test says no more, hvdd is a service of the user SERVICE, and ranks are TRAINERS. "hvdd": its engines
# are SERVICE, too, as under the units. "users": they become TRAINERS, as with their drop-ins.
_SERVICE_RIGHTS: dict[str, Sequence[str]] = {"hvdd": (), "users": ("setuid", "setgid", "kill")}
# Of a gate that was killed before it could say anything.
_NO_WORD = "a connection to the mesh ended without a message of a node"
# LeakSanitizer, at the end of a process that is killed meanwhile.
_LEAK_SEARCH = re.compile(r"==\d+==Unable to get registers from thread \d+\.")
# The last three: of a process that TSan instruments and that was killed, and what hvt_step.c and hvt_heap.c write.
_OURS = ("run", "log", "hvdd.conf", "tsan.", "step.", "heap.")


@contextlib.contextmanager
def being(uid: int) -> Iterator[None]:
    """What this process connects to meanwhile takes it for that user."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def as_service() -> dict[str, Any]:
    """How subprocess starts a hvdd that serves several users: root may not, so it gets a user of its own; a test that
    is no root itself has only one user."""
    return {"user": SERVICE, "group": SERVICE, "extra_groups": []} if os.geteuid() == 0 else {}


def service_programs(environment: dict[str, str]) -> tuple[str, str, dict[str, str]]:
    """Paths of hvdd and of its engine and an environment, for a hvdd that as_service() starts; its gate lies beside them."""
    hvdd, environment = program_for_strangers("hvdd", environment)
    engine, environment = program_for_strangers("hvdd-engine", environment)
    _gate, environment = program_for_strangers("hvdd-gate", environment)
    return hvdd, engine, environment


def with_rights(rights: Sequence[str], user: int = SERVICE) -> list[str]:
    """The beginning of a command line for root: what follows runs as the service, or as `user` with its group, and has these
    capabilities."""
    names = ",".join(f"+{name}" for name in rights)
    return ["setpriv", f"--reuid={user}", f"--regid={SERVICE}", "--clear-groups", f"--inh-caps={names}", f"--ambient-caps={names}"]


class Daemon:
    """hvdd as a context manager.

    Leaving it ends every rank, waits until the jobs are gone, compares hvdd's descriptors with what they were at the
    start, stops hvdd by SIGTERM and asserts that nothing is left: no process, no memfd, no socket, no file, and no
    warning or error line that the test has not expected.
    """

    def __init__(self, *, options: dict[str, Any] | None = None, prefix: tuple[str, ...] = (),
                 preexec: Any = None, stderr: str | None = None, folder_mode: int = 0o700,
                 user: dict[str, Any] | None = None, rights: Sequence[str] = (), preload: str | None = None,
                 node: Node | None = None):
        """`options` become --name=value; `prefix` is a command line put before hvdd; `stderr` replaces the log file;
        `user`: as_service(), where hvdd serves several users; `rights`: capabilities that it has then; `preload`: a library of the build that every process gets;
        `node`: where all of it runs."""
        self.node = node
        self.trainers: int | None = None  # whom ranks belong to of which a test does not say it; None: the user of the test
        kind = os.environ.get("HVT_SERVICE", "")
        if kind and user is None and node is None:
            self.trainers, user, folder_mode, rights = TRAINERS, as_service(), 0o777, _SERVICE_RIGHTS[kind]
            options = {"private": "no"} | (options or {})
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hvt-", dir=node.folder if node else None))
        self.folder.chmod(folder_mode)
        self.user = user or {}
        self.address = self.folder / "run"
        self.token = secrets.token_hex(8)
        self.environment = dict(node.environment() if node else clean_environment(), HVD_TEST_TOKEN=self.token, TMPDIR=str(self.folder))
        self.config_path = self.folder / "hvdd.conf"
        self.config_path.write_text(f"stall-warn = {scaled(60):.0f}s\n", encoding="utf-8")
        self.options = {"config": self.config_path, "log-level": "info", "private": "yes"} | (options or {})
        self._program = program("hvdd")
        if self.user:
            os.chown(self.folder, self.user["user"], self.user["group"])
            self._program, engine, self.environment = service_programs(self.environment)
            if self.options.setdefault("engine", engine) != engine:  # beside which the gate lies otherwise
                self.options.setdefault("gate", pathlib.Path(engine).with_name("hvdd-gate"))
            self.environment["HVD_SERVICE_UID"] = str(self.user["user"])  # else trainers of others say nothing to it
        if preload:
            self.environment["LD_PRELOAD"] = library_for_strangers(preload) if self.user else str(BUILD / "lib" / preload)
        self.log_path = self.folder / "log"
        self.ctl = Ctl(self.address, self.environment, node)
        self.process: subprocess.Popen[bytes] | None = None
        self.ranks: list[Rank] = []
        self.baseline: dict[int, str] = {}
        self._expected: set[str] = set()
        self._seen = 0
        self._prefix = prefix
        self._preexec = preexec
        self._rights = rights
        self._stderr = stderr

    # ---- life -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Daemon":
        try:
            self.start()
        except BaseException:
            self._sweep()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.check_and_stop()
        except BaseException:
            self._print_log()
            raise
        finally:
            if kind is not None:
                self._print_log()
            self._sweep()

    def command(self) -> list[str]:
        """The command line."""
        options = [f"--{name}={value}" if value is not None else f"--{name}" for name, value in self.options.items()]
        first = with_rights(self._rights) if self._rights else self._prefix
        return [*first, self._program, f"--runtime-dir={self.address}", *options]

    def command_user(self) -> dict[str, Any]:
        """As whom subprocess is to start it."""
        return {} if self._rights else self.user

    def start(self) -> None:
        """Starts hvdd and waits for its READY."""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify = self.folder / "notify"
        with contextlib.suppress(FileNotFoundError):
            notify.unlink()
        ready.bind(str(notify))
        notify.chmod(0o777)
        ready.settimeout(scaled(10))
        with open(self._stderr or self.log_path, "ab") as log:
            popen = self.node.popen if self.node else subprocess.Popen
            self.process = popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 env=dict(self.environment, NOTIFY_SOCKET=str(notify)),
                                 preexec_fn=self._preexec, cwd="/", **self.command_user())
        try:
            self._await_ready(ready)
        finally:
            ready.close()
            notify.unlink()
        self.baseline = self._settled_fds()

    def _await_ready(self, ready: socket.socket) -> None:
        deadline = time.monotonic() + scaled(10)
        ready.settimeout(0.05)
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"hvdd ended with {self.process.returncode} instead of getting ready: "
                                     f"{self.log_text()[-2000:]}")
            with contextlib.suppress(TimeoutError):
                if b"READY=1" in ready.recv(4096):
                    return
        raise Expired(f"hvdd did not say READY=1; its log: {self.log_text()[-2000:]}")

    def _settled_fds(self) -> dict[int, str]:
        with Raw(self.attach_path):  # sd-event makes its timerfd with the first timer
            self.ctl.json("status")
        seen = procs.fds(self.pid)
        deadline = time.monotonic() + scaled(2)
        while time.monotonic() < deadline:
            time.sleep(0.01)
            again = procs.fds(self.pid)
            if len(again) == len(seen):
                return again
            seen = again
        return seen

    @property
    def pid(self) -> int:
        """hvdd's pid."""
        return self.process.pid

    @property
    def attach_path(self) -> pathlib.Path:
        """The attach socket."""
        return self.address / "attach.sock"

    @property
    def admin_path(self) -> pathlib.Path:
        """The admin socket."""
        return self.address / "admin.sock"

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.process.kill()
        self.process.wait(scaled(5))

    def terminate(self, seconds: float = 10) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = 10) -> int:
        """Waits for hvdd's end; the exit code."""
        return self.process.wait(scaled(seconds))

    # ---- ranks ------------------------------------------------------------------------------------------------------

    def rank(self, *, environment: dict[str, str] | None = None, user: int | None = None, **more: Any) -> Rank:
        """A new rank process that knows this daemon's address and is ended with the daemon."""
        settings = dict(self.environment, HVD_ADDRESS=str(self.address), **(environment or {}))
        usual = user is None and self.trainers is not None
        # How a process has ended, the kernel tells the engine of another user no sooner than its parent has asked.
        rank = Rank(settings, user=self.trainers if usual else user, node=self.node, reaped=usual and not self._rights, **more)
        self.ranks.append(rank)
        return rank

    def trainer(self, name: str) -> tuple[str, dict[str, Any]]:
        """A program's path, and how subprocess starts it as the user that ranks are."""
        if self.trainers is None:
            return program(name), {"env": self.environment}
        path, environment = program_for_strangers(name, self.environment)
        return path, {"env": environment, "user": self.trainers, "group": self.trainers, "extra_groups": [], "cwd": "/"}

    def as_trainer(self) -> contextlib.AbstractContextManager[None]:
        """What this process connects to meanwhile takes it for the user that ranks are."""
        return contextlib.nullcontext() if self.trainers is None else being(self.trainers)

    def engines(self) -> list[int]:
        """Pids of the living engines of this daemon, also of one before it."""
        return [pid for pid, line in procs.with_token(self.token, str(self.address)).items()
                if "hvdd-engine" in line.split(" ")[0]]

    def engine_of(self, job: str) -> int:
        """Pid of the job's engine."""
        pid = next(row["engine_pid"] for row in self.jobs() if row["job"] == job)
        return next(each for each in self.node.processes() if self.node.inner_pid(each) == pid) if self.node else pid

    def gate(self) -> int:
        """Pid of the living gate of this daemon; 0 when there is none just now."""
        return next((pid for pid in procs.children(self.pid) if "hvdd-gate" in procs.cmdline(pid)), 0)

    def heap_bytes(self, pid: int) -> int:
        """What a process has allocated and not freed, in a Daemon that preloads libhvt-heap.so."""
        return int.from_bytes((self.folder / f"heap.{pid}").read_bytes(), sys.byteorder, signed=True)

    def step_ns(self, rank: Rank) -> int:
        """When the rank stopped or killed itself at the step that HVT_STEP names (CLOCK_MONOTONIC)."""
        path = self.folder / f"step.{rank.pid}"
        return int(wait_until(lambda: path.exists() and path.read_text(encoding="ascii"), "the rank to pass the step", 20))

    def jobs(self) -> list[dict[str, Any]]:
        """Rows of `hvdctl jobs`."""
        return self.ctl.json("jobs")["jobs"]

    def wait_no_jobs(self, seconds: float = 5) -> None:
        """Until no job and no engine is left."""
        wait_until(lambda: not self.jobs(), lambda: f"jobs of the daemon to end: {self.jobs()}", seconds, 0.05)
        wait_until(lambda: not self.engines(), "engines to exit", seconds, 0.02)

    # ---- log --------------------------------------------------------------------------------------------------------

    def log_text(self) -> str:
        """Everything written so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def lines(self, line_id: str | None = None) -> list[Line]:
        """The parsed lines so far, all or those with one id."""
        parsed = (parse_line(raw) for raw in self.log_text().splitlines())
        return [line for line in parsed if line and line_id in (None, line.id)]

    def allow(self, *line_ids: str) -> None:
        """Declares ids of warnings and errors that this test causes."""
        self._expected.update(line_ids)

    def expect_line(self, line_id: str, contains: str = "", seconds: float = 5) -> Line:
        """Waits for a line with this id whose text contains `contains`, and allows the id."""
        self._expected.add(line_id)

        def look() -> Line | None:
            return next((line for line in self.lines(line_id) if contains in line.raw), None)

        return wait_until(look, f"log line {line_id} with {contains!r}", seconds, 0.02)

    def unexpected(self) -> list[str]:
        """Warnings, errors and text in no format (sanitizers, libraries) that nobody has declared. Whoever ends other nodes' gates
        may end one that has just connected."""
        bad = []
        for raw in self.log_text().splitlines():
            if _LEAK_SEARCH.fullmatch(raw):
                continue
            line = parse_line(raw)
            if line and line.id == "mesh-refused" and _NO_WORD in line.text:
                continue
            if line is None or (line.level in ("warning", "error") and line.id not in self._expected):
                bad.append(raw)
        return bad

    # ---- the end ----------------------------------------------------------------------------------------------------

    def close_ranks(self) -> None:
        """Ends every rank process."""
        for rank in self.ranks:
            rank.stop()
        self.ranks.clear()

    def check_clean(self) -> None:
        """With every session closed, hvdd is back to where it started."""
        self.wait_no_jobs()
        wait_until(lambda: len(procs.fds(self.pid)) <= len(self.baseline),
                   lambda: f"hvdd's descriptors to go back to {len(self.baseline)}: "
                           f"{sorted(procs.fds(self.pid).values())}", step=0.02)
        held = {pid: procs.memfds(pid) for pid in procs.with_token(self.token)}
        assert not any(held.values()), f"memfds are still held: {held}"
        wait_until(lambda: all(pid == self.gate() or "mps-control -f" in procs.cmdline(pid) for pid in procs.children(self.pid)),
                   "hvdd's children to end", step=0.02)

    def check_and_stop(self) -> None:
        """The full check of a test's end."""
        self.close_ranks()
        if self.process.poll() is None:
            self.check_clean()
            code = self.terminate()
            assert code == 0, f"hvdd ended with {code} after SIGTERM"
        self.check_gone()

    def check_gone(self) -> None:
        """After hvdd's end: no process, no socket, no file, no undeclared line."""
        wait_until(lambda: not procs.with_token(self.token, str(self.address)), "the daemon's processes to end")
        left = [path for path in procs.leftovers(self.address) if path != "hvdd.lock"]
        assert not left, f"left behind in the runtime directory: {left}"
        others = [path for path in procs.leftovers(self.folder) if not path.startswith(_OURS)]
        assert not others, f"left behind in the temporary directory: {others}"
        bad = self.unexpected()
        assert not bad, "undeclared lines in the log:\n" + "\n".join(bad)

    def _sweep(self) -> None:
        for rank in self.ranks:
            rank.kill_now()
        deadline = time.monotonic() + scaled(5)
        while time.monotonic() < deadline:
            found = procs.with_token(self.token, str(self.address))
            if not found:
                break
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process:
                self.process.poll()
            time.sleep(0.01)
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _print_log(self) -> None:
        print(f"---- {self.log_path}\n{self.log_text()[-8000:]}")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is SIGSTOPped inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: procs.state(pid) in "T", f"process {pid} to be stopped")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
