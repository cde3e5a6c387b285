# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on PyTorch: gradients, variables and values. Everything _tensorflow.py has, under the same names."""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

import hvd.torch as hvd
from hvd import basics
from hvd._elastic import run as elastic_run  # noqa: F401
from hvd._keras.options import Options
from hvd.torch.compression import Compression

#: What a group may have at most (HVD_GROUP_MAX).
_GROUP_MAX = 1024


def init(comm: Any = None, process_sets: Any = None, *, tensorflow_memory: str | None = None) -> None:
    """hvd.init() of every framework. tensorflow_memory: for scripts that run on TensorFlow too; a line of log says that it
    means nothing here."""
    if tensorflow_memory is not None:
        logging.getLogger("hvd").warning("hvd.keras: tensorflow_memory has no effect: Keras is on PyTorch here")
    basics.init(comm, process_sets)


def variable_of(variable: Any) -> Any:
    """The tensor in a variable of Keras; a tensor as it is."""
    return variable if isinstance(variable, torch.Tensor) else variable.value


def key(variable: Any) -> int:
    """The same number for the same variable, however it is wrapped."""
    return id(variable_of(variable))


class Gradients:
    """The gradients of one optimizer: reduced, and with backward_passes_per_step summed up before that."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        self._compression = options.compression or Compression.none
        self._local: dict[int, Any] = {}
        #: Passes since the last step.
        self.counter = 0
        self._sums: dict[int, Any] = {}

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable stays on its rank."""
        self._local[key(variable)] = variable

    @property
    def passes(self) -> int:
        """How many gradients are summed up for one step."""
        return self._options.backward_passes_per_step

    def _takes_part(self) -> bool:
        members = self._options.process_set
        hvd.size()  # says so where init() was forgotten
        return bool(members.included()) and (members.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")

    @torch.no_grad()
    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients, in order, in the memory of the given ones where they are dense; None stays None."""
        reduced = list(grads)
        places = [place for place, grad in enumerate(reduced) if grad is not None]
        local = {place for place in places if key(variables[place]) in self._local}
        if self._options.scale_local_gradients:
            for place in local:
                reduced[place] = reduced[place] / self._options.process_set.size()
        if self._takes_part():
            for number, group in enumerate(self._split([place for place in places if place not in local], variables)):
                results = self._reduce_group([reduced[place] for place in group], number)
                for place, result in zip(group, results):
                    reduced[place] = result
        return reduced

    def _reduce_group(self, grads: Sequence[Any], number: int) -> list[Any]:
        factor, compression = self._options.gradient_predivide_factor, self._compression
        small = [compression.compress(grad.detach().contiguous()) for grad in grads]
        hvd.grouped_allreduce_([tensor for tensor, _ in small], op=self._options.op, name=f"{self._name}.{number}",
                               prescale_factor=1.0 / factor, postscale_factor=factor,
                               process_set=self._options.process_set)
        return [compression.decompress(tensor, ctx) for tensor, ctx in small]

    def _split(self, places: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """The places of gradients that are reduced together: all, or as many or such groups as the user wants."""
        groups, rest = self._options.groups, places
        chosen: list[list[int]] = []
        if isinstance(groups, int):
            length = max(1, -(-len(places) // groups))
            chosen, rest = [places[start:start + length] for start in range(0, len(places), length)], []
        elif groups:
            found = {key(variables[place]): place for place in places}
            chosen = [[found.pop(key(variable)) for variable in group if key(variable) in found] for group in groups]
            rest = list(found.values())
        return [group[start:start + _GROUP_MAX] for group in [*chosen, rest]
                for start in range(0, len(group), _GROUP_MAX)]

    @torch.no_grad()
    def accumulate(self, grads: Sequence[Any], variables: Sequence[Any], step: Callable[[list[Any]], Any],
                   pause: Callable[[], Any]) -> Any:
        """Adds gradients to the sums. With the last pass calls step(reduced), and the sums begin anew; before that
        pause()."""
        for grad, variable in zip(grads, variables):
            if grad is not None:
                total = self._sums.get(key(variable))
                if total is None:
                    self._sums[key(variable)] = grad.detach().clone()
                else:
                    total.add_(grad)
        self.counter += 1
        if self.counter < self.passes:
            return pause()
        sums, self._sums, self.counter = self._sums, {}, 0
        reduced = self.reduce([sums.get(key(variable)) for variable in variables], variables)
        if self._options.average_aggregated_gradients:
            reduced = [None if grad is None else grad / self.passes for grad in reduced]
        return step(reduced)


def count_step(iterations: Any) -> Any:
    """Adds one to an optimizer's counter of steps."""
    return iterations.assign_add(1)


def in_graph() -> bool:
    """No: PyTorch has no graphs and sessions."""
    return False


def broadcast_variables(variables: Sequence[Any], root_rank: int, device: str = "") -> None:
    """Gives every rank's variables the values of the global rank `root_rank`'s. Tensors stay on their device."""
    del device
    hvd.broadcast_parameters([(f"variable.{place}", variable_of(variable).data)
                              for place, variable in enumerate(variables)], root_rank)


# ---- values ----


def broadcast_global_variables(keras: Any, root_rank: int) -> Any:
    """RuntimeError: there are no global variables."""
    raise RuntimeError("hvd.broadcast_global_variables() is for graphs of TensorFlow 1; Keras on PyTorch has no global "
                       "variables. Use hvd.callbacks.BroadcastGlobalVariablesCallback(0)")


def allreduce(keras: Any, value: Any, name: str | None, average: bool | None, prescale_factor: float,
              postscale_factor: float, op: int | None, compression: Any) -> Any:
    """The reduction of a value: a tensor."""
    return hvd.allreduce(torch.as_tensor(value), average=average, op=op, name=name, prescale_factor=prescale_factor,
                         postscale_factor=postscale_factor, compression=compression or Compression.none)


def allgather(keras: Any, value: Any, name: str | None) -> Any:
    """All ranks' rows, in order."""
    return hvd.allgather(torch.as_tensor(value), name=name)


def broadcast(keras: Any, value: Any, root_rank: int, name: str | None) -> Any:
    """The value of the global rank `root_rank`."""
    return hvd.broadcast(torch.as_tensor(value), root_rank, name=name)


def reducescatter(keras: Any, value: Any, name: str | None, op: int) -> Any:
    """This rank's rows of the reduction."""
    return hvd.reducescatter(torch.as_tensor(value), op=op, name=name)
