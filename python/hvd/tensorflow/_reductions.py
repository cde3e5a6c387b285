# SPDX-License-Identifier: Apache-2.0
"""allreduce and reducescatter as users call them: of tensors, variables and IndexedSlices, compressed, on a device.

IndexedSlices are summed by gathering: rows and their indices of all members one after the other, which is what an
IndexedSlices with repeated indices means.
"""
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd.collectives import reduce_op_of
from hvd.process_sets import ProcessSet, global_process_set, id_of
from hvd.tensorflow import mpi_ops
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.mpi_ops import Adasum, Average, Sum

_NONE = Compression.none
_ANYWHERE = contextlib.nullcontext()

def on_device(device: str) -> Any:
    """A scope that places ops on a device; for \"\" one that does nothing."""
    return tf.device(device) if device else _ANYWHERE


def _compressed(tensor: Any, compression: Any, what: str) -> tuple[Any, Any]:
    """What to send, and what decompress() needs."""
    return (tensor, None) if compression is _NONE else compression.compress(mpi_ops._tensor(tensor, what))


def _check_sparse_op(op: int) -> None:
    if op == Adasum:
        raise NotImplementedError("The Adasum reduction does not currently support sparse tensors. As a workaround please "
                                  "pass sparse_as_dense=True to DistributedOptimizer")
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")


def _scaled(values: Any, op: int, prescale: float, postscale: float, process_set: ProcessSet) -> Any:
    """Rows to gather: divided here, where there are fewest of them. Averages of whole numbers are of a floating-point
    type, as TensorFlow divides."""
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    factor = prescale * postscale
    return values if factor == 1.0 else values * tf.cast(factor, values.dtype)


def _gather_slices(slices: Sequence[Any], name: str | None, op: int, prescale: float, postscale: float, together: bool,
                   process_set: ProcessSet, ignore_name_scope: bool) -> list[Any]:
    """The sums of IndexedSlices. Together: one group; else an op for each part, when it is ready."""
    _check_sparse_op(op)
    id_of(process_set, "Allgather")
    parts = [tf.convert_to_tensor(part) for one in slices
             for part in (_scaled(tf.convert_to_tensor(one.values), op, prescale, postscale, process_set), one.indices)]
    how = {"process_set": process_set, "ignore_name_scope": ignore_name_scope}
    if together:
        gathered = mpi_ops.grouped_allgather(parts, name=name and f"{name}_slices", **how)
    else:
        gathered = [mpi_ops.allgather(part, name=name and f"{name}_{kind}", **how)
                    for part, kind in zip(parts, itertools.cycle(("values", "indices")))]
    return [tf.IndexedSlices(gathered[2 * at], gathered[2 * at + 1], dense_shape=one.dense_shape)
            for at, one in enumerate(slices)]


def allreduce(tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
              compression: Any = _NONE, op: int | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: str | None = None, process_set: ProcessSet = global_process_set,
              ignore_name_scope: bool = False) -> Any:
    """The reduction (Average by default) of a tensor, variable or tf.IndexedSlices over the set's members.

    A new tensor of the same shape and type; for IndexedSlices (Sum and Average only) an IndexedSlices with the rows of
    all members, whose averages of whole numbers are floating-point. Shapes and types must be equal on all of them. prescale_factor multiplies each input, postscale_factor
    the result. `average` is the deprecated form of `op`. device_dense, device_sparse: devices to place the ops on.
    ignore_name_scope: name scopes around the call are no part of the op's name. Differentiable.
    TypeError: ragged, sparse and string tensors. ValueError: `op` beside `average`."""
    op = reduce_op_of(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        with on_device(device_sparse):
            return _gather_slices([tensor], name, op, prescale_factor, postscale_factor, tf.executing_eagerly(),
                                  process_set, ignore_name_scope)[0]
    with on_device(device_dense):
        small, ctx = _compressed(tensor, compression, "allreduce")
        return compression.decompress(
            mpi_ops._allreduce(small, name=name, op=op, prescale_factor=prescale_factor,
                               postscale_factor=postscale_factor, ignore_name_scope=ignore_name_scope,
                               process_set=process_set), ctx)


def grouped_allreduce(tensors: Sequence[Any], average: bool | None = None, device_dense: str = "",
                      device_sparse: str = "", compression: Any = _NONE, op: int | None = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                      name: str | None = None) -> Any:
    """allreduce() of each tensor; all of them run together or none. Types and shapes may differ within the group; what
    is IndexedSlices travels as a group of its own. A list; an empty sequence comes back as it is."""
    if not tensors:
        return tensors
    op = reduce_op_of(op, average)
    slices = [at for at, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [at for at, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    reduced: list[Any] = [None] * len(tensors)
    if slices:
        with on_device(device_sparse):
            results = _gather_slices([tensors[at] for at in slices], name, op, prescale_factor, postscale_factor, True,
                                     process_set, ignore_name_scope)
        for at, result in zip(slices, results):
            reduced[at] = result
    if dense:
        with on_device(device_dense):
            small = [_compressed(tensors[at], compression, "grouped_allreduce") for at in dense]
            results = mpi_ops._grouped_allreduce([tensor for tensor, _ in small], name=name, op=op,
                                                 prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                                                 ignore_name_scope=ignore_name_scope, process_set=process_set)
            for at, result, (_, ctx) in zip(dense, results, small):
                reduced[at] = compression.decompress(result, ctx)
    return reduced


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = _NONE, op: int = Average,
                  name: str | None = None, process_set: ProcessSet = global_process_set,
                  ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the reduction (Sum or Average); of n members the first `dim0 % n` get one row more.
    Differentiable."""
    with on_device(device_dense):
        small, ctx = _compressed(tensor, compression, "reducescatter")
        return compression.decompress(
            mpi_ops._reducescatter(small, name=name, op=op, prescale_factor=prescale_factor,
                                   postscale_factor=postscale_factor, ignore_name_scope=ignore_name_scope,
                                   process_set=process_set), ctx)


def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "", compression: Any = _NONE, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> Any:
    """reducescatter() of each tensor; all of them run together or none. An empty sequence comes back as it is."""
    if not tensors:
        return tensors
    with on_device(device_dense):
        small = [_compressed(tensor, compression, "grouped_reducescatter") for tensor in tensors]
        results = mpi_ops._grouped_reducescatter([tensor for tensor, _ in small], op=op,
                                                 prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                                                 process_set=process_set)
        return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small)]
