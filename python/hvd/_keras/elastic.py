# SPDX-License-Identifier: Apache-2.0
"""What a training run with Keras must not lose: the model, its optimizer and plain values, saved in memory, restored,
and given to other ranks; and callbacks that keep it up to date."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd._elastic import VariablesState
from hvd._keras.callbacks import ForAnyKeras
from hvd._keras.variables import build, random_states_of, variables_of


class KerasState(VariablesState):
    """model, optimizer and each further keyword become attributes. Of model and optimizer (the model's, if none is given)
    the variables are saved, everything else by copy. The model must be built. sync() leaves the random numbers of dropout as
    they are on each rank.

    save(), restore(), sync() and commit() do their work in a job of fixed size; no host comes or goes yet."""
    _name = "keras_state"

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(f"{type(self).__name__}: the model has no variables yet; build it, or call it once, first")
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *variables_of(self.optimizer)]

    def _own_of_rank(self) -> list[Any]:
        return random_states_of(self.model)

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray]:
        return [np.array(variable.numpy() if hasattr(variable, "numpy") else variable) for variable in variables]

    def _write(self, variables: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        for variable, array in zip(variables, arrays):
            variable.assign(array)

    def _complete(self) -> None:
        build(self.optimizer, self.model.trainable_variables)


class CommitState(ForAnyKeras):
    """Commits the state every `batches_per_commit` batches, and after each epoch."""
    batchwise = True

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """All ranks count from here."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining <= 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchState(ForAnyKeras):
    """Keeps the number of the last batch in `state.batch`; 0 after an epoch."""
    batchwise = True

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """The number of steps is asked for anew."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch that was begun before has fewer steps left."""
        if self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keeps the number."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins at 0."""
        self.state.batch = 0


class UpdateEpochState(ForAnyKeras):
    """Keeps in `state.epoch` how many epochs are over, those before this fit() included."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts from what the state has."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One more is over."""
        self.state.epoch = self.initial_epoch + epoch + 1
