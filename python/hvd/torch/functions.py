# SPDX-License-Identifier: Apache-2.0
"""The state of models and optimizers, and Python objects, from one rank to the others."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvd import _session
from hvd.collectives import synchronize
from hvd.objects import allgather_object, broadcast_object  # noqa: F401
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch.mpi_ops import broadcast_async_


def _broadcast_all(named: Iterable[tuple[str | None, Any]], root_rank: int, process_set: ProcessSet) -> None:
    """Broadcasts tensors in place, all at once. Dense ones that are laid out otherwise (channels_last) go by a copy."""
    started = []
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"broadcast needs torch tensors; {name!r} is a {type(tensor).__name__}")
        flat = tensor.detach().contiguous()
        started.append((broadcast_async_(flat, root_rank, name, process_set), flat, tensor))
    for handle, flat, tensor in started:
        synchronize(handle)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat)


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Makes tensors equal those of the global rank `root_rank`, in place.

    params: a dict (`model.state_dict()`), or a list of tensors or of (name, tensor). The same on all ranks of the set.
    Entries that are None are left out. ValueError: anything else."""
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    _broadcast_all([(name, tensor) for name, tensor in named if tensor is not None], root_rank, process_set)


class _Hole:
    """Where a tensor was taken out of a structure that travels pickled."""

    def __init__(self, number: int, tensor: Any) -> None:
        self.number = number
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.on_host = tensor.device.type == "cpu"

    def fill(self, local: Any, device: Any) -> Any:
        """The tensor to receive into: the one that is here already, if it fits."""
        device = torch.device("cpu") if self.on_host else device
        if isinstance(local, torch.Tensor) and (tuple(local.shape), local.dtype, local.device) == (
                self.shape, self.dtype, device):
            return local
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _taken_out(value: Any, tensors: list[Any]) -> Any:
    """`value` with holes for its tensors, which are appended to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Hole(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: _taken_out(part, tensors) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_out(part, tensors) for part in value)
    return value


def _filled(value: Any, local: Any, device: Any, tensors: list[Any]) -> Any:
    """The reverse, with tensors to receive into; `local` is what is in this place here."""
    if isinstance(value, _Hole):
        tensors.append(value.fill(local, device))
        return tensors[-1]
    if isinstance(value, dict):
        here = local if isinstance(local, dict) else {}
        return {key: _filled(part, here.get(key), device, tensors) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(part, None, device, tensors) for part in value)
    return value


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_skeleton(optimizer: Any, tensors: list[Any]) -> Any:
    numbers = {id(parameter): number for number, parameter in enumerate(_parameters(optimizer))}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = {numbers.get(id(key), key): value for key, value in optimizer.state.items()}
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return sizes, _taken_out(groups, tensors), _taken_out(state, tensors)


def _take_over(optimizer: Any, skeleton: Any, root_rank: int, tensors: list[Any]) -> None:
    """Gives an optimizer the root's options and state; the tensors in it are still to be received."""
    sizes, groups, state = skeleton
    here = [len(group["params"]) for group in optimizer.param_groups]
    if here != sizes:
        raise ValueError(f"broadcast_optimizer_state: rank {root_rank}'s optimizer has groups of {sizes} parameters, this "
                         f"one of {here}; they must be made alike")
    parameters = _parameters(optimizer)
    for group, options in zip(optimizer.param_groups, groups):
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        group.update(_filled(options, group, device, tensors))
    former = dict(optimizer.state)
    optimizer.state.clear()
    for key, value in state.items():
        owner = parameters[key] if isinstance(key, int) else key
        device = parameters[key].device if isinstance(key, int) else torch.device("cpu")
        optimizer.state[owner] = _filled(value, former.get(owner), device, tensors)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Gives every rank's optimizer the options and the state of the global rank `root_rank`'s.

    An optimizer that has made no step yet is not made to make one: what the root does not have, the others do not have
    afterwards. Its parameters have gradients afterwards, zeroes where there was none, as Horovod's users know it.
    `model` is accepted and not needed. ValueError: torch.optim.LBFGS; groups that differ between the ranks."""
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    is_root = _session.current().rank == root_rank
    tensors: list[Any] = []
    skeleton = _optimizer_skeleton(optimizer, tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state", process_set)
    if not skeleton[2]:
        for parameter in _parameters(optimizer):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    if not is_root:
        _take_over(optimizer, skeleton, root_rank, tensors)
    _broadcast_all([(f"optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)], root_rank,
                   process_set)
