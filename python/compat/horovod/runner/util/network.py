# SPDX-License-Identifier: Apache-2.0
"""Which names mean this machine."""
from __future__ import annotations

import socket
from collections.abc import Iterable


def resolve_host_address(host_name: str) -> str | None:
    """An IPv4 address of a host, None if it has none."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def get_local_host_addresses() -> set[str]:
    """The IPv4 addresses that this machine's own names mean, loopback included."""
    addresses = {"127.0.0.1"}
    try:
        addresses.update(str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))
    except OSError:
        pass
    return addresses


def is_local(host_name: str) -> bool:
    """Whether a host's name means this machine."""
    return host_name in ("localhost", socket.gethostname()) or resolve_host_address(host_name) in get_local_host_addresses()


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """The names that do not mean this machine."""
    return [name for name in all_host_names if not is_local(name)]
