# SPDX-License-Identifier: Apache-2.0
"""What users call beside tapes and optimizers: reductions of everything that is a tensor, broadcasts of variables and
objects, SyncBatchNormalization, and what names exist."""
from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from typing import Any

import numpy as np
import pytest

import conftest

tf = pytest.importorskip("tensorflow")
sys.path.insert(1, str(conftest.SOURCE / "python" / "compat"))

# horovod.md A3.1: what stands in scripts.
NAMES = """allreduce grouped_allreduce reducescatter grouped_reducescatter allgather grouped_allgather broadcast broadcast_
alltoall join size_op rank_op local_size_op local_rank_op process_set_included_op broadcast_variables broadcast_object
broadcast_object_fn allgather_object broadcast_global_variables BroadcastGlobalVariablesHook DistributedOptimizer
DistributedGradientTape PartialDistributedGradientTape Compression elastic init shutdown is_initialized start_timeline
stop_timeline size local_size cross_size rank local_rank cross_rank is_homogeneous mpi_threads_supported mpi_enabled
mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set Average
Sum Adasum Min Max Product LocalGradientAggregationHelper""".split()
#: Signatures as scripts use them, by position.
PARAMETERS = {
    "allreduce": "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name process_set "
                 "ignore_name_scope",
    "grouped_allreduce": "tensors average device_dense device_sparse compression op prescale_factor postscale_factor "
                         "process_set ignore_name_scope name",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
                     "postscale_factor",
    "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set", "allgather_object": "obj session name process_set",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
                            "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups "
                            "groups process_set scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
                               "gradient_predivide_factor num_groups groups process_set scale_local_gradients",
    "PartialDistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
                                      "gradient_predivide_factor num_groups groups process_set local_layers "
                                      "scale_local_gradients"}


def test_names_and_signatures_are_horovods() -> None:
    ours, theirs = importlib.import_module("hvd.tensorflow"), importlib.import_module("horovod.tensorflow")
    for name in NAMES:
        assert hasattr(ours, name) and hasattr(theirs, name), name
    for name, parameters in PARAMETERS.items():
        assert list(inspect.signature(getattr(ours, name)).parameters) == parameters.split(), name
    for part in "compression functions gradient_aggregation gradient_aggregation_eager elastic util mpi_ops".split():
        importlib.import_module(f"horovod.tensorflow.{part}")
    assert not hasattr(ours, "no_such_name")
    with pytest.raises(ImportError, match="tf.data.experimental.service"):
        importlib.import_module("horovod.tensorflow.data.compute_service")


def begin() -> Any:
    import hvd.tensorflow as hvd
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    return hvd


# ---- reductions ----


def check_dense(hvd: Any) -> None:
    rank, n = hvd.rank(), hvd.size()
    mine = tf.fill([4, 2], rank + 1.0)
    total = n * (n + 1) / 2
    np.testing.assert_allclose(hvd.allreduce(mine), np.full([4, 2], total / n))
    np.testing.assert_allclose(hvd.allreduce(tf.Variable(mine), op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25,
                                             device_dense="/cpu:0"), np.full([4, 2], total / 2))
    np.testing.assert_allclose(hvd.allreduce([1.0, 2.0], op=hvd.Sum, name="a list"), [n, 2.0 * n])
    with pytest.warns(DeprecationWarning, match="average"):
        np.testing.assert_allclose(hvd.allreduce(mine, average=False), np.full([4, 2], total))
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.int32):
            result = hvd.allreduce(tf.cast(mine, dtype), op=hvd.Sum, compression=compression)
            assert result.dtype == dtype
            np.testing.assert_allclose(tf.cast(result, tf.float64), np.full([4, 2], total))
    rows = hvd.reducescatter(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(rows, np.full([4 // n, 2], total))
    several = hvd.grouped_reducescatter([mine, tf.cast(mine, tf.int64)], op=hvd.Sum)
    assert [part.dtype for part in several] == [tf.float32, tf.int64] and several[1].shape == [4 // n, 2]
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_reducescatter(()) == ()


def check_what_other_packages_build_on(hvd: Any) -> None:
    theirs = importlib.import_module("horovod.tensorflow")
    assert issubclass(tf.compat.v1.train.GradientDescentOptimizer, theirs._LegacyOptimizer)
    for groups in (0, None, 1):
        reduce = theirs._make_allreduce_grads_fn("Custom", "", "", hvd.Compression.none, False, hvd.Sum, 1.0, groups)
        variable = tf.Variable([0.0])
        for call in (reduce, tf.function(reduce)):
            for more in ((), ([variable, variable],)):
                total, nothing = call([tf.constant([float(hvd.rank())]), None], *more)
                assert float(total[0]) == sum(range(hvd.size())) and nothing is None


def check_slices(hvd: Any) -> None:
    """IndexedSlices alone and beside others, eagerly and in a graph; averages of whole numbers are not whole."""
    rank, n = hvd.rank(), hvd.size()
    expected = np.zeros([n + 2, 3])
    for other in range(n):
        expected[other:other + 2] += other + 1

    def slices(dtype: Any) -> Any:
        return tf.IndexedSlices(tf.cast(tf.fill([2, 3], rank + 1), dtype), tf.constant([rank, rank + 1]),
                                tf.constant([n + 2, 3]))

    def reduce_all(dtype: Any) -> Any:
        both = hvd.grouped_allreduce([tf.ones([2]), slices(dtype), tf.ones([3], tf.int32), slices(dtype)], op=hvd.Sum)
        return hvd.allreduce(slices(dtype)), hvd.allreduce(slices(dtype), op=hvd.Sum, postscale_factor=2.0), *both
    for dtype in (tf.float32, tf.int32):
        for call in (reduce_all, tf.function(reduce_all)):
            mean, double, ones, first, whole, second = call(dtype)
            np.testing.assert_allclose(tf.convert_to_tensor(mean), expected / n, rtol=1e-6)
            np.testing.assert_allclose(tf.convert_to_tensor(double), expected * 2)
            np.testing.assert_allclose(ones, [n] * 2)
            np.testing.assert_allclose(whole, [n] * 3)
            for one in (first, second):
                assert one.dtype == dtype
                np.testing.assert_allclose(tf.convert_to_tensor(one), expected)
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(slices(tf.float32), op=op)


def check_what_is_no_tensor(hvd: Any) -> None:
    ragged, sparse = tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[1.0, 0.0]])
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        for wrong in (ragged, sparse, tf.constant(["text"])):
            for call in (lambda: hvd.allreduce(wrong, compression=compression),
                         lambda: hvd.grouped_allreduce([wrong], compression=compression),
                         lambda: hvd.reducescatter(wrong, compression=compression)):
                with pytest.raises(TypeError, match="dense tensors|not supported"):
                    call()


# ---- variables and objects ----


def check_variables(hvd: Any) -> None:
    rank, root = hvd.rank(), hvd.size() - 1
    types = (tf.float32, tf.bfloat16, tf.int64, tf.bool, tf.uint32, tf.uint64, tf.complex64, tf.complex128)

    def made() -> list[Any]:
        scalars = [tf.Variable(tf.cast(rank, dtype)) for dtype in types]
        arrays = [tf.Variable(tf.cast(tf.fill([2, 3], rank), dtype)) for dtype in types]
        of_keras = getattr(tf.keras, "Variable", tf.Variable)(np.full([2], rank, "float32"))
        return [*scalars, *arrays, tf.Variable(tf.zeros([0, 2])), of_keras,
                tf.Variable([float(rank)], shape=tf.TensorShape(None))]
    ways: list[Any] = [lambda variables: hvd.broadcast_variables(variables, root),
                       lambda variables: hvd.broadcast_variables(iter(variables), root_rank=root, inplace=True),
                       lambda variables: tf.function(lambda: hvd.broadcast_variables(variables, root))()]
    for way in ways:
        variables = made()
        way(variables)
        for variable in variables:
            value = tf.convert_to_tensor(variable)
            assert np.all(value.numpy() == tf.cast(root, value.dtype).numpy()), variable


def check_wrong_variables(hvd: Any) -> None:
    for wrong, says in ((tf.Variable("text"), "strings"), (tf.ones([2]), "needs variables")):
        with pytest.raises(ValueError, match=says):
            hvd.broadcast_variables([wrong], 0)
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hvd").addHandler(handler)
    hvd.broadcast_variables([], 0)
    logging.getLogger("hvd").removeHandler(handler)
    assert any("nothing was broadcast" in text for text in records)
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"rank 0 has 0, rank 1 has 1.*build it"):
            hvd.broadcast_variables([tf.Variable(1.0) for _ in range(hvd.rank())], 0)
        with pytest.raises(ValueError, match=r"rank 0 has 1, rank 1 has 2.*build it"):
            hvd.broadcast_variables([tf.Variable(1.0) for _ in range(hvd.rank() + 1)], 0)
        with pytest.raises(ValueError, match=r"variable 1: rank 0 has float32 \[1\].*rank 1 has float32 \[2\]"):
            hvd.broadcast_variables([tf.Variable(1.0), tf.Variable([1.0] * (hvd.rank() + 1))], 0)
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast_variables([tf.Variable(1.0)], hvd.size())


def check_objects(hvd: Any) -> None:
    root = hvd.size() - 1
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=root) == {"rank": root}
    assert hvd.broadcast_object_fn(root_rank=root)([hvd.rank()]) == [root]
    assert hvd.allgather_object("x" * hvd.rank(), name="lengths") == ["x" * rank for rank in range(hvd.size())]


# ---- elastic's states ----


def follow_a_state(hvd: Any, state: Any, values: Any, change: Any) -> None:
    """sync() makes all rank 0's; restore() goes back to that, save() makes now that. `values`: the numbers that the state
    keeps, `change` sets all of them."""
    assert set(values()) == {float(hvd.rank())} and state.epoch == 10 + hvd.rank()
    state.sync()
    assert set(values()) == {0.0} and (state.epoch, state.seen) == (10, [0])
    change(7.0)
    state.epoch = 11
    state.seen.append(1)
    state.restore()
    assert set(values()) == {0.0} and (state.epoch, state.seen) == (10, [0])
    change(8.0)
    state.epoch = 12
    state.commit()
    change(9.0)
    state.restore()
    assert set(values()) == {8.0} and state.epoch == 12


def check_states(hvd: Any) -> None:
    from hvd.tensorflow import elastic
    rank = hvd.rank()

    def own() -> dict[str, Any]:
        return {"epoch": 10 + rank, "seen": [rank]}
    variables = [tf.Variable(tf.fill([2, 3], float(rank))), tf.Variable(float(rank), dtype=tf.float64)]

    def numbers(arrays: Any) -> list[float]:
        return [float(number) for array in arrays for number in np.ravel(array)]
    follow_a_state(hvd, elastic.TensorFlowState(variables, **own()), lambda: numbers(one.numpy() for one in variables),
                   lambda number: [one.assign(tf.fill(one.shape, tf.cast(number, one.dtype))) for one in variables])
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, use_bias=False)])
    with pytest.raises(ValueError, match="has no variables yet"):
        elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD())
    model.build((None, 3))
    model.set_weights([np.full([3, 2], float(rank))])
    follow_a_state(hvd, elastic.TensorFlowKerasState(model, **own()), lambda: numbers(model.get_weights()),
                   lambda number: model.set_weights([np.full([3, 2], number)]))
    state = elastic.TensorFlowState([tf.Variable(float(rank))], epoch=rank)
    assert elastic.run(lambda given: (given.epoch, float(given.variables[0])))(state) == (0, 0.0)
    with pytest.raises(ValueError, match="no variables to keep"):
        elastic.TensorFlowState()
    state.on_hosts_updated(0.0, 0)
    state.reset()
    if hvd.size() > 1:
        check_states_that_differ(hvd, elastic)


def check_states_that_differ(hvd: Any, elastic: Any) -> None:
    for shapes, text in (([[2]] * (2 if hvd.rank() == 0 else 1), r"different numbers of variables \(rank 0 has 2, rank 1 has 1"),
                         ([[2], [3 + hvd.rank()]], r"disagree on variable 1: rank 0 has float32 \[3\]")):
        state = elastic.TensorFlowState([tf.Variable(tf.zeros(shape)) for shape in shapes])
        with pytest.raises(ValueError, match=text):
            state.sync()
    state.variables = state.variables[:1]
    with pytest.raises(ValueError, match="2 variables were saved, and now there are 1"):
        state.restore()


def check_states_of_sessions(hvd: Any) -> None:
    """In graphs of TensorFlow 1, of both kinds of variables, though the graph is finalized when the state is made."""
    v1 = tf.compat.v1
    for resource in (False, True):
        with tf.Graph().as_default() as graph, v1.Session() as session:
            variables = [v1.get_variable(f"of_{number}", initializer=float(hvd.rank()), use_resource=resource)
                         for number in range(2)]
            place = v1.placeholder(tf.float32, [])
            assign = [variable.assign(place) for variable in variables]
            session.run(v1.global_variables_initializer())
            graph.finalize()
            state = hvd.elastic.TensorFlowState(epoch=10 + hvd.rank(), seen=[hvd.rank()])
            follow_a_state(hvd, state, lambda: session.run(variables),
                           lambda number: session.run(assign, {place: number}))
    with tf.Graph().as_default():
        v1.get_variable("without", initializer=1.0)
        with pytest.raises(ValueError, match="pass the session"):
            hvd.elastic.TensorFlowState()
        with pytest.raises(ValueError, match="backend=keras.backend"):
            hvd.elastic.TensorFlowKerasState(tf.keras.Sequential())


# ---- SyncBatchNormalization ----


def check_batch_norm(hvd: Any) -> None:
    """Against one process with all the data: batches of different sizes, and a mean at which float32 sums would lose."""
    rank, n = hvd.rank(), hvd.size()
    generator = np.random.default_rng(0)
    data, weights = generator.normal(100, 1, (3 * n, 2, 3)), generator.normal(size=(3 * n, 2, 3))
    bounds = [0, *(3 * n - 2 + i for i in range(n - 1)), 3 * n]
    own = slice(bounds[rank], bounds[rank + 1])

    def run(layer: Any, inputs: Any, by: Any) -> list[Any]:
        inputs = tf.convert_to_tensor(inputs, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            loss = tf.reduce_sum(outputs * tf.cast(by, tf.float32))
        gradients = tape.gradient(loss, [inputs, *layer.trainable_variables])
        return [outputs, gradients[0], *(hvd.allreduce(one, op=hvd.Sum) for one in gradients[1:])]
    plain, together = tf.keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    expected = run(plain, data, weights)
    for layer, got in ((together, run(together, data[own], weights[own])),
                       (again := hvd.SyncBatchNormalization(), tf.function(lambda: run(again, data[own], weights[own]))())):
        for result, wanted in zip(got, [expected[0][own], expected[1][own], expected[2] / n, expected[3] / n]):
            np.testing.assert_allclose(result, wanted, atol=2e-4)
        for one, other in zip(layer.non_trainable_variables, plain.non_trainable_variables):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(together(data, training=False), plain(data, training=False), atol=1e-4)
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            hvd.SyncBatchNormalization(fused=fused)
    assert hvd.SyncBatchNormalization.from_config(together.get_config()).name == together.name


def check_everything() -> None:
    hvd = begin()
    check_dense(hvd)
    check_what_other_packages_build_on(hvd)
    check_slices(hvd)
    check_what_is_no_tensor(hvd)
    check_variables(hvd)
    check_wrong_variables(hvd)
    check_objects(hvd)
    check_states(hvd)
    check_states_of_sessions(hvd)
    check_batch_norm(hvd)


def test_what_users_call_with_two_ranks(ranks: Any) -> None:
    ranks(2, check_everything)


def test_what_users_call_with_one_rank(ranks: Any) -> None:
    ranks(1, check_everything)


@pytest.mark.skipif(not hasattr(tf.keras, "Variable") or tf.version.VERSION < "2.16", reason="Keras 2 is tf.keras here")
def test_batch_norm_of_tf_keras(ranks: Any) -> None:
    pytest.importorskip("tf_keras")
    ranks(2, check_legacy_batch_norm, env={"TF_USE_LEGACY_KERAS": "1"})


def check_legacy_batch_norm() -> None:
    hvd = begin()
    assert "tf_keras" in hvd.SyncBatchNormalization.__mro__[1].__module__ and "TF_USE_LEGACY_KERAS" in os.environ
    check_batch_norm(hvd)
