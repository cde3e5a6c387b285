# SPDX-License-Identifier: Apache-2.0
"""Variables of models and optimizers of every Keras."""
from __future__ import annotations

from typing import Any

import numpy as np


def variables_of(optimizer: Any) -> list[Any]:
    """An optimizer's variables: the number of steps, slots, the learning rate (which Keras 2 leaves out), and the other
    numbers of a legacy one. None has none."""
    found = getattr(optimizer, "variables", [])
    variables = list(found() if callable(found) else found)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    numbers = [*(value for _, value in sorted(getattr(inner, "_hyper", {}).items())),
               getattr(inner, "_learning_rate", None)]
    known = {id(variable) for variable in variables}
    return variables + [number for number in numbers if hasattr(number, "assign") and id(number) not in known]


def build(optimizer: Any, trainable_variables: list[Any]) -> None:
    """Makes the variables that the optimizer's first step would make, where they are not there yet."""
    if hasattr(optimizer, "_create_all_weights"):  # legacy
        optimizer._create_all_weights(trainable_variables)
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(trainable_variables)


def random_states_of(model: Any) -> list[Any]:
    """The states of a Keras 3 model's random numbers, as dropout has them: those that differ between ranks on purpose."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else []
    return [generator.state for layer in layers for generator in getattr(layer, "_seed_generators", ())
            if hasattr(generator, "state")]


def number_of(value: Any) -> float:
    """A learning rate or momentum as a number: a variable, a tensor, or a number already."""
    return float(np.asarray(value.numpy() if hasattr(value, "numpy") else value))
