# SPDX-License-Identifier: Apache-2.0
"""Just enough protobuf to speak and misspeak hvd.proto without any of the code under test."""
import array
import pathlib
import socket
import struct
from collections.abc import Iterable

from hvt.build import scaled

PROTOCOL_VERSION = 1
ABI_VERSION = 8

# Field numbers of Packet.body.
ATTACH_REQUEST, ATTACH_REPLY, REGION_ADD, REGION_REMOVE, ACK, DETACH, NOTICE = range(1, 8)
ENGINE_START, ENGINE_ADOPT, ENGINE_SESSION, ENGINE_QUERY, ENGINE_REPORT, ENGINE_STOP, ENGINE_FATE, ENGINE_HELLO = range(
    8, 16)
TIMELINE_START, TIMELINE_STOP, TIMELINE_REQUEST, ENGINE_TIMELINE, PEER_ASK = range(16, 21)
GPU_RETURN = 30


def varint(value: int) -> bytes:
    """A base-128 number; negative ones as 64-bit two's complement, as protobuf does for int32."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bool | str | bytes) -> bytes:
    """One field: a number as varint, text and bytes length-delimited."""
    if isinstance(value, (int, bool)):
        return varint(number << 3) + varint(int(value))
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*fields: tuple[int, int | bool | str | bytes]) -> bytes:
    """A message from (number, value) pairs in the given order."""
    return b"".join(field(number, value) for number, value in fields)


def decode(data: bytes) -> dict[int, list[int | bytes]]:
    """Fields of a message by number. Raises ValueError on anything that is no protobuf."""
    found: dict[int, list[int | bytes]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("truncated number")
            byte = data[at]
            at += 1
            value |= (byte & 0x7f) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value: int | bytes = number()
        elif key & 7 == 2:
            size = number()
            value = data[at:at + size]
            if len(value) != size:
                raise ValueError("truncated field")
            at += size
        else:
            raise ValueError(f"wire type {key & 7}")
        found.setdefault(key >> 3, []).append(value)
    return found


def signed(value: int) -> int:
    """A decoded varint as the signed number it was."""
    return value - (1 << 64) if value >> 63 else value


def attach_request(job: str = "default", rank: int = 0, size: int = 1, *, key: str | None = None,
                   protocol: int = PROTOCOL_VERSION, abi: int = ABI_VERSION,
                   settings: Iterable[tuple[str, str]] = (), extra: bytes = b"") -> bytes:
    """A whole Packet with an AttachRequest; `extra` goes behind its last field."""
    body = message((1, protocol), (2, abi), (3, job), (5, rank), (6, size), (7, rank), (8, size), (9, 0), (10, 1),
                   (11, "arguments"), (12, "0.0.0-test"))
    if key is not None:
        body += field(4, key)
    body += b"".join(field(13, message((1, name), (2, value))) for name, value in settings)
    return field(ATTACH_REQUEST, body + extra)


class Reply:
    """A decoded AttachReply."""

    def __init__(self, data: bytes, descriptors: list[int]):
        body = decode(decode(data)[ATTACH_REPLY][0])
        self.status = signed(body[1][0])
        self.text = body.get(2, [b""])[0].decode()
        self.engine_pid = body.get(7, [0])[0]
        self.generation = body.get(6, [0])[0]
        self.descriptors = descriptors


def connect_in_turn(one: socket.socket, path: str | pathlib.Path) -> None:
    """Waits for a place in a queue that is full, which a socket with a timeout of Python's would not."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(scaled(5)), 0))
    one.connect(str(path))
    one.settimeout(scaled(5))


class Raw:
    """A SEQPACKET connection that says whatever the test wants."""

    def __init__(self, path: str | pathlib.Path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connect_in_turn(self.socket, path)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def send(self, data: bytes, descriptors: Iterable[int] = ()) -> None:
        """One message with its descriptors."""
        held = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)] if held else []
        self.socket.sendmsg([data], ancillary)

    def receive(self) -> tuple[bytes, list[int]]:
        """One message and its descriptors (the caller's to close); b"" at end of file. Raises TimeoutError."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 128 * 1024, 16)
        except ConnectionResetError:
            return b"", []
        return data, list(descriptors)

    def attach_reply(self) -> Reply:
        """The AttachReply that comes next."""
        data, descriptors = self.receive()
        assert data, "the daemon closed the connection without an AttachReply"
        return Reply(data, descriptors)

    def wait_closed(self) -> list[bytes]:
        """Reads until the peer closes; the messages that came before."""
        seen = []
        while True:
            data, descriptors = self.receive()
            assert not descriptors
            if not data:
                return seen
            seen.append(data)


