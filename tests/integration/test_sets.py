# SPDX-License-Identifier: Apache-2.0
"""Process sets: added and removed at run time, each with ops of its own; and joins, of all ranks and of a set."""
import pytest

from hvt import Status, arith
from hvt.job import Job, job_of

INT32 = arith.DTYPES["int32"]
FLOAT32 = arith.DTYPES["float32"]


@pytest.fixture(scope="module")
def job():
    with job_of(4, "op-failed", "op-stalled") as running:
        yield running


@pytest.fixture
def subset(job):
    """A set of ranks 1 and 3 for one test."""
    number = job.add_set([3, 1])
    yield number
    job.remove_set(number)


def ints(*values: int) -> bytes:
    return arith.pack(INT32, values)


def sums(job: Job, process_set: int, ranks: list[int], value: int = 1, name: str | None = None) -> None:
    data = [ints(value + rank, 7) for rank in ranks]
    for outcome in job.run("allreduce", ranks=ranks, dtype="int32", dims=[2], data=data, reduce_op="sum",
                           process_set=process_set, name=name):
        assert outcome.ok, outcome
        assert outcome.data == ints(sum(value + rank for rank in ranks), 7 * len(ranks))


# ---- sets -----------------------------------------------------------------------------------------------------------


def test_every_rank_knows_the_set_member_or_not(job, subset):
    for rank in job.ranks:
        assert rank.sets() == {0: [0, 1, 2, 3], subset: [1, 3]}


def test_every_op_works_on_a_set_and_is_ordered_by_set_rank(job, subset):
    ranks = [1, 3]
    data = [ints(10, 11), ints(30, 31)]
    said = {"ranks": ranks, "dtype": "int32", "process_set": subset}
    sums(job, subset, ranks)
    for outcome in job.run("allgather", dims=[2], data=data, **said):
        assert outcome.ok and outcome.data == ints(10, 11, 30, 31)
    for root, wanted in ((1, data[0]), (3, data[1])):
        for outcome in job.run("broadcast", dims=[2], data=data, root=root, **said):
            assert outcome.ok and outcome.data == wanted
    for outcome, wanted in zip(job.run("reducescatter", dims=[2], data=data, reduce_op="sum", **said), (40, 42)):
        assert outcome.ok and outcome.data == ints(wanted)
    for outcome, wanted in zip(job.run("alltoall", dims=[2], data=data, **said), (ints(10, 30), ints(11, 31))):
        assert outcome.ok and outcome.data == wanted and outcome.splits == [1, 1]
    for outcome in job.run("barrier", ranks=ranks, process_set=subset):
        assert outcome.ok


def test_an_average_divides_by_the_members_of_the_set(job, subset):
    for outcome in job.run("allreduce", ranks=[1, 3], dtype="float32", dims=[1], reduce_op="average",
                           data=[arith.pack(FLOAT32, [1.0]), arith.pack(FLOAT32, [4.0])], process_set=subset):
        assert outcome.ok and outcome.data == arith.pack(FLOAT32, [2.5])


def test_a_set_that_waits_delays_nobody(job, subset):
    waiting = job.ranks[1].submit("allreduce", "waits", dtype="int32", dims=[1], data=ints(1), process_set=subset)
    for _ in range(3):
        job.check_usable()
    assert job.ranks[1].test(waiting).status == Status.INPROGRESS
    last = job.ranks[3].submit("allreduce", "waits", dtype="int32", dims=[1], data=ints(2), process_set=subset)
    for rank, op in ((1, waiting), (3, last)):
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok and outcome.data == ints(3)


def test_the_same_name_in_two_sets_means_two_ops(job, subset):
    pending = [job.ranks[rank].submit("allreduce", "both", dtype="int32", dims=[1], data=ints(1), reduce_op="sum",
                                      process_set=subset) for rank in (1,)]
    sums(job, 0, [0, 1, 2, 3], name="both")
    pending.append(job.ranks[3].submit("allreduce", "both", dtype="int32", dims=[1], data=ints(5), reduce_op="sum",
                                       process_set=subset))
    for rank, op in zip((1, 3), pending):
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok and outcome.data == ints(6)


def test_sets_that_overlap_and_several_added_at_once(job):
    wanted = [[0, 1], [1, 2], [2, 3], [0, 2, 3]]
    ops = [[rank.submit("set_add", ranks=ranks) for ranks in wanted] for rank in job.ranks]
    ids = []
    for rank, mine in zip(job.ranks, ops):
        outcomes = [rank.outcome(op) for op in mine]
        assert all(outcome.ok for outcome in outcomes), outcomes
        ids.append([outcome.process_set for outcome in outcomes])
    assert all(mine == ids[0] for mine in ids) and len(set(ids[0])) == len(wanted)
    for number, ranks in zip(ids[0], wanted):
        sums(job, number, ranks, value=10 * number)
    for number in ids[0]:
        job.remove_set(number)
    assert job.ranks[0].sets() == {0: [0, 1, 2, 3]}


def test_a_removed_set_is_not_found_and_the_same_ranks_can_come_again(job):
    number = job.add_set([0, 2])
    sums(job, number, [0, 2], name="again")
    job.remove_set(number)
    outcome = job.ranks[0].try_submit("allreduce", "again", dtype="int32", dims=[1], data=ints(1), process_set=number)
    assert outcome.status == Status.ERR_NOT_FOUND
    assert f"no process set {number}" in outcome.text
    again = job.add_set([0, 2])
    sums(job, again, [0, 2], name="again")
    job.remove_set(again)


def test_many_sets_come_and_go(job):
    for turn in range(60):
        number = job.add_set([turn % 4, (turn + 1) % 4])
        sums(job, number, sorted([turn % 4, (turn + 1) % 4]), name="turn")
        job.remove_set(number)


def test_a_set_that_exists_already_is_refused_on_every_rank(job, subset):
    for rank, op in [(rank, rank.submit("set_add", ranks=[1, 3])) for rank in job.ranks]:
        outcome = rank.outcome(op)
        assert outcome.status == Status.ERR_EXISTS, outcome
    assert job.ranks[0].try_submit("set_add", ranks=[0, 1, 2, 3]).status == Status.ERR_EXISTS
    sums(job, subset, [1, 3])


def test_ranks_that_disagree_about_a_set_all_hear_of_it(job):
    ops = [rank.submit("set_add", ranks=[0, 3 if number == 2 else 1]) for number, rank in enumerate(job.ranks)]
    outcomes = [rank.outcome(op) for rank, op in zip(job.ranks, ops)]
    assert {outcome.status for outcome in outcomes} == {Status.ERR_MISMATCH}, outcomes
    assert len({outcome.text for outcome in outcomes}) == 1
    assert "rank 2 said" in outcomes[0].text, outcomes[0].text
    assert job.ranks[0].sets() == {0: [0, 1, 2, 3]}
    job.check_usable()


@pytest.mark.parametrize(("rank", "more", "status", "words"), [
    (0, {}, Status.ERR_INVALID, ("rank 0 is not a member of process set", "(ranks 1,3)")),
    (1, {"process_set": 77}, Status.ERR_NOT_FOUND, ("no process set 77",)),
    (1, {"kind": "broadcast", "root": 0}, Status.ERR_INVALID, ("root is rank 0, which is not a member",))],
    ids=["stranger", "unknown", "root"])
def test_what_does_not_fit_the_set_is_refused_at_submission(job, subset, rank, more, status, words):
    said = {"kind": "allreduce", "name": "no", "dtype": "int32", "dims": [1], "data": ints(1),
            "process_set": subset} | more
    outcome = job.ranks[rank].try_submit(said.pop("kind"), said.pop("name"), **said)
    assert outcome.status == status
    for word in words:
        assert word in outcome.text, outcome.text


def test_a_mismatch_in_a_set_names_its_ranks_and_only_they_hear_of_it(job, subset):
    ops = [(job.ranks[rank], job.ranks[rank].submit("allreduce", "differ", dtype="int32", dims=[2 + rank],
                                                    process_set=subset)) for rank in (1, 3)]
    for rank, op in ops:
        outcome = rank.outcome(op)
        assert outcome.status == Status.ERR_MISMATCH
        assert "rank 1 said [3]" in outcome.text and "rank 3 said [5]" in outcome.text, outcome.text
    job.check_usable()


# ---- join -----------------------------------------------------------------------------------------------------------


def join(job: Job, rank: int, process_set: int = 0) -> int:
    return job.ranks[rank].submit("join", process_set=process_set)


def finish_joins(job: Job, joins: dict[int, int], last: int) -> None:
    for rank, op in joins.items():
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok, outcome
        assert outcome.joined == last


def test_a_joined_rank_counts_as_zeros_and_the_last_one_is_told(job):
    joins = {0: join(job, 0)}
    for outcome in job.run("allreduce", ranks=[1, 2, 3], dtype="int32", dims=[1], data=[ints(1), ints(2), ints(3)],
                           reduce_op="sum"):
        assert outcome.ok and outcome.data == ints(6)
    joins[2] = join(job, 2)
    for outcome in job.run("allreduce", ranks=[1, 3], dtype="float32", dims=[1], reduce_op="average",
                           data=[arith.pack(FLOAT32, [2.0]), arith.pack(FLOAT32, [4.0])]):
        assert outcome.ok and outcome.data == arith.pack(FLOAT32, [1.5])  # divided by all four
    joins[3] = join(job, 3)
    outcome, = job.run("barrier", ranks=[1])  # finishes only once the join of rank 3 has arrived
    assert outcome.ok
    assert job.ranks[0].test(joins[0]).status == Status.INPROGRESS
    joins[1] = join(job, 1)
    finish_joins(job, joins, last=1)
    job.check_usable()


@pytest.mark.parametrize(("reduce_op", "wanted"), [("min", 5), ("max", -3), ("product", -15)])
def test_a_joined_rank_is_nothing_to_min_max_and_product(job, reduce_op, wanted):
    joins = {0: join(job, 0), 1: join(job, 1)}
    values = {"min": [5, 9], "max": [-3, -8], "product": [5, -3]}[reduce_op]
    for outcome in job.run("allreduce", ranks=[2, 3], dtype="int32", dims=[1], data=[ints(value) for value in values],
                           reduce_op=reduce_op):
        assert outcome.ok and outcome.data == ints(wanted)
    joins |= {2: join(job, 2), 3: join(job, 3)}
    finish_joins(job, joins, last=3)


def test_a_joined_rank_has_no_rows(job):
    joins = {1: join(job, 1)}
    ranks = [0, 2, 3]
    data = [ints(10 * rank, 10 * rank + 1, 10 * rank + 2, 10 * rank + 3) for rank in ranks]
    for outcome in job.run("allgather", ranks=ranks, dtype="int32", dims=[4], data=data):
        assert outcome.ok and outcome.data == b"".join(data)
    for outcome, rank in zip(job.run("alltoall", ranks=ranks, dtype="int32", dims=[4], data=data), ranks):
        assert outcome.ok, outcome
        assert outcome.splits == [1, 0, 1, 1]
        assert outcome.data == ints(rank, 20 + rank, 30 + rank)
    for outcome, wanted in zip(job.run("reducescatter", ranks=ranks, dtype="int32", dims=[4], data=data,
                                       reduce_op="sum"), (ints(50, 53), ints(56), ints(59))):
        assert outcome.ok and outcome.data == wanted
    for outcome in job.run("broadcast", ranks=ranks, dtype="int32", dims=[4], data=data, root=2):
        assert outcome.ok and outcome.data == data[1]
    joins |= {rank: join(job, rank) for rank in ranks}
    finish_joins(job, joins, last=3)


def test_a_given_output_that_a_join_makes_too_small_fails_on_all(job):
    joins = {1: join(job, 1)}
    ranks = [0, 2, 3]
    for room, status in (([1, 1, 1], Status.ERR_TOO_SMALL), ([2, 1, 1], Status.OK)):
        for outcome, rows in zip(job.run("reducescatter", ranks=ranks, dtype="int32", dims=[4], reduce_op="sum",
                                         data=[ints(1, 2, 3, 4)] * 3, each={"out_dims": [[rows] for rows in room]}),
                                 room):
            assert outcome.status == status, outcome
            assert status != Status.OK or outcome.dims == [rows]
    joins |= {rank: join(job, rank) for rank in ranks}
    finish_joins(job, joins, last=3)


def test_a_broadcast_from_a_joined_root_fails_on_all(job):
    joins = {2: join(job, 2)}
    ranks = [0, 1, 3]
    for outcome in job.run("broadcast", ranks=ranks, dtype="int32", dims=[1], data=[ints(1)] * 3, root=2):
        assert outcome.status < 0, outcome
        assert "2" in outcome.text and "join" in outcome.text, outcome.text
    joins |= {rank: join(job, rank) for rank in ranks}
    finish_joins(job, joins, last=3)
    job.check_usable()


def test_what_was_submitted_before_the_join_still_counts(job):
    ops = {rank: job.ranks[rank].submit("allreduce", "before", dtype="int32", dims=[1], data=ints(rank),
                                        reduce_op="sum") for rank in (0, 1)}
    joins = {0: join(job, 0)}
    ops |= {rank: job.ranks[rank].submit("allreduce", "before", dtype="int32", dims=[1], data=ints(rank),
                                         reduce_op="sum") for rank in (2, 3)}
    for rank, op in ops.items():
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok and outcome.data == ints(6)
    joins |= {rank: join(job, rank) for rank in (1, 2, 3)}
    finish_joins(job, joins, last=3)


def test_an_op_that_waits_only_for_ranks_that_join_goes_on(job):
    ops = {rank: job.ranks[rank].submit("allreduce", "late", dtype="int32", dims=[1], data=ints(rank),
                                        reduce_op="sum") for rank in (1, 2)}
    joins = {0: join(job, 0)}
    assert job.ranks[1].test(ops[1]).status == Status.INPROGRESS
    joins[3] = join(job, 3)
    for rank, op in ops.items():
        outcome = job.ranks[rank].outcome(op)
        assert outcome.ok and outcome.data == ints(3)
    joins |= {rank: join(job, rank) for rank in (1, 2)}
    finish_joins(job, joins, last=2)


def test_a_join_works_inside_a_set_and_leaves_the_others_alone(job, subset):
    joins = {3: join(job, 3, subset)}
    sums(job, 0, [0, 1, 2, 3])
    outcome, = job.run("allreduce", ranks=[1], dtype="int32", dims=[1], data=[ints(9)], reduce_op="sum",
                       process_set=subset)
    assert outcome.ok and outcome.data == ints(9)
    refused = job.ranks[3].try_submit("allreduce", "no", dtype="int32", dims=[1], data=ints(1), process_set=subset)
    assert refused.status == Status.ERR_INVALID
    assert "rank 3 has joined" in refused.text
    joins[1] = join(job, 1, subset)
    finish_joins(job, joins, last=1)
    sums(job, subset, [1, 3])


def test_a_join_can_be_taken_back(job):
    op = join(job, 0)
    assert job.ranks[0].cancel(op).ok
    assert job.ranks[0].outcome(op).status == Status.ERR_CANCELLED
    job.check_usable()


def test_a_group_waits_for_a_join_as_for_an_op(job):
    members = [{"dtype": "int32", "dims": [1], "data": ints(value)} for value in (1, 2)]
    ops = {rank: job.ranks[rank].group("allreduce", "grouped", members, reduce_op="sum") for rank in (0, 1, 2)}
    joins = {3: join(job, 3)}
    for rank, mine in ops.items():
        for op, wanted in zip(mine, (3, 6)):
            outcome = job.ranks[rank].outcome(op)
            assert outcome.ok and outcome.data == ints(wanted)
    joins |= {rank: join(job, rank) for rank in (0, 1, 2)}
    finish_joins(job, joins, last=2)
