# SPDX-License-Identifier: Apache-2.0
"""Two booted machines whose hvdd is that of an older commit (scripts/booted.sh), upgraded one after the other while jobs run; and engines and
gates that have no wire in common."""
import contextlib
import pathlib
import re
from collections.abc import Iterator

import pytest

from hvt.booted import BOB, OLDER, Machine, install
from test_mesh_of_services import await_mesh, await_states, crash, make_mesh, two_machines
from test_service import SHORT, STEADY, check_ended_well, check_goes_on, ctl, ends, row_of, start_job, stop_job

pytestmark = pytest.mark.limit(180)


@pytest.fixture(scope="module", name="pair")
def _pair(lower, tmp_path_factory) -> Iterator[tuple[Machine, Machine]]:
    """In a mesh, with the older commit; `lower` looks for what is missing."""
    assert lower
    with two_machines(install(tmp_path_factory.mktemp("older"), OLDER)) as machines:
        for each in machines:
            each.run(["mkdir", "-p", "/etc/hvdd"])
        make_mesh(machines)
        yield machines


def versions(machine: Machine) -> dict[str, str]:
    """Of each node's hvdd, as this one says."""
    return {row["name"]: row["version"] for row in ctl(machine, "nodes")["nodes"]}


def check_engine(machine: Machine, job: str, *, is_older: bool) -> None:
    """Whether the job's engine runs a program that has been replaced since."""
    program = machine.output("readlink", f"/proc/{row_of(machine, job)['engine_pid']}/exe")
    assert program.endswith(" (deleted)") == is_older, program


def replace(path: pathlib.Path, program: bytes) -> None:
    """Also one that runs."""
    path.unlink()
    path.write_bytes(program)
    path.chmod(0o755)


@contextlib.contextmanager
def other(machine: Machine, name: str) -> Iterator[None]:
    """With a program there that speaks version 1000 of its wire."""
    path = machine.path(f"/usr/libexec/hvdd/{name}")
    kept = path.read_bytes()
    replace(path, (OLDER / "other" / name).read_bytes())
    try:
        yield
    finally:
        replace(path, kept)


def wire(header: str, name: str) -> str:
    """What the older commit speaks, as its sentences say it."""
    text = (OLDER.with_name("older-tree") / header).read_text(encoding="utf-8")
    number = re.search(rf"^#define {name} +(\d+)u", text, re.MULTILINE)
    assert number, header
    return f"{number[1]} to {number[1]}"


def test_engines_without_a_common_wire_are_refused_and_named(pair):
    first, second = pair
    spoken = ("m1", f"speaks {wire('daemon/engine/net/handshake.h', 'ENGINE_NET_WIRE')}", "m2", "speaks 1000 to 1000")
    with other(second, "hvdd-engine"):
        for code, err in ends(start_job([first, second], "mixed", SHORT)):
            assert code == 1 and "VERSION" in err and all(words in err for words in spoken), err
        for each in pair:
            check_ended_well(start_job([each] * 2, "alone", SHORT))
    check_ended_well(start_job([first, second], "again", SHORT))


@contextlib.contextmanager
def other_gate(machine: Machine) -> Iterator[None]:
    """The one that runs there, too."""
    try:
        with other(machine, "hvdd-gate"):
            crash(machine)
            yield
    finally:
        crash(machine)


def test_gates_without_a_common_wire_are_refused_and_named(pair):
    """Both are seeds, so each has jobs of its own."""
    first, second = pair
    older = wire("proto/gate.h", "HVI_MESH_VERSION")
    ranks = start_job([first, second], "steady", STEADY)
    before = row_of(first, "steady")
    with other_gate(second):
        await_states(first, m1="listens", m2="refused")
        await_states(second, m1="refused", m2="listens")
        for each in pair:
            said = each.journal("-t", "hvdd-gate")
            assert any("1000 to 1000" in line and older in line for line in said.splitlines()), said
            check_ended_well(start_job([each] * 2, "alone", SHORT, BOB))
        check_goes_on(first, before)
    await_mesh(first, second)
    stop_job(first, "steady", ranks)


def test_machines_are_upgraded_one_after_the_other_while_a_job_of_both_runs(pair, lower):
    first, second = pair
    newer = pathlib.Path(lower.split(":", maxsplit=1)[0])
    old = versions(first)["m1"]
    assert versions(second) == {"m1": old, "m2": old}
    ranks = start_job([first, second], "old", STEADY)
    before = {each.name: row_of(each, "old") for each in pair}
    for each in (second, first):
        each.upgrade(newer)
        # Its hvdd is still the old one, and gets new engines.
        check_ended_well(start_job([first, second], f"between-{each.name}", SHORT, BOB))
        crash(each)
        check_goes_on(each, row_of(each, "old") | {"engine_pid": before[each.name]["engine_pid"]})
        check_engine(each, "old", is_older=True)
        await_mesh(first, second)
        assert versions(first) == versions(second) and versions(first)[each.name] != old
        new = start_job([first, second], f"after-{each.name}", STEADY, BOB)
        check_engine(each, f"after-{each.name}", is_older=False)
        check_goes_on(first, row_of(first, f"after-{each.name}"))
        check_ended_well(start_job([first, second], f"checked-{each.name}", SHORT))
        assert {(row["node"], row["job"]) for row in ctl(first, "jobs", "--mesh")["jobs"]} == \
            {(node, job) for node in ("m1", "m2") for job in ("old", f"after-{each.name}")}
        stop_job(second, f"after-{each.name}", new)
    assert old not in versions(first).values()
    stop_job(first, "old", ranks)
