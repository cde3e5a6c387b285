# SPDX-License-Identifier: Apache-2.0
"""Optimizers in files."""
from __future__ import annotations

import importlib
from typing import Any


def restored(keras: Any, model: Any, filepath: Any) -> Any:
    """The optimizer of a model that Keras has just loaded, with its state.

    Keras 3 (seen: 3.15) builds the optimizer of an .h5 file for the variables that the model itself has and not for those
    of its layers, so slots are lost and the next step is refused. Then it is built anew, and takes all of its variables
    from the file."""
    optimizer = model.optimizer
    if not (hasattr(keras, "ops") and str(filepath).endswith((".h5", ".hdf5")) and optimizer.built):
        return optimizer
    if len(optimizer._trainable_variables) == len(model.trainable_variables):
        return optimizer
    fresh = type(optimizer).from_config(optimizer.get_config())
    fresh.build(model.trainable_variables)
    h5 = importlib.import_module("keras.src.legacy.saving.legacy_h5_format")
    with h5.h5py.File(filepath, "r") as file:
        values = [value[()] for value in h5.load_optimizer_weights_from_hdf5_group(file)]
    if len(values) != len(fresh.variables):
        raise ValueError(f"load_model: {filepath} has {len(values)} variables of the optimizer {fresh.name}, which has "
                         f"{len(fresh.variables)}; save the model as .keras")
    for variable, value in zip(fresh.variables, values):
        variable.assign(value)
    return fresh
