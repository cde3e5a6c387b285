# SPDX-License-Identifier: Apache-2.0
"""The sockets of a network namespace, as /proc/PID/net of any process in it tells them."""
import ipaddress
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

_STATES = {1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
           8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV"}


@dataclass(frozen=True)
class Socket:
    """One of them. `port`: its own; 0 for a UNIX socket, whose `local` is its path, with @ if that is abstract."""
    kind: str
    local: str
    port: int
    remote: str
    state: str

    def __str__(self) -> str:
        return f"{self.kind} {self.local} {self.remote} {self.state}".replace("  ", " ").strip()


def _address(text: str) -> tuple[str, int]:
    number, _, port = text.partition(":")
    words = bytes.fromhex(number)
    raw = b"".join(words[at:at + 4][::-1] for at in range(0, len(words), 4))  # 32-bit words in the machine's order
    address = ipaddress.ip_address(raw)
    plain = getattr(address, "ipv4_mapped", None) or address  # also where it came through a socket of IPv6
    return f"[{plain}]:{int(port, 16)}", int(port, 16)


def _rows(pid: int, table: str) -> Iterator[list[str]]:
    path = pathlib.Path(f"/proc/{pid}/net/{table}")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            yield line.split()


def of_process(pid: int) -> list[Socket]:
    """Those of the namespace of a process. TCP's TIME_WAIT, which belongs to the kernel, and UNIX sockets without a name are
    left out."""
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for row in _rows(pid, kind):
            (local, port), (remote, _), state = _address(row[1]), _address(row[2]), _STATES.get(int(row[3], 16), row[3])
            if state != "TIME_WAIT":
                found.append(Socket(kind, local, port, remote, state))
    return found + [Socket("unix", row[7], 0, "", "") for row in _rows(pid, "unix") if len(row) > 7]


def unix_listens(path: pathlib.Path) -> bool:
    """Whether a connection to this UNIX socket would be accepted."""
    return any(row[7:] == [str(path)] and int(row[3], 16) & 0x10000 for row in _rows(os.getpid(), "unix"))
