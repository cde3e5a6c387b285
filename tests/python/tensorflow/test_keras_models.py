# SPDX-License-Identifier: Apache-2.0
"""Whole models with a distributed optimizer: fit() in all its ways, mixed precision, saving and loading."""
import contextlib
import logging
import os
import tempfile

import numpy as np
import pytest

from keras_ranks import assert_passed, cases_of, is_keras_3, launch

RANDOM = np.random.default_rng(7)
X, Y = RANDOM.normal(size=(64, 6)).astype("float32"), RANDOM.normal(size=(64, 1)).astype("float32")


def make_model(keras):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 6))
    return model


def share(array, rank, batch=8, size=2):
    """The rows of a rank, such that batches of `batch` on each rank together are those of one process with more."""
    return array.reshape(-1, size, batch, *array.shape[1:])[:, rank].reshape(-1, *array.shape[1:])


def assert_fits_alike(keras, hvd, make, model=make_model, rtol=1e-4, wrapped=None, fit=None, **compiled):
    """fit() of ranks on shares is fit() of one process on everything."""
    alone, ours = model(keras), model(keras)
    alone.compile(optimizer=make(), loss="mse", run_eagerly=True)  # sooner done than traced
    alone.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    ours.compile(optimizer=hvd.DistributedOptimizer(make(), **(wrapped or {})), loss=keras.losses.MeanSquaredError(),
                 **compiled)
    ours.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=8, epochs=2, shuffle=False, verbose=0, **(fit or {}))
    for one, other in zip(ours.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5)
    return ours


class Lines(logging.Handler):
    """The lines of the logger "hvd"."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


# ---- fit ----


def case_fit(keras, hvd):
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.Adam(0.05, global_clipnorm=1.0))


def case_fit_with_jit_compile(keras, hvd):
    """Set by hand it would make XLA compile our ops, which it cannot."""
    lines = Lines()
    logging.getLogger("hvd").addHandler(lines)
    model = assert_fits_alike(keras, hvd, lambda: keras.optimizers.SGD(0.1), jit_compile=True)
    assert not model.jit_compile
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.SGD(0.1), jit_compile=True)
    logging.getLogger("hvd").removeHandler(lines)
    assert len([line for line in lines.lines if "jit_compile is off" in line]) == 1
    plain = make_model(keras)
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=True)
    assert plain.jit_compile
    plain.optimizer = hvd.DistributedOptimizer(plain.optimizer)
    plain.fit(X[:16], Y[:16], batch_size=8, verbose=0)


def case_fit_eagerly(keras, hvd):
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.Adam(0.05), run_eagerly=True)


def case_fit_with_several_steps_per_execution(keras, hvd):
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.SGD(0.1, momentum=0.5), steps_per_execution=4)


def case_fit_with_a_schedule_and_moving_averages(keras, hvd):
    schedule = keras.optimizers.schedules.CosineDecay(0.2, 8)
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.Adam(schedule, use_ema=True, ema_momentum=0.5))


def case_fit_with_a_legacy_optimizer(keras, hvd):
    if is_keras_3(keras):
        pytest.skip("only Keras 2 has it")
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.legacy.Adam(0.05, clipnorm=1.0))


def case_a_train_step_of_ones_own(keras, hvd):
    import tensorflow as tf

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss}

    def model(keras):
        keras.utils.set_random_seed(3)
        made = Own()
        made(X[:1])
        return made
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.SGD(0.1), model=model)


def case_fit_with_accumulation(keras, hvd):
    """Two passes of 8 rows on two ranks are a step of 32 rows."""
    alone, ours = make_model(keras), make_model(keras)
    alone.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", run_eagerly=True)
    alone.fit(X, Y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    ours.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), backward_passes_per_step=2,
                                                    average_aggregated_gradients=True), loss="mse")
    ours.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=8, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(ours.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert int(ours.optimizer.iterations) == 8


def case_an_embedding(keras, hvd):
    """Its gradients are IndexedSlices: gathered, made dense, and made dense to be summed up."""
    def embedding(keras):
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.layers.Embedding(20, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
        made.build((None, 4))
        return made

    words = RANDOM.integers(0, 20, size=(64, 4))
    for options in ({}, {"sparse_as_dense": True},
                    {"sparse_as_dense": True, "backward_passes_per_step": 4, "average_aggregated_gradients": True}):
        alone, ours = embedding(keras), embedding(keras)
        alone.compile(optimizer=keras.optimizers.SGD(0.5, momentum=0.5), loss="mse", run_eagerly=True)
        alone.fit(words, Y, batch_size=16 * options.get("backward_passes_per_step", 1), shuffle=False, verbose=0)
        ours.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5), **options), loss="mse")
        ours.fit(share(words, hvd.rank()), share(Y, hvd.rank()), batch_size=8, shuffle=False, verbose=0)
        for one, other in zip(ours.get_weights(), alone.get_weights()):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def case_mixed_precision(keras, hvd):
    """Keras puts its LossScaleOptimizer around ours by itself. A rank's infinity makes all of them skip the step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = make_model(keras)
        model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        assert "LossScale" in type(model.optimizer).__name__
        x, y = share(X, hvd.rank()).copy(), share(Y, hvd.rank())
        if hvd.rank() == 1:
            x[8] = 1e30
        before = model.get_weights()
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        assert all(np.isfinite(weight).all() for weight in model.get_weights())
        assert any((one != other).any() for one, other in zip(before, model.get_weights()))
        digest = np.array([float(np.abs(weight).sum()) for weight in model.get_weights()], "float64")
        np.testing.assert_array_equal(hvd.broadcast(digest, 0), digest)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def case_layers_that_stay_local(keras, hvd):
    model = make_model(keras)
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[0],
                                                scale_local_gradients=False)
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=8, epochs=1, shuffle=False, verbose=0)
    theirs = [hvd.allgather(weight[None]).numpy() for weight in model.get_weights()]
    assert (theirs[0][0] != theirs[0][1]).any() and (theirs[1][0] != theirs[1][1]).any()
    np.testing.assert_array_equal(theirs[2][0], theirs[2][1])


# ---- files ----


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield path


def case_save_and_load(keras, hvd):
    """Files load without hvd into a plain optimizer, and by hvd.load_model into a distributed one that goes on."""
    makers = [(lambda: keras.optimizers.Adam(0.05, clipnorm=1.0), (".keras", ".h5"))]
    if not is_keras_3(keras):  # which puts no state of legacy optimizers into .keras
        makers.append((lambda: keras.optimizers.legacy.Adam(0.05), (".h5",)))
    for make, suffixes in makers:
        model = assert_fits_alike(keras, hvd, make)
        weights = model.get_weights()
        for suffix in suffixes:
            with folder() as path:
                file = os.path.join(path, "model" + suffix)
                model.save(file)
                plain = keras.models.load_model(file)
                again = hvd.load_model(file) if keras is hvd_keras() else wrapped(keras, hvd, file)
            assert type(plain.optimizer) is type(make())
            assert type(again.optimizer) is not type(make()) and isinstance(again.optimizer, type(make()))
            assert int(again.optimizer.iterations) == int(model.optimizer.iterations) == 8
            assert not any((one != other).any() for one, other in zip(weights, again.get_weights()))
            if not is_keras_3(keras) or suffix == ".keras":  # Keras 3 itself does not go on with what it loads from .h5
                plain.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
                expected = plain.get_weights()
            again.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=8, shuffle=False, verbose=0)
            for one, other in zip(again.get_weights(), expected):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def hvd_keras():
    import tensorflow as tf
    return tf.keras


def wrapped(keras, hvd, file):
    model = keras.models.load_model(file)
    model.optimizer = hvd.DistributedOptimizer(model.optimizer)
    return model


def case_optimizers_of_ones_own_are_loaded(keras, hvd):
    if keras is not hvd_keras():
        return

    class Mine(keras.optimizers.SGD):
        pass

    def distributed(**config):
        return hvd.DistributedOptimizer(Mine(**config))

    model = make_model(keras)
    model.compile(optimizer=hvd.DistributedOptimizer(Mine(0.25)), loss=keras.losses.MeanSquaredError())
    model.train_on_batch(X[:16], Y[:16])
    ways = [(".keras", {"custom_optimizers": [Mine]}), (".keras", {"custom_objects": {"Mine": Mine}})]
    if not is_keras_3(keras):  # functions are taken in its older format only
        ways.append((".h5", {"custom_objects": {"Mine": distributed}}))
    for suffix, options in ways:
        with folder() as path:
            file = os.path.join(path, "model" + suffix)
            model.save(file)
            again = hvd.load_model(file, compression=hvd.Compression.fp16, **options)
        assert type(again.optimizer).__name__ == "Mine" and isinstance(again.optimizer, Mine)
        assert type(again.optimizer) is not Mine
        assert int(again.optimizer.iterations) == 1


def case_a_checkpoint_of_weights(keras, hvd):
    """tf.train.Checkpoint sees the optimizer's own variables, and none of ours."""
    import tensorflow as tf
    with folder() as path:
        model = assert_fits_alike(keras, hvd, lambda: keras.optimizers.Adam(0.05), wrapped={"backward_passes_per_step": 1})
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(os.path.join(path, "check"))
        plain = make_model(keras)
        plain.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
        plain.optimizer.build(plain.trainable_variables)
        tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).restore(saved).assert_consumed()
        assert int(plain.optimizer.iterations) == 8


def case_values(keras, hvd):
    assert float(hvd.allreduce(hvd.rank() + 1.0)) == 1.5
    assert float(hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum, name="named")) == 3.0
    assert hvd.allgather([[hvd.rank()]]).numpy().tolist() == [[0], [1]]
    assert hvd.broadcast([hvd.rank() + 5], 1).numpy().tolist() == [6]
    assert hvd.reducescatter([1.0, 3.0], op=hvd.Sum).numpy().tolist() == [2.0 + 4.0 * hvd.rank()]
    with pytest.raises(RuntimeError):
        hvd.broadcast_global_variables(0)


CASES = cases_of(globals())
OF_ANOTHER = ["fit", "mixed_precision", "save_and_load"]


@pytest.fixture(scope="module")
def failed():
    """What failed of all cases, on two ranks."""
    return launch(2, __file__, CASES, OF_ANOTHER)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(failed, case):
    assert_passed(failed, case)


def four_ranks():
    """The weights of every rank after two epochs."""
    from keras_ranks import open_keras
    keras, hvd = open_keras()
    model = make_model(keras)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.05, global_clipnorm=1.0)), loss="mse")
    model.fit(share(X, hvd.rank(), 4, 4), share(Y, hvd.rank(), 4, 4), batch_size=4, epochs=2, shuffle=False, verbose=0)
    alone = make_model(keras)
    alone.compile(optimizer=keras.optimizers.Adam(0.05, global_clipnorm=1.0), loss="mse")
    alone.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), alone.get_weights()


def test_four_ranks_are_one_process_with_all_rows(ranks):
    for ours, alone in ranks(4, four_ranks):
        for one, other in zip(ours, alone):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def one_rank():
    from keras_ranks import open_keras
    keras, hvd = open_keras()
    assert hvd.size() == 1
    model = make_model(keras)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=True)
    model.fit(X, Y, batch_size=16, verbose=0)


def test_one_rank_needs_nobody(ranks):
    ranks(1, one_rank)


def fit_in_a_graph():
    """With TensorFlow 1's behaviour: weights and losses, by optimizer and number of passes."""
    import tensorflow as tf
    tf.compat.v1.disable_v2_behavior()
    from keras_ranks import open_keras
    keras, hvd = open_keras()
    tf.compat.v1.keras.backend.set_session(tf.compat.v1.Session())
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="keras.optimizers.legacy.SGD"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    results = []
    for passes in (1, 2):
        model = keras.Sequential([keras.layers.Dense(4, input_shape=(6,)), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.05), backward_passes_per_step=passes,
                                             average_aggregated_gradients=True)
        model.compile(optimizer=optimizer, loss="mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
                     hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=1)]
        history = model.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=8, epochs=2, verbose=0,
                            callbacks=callbacks).history
        results.append((model.get_weights(), history["loss"], history["lr"]))
    return results


def test_fit_in_a_graph_of_tensorflow_1(ranks):
    tensorflow = pytest.importorskip("tensorflow")
    if is_keras_3(tensorflow.keras):
        pytest.skip("Keras 3 has no graphs and sessions")
    for one, other in zip(*ranks(2, fit_in_a_graph)):
        assert all((left == right).all() for left, right in zip(one[0], other[0]))
        assert one[1:] == other[1:] and one[2][1] == pytest.approx(0.05)
