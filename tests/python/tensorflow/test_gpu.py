# SPDX-License-Identifier: Apache-2.0
"""TensorFlow on GPUs: the lines of a script that pin one, and tensors that TensorFlow itself copies to the host and back."""
import glob

import pytest

pytestmark = pytest.mark.skipif(not glob.glob("/dev/nvidia[0-9]*"), reason="needs a GPU, and a TensorFlow that has been built for it")


def begin():
    """As a script begins. The third: what hvd has logged."""
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from hvd.tensorflow import _library
    said = []
    _library.logger.warning = lambda text, *rest: said.append(text % rest)
    hvd.init()
    gpus = tf.config.experimental.list_physical_devices("GPU")
    assert gpus, "this TensorFlow sees no GPU"
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    mine = gpus[hvd.local_rank() % len(gpus)]
    tf.config.experimental.set_visible_devices(mine, "GPU")
    assert tf.config.get_visible_devices("GPU") == [mine] and len(tf.config.list_logical_devices("GPU")) == 1
    return tf, hvd, said


def check_ops():
    tf, hvd, said = begin()
    total = hvd.size() * (hvd.size() + 1) / 2

    def twice(tensor):
        return 2 * hvd.allreduce(tensor, op=hvd.Sum, name="sum")
    with tf.device("/GPU:0"):
        mine = tf.fill([1000], float(hvd.rank() + 1))
        assert "GPU:0" in mine.device
        for function in (twice, tf.function(twice)):
            result = function(mine)
            assert "GPU:0" in result.device and (result.numpy() == 2 * total).all()
        assert hvd.allgather(mine[:1]).numpy().tolist() == [float(rank + 1) for rank in range(hvd.size())]
        assert hvd.broadcast(mine, 1).numpy()[0] == 2.0
    assert len([line for line in said if "memory of the host" in line]) == 1, said


def test_ops(ranks):
    ranks(2, check_ops, timeout=300)


def check_training():
    """Both ways of a script: a tape of its own, and Keras; ranks keep the same model."""
    tf, hvd, _ = begin()
    import horovod.tensorflow.keras as hvd_keras
    variable = tf.Variable(tf.fill([512], float(hvd.rank())))
    hvd.broadcast_variables([variable], 0)

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable) * (1.0 + hvd.rank())
        variable.assign_sub(tape.gradient(loss, [variable])[0])
    step()
    assert "GPU:0" in variable.device and (variable.numpy() == -(1 + hvd.size()) / 2).all()
    tf.random.set_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)), "mse")  # where it could, Keras compiles by XLA
    rows = tf.random.normal([64, 4])
    losses = model.fit(rows, tf.reduce_sum(rows, 1, keepdims=True), batch_size=8, epochs=4, verbose=0,
                       callbacks=[hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)]).history["loss"]
    assert losses[-1] < losses[0]
    weights = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
    assert all(other == weights[0] for other in weights)


def test_training(ranks):
    ranks(2, check_training, timeout=300)
