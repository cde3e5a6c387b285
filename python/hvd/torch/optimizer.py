# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: any torch optimizer, whose gradients are averaged over the ranks before it steps.

    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         named_parameters=model.named_parameters())

What it returns is an object of a class of its own, named like and derived from the class of the optimizer it was given,
and shares that one's parameter groups and state. `_reducer.py` does the work during backward.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from hvd import collectives
from hvd.basics import Adasum, Average, rocm_built, size
from hvd.objects import broadcast_object
from hvd.process_sets import ProcessSet, global_process_set
from hvd.torch import _reducer
from hvd.torch._framework import engine
from hvd.torch.compression import Compression

_ZERO_GRAD_TOO_EARLY = ("optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                        "optimizer.synchronize(). This is prohibited as it can cause a race condition.")
_STEP_AFTER_SYNCHRONIZE = ("optimizer.step() called without optimizer.skip_synchronize() context after "
                           "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                           "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.")


#: The beginning of names that the user has not given.
_NONAME = "allreduce.noname."


def _names(param_groups: list[dict[str, Any]], named_parameters: Any) -> dict[Any, str]:
    """Parameter -> name, of all parameters in the groups. ValueError as Horovod's users know them."""
    if named_parameters is None:
        return {parameter: f"{_NONAME}{i}.{j}"
                for i, group in enumerate(param_groups) for j, parameter in enumerate(group["params"])}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually produced by "
                         "model.named_parameters().")
    names = [name for name, _ in named]
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        raise ValueError("Parameter names in named_parameters must be unique. "
                         f"Found duplicates: {', '.join(duplicates)}")
    found = {parameter: name for name, parameter in named}
    unnamed = [id(parameter) for group in param_groups for parameter in group["params"] if parameter not in found]
    if unnamed:
        raise ValueError("named_parameters was specified, but one or more model parameters were not named. "
                         f"Python object ids: {', '.join(map(str, unnamed))}")
    return found


def _group_numbers(groups: Any, parameters: list[Any], names: dict[Any, str],
                   process_set: ProcessSet) -> dict[Any, int]:
    """Parameter -> the group whose members are reduced together; none for those that are in no group."""
    if groups is None:
        return {}
    if not isinstance(groups, list):
        if not isinstance(groups, int) or groups <= 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        order = broadcast_object([names[parameter] for parameter in parameters], min(process_set.ranks or [0]),
                                 name="optimizer.groups", process_set=process_set)
        places = {name: place for place, name in enumerate(order)}
        count = min(groups, len(parameters))
        return {parameter: places[names[parameter]] * count // len(parameters) for parameter in parameters}
    numbers: dict[Any, int] = {}
    for number, group in enumerate(groups):
        for parameter in group:
            if not isinstance(parameter, torch.Tensor):
                raise ValueError("groups must consist of torch.Tensor.")
            if parameter in numbers:
                raise ValueError("A parameter can only appear once in groups.")
            numbers[parameter] = number
    return numbers


def _has_more_bits(copy: Any, original: Any) -> bool:
    return (copy.shape == original.shape and copy.is_floating_point() and original.is_floating_point()
            and torch.finfo(copy.dtype).bits > torch.finfo(original.dtype).bits)


class _MasterCopy:
    """What may be a copy of a parameter: of its shape, in its place in the groups, of more bits. One that autograd reaches is
    a parameter of its own."""

    def __init__(self, copy: Any, original: Any) -> None:
        self.original = original
        self.is_reached = False
        me = weakref.ref(self)

        def reach(*_: Any) -> None:
            alive = me()
            if alive is not None:
                alive.is_reached = True
        self.hook = _reducer.hook_of(copy, reach)


class _Common:
    """What both distributed optimizers share. Mixed into a subclass of the user's optimizer, so every name of its own
    begins with `_hvd`; `_parameter_names` and `_allreduce_grad_async` are ones that users know."""

    def _hvd_watch(self, named_parameters: Any, reducer: Any, groups: Any, process_set: ProcessSet) -> None:
        names = _names(self.param_groups, named_parameters)
        self._hvd_reducer = reducer
        self._parameter_names = names
        self._hvd_set = process_set
        self._synchronized = False
        self._should_synchronize = True
        wanted = [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]
        self._hvd_active = bool(process_set.included()) and (size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")
        self._hvd_places = {(i, j): parameter for i, group in enumerate(self.param_groups)
                            for j, parameter in enumerate(group["params"])}
        self._hvd_copies: dict[Any, _MasterCopy] = {}
        numbers = {}
        if process_set.included():
            numbers = _group_numbers(groups, wanted, names, process_set)
        if self._hvd_active:
            for parameter in wanted:
                reducer.add(parameter, names[parameter], numbers.get(parameter))

    def _hvd_find_new(self) -> None:
        """Takes in parameters that were added, or require gradients, only now. Parameters that are in no group any more are
        left out after the step, but for those of which a group has a master copy."""
        reducer = self._hvd_reducer
        grouped = set()
        for i, group in enumerate(self.param_groups):
            for j, parameter in enumerate(group["params"]):
                grouped.add(parameter)
                if self._hvd_is_copy((i, j), parameter):
                    continue
                self._hvd_places[i, j] = parameter
                if parameter.requires_grad and parameter not in reducer:
                    if parameter not in self._parameter_names:
                        self._parameter_names[parameter] = self._hvd_free_name(f"{_NONAME}{i}.{j}")
                    reducer.add(parameter, self._parameter_names[parameter])
        for gone in self._hvd_copies.keys() - grouped:
            self._hvd_copies.pop(gone).hook[0].remove()
        originals = {copy.original for copy in self._hvd_copies.values() if not copy.is_reached}
        for parameter in reducer.leave_out_all_but(grouped | originals):
            if self._parameter_names.get(parameter, "").startswith(_NONAME):
                del self._parameter_names[parameter]

    def _hvd_is_copy(self, place: tuple[int, int], parameter: Any) -> bool:
        """Whether it is a master copy, which mixed precision puts into the place of a parameter that autograd goes on with."""
        reducer, original = self._hvd_reducer, self._hvd_places.get(place)
        if (parameter not in self._hvd_copies and parameter not in reducer and original in reducer and parameter.requires_grad
                and _has_more_bits(parameter, original) and (parameter.grad is None or reducer.has_come(original))):
            self._hvd_copies[parameter] = _MasterCopy(parameter, original)
        return parameter in self._hvd_copies and not self._hvd_copies[parameter].is_reached

    def _hvd_free_name(self, wanted: str) -> str:
        """The name `wanted`, or one like it, that no parameter has; a parameter that was replaced in this step still has its
        own. The same on all ranks."""
        taken = set(self._parameter_names.values())
        numbered = (f"{wanted}.{number}" for number in itertools.count(1))
        return wanted if wanted not in taken else next(name for name in numbered if name not in taken)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; the gradients of the new parameters are reduced too. Every rank adds the same."""
        super(type(self), self).add_param_group(param_group)
        if getattr(self, "_hvd_active", False):
            self._hvd_find_new()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own; a step that is under way is forgotten."""
        self._synchronized = False
        self._should_synchronize = True
        self._hvd_reducer.abandon()
        groups = self.param_groups
        super(type(self), self).load_state_dict(*args, **kwargs)
        groups[:] = self.param_groups  # the list is that of the optimizer it was made of, which a scheduler may have
        self.param_groups = groups

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients are reduced after `passes` backward passes, and are the sum over them."""
        self.backward_passes_per_step = passes
        self._hvd_reducer.set_passes(passes)

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, set_to_none included. AssertionError while gradients are being reduced."""
        if self._hvd_reducer.outstanding:
            raise AssertionError(_ZERO_GRAD_TOO_EARLY)
        return super(type(self), self).zero_grad(*args, **kwargs)


class _DistributedOptimizer(_Common):
    """Averages (or sums, ...) gradients."""

    def synchronize(self) -> None:
        """Waits until every p.grad is the reduced one, also of parameters that got no gradient on this rank (zeroes are
        sent for them). After it gradients may be read and changed: clip, unscale. Does nothing on ranks outside the
        process set. HorovodInternalError: another rank failed; its gradients are then undefined."""
        if self._hvd_active:
            self._hvd_find_new()
            self._hvd_reducer.finish()
        self._synchronized = bool(self._hvd_set.included())

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it step() does not synchronize: for use after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """The optimizer's own step with reduced gradients. A closure's gradients are reduced each time it was called;
        for LBFGS the loss it gives is averaged too, so that all ranks decide alike."""
        if closure is not None and self._should_synchronize:
            given = closure

            def closure() -> Any:
                loss = given()
                self.synchronize()
                return _averaged(loss, self._hvd_set) if isinstance(self, torch.optim.LBFGS) else loss
        elif self._should_synchronize:
            if self._synchronized:
                warnings.warn(_STEP_AFTER_SYNCHRONIZE)
            self.synchronize()
        self._synchronized = False
        own = super(type(self), self).step
        result = own() if closure is None else own(closure)
        self._synchronized = False
        return result

    def _allreduce_grad_async(self, parameter: Any) -> tuple[Any, Any]:
        """Starts the reduction of one gradient by itself, in place; what synchronize() of mpi_ops takes (a function that
        waits, for a sparse one), and what the compressor's decompress() takes. Here for the scripts that tell a
        distributed optimizer by this name, or call it for a parameter that their hooks leave out."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return self._hvd_reducer.start_alone(parameter.grad, self._parameter_names[parameter])

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps it otherwise, and step hooks would run twice


def _averaged(loss: Any, process_set: ProcessSet) -> Any:
    if not process_set.included() or process_set.size() == 1:
        return loss
    mean = torch.as_tensor(loss, dtype=torch.float64, device="cpu").detach().reshape(()).clone()
    return collectives.complete(engine.start_allreduce(mean, mean, Average, "optimizer.loss", 1.0, 1.0, process_set))


class _DistributedAdasumOptimizer(_Common):
    """Steps on each gradient as it comes, and combines what the steps changed by Adasum."""

    def synchronize(self) -> None:
        """Nothing: gradients stay as this rank has computed them."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """AssertionError: there is nothing to skip."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield  # pylint: disable=unreachable

    def step(self, closure: Any = None) -> Any:
        """Waits for the combined changes and applies them; the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._hvd_find_new()
        self._hvd_reducer.finish()
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def _hvd_delta(self, parameter: Any) -> Any:
        """What the optimizer's own step changes about one parameter, which keeps its value."""
        start = parameter.detach().clone()
        everything = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["params"] = [each for each in group["params"] if each is parameter]
            super(type(self), self).step()
        finally:
            for group, params in zip(self.param_groups, everything):
                group["params"] = params
        delta = parameter.detach() - start
        parameter.data.copy_(start)
        return delta


class _DeltaReducer(_reducer.Reducer):
    """Sends what a step on the gradient changes, each parameter by itself, and adds what comes back."""
    _joins_small = False
    _allows_direct = False

    def __init__(self, optimizer: Any, **options: Any) -> None:
        super().__init__(**options)
        self._optimizer = weakref.ref(optimizer)

    def _outgoing(self, slot: _reducer.Slot) -> Any:
        return self._optimizer()._hvd_delta(slot.parameter)  # pylint: disable=protected-access

    def _deliver(self, slot: _reducer.Slot) -> None:
        slot.parameter.data.add_(self._result(slot).to(slot.parameter))


def _derived(optimizer: Any, mixin: type) -> Any:
    """An object of a class named like and derived from the optimizer's, which shares its groups, state and settings."""
    base = type(optimizer)
    members = {name: value for part in (_Common, mixin) for name, value in vars(part).items()
               if name not in ("__dict__", "__weakref__")}
    # Frameworks on top of Horovod look for its name in the class's, to know what is wrapped already.
    if "horovod.torch.optimizer" in sys.modules:
        members["__module__"] = "horovod.torch.optimizer"
    derived = type(base.__name__, (base,), members)
    made = derived.__new__(derived)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler's wrapper around the step of the original
    return made


def DistributedOptimizer(optimizer: Any, named_parameters: Any = None,  # pylint: disable=invalid-name
                         compression: Any = Compression.none, backward_passes_per_step: int = 1, op: int = Average,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0, groups: Any = None,
                         sparse_as_dense: bool = False, process_set: ProcessSet = global_process_set) -> Any:
    """A torch optimizer that steps on gradients reduced over the ranks of `process_set`.

    Reductions start while backward still runs; step() or synchronize() waits for them. On the host p.grad lies in memory
    that the engine works on in place.

    optimizer: any torch.optim.Optimizer. The result shares its param_groups and state; use the result only.
    named_parameters: (name, parameter) of at least all of its parameters, as model.named_parameters() gives; names pair
        gradients of different ranks. Without, parameters are numbered, and have to be in the same order everywhere.
    compression: Compression.none, .fp16 or .bf16: the type gradients travel in; or a compressor of one's own.
    backward_passes_per_step: how many backward passes autograd sums up before gradients are reduced.
    op: Average, Sum, or another reduce op; Adasum: the optimizer's steps are combined instead of gradients.
    gradient_predivide_factor: with Average: gradients are divided by it before the sum, and by size / factor after it.
    groups: how many groups, or a list of lists of parameters: those of a group are reduced together. num_groups: its
        old name.
    sparse_as_dense: sparse gradients are reduced as dense ones; otherwise values and indices are gathered.

    Raises ValueError for bad arguments; its methods say what they raise."""
    if hasattr(optimizer, "_hvd_watch"):
        raise ValueError("hvd.DistributedOptimizer: this optimizer is distributed already; its gradients would be reduced "
                         "twice. Wrap it once")
    collectives.check_reduce_op(op)
    if not callable(getattr(compression, "compress", None)):
        raise ValueError(f"compression is a compressor such as hvd.Compression.fp16, not {compression!r}")
    if gradient_predivide_factor != 1.0:
        if rocm_built():
            raise ValueError("gradient_predivide_factor not supported yet with ROCm")
        if op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
                      DeprecationWarning, stacklevel=2)
        if groups is None:
            groups = num_groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    delta = op == Adasum and size() > 1
    if delta and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    made = _derived(optimizer, _DistributedAdasumOptimizer if delta else _DistributedOptimizer)
    options = {"op": op, "compression": compression, "passes": backward_passes_per_step,
               "prescale": 1.0 / gradient_predivide_factor, "postscale": float(gradient_predivide_factor),
               "sparse_as_dense": sparse_as_dense, "process_set": process_set}
    reducer = _DeltaReducer(made, **options) if delta else _reducer.Reducer(**options)
    made.backward_passes_per_step = backward_passes_per_step
    made._hvd_watch(named_parameters, reducer, None if delta else groups, process_set)
    return made
