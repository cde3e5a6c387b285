# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow: gradients, variables and values."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

import hvd.tensorflow as hvd
from hvd._keras.options import Options
from hvd.tensorflow._gradients import addable, divided, make_reduce
from hvd.tensorflow._memory import init  # noqa: F401
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.elastic import run as elastic_run  # noqa: F401
from hvd.tensorflow.util import key_of, variable_of


class Gradients:
    """The gradients of one optimizer: reduced, and with backward_passes_per_step summed up before that."""

    def __init__(self, name: str, options: Options) -> None:
        self._options = options
        self._reduce = make_reduce(
            name, op=options.op, compression=options.compression or Compression.none,
            sparse_as_dense=options.sparse_as_dense, gradient_predivide_factor=options.gradient_predivide_factor,
            groups=options.groups, process_set=options.process_set, device_dense=options.device_dense,
            device_sparse=options.device_sparse, scale_local_gradients=options.scale_local_gradients)
        #: Passes since the last step; made by the first pass.
        self.counter: Any = None
        self._sums: dict[int, Any] = {}

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable stays on its rank."""
        self._reduce.register_local_var(variable)

    @property
    def passes(self) -> int:
        """How many gradients are summed up for one step."""
        return self._options.backward_passes_per_step

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients, in order; None stays None."""
        return self._reduce(grads, variables)

    def accumulate(self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any],
                   pause: Callable[[], Any]) -> Any:
        """Adds gradients to the sums. With the last pass calls step(reduced), and the sums begin anew; before that
        pause(). What they return may be an op to wait for. Variables that either needs must exist already."""
        dense = [addable(grad, self._options.sparse_as_dense) for grad in grads]
        self._make_variables(dense, variables)
        sums = [self._sums.get(key_of(variable)) for variable in variables]
        added = [total.assign_add(grad, read_value=False) for total, grad in zip(sums, dense) if grad is not None]
        with tf.control_dependencies(_ops_of(added)):
            last = tf.equal(self.counter.assign_add(1), self.passes)
        return tf.cond(last, lambda: _done(self._step(sums, variables, step)), lambda: _done([pause()]))

    def _make_variables(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        new = []
        with tf.init_scope():
            if self.counter is None:
                self.counter = tf.Variable(0, trainable=False, dtype=tf.int32, name="hvd_passes")
                new.append(self.counter)
            for grad, variable in zip(grads, variables):
                if grad is not None and key_of(variable) not in self._sums:
                    total = tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False, name="hvd_gradient_sum")
                    self._sums[key_of(variable)] = total
                    new.append(total)
        if new and in_graph():  # Keras gives values to variables of its own only
            session_now = getattr(tf.compat.v1.keras.backend, "get_session", tf.compat.v1.get_default_session)()
            if session_now is not None:
                session_now.run([variable.initializer for variable in new])

    def _step(self, sums: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any]) -> list[Any]:
        grads = [None if total is None else total.read_value() for total in sums]
        reduced = self.reduce(grads, variables)
        if self._options.average_aggregated_gradients:
            reduced = [divided(grad, self.passes) for grad in reduced]
        with tf.control_dependencies(_ops_of(reduced)):
            cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in sums if total is not None]
            cleared.append(self.counter.assign(0, read_value=False))
        return [step(reduced), *cleared]


def _ops_of(results: Iterable[Any]) -> list[Any]:
    """What a graph of TensorFlow 1 has to be told to wait for; elsewhere ops are in order anyway."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return []
    return [result for result in results if isinstance(result, (tf.Tensor, tf.Operation))]


def _done(results: Iterable[Any]) -> Any:
    with tf.control_dependencies(_ops_of(results)):
        return tf.constant(True)


def count_step(iterations: Any) -> Any:
    """Adds one to an optimizer's counter of steps."""
    return variable_of(iterations).assign_add(1, read_value=False)


def outside_functions() -> Any:
    """Within it variables are made that outlive a tf.function or a branch of tf.cond."""
    return tf.init_scope()


def in_graph() -> bool:
    """Whether this is TensorFlow 1's way: a graph, and a session to run it."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def broadcast_variables(variables: Sequence[Any], root_rank: int, device: str = "") -> None:
    """Gives every rank's variables the values of the global rank `root_rank`'s."""
    with tf.device(device or None):
        hvd.broadcast_variables([variable_of(variable) for variable in variables], root_rank=root_rank)


def key(variable: Any) -> int:
    """The same number for the same variable, however it is wrapped."""
    return key_of(variable)


# ---- values ----


def session(keras: Any) -> Any:
    """The session of a Keras under TensorFlow 1."""
    backend = getattr(keras, "src", keras).backend
    return getattr(backend, "get_session", tf.compat.v1.keras.backend.get_session)()


def _evaluated(keras: Any, result: Any) -> Any:
    return session(keras).run(result) if in_graph() else result


def broadcast_global_variables(keras: Any, root_rank: int) -> Any:
    """hvd.tensorflow.broadcast_global_variables, run in Keras' session."""
    return _evaluated(keras, hvd.broadcast_global_variables(root_rank))


def allreduce(keras: Any, value: Any, name: str | None, average: bool | None, prescale_factor: float,
              postscale_factor: float, op: int | None, compression: Any) -> Any:
    """The reduction of a value: a tensor; in a graph of TensorFlow 1 an array."""
    return _evaluated(keras, hvd.allreduce(tf.convert_to_tensor(value), average=average, op=op, name=name,
                                           prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                                           compression=compression or Compression.none))


def allgather(keras: Any, value: Any, name: str | None) -> Any:
    """All ranks' rows, in order."""
    return _evaluated(keras, hvd.allgather(tf.convert_to_tensor(value), name=name))


def broadcast(keras: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The value of the global rank `root_rank`."""
    return _evaluated(keras, hvd.broadcast(tf.convert_to_tensor(value), root_rank, name=name))


def reducescatter(keras: Any, value: Any, name: str | None, op: int) -> Any:
    """This rank's rows of the reduction."""
    return _evaluated(keras, hvd.reducescatter(tf.convert_to_tensor(value), op=op, name=name))
