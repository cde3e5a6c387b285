# SPDX-License-Identifier: Apache-2.0
"""Helpers that scripts and their tests import."""
from __future__ import annotations

import functools
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hvd import basics as _basics
from hvd.collectives import reduce_op_of
from horovod.common.exceptions import HorovodVersionMismatchError, get_version_mismatch_message

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

#: A decorator: each call with the same arguments gives the first one's result. Tests of Horovod import it.
_cache = functools.lru_cache(maxsize=None)


def _words(name: str) -> str:
    """The framework in 'torch', 'horovod.torch' or a path."""
    return os.path.basename(name).rpartition(".")[2]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether horovod.<ext_base_name> can be imported: the framework is installed and hvd has a module for it."""
    del verbose
    found = [importlib.util.find_spec(name) for name in (ext_base_name, f"hvd.{ext_base_name}")]
    return all(spec is not None and spec.origin is not None for spec in found)  # not just a folder of that name


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Nothing, for a framework that is supported; else ImportError. Nothing is built for any of them."""
    del ext_env_var, pkg_path, args
    if not extension_available(_words(ext_name)):
        raise ImportError(f"{ext_name} is not available: {_words(ext_name)} is not installed, or hvd does not support it")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether that framework sees a GPU."""
    del verbose
    if not extension_available(ext_base_name):
        return False
    if ext_base_name == "tensorflow":
        import tensorflow  # pylint: disable=import-outside-toplevel
        return bool(tensorflow.config.list_physical_devices("GPU"))
    import torch  # pylint: disable=import-outside-toplevel
    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """False."""
    del verbose
    return _basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """False."""
    del verbose
    return _basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """NCCL's version code, 0 for none."""
    del verbose
    return _basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    del verbose
    return _basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    del verbose
    return _basics.ccl_built()


def get_ext_suffix() -> str:
    """What the file names of compiled modules end with."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where a compiled module would lie beside the file `pkg_path`."""
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Nothing: no framework's version is compiled in."""
    del name, version, exception


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """The environment with these variables (None: without) for the time of a `with`."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set(kwargs)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """A function of (op, average) that gives the op. `reduce_ops` does not matter: ops have the same numbers everywhere."""
    del reduce_ops
    return reduce_op_of


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741
    """`l` in `n` pieces in order, the first ones longer by one where it does not come out even."""
    length, longer = divmod(len(l), n)
    starts = [i * length + min(i, longer) for i in range(n + 1)]
    return [l[start:end] for start, end in zip(starts, starts[1:])]


def is_iterable(x: Any) -> bool:
    """Whether iter(x) works."""
    return isinstance(x, Iterable) or hasattr(x, "__getitem__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a release `ver` is `target` or later, by their numbers: '2.0.1+cpu' counts as 2.0.1. ValueError for a
    `target` that is not made of three numbers, '1.10' for example."""
    if not re.fullmatch(r"\d+\.\d+\.\d+.*", target):
        raise ValueError(f"a version to compare with has the form 1.2.3, not '{target}'")
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in found.group().split(".")] if found else []
    return tuple((parts + [0, 0, 0])[:3])


__all__ = ["EXTENSIONS", "HorovodVersionMismatchError", "ccl_built", "check_extension", "check_installed_version",
           "ddl_built", "env", "extension_available", "get_average_backwards_compatibility_fun", "get_ext_suffix",
           "get_extension_full_path", "get_version_mismatch_message", "gloo_built", "gpu_available", "is_iterable",
           "is_version_greater_equal_than", "mpi_built", "nccl_built", "num_rank_is_power_2", "split_list"]
