# SPDX-License-Identifier: Apache-2.0
"""Where the ops come from: libhvd_tensorflow, whose kernels run without Python, or _fallback where TensorFlow cannot load it.

`ops` has a function per op (hvd_allreduce, ...); `is_native` tells which ones they are.
"""
from __future__ import annotations

import ctypes
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.eager import execute
from tensorflow.python.framework import auto_control_deps, ops as ops_module

from hvd import _native, _session
from hvd._sentences import of_mismatch
from hvd.tensorflow import _memory

logger = logging.getLogger("hvd")

_COLLECTIVES = ("HvdAllreduce", "HvdGroupedAllreduce", "HvdAllgather", "HvdGroupedAllgather", "HvdBroadcast", "HvdAlltoall",
                "HvdReducescatter", "HvdGroupedReducescatter")


#: Where a version keeps the CancellationManager of a kernel in flight, as offsetof() says for its headers
#: (tests/python/tensorflow/test_library.py): in OpKernelContext `params_`, in that `cancellation_manager`.
CANCELLATION = {(2, 15): (16, 168), (2, 16): (16, 160), (2, 17): (16, 168), (2, 18): (16, 168), (2, 19): (16, 168),
                 (2, 20): (24, 168), (2, 21): (24, 168)}
_REPHRASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)


def version() -> tuple[int, int]:
    major, minor = tf.__version__.split(".")[:2]
    return int(major), int(minor)


@_REPHRASE
def _rephrase(text: int, capacity: int) -> None:
    said = of_mismatch(ctypes.string_at(text).decode("utf-8", "replace")).encode()[:capacity - 1]
    ctypes.memmove(text, said + b"\0", len(said) + 1)


def _why_not() -> str | None:
    """Why this TensorFlow cannot have the op library; None: it can."""
    if os.environ.get("HVD_TENSORFLOW_OPS") == "python":
        return "HVD_TENSORFLOW_OPS=python asks for it"
    if version() < (2, 15):
        return f"TensorFlow {tf.__version__} has no asynchronous kernels for libraries in C (2.15 has)"
    return None


class _Library(_session.Watcher):
    """The op library beside the session that its kernels use."""

    def __init__(self, path: str) -> None:
        self.ops = tf.load_op_library(path)
        self.library = ctypes.CDLL(path)
        self.library.hvd_tf_attach.argtypes = [ctypes.c_void_p]
        self.library.hvd_tf_detach.argtypes = [ctypes.c_bool]
        for name in ("hvd_tf_attach", "hvd_tf_park", "hvd_tf_detach"):
            getattr(self.library, name).restype = None
        self.library.hvd_tf_rephrase(_rephrase)
        _memory.memory = self.memory = _memory.Memory(self.library, version())
        _hear_of_interrupts(self.library)
        if version() in CANCELLATION:
            self.library.hvd_tf_cancellation.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
            self.library.hvd_tf_cancellation(*CANCELLATION[version()])

    def opening(self) -> None:
        _memory.wanted()

    def opened(self, session: _session.Session) -> None:
        if (threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
            self.library.hvd_tf_watch_interrupts()
        self.memory.apply(session)
        self.library.hvd_tf_attach(session.pointer)

    def closing(self, session: _session.Session) -> None:
        self.library.hvd_tf_park()

    def stays(self, session: _session.Session) -> None:
        self.library.hvd_tf_attach(session.pointer)

    def closed(self, session: _session.Session, quiet: bool) -> None:
        self.library.hvd_tf_detach(quiet)


def _at_the_edge(heed: Callable[[tf.errors.OpError], Any]) -> None:
    """Where errors come out of TensorFlow's C++, `heed` sees each of them; what it raises takes its place."""
    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                return original(*arguments, **keywords)
            except tf.errors.OpError as error:
                heed(error)
                raise
        setattr(owner, name, call)

    for owner, name in ((execute, "execute"), (ops_module, "raise_from_not_ok_status"),
                        (session.BaseSession, "_do_call")):
        wrap(owner, name)


def _hear_of_interrupts(library: ctypes.CDLL) -> None:
    """Ctrl-C while a kernel waits: the kernel is taken back, and KeyboardInterrupt takes the place of the error that comes of
    it. The interrupt is held in C (python/native/step.h) until the error has come out of TensorFlow's C++."""
    library.hvd_tf_deliver_interrupt.restype = None
    library.hvd_tf_watch_interrupts.restype = None
    _at_the_edge(lambda _error: library.hvd_tf_deliver_interrupt())


def _share_symbols() -> None:
    """TensorFlow's C API for libraries that are loaded from now on (before 2.21 it is not global)."""
    folder = os.path.dirname(tf.__file__)
    ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)


def _exempt_from_order() -> None:
    """tf.function runs stateful ops one after the other, in the order of the program. Collectives need no order: TensorFlow
    exempts its own by this set, and ours are as asynchronous."""
    auto_control_deps.ASYNC_STATEFUL_OPS = frozenset([*auto_control_deps.ASYNC_STATEFUL_OPS, *_COLLECTIVES])


def _load() -> tuple[Any, bool]:
    reason = _why_not()
    if reason is None:
        path = _native.library_path("libhvd_tensorflow.so")
        try:
            _share_symbols()
            library = _Library(path)
        except (OSError, tf.errors.OpError) as error:
            reason = f"{path} cannot be loaded: {error}"
        else:
            _exempt_from_order()
            _session.watch(library)
            return library.ops, True
    logger.warning("hvd.tensorflow: tensors go through Python (tf.numpy_function), which is slower: %s", reason)
    from hvd.tensorflow import _fallback
    _at_the_edge(_fallback.raise_what_was_meant)
    return _fallback, False


ops, is_native = _load()
