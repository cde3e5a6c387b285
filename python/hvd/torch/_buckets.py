# SPDX-License-Identifier: Apache-2.0
"""Memory for gradients: private memory of this process that the engine maps too, and who shares an op in it.

A gradient that lives here is reduced where it is. `hvd_adopt` makes the memory shared; after `shutdown()` it is ordinary
memory again, contents kept, so a gradient in it outlives the session (ADR 0006).
"""
from __future__ import annotations

import logging
import mmap
import os
import re
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hvd import _native, _ops
from hvd._session import Session
from hvd.exceptions import NotInitializedError

_HUGE_PAGE = 2 << 20
_ALIGNMENT = 64
#: Gradients of this many bytes have an op of their own; smaller ones share one with their neighbours, up to JOINT_BYTES.
LARGE_BYTES = 128 << 10
JOINT_BYTES = 1 << 20
#: Memory is taken in pieces of about this size; larger ones when there would be more than BUCKETS_MOST, for each has a
#: descriptor.
BUCKET_BYTES = 25 << 20
BUCKETS_MOST = 64

_logger = logging.getLogger("hvd")
_told = False


def _tell_once(reason: str) -> None:
    global _told
    if not _told:
        _told = True
        _logger.warning("gradients stay in ordinary memory, which costs a copy of each: %s", reason)


class Bucket:
    """A piece of memory, zeroed, that tensors can lie in. It lives as long as they do; this object ends the sharing."""

    #: The device in whose streams gradients come and go; None: they are copied when the copying call returns.
    device: Any = None
    _session: Session | None = None

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        slack = _HUGE_PAGE if size >= _HUGE_PAGE else 0
        self._memory = mmap.mmap(-1, self.size + slack, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()
        self._skew = -begin % _HUGE_PAGE if slack else 0
        self.address = begin + self._skew

    def share(self, session: Session) -> None:
        """Lets the session's engine work on it in place; where that cannot be, says so once. Blocks for the copy."""
        try:
            pointer = session.enter()
        except NotInitializedError:
            return
        try:
            if _native.lib.hvd_adopt(pointer, self.address, self.size) == _native.OK:
                self._session = session
            else:
                _tell_once(_native.last_error())
        finally:
            session.leave()

    def tensor(self, offset: int, like: Any, dtype: Any) -> tuple[Any, Any]:
        """A tensor `offset` bytes from the beginning, shaped and laid out in memory as the dense `like`; and a reference that
        is dead when neither the tensor nor a view of it (detach() and numpy() too) is left. None: the bucket cannot tell."""
        memory = memoryview(self._memory)[self._skew + offset:]
        flat = torch.frombuffer(memory, dtype=dtype, count=like.numel())
        placed = torch.empty(0, dtype=dtype, device="cpu")  # not a view of `flat`: nothing autograd might remember
        return placed.set_(flat.untyped_storage(), 0, like.shape, dense_strides(like)), weakref.ref(memory)

    def holds_gradients_of(self, parameter: Any) -> bool:
        """Whether p.grad itself can lie here."""
        return bool(parameter.is_cpu)

    def copy_in(self, place: Any, gradient: Any) -> None:
        """To one of its tensors."""
        place.copy_(gradient)

    def copy_out(self, gradient: Any, place: Any) -> None:
        """From one of its tensors."""
        gradient.copy_(place)

    def clear(self, place: Any) -> None:
        """One of its tensors is zero."""
        place.zero_()

    def allreduce(self, name: bytes, tensor: bytes, op: int, how: tuple[float, float, int],
                  session: Session | None) -> _ops.Op:
        """Starts the reduction, in place, of what `tensor` describes. `how`: scale factors and process set."""
        return _ops.submit(_native.lib.hvd_allreduce_async, self, name, tensor, tensor, op, _ops.options(*how),
                           session=session)

    def delivered(self) -> None:
        """All copies of this step have been started."""

    def __del__(self) -> None:
        session = self._session
        if session is None or session.pid != os.getpid():
            return
        try:
            pointer = session.enter()
        except NotInitializedError:
            return
        try:
            _native.lib.hvd_deregister(pointer, self.address)
        finally:
            session.leave()


def _memory_order(tensor: Any) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda at: (-strides[at], at))


def dense_strides(tensor: Any) -> Sequence[int]:
    """The strides that a gradient of `tensor` gets: its own if it is dense (channels_last is), else row-major."""
    expected = 1
    for at in reversed(_memory_order(tensor)):
        if tensor.shape[at] != 1 and tensor.stride(at) != expected:
            return torch.empty(tensor.shape, device="meta").stride()
        expected *= tensor.shape[at]
    return tensor.stride()


def dense_shape(tensor: Any) -> tuple[int, ...]:
    """The extents in the order of memory: what ranks compare, so that one with another layout is noticed."""
    if dense_strides(tensor) != tensor.stride():
        return tuple(tensor.shape)
    return tuple(tensor.shape[at] for at in _memory_order(tensor))


def natural_key(name: str) -> list[Any]:
    """Sorts `layer2` before `layer10`."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def padded(size: int) -> int:
    """Bytes that a gradient takes in a bucket."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def compose(members: Iterable[tuple[str, int, Any, Any]], join: bool = True) -> list[list[str]]:
    """Who shares an op. `members`: (name, bytes, element type, group or None); gives lists of names.

    It follows from names, sizes, types and groups alone, so every rank comes to the same, in whatever order it knows
    its parameters and whenever their gradients come. Members of a group are together as far as their types are equal."""
    together: list[list[str]] = []
    of_group: dict[tuple[Any, Any], list[str]] = {}
    open_joint: dict[Any, tuple[list[str], int]] = {}
    for name, size, dtype, group in sorted(members, key=lambda member: natural_key(member[0]), reverse=True):
        if group is not None:
            if (group, dtype) not in of_group:
                together.append(of_group.setdefault((group, dtype), []))
            of_group[group, dtype].append(name)
            continue
        if size >= LARGE_BYTES or not join:
            together.append([name])
            continue
        names, filled = open_joint.get(dtype, ([], JOINT_BYTES))
        if filled + padded(size) > JOINT_BYTES:
            names, filled = [], 0
            together.append(names)
        names.append(name)
        open_joint[dtype] = (names, filled + padded(size))
    return together
