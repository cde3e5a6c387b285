# SPDX-License-Identifier: Apache-2.0
"""What a node's hvdd knows: its jobs, ranks, stalls, traces, nodes and GPUs, and what happens to them. hvd_admin.h in Python, for
schedulers and monitors, and for trainers that want to know about their peers. Needs no rank and no `hvd.init()`.

    import hvd.admin
    with hvd.admin.Admin() as admin:
        for rank in admin.ranks("digits").ranks:
            print(rank.rank, rank.state)
        with admin.events() as events:
            for event in events:
                if event.kind == hvd.admin.RANK_LOST:
                    print(event.job, event.rank, event.text)

Times are in nanoseconds, as hvdctl's --json has them; timeouts are in seconds. Every call that waits lets other threads run. One thread at a
time uses an `Admin` or an `Events`.

Raises: ConnectionError where no hvdd answers, TimeoutError, PermissionError, LookupError for a job that is not there, ValueError, MemoryError,
and RuntimeError for the rest; the text is a sentence with the next step.
"""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Annotated, Any, NamedTuple, Optional, get_type_hints

from hvd._native import library_path

# Kinds of requests and events (enum hvd_admin_kind, enum hvd_admin_event_kind).
_STATUS, _JOBS, _RANKS, _STALLS, _JOB_STOP, _TRACE, _NODES, _GPUS, _LIMITS = 3, 4, 5, 6, 7, 9, 10, 11, 13
_ANY = -1
#: Kinds of an `Event`. LOST: `count` events were lost because nobody read them; 0: nobody knows how many. HOSTS_CHANGED: the nodes
#: at which jobs can be; `count` is how many there are now, with this one. Apply `removed` before `added`: a node that was started anew
#: at once is in both. RANK_LOST: also of a rank of another node, with `pid` 0. JOB_BROKEN: the job's ops here fail for what is no lost
#: rank; `text` says what.
(LOST, RANK_LOST, GENERATION_BEGAN, GENERATION_ENDED, ENGINE_LOST, NODE_JOINED, NODE_LOST, STALL, HOSTS_CHANGED,
 JOB_BROKEN) = range(1, 11)

_TIMEOUT = -103
_EXCEPTIONS: dict[int, type[Exception]] = {-100: ValueError, _TIMEOUT: TimeoutError, -106: MemoryError, -111: LookupError,
                                           -204: PermissionError, -400: ConnectionError}

# What stands in the C structure for a member: its type there, or Rows: an array of pointers to such rows, and their number.
_Text = Annotated[str, c_char_p]
_I32, _U32, _I64, _U64 = (Annotated[int, kind] for kind in (c_int32, c_uint32, c_int64, c_uint64))
_Flag = Annotated[bool, c_int]
_Ranks = Annotated[list[int], POINTER(c_int32)]
_Names = Annotated[list[str], POINTER(c_char_p)]


class _Rows(NamedTuple):
    row: type


class Daemon(NamedTuple):
    """hvdd itself. `state`: "running" or "draining". `gpu_program`: of its workers of GPUs; "": it starts none. The next two are
    options of hvdd's. `gpu_mps`: of the MPS server that it runs ("pid 7, in DIR"; "none: why"); "": none is wanted."""
    version: _Text
    pid: _I32
    uid: _U32
    uptime_ns: _U64
    runtime_dir: _Text
    state: _Text
    jobs: _U32
    sessions: _U32
    attaches: _U64
    refused: _U64
    ranks_lost: _U64
    log_lost: _U64
    mesh_port: _U32
    gpu_program: _Text
    gpu_kernels: _Text
    gpu_library_path: _Text
    gpu_mps: _Text


class Job(NamedTuple):
    """A job. `withheld`: nodes, ops and bytes are not told: it is another user's, or the answer is about the mesh. Then `node` is
    where it is."""
    job: _Text
    generation: _U64
    uid: _U32
    size: _I32
    attached: _I32
    state: _Text
    engine_pid: _I32
    age_ns: _U64
    withheld: _Flag
    nodes: _U32
    ops: _U64
    bytes: _U64
    node: _Text


class Rank(NamedTuple):
    """A rank of a job. `lag_*`: how long after an op's first rank it submitted."""
    rank: _I32
    pid: _I32
    uid: _U32
    state: _Text
    process: _Text
    ops: _U64
    bytes: _U64
    in_flight: _U64
    lag_mean_ns: _U64
    lag_p50_ns: _U64
    lag_p99_ns: _U64
    lag_max_ns: _U64
    lag_sum_ns: _U64
    lag_ops: _U64
    last_ops: _U64
    negotiated: _U64
    replayed: _U64
    express: _U64
    region_bytes: _U64
    node: _U32
    origin: _Text
    text: _Text
    own_pid: _I32
    memory: _Text


class Missing(NamedTuple):
    """A rank that others wait for."""
    rank: _I32
    pid: _I32
    process: _Text
    waits_in: _Text


class Stall(NamedTuple):
    """An op that waits. `ready`: the ranks that have submitted it."""
    job: _Text
    uid: _U32
    tensor: _Text
    op: _Text
    process_set: _U32
    age_ns: _U64
    ready: _Ranks
    missing: Annotated[list[Missing], _Rows(Missing)]


class Trace(NamedTuple):
    """A rank's share of one op. The times are CLOCK_MONOTONIC; 0: not yet, or never. `device_ns`: of an op on a GPU what the stream of
    its worker took, from the moment at which all ranks there were ready; 0: not known. It is measured while a timeline is written,
    and for 10 s after each `trace`."""
    rank: _I32
    number: _U64
    tensor: _Text
    op: _Text
    dtype: _Text
    bytes: _U64
    process_set: _U32
    submit_ns: _U64
    ready_ns: _U64
    done_ns: _U64
    status: _I32
    device_ns: _U64


class Node(NamedTuple):
    """A node that this one knows."""
    node: _Text
    name: _Text
    address: _Text
    port: _U32
    state: _Text
    heard_ns: _U64
    jobs: _Text
    version: _Text
    joined_ns: _U64


class Link(NamedTuple):
    """A connection of a node to another node of its job. `purpose`: 1 control, 2 data; `transport`: "tcp" or "ucx"."""
    to: _U32
    purpose: Annotated[int, c_int]
    lane: _U32
    bytes_sent: _U64
    bytes_received: _U64
    messages_sent: _U64
    messages_received: _U64
    retransmits: _U64
    rtt_ns: _U64
    transport: _Text


class Span(NamedTuple):
    """A node of a job that spans nodes. `text`: why its part is missing, or ""."""
    job: _Text
    uid: _U32
    node: _U32
    name: _Text
    address: _Text
    port: _U32
    here: _Flag
    text: _Text
    ranks: _Ranks
    clock_ahead_ns: _I64
    clock_error_ns: _U64
    links: Annotated[list[Link], _Rows(Link)]


class Gpu(NamedTuple):
    """A GPU that a worker of hvdd has. 0: not known."""
    uuid: _Text
    name: _Text
    job: _Text
    uid: _U32
    pid: _I32
    state: _Text
    imports: _U32
    communicators: _U32
    import_bytes: _U64
    staging_bytes: _U64
    own_bytes: _U64
    free_bytes: _U64
    driver_version: _U32
    nccl_version: _U32
    links: _Text


class Limit(NamedTuple):
    """What keeps users apart. `of`: "all", "user", "job" or "session"; `uid`: the user, or whose job. `counted`: `used` is known."""
    limit: _Text
    of: _Text
    uid: _U32
    job: _Text
    counted: _Flag
    used: _U64
    most: _U64


class Answer(NamedTuple):
    """Rows, those that were asked for; `text`: what was done, or what keeps them from being all. `rows_left_out`: of a full message."""
    text: _Text
    rows_left_out: _U64
    daemon: Annotated[Optional[Daemon], Daemon]
    jobs: Annotated[list[Job], _Rows(Job)]
    ranks: Annotated[list[Rank], _Rows(Rank)]
    stalls: Annotated[list[Stall], _Rows(Stall)]
    traces: Annotated[list[Trace], _Rows(Trace)]
    nodes: Annotated[list[Node], _Rows(Node)]
    spans: Annotated[list[Span], _Rows(Span)]
    gpus: Annotated[list[Gpu], _Rows(Gpu)]
    limits: Annotated[list[Limit], _Rows(Limit)]


class Event(NamedTuple):
    """What has happened. `kind` is one of this module's constants, or one of a later hvdd; `rank` -1: it is about no rank. `added`,
    `removed`: of HOSTS_CHANGED, names of nodes."""
    kind: Annotated[int, c_int]
    at_ns: _U64
    job: _Text
    uid: _U32
    generation: _U64
    rank: _I32
    pid: _I32
    node: _Text
    text: _Text
    count: _U64
    added: _Names
    removed: _Names


_layouts: dict[type, type[ctypes.Structure]] = {}


def _kinds(row: type) -> list[tuple[str, Any]]:
    """The members of a row, and what stands for each in C."""
    return [(name, hint.__metadata__[0]) for name, hint in get_type_hints(row, include_extras=True).items()]


def _layout(row: type) -> type[ctypes.Structure]:
    """The C structure of a row."""
    if row not in _layouts:
        fields: list[tuple[str, Any]] = []
        for name, kind in _kinds(row):
            if isinstance(kind, _Rows):
                fields += [(name, POINTER(POINTER(_layout(kind.row)))), (name + "_count", c_size_t)]
            elif kind in (POINTER(c_int32), POINTER(c_char_p)):
                fields += [(name, kind), (name + "_count", c_size_t)]
            else:
                fields.append((name, POINTER(_layout(kind)) if kind is Daemon else kind))
        _layouts[row] = type(row.__name__, (ctypes.Structure,), {"_fields_": fields})
    return _layouts[row]


def _value(c_row: ctypes.Structure, name: str, kind: Any) -> Any:
    value = getattr(c_row, name)
    if isinstance(kind, _Rows):
        return [_plain(kind.row, value[i].contents) for i in range(getattr(c_row, name + "_count"))]
    if kind is POINTER(c_int32):
        return value[:getattr(c_row, name + "_count")]
    if kind is POINTER(c_char_p):
        return [value[i].decode("utf-8", "replace") for i in range(getattr(c_row, name + "_count"))]
    if kind is Daemon:
        return _plain(Daemon, value.contents) if value else None
    return value.decode("utf-8", "replace") if kind is c_char_p else value


def _plain(row: Any, c_row: ctypes.Structure) -> Any:
    """The row, with nothing in it that belongs to the library."""
    return row(*(_value(c_row, name, kind) for name, kind in _kinds(row)))


class _Request(ctypes.Structure):
    """struct hvd_admin_request."""
    _fields_ = [("struct_size", c_size_t), ("kind", c_int), ("job", c_char_p), ("owner", c_int64), ("min_age_ns", c_uint64),
                ("reason", c_char_p), ("rank", c_int32), ("pid", c_int32), ("signaled", c_int), ("code", c_int),
                ("limit", c_uint32), ("before", c_uint64), ("of_mesh", c_int)]


_ANSWER_P, _EVENT_P = POINTER(_layout(Answer)), POINTER(_layout(Event))
_CALLS = {
    "hvd_admin_open": (c_int, [c_char_p, POINTER(c_void_p)]),
    "hvd_admin_close": (None, [c_void_p]),
    "hvd_admin_address": (c_char_p, [c_void_p]),
    "hvd_admin_ask": (c_int, [c_void_p, POINTER(_Request), c_int64, POINTER(_ANSWER_P)]),
    "hvd_admin_answer_free": (None, [_ANSWER_P]),
    "hvd_admin_subscribe": (c_int, [c_void_p, c_int64, POINTER(c_void_p)]),
    "hvd_admin_events_next": (c_int, [c_void_p, c_int64, POINTER(_EVENT_P)]),
    "hvd_admin_events_fd": (c_int, [c_void_p]),
    "hvd_admin_events_close": (None, [c_void_p]),
    "hvd_admin_timeline_start": (c_int, [c_char_p, c_char_p, c_int64, c_char_p, c_int, c_int64]),
    "hvd_admin_timeline_stop": (c_int, [c_char_p, c_char_p, c_int64, c_int64]),
    "hvd_admin_last_error": (c_char_p, []),
    "hvd_admin_version": (c_char_p, []),
}


def _load() -> ctypes.CDLL:
    path = library_path("libhvdadmin.so.0")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"hvd: the library {path} cannot be loaded: {error}; install this package with pip, and libzmq 5 and "
                          "libprotobuf-c 1 with the system's packages") from error
    for name, (result, arguments) in _CALLS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_lib = _load()


def _check(status: int) -> None:
    if status < 0:
        raise _EXCEPTIONS.get(status, RuntimeError)(_lib.hvd_admin_last_error().decode("utf-8", "replace"))


def _ns(seconds: float | None) -> int:
    return -1 if seconds is None else int(seconds * 1e9)


class Events:
    """What happens on the node, from `Admin.events` on: of the jobs of this process' user; root and hvdd's user see all; and of the
    mesh that it is in. An iterator without an end; `fileno` is for select and event loops: readable while an event may be waiting."""

    def __init__(self, handle: c_void_p) -> None:
        self._handle: c_void_p | None = handle

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event; None: there was none within `timeout` seconds (None: waits without limit, and Ctrl-C ends the wait)."""
        if timeout is not None:
            return self._next(timeout)
        while True:
            event = self._next(0.1)
            if event is not None:
                return event

    def _next(self, timeout: float) -> Event | None:
        event = _EVENT_P()
        status = _lib.hvd_admin_events_next(self._open(), _ns(timeout), ctypes.byref(event))
        if status == _TIMEOUT:
            return None
        _check(status)
        return _plain(Event, event.contents)

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise ValueError("the subscription is closed")
        return self._handle

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.next()
        assert event is not None
        return event

    def fileno(self) -> int:
        """A descriptor: when it is readable, call `next(0)` until it returns None."""
        return _lib.hvd_admin_events_fd(self._open())

    def close(self) -> None:
        """Ends the subscription; may be repeated."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _lib.hvd_admin_events_close(handle)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Admin:
    """A connection to the hvdd of this node. `address`: the directory with its sockets; None: $HVD_ADDRESS, else where hvdctl
    looks. `timeout`: seconds that each question may last."""

    def __init__(self, address: str | None = None, timeout: float = 5.0) -> None:
        self._handle: c_void_p | None = None
        self.timeout = timeout
        handle = c_void_p()
        _check(_lib.hvd_admin_open(None if address is None else address.encode(), ctypes.byref(handle)))
        self._handle = handle

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise ValueError("the connection is closed")
        return self._handle

    def _ask(self, kind: int, job: str | None = None, owner: int | None = None, **more: Any) -> Answer:
        request = _Request(struct_size=ctypes.sizeof(_Request), kind=kind, job=None if job is None else job.encode(),
                           owner=_ANY if owner is None else owner, **{"rank": _ANY, **more})
        answer = _ANSWER_P()
        _check(_lib.hvd_admin_ask(self._open(), ctypes.byref(request), _ns(self.timeout), ctypes.byref(answer)))
        try:
            return _plain(Answer, answer.contents)
        finally:
            _lib.hvd_admin_answer_free(answer)

    @property
    def address(self) -> str:
        """The directory of hvdd's sockets."""
        return _lib.hvd_admin_address(self._open()).decode()

    def status(self) -> Daemon:
        """hvdd itself."""
        daemon = self._ask(_STATUS).daemon
        assert daemon is not None
        return daemon

    def jobs(self, mesh: bool = False) -> Answer:
        """`.jobs`, and in `.spans` the nodes of those that span nodes. `mesh`: of every node of the mesh, by what `ps` would tell."""
        return self._ask(_JOBS, of_mesh=int(mesh))

    def ranks(self, job: str, owner: int | None = None) -> Answer:
        """`.ranks` of a job. `owner`: the uid whose job of that id is meant; None: this user's, else the only one."""
        return self._ask(_RANKS, job, owner)

    def stalls(self, job: str | None = None, owner: int | None = None, min_age: float = 0.0) -> Answer:
        """`.stalls`: ops that have waited for `min_age` seconds, of a job or of all of this user's."""
        return self._ask(_STALLS, job, owner, min_age_ns=_ns(min_age))

    def trace(self, job: str, owner: int | None = None, rank: int | None = None, limit: int = 0, before: int = 0) -> Answer:
        """`.traces`: the last ops of a job's ranks, or of one. `limit`: at most so many, 0: as many as fit; `before`: only ops of a
        smaller number, 0: the newest."""
        return self._ask(_TRACE, job, owner, rank=_ANY if rank is None else rank, limit=limit, before=before)

    def nodes(self) -> Answer:
        """`.nodes` that this one knows; `.text` where there are none."""
        return self._ask(_NODES)

    def gpus(self) -> Answer:
        """`.gpus` that hvdd's workers have."""
        return self._ask(_GPUS)

    def limits(self, owner: int | None = None) -> Answer:
        """`.limits` of users, and what is used of them. `owner`: only this uid's; None: of everybody whom this user may ask about."""
        return self._ask(_LIMITS, owner=owner)

    def stop(self, job: str, reason: str | None = None, owner: int | None = None) -> str:
        """Ends a job with an error on its ranks, which are told the reason. What was done, as a sentence."""
        return self._ask(_JOB_STOP, job, owner, reason=None if reason is None else reason.encode()).text

    def timeline_start(self, job: str, path: str | os.PathLike[str], mark_cycles: bool = False, owner: int | None = None) -> None:
        """Begins a timeline of a job, on all its nodes: a Chrome trace (Perfetto), in a file here that this process may write.
        `mark_cycles`: also every pass of the engine that found work. RuntimeError where the job writes one already."""
        _check(_lib.hvd_admin_timeline_start(self.address.encode(), job.encode(), _ANY if owner is None else owner, os.fsencode(path),
                                             int(mark_cycles), _ns(self.timeout)))

    def timeline_stop(self, job: str, owner: int | None = None) -> None:
        """Completes the job's timeline; nothing where there is none."""
        _check(_lib.hvd_admin_timeline_stop(self.address.encode(), job.encode(), _ANY if owner is None else owner, _ns(self.timeout)))

    def events(self) -> Events:
        """What happens from now on, by a connection of its own."""
        handle = c_void_p()
        _check(_lib.hvd_admin_subscribe(self._open(), _ns(self.timeout), ctypes.byref(handle)))
        return Events(handle)

    def close(self) -> None:
        """Ends the connection; may be repeated."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _lib.hvd_admin_close(handle)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
