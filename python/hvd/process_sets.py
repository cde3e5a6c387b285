# SPDX-License-Identifier: Apache-2.0
"""Subsets of the job's ranks with collectives of their own. A set that waits never delays another."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from hvd import _native, _ops, _session
from hvd._native import lib, quick
from hvd.exceptions import HorovodInternalError


def _is_mpi_comm(value: Any) -> bool:
    return hasattr(value, "Get_rank") and hasattr(value, "Get_size")


def ranks_of_comm(comm: Any) -> list[int]:
    """The global ranks behind an mpi4py communicator; none behind MPI.COMM_NULL. Collective over that communicator."""
    return sorted(comm.allgather(_session.current().rank)) if comm else []


class ProcessSet:
    """Ranks of the job that do collectives among themselves.

    Made by `init(process_sets=[...])` or `add_process_set`; before that `process_set_id` is None. `ranks`: global
    ranks, ascending. An mpi4py communicator may stand for them. Before init() its ranks are not known, and `ranks` is None."""

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        if _is_mpi_comm(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            self.ranks = ranks_of_comm(ranks_or_comm) if _session.is_open() else None
        else:
            self.ranks = sorted(int(rank) for rank in ranks_or_comm)

    def _invalidate(self) -> None:
        self.process_set_id = None

    def size(self) -> int | None:
        """Number of members; None before the set is registered."""
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return _session.current().size
        return len(self.ranks or ())

    def rank(self) -> int | None:
        """This process' place in the set, None before it is registered. ValueError when it is no member."""
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return _session.current().rank
        place = quick.hvd_process_set_rank(_session.current().pointer, self.process_set_id)
        if place == -1:
            raise ValueError(f"rank {_session.current().rank} is not a member of {self}")
        _native.check(place)
        return place

    def included(self) -> bool | None:
        """Whether this process is a member; None while the ranks are not known."""
        if self.process_set_id == 0:
            return True
        return None if self.ranks is None else _session.current().rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
global_process_set.ranks = None
_registered: dict[int, ProcessSet] = {}
_bound: list[ProcessSet] = []  # objects beside those, which a repeated init() was given

#: Whether HOROVOD_DYNAMIC_PROCESS_SETS=1 or init(process_sets="dynamic") announced sets that are added later. Under the name
#: `horovod` they must be announced (python/compat), under ours they need not be.
dynamic_allowed = False


def _start(ranks: Sequence[int]) -> _ops.Op:
    wanted = (ctypes.c_int * max(1, len(ranks)))(*ranks)
    try:
        return _ops.submit(lib.hvd_process_set_add_async, None, wanted, len(ranks), owns_result=True)
    except ValueError as error:
        raise ValueError(_explain(ranks, str(error))) from None


def _explain(ranks: Sequence[int], text: str) -> str:
    """The library's sentence, begun as Horovod's users know it where they match on it."""
    twice = sorted({rank for rank in ranks if list(ranks).count(rank) > 1})
    size = _session.current().size
    foreign = [rank for rank in ranks if not 0 <= rank < size]
    if twice:
        return f"Tried to register process set with duplicate rank: {twice[0]} ({text})"
    if foreign:
        return f"Tried to register process set with invalid rank: {foreign[0]} ({text})"
    if any(other.ranks == sorted(ranks) for other in [global_process_set, *_registered.values()]):
        return f"Attempted to add a duplicate process set: {list(ranks)} ({text})"
    return text


def _land(process_set: ProcessSet, op: _ops.Op) -> None:
    try:
        op.wait()
    except HorovodInternalError as error:
        if op.status in _native.CALLERS_MISTAKES:
            raise ValueError(_explain(process_set.ranks or [], str(error))) from None
        raise
    process_set.process_set_id = op.answer(quick.hvd_op_process_set)
    _registered[process_set.process_set_id] = process_set


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a set and returns it. Every rank of the job, member or not, must add the same sets in the same order; blocks
    until all have. Communicators that differ between ranks are for init() only; give lists of ranks here. ValueError: a
    duplicate set or rank, an unknown rank."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set} is registered already")
    if process_set.ranks is None:
        process_set.ranks = ranks_of_comm(process_set.mpi_comm)
    _land(process_set, _start(process_set.ranks or []))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set on all ranks (each must call it); blocks until all have. False for the global set and for a set
    that is not registered. The object is invalid afterwards."""
    set_id = process_set.process_set_id
    if not set_id:
        return False
    try:
        op = _ops.submit(lib.hvd_process_set_remove_async, None, set_id)
    except ValueError:
        return False
    op.wait()
    _registered.pop(set_id, None)
    for same in [process_set, *(bound for bound in _bound if bound.process_set_id == set_id)]:
        same._invalidate()  # pylint: disable=protected-access
    return True


def process_set_ids() -> list[int]:
    """The ids of all sets, 0 (all ranks) included."""
    session = _session.current()
    count = quick.hvd_process_set_ids(session.pointer, None, 0)
    ids = (ctypes.c_int * max(1, count))()
    return list(ids[:quick.hvd_process_set_ids(session.pointer, ids, count)])


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Id -> global ranks, of every set."""
    session = _session.current()
    found = {}
    for set_id in process_set_ids():
        ranks = (ctypes.c_int * session.size)()
        count = quick.hvd_process_set_ranks(session.pointer, set_id, ranks, session.size)
        found[set_id] = list(ranks[:count])
    return found


def set_up(process_sets: Sequence[ProcessSet | Sequence[int] | Any], gather: Callable[..., list[Any]]) -> None:
    """After the session was opened: the global set, and the static ones, all at once. `gather`: allgather_object()."""
    session = _session.current()
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(session.size))
    wanted = [given if isinstance(given, ProcessSet) else ProcessSet(given) for given in process_sets]
    if not wanted:
        return
    every = _in_one_order(wanted, gather)
    for at, process_set in enumerate(wanted):
        if process_set.ranks in [before.ranks for before in wanted[:at]] + [global_process_set.ranks]:
            raise ValueError(f"A process set was given twice: number {at} of process_sets, {process_set}")
    started = [(process_set, _start(process_set.ranks or [])) for process_set in every]
    for process_set, op in started:
        _land(process_set, op)


def bind(process_sets: Sequence[ProcessSet | Sequence[int] | Any]) -> None:
    """For an init() that finds a session open: each of these stands for the registered set of its ranks. ValueError: there is
    none, or two have the same ranks."""
    ids = {tuple(ranks): set_id for set_id, ranks in get_process_set_ids_and_ranks().items()} if process_sets else {}
    seen = {0}
    for at, given in enumerate(process_sets):
        process_set = given if isinstance(given, ProcessSet) else ProcessSet(given)
        if process_set.ranks is None:
            process_set.ranks = ranks_of_comm(process_set.mpi_comm)
        set_id = ids.get(tuple(process_set.ranks)) if process_set.ranks else None
        if process_set.ranks and set_id is None:
            raise ValueError(f"init() was called before, and no process set of the ranks {process_set.ranks} is registered "
                             f"(number {at} of process_sets); add it with add_process_set")
        if set_id in seen:
            raise ValueError(f"A process set was given twice: number {at} of process_sets, {process_set}")
        if set_id is not None:
            seen.add(set_id)
            process_set.process_set_id = set_id
            _bound.append(process_set)


def _in_one_order(wanted: Sequence[ProcessSet], gather: Callable[..., list[Any]]) -> list[ProcessSet]:
    """The sets that every rank adds, in the same order: those given as ranks, which are the same everywhere; then those of the
    communicators of all ranks, by their ranks. Finds out the ranks of this rank's communicators."""
    own: dict[tuple[int, ...], ProcessSet] = {}
    for process_set in wanted:
        if process_set.mpi_comm is not None:
            process_set.ranks = ranks_of_comm(process_set.mpi_comm)
            own[tuple(process_set.ranks)] = process_set
    # A rank whose sets are refused leaves. All have come by then, so that their next init() meets them all.
    found = sorted({ranks for theirs in gather(list(own), "process_sets") for ranks in theirs if ranks})
    return [*(given for given in wanted if given.mpi_comm is None), *(own.get(ranks) or ProcessSet(ranks) for ranks in found)]


def tear_down() -> None:
    """After the session was closed: no set is registered any more."""
    for process_set in [*_registered.values(), *_bound]:
        process_set._invalidate()  # pylint: disable=protected-access
    _registered.clear()
    _bound.clear()
    global_process_set._invalidate()  # pylint: disable=protected-access
    global_process_set.ranks = None


def of_id(set_id: int) -> ProcessSet:
    """The set with this id. ValueError: there is none."""
    process_set = _registered.get(set_id) if set_id else global_process_set
    if process_set is None:
        raise ValueError(f"process set {set_id} does not exist, or has not been registered; add it on every rank with "
                         "hvd.add_process_set first")
    return process_set


def registered_id(process_set: ProcessSet, what: str) -> int:
    """The id for an op, whoever is a member. ValueError in Horovod's words when the set is not registered."""
    set_id = process_set.process_set_id
    if set_id == 0 or process_set is global_process_set:
        return 0
    if set_id not in _registered:
        raise ValueError(f"{what}: Process set provided does not exist, or has not been registered.")
    return set_id


def id_of(process_set: ProcessSet, what: str) -> int:
    """registered_id() for an op that starts now: ValueError too when this rank is no member."""
    if process_set.process_set_id == 0:
        return 0
    session = _session.current()
    set_id = registered_id(process_set, what)
    if set_id and session.rank not in (process_set.ranks or ()):
        raise ValueError(f"{what}: Rank {session.rank} is not a member of the provided process set.")
    return set_id
