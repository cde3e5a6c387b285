# SPDX-License-Identifier: Apache-2.0
"""A job of a few rank processes that do the same thing together."""
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hvt import arith
from hvt.daemon import Daemon
from hvt.rank import Outcome, Rank, open_job


def outcomes_of(ops: Sequence[tuple[Rank, int]]) -> list[Outcome]:
    """Every rank waits at the same time, as an allgather whose memory the library provides needs; the ops are freed."""
    for rank, op in ops:
        rank.post_wait(op, want_output=True)
    outcomes = [rank.collect_outcome() for rank, _ in ops]
    for rank, op in ops:
        rank.free(op)
    return outcomes


class Job:
    """Ranks 0..size-1 of one job, attached."""

    _numbers = itertools.count()

    def __init__(self, daemon: Daemon, size: int, name: str | None = None,
                 environment: dict[str, str] | None = None,
                 environments: dict[int, dict[str, str]] | None = None, **more: Any):
        """`environment`: of every rank; `environments`: of single ones; `more`: for hvd_open."""
        self.daemon = daemon
        self.size = size
        self.name = name or f"job{next(self._numbers)}"
        self.ranks: list[Rank] = [
            daemon.rank(environment=(environments or {}).get(rank, environment)) for rank in range(size)]
        self._ops = itertools.count()
        open_job(self.ranks, self.name, **more)

    def run(self, kind: str, *, data: Sequence[bytes] | None = None, dims: Any = None, name: str | None = None,
            order: Sequence[int] | None = None, ranks: Sequence[int] | None = None,
            each: dict[str, Sequence[Any]] | None = None, **more: Any) -> list[Outcome]:
        """One op on every rank, or on `ranks` (ascending: a process set); outcomes in that order. `dims` is one shape,
        or one per rank; `each`: arguments with a value per rank. `order`: who submits when."""
        name = name or f"op{next(self._ops)}"
        ranks = list(range(self.size)) if ranks is None else list(ranks)
        each = dict(each or {})
        if isinstance(dims, list) and dims and isinstance(dims[0], list):
            each["dims"] = dims
        if data:
            each["data"] = data
        ops = {}
        for rank in order or ranks:
            said = {"dims": dims} | more | {key: values[ranks.index(rank)] for key, values in each.items()}
            ops[rank] = self.ranks[rank].submit(kind, name, **said)
        return outcomes_of([(self.ranks[rank], ops[rank]) for rank in ranks])

    def add_set(self, ranks: Sequence[int]) -> int:
        """A process set; its id."""
        ops = [rank.submit("set_add", ranks=list(ranks)) for rank in self.ranks]
        outcomes = [rank.outcome(op) for rank, op in zip(self.ranks, ops)]
        assert all(outcome.ok for outcome in outcomes), outcomes
        assert len({outcome.process_set for outcome in outcomes}) == 1, outcomes
        return outcomes[0].process_set

    def remove_set(self, number: int) -> None:
        """Removes a process set."""
        ops = [rank.submit("set_remove", set=number) for rank in self.ranks]
        for rank, op in zip(self.ranks, ops):
            outcome = rank.outcome(op)
            assert outcome.ok, outcome

    def check_usable(self) -> None:
        """A small allreduce works."""
        row = arith.DTYPES["int32"]
        inputs = [arith.pack(row, [rank + 1, 7]) for rank in range(self.size)]
        for outcome in self.run("allreduce", dtype="int32", dims=[2], data=inputs, reduce_op="sum"):
            assert outcome.ok, outcome
            assert outcome.data == arith.allreduce(row, "sum", inputs)

    def close(self) -> None:
        """Ends every rank."""
        for rank in self.ranks:
            rank.stop()


@contextlib.contextmanager
def job_of(size: int, *allowed: str, **options: Any) -> Iterator[Job]:
    """A daemon of its own with one job of `size` ranks; `allowed`: ids of warnings that the test causes; options are
    hvdd's, with _ for -."""
    with Daemon(options={name.replace("_", "-"): value for name, value in options.items()}) as daemon:
        daemon.allow(*allowed)
        yield Job(daemon, size)
