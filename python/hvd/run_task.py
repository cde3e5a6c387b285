# SPDX-License-Identifier: Apache-2.0
"""One rank of hvd.run: makes the call that the caller has written down, and leaves its result beside it. On several hosts
hvdrun brings the call, as a file that HVD_RUN_CALL names, and takes the result, from the descriptor HVD_RUN_RESULT."""
from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import Any

try:
    import cloudpickle as pickler
except ImportError:
    pickler = pickle

#: The file with (function, arguments, keyword arguments).
CALL = "call"


@dataclasses.dataclass
class Result:
    """What a rank left. `value`: pickled. `when_ns`: of the host's monotonic clock, which another host does not share."""
    ok: bool
    value: bytes
    error: str
    when_ns: int

    def write(self, folder: pathlib.Path, rank: int, pipe: int | None) -> None:
        """Whole or not at all; into `pipe` if there is one, whose reader tells a part from a whole."""
        if pipe is not None:
            with os.fdopen(pipe, "wb") as file:
                file.write(pickle.dumps(dataclasses.astuple(self)))
            return
        unfinished = folder / f"unfinished.{rank}"
        unfinished.write_bytes(pickle.dumps(dataclasses.astuple(self)))
        unfinished.rename(folder / f"result.{rank}")

    @classmethod
    def read(cls, folder: pathlib.Path, rank: int) -> Result | None:
        """None: that rank has left none."""
        try:
            return cls(*pickle.loads((folder / f"result.{rank}").read_bytes()))
        except (FileNotFoundError, EOFError, pickle.UnpicklingError):  # a rank that was killed may leave a part
            return None


def _end_with_caller() -> None:
    """Rank 0's standard input is a pipe from the caller that is never written to: when it ends, the caller is gone, and so
    goes this rank, and with it the job."""
    pipe = os.dup(0)
    os.set_inheritable(pipe, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(pipe, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="hvd-run-caller", daemon=True).start()


def _call(file: pathlib.Path) -> Result:
    try:
        function, arguments, keywords = pickle.loads(file.read_bytes())
        value: Any = pickler.dumps(function(*arguments, **keywords))
    except BaseException:  # pylint: disable=broad-except
        # The caller raises it. SystemExit and KeyboardInterrupt count too: there is no result.
        return Result(False, b"", traceback.format_exc(), time.monotonic_ns())
    return Result(True, value, "", time.monotonic_ns())


def main(where: str) -> None:
    """`where`: the folder with the call, on the caller's host. Ends the process with 1 when there is no result."""
    rank = int(os.environ["HVD_RANK"])
    brought = os.environ.pop("HVD_RUN_CALL", None)
    pipe = os.environ.pop("HVD_RUN_RESULT", None)
    if pipe is not None:
        os.set_inheritable(int(pipe), False)
    if rank == 0:
        _end_with_caller()
    result = _call(pathlib.Path(brought) if brought is not None else pathlib.Path(where, CALL))
    result.write(pathlib.Path(where), rank, None if pipe is None else int(pipe))
    if not result.ok:
        sys.stderr.write(result.error)
        sys.exit(1)
