# SPDX-License-Identifier: Apache-2.0
"""init, shutdown, who am I, and what this build can do."""
from __future__ import annotations

import functools
import os
import pathlib
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from hvd import _native, _session, process_sets as _sets
from hvd._native import lib
from hvd.exceptions import HorovodInternalError
from hvd.objects import allgather_object
from hvd.process_sets import ProcessSet

#: Reduce ops, with the library's and Horovod's numbers.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Attaches this process to its job; does nothing when it is attached already.

    Rank and size come from the launcher's environment: hvdrun, horovodrun, torchrun, Open MPI, PMI, Slurm; with none of
    them this process is rank 0 of 1. Takes milliseconds; does not wait for the other ranks, unless process sets are
    given. May be repeated after shutdown() any number of times.

    comm: None; a list of global ranks, which then are a job of their own (this rank must be in it); an mpi4py
        communicator; or a list of communicators, the first for the job, the others for process sets.
    process_sets: sets to add at once, the same on every rank; or "dynamic". Sets that are given as communicators may differ:
        each rank gives those that it is in, and all are added on all ranks. Where this process is attached already,
        nothing is added: each stands for the registered set of its ranks.
    Raises ValueError("Horovod initialization failed. ...") when it cannot attach, or when ranks gave different sets; ValueError
    too when it is attached, and no set of these ranks is registered."""
    sets: Sequence[Any] = ()
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets is '{process_sets}'; it must be a list of process sets or \"dynamic\"")
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    elif process_sets:
        sets = process_sets
    communicators: list[Any] = []
    if isinstance(comm, (list, tuple)) and comm and not isinstance(comm[0], int):
        comm, *communicators = comm
    attach(lambda: _identity(comm), [*sets, *(ProcessSet(given) for given in communicators)])


def attach(identity: Callable[[], dict[str, Any]], sets: Sequence[Any] = ()) -> bool:
    """init() as the rank that `identity` gives as fields of struct hvd_options. False: this process is attached already, as
    whatever rank; then `identity` is not called."""
    try:
        _, opened = _session.open_current(identity)
    except (HorovodInternalError, ValueError) as error:
        raise ValueError(f"Horovod initialization failed. {error}{_hint(str(error))}") from error
    if opened:
        _add_static_sets(sets)
    else:
        _sets.bind(sets)
    return opened


def _hint(why: str) -> str:
    """What to do where a worker process of a rank, of a torch DataLoader for instance, runs init() again."""
    workers = sys.modules.get("multiprocessing")
    # While a spawned worker runs the script anew, it is __mp_main__ and does not yet know its parent.
    made = "__mp_main__" in sys.modules or (workers is not None and workers.parent_process() is not None)
    if "already attached" not in why or not made:
        return ""
    return (". This process was started by multiprocessing, by a rank: init() is for the rank alone; let the script call it "
            "under if __name__ == \"__main__\"")


def _add_static_sets(sets: Sequence[Any]) -> None:
    _sets.dynamic_allowed = _is_set("DYNAMIC_PROCESS_SETS")
    try:
        _sets.set_up(sets, allgather_object)
    except HorovodInternalError as error:
        shutdown()
        raise ValueError(f"Horovod initialization failed. {error}") from error
    except BaseException:
        shutdown()
        raise


def _is_set(name: str) -> bool:
    value = os.environ.get("HVD_" + name) or os.environ.get("HOROVOD_" + name) or "0"
    digits = value.strip().split()[0] if value.strip() else "0"
    return digits.lstrip("+").isdigit() and int(digits) > 0


def _identity(comm: Any) -> dict[str, Any]:
    """What hvd_open must not take from the environment."""
    if comm is None or comm == []:
        return {}
    if isinstance(comm, (list, tuple)):
        return _identity_among([int(rank) for rank in comm])
    if not hasattr(comm, "Get_rank"):
        raise ValueError(f"comm is {comm!r}; it must be None, a list of ranks or an mpi4py communicator")
    job = comm.bcast(f"mpi-{uuid.uuid4().hex[:16]}" if comm.Get_rank() == 0 else None, root=0)
    return {"rank": comm.Get_rank(), "size": comm.Get_size(), "job": job}


def _identity_among(ranks: list[int]) -> dict[str, Any]:
    probe = _session.open_session()
    rank, job = probe.rank, _native.quick.hvd_job(probe.pointer).decode()
    size = probe.size
    probe.close()
    if ranks == list(range(size)):
        return {}
    if rank not in ranks:
        raise ValueError(f"init(comm={ranks}): this process is rank {rank} of {size} and not among these ranks; only "
                         "those that are may call it")
    return {"rank": ranks.index(rank), "size": len(ranks), "job": f"{job}-{'.'.join(map(str, ranks))}"}


def shutdown() -> None:
    """Detaches this process. Ops that are not finished fail, here and on the ranks that wait for this one. Does nothing
    when not attached. Also called when the interpreter ends; if nothing is in flight then, and multiprocessing waits for no
    process, this process stays attached until it has ended, and other ranks are told its exit status if that is not 0."""
    try:
        _session.close_current()
    finally:
        if not _session.is_open():
            _sets.tear_down()


def is_initialized() -> bool:
    """Whether init() was called and shutdown() was not."""
    return _session.is_open()


def rank() -> int:
    """This process' number in the job, from 0. ValueError before init(), as for all questions below."""
    return _session.current().rank


def size() -> int:
    """The number of ranks in the job."""
    return _session.current().size


def local_rank() -> int:
    """This process' number among those of its node."""
    return _session.current().local_rank


def local_size() -> int:
    """The number of ranks on this node."""
    return _session.current().local_size


def cross_rank() -> int:
    """The number of this node among the nodes that have a rank of this local_rank()."""
    return _session.current().cross_rank


def cross_size() -> int:
    """How many nodes have a rank of this local_rank()."""
    return _session.current().cross_size


def is_homogeneous() -> bool:
    """Whether every node has as many ranks as this one."""
    session = _session.current()
    return session.local_size * session.cross_size == session.size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline of all ranks' ops to `file_path` (Chrome trace; valid at every moment) on rank 0; the other ranks'
    calls do nothing. Replaces a timeline that is being written. ValueError: the file cannot be written."""
    session = _session.current()
    if session.rank != 0:
        return
    pointer = session.enter()
    try:
        status = lib.hvd_timeline_start(pointer, os.fsencode(file_path), int(mark_cycles))
        if status == _native.ERR_EXISTS:
            _native.check(lib.hvd_timeline_stop(pointer))
            status = lib.hvd_timeline_start(pointer, os.fsencode(file_path), int(mark_cycles))
        _native.check(status)
    finally:
        session.leave()


def stop_timeline() -> None:
    """Completes the timeline's file; nothing when none is written."""
    session = _session.current()
    if session.rank != 0:
        return
    pointer = session.enter()
    try:
        _native.check(lib.hvd_timeline_stop(pointer))
    finally:
        session.leave()


def mpi_threads_supported() -> bool:
    """True: this makes no call of MPI, so mpi4py may be used by any thread. ValueError before init()."""
    _session.current()
    return True


def mpi_enabled() -> bool:
    """False: no MPI is used. Ranks that mpirun has started are understood all the same."""
    return False


def mpi_built() -> bool:
    """False: no MPI is linked."""
    return False


def gloo_enabled() -> bool:
    """False: no Gloo is used; the controller is hvdd."""
    return False


def gloo_built() -> bool:
    """False: no Gloo is linked."""
    return False


def _nobody_elses(path: str) -> bool:
    """Whether only root or this user can have written it, or put it there. An answer comes through hvdd's gate, which strangers
    talk to."""
    if not os.path.isabs(path):
        return False
    for way in map(pathlib.PurePath, (path, os.path.realpath(path))):
        for place in (way, *way.parents):
            told = os.lstat(place)
            is_safe = stat.S_ISLNK(told.st_mode) or not told.st_mode & 0o022 or (place != way and told.st_mode & stat.S_ISVTX)
            if told.st_uid not in (0, os.geteuid()) or not is_safe:
                return False
    return True


def _workers() -> tuple[str, str, str]:
    """The program hvdd-gpu, and the options gpu-kernels and gpu-library-path, of the hvdd that runs here; where none answers, or what it
    names is not to be seen here (a container) or may be another user's, the program of this package. "": no worker is started."""
    try:
        from hvd import admin  # pylint: disable=import-outside-toplevel  # which needs libzmq
        with admin.Admin() as asked:
            told = asked.status()
        if not told.gpu_program:
            return "", "", ""
        named = [told.gpu_program, told.gpu_kernels, *told.gpu_library_path.split(":")]
        if os.access(told.gpu_program, os.X_OK):
            if told.gpu_kernels and not os.path.exists(told.gpu_kernels):
                return "", "", ""
            if all(_nobody_elses(path) for path in named if path):
                return told.gpu_program, told.gpu_kernels, told.gpu_library_path
    except (OSError, ValueError, MemoryError, RuntimeError, ImportError):
        pass
    return _native.program_path("hvdd-gpu") or "", "", ""


@functools.lru_cache(maxsize=1)
def _workers_find(session: _session.Session | None) -> dict[str, int]:
    """What hvdd's workers of GPUs would find on this machine, by `hvdd-gpu --can`: kernels, driver, nccl. Opens no device. Asked
    anew in each session, which may be another hvdd's."""
    del session
    program, *options = _workers()
    if not program:
        return {}
    try:
        told = subprocess.run([program, "--can", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True,
                              timeout=20).stdout
        return {line.split()[0]: int(line.split()[1]) for line in told.splitlines()}
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return {}


def _found(what: str) -> int:
    return _workers_find(_session.current() if _session.is_open() else None).get(what, 0)


def nccl_built() -> int:
    """NCCL's version code, e.g. 22809, where hvdd's workers move memory between GPUs by it; 0: they find no NCCL, or
    cuda_built() is False. Asks the hvdd that runs here; without one the hvdd-gpu that is installed beside this package's library."""
    return _found("nccl") if cuda_built() else 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """Whether hvdd works on memory of GPUs where it lies: this build has kernels, and the machine a driver. False: tensors of
    GPUs go through memory of the host. Asks as nccl_built() does; why an engine refuses a GPU later is a line of the
    logger "hvd", or of hvdd's log."""
    return _found("kernels") > 0 and _found("driver") > 0


def rocm_built() -> bool:
    """False."""
    return False
