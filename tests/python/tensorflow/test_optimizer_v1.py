# SPDX-License-Identifier: Apache-2.0
"""TensorFlow-1 style: graphs, sessions, ref and resource variables, DistributedOptimizer around tf.compat.v1 optimizers,
BroadcastGlobalVariablesHook; against what the rule of the optimizer gives by hand."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
v1 = tf.compat.v1

#: Inputs of the steps; rank r gets r more.
STEPS = (1.0, 2.0, 3.0, 4.0)


def begin(resources: bool) -> Any:
    import hvd.tensorflow as hvd
    v1.disable_v2_behavior()
    if resources:
        v1.enable_resource_variables()
    hvd.init()
    return hvd


def session_of(hvd: Any, **arguments: Any) -> Any:
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    return v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")], config=config,
                                             **arguments)


class Problem:
    """loss = x * sum(dense) + sum of rows rank and rank + 1 of a table; on rank 0 everything begins at 0, elsewhere not."""

    def __init__(self, hvd: Any, optimizer: Any, **arguments: Any) -> None:
        self.x = v1.placeholder(tf.float32, [])
        shape = [hvd.size() + 1, 2]
        begin_at = v1.constant_initializer(float(hvd.rank()))
        self.dense = v1.get_variable("dense", [3], initializer=begin_at)
        self.table = v1.get_variable("table", shape, initializer=begin_at)
        v1.get_variable("unused", [], initializer=begin_at)
        rows = tf.gather(self.table, [hvd.rank(), hvd.rank() + 1])
        self.steps = v1.train.get_or_create_global_step()
        self.optimizer = hvd.DistributedOptimizer(optimizer, **arguments)
        self.train = self.optimizer.minimize(self.x * tf.reduce_sum(self.dense) + tf.reduce_sum(rows),
                                             global_step=self.steps)

    def values(self, hvd: Any) -> tuple[list[float], Any, int]:
        """`dense` after each step, the table and the step count after the last."""
        seen = []
        with session_of(hvd) as session:
            for x in STEPS:
                session.run(self.train, {self.x: x + hvd.rank()})
                dense = session.run(self.dense)
                assert np.all(dense == dense[0])
                seen.append(float(dense[0]))
            table, count = session.run([self.table, self.steps])
        return seen, table, int(count)


def in_a_graph(hvd: Any, optimizer: Callable[[], Any], **arguments: Any) -> tuple[list[float], Any, int]:
    with tf.Graph().as_default():
        seen, table, count = Problem(hvd, optimizer(), **arguments).values(hvd)
    for other in hvd.allgather_object((seen, table.tolist(), count)):
        assert other == (seen, table.tolist(), count), "ranks differ"
    return seen, table, count


def rows(hvd: Any) -> Any:
    """The sum of the ranks' gradients of the table."""
    total = np.zeros([hvd.size() + 1, 2])
    for rank in range(hvd.size()):
        total[rank:rank + 2] += 1
    return total


def descent(factor: float = 1.0) -> Any:
    return lambda: v1.train.GradientDescentOptimizer(factor)


def check_reductions(hvd: Any) -> None:
    n = hvd.size()
    mean = -np.cumsum([x + (n - 1) / 2 for x in STEPS])
    for arguments in ({}, {"sparse_as_dense": True}, {"groups": 2}, {"compression": hvd.Compression.fp16},
                      {"gradient_predivide_factor": 2.0, "name": "Mine"}, {"device_dense": "/cpu:0"}):
        seen, table, count = in_a_graph(hvd, descent(), **arguments)
        np.testing.assert_allclose(seen, mean, rtol=1e-6)
        np.testing.assert_allclose(table, -len(STEPS) * rows(hvd) / n, rtol=1e-6)
        assert count == len(STEPS)
    np.testing.assert_allclose(in_a_graph(hvd, descent(), op=hvd.Sum)[0], mean * n, rtol=1e-6)
    squares, expected = 0.1, 0.0
    seen, _, _ = in_a_graph(hvd, lambda: v1.train.AdagradOptimizer(0.5))
    for x, value in zip(STEPS, seen):
        gradient = x + (n - 1) / 2
        squares += gradient ** 2
        expected -= 0.5 * gradient / squares ** 0.5
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def check_accumulation(hvd: Any) -> None:
    """Two passes for each step: nothing moves in the first."""
    n = hvd.size()
    pairs = [STEPS[0] + STEPS[1] + n - 1, STEPS[2] + STEPS[3] + n - 1]
    for average in (False, True):
        by = 2 if average else 1
        seen, table, count = in_a_graph(hvd, descent(), backward_passes_per_step=2, sparse_as_dense=True,
                                        average_aggregated_gradients=average)
        np.testing.assert_allclose(seen, [0, -pairs[0] / by, -pairs[0] / by, -sum(pairs) / by], rtol=1e-6)
        np.testing.assert_allclose(table, -4 * rows(hvd) / n / by, rtol=1e-6)
        assert count == len(STEPS)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="IndexedSlices"):
        Problem(hvd, descent()(), backward_passes_per_step=2)


def check_adasum(hvd: Any) -> None:
    """Steps in the same direction are averaged by Adasum; those at right angles are added."""
    if hvd.size() != 2:
        return
    seen, table, _ = in_a_graph(hvd, descent(), op=hvd.Adasum, sparse_as_dense=True)
    np.testing.assert_allclose(seen, -np.cumsum([x + 0.5 for x in STEPS]), rtol=1e-5)
    assert np.all(table < 0)
    with tf.Graph().as_default():
        problem = Problem(hvd, descent()(), op=hvd.Adasum, sparse_as_dense=True, backward_passes_per_step=2)
        seen, _, _ = problem.values(hvd)
        assert problem.optimizer.get_slot_names() == ["delta_start"]
        assert problem.optimizer.get_slot(problem.dense, "delta_start") is not None
    pairs = [STEPS[0] + STEPS[1], STEPS[2] + STEPS[3]]
    np.testing.assert_allclose(seen[1::2], -np.cumsum([pair + 1 for pair in pairs]), rtol=1e-5)


def check_local(hvd: Any) -> None:
    for scaled in (True, False):
        with tf.Graph().as_default():
            variable = v1.get_variable("own", [2], initializer=v1.zeros_initializer())
            optimizer = hvd.DistributedOptimizer(descent()(), scale_local_gradients=scaled)
            optimizer.register_local_var(variable)
            train = optimizer.minimize(tf.reduce_sum(variable) * (hvd.rank() + 1.0))
            with session_of(hvd) as session:
                session.run(train)
                by = hvd.size() if scaled else 1
                np.testing.assert_allclose(session.run(variable), [-(hvd.rank() + 1.0) / by] * 2)


def check_reduced_before_it_is_clipped(hvd: Any) -> None:
    """As programs do that take the gradients of the optimizer below."""
    with tf.Graph().as_default():
        problem = Problem(hvd, descent()())
        pairs = [(grad, variable) for grad, variable in v1.train.Optimizer.compute_gradients(
            problem.optimizer._optimizer, problem.x * tf.reduce_sum(problem.dense)) if grad is not None]
        grads, variables = zip(*pairs)
        given = [problem.optimizer._allreduce_grads(grads), problem.optimizer._allreduce_grads(grads, variables)]
        with session_of(hvd) as session:
            for reduced in session.run(given, {problem.x: float(hvd.rank())}):
                np.testing.assert_allclose(reduced[0], [(hvd.size() - 1) / 2] * 3)


def check_delegation(hvd: Any) -> None:
    with tf.Graph().as_default():
        problem = Problem(hvd, v1.train.MomentumOptimizer(0.1, 0.9))
        assert problem.optimizer.get_slot_names() == ["momentum"]
        assert problem.optimizer.get_slot(problem.dense, "momentum") is not None
        assert len(problem.optimizer.variables()) == 2
        assert problem.optimizer.get_name() == "DistributedMomentumOptimizer"
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(problem.optimizer)


def check_checkpoint(hvd: Any) -> None:
    """Rank 0 alone has a checkpoint, and all go on from there."""
    folder = tempfile.mkdtemp() if hvd.rank() == 0 else None
    for begin_at in (0, 4):
        with tf.Graph().as_default():
            problem = Problem(hvd, descent()())
            with session_of(hvd, checkpoint_dir=folder, save_checkpoint_steps=100) as session:
                assert session.run(problem.steps) == begin_at
                for x in STEPS:
                    session.run(problem.train, {problem.x: x})
                np.testing.assert_allclose(session.run(problem.dense), [-(1 + begin_at // 4) * sum(STEPS)] * 3)
    assert hvd.rank() != 0 or any(name.startswith("model.ckpt-8") for name in os.listdir(str(folder)))


def check_broadcast(hvd: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(tf.errors.FailedPreconditionError, match="no global variables yet"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default():
        variables = [v1.get_variable(f"v{i}", [2], dtype=dtype, initializer=v1.constant_initializer(hvd.rank()))
                     for i, dtype in enumerate((tf.float32, tf.int64, tf.uint32, tf.complex64))]
        broadcast = hvd.broadcast_variables(variables, hvd.size() - 1)
        assert hvd.broadcast_object(hvd.rank(), root_rank=0) == 0
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(broadcast)
            for value in session.run(variables):
                assert np.all(value == hvd.size() - 1)


def check_everything(resources: bool) -> None:
    hvd = begin(resources)
    check_reductions(hvd)
    check_accumulation(hvd)
    check_adasum(hvd)
    check_local(hvd)
    check_reduced_before_it_is_clipped(hvd)
    check_delegation(hvd)
    check_checkpoint(hvd)
    check_broadcast(hvd)


def check_few() -> None:
    """What may depend on the kind of variables."""
    hvd = begin(resources=True)
    check_accumulation(hvd)
    check_adasum(hvd)
    check_broadcast(hvd)


def test_optimizers_of_tensorflow_1_with_ref_variables(ranks: Any) -> None:
    ranks(2, check_everything, False)


def test_optimizers_of_tensorflow_1_with_resource_variables(ranks: Any) -> None:
    ranks(2, check_few)


def test_optimizers_of_tensorflow_1_alone(ranks: Any) -> None:
    ranks(1, check_everything, False)


def test_what_an_optimizer_refuses() -> None:
    import hvd.tensorflow as hvd
    plain = v1.train.GradientDescentOptimizer(1.0)
    for wrong in ("sgd", v1.train.GradientDescentOptimizer, None):
        with pytest.raises(ValueError, match="needs an optimizer"):
            hvd.DistributedOptimizer(wrong)
    with pytest.raises(ValueError, match="Adasum does not support average_aggregated_gradients"):
        hvd.DistributedOptimizer(plain, op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(ValueError, match="not yet supported for _LegacyOptimizer with eager"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="must be > 0"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)


def check_eagerly() -> None:
    """The same optimizers without graphs."""
    import hvd.tensorflow as hvd
    hvd.init()
    for op, expected in ((hvd.Average, (hvd.size() + 1) / 2), (hvd.Adasum, (hvd.size() + 1) / 2)):
        variable = tf.Variable([0.0, 0.0])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=op)
        optimizer.minimize(lambda: tf.reduce_sum(variable) * (hvd.rank() + 1.0), var_list=[variable])
        np.testing.assert_allclose(variable, [-expected] * 2, rtol=1e-6)


def test_optimizers_of_tensorflow_1_eagerly(ranks: Any) -> None:
    ranks(2, check_eagerly)
