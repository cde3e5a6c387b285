# SPDX-License-Identifier: Apache-2.0
"""One op, from submission to release; knows memory addresses and no framework.

An `Op` keeps alive what the engine may still read or write (`keep`). An op that is dropped while in flight is handed to
its session, which keeps all that until the op is over.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
import weakref
from _thread import RLock
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd import _native
from hvd._native import OpOptions, Tensor, lib, quick
from hvd._sentences import of_mismatch
from hvd._session import SLICE_NS, Session, current
from hvd.exceptions import NotInitializedError

#: The ops that were not released, by their sessions (id()) and pointers. A later session has the same pointers again.
_live: dict[tuple[int, int], weakref.ref[Op]] = {}
_OP_OPTIONS_SIZE = ctypes.sizeof(OpOptions)


class Op:
    """A submitted op. `status` is INPROGRESS until it is seen finished; then `error` holds a failure's sentence.

    Any thread that needs room looks at the ops of others (`_make_room`), and who sees one finished releases it. So a thread
    has the op's `claim` while it is in the library with it."""
    __slots__ = ("session", "pointer", "keep", "status", "error", "owns_result", "name", "claim", "__weakref__")

    def __init__(self, session: Session, pointer: int, keep: Any, owns_result: bool,
                 name: bytes | None = None) -> None:
        self.session = session
        self.pointer: int | None = None
        self.keep = keep
        self.status = _native.INPROGRESS
        self.error = ""
        self.owns_result = owns_result
        self.name = name
        self.claim = RLock()
        _live[id(session), pointer] = weakref.ref(self)
        self.pointer = pointer  # last: Ctrl-C comes before, and submit() hands the op over, or after, and __del__ does

    def unlock(self) -> None:
        """In a forked child: threads of the parent may have had the locks."""
        self.claim = RLock()

    def _finish(self, status: int) -> None:
        """Takes what a finished op has to say; releases it unless its result lies in the library's memory."""
        if self.status != _native.INPROGRESS:
            return  # a signal handler has waited for it
        self.status = status
        if status < 0:
            text = quick.hvd_op_error(self.pointer).decode("utf-8", "replace") or _native.last_error()
            self.error = of_mismatch(text) if status == _native.ERR_MISMATCH else text
        if status < 0 or not self.owns_result:
            self.release()

    def poll(self) -> bool:
        """Whether it is finished, successfully or not. Never waits for other ranks."""
        if self.status != _native.INPROGRESS:
            return True
        claim = self.claim
        if not claim.acquire(False):
            return False  # another thread looks or waits
        try:
            return self._look()
        finally:
            claim.release()

    def _look(self) -> bool:
        """poll(), by who has the claim."""
        if self.status != _native.INPROGRESS:
            return True
        try:
            self.session.enter()
        except NotInitializedError:
            return True
        try:
            status = lib.hvd_test(self.pointer)
            if status != _native.INPROGRESS:
                self._finish(status)
        finally:
            self.session.leave()
        return self.status != _native.INPROGRESS

    def wait(self) -> None:
        """Waits until it is finished: without limit, but a lost rank, engine or daemon ends it. Ctrl-C works.
        Raises HorovodInternalError with the op's sentence."""
        while self.status == _native.INPROGRESS:
            self.wait_slice(SLICE_NS)
        if self.status < 0:
            raise _native.HorovodInternalError(self.error)

    wait_here = wait

    def wait_for(self, seconds: float) -> bool:
        """As wait(), at most so long; whether it is finished."""
        left = int(seconds * 1e9)
        while self.status == _native.INPROGRESS and left > 0:
            self.wait_slice(min(left, SLICE_NS))
            left -= SLICE_NS
        if self.status < 0:
            raise _native.HorovodInternalError(self.error)
        return self.status != _native.INPROGRESS

    def wait_slice(self, nanoseconds: int) -> None:
        """Waits so long in the library; or, while another thread does, for that."""
        claim = self.claim
        if not claim.acquire(False) and not claim.acquire(True, nanoseconds * 1e-9):
            return
        try:
            if self.status == _native.INPROGRESS:
                self._wait_slice(nanoseconds)
        finally:
            claim.release()

    def _wait_slice(self, nanoseconds: int) -> None:
        self.session.enter()
        try:
            status = lib.hvd_wait(self.pointer, nanoseconds)
            if status != _native.ERR_TIMEOUT:
                self._finish(status)
        finally:
            self.session.leave()

    def result(self) -> Tensor:
        """Where the result of a finished op without a given output lies, until release(). The caller has it held()."""
        tensor = Tensor()
        with self.held():
            _native.check(quick.hvd_op_result(self.pointer, ctypes.byref(tensor)))
        return tensor

    def received_splits(self, count: int) -> list[int]:
        """Rows that a finished alltoall got from each of the set's `count` members."""
        splits = (ctypes.c_int64 * count)()
        with self.held():
            _native.check(quick.hvd_op_received_splits(self.pointer, splits, count))
        return list(splits)

    def answer(self, ask: Callable[[Any], int]) -> int:
        """The number that a function of the library has for a finished op, which is given back."""
        with self.held():
            number = ask(self.pointer)
            self.release()
        return number

    def cancel(self) -> None:
        """Takes it back, if it still waits for other ranks. Never waits."""
        claim = self.claim
        if not claim.acquire(False):
            return  # another thread waits for it
        try:
            with self.held():
                if self.status == _native.INPROGRESS:
                    lib.hvd_cancel(self.pointer)
        finally:
            claim.release()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While its result in the library's memory is read: nobody closes the session. NotInitializedError: somebody has."""
        self.session.enter()
        try:
            yield
        finally:
            self.session.leave()

    def release_result(self) -> None:
        """Gives a finished op back that was kept for its result, in whatever thread."""
        if self.owns_result and self.status != _native.INPROGRESS:
            with contextlib.suppress(NotInitializedError), self.held():
                self.release()

    def release(self) -> None:
        """Gives a finished op back. Its result in the library's memory is gone then."""
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            _live.pop((id(self.session), pointer), None)
            if self.session.pointer is not None:
                quick.hvd_op_free(pointer)
        self.keep = None

    def __del__(self) -> None:
        if self.pointer is not None:
            _live.pop((id(self.session), self.pointer), None)
            if self.session.pointer is not None:
                self.session.abandon(self.pointer, self.keep, self.name)


def options(prescale: Any, postscale: Any, process_set: int, stream: int | None = None) -> Any:
    """What the library wants as `options`: None for the defaults. Factors: what float() takes. `stream`: of a device, for tensors in
    its memory."""
    return _options(float(prescale), float(postscale), process_set, stream)


@functools.lru_cache(maxsize=1024)
def _options(prescale: float, postscale: float, process_set: int, stream: int | None) -> Any:
    if (prescale, postscale, process_set, stream) == (1.0, 1.0, 0, None):
        return None
    return ctypes.pointer(OpOptions(_OP_OPTIONS_SIZE, prescale, postscale, process_set, stream))


def _unreleased() -> list[Op]:
    return [op for op in [reference() for reference in list(_live.values())] if op is not None]


def _unlock_all() -> None:
    for op in _unreleased():
        op.unlock()


os.register_at_fork(after_in_child=_unlock_all)


def _make_room(session: Session, status: int) -> None:
    """The ring or the table of ops is full: looks at what is finished, and waits a moment if nothing is. Raises what
    `status` means if nothing that is in flight can make room."""
    text = _native.last_error()
    candidates = [op for op in _unreleased() if op.session is session and op.status == _native.INPROGRESS]
    if status == _native.ERR_LIMIT and not candidates and not session.abandoned:
        raise _native.error(status, text)
    waiting = [op for op in candidates if not op.poll()]
    if waiting:
        waiting[0].wait_slice(1_000_000)
    else:
        time.sleep(0.0001)


_MESSAGES = (lib.hvd_send_async, lib.hvd_recv_async)  # have no name: their tensor comes first


def _name_in(function: Any, arguments: Sequence[Any]) -> bytes | None:
    """The op's name among a library function's arguments, where it comes first; None: unnamed, or of no tensor."""
    return arguments[0] if arguments and isinstance(arguments[0], bytes) and function not in _MESSAGES else None


_NO_ROOM = (_native.ERR_RING_FULL, _native.ERR_LIMIT)
#: Waits for an op of this name that only a stream waits for (_streams.py); whether there was one.
wait_for_namesake: Callable[[bytes | None], bool] = lambda name: False


def submit(function: Any, keep: Any, *arguments: Any, owns_result: bool = False, session: Session | None = None,
           count: int = 0, make: type[Op] = Op) -> Any:
    """Calls `function(session, *arguments, op_p)` of the library; an Op, or a list of `count` Ops of a group, of class
    `make`. Waits for room when too many ops are in flight. `keep`: what the engine reads or writes until the op is over."""
    session = session or current()
    name = _name_in(function, arguments)
    pointers = (ctypes.c_void_p * (count or 1))()
    try:
        while True:
            pointer = session.enter()
            try:
                if session.abandoned:
                    session.sweep(name)
                status = function(pointer, *arguments, pointers)
                if status == 0:
                    break
                if status == _native.ERR_DUPLICATE_NAME and wait_for_namesake(name):
                    continue
                if status not in _NO_ROOM:
                    _native.check(status)
            finally:
                session.leave()
            _make_room(session, status)
        ops = [make(session, started, keep, owns_result, name) for started in pointers]
    except BaseException:  # Ctrl-C between the library's return and the Ops
        _abandon(session, pointers, keep)
        raise
    return ops if count else ops[0]


def run(function: Any, keep: Any, *arguments: Any) -> None:
    """submit() and wait() of one op with a given output, made short for ops that take microseconds."""
    session = current()
    pointers = _OnePointer()
    library = session.enter()
    try:
        if session.abandoned:
            session.sweep(_name_in(function, arguments))
        status = function(library, *arguments, pointers)
        if status == 0:
            pointer = pointers[0]
            status = lib.hvd_wait(pointer, SLICE_NS)
            if status == 0:
                pointers[0] = None
                quick.hvd_op_free(pointer)
                return
            op = Op(session, pointer, keep, False, _name_in(function, arguments))
        elif status in _NO_ROOM or status == _native.ERR_DUPLICATE_NAME:
            op = None  # submit() knows what to do
        else:
            _native.check(status)
    except BaseException:
        _abandon(session, pointers, keep)
        raise
    finally:
        session.leave()
    if op is None:
        op = submit(function, keep, *arguments)
    op.wait()


_OnePointer = ctypes.c_void_p * 1


def _abandon(session: Session, pointers: Any, keep: Any) -> None:
    """Hands ops that no Op stands for, or has handed over, to the session."""
    for pointer in pointers:
        if (pointer is not None and (id(session), pointer) not in _live
                and all(one.pointer != pointer for one in list(session.abandoned))):
            session.abandon(pointer, keep, None)


def splits_array(splits: Sequence[int] | None) -> Any:
    """A C array of rows to send, or None."""
    return None if splits is None else (ctypes.c_int64 * max(1, len(splits)))(*splits)
