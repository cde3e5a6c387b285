# SPDX-License-Identifier: Apache-2.0
"""Shell commands that leave nothing behind."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, TextIO

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_S = 0.05


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


def prefix_connection(src_connection: IO[str], dst_stream: TextIO, prefix: str, index: int | str | None,
                      prefix_output_with_timestamp: bool) -> None:
    """Copies lines until the end; with "[index]<prefix>:" before each when there is an index, and the date and time before
    that if asked for."""
    for line in src_connection:
        if index is not None:
            line = f"[{index}]<{prefix}>:{line}"
            if prefix_output_with_timestamp:
                line = time.asctime() + line
        dst_stream.write(line)
        dst_stream.flush()


def execute(command: str | Sequence[str], env: Mapping[str, str] | None = None, stdout: TextIO | None = None,
            stderr: TextIO | None = None, index: int | str | None = None, events: Sequence[threading.Event] | None = None,
            prefix_output_with_timestamp: bool = False) -> int:
    """Runs a command, in a shell if it is one string; its exit status, 128 + N for signal N. Its output goes to `stdout`
    and `stderr` (this process' if None) line by line. When one of `events` is set, or on Ctrl-C, the command and its
    children are ended."""
    with subprocess.Popen(command, shell=isinstance(command, str), env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True) as process:
        assert process.stdout and process.stderr
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


def _end_when_set(process: subprocess.Popen[str], events: Sequence[threading.Event]) -> None:
    while events and process.returncode is None:
        if any(event.is_set() for event in events):
            terminate_executor_shell_and_children(process.pid)
            return
        time.sleep(_LOOK_S)
