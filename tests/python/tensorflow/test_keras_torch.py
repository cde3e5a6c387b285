# SPDX-License-Identifier: Apache-2.0
"""hvd.keras where Keras 3 runs on PyTorch."""
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import types

import numpy as np
import pytest

from conftest import SOURCE

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("keras") is None:
    pytest.skip("torch or keras is not installed here", allow_module_level=True)

HERE = pathlib.Path(__file__).resolve().parent
X = np.random.default_rng(7).normal(size=(32, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def open_keras():
    # Where TensorFlow is not installed the folder tests/python/tensorflow is what Keras would find.
    sys.path[:] = [path for path in sys.path if path != str(HERE.parent)]
    import keras
    import torch
    torch.set_num_threads(1)
    assert keras.backend.backend() == "torch"
    import hvd.keras as hvd
    hvd.init()
    return keras, hvd


def make_model(keras, seed=1):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 3))
    return model


def share(array, rank):
    return array.reshape(-1, 2, 4, array.shape[1])[:, rank].reshape(-1, array.shape[1])


def assert_fits_alike(keras, hvd, make, batch=8, compiled=None, **options):
    alone, ours = make_model(keras), make_model(keras)
    alone.compile(optimizer=make(), loss="mse")
    alone.fit(X, Y, batch_size=batch, shuffle=False, epochs=2, verbose=0)
    ours.compile(optimizer=hvd.DistributedOptimizer(make(), **options), loss="mse", **(compiled or {}))
    ours.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=4, shuffle=False, epochs=2, verbose=0)
    for one, other in zip(ours.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=f"{type(ours.optimizer)} {options}")
    return ours


def check_everything():
    keras, hvd = open_keras()
    for cls in (keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.Adadelta,
                keras.optimizers.Adagrad, keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.RMSprop,
                keras.optimizers.Lion, keras.optimizers.Ftrl, keras.optimizers.Adafactor):
        made = assert_fits_alike(keras, hvd, lambda cls=cls: cls(learning_rate=0.05, global_clipnorm=1.0)).optimizer
        assert type(made).__name__ == cls.__name__ and isinstance(made, cls)

    def sgd():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    for options in ({"groups": 2}, {"gradient_predivide_factor": 2.0}, {"compiled": {"jit_compile": True}}):
        assert_fits_alike(keras, hvd, sgd, **options)
    assert_fits_alike(keras, hvd, sgd, batch=16, backward_passes_per_step=2, average_aggregated_gradients=True)
    assert_fits_alike(keras, hvd, lambda: keras.optimizers.SGD(0.2), op=hvd.Average)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    check_loss_scaling(keras, hvd)
    check_local_layers(keras, hvd)
    check_callbacks(keras, hvd)
    check_metrics_whose_names_count_differently(keras, hvd)
    check_files(keras, hvd)
    check_values(hvd)


def check_loss_scaling(keras, hvd):
    """A rank's infinity halves the scale of all."""
    model = make_model(keras)
    model.compile(optimizer=keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
                                                                initial_scale=4.0), loss="mse")
    x = share(X, hvd.rank()).copy()
    x[0] = np.inf if hvd.rank() == 1 else 0
    model.fit(x, share(Y, hvd.rank()), batch_size=4, shuffle=False, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert float(model.optimizer.dynamic_scale) == 2.0


def check_local_layers(keras, hvd):
    model = make_model(keras)
    model.compile(optimizer=hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[:1]),
                  loss="mse")
    model.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=4, verbose=0, shuffle=False)
    everyone = [hvd.allgather(weight[None]).numpy() for weight in model.get_weights()]
    assert (everyone[0][0] != everyone[0][1]).any() and (everyone[2][0] == everyone[2][1]).all()


def check_callbacks(keras, hvd):
    model = make_model(keras, seed=hvd.rank())
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.05)), loss="mse")
    history = model.fit(share(X, hvd.rank()), share(Y, hvd.rank()), batch_size=4, epochs=2, verbose=0, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.05, warmup_epochs=1)]).history
    for array in [*model.get_weights(), np.array(history["loss"])]:
        everyone = hvd.allgather(array[None]).numpy()
        np.testing.assert_array_equal(everyone[0], everyone[1])
    assert history["lr"][0] == pytest.approx(0.05)
    best = hvd.callbacks.BestModelCheckpoint("loss", 1, "max", "epoch")  # horovod.keras' order
    assert (best.monitor, best.verbose, best.save_weights_only, best.mode, best.save_freq) == ("loss", 1, False, "max", "epoch")
    state = hvd.elastic.KerasState(model, epoch=hvd.rank())
    state.sync()
    assert state.epoch == 0


def check_metrics_whose_names_count_differently(keras, hvd):
    """Two models and two callbacks, and rank 0 has made nine metrics before: its third and fourth are auc_10 and auc_11."""
    keras.utils.clear_session()
    for _ in range(9 * (hvd.rank() == 0)):
        keras.metrics.AUC()
    for _ in range(2):
        callback, model = hvd.callbacks.MetricAverageCallback(), make_model(keras)
        model.compile(optimizer="sgd", loss="mse", metrics=[keras.metrics.AUC(), keras.metrics.AUC(curve="PR")])
        x, y = share(X, hvd.rank()), share(Y > 0, hvd.rank())
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[
            callback, hvd.callbacks.MetricAverageCallback()]).history
        names = [metric.name for metric in model.metrics[1].metrics]
        values = np.array([history[name] for name in ("loss", *names)])
        everyone = hvd.allgather(values[None]).numpy()
        np.testing.assert_array_equal(everyone[0], everyone[1])
        assert len(set(hvd.allgather(np.array([len(name) for name in names])).tolist())) > 1
    logs = {"auc_9": 1.0, "auc_10": 2.0} if hvd.rank() else {"auc": 1.0, "auc_1": 2.0}
    callback.on_epoch_end(0, logs)
    assert list(logs.values()) == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="shape"):
        callback.on_epoch_end(0, {"loss": 1.0, "mae": 1.0} if hvd.rank() else {"loss": 1.0})
    with pytest.raises(ValueError, match="different metrics"):
        callback.on_epoch_end(0, {"mae": 1.0} if hvd.rank() else {"mse": 1.0})


def check_files(keras, hvd):
    model = assert_fits_alike(keras, hvd, lambda: keras.optimizers.Adam(0.05))
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.keras")
        model.save(file)
        plain, again = keras.models.load_model(file), hvd.load_model(file)
    assert type(plain.optimizer) is type(keras.optimizers.Adam())
    assert type(again.optimizer) is not type(plain.optimizer)
    assert int(again.optimizer.iterations) == 8


def check_values(hvd):
    assert float(hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum)) == 3.0
    assert hvd.broadcast([hvd.rank()], 1).tolist() == [1]
    with pytest.raises(RuntimeError, match="no global variables"):
        hvd.broadcast_global_variables(0)


def test_keras_on_torch(ranks):
    ranks(2, check_everything, env={"KERAS_BACKEND": "torch"}, timeout=240)


def test_the_example_learns_the_digits(ranks):
    done = ranks.run(2, str(SOURCE / "examples" / "keras" / "on_torch.py"), env={"KERAS_BACKEND": "torch"}, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.findall(r"accuracy ([0-9.]+) %", done.stdout)
    assert len(accuracy) == 1 and float(accuracy[0]) >= 86, done.stdout


def test_other_backends_are_refused_with_what_to_do():
    from hvd._keras.optimizer import framework_of
    on_jax = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "jax"))
    with pytest.raises(NotImplementedError, match="not on jax: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"):
        framework_of(on_jax)
