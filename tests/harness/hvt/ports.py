# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of tests."""
import random
import socket


def _is_free(port: int, addresses: tuple[str, ...]) -> bool:
    for address in addresses:
        with socket.socket() as one:
            try:
                one.bind((address, port))
            except OSError:
                return False
    return True


def free_port(*addresses: str) -> int:
    """A TCP port that was free just now at each address (127.0.0.1), below those that connections are given."""
    return next(port for port in random.sample(range(20000, 32000), 100) if _is_free(port, addresses or ("127.0.0.1",)))
