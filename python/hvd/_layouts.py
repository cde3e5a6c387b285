# SPDX-License-Identifier: Apache-2.0
"""Whether ranks have the same variables."""
from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hvd import objects
from hvd.process_sets import ProcessSet, global_process_set

#: Type and shape of a variable.
Layout = tuple[str, list[int]]


def are_alike(what: str, layouts: Sequence[Layout], process_set: ProcessSet = global_process_set) -> bool:
    """Whether variables have the same layouts on all ranks of the set; every rank hears the same. Collective."""
    digest = hashlib.sha256(repr(layouts).encode()).digest()
    return len(set(objects.allgather_object(digest, f"{what}.digest", process_set))) == 1


def raise_difference(what: str, layouts: Sequence[Layout], names: Sequence[str], advice: str,
                     process_set: ProcessSet = global_process_set) -> None:
    """ValueError on every rank: which variable, of those that are not alike, differs first. Collective."""
    every = objects.allgather_object((layouts, names), f"{what}.layout", process_set)
    ranks = process_set.ranks or []
    counts = [len(layout) for layout, _ in every]
    if len(set(counts)) > 1:
        said = ", ".join(f"rank {member} has {count}" for member, count in zip(ranks, counts))
        raise ValueError(f"{what}: ranks have different numbers of variables ({said}); {advice}")
    at = next(at for at in range(counts[0]) if len({repr(layout[at]) for layout, _ in every}) > 1)
    said = ", ".join(f"rank {member} has {layout[at][0]} {layout[at][1]} ({of[at]})"
                     for member, (layout, of) in zip(ranks, every))
    raise ValueError(f"{what}: ranks disagree on variable {at}: {said}; {advice}")
