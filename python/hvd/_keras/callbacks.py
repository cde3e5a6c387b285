# SPDX-License-Identifier: Apache-2.0
"""The callbacks, without a base class: for_keras() adds the Callback of a Keras.

They also work in the fit() of another Keras than that; `ForAnyKeras` has what tf_keras asks of a callback.
"""
from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd import numpy as hvd_numpy
from hvd._keras.variables import number_of, random_states_of, variables_of
from hvd.basics import rank, size


class ForAnyKeras:
    _framework: Any
    _keras: Any
    _chief_worker_only = None
    _supports_tf_logs = True  # values need not be fetched for us after each batch

    def _implements_train_batch_hooks(self) -> bool:
        return hasattr(type(self), "batchwise")

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastGlobalVariables(ForAnyKeras):
    """Gives every rank the model and the optimizer of the global rank `root_rank` after the first batch, when all of
    their variables exist. So ranks begin alike, from random weights as from a checkpoint that only one of them loaded.

    device: to place the ops on. local_variables: a variable or several that stay as they are on each rank; so do the
    random numbers of dropout. ValueError: something among them is no variable."""
    batchwise = True

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: dict[int, Any] = {}
        if local_variables is None:
            local_variables = []
        elif hasattr(local_variables, "assign"):
            local_variables = [local_variables]
        for variable in local_variables:
            if not hasattr(variable, "assign"):
                raise ValueError("All local variables must be of tf.Variable type.")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """This variable stays as it is on each rank."""
        self._local[self._framework.key(var)] = var

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """After the first batch: broadcasts."""
        if self.broadcast_done:
            return
        self.broadcast_done = True
        if self._framework.in_graph():
            self._framework.broadcast_global_variables(self._keras, self.root_rank)
            return
        local = {*self._local, *(self._framework.key(state) for state in random_states_of(self.model))}
        variables = [*self.model.variables, *variables_of(self.model.optimizer)]
        self._framework.broadcast_variables([variable for variable in variables
                                             if self._framework.key(variable) not in local], self.root_rank, self.device)


def _counted(name: str) -> tuple[str, int]:
    """A metric's name without the counter that Keras appends (auc_1), and the counter: a rank that made a metric more than
    the others counts further, from auc_9 to auc_10 too."""
    found = re.fullmatch(r"(.*)_(\d+)", name, re.DOTALL)
    return (found[1], int(found[2])) if found else (name, 0)


class MetricAverage(ForAnyKeras):
    """Averages the metrics of an epoch over the ranks, at its end, so that what comes after it in the list of callbacks
    (ReduceLROnPlateau, EarlyStopping, ModelCheckpoint, TensorBoard, and always the history) sees the same everywhere.

    Ranks have the same metrics; the counters that Keras appends to names (auc, auc_1) may differ. HorovodInternalError: their
    metrics are not equally many; ValueError: they have other names."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Puts averages in place of `logs`' values."""
        names = sorted(logs or {}, key=_counted)
        arrays = [np.asarray(logs[name], dtype=np.float64) for name in names]
        if not arrays:
            return
        # The op's name says nothing of the metrics: ranks whose metrics differ meet in it and fail, instead of waiting. Where
        # as many have other names, the average of `which` is not this rank's.
        which = float(zlib.crc32(",".join(_counted(name)[0] for name in names).encode()))
        together = np.concatenate([[which], *(array.reshape(-1) for array in arrays)])
        mean = hvd_numpy.allreduce(together, name="MetricAverageCallback")
        if round(float(mean[0])) != which:
            raise ValueError(f"MetricAverageCallback: ranks have different metrics; this rank has {', '.join(names)}")
        mean = mean[1:]
        for name, array in zip(names, arrays):
            part, mean = mean[:array.size], mean[array.size:]
            logs[name] = float(part[0]) if array.ndim == 0 else part.reshape(array.shape)


class LearningRateSchedule(ForAnyKeras):
    """From start_epoch to end_epoch (exclusive) the learning rate is initial_lr * multiplier.

    multiplier: a number m, meaning m ** (epoch - start_epoch); or a function of the epoch. staircase: it is asked at the
    beginning of an epoch; else before every batch, of a fraction (then steps_per_epoch is needed where Keras does not
    know it). momentum_correction: for the batch before which the rate changes, momentum is multiplied by new / old rate.
    ValueError: initial_lr is None."""
    batchwise = True

    def __init__(self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
                 end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Asks Keras for the number of steps if it is needed."""
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch and self.params.get("samples") and self.params.get("batch_size"):  # a graph of
                self.steps_per_epoch = -(-self.params["samples"] // self.params["batch_size"])  # TensorFlow 1
            if not self.steps_per_epoch:
                raise ValueError("Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch "
                                 f"parameter to {type(self).__name__}()")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate."""
        if self.current_epoch < self.start_epoch or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Gives back the momentum."""
        if self.restore_momentum is not None:
            self._inner().momentum = self.restore_momentum
            self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate as `lr`."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _inner(self) -> Any:
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)

    def _number(self, value: Any) -> float:
        if self._framework.in_graph() and not isinstance(value, (int, float)):
            value = self._framework.session(self._keras).run(value)
        return number_of(value)

    def _rate(self) -> float:
        return self._number(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        old, new = self._rate(), self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old and new != old and hasattr(self._inner(), "momentum"):
            self._correct_momentum(new / old)

    def _correct_momentum(self, ratio: float) -> None:
        """Legacy optimizers look at their momentum at each step. In others it is a number that is part of the compiled
        step, so what it multiplies is scaled instead: momentum * ratio * v = momentum * (ratio * v)."""
        optimizer = self._inner()
        if "momentum" in getattr(optimizer, "_hyper", ()):
            self.restore_momentum = self._number(optimizer.momentum)
            optimizer.momentum = self.restore_momentum * ratio
        elif optimizer.momentum:
            for velocity in getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ():
                if velocity is not None:
                    velocity.assign(velocity * ratio)


class LearningRateWarmup(LearningRateSchedule):
    """The learning rate goes from initial_lr / size to initial_lr, linearly, batch by batch, in warmup_epochs.
    verbose: 1: rank 0 says when it is there. The other arguments: of LearningRateScheduleCallback."""

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None, verbose: int = 0) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self.steps_per_epoch  # so that the last batch of an epoch has a round number
            return (epoch * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the rate, and says when it is there."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModel(ForAnyKeras):
    """ModelCheckpoint(save_best_only=True) whose `filepath` is set later, before fit(); ValueError there if it is not."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False, mode: str = "auto",
                 save_freq: str | int = "epoch") -> None:
        super().__init__(filepath="unset.weights.h5" if save_weights_only else "unset.keras", monitor=monitor,
                         verbose=verbose, save_best_only=True, save_weights_only=save_weights_only, mode=mode,
                         save_freq=save_freq)
        self.filepath = None

    def _implements_train_batch_hooks(self) -> bool:
        return self.save_freq != "epoch"

    def on_train_begin(self, logs: Any = None) -> None:
        """ValueError: there is no filepath."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath; set its attribute `filepath` before fit()")
        super().on_train_begin(logs)


class BestModelOfKeras(BestModel):
    """BestModel with the arguments in the order of horovod.keras', which has no save_weights_only."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: str | int = "epoch",
                 save_weights_only: bool = False) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)


def for_keras(keras: Any, framework: Any, module: str) -> Callable[[str, type, type], type]:
    """A function of (name, one of the classes here, its base in Keras) that makes the class which users get."""

    def made(name: str, ours: type, base: type = keras.callbacks.Callback) -> type:
        return type(name, (ours, base), {"__module__": module, "__doc__": ours.__doc__, "_framework": framework,
                                         "_keras": keras})
    return made
