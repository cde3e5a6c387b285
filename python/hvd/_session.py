# SPDX-License-Identifier: Apache-2.0
"""The process' one session: opened by init, closed by shutdown, shared by all threads.

hvd_close must be the session's last call. So whoever calls into the library first leaves a mark in `users`, and close
waits until no other thread has one: waiters look every `SLICE_NS` whether the session is being closed. (list.append and
list.remove are atomic; that is all the locking the fast path needs. A mark of the closing thread itself is what Ctrl-C
left behind, or of a call that a signal handler has interrupted between two calls into the library.)

A forked child keeps the parent's identity (DataLoader workers ask for rank()), may not use its session, and never
closes it; init() there opens one of its own.
"""
from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hvd import _native
from hvd._native import lib, quick
from hvd.exceptions import HorovodInternalError, NotInitializedError

#: How long one wait in the library lasts before signals (Ctrl-C) and a shutdown by another thread are looked at.
SLICE_NS = 50_000_000
_CLOSE_PATIENCE_S = 10.0
_NAME_KEPT_S = 0.001
_thread = threading.get_ident

logger = logging.getLogger("hvd")
_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_NAMES = {"trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
          "error": logging.ERROR, "fatal": logging.CRITICAL}


@_native.LOG_CALLBACK
def _log(_user: Any, level: int, text: bytes) -> None:
    logger.log(_LEVELS.get(level, logging.INFO), "%s", text.decode("utf-8", "replace"))


def _set_up_logging() -> None:
    """HVD_LOG_LEVEL or HOROVOD_LOG_LEVEL, unless the program has set the logger's level itself."""
    wanted = os.environ.get("HVD_LOG_LEVEL") or os.environ.get("HOROVOD_LOG_LEVEL")
    if not wanted or logger.level != logging.NOTSET:
        return
    logger.setLevel(_NAMES.get(wanted.lower(), logging.WARNING))
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


class Abandoned(NamedTuple):
    """An op that nobody will ask for any more."""
    pointer: int
    keep: Any  # what the engine may still read or write
    name: bytes | None
    #: Its name is taken at least until then (time.monotonic()): whoever drops an op's handle and submits the name again
    #: at once has made a mistake, and shall hear of it however fast the op was.
    until: float


class Watcher:
    """Somebody who uses the process' session without Python: an op library of a framework."""

    def opening(self) -> None:
        """A session is about to be opened. What it raises, the opening raises."""

    def opened(self, session: Session) -> None:
        """It may be used from now on."""

    def closing(self, session: Session) -> None:
        """It will be closed: from the return on nobody may be inside the library."""

    def stays(self, session: Session) -> None:
        """It was to be closed, perhaps closing() was called too, and it stays open. It may be used again."""

    def closed(self, session: Session, quiet: bool) -> None:
        """It was closed; what was in flight is lost. Unless it is `quiet`, somebody may still write to its memory."""


class Session:
    """An open session. `pointer` is the library's, None once closed."""

    def __init__(self, pointer: int) -> None:
        self.pointer: int | None = pointer
        self.pid = os.getpid()
        self.closing = False
        self.users: list[int] = []
        self.abandoned: list[Abandoned] = []
        self.watchers: list[Watcher] = []
        self.rank = quick.hvd_rank(pointer)
        self.size = quick.hvd_size(pointer)
        self.local_rank = quick.hvd_local_rank(pointer)
        self.local_size = quick.hvd_local_size(pointer)
        self.cross_rank = quick.hvd_cross_rank(pointer)
        self.cross_size = quick.hvd_cross_size(pointer)

    def enter(self) -> int:
        """Announces a call and gives the pointer for it; leave() must follow."""
        self.users.append(_thread())
        if self.closing or self.pointer is None:
            self.users.remove(_thread())
            raise NotInitializedError("Horovod has been shut down; call hvd.init() again")
        return self.pointer

    def leave(self) -> None:
        """The call is over."""
        self.users.remove(_thread())

    def _others(self) -> int:
        return sum(user != _thread() for user in self.users)

    def sweep(self, name: bytes | None) -> None:
        """Releases the abandoned ops that are finished. Between enter() and leave(). ValueError: an op of this name is
        left, so it was dropped a moment ago or is in flight."""
        self._free_finished(time.monotonic())
        if name is not None and any(dropped.name == name for dropped in list(self.abandoned)):
            raise ValueError(f"an op named '{name.decode()}' is in flight on this rank already, and its handle was "
                             "dropped; synchronize() it first, or use another name")

    def _free_finished(self, now: float) -> None:
        """Releases the abandoned ops that are finished and whose names are free by `now`."""
        for _ in range(len(self.abandoned)):
            try:
                dropped = self.abandoned.pop()
            except IndexError:  # another thread sweeps too
                break
            if lib.hvd_test(dropped.pointer) == _native.INPROGRESS or dropped.until > now:
                self.abandoned.insert(0, dropped)
            else:
                quick.hvd_op_free(dropped.pointer)

    def abandon(self, pointer: int, keep: Any, name: bytes | None) -> None:
        """Takes over an op that is dropped. May be called in any thread at any time (by a finalizer)."""
        self.abandoned.append(Abandoned(pointer, keep, name, time.monotonic() + _NAME_KEPT_S))

    @staticmethod
    def _let_go(pointer: int) -> bool:
        """Whether nobody writes to the memory of its ops any more. The wait, which is long where a job's nodes have not met,
        ends with what a signal handler raises; the session is gone then, too."""
        try:
            while lib.hvd_close_wait(pointer, SLICE_NS) == _native.INPROGRESS:
                pass
        finally:
            quiet = lib.hvd_close(pointer) == _native.OK
        return quiet

    def _await_others(self) -> None:
        deadline = time.monotonic() + _CLOSE_PATIENCE_S
        while self._others() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._others():
            raise HorovodInternalError(f"hvd.shutdown: {self._others()} calls of other threads did not end within "
                                       f"{_CLOSE_PATIENCE_S:.0f} s; the session stays open")

    def _stop(self) -> None:
        """After it no other thread is inside the library. Where it raises, the session is as before."""
        self.closing = True
        try:
            self._await_others()
            for watcher in self.watchers:
                watcher.closing(self)
        except BaseException:
            self.closing = False
            for watcher in self.watchers:
                watcher.stays(self)
            raise

    def _is_left_to_exit(self, pointer: int) -> bool:
        """When the interpreter ends: whether the end of the process closes the session, since nothing is in flight."""
        if _are_children_waited_for():
            return False
        self._free_finished(float("inf"))
        return not self.abandoned and lib.hvd_close_at_exit(pointer) == _native.OK

    def close(self, at_exit: bool = False) -> None:
        """Closes it; waits in other threads end with HorovodInternalError first. `at_exit`: the interpreter ends, and
        where nothing is in flight the session stays until the process does, whose exit status says how it was meant.
        What a signal handler raises leaves it open while `pointer` is there, else closed."""
        self._stop()
        pointer, self.pointer = self.pointer, None
        assert pointer is not None
        quiet = False
        try:
            quiet = (at_exit and self._is_left_to_exit(pointer)) or self._let_go(pointer)
        finally:
            for watcher in self.watchers:
                watcher.closed(self, quiet)
            self.abandoned.clear()


def _are_children_waited_for() -> bool:
    """Whether multiprocessing, in a function at exit of its own, waits for processes that may live long."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and any(not child.daemon for child in processes.active_children())


_lock = threading.RLock()
_current: Session | None = None
_watchers: list[Watcher] = []


def _ours(session: Session | None) -> bool:
    return session is not None and session.pid == os.getpid()


def current() -> Session:
    """The open session, or NotInitializedError."""
    session = _current
    if session is None:
        raise NotInitializedError()
    return session


def is_open() -> bool:
    """Whether init() was called and shutdown() was not."""
    return _current is not None


def open_session(**fields: Any) -> Session:
    """A new session, not the process' own. `fields`: of struct hvd_options (text as str). Blocks for the attach."""
    options = _native.Options()
    lib.hvd_options_init(ctypes.byref(options))
    for name, value in fields.items():
        setattr(options, name, value.encode() if isinstance(value, str) else value)
    options.log = _log
    pointer = ctypes.c_void_p()
    _native.check(lib.hvd_open(ctypes.byref(options), ctypes.byref(pointer)))
    assert pointer.value is not None
    return Session(pointer.value)


def open_current(fields: Callable[[], dict[str, Any]]) -> tuple[Session, bool]:
    """Opens the process' session unless there is one; second: whether it was opened now. `fields` is called in that case
    alone: of struct hvd_options."""
    global _current
    with _lock:
        if _ours(_current):
            assert _current is not None
            return _current, False
        _set_up_logging()
        for watcher in _watchers:
            watcher.opening()
        _current = open_session(**fields())
        _current.watchers = _watchers
        for watcher in _watchers:
            watcher.opened(_current)
        _close_at_exit()
        return _current, True


def watch(watcher: Watcher) -> None:
    """Tells `watcher` of the process' session, now if it is open, and of every later one."""
    with _lock:
        if _ours(_current):
            watcher.opening()
        _watchers.append(watcher)
        if _ours(_current):
            assert _current is not None
            watcher.opened(_current)


def close_current(at_exit: bool = False) -> None:
    """Closes the process' session, if there is one. A forked child only forgets its parent's. Where a thread does not end in
    time, or a signal handler raises before the session is gone, it stays the process' session."""
    global _current
    with _lock:
        session, _current = _current, None
        if session is None or not _ours(session):
            return
        try:
            session.close(at_exit)
        except BaseException:
            if session.pointer is not None:
                _current = session
            raise


_exit_registered = False


def _close_at_exit() -> None:
    global _exit_registered
    if not _exit_registered:
        atexit.register(close_current, at_exit=True)
        _exit_registered = True


def _forget_locks() -> None:
    """In a forked child another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_locks)
