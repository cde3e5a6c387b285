# SPDX-License-Identifier: Apache-2.0
"""Collectives on NumPy arrays: `import hvd.numpy as hvd`.

Names, arguments and errors are those of Horovod's framework modules. An input may be anything that
`numpy.asarray` takes or that has DLPack, also a 0-d array or a number; it is copied only when it is not C-contiguous.
Element types: uint8, int8, uint16, int16, int32, int64, bool, float16, float32, float64, and bfloat16, float8_e4m3fn, float8_e5m2 of ml_dtypes; any other is
a ValueError. An op that fails under way raises HorovodInternalError.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd import _native, collectives
from hvd.basics import *  # noqa: F401,F403 pylint: disable=wildcard-import,unused-wildcard-import
from hvd.basics import Average
from hvd.collectives import Framework, Handle, barrier, complete, hand_out, join, poll, reduce_op_of, synchronize
from hvd.exceptions import HorovodInternalError, NotInitializedError
from hvd.objects import allgather_object, broadcast_object
from hvd.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set


class _NumPy(Framework):
    """NumPy's side of the collectives."""

    def describe(self, tensor: Any) -> bytes:
        if not tensor.flags.c_contiguous:
            raise ValueError("Tensor is required to be contiguous.")
        code = _native.DTYPES.get(tensor.dtype.name)
        if code is None or not tensor.dtype.isnative:
            raise ValueError(f"Tensor type {tensor.dtype} is not supported.")
        return _native.describe(tensor.ctypes.data, code, tensor.shape)

    def address(self, tensor: Any) -> int:
        return tensor.ctypes.data

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return np.empty(shape, like.dtype)


engine = collectives.Collectives(_NumPy())


def _input(tensor: Any) -> Any:
    """An array over the memory of what has the buffer protocol, __array_interface__ or DLPack; a new one of numbers."""
    if hasattr(tensor, "__dlpack__") and not hasattr(tensor, "__array__") and hasattr(np, "from_dlpack"):
        tensor = np.from_dlpack(tensor)
    return np.asarray(tensor, order="C")


def _in_place(tensor: Any) -> Any:
    if not isinstance(tensor, np.ndarray):
        raise ValueError(f"an in-place op needs a numpy.ndarray, not {type(tensor).__name__}")
    if not tensor.flags.writeable:
        raise ValueError("an in-place op needs a writeable array")
    return tensor


def allreduce_async(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allreduce(); synchronize() gives the new array."""
    tensor = _input(tensor)
    return hand_out(engine.start_allreduce(tensor, np.empty_like(tensor), reduce_op_of(op, average), name,
                                         prescale_factor, postscale_factor, process_set))


def allreduce(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> Any:
    """A new array, of the same shape and type: the reduction (Average by default) over the set's members. Shapes and
    types must be equal on all of them."""
    tensor = _input(tensor)
    return engine.allreduce(tensor, np.empty_like(tensor), reduce_op_of(op, average), name, prescale_factor,
                          postscale_factor, process_set)


def allreduce_async_(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allreduce_()."""
    tensor = _in_place(tensor)
    return hand_out(engine.start_allreduce(tensor, tensor, reduce_op_of(op, average), name, prescale_factor,
                                         postscale_factor, process_set))


def allreduce_(tensor: Any, average: bool | None = None, name: str | None = None, op: int | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> Any:
    """allreduce() in place; returns `tensor`."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                            op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allreduce(); synchronize() gives a tuple."""
    inputs = [_input(tensor) for tensor in tensors]
    outputs = [np.empty_like(tensor) for tensor in inputs]
    return hand_out(engine.start_grouped_allreduce(inputs, outputs, reduce_op_of(op, average), name, prescale_factor,
                                                 postscale_factor, process_set))


def grouped_allreduce(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                      op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[Any]:
    """New arrays, one for each input; all ops run together or none."""
    return list(synchronize(grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor,
                                                    process_set)))


def grouped_allreduce_async_(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                             op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allreduce_(); synchronize() gives a tuple."""
    inputs = [_in_place(tensor) for tensor in tensors]
    return hand_out(engine.start_grouped_allreduce(inputs, inputs, reduce_op_of(op, average), name, prescale_factor,
                                                 postscale_factor, process_set))


def grouped_allreduce_(tensors: Sequence[Any], average: bool | None = None, name: str | None = None,
                       op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[Any]:
    """grouped_allreduce() in place; returns the arrays."""
    return list(synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor,
                                                     process_set)))


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts allgather()."""
    return hand_out(engine.start_allgather(_input(tensor), name, process_set))


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """A new array: the members' arrays one after the other along the first dimension, by set rank. First dimensions may
    differ, also be 0; the others and the type must be equal."""
    return complete(engine.start_allgather(_input(tensor), name, process_set))


def grouped_allgather_async(tensors: Sequence[Any], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """Starts grouped_allgather(); synchronize() gives a tuple."""
    return hand_out(engine.start_grouped_allgather([_input(tensor) for tensor in tensors], name, process_set))


def grouped_allgather(tensors: Sequence[Any], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[Any]:
    """allgather() of each array; all run together or none."""
    return list(synchronize(grouped_allgather_async(tensors, name, process_set)))


def broadcast_async(tensor: Any, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """Starts broadcast()."""
    tensor = _input(tensor)
    return hand_out(engine.start_broadcast(tensor, np.empty_like(tensor), root_rank, name, process_set))


def broadcast(tensor: Any, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """A new array with the contents of global rank `root_rank`'s; shape and type are equal on all members."""
    tensor = _input(tensor)
    return engine.broadcast(tensor, np.empty_like(tensor), root_rank, name, process_set)


def broadcast_async_(tensor: Any, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """Starts broadcast_()."""
    tensor = _in_place(tensor)
    return hand_out(engine.start_broadcast(tensor, tensor, root_rank, name, process_set))


def broadcast_(tensor: Any, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> Any:
    """broadcast() in place; returns `tensor`."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def _splits_list(splits: Any) -> list[int] | None:
    if splits is None:
        return None
    array = np.asarray(splits)
    if array.ndim != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if array.size == 0:
        return None
    if array.dtype.kind not in "iu":
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    return [int(rows) for rows in array]


def alltoall_async(tensor: Any, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """Starts alltoall(); synchronize() gives (rows, received splits) whatever `splits` is."""
    return hand_out(engine.start_alltoall(_input(tensor), _splits_list(splits), name,
                                        lambda rows: np.array(rows, np.int32), process_set))


def alltoall(tensor: Any, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends `splits[i]` rows (in equal parts without splits) to member i. The rows received, by set rank; with `splits`
    also an int32 array of how many came from each."""
    rows, received = synchronize(alltoall_async(tensor, splits, name, process_set))
    return rows if splits is None else (rows, received)


def reducescatter_async(tensor: Any, name: str | None = None, op: int = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """Starts reducescatter()."""
    return hand_out(engine.start_reducescatter(_input(tensor), op, name, prescale_factor, postscale_factor, process_set))


def reducescatter(tensor: Any, name: str | None = None, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the reduction; of n members the first `dim0 % n` get one row more."""
    return complete(engine.start_reducescatter(_input(tensor), op, name, prescale_factor, postscale_factor, process_set))


def grouped_reducescatter_async(tensors: Sequence[Any], name: str | None = None, op: int = Average,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """Starts grouped_reducescatter(); synchronize() gives a tuple."""
    return hand_out(engine.start_grouped_reducescatter([_input(tensor) for tensor in tensors], op, name, prescale_factor,
                                                     postscale_factor, process_set))


def grouped_reducescatter(tensors: Sequence[Any], name: str | None = None, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[Any]:
    """reducescatter() of each array; all run together or none."""
    return list(synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale_factor,
                                                        postscale_factor)))
