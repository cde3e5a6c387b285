# SPDX-License-Identifier: Apache-2.0
"""Allreduces of some KiB to some MiB that the ranks do in each other's memory (docs/adr/0011): when they are, when they are
not, and that nobody can tell by the results."""
import pytest

from hvt import Status, arith, procs, scaled, wait_until
from hvt.daemon import stopped
from hvt.job import Job

INT32 = arith.DTYPES["int32"]
ELEMENTS = 10_000  # 40 KB: 3 units
OPS = ["sum", "average", "min", "max", "product"]


def express(job: Job, rank: int = 0) -> int:
    return job.daemon.ctl.json("ranks", job.name)["ranks"][rank]["express"]


def inputs(job: Job, value: int, elements: int = ELEMENTS, row=INT32) -> list[bytes]:
    return [arith.pack(row, [(value + rank + i) % 5 for i in range(elements)]) for rank in range(job.size)]


def submit(job: Job, rank: int, name: str | None, value: int = 1, **more) -> int:
    elements = more.pop("elements", ELEMENTS)
    return job.ranks[rank].submit("allreduce", name, **{"dtype": "int32", "dims": [elements], "reduce_op": "sum",
                                                        "data": inputs(job, value, elements)[rank], "memory": "shared"} | more)


def check(job: Job, ops: list[tuple[int, int]], value: int, elements: int = ELEMENTS, ranks: list[int] | None = None) -> None:
    data = inputs(job, value, elements)
    result = arith.allreduce(INT32, "sum", [data[rank] for rank in ranks or range(job.size)])
    for rank, op in ops:
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok and outcome.data == result, (rank, outcome.status, outcome.text)


def go(job: Job, name: str | None, value: int = 1, ranks: list[int] | None = None, **more) -> None:
    ranks = ranks or list(range(job.size))
    ops = [(rank, submit(job, rank, name, value, **more)) for rank in ranks]
    for rank, op in ops:
        job.ranks[rank].post_wait(op, want_output=True)
    data = inputs(job, value, more.get("elements", ELEMENTS))
    result = arith.allreduce(INT32, "sum", [data[rank] for rank in ranks])
    for rank, op in ops:
        outcome = job.ranks[rank].collect_outcome()
        assert outcome.ok and outcome.data == result, (rank, outcome.status, outcome.text)
        job.ranks[rank].free(op)


def settle(job: Job, name: str | None, **more) -> None:
    """Until the ops of this name, or the unnamed ones, are done without the engine."""
    first = (more.get("ranks") or [0])[0]
    before = express(job, first)
    rounds = iter(range(1000))

    def is_express() -> bool:
        go(job, name, next(rounds), **more)
        return express(job, first) > before

    wait_until(is_express, f"'{name}' to be done by the ranks themselves", scaled(20))


@pytest.fixture(name="job")
def a_job(daemon):
    return Job(daemon, 3)


@pytest.mark.parametrize(("dtype", "reduce_op"), [(dtype, reduce_op) for dtype in sorted(arith.DTYPES) for reduce_op in OPS
                                                  if dtype != "bool" or reduce_op in ("min", "max")])
def test_every_type_and_reduction_has_the_bits_that_the_engine_gives(job, dtype, reduce_op):
    row = arith.DTYPES[dtype]
    elements = 7000 // row.bytes
    data = inputs(job, 1, elements, row)
    more = {"dtype": dtype, "dims": [elements], "reduce_op": reduce_op, "memory": "shared"}
    scales = {} if dtype == "bool" else {"prescale": 0.5, "postscale": 3.0}
    before = express(job)
    for value in range(4):
        data = inputs(job, value, elements, row)
        results = []
        for name, extra in (("steady", {}), (f"once{value}", {}), ("scaled", scales), (f"scaled{value}", scales)):
            ops = [(rank, job.ranks[rank].submit("allreduce", name, data=data[rank], **more, **extra)) for rank in range(3)]
            for rank, op in ops:
                job.ranks[rank].post_wait(op, want_output=True)
            outcomes = [job.ranks[rank].collect_outcome() for rank, _ in ops]
            assert all(outcome.ok for outcome in outcomes), outcomes[0].text
            assert len({outcome.data for outcome in outcomes}) == 1
            results.append(outcomes[0].data)
        assert results[0] == results[1] == arith.allreduce(row, reduce_op, data)
        assert results[2] == results[3]
    assert express(job) > before, "the ranks did some themselves"


def loop(job: Job, name: str, elements: int, count: int) -> None:
    """Each rank checks every sum."""
    for rank in job.ranks:
        rank.post("loop", name=name, elements=elements, memory="shared", count=count)
    for rank in job.ranks:
        assert rank.collect()["status"] == Status.OK


def loop_until_express(job: Job, name: str, elements: int) -> None:
    """The ranks have done some themselves; under a sanitizer that takes long, many go to the engine."""
    def is_express() -> bool:
        loop(job, name, elements, 20)
        return express(job) > 5

    wait_until(is_express, "ops to be done by the ranks themselves", scaled(20))


@pytest.mark.parametrize("elements", [1025, 4096, 16384, 16385, 100_000, 1 << 20])
@pytest.mark.parametrize("name", ["sized", ""])
def test_every_size_up_to_4_mib(job, name, elements):
    loop_until_express(job, name, elements)


def test_an_op_that_is_too_large_is_the_engines(job):
    loop(job, "too large", (1 << 20) + 1, 5)
    assert express(job) == 0


def test_so_is_one_that_is_too_large_for_so_many_ranks(daemon):
    job = Job(daemon, 6)
    loop(job, "too many", 700_000, 5)
    assert express(job) == 0
    loop_until_express(job, "not too many", 690_000)


@pytest.mark.parametrize("memory", ["shared", "registered", "adopted", "malloc"])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_kind_of_memory(job, memory, in_place):
    for value in range(5):
        go(job, "kinds", value, memory=memory, in_place=in_place)


@pytest.mark.parametrize("name", ["polled", None])
def test_an_op_that_everybody_only_polls_ends(job, name):
    settle(job, name)
    ops = [(rank, submit(job, rank, name, 3)) for rank in range(3)]
    for rank, op in ops:
        wait_until(lambda rank=rank, op=op: job.ranks[rank].test(op).status == Status.OK, "the polled op to end", 5)
    check(job, ops, 3)


@pytest.mark.parametrize("sleeper", range(3))
def test_a_rank_that_does_not_wait_holds_up_nobody(job, sleeper):
    settle(job, "busy")
    ops = [(rank, submit(job, rank, "busy", 4)) for rank in range(3)]
    check(job, [(rank, op) for rank, op in ops if rank != sleeper], 4)
    check(job, [ops[sleeper]], 4)


def test_a_stopped_rank_that_has_said_all_holds_up_nobody(job):
    settle(job, "said")
    ops = [(2, submit(job, 2, "said", 4))]
    with stopped(job.ranks[2].pid):
        ops += [(rank, submit(job, rank, "said", 4)) for rank in range(2)]
        check(job, ops[1:], 4)
    check(job, ops[:1], 4)
    settle(job, "said")


def test_several_in_flight_go_through_the_engine_and_come_back(job):
    settle(job, "a")
    settle(job, "b")
    for value in range(3):
        ops = [(rank, submit(job, rank, name, value)) for name in ("a", "b", "c") for rank in range(3)]
        check(job, ops, value)
    settle(job, "a")


@pytest.mark.parametrize("name", ["set", None])
def test_in_a_process_set(daemon, name):
    job = Job(daemon, 4)
    number = job.add_set([1, 3])
    settle(job, name, process_set=number, ranks=[1, 3])
    settle(job, name)


@pytest.mark.parametrize("odd", range(3))
def test_one_rank_that_differs_fails_the_op_on_all_and_only_that_one(job, odd):
    job.daemon.allow("op-failed")
    settle(job, "odd")
    ops = [(rank, submit(job, rank, "odd", 1, elements=ELEMENTS + (rank == odd))) for rank in range(3)]
    for rank, op in ops:
        outcome = job.ranks[rank].outcome(op)
        assert outcome.status == Status.ERR_MISMATCH and f"rank {odd} said [{ELEMENTS + 1}]" in outcome.text, outcome
    settle(job, "odd")


def test_cancelled_while_it_waits_for_the_others(job):
    settle(job, "cancelled")
    op = submit(job, 0, "cancelled", 9)
    assert job.ranks[0].cancel(op).ok
    assert job.ranks[0].outcome(op).status == Status.ERR_CANCELLED
    go(job, "cancelled", 4)
    settle(job, "cancelled")


def test_a_rank_that_joins_takes_no_part(job):
    settle(job, "joined")
    join = job.ranks[2].submit("join")
    ops = [(rank, submit(job, rank, "joined", 7)) for rank in (0, 1)]
    check(job, ops, 7, ranks=[0, 1])
    joins = [(2, join)] + [(rank, job.ranks[rank].submit("join")) for rank in (0, 1)]
    for rank, op in joins:
        assert job.ranks[rank].outcome(op).ok
    settle(job, "joined")


def test_a_rank_that_leaves_has_done_its_part(job):
    job.daemon.allow("rank-left")
    settle(job, "left")
    ops = [(rank, submit(job, rank, "left", 7)) for rank in range(3)]
    job.ranks[2].ask("free", op=ops[2][1])
    job.ranks[2].close()
    check(job, ops[:2], 7)


def test_memory_that_a_rank_gives_back_is_not_kept_by_its_peers(job):
    """Each loop has memory of its own, which the peers map."""
    def mapped() -> int:
        go(job, "small", elements=4)  # whoever waits hears what has gone
        return max(len(procs.memfds(rank.pid)) for rank in job.ranks)

    for _ in range(3):
        loop(job, "given back", ELEMENTS, 30)
    before = mapped()
    for _ in range(20):
        loop(job, "given back", ELEMENTS, 30)
    wait_until(lambda: mapped() <= before + 3, lambda: f"{mapped()} mappings to be {before} again")


def mapped_after(daemon, setting: str, mapped: bool) -> tuple[int, int]:
    """How often ranks have mapped each other's memory, and the ops that they did themselves, while all keep theirs."""
    job = Job(daemon, 2, environment={"HVD_EXPRESS": setting})

    def mappings() -> int:
        loop(job, "kept", ELEMENTS, 30)
        for value in range(10):
            ops = [(rank, submit(job, rank, "kept", value)) for rank in range(2)]
            check(job, ops, value)
        return sum(1 for rank in job.ranks for name in procs.memfds(rank.pid) if "hvd-alloc" in name)

    buffers = [submit(job, rank, f"own{i}") for i in range(2) for rank in range(2)]
    check(job, [(i % 2, op) for i, op in enumerate(buffers)], 1)
    # One rank may have done all the work: the other has mapped nothing then, and the next round decides.
    return (wait_until(mappings, "a rank to map the other's memory", 20) if mapped else mappings()), express(job)


def test_ranks_stay_out_of_each_others_memory_if_they_are_told_to(daemon):
    (together, shared), (apart, small), (engine, none) = (mapped_after(daemon, setting, mapped) for setting, mapped
                                                          in (("1", True), ("small", False), ("0", False)))
    assert shared > 0 and small == none == 0
    assert together > apart == engine, (together, apart, engine)
