# SPDX-License-Identifier: Apache-2.0
"""What a training run must not lose: model, optimizer, sampler and plain values, saved in memory, restored, and given
to other ranks."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from hvd._elastic import State
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


_registry: list[tuple[Any, Any]] = [(torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler),
                                    (ElasticSampler, SamplerStateHandler)]


def get_handler_registry() -> list[tuple[Any, Any]]:
    """Pairs of a type and its StateHandler; the first that fits is taken."""
    return _registry


def set_handler_registry(registry: Sequence[tuple[Any, Any]]) -> None:
    """Replaces them."""
    global _registry
    _registry = list(registry)


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(State):
    """model, optimizer and each further keyword become attributes. Modules, optimizers and ElasticSamplers are saved by
    their state dicts, everything else by copy.

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
        if name in self._handlers:
            self._handlers[name].set_value(value)
        elif name in self._plain:
            self._plain[name] = value
        else:
            object.__setattr__(self, name, value)

    def save(self) -> None:
        """Keeps a copy of everything in memory."""
        for handler in self._handlers.values():
            handler.save()
        object.__setattr__(self, "_saved", copy.deepcopy(self._plain))

    def restore(self) -> None:
        """Back to the last save()."""
        for handler in self._handlers.values():
            handler.restore()
        self._plain.update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Makes everything rank 0's on every rank, and saves it. Collective over all ranks."""
        for handler in self._handlers.values():
            handler.sync()
        self._plain.update(broadcast_object(self._plain, root_rank=0, name="torch_state"))
        object.__setattr__(self, "_saved", copy.deepcopy(self._plain))

    def on_reset(self) -> None:
        """After the ranks have changed."""
        self.reset()
        super().on_reset()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Nothing: hosts do not come and go yet."""

    def reset(self) -> None:
        """Deals the samplers' remaining indices to the ranks there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
