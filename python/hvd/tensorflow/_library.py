# SPDX-License-Identifier: Apache-2.0
"""Where the ops come from: libhvd_tensorflow, whose kernels run without Python, or _fallback where TensorFlow cannot load it.

`ops` has a function per op (hvd_allreduce, ...); `is_native` tells which ones they are.
"""
from __future__ import annotations

import ctypes
import logging
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from hvd import _native, _session

logger = logging.getLogger("hvd")

_COLLECTIVES = ("HvdAllreduce", "HvdGroupedAllreduce", "HvdAllgather", "HvdGroupedAllgather", "HvdBroadcast", "HvdAlltoall",
                "HvdReducescatter", "HvdGroupedReducescatter")


def _why_not() -> str | None:
    """Why this TensorFlow cannot have the op library; None: it can."""
    if os.environ.get("HVD_TENSORFLOW_OPS") == "python":
        return "HVD_TENSORFLOW_OPS=python asks for it"
    if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 15):
        return f"TensorFlow {tf.__version__} has no asynchronous kernels for libraries in C (2.15 has)"
    return None


class _Library(_session.Watcher):
    """The op library beside the session that its kernels use."""

    def __init__(self, path: str) -> None:
        self.ops = tf.load_op_library(path)
        self.library = ctypes.CDLL(path)
        self.library.hvd_tf_attach.argtypes = [ctypes.c_void_p]
        for name in ("hvd_tf_attach", "hvd_tf_park", "hvd_tf_detach"):
            getattr(self.library, name).restype = None

    def opened(self, session: _session.Session) -> None:
        self.library.hvd_tf_attach(session.pointer)

    def closing(self, session: _session.Session) -> None:
        self.library.hvd_tf_park()

    def closed(self, session: _session.Session) -> None:
        self.library.hvd_tf_detach()


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
    return _fallback, False


ops, is_native = _load()
