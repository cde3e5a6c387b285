# SPDX-License-Identifier: Apache-2.0
"""The ops with their gradients. `ops` has the functions of _library.ops.

Gradients are those of Horovod: every rank's loss counts one n-th, so what other ranks did with this rank's data comes
back averaged where the op moved data (allgather, broadcast), and by the op itself elsewhere. They are made of the same
ops, so that gradients have gradients. The ops of a named op's gradient have its name with ".grad"; those of an unnamed
one are unnamed, and ranks must reach them in the same order.

TensorFlow asks for them by the op's type (register) where the ops are its own; the Python functions of _fallback bring
theirs along (tf.custom_gradient).
"""
from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from hvd.basics import Average, Sum
from hvd.tensorflow import _library
from hvd.tensorflow._names import backward_name


class Call(NamedTuple):
    """A call of an op."""
    inputs: Sequence[Any]
    results: Sequence[Any]
    attribute: Callable[[str], Any]

    def dense(self, grads: Sequence[Any]) -> list[Any]:
        """Gradients of the results as tensors: TensorFlow has none for integers, and IndexedSlices of tf.gather."""
        return [tf.zeros_like(result) if grad is None else tf.convert_to_tensor(grad)
                for grad, result in zip(grads, self.results)]

    def reduction(self) -> dict[str, Any]:
        """The attributes for a gradient that is reduced as the op's inputs were."""
        return {name: self.attribute(name) for name in ("reduce_op", "prescale_factor", "postscale_factor")}

    def place(self, more: str = "") -> dict[str, Any]:
        """Whom an op of the gradient runs with, and its name."""
        return {"process_set_id": self.attribute("process_set_id"),
                "tensor_name": backward_name(self.attribute("tensor_name"), more)}


#: Gradients of the results -> gradients of the inputs.
Formula = Callable[[Call, Sequence[Any]], Sequence[Any]]
_MEAN = {"reduce_op": Average, "prescale_factor": 1.0, "postscale_factor": 1.0}


def _allreduce(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """Allreduced in the same way."""
    return [ops.hvd_allreduce(tensor=grads[0], **call.reduction(), **call.place())]


def _grouped_allreduce(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """A group that is allreduced in the same way."""
    return ops.hvd_grouped_allreduce(tensors=grads, **call.reduction(), **call.place())


def _rows(tensor: Any) -> Any:
    return tf.shape(tensor, tf.int64)[0]


def _own_rows(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """Of each averaged gradient of a gathered tensor the part of this rank."""
    rank = tf.cast(ops.hvd_rank(), tf.int64)
    mine = tf.stack([rank, *(_rows(tensor) for tensor in call.inputs)])
    table = ops.hvd_allgather(tensor=mine[tf.newaxis], **call.place(".rows"))
    place = tf.argmax(tf.cast(tf.equal(table[:, 0], rank), tf.int32))
    starts = tf.reduce_sum(table[:place, 1:], 0)
    return [tf.ensure_shape(grad[starts[at]:starts[at] + mine[at + 1]], tensor.shape)
            for at, (grad, tensor) in enumerate(zip(grads, call.inputs))]


def _allgather(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """This rank's rows of the average."""
    return _own_rows(call, [ops.hvd_allreduce(tensor=grads[0], **_MEAN, **call.place())])


def _grouped_allgather(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """This rank's rows of the averages."""
    return _own_rows(call, ops.hvd_grouped_allreduce(tensors=grads, **_MEAN, **call.place()))


def _broadcast(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """The average on the root, 0 elsewhere."""
    mean = ops.hvd_allreduce(tensor=grads[0], **_MEAN, **call.place())
    return [tf.where(tf.equal(ops.hvd_rank(), call.attribute("root_rank")), mean, tf.zeros_like(mean))]


def _alltoall(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """Goes back where the rows came from; rows that were not sent have 0."""
    back, _ = ops.hvd_alltoall(tensor=grads[0], splits=call.results[1], **call.place())
    shape = tf.shape(call.inputs[0])
    unsent = tf.zeros(tf.concat([shape[:1] - tf.shape(back)[:1], shape[1:]], 0), back.dtype)
    return [tf.ensure_shape(tf.concat([back, unsent], 0), call.inputs[0].shape), None]


def _scaled(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    factor = call.attribute("prescale_factor") * call.attribute("postscale_factor")
    if call.attribute("reduce_op") == Sum:
        members = ops.hvd_size(process_set_id=call.attribute("process_set_id"))
        factor *= tf.cast(members, tf.float64)
    elif factor == 1.0:
        return grads
    return [grad * tf.cast(factor, grad.dtype) for grad in grads]


def _reducescatter(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """Gathered; for Sum times the number of members."""
    return [ops.hvd_allgather(tensor=_scaled(call, grads)[0], **call.place())]


def _grouped_reducescatter(call: Call, grads: Sequence[Any]) -> Sequence[Any]:
    """Gathered in a group; for Sum times the number of members."""
    return ops.hvd_grouped_allgather(tensors=_scaled(call, grads), **call.place())


#: Op function -> (op type, formula).
_FORMULAS: dict[str, tuple[str, Formula]] = {
    "hvd_allreduce": ("HvdAllreduce", _allreduce),
    "hvd_grouped_allreduce": ("HvdGroupedAllreduce", _grouped_allreduce),
    "hvd_allgather": ("HvdAllgather", _allgather),
    "hvd_grouped_allgather": ("HvdGroupedAllgather", _grouped_allgather),
    "hvd_broadcast": ("HvdBroadcast", _broadcast),
    "hvd_alltoall": ("HvdAlltoall", _alltoall),
    "hvd_reducescatter": ("HvdReducescatter", _reducescatter),
    "hvd_grouped_reducescatter": ("HvdGroupedReducescatter", _grouped_reducescatter),
}
_WITHOUT = ("hvd_join", "hvd_size", "hvd_rank", "hvd_local_size", "hvd_local_rank", "hvd_process_set_included")


def _register(op_type: str, formula: Formula) -> None:
    @tf.RegisterGradient(op_type)
    def _gradient(op: Any, *grads: Any) -> Any:
        def attribute(name: str) -> Any:
            value = op.get_attr(name)
            return value.decode() if isinstance(value, bytes) else value
        call = Call(op.inputs, op.outputs, attribute)
        return formula(call, call.dense(grads))


def _with_gradient(function: Callable[..., Any], formula: Formula) -> Callable[..., Any]:
    """A function of _fallback that has the gradient."""
    @functools.wraps(function)
    def differentiable(**arguments: Any) -> Any:
        names = [name for name in ("tensor", "tensors", "splits") if name in arguments]
        inputs = [arguments.pop(name) for name in names]

        @tf.custom_gradient
        def op(*tensors: Any) -> Any:
            result = function(**dict(zip(names, tf.nest.pack_sequence_as(inputs, tensors))), **arguments)
            call = Call(tensors, tf.nest.flatten(result), arguments.__getitem__)
            return result, lambda *grads: formula(call, call.dense(grads))
        return op(*tf.nest.flatten(inputs))
    return differentiable


def _differentiable() -> Any:
    """The namespace of ops."""
    given = _library.ops
    if _library.is_native:
        for op_type, formula in _FORMULAS.values():
            _register(op_type, formula)
        return given
    functions = {name: _with_gradient(getattr(given, name), formula) for name, (_, formula) in _FORMULAS.items()}
    functions.update({name: getattr(given, name) for name in _WITHOUT})
    return types.SimpleNamespace(**functions)


ops = _differentiable()
