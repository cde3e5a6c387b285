# SPDX-License-Identifier: Apache-2.0
"""How ops are called on the wire.

In a graph an op has the name of its node, made unique among all ops of the graph at trace time: ranks that build the
same graph agree on it, whatever order the graph runs in. Eager ops run in the order of the program: they have the user's
name or that of their kind, and in threads none.
"""
from __future__ import annotations

import re
import threading
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph  # pylint: disable=no-name-in-module

#: The names given in each graph.
_taken: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _graph() -> Any:
    """The tf.function's or v1 graph that is being built; branches and loop bodies are parts of it."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, ControlFlowFuncGraph) and graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph


def _unique(name: str) -> str:
    taken = _taken.setdefault(_graph(), set())
    wanted, number = name, 0
    while wanted in taken:
        number += 1
        wanted = f"{name}_{number}"
    taken.add(wanted)
    return wanted


def normalized(name: str) -> str:
    """A tensor's name as part of a node's."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _of_tensor(kind: str, tensor: Any) -> str:
    name = tensor.name
    if name.partition(":")[0].isdigit():  # captured from outside the tf.function, and numbered by this process
        return kind
    return f"{kind}_{normalized(name)}"


def names_of(kind: str, name: str | None, tensor: Any, ignore_name_scope: bool = False) -> dict[str, Any]:
    """An op's arguments `tensor_name` and `name`: the user's name, in graphs by default `<kind>_<tensor>`, after the
    scope unless that is ignored."""
    if tf.executing_eagerly():
        # The program's own thread waits for each op, so that all of a kind may have one name, which is faster than none.
        return {"tensor_name": name or (kind if threading.current_thread() is threading.main_thread() else "")}
    name = name or _of_tensor(kind, tensor)
    scope = "" if ignore_name_scope else tf.compat.v1.get_default_graph().get_name_scope()
    node = re.sub("^[^A-Za-z0-9.]+|[^A-Za-z0-9_.\\\\/>-]", "_", name).rstrip("/")
    return {"tensor_name": _unique(f"{scope}/{name}" if scope else name), "name": node}


def backward_name(name: str, more: str = "") -> str:
    """The tensor_name of an op in the gradient of the op of this name."""
    if not name:
        return ""
    name = f"{name}.grad{more}"
    return name if tf.executing_eagerly() else _unique(name)
