# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, pickled (by cloudpickle where it is installed, so lambdas and local classes work).

Only for ranks of one's own job: unpickling runs code. hvdd itself never unpickles anything.
"""
from __future__ import annotations

import ctypes
import pickle
from typing import Any

from hvd import _native, _ops, _session
from hvd._native import lib
from hvd.process_sets import ProcessSet, global_process_set, id_of

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle  # type: ignore[assignment]

_UINT8, _INT64 = _native.DTYPES["uint8"], _native.DTYPES["int64"]


def _one_d(buffer: Any, dtype: int, count: int) -> bytes:
    return _native.describe(ctypes.addressof(buffer), dtype, (count,))


def _broadcast(buffer: Any, dtype: int, count: int, root_rank: int, name: str, options: Any) -> None:
    tensor = _one_d(buffer, dtype, count)
    _ops.run(lib.hvd_broadcast_async, buffer, name.encode(), tensor, tensor, root_rank, options)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """`obj` of the global rank `root_rank`, on every rank of the set; what the others pass is not read. On the root it
    is `obj` itself."""
    name = name or "broadcast_object"
    options = _ops.options(1.0, 1.0, id_of(process_set, "Broadcast"))
    is_root = _session.current().rank == root_rank
    data = _pickler.dumps(obj) if is_root else b""
    count = ctypes.c_int64(len(data))
    _broadcast(count, _INT64, 1, root_rank, f"broadcast.{name}.sz", options)
    buffer = (ctypes.c_char * max(1, count.value))()
    if is_root:
        ctypes.memmove(buffer, data, len(data))
    _broadcast(buffer, _UINT8, count.value, root_rank, f"broadcast.{name}.t", options)
    return obj if is_root else pickle.loads(memoryview(buffer)[:count.value])


def _allgather(buffer: Any, dtype: int, count: int, name: str, options: Any) -> _ops.Op:
    tensor = _one_d(buffer, dtype, count)
    op = _ops.submit(lib.hvd_allgather_async, buffer, name.encode(), tensor, None, options,
                     owns_result=True)
    op.wait()
    return op


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every member's `obj`, by set rank."""
    name = name or "allgather_object"
    options = _ops.options(1.0, 1.0, id_of(process_set, "Allgather"))
    data = _pickler.dumps(obj)
    op = _allgather(ctypes.c_int64(len(data)), _INT64, 1, f"allgather.{name}.sz", options)
    with op.held():
        where = op.result()
        sizes = list((ctypes.c_int64 * where.shape[0]).from_address(where.data or 0))
        op.release()
    op = _allgather(ctypes.create_string_buffer(data, max(1, len(data))), _UINT8, len(data), f"allgather.{name}.t",
                    options)
    everything = (ctypes.c_char * max(1, sum(sizes)))()
    with op.held():
        _native.copy_bytes(ctypes.addressof(everything), op.result().data, sum(sizes))
        op.release()
    view, objects = memoryview(everything), []
    for count in sizes:
        objects.append(pickle.loads(view[:count]))
        view = view[count:]
    return objects
