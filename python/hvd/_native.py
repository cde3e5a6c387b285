# SPDX-License-Identifier: Apache-2.0
"""libhvdclient through ctypes: the structures and functions of hvd.h, and nothing else.

Every call lets other Python threads run (ctypes.CDLL gives up the interpreter's lock), because the rank that comes last
to a small op does the arithmetic for all inside its call. What only reads a few words keeps the lock (`quick`).
"""
from __future__ import annotations

import ctypes
import math
import os
import shutil
import struct
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

from hvd._installation import installation
from hvd.exceptions import HorovodInternalError

OK = 0
INPROGRESS = 1
ERR_INVALID = -100
ERR_DUPLICATE_NAME = -101
ERR_MISMATCH = -102
ERR_TIMEOUT = -103
ERR_RING_FULL = -104
ERR_UNSUPPORTED = -105
ERR_BUSY = -107
ERR_LIMIT = -110
ERR_NOT_FOUND = -111
ERR_EXISTS = -112
#: The caller's mistakes: what a call refuses with one of these is a ValueError, at once.
CALLERS_MISTAKES = frozenset((ERR_INVALID, ERR_DUPLICATE_NAME, ERR_UNSUPPORTED, ERR_NOT_FOUND, ERR_EXISTS))

FROM_ENV = -1
DIMS_MAX = 8
GROUP_MAX = 1024
NAMES_BYTES = 64 * 1024  # of the members of a group together

#: Codes of element types (enum hvd_dtype) by the names that NumPy, ml_dtypes and torch share.
DTYPES = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7,
          "float64": 8, "bool": 9, "bfloat16": 10, "float8_e4m3fn": 11, "float8_e5m2": 12}

LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class Tensor(ctypes.Structure):
    """struct hvd_tensor, where the library tells: a dense row-major tensor. It does not own the memory."""
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("ndim", c_int), ("dims", c_int64 * DIMS_MAX)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements, outermost dimension first."""
        return tuple(self.dims[:self.ndim])


#: struct hvd_tensor of n dimensions as bytes: made several times faster than by ctypes, and a C array of them is their sum.
_PACKERS = [struct.Struct(f"@Pii{ndim}q{8 * (DIMS_MAX - ndim)}x").pack for ndim in range(DIMS_MAX + 1)]


def describe(address: int, dtype: int, shape: Sequence[int]) -> bytes:
    """A struct hvd_tensor for the library's tensor arguments. Dimensions beyond DIMS_MAX become one, so ranks that differ only
    in how these divide it are not told that they do."""
    ndim = len(shape)
    if ndim > DIMS_MAX:
        shape = (*shape[:DIMS_MAX - 1], math.prod(shape[DIMS_MAX - 1:]))
        ndim = DIMS_MAX
    return _PACKERS[ndim](address, dtype, ndim, *shape)


class Options(ctypes.Structure):
    """struct hvd_options."""
    _fields_ = [("struct_size", c_size_t), ("address", c_char_p), ("job", c_char_p), ("job_key", c_char_p),
                ("rank", c_int), ("size", c_int), ("local_rank", c_int), ("local_size", c_int),
                ("cross_rank", c_int), ("cross_size", c_int), ("timeout_ns", c_int64), ("log", LOG_CALLBACK),
                ("log_user", c_void_p)]


class OpOptions(ctypes.Structure):
    """struct hvd_op_options."""
    _fields_ = [("struct_size", c_size_t), ("prescale_factor", c_double), ("postscale_factor", c_double),
                ("process_set", c_int), ("stream", c_void_p)]


_SESSION, _OP, _OP_P, _TENSOR_P, _OPTIONS_P = c_void_p, c_void_p, POINTER(c_void_p), c_void_p, c_void_p

# name: (result, arguments). Tensors and options go as void pointers, so that None, bytes and byref() all do.
_CALLS = {
    "hvd_options_init": (None, [POINTER(Options)]),
    "hvd_open": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "hvd_close": (c_int, [_SESSION]),
    "hvd_close_wait": (c_int, [_SESSION, c_int64]),
    "hvd_close_at_exit": (c_int, [_SESSION]),
    "hvd_session_status": (c_int, [_SESSION]),
    "hvd_alloc": (c_int, [_SESSION, c_size_t, POINTER(c_void_p)]),
    "hvd_free": (c_int, [_SESSION, c_void_p]),
    "hvd_register": (c_int, [_SESSION, c_void_p, c_size_t]),
    "hvd_adopt": (c_int, [_SESSION, c_void_p, c_size_t]),
    "hvd_deregister": (c_int, [_SESSION, c_void_p]),
    "hvd_allreduce_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, _OPTIONS_P, _OP_P]),
    "hvd_allgather_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, _OPTIONS_P, _OP_P]),
    "hvd_broadcast_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, _OPTIONS_P, _OP_P]),
    "hvd_reducescatter_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, _OPTIONS_P, _OP_P]),
    "hvd_alltoall_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, c_void_p, _TENSOR_P, _OPTIONS_P, _OP_P]),
    "hvd_barrier_async": (c_int, [_SESSION, c_char_p, _OPTIONS_P, _OP_P]),
    "hvd_grouped_allreduce_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, c_int, _OPTIONS_P, _OP_P]),
    "hvd_grouped_allgather_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, _OPTIONS_P, _OP_P]),
    "hvd_grouped_reducescatter_async": (c_int, [_SESSION, c_char_p, _TENSOR_P, _TENSOR_P, c_int, c_int, _OPTIONS_P,
                                                _OP_P]),
    "hvd_join_async": (c_int, [_SESSION, _OPTIONS_P, _OP_P]),
    "hvd_process_set_add_async": (c_int, [_SESSION, POINTER(c_int), c_int, _OP_P]),
    "hvd_process_set_remove_async": (c_int, [_SESSION, c_int, _OP_P]),
    "hvd_process_set_open_async": (c_int, [_SESSION, POINTER(c_int), c_int, c_int, _OP_P]),
    "hvd_process_set_close_async": (c_int, [_SESSION, c_int, _OP_P]),
    "hvd_send_async": (c_int, [_SESSION, _TENSOR_P, c_int, c_int, _OPTIONS_P, _OP_P]),
    "hvd_recv_async": (c_int, [_SESSION, _TENSOR_P, c_int, c_int, _OPTIONS_P, _OP_P]),
    "hvd_test": (c_int, [_OP]),
    "hvd_wait": (c_int, [_OP, c_int64]),
    "hvd_cancel": (c_int, [_OP]),
    "hvd_op_stream_wait": (c_int, [_OP, c_void_p]),
    "hvd_device_forget": (c_int, [_SESSION, c_void_p]),
    "hvd_wait_any": (c_int, [_OP_P, c_int, c_int64, POINTER(c_int)]),
    "hvd_timeline_start": (c_int, [_SESSION, c_char_p, c_int]),
    "hvd_timeline_stop": (c_int, [_SESSION]),
}
_QUICK = {
    "hvd_rank": (c_int, [_SESSION]), "hvd_size": (c_int, [_SESSION]),
    "hvd_local_rank": (c_int, [_SESSION]), "hvd_local_size": (c_int, [_SESSION]),
    "hvd_cross_rank": (c_int, [_SESSION]), "hvd_cross_size": (c_int, [_SESSION]),
    "hvd_job": (c_char_p, [_SESSION]), "hvd_address": (c_char_p, [_SESSION]),
    "hvd_op_joined_rank": (c_int, [_OP]), "hvd_op_process_set": (c_int, [_OP]), "hvd_op_culprit": (c_int, [_OP]),
    "hvd_op_source": (c_int, [_OP]),
    "hvd_op_name": (c_char_p, [_OP]), "hvd_op_error": (c_char_p, [_OP]), "hvd_op_free": (None, [_OP]),
    "hvd_op_result": (c_int, [_OP, POINTER(Tensor)]),
    "hvd_op_received_splits": (c_int, [_OP, POINTER(c_int64), c_int]),
    "hvd_process_set_rank": (c_int, [_SESSION, c_int]), "hvd_process_set_size": (c_int, [_SESSION, c_int]),
    "hvd_process_set_ranks": (c_int, [_SESSION, c_int, POINTER(c_int), c_int]),
    "hvd_process_set_ids": (c_int, [_SESSION, POINTER(c_int), c_int]),
    "hvd_last_error": (c_char_p, []), "hvd_status_name": (c_char_p, [c_int]), "hvd_version": (c_char_p, []),
    "hvd_dtype_size": (c_size_t, [c_int]),
}


def library_path(name: str) -> str:
    """A library of ours: beside $HVD_LIBRARY, else the one that came in this wheel, else the system's."""
    wanted = os.environ.get("HVD_LIBRARY")
    if wanted:
        return os.path.join(os.path.dirname(wanted), name)
    ours = installation() / "lib" / name
    return str(ours) if ours.exists() else name


def program_path(name: str) -> str | None:
    """A helper program of hvdd (libexec/hvdd, or lib/hvdd where the installation has no libexec): beside the library, else
    that of the hvdd in PATH; None: it is not there."""
    hvdd = shutil.which("hvdd")
    folders = [os.path.dirname(library_path("libhvdclient.so.0")), os.path.dirname(hvdd) if hvdd else ""]
    places = [os.path.join(folder, os.pardir, kind, "hvdd", name) for folder in folders if folder
              for kind in ("libexec", "lib")]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def _remedy(path: str, words: str) -> str:
    """What to do when the loader says this of the library."""
    name, _, trouble = words.partition(": ")
    if name != path and trouble.startswith("cannot open shared object file"):
        return f"install {name}, which it needs: scripts/deps.sh run does so on Debian"
    return "install this package with pip, or set HVD_LIBRARY to a libhvdclient.so.0 that was built for this machine"


def _load() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    path = os.environ.get("HVD_LIBRARY") or library_path("libhvdclient.so.0")
    try:
        library, quick_library = ctypes.CDLL(path), ctypes.PyDLL(path)
    except OSError as error:
        raise ImportError(f"hvd: the client library {path} cannot be loaded: {error}; {_remedy(path, str(error))}") from error
    for table, where in ((_CALLS, library), (_QUICK, quick_library)):
        for name, (result, arguments) in table.items():
            function = getattr(where, name)
            function.restype, function.argtypes = result, arguments
    return library, quick_library


lib, quick = _load()


# memcpy without the interpreter's lock (ctypes.memmove keeps it).
copy_bytes = ctypes.CDLL(None).memcpy
copy_bytes.restype, copy_bytes.argtypes = c_void_p, [c_void_p, c_void_p, c_size_t]


def last_error() -> str:
    """The sentence of this thread's last failed call."""
    return quick.hvd_last_error().decode("utf-8", "replace")


def error(status: int, text: str) -> Exception:
    """What Python raises for a status and its sentence."""
    if status in CALLERS_MISTAKES:
        return ValueError(text)
    return HorovodInternalError(text)


def check(status: int) -> None:
    """Raises what a failed call means; a status of 0 or above is fine."""
    if status < 0:
        raise error(status, last_error())
