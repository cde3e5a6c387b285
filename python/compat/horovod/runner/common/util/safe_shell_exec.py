# SPDX-License-Identifier: Apache-2.0
"""Shell commands that leave nothing behind."""
from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_S = 0.05
_READ_BYTES = 4096
_WATCH = f"read group; read line; kill -TERM -$group && sleep {GRACEFUL_TERMINATION_TIME_S} && kill -KILL -$group"


def terminate_executor_shell_and_children(pid: int) -> None:
    """Ends the process group of `pid`: SIGTERM, and SIGKILL for what is left after 5 s."""
    deadline = time.monotonic() + GRACEFUL_TERMINATION_TIME_S
    try:
        os.killpg(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(pid, 0)
            time.sleep(_LOOK_S)
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def prefix_connection(src_connection: Any, dst_stream: TextIO, prefix: str | None, index: int | str | None,
                      prefix_output_with_timestamp: bool) -> None:
    """Copies UTF-8 lines from what has a fileno() until its end, and closes it. A line ends with \\n, or with \\r as those of
    progress bars do. With "[index]<prefix>:" before each when there are both, and the date and time before that if asked
    for."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(line: str) -> None:
        if index is not None and prefix is not None:
            line = f"[{index}]<{prefix}>:{line}"
            if prefix_output_with_timestamp:
                line = time.asctime(time.localtime(time.time())) + line
        dst_stream.write(line)
        dst_stream.flush()

    begun = ""
    while True:
        data = os.read(src_connection.fileno(), _READ_BYTES)
        *lines, begun = re.split("(?<=[\r\n])", begun + decoder.decode(data, final=not data))
        for line in lines:
            write(line)
        if not data:
            break
    if begun:
        write(begun)
    src_connection.close()


def execute(command: str | Sequence[str], env: Mapping[str, str] | None = None, stdout: TextIO | None = None,
            stderr: TextIO | None = None, index: int | str | None = None, events: Sequence[threading.Event] | None = None,
            prefix_output_with_timestamp: bool = False) -> int:
    """Runs a command, in a shell if it is one string; its exit status, 128 + N for signal N. Its output goes to `stdout`
    and `stderr` (this process' if None) line by line. When one of `events` is set, on Ctrl-C, or when this process dies of
    whatever cause, the command and its children are ended."""
    with _ended_with_us() as join, subprocess.Popen(
            command, shell=isinstance(command, str), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=join) as process:  # pylint: disable=subprocess-popen-preexec-fn
        copies = [threading.Thread(target=prefix_connection, daemon=True,
                                   args=(source, sink, name, index, prefix_output_with_timestamp))
                  for source, sink, name in ((process.stdout, stdout or sys.stdout, "stdout"),
                                             (process.stderr, stderr or sys.stderr, "stderr"))]
        for copy in copies:
            copy.start()
        ender = threading.Thread(target=_end_when_set, args=(process, events or ()), daemon=True)
        ender.start()
        try:
            status = process.wait()
        except BaseException:
            terminate_executor_shell_and_children(process.pid)
            raise
        for thread in (*copies, ender):
            thread.join(2 * GRACEFUL_TERMINATION_TIME_S)
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _ended_with_us() -> Iterator[Callable[[], object]]:
    """A shell that reads from a pipe of ours, whose end is the end of this process: it ends a process group then, the one of
    the child that has called what this gives, before it became the command: there is no moment in which nobody would."""
    with subprocess.Popen(["/bin/sh", "-c", _WATCH], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, start_new_session=True) as watch:
        assert watch.stdin is not None
        pipe = watch.stdin.fileno()
        try:
            yield lambda: os.write(pipe, b"%d\n" % os.getpid())
        finally:
            watch.kill()


def _end_when_set(process: subprocess.Popen[bytes], events: Sequence[threading.Event]) -> None:
    while events and process.returncode is None:
        if any(event.is_set() for event in events):
            terminate_executor_shell_and_children(process.pid)
            return
        time.sleep(_LOOK_S)
