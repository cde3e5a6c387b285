# SPDX-License-Identifier: Apache-2.0
"""The arguments of DistributedOptimizer."""
from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from hvd.basics import Average, Sum, rocm_built
from hvd.process_sets import ProcessSet, global_process_set


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are reduced. ValueError: what no framework takes."""
    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = None
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0:
            if rocm_built():
                raise ValueError("gradient_predivide_factor not supported yet with ROCm")
            if self.op != Average:
                raise ValueError("gradient_predivide_factor not supported with op != Average")
        if self.op not in (Average, Sum):
            raise ValueError("op currently only supports Average and Sum")
        if self.backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        if self.groups is not None and not (isinstance(self.groups, list) or
                                            isinstance(self.groups, int) and self.groups > 0):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")


def groups_of(num_groups: int, groups: Any) -> Any:
    """What `groups` and its deprecated form `num_groups` mean together."""
    if num_groups == 0:
        return groups
    warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed", DeprecationWarning,
                  stacklevel=3)
    return num_groups if groups is None else groups
