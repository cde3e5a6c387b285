# SPDX-License-Identifier: Apache-2.0
"""Ops on memory of a device: streams wait for them, threads do not.

    submit ──► StreamOp ──wait()──► the current stream waits ──► unseen ──► a later call sees how it has ended
                        └─poll(), wait_for(), wait_here(): as of an op on memory of the host, in this thread

wait() returns at once, so it cannot say how the op ends. An op that a stream waits for is `unseen` until a later
submission or wait here, or the session's end, looks at it. A failed one is raised there, in the order of the waits.
The op keeps its tensors until it is seen finished, so no allocator hands their memory out before that.

The library lets a name be in flight once. A program that does not wait for its device comes to a name again while the last
op of that name is still under way: submit() then waits for that op, so such a program is one step ahead at most.
Knows no framework: `current` gives the handle of the stream that is current when the wait is wanted.
"""
from __future__ import annotations

import collections
import os
import time
from _thread import RLock
from collections.abc import Callable
from typing import Any

from hvd import _native, _ops, _session
from hvd._native import lib
from hvd._session import Session, logger
from hvd.exceptions import HorovodInternalError

#: How long the end of a session waits for the ops that streams wait for.
_END_S = 10.0
#: cudaStreamLegacy: the library's name for the stream that frameworks call 0, which for the library is none.
LEGACY = 1

_unseen: collections.deque[StreamOp] = collections.deque()


class StreamOp(_ops.Op):
    """An op that takes part in a stream. Made by submit()."""
    __slots__ = ("current", "freeing")
    current: Callable[[], int]

    def __init__(self, *arguments: Any) -> None:
        self.freeing = RLock()  # a wait of a stream needs the op as it is, but not the claim, which threads have while they wait
        super().__init__(*arguments)

    def unlock(self) -> None:
        self.freeing = RLock()
        super().unlock()

    def release(self) -> None:
        with self.freeing:
            super().release()

    def wait(self) -> None:
        """Lets the current stream wait for it, and returns at once. HorovodInternalError: it, or one before it, is
        known to have failed."""
        look()
        if not self.poll():
            with self.freeing:
                self._wait_in_stream()
        if self.status < 0:
            raise HorovodInternalError(self.error)

    def _wait_in_stream(self) -> None:
        if self.pointer is None:
            return  # another thread has seen it finished meanwhile
        self.session.enter()
        try:
            _native.check(lib.hvd_op_stream_wait(self.pointer, self.current()))
        finally:
            self.session.leave()
        _unseen.append(self)


def look() -> None:
    """HorovodInternalError: an op that a stream waits for has failed. Never waits."""
    while _unseen:
        try:
            oldest = _unseen[0]
            if not oldest.poll():
                return
            _unseen.remove(oldest)
        except (IndexError, ValueError):  # another thread looks too
            continue
        if oldest.status < 0:
            raise HorovodInternalError(oldest.error)


def _wait_for_namesake(name: bytes | None) -> bool:
    """Waits for the ops of this name; whether there was one."""
    found = [op for op in list(_unseen) if op.name == name] if name is not None else []
    for op in found:
        op.wait_here()
    look()
    return bool(found)


def submit(current: Callable[[], int], function: Any, keep: Any, name: bytes | None, *arguments: Any, count: int = 0,
           session: Session | None = None, owns_result: bool = False) -> Any:
    """As _ops.submit, of tensors in memory of a device; `arguments` have the stream in their options. What has failed
    before is raised first."""
    _wait_for_namesake(name)
    started = _ops.submit(function, keep, name, *arguments, count=count, session=session, owns_result=owns_result,
                          make=StreamOp)
    for op in started if count else (started,):
        op.current = current
    return started


class _AtTheEnd(_session.Watcher):
    """A session that is closed lets its last ops end, as those that a thread has waited for have."""

    def closing(self, session: Session) -> None:
        deadline = time.monotonic() + _END_S
        for op in list(_unseen):
            if op.session is session and op.pointer is not None and op.status == _native.INPROGRESS:
                left = int((deadline - time.monotonic()) * 1e9)
                if lib.hvd_wait(op.pointer, max(left, 0)) < 0:
                    logger.error("the session ends while an op on memory of a device is not well: %s", _native.last_error())
                    break

    def closed(self, session: Session, quiet: bool) -> None:
        del session, quiet
        _unseen.clear()


_session.watch(_AtTheEnd())
_ops.wait_for_namesake = _wait_for_namesake  # a name that was a device's may be the host's next
os.register_at_fork(after_in_child=_unseen.clear)
