# SPDX-License-Identifier: Apache-2.0
"""Where TensorFlow's tensors lie: in the process' own memory, or, when the user asks for it, in memory that the ranks of a
job share, where the engine works on it without a copy (docs/adr/0014).

    hvd.init(tensorflow_memory="shared")      or      HVD_TENSORFLOW_MEMORY=shared

The argument wins over the variable, also in later sessions of the process.
"""
from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from hvd import _session, basics
from hvd.process_sets import ProcessSet

logger = logging.getLogger("hvd")

MEMORIES = ("private", "shared")
VARIABLE = "HVD_TENSORFLOW_MEMORY"
_HOW = f'hvd.init(tensorflow_memory="shared") or {VARIABLE}=shared'
_TELL = ctypes.CFUNCTYPE(None)

_asked: str | None = None  # by init()


def checked(memory: str, where: str) -> str:
    """One of MEMORIES, or ValueError."""
    if memory not in MEMORIES:
        raise ValueError(f"{where} is {memory!r}; it must be " + " or ".join(repr(allowed) for allowed in MEMORIES))
    return memory


def wanted() -> str:
    """One of MEMORIES. ValueError: the variable has another value."""
    return _asked or checked(os.environ.get(VARIABLE) or "private", VARIABLE)


def _took_memory() -> bool:
    """Whether TensorFlow's allocator has taken regions. In a process that has only run sessions of TensorFlow 1 it cannot be
    asked, so False."""
    if not context.context()._initialized:
        return False
    try:
        return bool(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    except ValueError:  # an allocator without regions
        return False


class Memory:
    """What the op library does with TensorFlow's memory. Every line is logged once."""

    def __init__(self, library: ctypes.CDLL, version: tuple[int, int]) -> None:
        self._library = library
        self._version = version
        self._said: set[str] = set()
        self.is_shared = False
        for name in ("hvd_tf_share_heap", "hvd_tf_heap_obstacle"):
            getattr(library, name).argtypes = [ctypes.c_int, ctypes.c_int]
            getattr(library, name).restype = ctypes.c_char_p
        library.hvd_tf_tell_of_copies.restype = None
        self._tell = _TELL(self._on_copies)

    def _say(self, level: int, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.log(level, "hvd.tensorflow: %s", text)

    def apply(self, session: _session.Session) -> None:
        """Does what was asked for, for the ops of this session."""
        if session.size == 1:  # nobody to share with
            return
        self._library.hvd_tf_tell_of_copies(self._tell)
        if wanted() == "shared" and not self.is_shared:
            self._share()
        elif wanted() == "private" and self.is_shared:
            self._say(logging.WARNING, "tensorflow_memory=\"private\" comes too late: TensorFlow's memory has been shared since an "
                                       "earlier hvd.init(), and stays so until this process ends")

    def _share(self) -> None:
        before = _took_memory()
        obstacle = self._library.hvd_tf_share_heap(*self._version)
        if obstacle is not None:
            self._say(logging.WARNING, f"shared memory was asked for, but TensorFlow {tf.__version__} keeps its memory private: "
                                       f"{obstacle.decode()}")
            return
        self.is_shared = True
        self._say(logging.INFO, f"from now on TensorFlow {tf.__version__} cuts tensors of 256 KiB and more from memory that the "
                                "ranks of this job share (tensorflow_memory=\"shared\")")
        if before:
            self._say(logging.WARNING, "TensorFlow took memory before shared memory was asked for; tensors in it stay private. "
                                       f"Call {_HOW.split(' or ', maxsplit=1)[0]} before the first tensor is made")

    def _on_copies(self) -> None:
        """Called by the op library in a thread of TensorFlow's."""
        try:
            if self.is_shared:
                self._say(logging.INFO, "large gradients lie in memory that TensorFlow took before shared memory was asked for, or in "
                                        "arrays of NumPy's: they are copied")
            elif wanted() == "private" and self._library.hvd_tf_heap_obstacle(*self._version) is None:
                self._say(logging.INFO, "this job reduces gradients of 256 KiB and more, which are copied out of TensorFlow's "
                                        f"private memory; {_HOW} saves that copy. What it costs: docs/adr/0014")
        except Exception:  # pylint: disable=broad-exception-caught  # a line of log must not end a step
            logger.debug("hvd.tensorflow: a line about memory is lost", exc_info=True)


memory: Memory | None = None  # None: tensors go through Python


def _apply() -> None:
    session = _session.current()
    if memory is not None:
        memory.apply(session)
    elif wanted() == "shared" and session.size > 1:
        logger.warning("hvd.tensorflow: shared memory was asked for, but TensorFlow %s keeps its memory private: tensors go through "
                       "Python here", tf.__version__)


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None, *,
         tensorflow_memory: str | None = None) -> None:
    """Attaches this process to its job, as hvd.init() of every framework does.

    tensorflow_memory: "private", or "shared": TensorFlow's tensors of 256 KiB and more lie in memory that all ranks of the
        job map, so that gradients are reduced without a copy; a forked child then sees what its parent writes there. Call
        it before the first tensor is made; it holds until the process ends. None: what the environment's
        HVD_TENSORFLOW_MEMORY says, else "private".
    Raises ValueError as hvd.init() does, and for another tensorflow_memory."""
    global _asked
    wanted_before = _asked
    if tensorflow_memory is not None:
        _asked = checked(tensorflow_memory, "tensorflow_memory")
    try:
        wanted()
        basics.init(comm, process_sets)
    except BaseException:
        _asked = wanted_before
        raise
    _apply()
