# SPDX-License-Identifier: Apache-2.0
"""The console scripts: each becomes the program of the same name that came in this wheel."""
from __future__ import annotations

import os
import sys

from hvd._installation import installation


def _become(name: str) -> None:
    program = installation() / "bin" / name
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program} cannot be started: {error}; install this package again with pip")


def hvdd() -> None:
    """The node daemon."""
    _become("hvdd")


def hvdctl() -> None:
    """Inspects and steers hvdd."""
    _become("hvdctl")


def hvdrun() -> None:
    """Starts jobs. What it says of frameworks in --check-build is about this Python."""
    os.environ.setdefault("HVDRUN_PYTHON", sys.executable)
    _become("hvdrun")


def hvd_perf() -> None:
    """Measures collectives."""
    _become("hvd-perf")
