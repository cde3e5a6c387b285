# SPDX-License-Identifier: Apache-2.0
"""The small set of the default run: a Horovod script's usual calls, once, on two ranks, and whole scripts on two nodes. The other files
go deep."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import BUILD, clean_environment
from two_nodes import check_that_it_trains


def check_what_a_script_does() -> None:
    import numpy
    import tensorflow as tf

    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras
    hvd.init()
    # TensorFlow refuses these, and lines that pin a GPU (set_visible_devices), once it has opened its devices: init() must not
    # make it do so.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rank = hvd.rank()

    assert hvd.allreduce(tf.constant([1.0 + rank, 2.0]), op=hvd.Sum).numpy().tolist() == [3.0, 4.0]
    assert hvd.allgather(tf.fill([rank + 1, 1], rank)).numpy().tolist() == [[0], [1], [1]]
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}

    variable = tf.Variable([1.0 + rank])
    hvd.broadcast_variables([variable], 0)

    @tf.function
    def slope():  # 32 independent ops on one thread, and the gradient of a loss that differs by rank
        sums = [hvd.allreduce(tf.fill([8], float(i)), name=f"t{i}", op=hvd.Sum) for i in range(32)]
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable) * (2.0 + 2.0 * rank)
        return tf.add_n(sums), tape.gradient(loss, [variable])
    for _ in range(2):
        total, (gradient,) = slope()
        assert total.numpy().tolist() == [2.0 * sum(range(32))] * 8
        assert gradient.numpy().tolist() == [3.0] and variable.numpy().tolist() == [1.0]

    random = numpy.random.default_rng(1 + rank)
    rows = random.normal(0, 1, (16, 4)).astype("float32")
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    history = model.fit(rows, rows.sum(axis=1, keepdims=True), batch_size=4, epochs=3, verbose=0, callbacks=[
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), hvd_keras.callbacks.MetricAverageCallback()])
    assert history.history["loss"][-1] < history.history["loss"][0]
    weights = numpy.concatenate([each.flatten() for each in model.get_weights()])
    assert numpy.array_equal(*hvd.allgather_object(weights)), "the ranks have different models"


def test_what_a_script_does_on_two_ranks(ranks):
    ranks(2, check_what_a_script_does)


@pytest.mark.parametrize("program", ["horovod_tensorflow.py", "horovod_keras.py"])
def test_a_script_trains_on_two_nodes_and_both_have_the_same_model(program):
    check_that_it_trains(program)


def check_word_about_gpus():
    """TensorFlow's own copies of tensors on GPUs are told of once, where it sees GPUs."""
    import modes
    tf, hvd = modes.start()
    from hvd.tensorflow import _library, mpi_ops
    said = []
    _library.logger.warning = said.append
    assert hvd.allreduce(tf.ones(2)).shape == (2,) and not said
    mpi_ops._tell_of_gpus.cache_clear()
    tf.config.get_visible_devices = lambda kind=None: ["/physical_device:GPU:0"]
    for _ in range(2):
        hvd.allreduce(tf.ones(2))
    assert len(said) == 1 and "memory of the host" in said[0], said


def test_where_tensors_of_gpus_go_is_said_once(ranks):
    ranks(1, check_word_about_gpus)


def test_hvdrun_says_that_tensorflow_is_there():
    done = subprocess.run([os.fspath(BUILD / "bin" / "hvdrun"), "--check-build"], text=True, capture_output=True, timeout=60,
                          env=clean_environment(HVDRUN_PYTHON=sys.executable), check=False)
    assert "[X] TensorFlow" in done.stdout, done.stdout + done.stderr
