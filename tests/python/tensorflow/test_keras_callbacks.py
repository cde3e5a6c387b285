# SPDX-License-Identifier: Apache-2.0
"""The callbacks, elastic's names, and what ends a fit()."""
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest

from keras_ranks import assert_passed, cases_of, is_keras_3, launch, open_keras

HERE = pathlib.Path(__file__).resolve().parent
X = np.arange(96, dtype="float32").reshape(32, 3) / 96
Y = np.ones((32, 1), "float32")


def make_model(keras, hvd, optimizer=None, seed=0, **options):
    """A model whose weights are the ranks' own."""
    keras.utils.set_random_seed(seed + 10 * hvd.rank())
    model = keras.Sequential([keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 3))
    model.compile(optimizer=optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", **options)
    return model


def same_everywhere(hvd, arrays):
    """Whether all ranks have the same numbers."""
    return all((one == one[0]).all() for one in (hvd.allgather(np.asarray(array)[None]).numpy() for array in arrays))


def fit(model, *callbacks, epochs=1, **options):
    return model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)


# ---- broadcast ----


def case_broadcast(keras, hvd):
    """Weights and the optimizer's state are the root's, before the second batch."""
    from hvd._keras.variables import variables_of
    model = make_model(keras, hvd, hvd.DistributedOptimizer(keras.optimizers.Adam(0.1 * (1 + hvd.rank()))))
    assert not same_everywhere(hvd, model.get_weights())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    fit(model, callback)
    assert same_everywhere(hvd, model.get_weights())
    assert same_everywhere(hvd, [np.asarray(value) for value in variables_of(model.optimizer)])
    assert float(np.asarray(model.optimizer.learning_rate)) == pytest.approx(0.2)
    assert callback.broadcast_done


def case_broadcast_leaves_what_is_local(keras, hvd):
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dense(2, trainable=False), keras.layers.Dense(1, trainable=False)]
    model = keras.Sequential(layers)
    model.build((None, 3))
    model.compile(loss="mse")
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=layers[0].variables[0]))
    assert not same_everywhere(hvd, model.get_weights()[:1])
    assert same_everywhere(hvd, model.get_weights()[1:])
    with pytest.raises(ValueError, match="must be of tf.Variable type"):
        hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[3])


def case_broadcast_leaves_dropout_alone(keras, hvd):
    if not is_keras_3(keras):
        pytest.skip("only Keras 3 has it")
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.build((None, 3))
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    assert same_everywhere(hvd, model.get_weights())
    assert not same_everywhere(hvd, [model.layers[1].seed_generator.state.numpy().astype("int64")])


# ---- metrics ----


def case_metrics_are_averaged_before_what_follows(keras, hvd):
    seen = []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["own"] = float(hvd.rank())
            logs["several"] = np.array([1.0, 2.0]) * hvd.rank()

    class Later(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    model = make_model(keras, hvd, metrics=["mae"])
    history = fit(model, Own(), hvd.callbacks.MetricAverageCallback(), Later(), epochs=2).history
    assert history["own"] == [0.5, 0.5] and seen[0]["own"] == 0.5
    assert seen[0]["several"].tolist() == [0.5, 1.0]
    losses = np.array([history["loss"], history["mae"]], "float64")
    assert same_everywhere(hvd, [losses])
    assert [logs["loss"] for logs in seen] == history["loss"]


# ---- learning rates ----


class Rates:
    """A callback that notes the learning rate of each batch; for whatever Keras."""

    @staticmethod
    def of(keras, each):
        class Noted(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                each.append(float(np.asarray(self.model.optimizer.learning_rate)))
        return Noted()


def _optimizers(keras):
    return [keras.optimizers.SGD] + ([] if is_keras_3(keras) else [keras.optimizers.legacy.SGD])


def case_learning_rate_schedule(keras, hvd):
    for make in _optimizers(keras):
        rates = []
        model = make_model(keras, hvd, hvd.DistributedOptimizer(make(1.0)))
        schedule = hvd.callbacks.LearningRateScheduleCallback
        history = fit(model, schedule(1.0, 0.5, end_epoch=3), schedule(1.0, 0.1, start_epoch=3, end_epoch=5),
                      schedule(1.0, lambda epoch: epoch / 100, start_epoch=5), Rates.of(keras, rates), epochs=6).history
        expected = [1.0, 0.5, 0.25, 1.0, 0.1, 0.05]
        np.testing.assert_allclose(rates, np.repeat(expected, 4), rtol=1e-6)
        np.testing.assert_allclose(history["lr"], expected, rtol=1e-6)
    rates = []
    fit(make_model(keras, hvd), schedule(1.0, lambda epoch: epoch + 1, staircase=False), Rates.of(keras, rates))
    np.testing.assert_allclose(rates, [1.0, 1.25, 1.5, 1.75], rtol=1e-6)
    with pytest.raises(ValueError, match="initial_lr"):
        schedule(None, 1.0)


def case_learning_rate_warmup(keras, hvd):
    rates = []
    model = make_model(keras, hvd)
    fit(model, hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1), Rates.of(keras, rates), epochs=3)
    np.testing.assert_allclose(rates, [0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8] + 4 * [0.8], rtol=1e-6)


def case_momentum_is_corrected(keras, hvd):
    """velocity = momentum * (new / old rate) * velocity - new * gradient, in the batch where the rate changes."""
    import tensorflow as tf
    for make in _optimizers(keras):
        for correct in (True, False):
            model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
            model.build((None, 1))
            model.compile(optimizer=hvd.DistributedOptimizer(make(0.1, momentum=0.5)), loss=lambda y, p: p)
            change = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 4.0 ** epoch,
                                                                momentum_correction=correct)
            model.fit(tf.ones([2, 1]), tf.ones([2, 1]), batch_size=1, epochs=2, verbose=0, callbacks=[change])
            weight = velocity = 0.0
            for rate, ratio in ((0.1, 1), (0.1, 1), (0.4, 4 if correct else 1), (0.4, 1)):
                velocity = 0.5 * ratio * velocity - rate
                weight += velocity
            np.testing.assert_allclose(model.get_weights()[0], [[1.0 + weight]], rtol=1e-5)
            assert float(np.asarray(model.optimizer.momentum)) == 0.5


# ---- checkpoints, elastic ----


def case_best_model(keras, hvd):
    model = make_model(keras, hvd)
    callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    with pytest.raises(ValueError, match="has no filepath"):
        fit(model, callback)
    callback.filepath = f"best-{hvd.rank()}.keras"
    try:
        fit(model, callback, epochs=2)
        assert keras.models.load_model(callback.filepath)
    finally:
        os.unlink(callback.filepath)


def case_elastic(keras, hvd):
    model = make_model(keras, hvd)
    fit(model)
    state = hvd.elastic.KerasState(model, batch=20 + hvd.rank(), epoch=hvd.rank())
    state.sync()
    assert same_everywhere(hvd, model.get_weights()) and (state.batch, state.epoch) == (20, 0)
    saved = model.get_weights()
    fit(model, hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state), epochs=2)
    assert (state.batch, state.epoch) == (0, 2)
    state.restore()
    assert (state.batch, state.epoch) == (20, 0)
    for one, other in zip(saved, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    fit(model, hvd.elastic.CommitStateCallback(state, batches_per_commit=2))
    trained = model.get_weights()
    model.set_weights(saved)
    state.restore()
    for one, other in zip(trained, model.get_weights()):
        np.testing.assert_array_equal(one, other)

    state.epoch = hvd.rank() + 3
    from hvd.tensorflow import elastic
    assert hvd.elastic.run is elastic.run
    assert hvd.elastic.run(lambda given: given.epoch)(state) == 3


def numbers_of(model):
    from hvd._keras.variables import variables_of
    return [np.asarray(variable) for variable in variables_of(model.optimizer)]


def case_elastic_where_only_rank_0_has_trained(keras, hvd):
    """The others' optimizers get the slots too; restore() to before there were any makes them zeroes."""
    from hvd._keras.variables import build, variables_of
    model = make_model(keras, hvd, hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    few = len(numbers_of(model))
    if hvd.rank() == 0:
        build(model.optimizer, model.trainable_variables)
        for variable in variables_of(model.optimizer):
            variable.assign(np.full_like(np.asarray(variable), 0.5))
    state = hvd.elastic.KerasState(model)
    state.sync()
    assert len(numbers_of(model)) > few and same_everywhere(hvd, [*numbers_of(model), *model.get_weights()])
    assert sum(bool((array == 0.5).all()) for array in numbers_of(model)) >= 8

    model = make_model(keras, hvd, hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    state = hvd.elastic.KerasState(model)
    saved = model.get_weights()
    fit(model)
    state.restore()
    assert all((one == other).all() for one, other in zip(saved, model.get_weights()))
    assert sum(bool(array.any()) for array in numbers_of(model)) == 1  # the learning rate


def case_elastic_leaves_dropout_alone(keras, hvd):
    if not is_keras_3(keras):
        pytest.skip("only Keras 3 has it")
    from hvd._keras.variables import random_states_of
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.build((None, 3))
    state_of_dropout, = random_states_of(model)
    state_of_dropout.assign(np.asarray(state_of_dropout) + hvd.rank())
    state = hvd.elastic.KerasState(model)
    saved = np.asarray(state_of_dropout)
    state.sync()
    assert not same_everywhere(hvd, [state_of_dropout]) and same_everywhere(hvd, model.get_weights()[:2])
    state_of_dropout.assign(saved + 7)
    state.restore()
    np.testing.assert_array_equal(np.asarray(state_of_dropout), saved)


CASES = cases_of(globals())
OF_ANOTHER = ["broadcast", "metrics_are_averaged_before_what_follows", "learning_rate_warmup", "best_model"]


@pytest.fixture(scope="module")
def failed():
    """What failed of all cases, on two ranks."""
    return launch(2, __file__, CASES, OF_ANOTHER)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(failed, case):
    assert_passed(failed, case)


# ---- what ends a fit ----


def check_a_rank_that_dies():
    """What rank 0 hears, and how many seconds after rank 1 said good-bye."""
    keras, hvd = open_keras()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from hvdrun, once it has seen the dead one
    last = [0.0]

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            last[0] = time.monotonic()
            if batch == 3 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        make_model(keras, hvd).fit(X, Y, batch_size=8, epochs=100_000, verbose=0, callbacks=[Dies()])
    except Exception as error:  # pylint: disable=broad-except
        print(f"after {time.monotonic() - last[0]:.3f} s {type(error).__name__}: {error}", flush=True)
        raise


def test_a_rank_that_dies_in_fit_makes_the_others_raise(ranks):
    done = ranks.run(2, str(HERE / "keras_ranks.py"), __file__, "check_a_rank_that_dies")
    assert done.returncode != 0
    heard = re.search(r"after ([0-9.]+) s UnknownError: .*rank 1 \(pid \d+\).*SIGKILL", done.stdout, re.DOTALL)
    assert heard, done.stdout + done.stderr
    assert float(heard[1]) < 5  # it takes 0.1 s where there is nothing else to do


def check_ctrl_c():
    """What ends fit() when each rank gets Ctrl-C in the middle of it."""
    keras, hvd = open_keras()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored

    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and not started:
                started.append(threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)))
                started[0].start()

    started, end = [], None
    try:
        try:
            make_model(keras, hvd).fit(X, Y, batch_size=8, epochs=100_000, verbose=0, callbacks=[Interrupted()])
            end = "an end"
        except Exception as error:  # pylint: disable=broad-except
            end = f"{type(error).__name__}: {error}"
        started[0].join()  # the other rank's may have come first
        time.sleep(1)
    except KeyboardInterrupt as error:
        end = end or f"KeyboardInterrupt: {error}"
    return end


def test_ctrl_c_ends_fit(ranks):
    ends = ranks(2, check_ctrl_c)
    assert any("KeyboardInterrupt" in end for end in ends), ends
    assert all(re.search("KeyboardInterrupt|UnknownError", end) for end in ends), ends  # that it left, or both
