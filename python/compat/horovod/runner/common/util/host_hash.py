# SPDX-License-Identifier: Apache-2.0
"""A name for this machine that differs between containers on it."""
from __future__ import annotations

import hashlib
import os
import pathlib
import socket


def host_hash(salt: str | None = None) -> str:
    """The host's name and a hash of what this process sees of the machine (name, namespaces) and `salt`."""
    folder = pathlib.Path("/proc/self/ns")
    seen = [os.readlink(folder / name) for name in ("cgroup", "ipc", "mnt", "net", "uts") if (folder / name).is_symlink()]
    name = socket.gethostname()
    digest = hashlib.sha256("\0".join([name, *seen, salt or ""]).encode()).hexdigest()
    return f"{name.partition('.')[0]}-{digest[:32]}"
