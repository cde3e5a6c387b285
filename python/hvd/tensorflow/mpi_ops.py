# SPDX-License-Identifier: Apache-2.0
"""The collectives on TensorFlow tensors, below what users call: names, checks and gradients.

They work eagerly, in tf.function and in graphs of TensorFlow 1. Tensors are dense, of type uint8, int8, uint16, int16,
int32, int64, bool, half, bfloat16, float32 or float64. What is wrong with the arguments is a TypeError or ValueError at
once where it can be seen at once; else, and where ranks disagree, the op fails with an error of tf.errors when it runs.

Names pair the ops of different ranks; unnamed eager ops of a kind meet in the order of their calls.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd import _native
from hvd.basics import (Adasum, Average, Max, Min, Product, Sum, ccl_built, cross_rank, cross_size,  # noqa: F401
                        cuda_built, ddl_built, gloo_built, gloo_enabled, is_homogeneous, is_initialized,
                        local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rank,
                        rocm_built, shutdown, size, start_timeline, stop_timeline)
from hvd.collectives import group_most
from hvd.exceptions import HorovodInternalError  # noqa: F401
from hvd.process_sets import (ProcessSet, add_process_set, global_process_set, registered_id,  # noqa: F401
                              remove_process_set)
from hvd.tensorflow import _library
from hvd.tensorflow._autograd import ops
from hvd.tensorflow._memory import init  # noqa: F401
from hvd.tensorflow._names import names_of
from hvd.tensorflow.util import name_of, variable_of

_OPS = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}


def _types() -> frozenset[Any]:
    """hvd's types that the ops have. TensorFlow does not let libraries in C name its float8 types."""
    names = [name for name in _native.DTYPES if not (_library.is_native and name.startswith("float8"))]
    return frozenset(tf.dtypes.as_dtype(name) for name in names)


_TYPES = _types()


# ---- what is checked at once ----


@functools.lru_cache(maxsize=None)
def _tell_of_gpus() -> None:
    """Says once where tensors of GPUs go, which TensorFlow itself does without a word."""
    if tf.config.get_visible_devices("GPU"):
        _library.logger.warning(
            "hvd.tensorflow: tensors on GPUs, gradients among them, are copied to memory of the host and back by TensorFlow for "
            "each op: its C interface gives ops no stream of a GPU (docs/coming-from-horovod.md)")


def _tensor(value: Any, what: str, rows: bool = False) -> Any:
    """A dense tensor of a type that ops have; one with a first dimension, where the op is about that."""
    _tell_of_gpus()
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"{what} takes dense tensors, not a {type(value).__name__}; convert it with "
                        f"{'tf.sparse.to_dense' if isinstance(value, tf.SparseTensor) else 'to_tensor()'}, or send its "
                        "parts (values, and indices or row_splits)")
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tensor.dtype.base_dtype:  # what a ref variable of TensorFlow 1 is
        tensor = tf.identity(tensor)
    if tensor.dtype not in _TYPES:
        advice = "send its bytes as uint8 (tf.io.decode_raw), or use hvd.broadcast_object" \
            if tensor.dtype == tf.string else "tf.cast it to one of those (complex: tf.math.real and tf.math.imag)"
        raise TypeError(f"{what}: tensor type {tensor.dtype.name} is not supported; the types are "
                        f"{', '.join(sorted(kind.name for kind in _TYPES))}; {advice}")
    if rows and tensor.shape.rank == 0:
        raise ValueError(f"{what.capitalize()} does not support scalar inputs; it works along the first dimension, so "
                         "tf.reshape it to [1]")
    return tensor


def _group(values: Sequence[Any], what: str, rows: bool = False) -> list[Any]:
    if isinstance(values, (tf.Tensor, str)) or not isinstance(values, (list, tuple)):
        raise TypeError(f"{what} takes a list of tensors, not a {type(values).__name__}")
    if not values:
        raise ValueError(f"{what} needs at least one tensor")
    return [_tensor(value, what, rows) for value in values]


def _reduction(op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet,
               what: str) -> dict[str, Any]:
    """The attributes of an op that reduces. Whether this rank is a member of the set is asked when an op runs: a graph may
    have ops that a rank never runs."""
    if op not in _OPS:
        names = ", ".join(f"hvd.{name}" for name in _OPS.values())
        raise ValueError(f"{what}: op is {op!r}; it must be one of {names}")
    if op == Adasum and what == "Reducescatter":
        raise ValueError("Reducescatter currently only supports AVERAGE and SUM.")
    return {"reduce_op": op, "prescale_factor": prescale_factor, "postscale_factor": postscale_factor,
            "process_set_id": registered_id(process_set, what)}


def _grouped(op: Any, kind: str, tensors: Sequence[Any], name: str | None, ignore_name_scope: bool, **how: Any) -> list[Any]:
    """An op on all tensors; several, where they are more than one takes (hvd.collectives.group_most)."""
    names = names_of(kind, name, tensors[0], ignore_name_scope)
    if len(tensors) <= group_most(names["tensor_name"]):
        return list(op(tensors=tensors, **how, **names))
    most = group_most(names["tensor_name"] and f"{names['tensor_name']}.{len(tensors)}")
    results: list[Any] = []
    for begin in range(0, len(tensors), most):
        part = {key: value and f"{value}.{begin}" for key, value in names.items()}
        results += op(tensors=tensors[begin:begin + most], **how, **part)
    return results


# ---- the collectives ----


def _allreduce(tensor: Any, name: str | None = None, op: int = Sum, prescale_factor: float = 1.0,
               postscale_factor: float = 1.0, ignore_name_scope: bool = False,
               process_set: ProcessSet = global_process_set) -> Any:
    """The reduction over the set's members: a tensor of the same shape and type, which are equal on all of them.
    prescale_factor multiplies each input, postscale_factor the result. Its gradient: allreduced in the same way."""
    tensor = _tensor(tensor, "allreduce")
    how = _reduction(op, prescale_factor, postscale_factor, process_set, "Allreduce")
    return ops.hvd_allreduce(tensor=tensor, **how, **names_of("HorovodAllreduce", name, tensor, ignore_name_scope))


def _grouped_allreduce(tensors: Sequence[Any], name: str | None = None, op: int = Sum, prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0, ignore_name_scope: bool = False,
                       process_set: ProcessSet = global_process_set) -> list[Any]:
    """_allreduce of each tensor; all run together or none. Types may differ."""
    tensors = _group(tensors, "grouped_allreduce")
    how = _reduction(op, prescale_factor, postscale_factor, process_set, "Allreduce")
    return _grouped(ops.hvd_grouped_allreduce, "HorovodGroupedAllreduce", tensors, name, ignore_name_scope, **how)


def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """The members' tensors one after the other along the first dimension, by set rank. First dimensions may differ,
    also be 0; the others and the type are equal. Its gradient: this rank's rows of the average."""
    tensor = _tensor(tensor, "allgather", rows=True)
    return ops.hvd_allgather(tensor=tensor, process_set_id=registered_id(process_set, "Allgather"),
                             **names_of("HorovodAllgather", name, tensor, ignore_name_scope))


def grouped_allgather(tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> list[Any]:
    """allgather() of each tensor; all run together or none."""
    tensors = _group(tensors, "grouped_allgather", rows=True)
    return _grouped(ops.hvd_grouped_allgather, "HorovodGroupedAllgather", tensors, name, ignore_name_scope,
                    process_set_id=registered_id(process_set, "Allgather"))


def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """The tensor of global rank `root_rank`; shape and type are equal on all members. Its gradient: the average on the
    root, 0 elsewhere."""
    tensor = _tensor(tensor, "broadcast")
    return ops.hvd_broadcast(tensor=tensor, root_rank=root_rank, process_set_id=registered_id(process_set, "Broadcast"),
                             **names_of("HorovodBroadcast", name, tensor, ignore_name_scope))


def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> list[Any]:
    """Assigns to each variable its value on global rank `root_rank`. The variables; in graphs what stands for their new
    values. They are all resource variables or all ref variables."""
    inner = [_variable(variable) for variable in variables]
    resources = [hasattr(variable, "handle") for variable in inner]
    if any(resources) and not all(resources):
        raise ValueError("broadcast_ takes resource variables or ref variables, not both in one call; call it for each "
                         "kind")
    updated = []
    for number, variable in enumerate(inner):
        own = None if name is None else f"{name}_{number + 1}of{len(inner)}"
        if own is None and not tf.executing_eagerly():
            own = f"HorovodBroadcastInplace_{name_of(variables[number])}"
        updated.append(variable.assign(broadcast(variable.read_value(), root_rank, name=own, process_set=process_set)))
    return list(variables) if tf.executing_eagerly() else updated


def _variable(variable: Any) -> Any:
    inner = variable_of(variable)
    if not isinstance(inner, tf.Variable):
        raise TypeError(f"broadcast_ takes variables, not a {type(variable).__name__}; use broadcast for tensors")
    return inner


def alltoall(tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends `splits[i]` rows (in equal parts without splits) to member i. The rows received, by set rank; with `splits`
    also an int32 tensor of how many came from each. Its gradient goes back where the rows came from."""
    tensor = _tensor(tensor, "alltoall", rows=True)
    parts = tf.zeros([0], tf.int32) if splits is None else _splits(splits)
    rows, received = ops.hvd_alltoall(
        tensor=tensor, splits=parts, process_set_id=registered_id(process_set, "Alltoall"),
        **names_of("HorovodAlltoall", name, tensor, ignore_name_scope))
    return rows if splits is None else (rows, received)


def _splits(splits: Any) -> Any:
    splits = tf.convert_to_tensor(splits)
    if splits.dtype not in (tf.int32, tf.int64):
        if splits.shape.num_elements() == 0:
            return tf.cast(splits, tf.int32)
        raise TypeError(f"alltoall: splits are of type {splits.dtype.name}; they count rows: tf.cast them to tf.int32")
    if splits.shape.rank not in (None, 1):
        raise ValueError("alltoall expects a 1D splits tensor")
    return splits


def _reducescatter(tensor: Any, name: str | None = None, op: int = Sum, ignore_name_scope: bool = False,
                   process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                   postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the reduction; of n members the first `dim0 % n` get one row more. Its gradient: gathered;
    for Sum times n."""
    tensor = _tensor(tensor, "reducescatter", rows=True)
    how = _reduction(op, prescale_factor, postscale_factor, process_set, "Reducescatter")
    return ops.hvd_reducescatter(
        tensor=tensor, **how, **names_of("HorovodReducescatter", name, tensor, ignore_name_scope))


def _grouped_reducescatter(tensors: Sequence[Any], name: str | None = None, op: int = Sum,
                           ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set,
                           prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> list[Any]:
    """_reducescatter of each tensor; all run together or none."""
    tensors = _group(tensors, "grouped_reducescatter", rows=True)
    how = _reduction(op, prescale_factor, postscale_factor, process_set, "Reducescatter")
    return _grouped(ops.hvd_grouped_reducescatter, "HorovodGroupedReducescatter", tensors, name, ignore_name_scope, **how)


def join() -> Any:
    """This rank has no more data: it takes part in the others' ops with neutral elements until all have joined. int32:
    the rank that joined last."""
    return ops.hvd_join(process_set_id=0)


# ---- questions that a graph answers when it runs, so that they are true after an elastic reset too ----


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """int32: the number of members of the set."""
    return ops.hvd_size(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> Any:
    """int32: the number of ranks on this node."""
    return ops.hvd_local_size(name=name)


def rank_op(name: str | None = None) -> Any:
    """int32: this rank."""
    return ops.hvd_rank(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """int32: this rank's number on its node."""
    return ops.hvd_local_rank(name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """int32: 1 if this rank is a member of the set, else 0."""
    return ops.hvd_process_set_included(process_set_id=process_set_id, name=name)
