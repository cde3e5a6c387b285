# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: optimizers of TensorFlow 1 are wrapped here, all others in hvd.tensorflow.keras."""
from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd.basics import Adasum, Average, rank
from hvd.process_sets import ProcessSet, global_process_set
from hvd.tensorflow._gradients import Reduce, make_reduce
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

_V1Optimizer = tf.compat.v1.train.Optimizer


class _Wrapper(_V1Optimizer):
    """An optimizer around another one of TensorFlow 1, which does the steps and has the state."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(use_locking, name)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own."""
        return self._optimizer.variables(*args, **kwargs)


class _DistributedOptimizer(_Wrapper):
    """Reduces the gradients that the other one computes."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, reduce: Reduce,
                 aggregation: LocalGradientAggregationHelper | None) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reduce, self._aggregation = reduce, aggregation

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced any more."""
        (self._aggregation or self._reduce).register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """(reduced gradient, variable) for each variable; in a graph, where backward_passes_per_step is above 1, reduced in
        every so many runs. Eagerly it blocks until all ranks are here."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        reduce = self._aggregation.compute_gradients if self._aggregation else self._reduce
        return list(zip(reduce(grads, variables), variables))

    def _allreduce_grads(self, grads: Any, vars: Any = None,  # pylint: disable=redefined-builtin
                         use_generic_names: bool = False) -> list[Any]:
        """Reduced gradients, for programs that clip or sum up between this and apply_gradients(): Horovod's name."""
        grads = list(grads)
        return self._reduce(grads, grads if vars is None else list(vars), use_generic_names or vars is None)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """As the optimizer's own; only in the runs in which compute_gradients() has reduced."""
        grads_and_vars = list(grads_and_vars)
        if self._aggregation is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        return self._aggregation.apply_gradients(
            lambda: self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name),
            self._optimizer, grads_and_vars, global_step=global_step)


class _DistributedAdasumOptimizer(_Wrapper):
    """Lets the other one step by this rank's gradients, and combines by Adasum what became of the variables since the last
    combination, every `passes` steps. Each variable has a slot "delta_start": its value then."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, reduce: Reduce, passes: int) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reduce, self._passes = reduce, passes

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """An op that steps; it combines in every `passes`-th run. Eagerly it blocks then until all ranks are here."""
        pairs = list(grads_and_vars)
        variables = [variable for grad, variable in pairs if grad is not None]
        with tf.name_scope(self._name):
            if not tf.executing_eagerly():
                return self._apply_in_graph(pairs, variables, global_step, name)
            starts = [variable.read_value() for variable in variables]
            self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            return self._combine(variables, starts)

    def _combine(self, variables: list[Any], starts: list[Any]) -> Any:
        """variable = start + Adasum of what was done to it."""
        combined = self._reduce([variable.read_value() - start for variable, start in zip(variables, starts)], variables)
        return tf.group(*[variable.assign(start + delta)
                          for variable, start, delta in zip(variables, starts, combined)])

    def _apply_in_graph(self, pairs: list[Any], variables: list[Any], global_step: Any, name: str | None) -> Any:
        """The starts are in slots, also for one pass: what is read of a ref variable changes with it."""
        count = self._counter()
        slots = [self._zeros_slot(variable, "delta_start", self._name) for variable in variables]

        def begin() -> Any:
            return tf.group(*[slot.assign(variable.read_value()) for slot, variable in zip(slots, variables)])
        begun = tf.cond(tf.equal(count.read_value(), 0), _as_tensor(begin), _as_tensor(tf.no_op))
        with tf.control_dependencies([begun]):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([stepped]):
            now = tf.identity(count.assign((count + 1) % self._passes))

        def combine() -> Any:
            with tf.control_dependencies([now]):
                return self._combine(variables, [slot.read_value() for slot in slots])
        return tf.group(tf.cond(tf.equal(now, 0), _as_tensor(combine), _as_tensor(tf.no_op)))

    def _counter(self) -> Any:
        with tf.compat.v1.variable_scope(self._name, reuse=tf.compat.v1.AUTO_REUSE):
            return tf.compat.v1.get_variable("step_count", shape=(), dtype=tf.int64, trainable=False,
                                             initializer=tf.compat.v1.zeros_initializer())

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """A slot of this optimizer or of the other one."""
        own = _V1Optimizer.get_slot(self, *args, **kwargs)
        return self._optimizer.get_slot(*args, **kwargs) if own is None else own

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Those of both."""
        return _V1Optimizer.get_slot_names(self) + self._optimizer.get_slot_names(*args, **kwargs)


def _as_tensor(branch: Any) -> Any:
    """A branch for tf.cond that runs the op that `branch` makes."""
    def with_result() -> Any:
        with tf.control_dependencies([branch()]):
            return tf.constant(True)
    return with_result


def _check(optimizer: Any, op: int, passes: int, average_aggregated_gradients: bool) -> None:
    if isinstance(optimizer, type) or not (hasattr(optimizer, "apply_gradients") or hasattr(optimizer, "apply")):
        raise ValueError(f"DistributedOptimizer needs an optimizer, not {optimizer!r}")
    if isinstance(optimizer, _Wrapper):
        raise ValueError(f"DistributedOptimizer: {optimizer.get_name()} is distributed already; wrap an optimizer once, or "
                         "gradients are reduced twice")
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if not isinstance(passes, int) or passes < 1:
        raise ValueError("backward_passes_per_step must be > 0")


def DistributedOptimizer(optimizer: Any, name: str | None = None, use_locking: bool = False, device_dense: str = "",
                         device_sparse: str = "", compression: Any = Compression.none, sparse_as_dense: bool = False,
                         backward_passes_per_step: int = 1, op: int = Average, gradient_predivide_factor: float = 1.0,
                         average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
                         process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True) -> Any:
    """An optimizer that steps by gradients reduced (Average by default) over the ranks of `process_set`.

    optimizer: of tf.compat.v1.train, or of Keras (then hvd.tensorflow.keras.DistributedOptimizer, with all arguments).
    name: what ops are named after; "Distributed" and the optimizer's class by default. use_locking: of TensorFlow 1.
    device_dense, device_sparse: devices to place the ops on. compression: what gradients are cast to for the way.
    sparse_as_dense: IndexedSlices are made dense first. backward_passes_per_step: gradients of so many runs are added up
        before they are reduced and applied; average_aggregated_gradients divides them by that number.
    op: Average, Sum, Min, Max, Product; with Adasum the steps are combined, not the gradients (TensorFlow 1).
    gradient_predivide_factor: an average divides by it before the sum, and by the rest after it.
    groups: so many groups of gradients, or lists of variables, whose gradients are reduced together; num_groups is its
        deprecated form. scale_local_gradients: gradients of variables given to register_local_var() are divided by the
        set's size.
    ValueError: no optimizer, one that is distributed already, arguments that contradict each other."""
    _check(optimizer, op, backward_passes_per_step, average_aggregated_gradients)
    if not isinstance(optimizer, _V1Optimizer):
        from hvd.tensorflow import keras  # pylint: disable=import-outside-toplevel
        return keras.DistributedOptimizer(
            optimizer, name=name, device_dense=device_dense, device_sparse=device_sparse, compression=compression,
            sparse_as_dense=sparse_as_dense, gradient_predivide_factor=gradient_predivide_factor, op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients, num_groups=num_groups, groups=groups,
            process_set=process_set, scale_local_gradients=scale_local_gradients)
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise ValueError("backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with eager execution.")
    kind = type(optimizer).__name__
    name = name or (f"DistributedDelta{kind}" if op == Adasum else f"Distributed{kind}")
    reduce = make_reduce(name, op, compression, sparse_as_dense, gradient_predivide_factor, num_groups, groups,
                         process_set, device_dense, device_sparse, scale_local_gradients)
    if op == Adasum:
        return _DistributedAdasumOptimizer(optimizer, name, use_locking, reduce, backward_passes_per_step)
    aggregation = None
    if backward_passes_per_step > 1:
        aggregation = LocalGradientAggregationHelper(
            backward_passes_per_step, reduce, sparse_as_dense, average_aggregated_gradients, rank(),
            LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY, process_set, scale_local_gradients, name)
    return _DistributedOptimizer(optimizer, name, use_locking, reduce, aggregation)
