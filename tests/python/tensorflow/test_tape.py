# SPDX-License-Identifier: Apache-2.0
"""Gradients reduced over the ranks: DistributedGradientTape with every argument, eagerly and in tf.function, against what
a single process would compute."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")


def begin() -> Any:
    import hvd.tensorflow as hvd
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    return hvd


def both_ways(call: Callable[[], Any], traces: int = 1) -> list[Any]:
    """What `call` gives eagerly and in a tf.function that is traced so many times."""
    function = tf.function(lambda _shape: call())
    return [call(), *(function(tf.zeros([trace])) for trace in range(traces))]


def plain(gradient: Any) -> Any:
    """A gradient's values as an array; None stays None."""
    return None if gradient is None else tf.convert_to_tensor(gradient).numpy()


def assert_gradients(got: Any, expected: Any) -> None:
    assert len(got) == len(expected)
    for gradient, wanted in zip(got, expected):
        if wanted is None:
            assert gradient is None
        else:
            np.testing.assert_allclose(plain(gradient), wanted, rtol=1e-6)


class Problem:
    """Variables whose gradients are known: of `dense` rank + 1 everywhere, of `table` rows rank and rank + 1."""

    def __init__(self, hvd: Any) -> None:
        self.hvd = hvd
        self.dense = tf.Variable(tf.ones([2, 3]), name="dense_1/kernel")
        self.table = tf.Variable(tf.ones([hvd.size() + 1, 2]), name="table")
        self.unused = tf.Variable(1.0, name="unused")
        self.half = tf.Variable(tf.ones([4], tf.float16), name="half")
        self.all = [self.dense, self.table, self.unused, self.half]

    def record(self, tape: Any) -> Any:
        rank = self.hvd.rank()
        with tape:
            parts = (tf.reduce_sum(self.dense * (rank + 1.0)), tf.reduce_sum(tf.gather(self.table, [rank, rank + 1])),
                     tf.cast(tf.reduce_sum(self.half), tf.float32))
            return tf.add_n(parts)

    def of_rank(self, rank: int) -> list[Any]:
        table = np.zeros(self.table.shape)
        table[rank:rank + 2] = 1
        return [np.full([2, 3], rank + 1.0), table, None, np.ones([4])]

    def combined(self, combine: Callable[[Any], Any], ranks: list[int]) -> list[Any]:
        of_ranks = [self.of_rank(rank) for rank in ranks]
        return [None if parts[0] is None else combine(np.stack(parts)) for parts in zip(*of_ranks)]

    def gradients(self, sources: Any = None, **arguments: Any) -> Any:
        tape = tf.GradientTape()
        loss = self.record(tape)
        return self.hvd.DistributedGradientTape(tape, **arguments).gradient(loss, self.all if sources is None else sources)


_mean = functools.partial(np.mean, axis=0)
_sum = functools.partial(np.sum, axis=0)


def check_arguments(hvd: Any, problem: Problem) -> None:
    everybody = list(range(hvd.size()))
    average, total = problem.combined(_mean, everybody), problem.combined(_sum, everybody)
    for arguments in ({}, {"sparse_as_dense": True}, {"compression": hvd.Compression.fp16},
                      {"compression": hvd.Compression.bf16}, {"gradient_predivide_factor": 4.0}, {"groups": 2},
                      {"groups": [[problem.half, problem.dense], [problem.unused]]}, {"device_dense": "/cpu:0"},
                      {"device_sparse": "/cpu:0"}):
        for got in both_ways(functools.partial(problem.gradients, **arguments), 1 if arguments else 2):
            assert_gradients(got, average)
            assert isinstance(got[1], tf.IndexedSlices) == ("sparse_as_dense" not in arguments)
    for got in both_ways(functools.partial(problem.gradients, op=hvd.Sum)):
        assert_gradients(got, total)
    for got in both_ways(functools.partial(problem.gradients, op=hvd.Max, sparse_as_dense=True)):
        assert_gradients(got, problem.combined(functools.partial(np.max, axis=0), everybody))


def check_structures(hvd: Any, problem: Problem) -> None:
    expected = problem.combined(_mean, list(range(hvd.size())))
    np.testing.assert_allclose(plain(problem.gradients(problem.dense)), expected[0])
    by_name = problem.gradients({"a": problem.half, "b": [problem.dense, problem.dense]}, groups=[[problem.dense]])
    assert_gradients([by_name["a"], *by_name["b"]], [expected[3], expected[0], expected[0]])


def check_recording(hvd: Any, problem: Problem) -> None:
    """One tape, wrapped before it records or after; persistent or not."""
    expected = problem.combined(_mean, list(range(hvd.size())))
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True), op=hvd.Average)
    assert isinstance(tape, tf.GradientTape) and type(tape).__name__ == "GradientTape"
    loss = problem.record(tape)
    for _ in range(2):
        assert_gradients(tape.gradient(loss, problem.all, use_generic_names=True), expected)
    given = tf.GradientTape(persistent=True)
    loss = problem.record(given)
    assert_gradients(hvd.DistributedGradientTape(given).gradient(loss, problem.all), expected)
    assert_gradients(given.gradient(loss, problem.all), problem.of_rank(hvd.rank()))


def check_local(hvd: Any, problem: Problem) -> None:
    average, own = problem.combined(_mean, list(range(hvd.size()))), problem.of_rank(hvd.rank())
    for scaled in (True, False):
        tape = tf.GradientTape(persistent=True)
        loss = problem.record(tape)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
        tape.register_local_source(problem.dense)
        tape.register_local_source(problem.table)
        by = hvd.size() if scaled else 1
        expected = [own[0] / by, own[1] / by, None, average[3]]
        assert_gradients(tape.gradient(loss, problem.all), expected)
        local, reduced = tape.get_local_and_global_gradients(loss, problem.all)
        assert [variable is known for (variable, _), known in zip(local, problem.all[:2])] == [True, True]
        assert_gradients([gradient for _, gradient in local], expected[:2])
        assert_gradients([gradient for _, gradient in reduced], expected[2:])


def check_layers(hvd: Any) -> None:
    layer = tf.keras.layers.Dense(2, kernel_initializer="ones")
    other = tf.keras.layers.Dense(1, kernel_initializer="ones")
    with pytest.raises(ValueError, match="not built"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[layer])
    with pytest.raises(ValueError, match="Layer type"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers="dense")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(other(layer(tf.fill([1, 3], hvd.rank() + 1.0))))
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
    kernel, _, of_other, _ = tape.gradient(loss, [*layer.trainable_variables, *other.trainable_variables])
    np.testing.assert_allclose(kernel, np.full([3, 2], (hvd.rank() + 1.0) / hvd.size()), rtol=1e-6)
    np.testing.assert_allclose(of_other, np.full([2, 1], 3 * (hvd.size() + 1) / 2), rtol=1e-6)


def check_sets(hvd: Any, problem: Problem) -> None:
    """Members reduce among themselves, the others have their own gradients."""
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 2])
    expected = problem.combined(_mean, [0, 2]) if pair.included() else problem.of_rank(hvd.rank())
    for got in both_ways(functools.partial(problem.gradients, process_set=pair)):
        assert_gradients(got, expected)
    with pytest.raises(ValueError, match="not been registered"):
        problem.gradients(process_set=hvd.ProcessSet([0, 1]))


def check_many(hvd: Any) -> None:
    """More gradients than a group may have."""
    variables = [tf.Variable([float(i)]) for i in range(1100)]
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(variable) * (hvd.rank() + 1.0) for variable in variables])
    for gradient in hvd.DistributedGradientTape(tape).gradient(loss, variables):
        np.testing.assert_allclose(gradient, [(hvd.size() + 1) / 2])


def check_mistakes(hvd: Any, problem: Problem) -> None:
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match="needs a tf.GradientTape"):
        hvd.DistributedGradientTape(problem.all)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    for groups in (-1, "all"):
        with pytest.raises(ValueError, match="groups should be"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    if hvd.size() > 1:
        with pytest.raises(NotImplementedError, match="sparse_as_dense"):
            problem.gradients(op=hvd.Adasum)


class Counting:
    """What an aggregation helper needs of an optimizer."""

    def __init__(self) -> None:
        self.iterations = tf.Variable(0)


def check_aggregation(hvd: Any) -> None:
    """Every second pass is applied, divided by two; eagerly and in a tf.function."""
    from hvd.tensorflow._gradients import make_reduce
    from hvd.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
    for wrap in (lambda function: function, tf.function):
        helper = LocalGradientAggregationHelperEager(2, make_reduce("Helper"), True, True)
        variables, optimizer = [tf.Variable([0.0, 0.0]), tf.Variable([7.0])], Counting()

        @wrap
        def step(x: Any) -> Any:
            rows = tf.IndexedSlices(tf.reshape(x * (hvd.rank() + 1.0), [1]), tf.constant([1]), tf.constant([2]))
            reduced = helper.compute_gradients([rows, None], variables)
            assert reduced[1] is None
            return helper.apply_gradients(lambda: variables[0].assign_sub(reduced[0]), optimizer)
        applied = [bool(step(tf.constant(x))) for x in (1.0, 2.0, 3.0, 4.0)]
        assert applied == [False, True, False, True] and int(optimizer.iterations) == 2
        np.testing.assert_allclose(variables[0], [0.0, -5.0 * (hvd.size() + 1) / 2], rtol=1e-6)
        with pytest.raises(ValueError, match="must be > 0"):
            LocalGradientAggregationHelperEager(0, make_reduce("Helper"), True, True)


def check_everything() -> None:
    hvd = begin()
    problem = Problem(hvd)
    check_arguments(hvd, problem)
    check_structures(hvd, problem)
    check_recording(hvd, problem)
    check_local(hvd, problem)
    check_layers(hvd)
    check_sets(hvd, problem)
    check_many(hvd)
    check_aggregation(hvd)
    check_mistakes(hvd, problem)


def test_a_tape_gives_what_one_process_would_compute_on_all_the_data(ranks: Any) -> None:
    ranks(3, check_everything)


def test_a_job_of_one_rank_computes_what_a_plain_tape_does(ranks: Any) -> None:
    ranks(1, check_everything)


def test_before_init_a_tape_says_so() -> None:
    import hvd.tensorflow as hvd
    if hvd.is_initialized():
        pytest.skip("another test has called init()")
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        hvd.DistributedGradientTape(tape).gradient(loss, [variable])
