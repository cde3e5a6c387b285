# SPDX-License-Identifier: Apache-2.0
"""The ops of the library libhvd_tensorflow through Python functions, for versions of TensorFlow that cannot load it.

Same names, arguments and results; no gradients (see _autograd). In tf.function they run in the order of the program, as
all Python functions do. In graphs of TensorFlow 1 nothing orders them, so none of TensorFlow's few threads may wait for
other ranks: there each op is the one element of a tf.data.Dataset, which is fetched by a thread of its own.

TensorFlow knows four classes of errors of Python functions in graphs: what the ranks did wrong becomes InvalidArgumentError
there, and FailedPreconditionError again where it comes out of TensorFlow (raise_what_was_meant).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.map_op import _MapDataset  # pylint: disable=no-name-in-module

from hvd import _native, _session, collectives, numpy as hvd_numpy, process_sets
from hvd.collectives import Started
from hvd.exceptions import HorovodInternalError

_engine = hvd_numpy.engine
_PRECONDITIONS = (_native.ERR_MISMATCH, _native.ERR_DUPLICATE_NAME)


# ---- errors ----


class _Failure(Exception):
    """An op's error: the class TensorFlow shall show, and the sentence."""

    def __init__(self, kind: Any, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _failure_of(error: Exception, started: Started | None, label: str) -> _Failure:
    statuses = [op.status for op in started[0]] if started else []
    kind = tf.errors.UnknownError
    if not _session.is_open() or any(status in _PRECONDITIONS for status in statuses):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(error, ValueError):
        is_name = "in flight" in str(error)
        kind = tf.errors.FailedPreconditionError if is_name else tf.errors.InvalidArgumentError
    return _Failure(kind, f"{label}: {error}")


def _results(start: Callable[..., Started], arrays: Sequence[Any], label: str) -> list[Any]:
    """Starts an op on arrays and waits for its results."""
    started = None
    try:
        started = start(*(np.asarray(array, order="C") for array in arrays))
        return [np.asarray(result) for result in collectives.complete(started)]
    except (ValueError, HorovodInternalError) as error:
        raise _failure_of(error, started, label) from None


# ---- one op ----


def _run(start: Callable[..., Started], tensors: Sequence[Any], types: Sequence[Any], label: str,
         name: str | None) -> list[Any]:
    """The results of what `start` starts on the tensors' arrays: as many as `types` has."""
    if tf.executing_eagerly():
        return _run_now(start, tensors, types, label)

    def work(*arrays: Any) -> list[Any]:
        try:
            return _results(start, arrays, label)
        except _Failure as failure:
            raise _in_python_words(failure) from None

    def op(*given: Any) -> tuple[Any, ...]:
        return tuple(tf.numpy_function(work, given, list(types)))

    with tf.name_scope(name or label.split(" ", maxsplit=1)[0]):
        if not tensors or _is_in_order():  # without tensors: a question, which waits for nobody
            return list(op(*tensors))
        one = tf.data.Dataset.from_tensors(tuple(tensors))
        return list(_MapDataset(one, op, use_inter_op_parallelism=False).get_single_element())


def _is_in_order() -> bool:
    """Whether the graph that is built is that of a tf.function, which runs Python functions in the program's order."""
    with tf.init_scope():
        outermost_is_eager = tf.executing_eagerly()
    return outermost_is_eager and getattr(tf.compat.v1.get_default_graph(), "_add_control_dependencies", False)


def _array(tensor: Any) -> Any:
    """A tensor's array; of scalars of ml_dtypes .numpy() gives no array."""
    return np.asarray(tensor.numpy(), tensor.dtype.as_numpy_dtype)


def _run_now(start: Callable[..., Started], tensors: Sequence[Any], types: Sequence[Any], label: str) -> list[Any]:
    try:
        arrays = _results(start, [_array(tensor) for tensor in tensors], label)
    except _Failure as failure:
        raise failure.kind(None, None, str(failure)) from None
    return [tf.convert_to_tensor(array, dtype) for array, dtype in zip(arrays, types)]


class FailedPreconditionError(ValueError):
    """tf.errors.FailedPreconditionError in a Python function. TensorFlow makes an InvalidArgumentError of it, in whose text is
    this class' name."""


def _in_python_words(failure: _Failure) -> Exception:
    """An exception of which TensorFlow makes the class, as well as it can."""
    kinds = {tf.errors.UnknownError: HorovodInternalError, tf.errors.FailedPreconditionError: FailedPreconditionError}
    return kinds.get(failure.kind, ValueError)(str(failure))


def raise_what_was_meant(error: tf.errors.OpError) -> None:
    """tf.errors.FailedPreconditionError in the place of an InvalidArgumentError that stands for one; else nothing."""
    if isinstance(error, tf.errors.InvalidArgumentError) and "FailedPreconditionError: Horovod" in error.message:
        raise tf.errors.FailedPreconditionError(error.node_def, error.op, error.message) from None


def _label(kind: str, tensor_name: str) -> str:
    return f"{kind} {tensor_name}" if tensor_name else kind


def _op_name(tensor_name: str) -> str | None:
    return tensor_name or None


# ---- the ops ----


def hvd_allreduce(tensor: Any, reduce_op: int, prescale_factor: float, postscale_factor: float, process_set_id: int,
                  tensor_name: str, name: str | None = None) -> Any:
    """The reduction over the set, of the tensor's shape and type."""
    def start(array: Any) -> Started:
        ops, finish = _engine.start_allreduce(array, np.empty_like(array), reduce_op, _op_name(tensor_name),
                                              prescale_factor, postscale_factor, process_sets.of_id(process_set_id))
        return ops, lambda: [finish()]
    result, = _run(start, [tensor], [tensor.dtype], _label("HorovodAllreduce", tensor_name), name)
    result.set_shape(tensor.shape)
    return result


def hvd_grouped_allreduce(tensors: Sequence[Any], reduce_op: int, prescale_factor: float, postscale_factor: float,
                          process_set_id: int, tensor_name: str, name: str | None = None) -> list[Any]:
    """hvd_allreduce of each; all run together or none."""
    def start(*arrays: Any) -> Started:
        return _engine.start_grouped_allreduce(arrays, [np.empty_like(array) for array in arrays], reduce_op,
                                               _op_name(tensor_name), prescale_factor, postscale_factor,
                                               process_sets.of_id(process_set_id))
    results = _run(start, tensors, [tensor.dtype for tensor in tensors],
                   _label("HorovodGroupedAllreduce", tensor_name), name)
    for result, tensor in zip(results, tensors):
        result.set_shape(tensor.shape)
    return results


def _of_rows(result: Any, tensor: Any) -> Any:
    """The result with what is known of its shape: all but the number of rows."""
    if tensor.shape.rank is not None and not tf.executing_eagerly():
        result.set_shape([None, *tensor.shape[1:]])
    return result


def hvd_allgather(tensor: Any, process_set_id: int, tensor_name: str, name: str | None = None) -> Any:
    """The members' rows, one after the other."""
    def start(array: Any) -> Started:
        ops, finish = _engine.start_allgather(array, _op_name(tensor_name), process_sets.of_id(process_set_id))
        return ops, lambda: [finish()]
    result, = _run(start, [tensor], [tensor.dtype], _label("HorovodAllgather", tensor_name), name)
    return _of_rows(result, tensor)


def hvd_grouped_allgather(tensors: Sequence[Any], process_set_id: int, tensor_name: str,
                          name: str | None = None) -> list[Any]:
    """hvd_allgather of each; all run together or none."""
    def start(*arrays: Any) -> Started:
        return _engine.start_grouped_allgather(arrays, _op_name(tensor_name), process_sets.of_id(process_set_id))
    results = _run(start, tensors, [tensor.dtype for tensor in tensors],
                   _label("HorovodGroupedAllgather", tensor_name), name)
    return [_of_rows(result, tensor) for result, tensor in zip(results, tensors)]


def hvd_broadcast(tensor: Any, root_rank: int, process_set_id: int, tensor_name: str, name: str | None = None) -> Any:
    """The tensor of global rank `root_rank`."""
    def start(array: Any) -> Started:
        ops, finish = _engine.start_broadcast(array, np.empty_like(array), root_rank, _op_name(tensor_name),
                                              process_sets.of_id(process_set_id))
        return ops, lambda: [finish()]
    result, = _run(start, [tensor], [tensor.dtype], _label("HorovodBroadcast", tensor_name), name)
    result.set_shape(tensor.shape)
    return result


def hvd_alltoall(tensor: Any, splits: Any, process_set_id: int, tensor_name: str,
                 name: str | None = None) -> tuple[Any, Any]:
    """(The rows received, int32 how many from each member.) Empty splits: equal parts."""
    def start(array: Any, rows: Any) -> Started:
        if rows.ndim != 1:
            raise ValueError("alltoall expects a 1D splits tensor")
        return _engine.start_alltoall(array, [int(count) for count in rows] if rows.size else None,
                                      _op_name(tensor_name), lambda received: np.array(received, np.int32),
                                      process_sets.of_id(process_set_id))
    result, received = _run(start, [tensor, splits], [tensor.dtype, tf.int32],
                            _label("HorovodAlltoall", tensor_name), name)
    received.set_shape([None])
    return _of_rows(result, tensor), received


def hvd_reducescatter(tensor: Any, reduce_op: int, prescale_factor: float, postscale_factor: float,
                      process_set_id: int, tensor_name: str, name: str | None = None) -> Any:
    """This rank's rows of the reduction."""
    def start(array: Any) -> Started:
        ops, finish = _engine.start_reducescatter(array, reduce_op, _op_name(tensor_name), prescale_factor,
                                                  postscale_factor, process_sets.of_id(process_set_id))
        return ops, lambda: [finish()]
    result, = _run(start, [tensor], [tensor.dtype], _label("HorovodReducescatter", tensor_name), name)
    return _of_rows(result, tensor)


def hvd_grouped_reducescatter(tensors: Sequence[Any], reduce_op: int, prescale_factor: float, postscale_factor: float,
                              process_set_id: int, tensor_name: str, name: str | None = None) -> list[Any]:
    """hvd_reducescatter of each; all run together or none."""
    def start(*arrays: Any) -> Started:
        return _engine.start_grouped_reducescatter(arrays, reduce_op, _op_name(tensor_name), prescale_factor,
                                                   postscale_factor, process_sets.of_id(process_set_id))
    results = _run(start, tensors, [tensor.dtype for tensor in tensors],
                   _label("HorovodGroupedReducescatter", tensor_name), name)
    return [_of_rows(result, tensor) for result, tensor in zip(results, tensors)]


def hvd_join(process_set_id: int, name: str | None = None) -> Any:
    """int32 scalar: the rank that joined last."""
    def start(_array: Any) -> Started:
        ops, finish = collectives.start_join(process_sets.of_id(process_set_id))
        return ops, lambda: [np.int32(finish())]
    result, = _run(start, [tf.constant(0)], [tf.int32], "HorovodJoin", name)
    result.set_shape([])
    return result


# ---- questions ----


def _ask(question: Callable[[], int], label: str, name: str | None) -> Any:
    """int32 scalar: the answer when the graph runs."""
    def start() -> Started:
        answer = question()
        return (), lambda: [np.int32(answer)]
    result, = _run(start, [], [tf.int32], label, name)
    result.set_shape([])
    return result


def hvd_size(process_set_id: int, name: str | None = None) -> Any:
    """The number of members."""
    def question() -> int:
        if process_set_id == 0:
            return _session.current().size
        return len(process_sets.of_id(process_set_id).ranks or ())
    return _ask(question, "HorovodSize", name)


def hvd_rank(name: str | None = None) -> Any:
    """This rank."""
    return _ask(lambda: _session.current().rank, "HorovodRank", name)


def hvd_local_size(name: str | None = None) -> Any:
    """The number of ranks on this node."""
    return _ask(lambda: _session.current().local_size, "HorovodLocalSize", name)


def hvd_local_rank(name: str | None = None) -> Any:
    """This rank's number on its node."""
    return _ask(lambda: _session.current().local_rank, "HorovodLocalRank", name)


def hvd_process_set_included(process_set_id: int, name: str | None = None) -> Any:
    """1: this rank is a member."""
    return _ask(lambda: int(bool(process_sets.of_id(process_set_id).included())), "HorovodProcessSetIncluded", name)
