# SPDX-License-Identifier: Apache-2.0
"""A ZeroMQ peer by hand (ZMTP 3.0, NULL), to send the admin socket what libzmq never would."""
import pathlib
import socket

from hvt import wire
from hvt.build import scaled
from hvt.wire import connect_in_turn

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY" + b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER" + b"\x08Identity" + bytes(4)
READY = bytes((4, len(_READY))) + _READY


class Zmtp:
    """A connection to the admin socket."""

    def __init__(self, path: pathlib.Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connect_in_turn(self.socket, path)

    def __enter__(self) -> "Zmtp":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Raw bytes; a peer that has hung up already is fine."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionResetError("the peer closed the connection")
            data += part
        return data

    def handshake(self) -> None:
        """Becomes a DEALER."""
        self.send(GREETING)
        self._exactly(len(GREETING))
        self.send(READY)
        self.frame()

    def message(self, *parts: bytes) -> None:
        """One message of several frames."""
        for place, part in enumerate(parts):
            more = place < len(parts) - 1
            if len(part) < 256:
                self.send(bytes((more, len(part))) + part)
            else:
                self.send(bytes((more | 2,)) + len(part).to_bytes(8, "big") + part)

    def frame(self) -> bytes:
        """The next frame's body."""
        flags = self._exactly(1)[0]
        size = int.from_bytes(self._exactly(8 if flags & 2 else 1), "big")
        return self._exactly(size)

    def subscribe(self) -> None:
        """Shakes hands and asks for events."""
        self.handshake()
        self.message(wire.message((1, 1), (2, 7), (12, b"")))
        reply = wire.decode(self.frame())
        assert (reply[2], reply[3]) == ([7], [0]), reply

    def event(self) -> dict[int, list[int | bytes]]:
        """The fields of the next event (EventRow)."""
        row, = wire.decode(self.frame())[33]
        assert isinstance(row, bytes)
        return wire.decode(row)
