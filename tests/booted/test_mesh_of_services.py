# SPDX-License-Identifier: Apache-2.0
"""The service on two booted machines that are in a mesh by mesh-seeds, as docs/launchers/service.md says it: keys, a job of both without any address,
machines that leave and come back, a restart, and the allow-list."""
import contextlib
from collections.abc import Iterator

import pytest

from hvt.booted import ALICE, BOB, Machine
from hvt.wait import wait_until
from test_service import IDLE, SHORT, STEADY, check_ended_well, check_goes_on, ctl, jobs, main_pid, row_of, serve, start_job, stop_job

SEEDS = "m1:9600,m2:9600"
pytestmark = pytest.mark.limit(180)


def states(machine: Machine) -> dict[str, str]:
    """What it says of each node."""
    return {row["name"]: row["state"] for row in ctl(machine, "nodes")["nodes"]}


def await_states(machine: Machine, **wanted: str) -> None:
    """Until it says that of the nodes, and knows no other."""
    wait_until(lambda: states(machine) == wanted, lambda: f"{wanted}, seen by {machine.name}: {states(machine)}", 15, 0.1)


def await_mesh(*machines: Machine) -> None:
    """Until both say that both are there."""
    for each in machines:
        await_states(each, m1="listens", m2="joined")


def make_mesh(machines: tuple[Machine, Machine]) -> None:
    """As docs/launchers/service.md says, where the name of a machine has an address."""
    for each in machines:
        with each.path("/etc/hosts").open("a", encoding="ascii") as hosts:
            hosts.writelines(f"{other.address} {other.name}\n" for other in machines)
        each.run(["hvdctl", "key", "new", "--node"])
    for each, other in (machines, machines[::-1]):
        name = f"/etc/hvdd/keys/allow/{other.name}"
        each.path(name).write_bytes(other.path(name).read_bytes())
        each.run(["sh", "-c", f"echo 'mesh-seeds = {SEEDS}' >> /etc/hvdd/hvdd.conf && systemctl restart hvdd"])
    await_mesh(*machines)


@contextlib.contextmanager
def two_machines(lower: str) -> Iterator[tuple[Machine, Machine]]:
    """With a cable, and the service on each."""
    with Machine("m1", lower, 1) as first, Machine("m2", lower, 2) as second:
        for each in (first, second):
            each.boot()
            serve(each)
        first.connect(second)
        yield first, second


@pytest.fixture(scope="module", name="shared_pair")
def _shared_pair(lower) -> Iterator[tuple[Machine, Machine]]:
    with two_machines(lower) as machines:
        make_mesh(machines)
        yield machines


@pytest.fixture(name="pair")
def _pair(shared_pair) -> Iterator[tuple[Machine, Machine]]:
    """In a mesh and without jobs, before and after."""
    await_mesh(*shared_pair)
    yield shared_pair
    for each in shared_pair:
        wait_until(lambda machine=each: not jobs(machine), "the jobs to end", 30)
        wait_until(lambda machine=each: not machine.units("hvdd-engine@*"), "the units of engines to end", 10)
        assert each.run(["systemctl", "list-units", "--failed", "--no-legend", "--plain", "hvdd*"]).stdout == ""


def crash(machine: Machine) -> None:
    """hvdd alone, as hvdd(8) says it for an upgrade; until the next one is there."""
    first = main_pid(machine)
    machine.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hvdd"])
    wait_until(lambda: main_pid(machine) not in (0, first), "the next hvdd", 5)


def test_every_machine_tells_of_all_and_a_job_of_both_needs_no_address(pair):
    first, second = pair
    for each in pair:
        assert each.output("stat", "-c", "%U:%a", "/etc/hvdd/keys/node.key", "/etc/hvdd/keys/allow/m1") == "hvdd:600\nroot:644"
        rows = {row["name"]: row for row in ctl(each, "nodes", user=ALICE)["nodes"]}
        assert rows["m1"]["port"] == 9600 and rows["m2"]["address"] == second.address and rows["m2"]["joined_ns"] > 0
        assert len({row["version"] for row in rows.values()}) == 1 and rows["m1"]["version"]
    check_ended_well(start_job([first, second], "short", SHORT, BOB))
    wide, narrow = start_job([first, second], "wide", STEADY), start_job([second] * 2, "narrow", STEADY, BOB)
    for each in pair:
        row_of(each, "wide")
    row_of(second, "narrow")
    for each in pair:
        rows = ctl(each, "job", "list", "--mesh", user=BOB)["jobs"]
        assert sorted((row["node"], row["job"], row["uid"]) for row in rows) == \
            [("m1", "wide", ALICE.uid), ("m2", "narrow", BOB.uid), ("m2", "wide", ALICE.uid)]
    stop_job(first, "wide", wide)
    stop_job(second, "narrow", narrow)


def test_each_hvdd_is_started_again_while_a_job_of_both_goes_on(pair):
    first, second = pair
    ranks = start_job([first, second], "steady", STEADY)
    before = {each.name: row_of(each, "steady") for each in pair}
    for each in (second, first):
        crash(each)
        check_goes_on(each, row_of(each, "steady") | {"engine_pid": before[each.name]["engine_pid"]})
        await_mesh(first, second)
        check_ended_well(start_job([first, second], f"after-{each.name}", SHORT, BOB))
    for each in pair:
        check_goes_on(each, before[each.name])
    stop_job(second, "steady", ranks)


def test_a_restart_lets_a_job_of_both_end_and_leaves_that_of_the_other_machine_alone(pair):
    first, second = pair
    alone, both = start_job([first] * 2, "alone", STEADY, BOB), start_job([first, second], "both", IDLE)
    before = row_of(first, "alone")
    row_of(second, "both")
    second.run(["systemctl", "restart", "hvdd"], seconds=40)
    check_ended_well(both, 5)
    await_mesh(first, second)
    check_goes_on(first, before)
    check_ended_well(start_job([first, second], "next", SHORT))
    stop_job(first, "alone", alone)


def test_a_machine_that_leaves_is_absent_and_its_next_trainer_brings_it_back(pair):
    first, second = pair
    alone = start_job([first] * 2, "alone", STEADY, BOB)
    before = row_of(first, "alone")
    second.run(["systemctl", "stop", "hvdd"])
    await_states(first, m1="listens", m2="absent")
    check_ended_well(start_job([first, second], "wakes", SHORT))
    await_mesh(first, second)
    check_goes_on(first, before)
    stop_job(first, "alone", alone)


def test_the_first_seed_may_leave(pair):
    first, second = pair
    alone = start_job([second] * 2, "alone", STEADY, BOB)
    before = row_of(second, "alone")
    first.run(["systemctl", "stop", "hvdd"])
    await_states(second, m1="absent", m2="listens")
    assert [(row["node"], row["job"]) for row in ctl(second, "jobs", "--mesh")["jobs"]] == [("m2", "alone")]
    check_ended_well(start_job([second, first], "wakes", SHORT))
    await_mesh(first, second)
    check_goes_on(second, before)
    stop_job(second, "alone", alone)


def test_a_machine_is_put_out_and_let_in_again_without_a_restart(pair):
    first, second = pair
    ranks = start_job([first, second], "steady", STEADY)
    before, pids = row_of(first, "steady"), [main_pid(each) for each in pair]
    shown = second.output("hvdctl", "key", "show")
    first.run(["rm", "/etc/hvdd/keys/allow/m2"])
    await_states(first, m1="listens")
    await_states(second, m1="absent", m2="listens")
    check_goes_on(first, before)
    first.run(["hvdctl", "key", "allow", "m2", shown])
    await_mesh(first, second)
    check_goes_on(second, row_of(second, "steady"))
    assert [main_pid(each) for each in pair] == pids
    stop_job(first, "steady", ranks)
