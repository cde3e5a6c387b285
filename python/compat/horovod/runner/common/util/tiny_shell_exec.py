# SPDX-License-Identifier: Apache-2.0
"""Short shell commands and what they print."""
from __future__ import annotations

import subprocess
from collections.abc import Mapping


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """What a shell command printed, both streams together, and its exit status. None: it could not be started."""
    try:
        done = subprocess.run(command, shell=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", check=False)
    except OSError:
        return None
    return done.stdout, done.returncode
