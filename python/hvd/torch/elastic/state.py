# SPDX-License-Identifier: Apache-2.0
"""What a training run must not lose: model, optimizer, sampler and plain values, saved in memory, restored, and given
to other ranks."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from hvd import _session
from hvd._elastic import State, copies_of
from hvd.objects import broadcast_object
from hvd.torch.elastic.sampler import ElasticSampler
from hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """How one kind of value is saved, restored and synchronised."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps a copy of what the value is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes the value what it was at the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes it rank 0's on every rank, and saves it."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another value takes its place."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)


class ModelStateHandler(_StateDictHandler):
    """For torch.nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """For torch.optim.Optimizer."""

    def restore(self) -> None:
        # PyTorch's load_state_dict() takes tensors that fit as they are, and the next step would write to what is saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """For ElasticSampler. Ranks that used up different numbers of indices go on from rank 0's."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0, name="sampler_state"))
        self.save()


class ObjectStateHandler(_StateDictHandler):
    """For other objects that have state_dict() and load_state_dict(): schedulers, which belong to an optimizer, and scalers of
    gradients."""

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        found = broadcast_object(self.value.state_dict(), root_rank=0, name="object_state")
        if _session.current().rank != 0:
            self.value.load_state_dict(found)
        self.save()


_registry: list[tuple[Any, Any]] = [(torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler),
                                    (ElasticSampler, SamplerStateHandler)]


def get_handler_registry() -> list[tuple[Any, Any]]:
    """Pairs of a type and its StateHandler; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: Sequence[tuple[Any, Any]]) -> None:
    """Replaces them."""
    global _registry
    _registry = list(registry)


#: Where examples come from. A copy would not be what the loader of the script uses, and may be large.
_DATA = (torch.utils.data.Dataset, torch.utils.data.Sampler, torch.utils.data.DataLoader)


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return ObjectStateHandler(value) if _has_state(value) and not isinstance(value, _DATA) else None


def _stays(value: Any) -> bool:
    """Whether a plain value is neither copied nor sent."""
    return isinstance(value, _DATA) or _has_state(value)


def _copy_of(value: Any, memo: dict[int, Any]) -> Any:
    if _stays(value):
        return value
    if isinstance(value, torch.Tensor) and not value.is_leaf:  # a loss, for instance; torch copies no graph
        return value.detach().clone()
    return copy.deepcopy(value, memo)


class TorchState(State):
    """model, optimizer and each further keyword become attributes. What has a state dict (modules, optimizers, schedulers,
    scalers, ElasticSamplers) is saved by that, and stays the object that it is. Data sets, loaders and other samplers stay as
    they are; everything else is saved by copy.

    save(), restore(), sync() and commit() do their work in a job of fixed size; no host comes or goes yet."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_of(value) for name, value in given.items() if value is not None}
        object.__setattr__(self, "_handlers", {name: found for name, found in handlers.items() if found})
        object.__setattr__(self, "_plain", {name: value for name, value in given.items() if name not in self._handlers})
        object.__setattr__(self, "_reset_callbacks", [])
        self.save()

    def __getattr__(self, name: str) -> Any:
        if name in ("_handlers", "_plain"):
            raise AttributeError(name)
        if name in self._handlers:
            return self._handlers[name].value
        try:
            return self._plain[name]
        except KeyError:
            raise AttributeError(f"this state has no '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers and value is not None:
            self._handlers[name].set_value(value)
        elif name in self._handlers or name in self._plain:
            self._handlers.pop(name, None)
            self._plain[name] = value
        else:
            object.__setattr__(self, name, value)

    def _copies(self, values: dict[str, Any]) -> dict[str, Any]:
        """Copies of plain values. They refer to the objects of the handlers, not to copies of those."""
        memo = {id(handler.value): handler.value for handler in self._handlers.values()}
        return copies_of(values, type(self).__name__, _copy_of, memo)

    def save(self) -> None:
        """Keeps a copy of everything in memory. Where that fails or is interrupted, what was saved before is still there."""
        copies = self._copies(self._plain)
        before = [(handler, dict(vars(handler))) for handler in self._handlers.values()]
        try:
            for handler in self._handlers.values():
                handler.save()
            object.__setattr__(self, "_saved", copies)
        except BaseException:
            for handler, attributes in before:
                vars(handler).update(attributes)
            raise

    def restore(self) -> None:
        """Back to the last save()."""
        for handler in self._handlers.values():
            handler.restore()
        self._plain.update(self._copies(self._saved))

    def sync(self) -> None:
        """Makes everything rank 0's on every rank, and saves it. Collective over all ranks."""
        for handler in self._handlers.values():
            handler.sync()
        sent = {name: value for name, value in self._plain.items() if not _stays(value)}
        self._plain.update(broadcast_object(sent, root_rank=0, name="torch_state"))
        object.__setattr__(self, "_saved", self._copies(self._plain))

    def reset(self) -> None:
        """Deals the samplers' remaining indices to the ranks there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
