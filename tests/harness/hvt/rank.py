# SPDX-License-Identifier: Apache-2.0
"""One trainer process (hvt-rank) that does what the test says through hvd.h."""
import array
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvt import arith
from hvt.build import program, program_for_strangers, scaled
from hvt.nodes import Node
from hvt.status import Status
from hvt.wait import Expired

REDUCE_OPS = {"average": 0, "sum": 1, "adasum": 2, "min": 3, "max": 4, "product": 5}


@dataclass(frozen=True)
class Outcome:
    """What a call or an op came to. `text` is the library's sentence, "" on success."""
    status: Status
    text: str = ""
    data: bytes | None = None
    dims: list[int] | None = None
    culprit: int = -1
    at_ns: int = 0
    op: int = -1
    name: str = ""
    splits: list[int] | None = None
    joined: int = -1
    process_set: int = -1
    index: int = -1
    source: int = -1

    @property
    def ok(self) -> bool:
        """Success, and not "in progress"."""
        return self.status == Status.OK


class RankError(RuntimeError):
    """A call that should have worked did not; `outcome` says why."""

    def __init__(self, what: str, outcome: Outcome):
        super().__init__(f"{what}: {outcome.status.name}: {outcome.text}")
        self.outcome = outcome
        self.status = outcome.status
        self.text = outcome.text


def _outcome(reply: dict[str, Any]) -> Outcome:
    data = reply.get("data")
    return Outcome(Status(reply["status"]), reply.get("error") or reply.get("text", ""),
                   bytes.fromhex(data) if data is not None else None, reply.get("dims"), reply.get("culprit", -1),
                   reply.get("at_ns", 0), reply.get("op", -1), reply.get("name", ""), reply.get("splits"),
                   reply.get("joined", -1), reply.get("set", -1), reply.get("index", -1),
                   reply.get("source", -1))


class Rank:
    """The process; `Daemon.rank` starts it. Session 0 is meant where none is given."""

    def __init__(self, environment: dict[str, str], user: int | None = None, prefix: Sequence[str] = (),
                 node: Node | None = None, reaped: bool = False):
        """`reaped`: as soon as it ends, as by a launcher."""
        name = "hvt-rank-steps" if "HVT_STEP" in environment else "hvt-rank"
        path, more = program(name), {}
        if user is not None:
            path, environment = program_for_strangers(name, environment)
            more = {"user": user, "group": user, "extra_groups": []}
        popen = node.popen if node else subprocess.Popen
        self.process = popen([*prefix, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=environment, cwd="/", **more)
        if reaped:
            threading.Thread(target=self.process.wait, daemon=True).start()
        self._pending = b""

    @property
    def pid(self) -> int:
        """The process's pid."""
        return self.process.pid

    # ---- talking ----------------------------------------------------------------------------------------------------

    def post(self, do: str, **arguments: Any) -> None:
        """Sends a command whose reply is collected later, in order."""
        line = json.dumps({"do": do} | {name: value for name, value in arguments.items() if value is not None})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def collect(self, seconds: float = 20) -> dict[str, Any]:
        """The next reply. Raises Expired, or AssertionError when the process has ended instead."""
        deadline = time.monotonic() + scaled(seconds)
        descriptor = self.process.stdout.fileno()
        parts = [self._pending]
        while b"\n" not in parts[-1]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise Expired(f"hvt-rank {self.pid} did not answer within {scaled(seconds):.0f} s")
            part = os.read(descriptor, 1 << 20)
            if not part:
                code = self.process.wait(scaled(5))
                raise AssertionError(f"hvt-rank ended with {code}: {self.process.stderr.read().decode()[-4000:]}")
            parts.append(part)
        line, self._pending = b"".join(parts).split(b"\n", 1)
        return json.loads(line)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """A command and its reply."""
        self.post(do, **arguments)
        return self.collect()

    def ask_all(self, commands: Sequence[dict[str, Any]]) -> list[Outcome]:
        """Many commands, a few at a time so that neither pipe fills up; their outcomes in order."""
        outcomes = []
        for begin in range(0, len(commands), 50):
            batch = commands[begin:begin + 50]
            for command in batch:
                self.post(**command)
            outcomes += [_outcome(self.collect()) for _ in batch]
        return outcomes

    # ---- sessions ---------------------------------------------------------------------------------------------------

    def try_open(self, job: str | None = None, rank: int | None = None, size: int | None = None,
                 **more: Any) -> Outcome:
        """hvd_open whatever comes of it; more: session, address, key, timeout_ms."""
        return _outcome(self.ask("open", job=job, rank=rank, size=size, **more))

    def open(self, job: str | None = None, rank: int | None = None, size: int | None = None,
             **more: Any) -> dict[str, Any]:
        """hvd_open; the session's identity. Raises RankError."""
        reply = self.ask("open", job=job, rank=rank, size=size, **more)
        if reply["status"] != Status.OK:
            raise RankError("hvd_open", _outcome(reply))
        return reply

    def close(self, session: int = 0) -> None:
        """hvd_close. Raises RankError."""
        outcome = _outcome(self.ask("close", session=session))
        if not outcome.ok:
            raise RankError("hvd_close", outcome)

    def state(self, session: int = 0) -> Outcome:
        """hvd_session_status."""
        return _outcome(self.ask("state", session=session))

    def log(self) -> list[str]:
        """What the library has told its log callback since the last time."""
        return self.ask("log")["lines"]

    def timeline(self, path: Any = None, mark: bool = False) -> Outcome:
        """hvd_timeline_start, or without a path hvd_timeline_stop, whatever comes of it."""
        return _outcome(self.ask("timeline", path=str(path) if path else None, mark=int(mark)))

    # ---- ops --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _submission(kind: str, name: str | None, dtype: Any, reduce_op: Any, data: bytes | None,
                    more: dict[str, Any]) -> dict[str, Any]:
        return {"kind": kind, "name": name, "dtype": arith.DTYPES[dtype].number if isinstance(dtype, str) else dtype,
                "reduce_op": REDUCE_OPS[reduce_op] if isinstance(reduce_op, str) else reduce_op,
                "data": data.hex() if data is not None else None} | {
                    key: "nan" if value != value else value for key, value in more.items()}

    def try_submit(self, kind: str, name: str | None = None, *, dtype: Any = None, reduce_op: Any = None,
                   data: bytes | None = None, **more: Any) -> Outcome:
        """One of the _async functions, whatever comes of it; more: see hvt_rank.c."""
        return _outcome(self.ask("submit", **self._submission(kind, name, dtype, reduce_op, data, more)))

    def post_submit(self, kind: str, name: str | None = None, *, dtype: Any = None, reduce_op: Any = None,
                    data: bytes | None = None, **more: Any) -> None:
        """One of the _async functions whose outcome `collect_outcome` fetches, if the process lives to tell."""
        self.post("submit", **self._submission(kind, name, dtype, reduce_op, data, more))

    def has_reply(self) -> bool:
        """Something can be collected at once. The end of the process is no reply: its pipe ends before it is a zombie."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self.process.stdout, termios.FIONREAD, waiting)
        return bool(self._pending) or waiting[0] > 0

    def submit(self, kind: str, name: str | None = None, **more: Any) -> int:
        """One of the _async functions; the op's number. Raises RankError."""
        outcome = self.try_submit(kind, name, **more)
        if not outcome.ok:
            raise RankError(f"{kind} {name}", outcome)
        return outcome.op

    def try_group(self, kind: str, name: str | None, members: Sequence[dict[str, Any]], *, reduce_op: Any = None,
                  **more: Any) -> tuple[Outcome, list[int]]:
        """One of the grouped functions; members: what `submit` takes for each op. The outcome and the ops' numbers."""
        rows = []
        for member in members:
            said = dict(member)
            row = self._submission(kind, None, said.pop("dtype", None), None, said.pop("data", None), said)
            rows.append({key: value for key, value in row.items() if value is not None})
        reply = self.ask("group", kind=kind, name=name, members=rows,
                         reduce_op=REDUCE_OPS[reduce_op] if isinstance(reduce_op, str) else reduce_op, **more)
        return _outcome(reply), reply["ops"]

    def group(self, kind: str, name: str | None, members: Sequence[dict[str, Any]], **more: Any) -> list[int]:
        """One of the grouped functions; the ops' numbers. Raises RankError."""
        outcome, ops = self.try_group(kind, name, members, **more)
        if not outcome.ok:
            raise RankError(f"grouped {kind} {name}", outcome)
        return ops

    def cancel(self, op: int) -> Outcome:
        """hvd_cancel."""
        return _outcome(self.ask("cancel", op=op))

    def wait_any(self, ops: Sequence[int], seconds: float = 10) -> Outcome:
        """hvd_wait_any; -1 for NULL; .index says which."""
        return _outcome(self.ask("wait_any", ops=list(ops), timeout_ms=int(scaled(seconds) * 1000)))

    def wait_all(self, ops: Sequence[int], seconds: float = 10) -> Outcome:
        """hvd_wait_all; -1 for NULL."""
        return _outcome(self.ask("wait_all", ops=list(ops), timeout_ms=int(scaled(seconds) * 1000)))

    def sets(self) -> dict[int, list[int]]:
        """The process sets this rank knows: id -> ranks."""
        return {row["id"]: row["ranks"] for row in self.ask("sets")["sets"]}

    def test(self, op: int, want_output: bool = False) -> Outcome:
        """hvd_test."""
        return _outcome(self.ask("test", op=op, output=want_output))

    def wait(self, op: int, seconds: float = 10, want_output: bool = False) -> Outcome:
        """hvd_wait with a deadline (ERR_TIMEOUT); the op stays."""
        return _outcome(self.ask("wait", op=op, timeout_ms=int(scaled(seconds) * 1000), output=want_output))

    def post_wait(self, op: int, seconds: float = 10, want_output: bool = False) -> None:
        """hvd_wait whose outcome `collect_outcome` fetches: the process blocks inside hvd_wait meanwhile."""
        self.post("wait", op=op, timeout_ms=int(scaled(seconds) * 1000), output=want_output)

    def collect_outcome(self) -> Outcome:
        """The reply of a posted command as an Outcome."""
        return _outcome(self.collect())

    def free(self, op: int) -> None:
        """hvd_op_free."""
        self.ask("free", op=op)

    def outcome(self, op: int, want_output: bool = True) -> Outcome:
        """Waits, fetches the result and frees the op."""
        outcome = self.wait(op, want_output=want_output)
        if outcome.status != Status.ERR_TIMEOUT:
            self.free(op)
        return outcome

    # ---- ending -----------------------------------------------------------------------------------------------------

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal; the time (CLOCK_MONOTONIC, ns) just before."""
        at_ns = time.monotonic_ns()
        os.kill(self.pid, number)
        return at_ns

    def stop(self, seconds: float = 10) -> int:
        """Ends the process by closing its stdin (all sessions close cleanly); its exit code. Checks stderr."""
        if self.process.returncode is not None:
            self._close_pipes()
            return self.process.returncode
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            code = self.process.wait(scaled(seconds))
        except subprocess.TimeoutExpired as error:
            self.kill_now()
            raise Expired(f"hvt-rank {self.pid} did not end when its input ended") from error
        text = self.process.stderr.read().decode()
        self._close_pipes()
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), f"hvt-rank ended with {code}: {text[-4000:]}"
        assert not text or code != 0, f"hvt-rank wrote to stderr: {text[-4000:]}"
        return code

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def kill_now(self) -> None:
        """SIGKILL and reap, for the end of a failed test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close_pipes()


def open_job(ranks: Sequence[Rank], job: str, **more: Any) -> None:
    """Every process becomes the rank of its place in `ranks`."""
    for number, rank in enumerate(ranks):
        rank.post("open", job=job, rank=number, size=len(ranks), **more)
    for rank in ranks:
        outcome = rank.collect_outcome()
        if not outcome.ok:
            raise RankError("hvd_open", outcome)
