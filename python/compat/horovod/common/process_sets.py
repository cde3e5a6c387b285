# SPDX-License-Identifier: Apache-2.0
"""Process sets under Horovod's rule: after init() they can be added and removed only if that was announced. The names of
hvd know no such rule, in the same process too."""
from __future__ import annotations

from collections.abc import Sequence

from hvd import process_sets as _sets
from hvd.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set


def _consent(doing: str) -> None:
    if not _sets.dynamic_allowed:
        raise ValueError(f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {doing} process sets after init(), or call "
                         "init(process_sets=\"dynamic\")")


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """hvd.add_process_set, if dynamic process sets were announced; else ValueError."""
    _consent("adding")
    return _sets.add_process_set(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """hvd.remove_process_set, if dynamic process sets were announced; else ValueError."""
    _consent("removing")
    return _sets.remove_process_set(process_set)


__all__ = ["ProcessSet", "add_process_set", "get_process_set_ids_and_ranks", "global_process_set", "remove_process_set"]
