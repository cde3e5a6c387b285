# SPDX-License-Identifier: Apache-2.0
"""Variables of tf and of Keras 3, by identity and by name."""
from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def variable_of(variable: Any) -> Any:
    """The tf.Variable in a variable of Keras 3; anything else as it is."""
    return getattr(variable, "_value", None) if hasattr(variable, "path") and hasattr(variable, "_value") else variable


def key_of(variable: Any) -> int:
    """The same number for the same variable, however it is wrapped, as long as it lives."""
    return id(variable_of(variable))


def name_of(variable: Any) -> str:
    """What a person would call a variable, in characters that TensorFlow allows in names; "" for what has no name.

    The counters that Keras appends (dense_1) are left out: a rank that made a model more than the others counts further."""
    try:
        name = getattr(variable, "path", None) or variable.name
    except (AttributeError, ValueError):  # tensors have none in eager mode
        return ""
    parts = [re.sub(r"_\d+$", "", part) for part in str(name).split(":")[0].split("/")]
    return re.sub(r"[^A-Za-z0-9_.]", "_", ".".join(parts))


# ---- what Horovod's module of this name has ----


def _executing_eagerly() -> bool:
    """Whether ops run at once: not in a graph, nor in a tf.function."""
    return tf.executing_eagerly()


def _make_subgraph(f: Callable[..., Any]) -> Callable[..., Any]:
    """tf.function(f)."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with its results remembered by arguments and mode."""
    remembered: dict[Any, Any] = {}

    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        key = (args, _executing_eagerly())
        if key not in remembered:
            remembered[key] = f(*args)
        return remembered[key]
    return wrapper


def vars_to_refs(vars: Any) -> Any:  # pylint: disable=redefined-builtin
    """Hashable references for variables, tuples for lists."""
    if isinstance(vars, list):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The reverse of vars_to_refs."""
    if isinstance(refs, tuple):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
