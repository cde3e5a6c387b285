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
from typing import Any

import tensorflow as tf

from hvd.basics import Average, Sum
from hvd.tensorflow import _fallback, _library
from hvd.tensorflow._names import backward_name

#: (inputs, results, the op's attributes, gradients of the results) -> gradients of the inputs
Formula = Callable[[Sequence[Any], Sequence[Any], Callable[[str], Any], Sequence[Any]], list[Any]]


def _dense(grads: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(grad) for grad in grads]


def _allreduce(_inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
               grads: Sequence[Any]) -> list[Any]:
    """Allreduced in the same way."""
    return [ops.hvd_allreduce(tensor=_dense(grads)[0], **_reduction(attribute))]


def _grouped_allreduce(_inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
                       grads: Sequence[Any]) -> list[Any]:
    """A group that is allreduced in the same way."""
    return list(ops.hvd_grouped_allreduce(tensors=_dense(grads), **_reduction(attribute)))


def _reduction(attribute: Callable[[str], Any]) -> dict[str, Any]:
    return {"reduce_op": attribute("reduce_op"), "prescale_factor": attribute("prescale_factor"),
            "postscale_factor": attribute("postscale_factor"), **_place(attribute)}


def _place(attribute: Callable[[str], Any], more: str = "") -> dict[str, Any]:
    return {"process_set_id": attribute("process_set_id"), "tensor_name": backward_name(attribute("tensor_name"), more)}


_MEAN = {"reduce_op": Average, "prescale_factor": 1.0, "postscale_factor": 1.0}


def _rows(tensor: Any) -> Any:
    """int64: how many rows the tensor has; a scalar is one."""
    return tf.concat([tf.shape(tensor, tf.int64), tf.ones([1], tf.int64)], 0)[0]


def _own_rows(grads: Sequence[Any], inputs: Sequence[Any], attribute: Callable[[str], Any]) -> list[Any]:
    """Of each averaged gradient of a gathered tensor the part of this rank."""
    rank = tf.cast(ops.hvd_rank(), tf.int64)
    mine = tf.stack([rank] + [_rows(tensor) for tensor in inputs])
    table = ops.hvd_allgather(tensor=mine[tf.newaxis], **_place(attribute, ".rows"))
    place = tf.argmax(tf.cast(tf.equal(table[:, 0], rank), tf.int32))
    starts = tf.reduce_sum(table[:place, 1:], 0)
    return [tf.reshape(grad[starts[i]:starts[i] + mine[i + 1]], tf.shape(tensor))
            for i, (grad, tensor) in enumerate(zip(grads, inputs))]


def _allgather(inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
               grads: Sequence[Any]) -> list[Any]:
    """This rank's rows of the average."""
    mean = ops.hvd_allreduce(tensor=_dense(grads)[0], **_MEAN, **_place(attribute))
    return _own_rows([mean], inputs, attribute)


def _grouped_allgather(inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
                       grads: Sequence[Any]) -> list[Any]:
    """This rank's rows of the averages."""
    means = ops.hvd_grouped_allreduce(tensors=_dense(grads), **_MEAN, **_place(attribute))
    return _own_rows(means, inputs, attribute)


def _broadcast(_inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
               grads: Sequence[Any]) -> list[Any]:
    """The average on the root, 0 elsewhere."""
    mean = ops.hvd_allreduce(tensor=_dense(grads)[0], **_MEAN, **_place(attribute))
    return [tf.where(tf.equal(ops.hvd_rank(), attribute("root_rank")), mean, tf.zeros_like(mean))]


def _alltoall(inputs: Sequence[Any], results: Sequence[Any], attribute: Callable[[str], Any],
              grads: Sequence[Any]) -> list[Any]:
    """Goes back where the rows came from; rows that were not sent have 0."""
    back, _ = ops.hvd_alltoall(tensor=tf.convert_to_tensor(grads[0]), splits=results[1], **_place(attribute))
    unsent = tf.shape(inputs[0])[0] - tf.shape(back)[0]
    missing = tf.zeros(tf.concat([[unsent], tf.shape(back)[1:]], 0), back.dtype)
    return [tf.reshape(tf.concat([back, missing], 0), tf.shape(inputs[0])), None]


def _scaled(grad: Any, attribute: Callable[[str], Any]) -> Any:
    factor = attribute("prescale_factor") * attribute("postscale_factor")
    if attribute("reduce_op") == Sum:
        members = ops.hvd_size(process_set_id=attribute("process_set_id"))
        return grad * tf.cast(factor * tf.cast(members, tf.float32), grad.dtype)
    return grad if factor == 1.0 else grad * tf.cast(factor, grad.dtype)


def _reducescatter(_inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
                   grads: Sequence[Any]) -> list[Any]:
    """Gathered; for Sum times the number of members."""
    return [ops.hvd_allgather(tensor=_scaled(_dense(grads)[0], attribute), **_place(attribute))]


def _grouped_reducescatter(_inputs: Sequence[Any], _results: Sequence[Any], attribute: Callable[[str], Any],
                           grads: Sequence[Any]) -> list[Any]:
    """Gathered in a group; for Sum times the number of members."""
    return list(ops.hvd_grouped_allgather(tensors=[_scaled(grad, attribute) for grad in _dense(grads)],
                                          **_place(attribute)))


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
_QUESTIONS = ("hvd_join", "hvd_size", "hvd_rank", "hvd_local_size", "hvd_local_rank", "hvd_process_set_included")


def _register(op_type: str, formula: Formula) -> None:
    @tf.RegisterGradient(op_type)
    def _gradient(op: Any, *grads: Any) -> Any:
        def attribute(name: str) -> Any:
            value = op.get_attr(name)
            return value.decode() if isinstance(value, bytes) else value
        return formula(op.inputs, op.outputs, attribute, grads)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _with_gradient(function: Callable[..., Any], formula: Formula) -> Callable[..., Any]:
    """A function of _fallback that has the gradient."""
    @functools.wraps(function)
    def differentiable(name: str | None = None, **arguments: Any) -> Any:
        inputs = _as_list(arguments.pop("tensors" if "tensors" in arguments else "tensor"))
        extra = [arguments.pop("splits")] if "splits" in arguments else []
        shape_of_result: list[type] = []

        @tf.custom_gradient
        def op(*tensors: Any) -> Any:
            given = list(tensors[:len(inputs)])
            how = {"splits": tensors[-1]} if extra else {}
            if "grouped" in function.__name__:
                result = function(given, **how, **arguments, name=name)
            else:
                result = function(given[0], **how, **arguments, name=name)
            shape_of_result[:] = [type(result)]
            results = _as_list(result)

            def gradient(*grads: Any) -> Any:
                return formula(tensors, results, arguments.__getitem__, grads)
            return results, gradient
        results = op(*inputs, *extra)
        if shape_of_result[0] is list:
            return results
        return tuple(results) if shape_of_result[0] is tuple else results[0]
    return differentiable


def _differentiable() -> Any:
    """The namespace of ops."""
    if _library.ops is not _fallback:
        for op_type, formula in _FORMULAS.values():
            _register(op_type, formula)
        return _library.ops
    functions = {name: _with_gradient(getattr(_fallback, name), formula) for name, (_, formula) in _FORMULAS.items()}
    functions.update({name: getattr(_fallback, name) for name in _QUESTIONS})
    return types.SimpleNamespace(**functions)


ops = _differentiable()
