# SPDX-License-Identifier: Apache-2.0
"""What a collective of torch.distributed returns: a Work over one or several ops, and its future.

Who waits for a Work does so in the library, asleep. Of a Work on CUDA tensors the current stream waits, and no thread.
A future has to be completed by somebody: from `get_future()` on the Work belongs to a thread, started when the first future is
wanted, that sleeps in the library until one of its works is finished (DDP's reducer waits for futures only). A callback may
wait for another future, as DDP's PowerSGD does: then a second thread sees to that one.
"""
from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import itertools
import os
import threading
import time
from _thread import RLock, allocate_lock
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hvd import _native
from hvd._native import lib
from hvd._ops import Op
from hvd._session import Session
from hvd._streams import StreamOp
from hvd.exceptions import HorovodInternalError
from hvd.torch import _cuda, _profile
from hvd.torch._untraced import untraced

_Base: Any = getattr(dist, "Work", None) or dist._Work  # pylint: disable=protected-access
_TorchError: Any = getattr(dist, "DistBackendError", RuntimeError)
_NO_TIMEOUT = timedelta(0)
#: How long the thread's wait lasts at most before it sees works that came meanwhile, should these be finished first.
_SLICE_NS = 10_000_000
_NAP_S = 0.0005
_TAKEN_BACK_S = 5.0  # for the engine, which takes a message back as soon as it runs
#: How long callbacks of one work may take before another thread sees to the works that are left.
_PATIENCE_S = 1.0
_LATCH_SLICE_S = 0.05
_END_SECONDS = 10  # for callbacks that still run when the interpreter ends


class DistributedError(HorovodInternalError, _TorchError):
    """A collective of the process group failed or took too long: the daemon's sentence, which names the ranks."""


class _Latch:
    """Something that happens once. A threading.Event is Python code with a lock of its own, which an exception that a signal
    handler raises in a wait may leave locked for good."""

    def __init__(self) -> None:
        self._has_happened = False
        self._lock = allocate_lock()
        self._lock.acquire()

    def __bool__(self) -> bool:
        return self._has_happened

    def set(self) -> None:
        """It has happened."""
        self._has_happened = True
        with contextlib.suppress(RuntimeError):  # it has happened before
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Blocks until it happens; False: not within so long."""
        deadline = time.monotonic() + seconds
        while not self._has_happened:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._lock.acquire(timeout=min(left, _LATCH_SLICE_S)):  # the slice: who had it before may have been interrupted
                self.set()
        return True


def _cuda_devices(outputs: Sequence[Any]) -> list[Any]:
    """Those that the outputs lie on."""
    return sorted({tensor.device for tensor in outputs if tensor.is_cuda}, key=str)


def _of_finish(failure: BaseException) -> Exception | None:
    """The failure, if it is how a work ends; None: a signal handler has raised it, which only the main thread meets."""
    if isinstance(failure, (RuntimeError, ValueError, TypeError, LookupError)):
        return failure
    in_main = threading.current_thread() is threading.main_thread()
    return failure if isinstance(failure, Exception) and not in_main else None


@untraced
class Work(_Base):
    """Several ops that finish together. `outputs`: what result() and the future give. `finish` is called after success, in
    whatever thread sees the end: copies results to where they shall be, and again where a signal handler's exception came in
    between. Results in the library's memory are released after it. `before`: works that have to be over,
    too, well or not. Thread-safe."""

    def __init__(self, what: str, ops: Sequence[Op], outputs: Sequence[Any], seconds: float,
                 finish: Callable[[], None] | None = None, before: Sequence[Work] = ()) -> None:
        super().__init__()
        self.what = what
        self.ops: Sequence[Op] = ops
        self.outputs = list(outputs)
        self.seconds = seconds
        self.finish = finish
        self.done = False
        self.error: Exception | None = None
        self.source: int | None = None
        self.before = before
        self.registry: dict[int, Work] | None = None  # has it, by id(), until it is over or has been waited for in vain
        self._lock = RLock()  # a signal handler may look at what its thread waits for
        self.queued = False  # the threads that complete futures know it
        self._over: _Latch | None = None  # the thread that completes futures has it; set once the future is complete
        self._promise: Any = None
        self._devices: list[Any] = []
        self._future: Any = None
        self._event: _profile.Event | None = None

    # ---- towards the end; the caller has the lock, or is the thread ----

    def _settle(self, error: Exception | None) -> None:
        """What a signal handler raises meanwhile leaves it as it is: the next wait finishes it anew."""
        if self.done:
            return
        if error is None and self.finish is not None:
            try:
                # Tensors of inference mode are written to in that mode alone, which each thread has for itself.
                with torch.inference_mode(any(output.is_inference() for output in self.outputs)):
                    self.finish()
            except BaseException as failure:
                error = _of_finish(failure)
                if error is None:
                    raise
        if self.done:
            return  # a signal handler has waited for it
        self.error = error
        self.done = True
        self.finish = None
        for op in self.ops:
            op.release_result()
        self.ops = ()
        self.before = ()
        self._leave()

    def _leave(self) -> None:
        if self.registry is not None:
            self.registry.pop(id(self), None)

    def look(self) -> bool:
        """Whether it is over, without waiting; settles it."""
        if self.done:
            return True
        for op in self.ops:
            if not op.poll():
                return False
            if op.status != _native.OK:
                text = op.error or "hvd was shut down before the op was finished"
                self._settle(DistributedError(text))
                return True
        if not all(work.has_passed() for work in self.before):
            return False
        self._settle(None)
        return True

    def give_up(self, seconds: float) -> None:
        """It has taken too long."""
        self._settle(self.too_long(seconds))

    def take_back(self) -> bool:
        """Cancels what of it still waits for other ranks, and waits until it is over: else a message that is given up could meet
        a later one's peer, of which the engine may hear first. True: it has ended well all the same."""
        for op in self.ops:
            op.cancel()
        self._await(_TAKEN_BACK_S)
        return self.done and self.error is None

    def too_long(self, seconds: float) -> DistributedError:
        """What a wait of so many seconds in vain raises."""
        late = next((work for work in self.before if not work.has_passed()), None)
        it = f"the {late.what} before it" if late is not None and all(op.poll() for op in self.ops) else "it"
        return DistributedError(f"{self.what}: not finished after {seconds:g} s, the timeout of the process group or of "
                                f"this wait: some rank has not called {it}, or is slow; 'hvdctl stalls' shows which")

    def complete_future(self) -> None:
        """After the end: wakes who waits for it."""
        try:
            for device in self._devices:  # the copies that finish() has made, in this thread's stream
                _cuda.cuda.event(_cuda.cuda.stream(device)).synchronize()
        except Exception as failure:  # pylint: disable=broad-exception-caught
            self.error = self.error or failure
        self._end_event()
        try:
            self._promise.set_result(None)
        except Exception as failure:  # pylint: disable=broad-exception-caught
            self.error = self.error or failure  # of a device that has failed: torch cannot complete the future
            self._tell(None)

    def _wait_here(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for op in self.ops:
            try:
                if isinstance(op, StreamOp):
                    op.wait()
                elif not op.wait_for(deadline - time.monotonic()):
                    op.wait_slice(2 * _SLICE_NS)  # it may be over, and another thread about to see that
                    if not op.wait_for(0):
                        return False
            except HorovodInternalError as error:
                self._settle(DistributedError(str(error)))
                return True
        if not all(work.let_pass(deadline - time.monotonic()) for work in self.before):
            return False
        self._settle(None)
        return True

    def _await(self, seconds: float) -> bool:
        """Blocks until it is over, well or not, and its future complete; False: not within so long."""
        if self._over is None and not self.done:
            if not self._lock.acquire(timeout=seconds):
                return False
            try:
                if self._over is None and not self.done and not self._wait_here(seconds):
                    return False
            finally:
                self._lock.release()
        # DDP's reducer waits for the work, then asks its future for the value without a wait.
        if self._over is not None and not self._over:
            _completer.waits(self)
            return self._over.wait(seconds)
        return True

    # ---- for a barrier behind it ----

    def has_passed(self) -> bool:
        """Whether it is over, well or not. What it copies to devices at its end is left to who waits for it, in whose stream
        the copies are. Never blocks."""
        on_device = bool(_cuda_devices(self.outputs))
        if not on_device:
            self.is_completed()  # settles it, unless another thread has it
        over = all(op.poll() for op in self.ops)  # that thread may be waiting for something else
        return self.done or (on_device and over)

    def let_pass(self, seconds: float) -> bool:
        """Blocks until it has passed; False: not within so long. How it ended its own wait() says."""
        if not _cuda_devices(self.outputs):
            return self._await(max(seconds, 0))
        deadline = time.monotonic() + seconds
        for op in self.ops:
            with contextlib.suppress(HorovodInternalError):
                op.wait_for(deadline - time.monotonic())
        return self.has_passed()

    # ---- torch.distributed.Work ----

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Blocks until it is over. DistributedError: it failed, or `timeout` (else the group's) has passed."""
        seconds = timeout.total_seconds() if timeout > _NO_TIMEOUT else self.seconds
        if not self._await(seconds):
            self._leave()  # no barrier needs to wait for it as long again
            raise self.too_long(seconds)
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not, and its future complete, if there is one. Never blocks."""
        if not self.done and self._over is None and self._lock.acquire(blocking=False):
            try:
                if self._over is None:
                    self.look()
            finally:
                self._lock.release()
        return self.done and (self._over is None or bool(self._over) or self._future.done())

    def is_success(self) -> bool:
        """Whether it is over and well."""
        return self.is_completed() and self.error is None

    def exception(self) -> Exception | None:
        """Why it failed; None: it has not, so far."""
        return self.error

    def result(self) -> list[Any]:
        """The output tensors; complete after wait()."""
        return self.outputs

    def synchronize(self) -> None:
        """wait()."""
        self.wait()

    def source_rank(self) -> int:
        """The group rank that a finished recv got its data from."""
        if self.source is None:
            raise RuntimeError("source_rank: this is no finished recv")
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A torch.futures.Future of the output tensors. Its callbacks run in the thread that completes it."""
        with self._lock:
            if self._future is None:
                self._devices = _cuda_devices(self.outputs)
                self._promise = torch.futures.Future(devices=self._devices) if self._devices else torch.futures.Future()
                # Only what a callback raises is an error for C++, where DDP waits: set_exception() is known to Python alone.
                self._future = self._promise.then(self._outcome)
                if self.done:
                    self._end_event()
                    self._promise.set_result(None)
                else:
                    self._over = _Latch()
                    self._future.add_done_callback(self._tell)  # before all others, which may wait for this work
                    _completer.add(self)
            return self._future

    def record(self) -> None:
        """Makes it an event of torch's profiler, which is over before anybody is told that the work is: who has waited for a
        work may stop the profiler."""
        self._event = _profile.Event(f"hvd:{self.what}")
        self.get_future()

    def _end_event(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.end()

    def _tell(self, _future: Any) -> None:
        assert self._over is not None
        self._over.set()

    def _outcome(self, _promise: Any) -> list[Any]:
        if self.error is not None:
            raise self.error
        return self.outputs


class _Completer:
    """The threads that complete futures. One has the turn: it looks after the works and runs the callbacks of those that are
    over, one after the other. Who is in a callback loses the turn to another thread when the callback itself waits for a work,
    or takes longer than _PATIENCE_S while works are left: it may be waiting for one of their futures."""

    def __init__(self) -> None:
        self._lock = RLock()  # for other threads, which may be interrupted: a condition's `with` is Python code
        self._changed = threading.Condition(self._lock)
        self._works: list[tuple[Work, float]] = []
        self._over: collections.deque[Work] = collections.deque()  # whose futures are due
        self._threads: list[threading.Thread] = []
        self._calling: set[int] = set()  # threads that run callbacks
        self._turn: int | None = None  # the thread that has it
        self._since: float | None = None  # when that one's callbacks began; None: it runs none
        self._watching = 0  # how many of the others see whether those take too long
        self._ended = False

    # ---- for other threads ----

    def add(self, work: Work) -> None:
        """Completes the work's future when it is over, or too late."""
        with self._lock:
            self._works.append((work, time.monotonic() + work.seconds))
            work.queued = True
            self._go_on()

    def waits(self, work: Work) -> None:
        """The calling thread is about to wait for the work: if it runs callbacks, another thread has to have the turn. And if a
        signal handler has interrupted add(), that is made good."""
        with self._lock:
            if not work.queued:
                self.add(work)
            self._go_on()

    # ---- with the lock ----

    def _go_on(self) -> None:
        """Sees to it that somebody has the turn, or will take it from a thread in callbacks."""
        me = threading.get_ident()
        if me in self._calling and self._turn == me:
            self._turn = None
        if self._turn is None or (self._since is not None and not self._watching):
            self._rouse()

    def _rouse(self) -> None:
        if self._ended or not (self._works or self._over):
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if any(thread.ident != self._turn and thread.ident not in self._calling for thread in self._threads):
            self._changed.notify_all()
            return
        thread = threading.Thread(target=self._run, name="hvd-futures", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads now
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _takes_turn(self) -> bool:
        """Whether the thread, which is in no callback, has the turn now and something to do."""
        me = threading.get_ident()
        left = bool(self._works or self._over)
        stuck = self._since is not None and time.monotonic() - self._since >= _PATIENCE_S
        if left and (self._turn in (None, me) or stuck):
            self._turn, self._since = me, None
            return True
        if self._turn == me:
            self._turn = None
        return False

    def _rest(self) -> None:
        """Until something changes, or callbacks of another thread may have taken too long."""
        watches = self._turn is not None and bool(self._works or self._over)
        self._watching += watches
        self._changed.wait(_PATIENCE_S if watches else None)
        self._watching -= watches

    # ---- the threads ----

    def _run(self) -> None:
        try:
            while self._does_something():
                pass
        finally:  # of an error, too: another thread goes on
            with self._changed:
                self._threads.remove(threading.current_thread())
                if self._turn == threading.get_ident():
                    self._turn = None
                self._go_on()

    def _does_something(self) -> bool:
        with self._changed:
            while not self._ended and not self._takes_turn():
                self._rest()
            if self._ended:
                return False
            works = [] if self._over else list(self._works)
        if works:
            self._look(works)
        else:
            self._complete_next()
        return True

    def _look(self, works: Sequence[tuple[Work, float]]) -> None:
        slept = _sleep([work for work, _ in works])
        over = [work for work, deadline in works if _is_over(work, deadline)]
        if not over and not slept:
            time.sleep(_NAP_S)  # other threads have what is left
        with self._changed:
            self._works = [entry for entry in self._works if entry[0] not in over]
            self._over.extend(over)

    def _complete_next(self) -> None:
        me = threading.get_ident()
        with self._changed:
            work = self._over.popleft()
            self._calling.add(me)
            self._since = time.monotonic()
            if not self._watching:
                self._rouse()
        try:
            work.complete_future()
        finally:
            with self._changed:
                self._calling.discard(me)
                if self._turn == me:
                    self._since = None

    def end(self) -> None:
        """The interpreter is about to go: a thread that came back from torch's C++ then would abort the process."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + _END_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _is_over(work: Work, deadline: float) -> bool:
    if work.look():
        return True
    if time.monotonic() < deadline:
        return False
    work.give_up(work.seconds)
    return True


def _sleep(works: Sequence[Work]) -> bool:
    """Until one of the first session's ops that the works wait for is finished, or the slice is over. False: there is none."""
    waiting = [op for op in (_first_unfinished(work) for work in works) if op is not None]
    if not waiting:
        return False
    session = waiting[0].session
    claimed = [op for op in waiting if op.session is session and op.claim.acquire(blocking=False)]
    try:
        return _sleep_on(session, [op.pointer for op in claimed if op.status == _native.INPROGRESS])
    finally:
        for op in claimed:
            op.claim.release()


def _sleep_on(session: Session, pointers: Sequence[int | None]) -> bool:
    if not pointers:
        return False
    try:
        session.enter()
    except HorovodInternalError:
        return False
    try:
        lib.hvd_wait_any((ctypes.c_void_p * len(pointers))(*pointers), len(pointers), _SLICE_NS,
                         ctypes.byref(ctypes.c_int()))
    finally:
        session.leave()
    return True


def _first_unfinished(work: Work) -> Op | None:
    ops = itertools.chain(work.ops, *(one.ops for one in work.before))
    return next((op for op in ops if op.status == _native.INPROGRESS), None)


_completer = _Completer()


def _forget_thread() -> None:
    """A forked child has no such thread and nothing to complete."""
    global _completer
    _completer = _Completer()


os.register_at_fork(after_in_child=_forget_thread)
atexit.register(lambda: _completer.end())  # of the child, in a forked child
