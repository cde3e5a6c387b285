# SPDX-License-Identifier: Apache-2.0
"""Any optimizer of any Keras, whose gradients are reduced over the ranks before it does anything with them.

What distribute() returns is an object of a class of its own, named like and derived from the class of the optimizer that
was given, which shares that one's state (steps, slots, learning rate), so that files saved with it load without hvd. It
takes gradients where its Keras does, and passes them on:

    Keras 3            apply(), which apply_gradients() calls
    Keras 2, tf_keras  apply_gradients(); also what those call that give gradients out: get_gradients(),
                       aggregate_gradients(). What was given out reduced carries a mark and is not reduced again

so everything that an optimizer does comes after the reduction: unscaling, clipping, weight decay, moving averages. A
LossScaleOptimizer that Keras puts around one by itself (mixed_float16) has to do its part after it too: whether gradients
are finite is asked of the reduced ones, or else ranks would disagree about whether there is a step, and wait for ever.
"""
from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd._keras import trainer
from hvd._keras.options import Options

_REDUCED, _PENDING = "_hvd_reduced", "_hvd_pending"
_FRAMEWORKS = {"tensorflow": "hvd._keras._tensorflow", "torch": "hvd._keras._torch"}


def is_distributed(optimizer: Any) -> bool:
    """Whether distribute() made this optimizer."""
    return isinstance(optimizer, _Common)


def owner_of(optimizer: Any) -> Any:
    """The distributed optimizer that this one is, or has inside; else None."""
    while optimizer is not None and not is_distributed(optimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


class _Common:
    """What distributed optimizers of every Keras share. Mixed into a subclass of the user's optimizer, so every name of
    its own begins with `_hvd`; `_agg_helper` is one that users know."""
    _hvd_base: type
    _hvd_options: Options
    _hvd_framework: Any

    @property
    def _hvd(self) -> Any:
        """The Gradients of this optimizer. Not an attribute that Keras sees: it would be saved with the model."""
        try:
            return self.__dict__["_hvd_gradients"]
        except KeyError:
            name = self._hvd_options.name or f"Distributed{self._hvd_base.__name__}"
            return self.__dict__.setdefault("_hvd_gradients", self._hvd_framework.Gradients(name, self._hvd_options))

    @property
    def _agg_helper(self) -> Any:
        """What sums up gradients; None where there is one pass per step."""
        return self._hvd if self._hvd.passes > 1 else None

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: it stays on its rank, divided by the number of ranks if
        scale_local_gradients."""
        self._hvd.register_local_var(var)

    @property
    def _hvd_passing(self) -> bool:
        """Whether what comes now is reduced."""
        return self.__dict__.get("_hvd_passes", 0) > 0

    @contextlib.contextmanager
    def _hvd_pass(self) -> Iterator[None]:
        self.__dict__["_hvd_passes"] = self.__dict__.get("_hvd_passes", 0) + 1
        try:
            yield
        finally:
            self.__dict__["_hvd_passes"] -= 1

    def _hvd_reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduced gradients; those that were given out reduced are left as they are."""
        wanted = [None if getattr(grad, _REDUCED, False) else grad for grad in grads]
        reduced = self._hvd.reduce(wanted, variables)
        return [grad if new is None else new for grad, new in zip(grads, reduced)]

    def _hvd_step(self, grads: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any]], Any],
                  prepare: Callable[[], Any], iterations: Callable[[], Any]) -> Any:
        """apply(reduced gradients), now or in every `passes`th call; in the others the step is only counted. prepare()
        makes the variables that apply() needs."""
        def applied(reduced: list[Any]) -> Any:
            with self._hvd_pass():
                return apply(reduced)

        if self._hvd.passes == 1:
            return applied(self._hvd_reduce(grads, variables))
        prepare()
        return self._hvd.accumulate(grads, variables, applied, lambda: self._hvd_framework.count_step(iterations()))


# ---- Keras 3 ----


def _apply_3(owner: Any, optimizer: Any, apply: Callable[..., Any], grads: Any, trainable_variables: Any) -> None:
    """`optimizer.apply(grads, trainable_variables)`, with gradients reduced as `owner` says."""
    grads = list(grads)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    elif optimizer.built:
        trainable_variables = list(optimizer._trainable_variables)
    if owner._hvd_passing or not grads or trainable_variables is None:
        apply(grads, trainable_variables)
        return

    def prepare() -> None:
        if not optimizer.built:
            optimizer.build(trainable_variables)
            optimizer.built = True

    owner._hvd_step(grads, trainable_variables, lambda reduced: apply(reduced, trainable_variables), prepare,
                    lambda: getattr(optimizer, "inner_optimizer", optimizer)._iterations)


class _Variables(list[Any]):
    """A list that scripts for Keras 2, where `variables` was a method, may also call."""

    def __call__(self) -> _Variables:
        return self


class _Keras3(_Common):
    @property
    def variables(self) -> list[Any]:
        """As the optimizer's own; `variables()` gives the same."""
        return _Variables(super().variables)  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the optimizer's own, with reduced gradients."""
        _apply_3(self, self, functools.partial(self._hvd_base.apply, self), grads, trainable_variables)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Keras copies by what it would write into a file, and that is not distributed."""
        make, written = self.__reduce__()
        memo[id(self)] = made = distribute(make(*written), self._hvd_options)
        return made


def _teach_loss_scaling_3(loss_scale_optimizer: type) -> None:
    """A LossScaleOptimizer around a distributed one reduces before it looks at gradients."""
    own = loss_scale_optimizer.apply

    @functools.wraps(own)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if is_distributed(self) or not is_distributed(self.inner_optimizer):
            own(self, grads, trainable_variables)
        else:
            _apply_3(self.inner_optimizer, self, functools.partial(own, self), grads, trainable_variables)
    loss_scale_optimizer.apply = apply


# ---- Keras 2 ----


def _marked(grads: Sequence[Any], mark: str) -> list[Any]:
    for grad in grads:
        if grad is not None:
            setattr(grad, mark, True)
    return list(grads)


def _apply_2(owner: Any, optimizer: Any, apply: Callable[..., Any], grads_and_vars: Any, args: Any, kwargs: Any) -> Any:
    """`optimizer.apply_gradients(grads_and_vars, *args, **kwargs)`, with gradients reduced as `owner` says."""
    pairs = list(grads_and_vars)
    aggregated = kwargs.get("skip_gradients_aggregation") or not kwargs.get("experimental_aggregate_gradients", True)
    if any(getattr(grad, _PENDING, False) for grad, _ in pairs):
        aggregated = False
    if owner._hvd_passing or aggregated or not pairs:
        return apply(pairs, *args, **kwargs)
    grads, variables = zip(*pairs)

    def prepare() -> None:
        build = getattr(optimizer, "_create_all_weights", None) or optimizer.build
        with owner._hvd_framework.outside_functions():
            build([variable for grad, variable in pairs if grad is not None])

    done = owner._hvd_step(grads, variables, lambda reduced: apply(list(zip(reduced, variables)), *args, **kwargs),
                           prepare, lambda: optimizer.iterations)
    return optimizer.iterations if owner._hvd.passes > 1 and not owner._hvd_framework.in_graph() else done


class _Keras2(_Common):
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As the optimizer's own, with reduced gradients; what the caller says is aggregated is not reduced."""
        return _apply_2(self, self, functools.partial(self._hvd_base.apply_gradients, self), grads_and_vars, args, kwargs)

    def _hvd_give_out(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Gradients for somebody who brings them back to apply_gradients(): reduced, unless they are to be summed up."""
        if self._hvd_passing:
            return list(grads)
        if self._hvd.passes > 1:
            return _marked(grads, _PENDING)
        return _marked(self._hvd_reduce(grads, variables), _REDUCED)


def _get_gradients(self: Any, loss: Any, params: Any) -> list[Any]:
    """As the optimizer's own, reduced. For optimizers that have it."""
    return self._hvd_give_out(self._hvd_base.get_gradients(self, loss, params), params)


class _Keras2New(_Keras2):
    """Optimizers of TensorFlow 2.11 and newer."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """As the optimizer's own, of reduced gradients."""
        grads, variables = zip(*grads_and_vars)
        return self._hvd_base.aggregate_gradients(self, list(zip(self._hvd_give_out(grads, variables), variables)))

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """Reduced gradients of a loss."""
        del grad_loss
        grads, variables = zip(*self._hvd_base.compute_gradients(self, loss, var_list, tape=tape))
        return list(zip(self._hvd_give_out(grads, variables), variables))


class _Keras2Legacy(_Keras2):
    """Optimizers before that, and keras.optimizers.legacy."""

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """Reduced gradients of a loss, for apply_gradients()."""
        pairs = self._hvd_base._compute_gradients(self, loss, var_list, grad_loss, tape=tape)
        grads, variables = zip(*pairs)
        return list(zip(self._hvd_give_out(grads, variables), variables))

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:
        grads, variables = zip(*grads_and_vars)
        return self._hvd_base._aggregate_gradients(self, list(zip(self._hvd_give_out(grads, variables), variables)))


def _teach_loss_scaling_2(loss_scale_optimizer: type) -> None:
    """As _teach_loss_scaling_3."""
    def outer(self: Any) -> bool:
        return is_distributed(self) or not is_distributed(self.inner_optimizer)

    apply = loss_scale_optimizer.apply_gradients

    @functools.wraps(apply)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if outer(self):
            return apply(self, grads_and_vars, *args, **kwargs)
        return _apply_2(self.inner_optimizer, self, functools.partial(apply, self), grads_and_vars, args, kwargs)
    loss_scale_optimizer.apply_gradients = apply_gradients

    def teach(gradients: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(gradients)
        def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if outer(self) else self.inner_optimizer._hvd_pass():
                return gradients(self, *args, **kwargs)
        return scaled

    for name in ("get_gradients", "_compute_gradients"):
        if hasattr(loss_scale_optimizer, name):
            setattr(loss_scale_optimizer, name, teach(getattr(loss_scale_optimizer, name)))


# ---- which Keras ----


class _Kind:
    """A generation of optimizers, as their base class shows it."""

    def __init__(self, module: str, name: str, mixin: type, scaling: tuple[str, ...], teach: Callable[[type], None]):
        self.module, self.name, self.mixin = module, name, mixin
        self.scaling, self.teach = scaling, teach


_KINDS = (
    _Kind("optimizers.base_optimizer", "BaseOptimizer", _Keras3, ("LossScaleOptimizer",), _teach_loss_scaling_3),
    _Kind("optimizer", "_BaseOptimizer", _Keras2New, ("LossScaleOptimizerV3",), _teach_loss_scaling_2),
    _Kind("optimizer_v2", "OptimizerV2", _Keras2Legacy, ("LossScaleOptimizer",), _teach_loss_scaling_2),
)


def _kind_of(optimizer: Any) -> tuple[_Kind, str]:
    """The generation of an optimizer, and the package that it is of ("keras", "tf_keras", ...)."""
    for base in type(optimizer).__mro__:
        for kind in _KINDS:
            if base.__name__ == kind.name and base.__module__.endswith("." + kind.module):
                return kind, base.__module__.split(".", maxsplit=1)[0]
    raise TypeError(f"hvd.DistributedOptimizer takes an optimizer of Keras, such as keras.optimizers.SGD(0.1), not "
                    f"{optimizer!r}. Optimizers of tf.compat.v1.train are for hvd.tensorflow.DistributedOptimizer, those "
                    "of torch.optim for hvd.torch.DistributedOptimizer")


def framework_of(keras: Any) -> Any:
    """The module here for what is under a Keras. NotImplementedError: neither TensorFlow nor PyTorch."""
    backend = keras.backend.backend() if hasattr(keras, "backend") and hasattr(keras.backend, "backend") else "tensorflow"
    if backend not in _FRAMEWORKS:
        raise NotImplementedError(f"hvd works with Keras on TensorFlow and on PyTorch, not on {backend}: set "
                                  "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before keras is imported")
    return importlib.import_module(_FRAMEWORKS[backend])


_TAUGHT: set[type] = set()


def _teach(kind: _Kind, package: str) -> None:
    """Once for each Keras in the process: loss scaling and compilation know of distributed optimizers."""
    scaling = next((module for name, module in list(sys.modules.items())
                    if name.startswith(package + ".") and name.endswith(".loss_scale_optimizer")), None)
    for name in kind.scaling:
        found = getattr(scaling, name, None)
        if found is not None and found not in _TAUGHT:
            _TAUGHT.add(found)
            kind.teach(found)
    trainer.teach(sys.modules[package], owner_of)


# ---- wrapping ----


def _keep_names(package: str, base: type, derived: type) -> None:
    """What Keras writes into files for `base` it writes for `derived` too."""
    for name, value in vars(base).items():
        if name.startswith(("_keras_api_names", "_tf_api_names")):
            setattr(derived, name, value)
    registries = (("api_export", "REGISTERED_OBJS_TO_NAMES"), ("object_registration", "GLOBAL_CUSTOM_NAMES"),
                  ("object_registration", "_GLOBAL_CUSTOM_NAMES"))
    for module, registry in registries:
        for path in (f"{package}.src.{module}", f"{package}.src.saving.{module}", f"{package}.saving.{module}"):
            known = getattr(sys.modules.get(path), registry, {})
            if base in known:
                known[derived] = known[base]


def distribute(optimizer: Any, options: Options) -> Any:
    """A distributed optimizer that shares the state of `optimizer`; use it alone from now on. TypeError: no optimizer of
    Keras. ValueError: wrapped already. NotImplementedError: Keras cannot use it here."""
    kind, package = _kind_of(optimizer)
    if owner_of(optimizer) is not None:
        raise ValueError("hvd.DistributedOptimizer: this optimizer is distributed already; its gradients would be reduced "
                         "twice. Wrap it once, after it was made or loaded (hvd.load_model wraps what it loads)")
    framework = framework_of(sys.modules[package])
    if kind.mixin is _Keras2New and framework.in_graph():
        name = type(optimizer).__name__
        raise NotImplementedError(f"hvd.DistributedOptimizer: in graphs of TensorFlow 1 Keras 2 has its legacy optimizers "
                                  f"only; use keras.optimizers.legacy.{name} in place of keras.optimizers.{name}")
    _teach(kind, package)
    base = type(optimizer)
    members = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__,
               "_hvd_base": base, "_hvd_options": options, "_hvd_framework": framework}
    if hasattr(base, "get_gradients"):
        members["get_gradients"] = _get_gradients
    derived = type(base)(base.__name__, (kind.mixin, base), members)
    _keep_names(package, base, derived)
    made = derived.__new__(derived)
    made.__dict__.update(optimizer.__dict__)
    if options.name:
        made.__dict__["name" if kind.mixin is _Keras3 else "_name"] = options.name
    return made
