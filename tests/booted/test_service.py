# SPDX-License-Identifier: Apache-2.0
"""hvdd's units under a systemd that has booted: what runs where and as whom, and what faults, a restart and a stop do to jobs.
scripts/booted.sh makes the root and runs this."""
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from hvt.booted import ALICE, BOB, Machine, User
from hvt.build import SOURCE, scaled
from hvt.wait import wait_until

EXPOSURE_MAX = {"hvdd.service": 10, "hvdd-engine@*": 16, "hvdd-gate@*": 15}
SOCKETS = {"attach": 0o666, "admin": 0o666, "engine": 0o600, "gate": 0o600, "gpu": 0o600}
pytestmark = pytest.mark.limit(180)
# Of hvd-perf. A job's time in seconds is not for --seconds to say: its guess is wrong on a busy machine.
SHORT = ["-c", "-b", "4", "-e", "1M", "-f", "512", "-i", "3"]
STEADY = ["-b", "4M", "-e", "4M", "-i", "1000000"]  # for minutes: ends when it is told to
IDLE = ["--idle", "5"]  # ends well after five seconds


def serve(machine: Machine) -> None:
    """What README.md says."""
    for command in ("systemd-sysusers", "systemctl daemon-reload", "systemctl enable --now hvdd"):
        machine.run(command.split())


@pytest.fixture(scope="module", name="shared")
def _shared(lower) -> Iterator[Machine]:
    with Machine("m1", lower) as machine:
        machine.boot()
        serve(machine)
        yield machine


@pytest.fixture(name="machine")
def _machine(shared) -> Iterator[Machine]:
    """With a hvdd that runs and has no jobs, before and after."""
    shared.run(["systemctl", "start", "hvdd"])
    yield shared
    wait_until(lambda: not jobs(shared), "the jobs to end", 30)
    wait_until(lambda: not shared.units("hvdd-engine@*"), "the units of engines to end", 10)
    assert shared.run(["systemctl", "list-units", "--failed", "--no-legend", "--plain", "hvdd*"]).stdout == ""


def ctl(machine: Machine, *words: str, user: User | None = None) -> Any:
    return json.loads(machine.run(["hvdctl", *words, "--json"], user).stdout)


def jobs(machine: Machine) -> list[dict[str, Any]]:
    return ctl(machine, "jobs")["jobs"]


def main_pid(machine: Machine) -> int:
    return int(machine.show("hvdd.service", "MainPID")["MainPID"])


def status_of(machine: Machine, pid: int | str) -> dict[str, str]:
    """/proc/PID/status."""
    text = machine.output("cat", f"/proc/{pid}/status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def cgroup_of(machine: Machine, pid: int) -> str:
    """Where systemd has it, below system.slice."""
    lines = machine.output("cat", f"/proc/{pid}/cgroup").splitlines()
    return next(line for line in lines if line.startswith("0::")).removeprefix("0::/system.slice/")


def gate_pid(machine: Machine) -> int:
    units = machine.units("hvdd-gate@*")
    return int(machine.show(units[0], "MainPID")["MainPID"]) if units else 0


Running = list[subprocess.Popen[str]]


def start_job(machines: list[Machine], name: str, options: list[str], user: User = ALICE) -> Running:
    """hvd-perf with a rank on each of the machines, which may be one."""
    several = len(set(machine.name for machine in machines)) > 1
    count = str(len(machines))
    ranks = []
    for number, machine in enumerate(machines):
        rank = str(number)
        place = {"HVD_LOCAL_RANK": "0", "HVD_LOCAL_SIZE": "1", "HVD_CROSS_RANK": rank, "HVD_CROSS_SIZE": count} if several else \
            {"HVD_LOCAL_RANK": rank, "HVD_LOCAL_SIZE": count, "HVD_CROSS_RANK": "0", "HVD_CROSS_SIZE": "1"}
        ranks.append(machine.popen(["hvd-perf", *options], user,
                                   settings={"HVD_JOB_ID": name, "HVD_RANK": rank, "HVD_SIZE": count} | place))
    return ranks


def ends(ranks: Running, seconds: float = 90) -> list[tuple[int, str]]:
    """Exit status and standard error of each."""
    done = [(rank.communicate(timeout=scaled(seconds)), rank.returncode) for rank in ranks]
    return [(code, err) for (_out, err), code in done]


def check_ended_well(ranks: Running, seconds: float = 90) -> None:
    assert ends(ranks, seconds) == [(0, "")] * len(ranks)


def check_goes_on(machine: Machine, before: dict[str, Any]) -> None:
    """The same engine does more ops of the job."""
    def more() -> bool:
        row = next((row for row in jobs(machine) if row["job"] == before["job"]), before)
        assert row["engine_pid"] == before["engine_pid"]
        return row["attached"] == before["attached"] and row["ops"] > before["ops"]
    wait_until(more, lambda: f"the job to go on: {before}, {jobs(machine)}", 20, 0.1)


def stop_job(machine: Machine, name: str, ranks: Running) -> None:
    """It still runs, so its ranks are told."""
    machine.run(["hvdctl", "job", "stop", name])
    for code, err in ends(ranks):
        assert code == 1 and "JOB_STOPPED" in err, err


def row_of(machine: Machine, name: str) -> dict[str, Any]:
    """The job's, as soon as both ranks are there, wherever they are."""
    return wait_until(lambda: next((row for row in jobs(machine) if row["job"] == name and row["attached"] == 2), None),
                      lambda: f"{name} to be complete: {jobs(machine)}", 15, 0.05)


# ---- the machine itself ----


def test_nothing_of_this_machine_is_in_a_booted_one(lower):
    """Seen by a process 1 that does nothing, after boot.sh has looked itself."""
    with Machine("bare", lower) as machine:
        machine.start(["sleep", "60"])
        assert machine.canary.exists() and machine.run(["test", "-e", machine.canary], check=False).returncode == 1
        assert machine.output("ls", "-A", "/tmp") == "" and machine.output("ls", "-A", "/run").split() == ["boot.log"]
        kinds = {line.partition(" - ")[2].split()[0]: line.split()[3:5] for line in machine.output("cat", "/proc/self/mountinfo").splitlines()}
        assert set(kinds) <= {"overlay", "tmpfs", "proc", "sysfs", "devpts", "cgroup", "cgroup2"} and kinds["overlay"] == ["/", "/"]
        assert {line.partition("::")[2] or line.split(":", 2)[2] for line in machine.output("cat", "/proc/1/cgroup").splitlines()} == {"/"}
        assert machine.output("sh", "-c", "echo /proc/[0-9]*").startswith("/proc/1 ")
        assert machine.run(["sh", "-c", "echo x >/proc/sys/kernel/domainname"], check=False).returncode != 0
        for pid in ("1", "self"):
            assert not int(status_of(machine, pid)["CapBnd"], 16) & (1 << 16 | 1 << 17 | 1 << 25 | 1 << 27), "modules, raw I/O, the clock, devices"


# ---- what runs where ----


def test_the_units_start_as_the_readme_says(machine):
    assert machine.show("hvdd.service", "ActiveState", "SubState", "User", "NRestarts") == {
        "ActiveState": "active", "SubState": "running", "User": "hvdd", "NRestarts": "0"}
    for name, mode in SOCKETS.items():
        kind, is_mode, owner = machine.output("stat", "-c", "%F/%a/%U", f"/run/hvdd/{name}.sock").split("/")
        assert (kind, int(is_mode, 8)) == ("socket", mode) and (owner == "hvdd" or mode == 0o666)
        assert machine.output("systemctl", "is-enabled", "hvdd.socket" if name == "attach" else f"hvdd-{name}.socket") == "enabled"
    assert machine.output("stat", "-c", "%U:%a", "/run/hvdd") == "hvdd:755"


CONNECT = "use Socket; socket(S, AF_UNIX, SOCK_SEQPACKET, 0); connect(S, pack_sockaddr_un($ARGV[0])) or die $!"


def test_no_user_starts_an_engine(machine):
    for name, mode in SOCKETS.items():
        done = machine.run(["perl", "-e", CONNECT, f"/run/hvdd/{name}.sock"], ALICE, check=False)
        assert ("Permission denied" in done.stderr) == (mode == 0o600), (name, done)


def test_hvdd_a_gate_and_an_engine_for_each_job_have_units_users_and_cgroups_of_their_own(machine):
    first, second = (start_job([machine] * 2, name, STEADY, user) for name, user in (("a", ALICE), ("b", BOB)))
    engines = [row_of(machine, name)["engine_pid"] for name in ("a", "b")]
    assert ctl(machine, "status", user=BOB)["daemon"]["pid"] == main_pid(machine)
    assert {(row["job"], row["uid"]) for row in ctl(machine, "jobs", user=ALICE)["jobs"]} == {("a", ALICE.uid), ("b", BOB.uid)}
    processes = [main_pid(machine), gate_pid(machine), *engines]
    cgroups = [cgroup_of(machine, pid) for pid in processes]
    assert len(set(cgroups)) == 4, cgroups
    for kind, path in zip(("gate", "engine", "engine"), cgroups[1:]):
        assert re.fullmatch(rf"system-hvdd\\x2d{kind}\.slice/hvdd-{kind}@[^/]+\.service", path), cgroups
    assert cgroups[0] == "hvdd.service"
    hvdd = machine.output("id", "-u", "hvdd")
    for pid in processes:
        status = status_of(machine, pid)
        assert status["Uid"].split() == [hvdd] * 4
        assert (int(status["CapBnd"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
        assert machine.output("sh", "-c", f"tr '\\0' ' ' </proc/{pid}/limits | grep core").split()[4:6] == ["0", "0"], "a core has tensors"
    networks = [machine.output("readlink", f"/proc/{pid}/ns/net") for pid in (1, *processes)]
    assert networks[0] != networks[1] and networks[2:] == [networks[0]] * 3
    stop_job(machine, "a", first)
    stop_job(machine, "b", second)


def test_no_process_of_the_service_can_write_to_the_system_or_see_homes(machine):
    assert ALICE.name in machine.output("ls", "/home")
    ranks = start_job([machine] * 2, "boxed", STEADY)
    for pid in (row_of(machine, "boxed")["engine_pid"], gate_pid(machine), main_pid(machine)):
        enter = ["nsenter", f"--target={pid}", "--mount"]
        assert "Read-only" in machine.run([*enter, "touch", "/usr/new", "/etc/new", "/var/new"], check=False).stderr
        assert machine.output(*enter, "ls", "-A", "/home", "/tmp").split() == ["/home:", "/tmp:"]
    stop_job(machine, "boxed", ranks)


def test_the_unit_of_a_gpus_worker_starts_it_without_a_gpu(machine):
    """hvdd itself asks for one only where a rank has a GPU; here its user does."""
    asks = machine.popen(["setpriv", "--reuid=hvdd", "--regid=hvdd", "--clear-groups", "perl", "-e", f"{CONNECT}; sleep 60", "/run/hvdd/gpu.sock"])
    unit = wait_until(lambda: machine.units("hvdd-gpu@*"), "a worker", 5)[0]
    pid = int(machine.show(unit, "MainPID")["MainPID"])
    wait_until(lambda: machine.output("readlink", f"/proc/{pid}/exe").endswith("libexec/hvdd/hvdd-gpu"), "its program", 5)
    status = status_of(machine, pid)
    assert (status["Uid"].split()[0], int(status["CapBnd"], 16), status["Seccomp"]) == (machine.output("id", "-u", "hvdd"), 0, "2")
    machine.run(["systemd-analyze", "security", "--no-pager", "--threshold=19", unit])
    asks.kill()
    wait_until(lambda: not machine.units("hvdd-gpu@*"), "the worker to end with its connection", 5)


def test_hvdrun_uses_the_service(machine):
    done = machine.run(["hvdrun", "--address", "/run/hvdd", "-np", "2", "hvd-perf", "-c", "-b", "4", "-e", "1M", "-f", "512", "-i", "3"], BOB)
    assert "1M" in done.stdout or "1048576" in done.stdout, done


def test_each_unit_is_as_hardened_as_it_says(machine):
    ranks = start_job([machine] * 2, "hardened", STEADY)
    row_of(machine, "hardened")
    for pattern, most in EXPOSURE_MAX.items():
        machine.run(["systemd-analyze", "security", "--no-pager", f"--threshold={most}", machine.units(pattern)[0]])
    stop_job(machine, "hardened", ranks)


def test_the_kernel_has_the_limits_of_hvdd_and_its_gate(machine):
    """Memory where the machine has that controller."""
    ctl(machine, "status")
    path = f"system.slice/{cgroup_of(machine, gate_pid(machine))}"
    assert machine.show("hvdd.service", "MemoryHigh", "MemoryMax") == {"MemoryHigh": str(1 << 30), "MemoryMax": str(2 << 30)}
    assert machine.show(machine.units("hvdd-gate@*")[0], "MemoryMax", "TasksMax") == {"MemoryMax": str(1 << 30), "TasksMax": "128"}
    here = "ls -d /sys/fs/cgroup/memory || grep -w memory /sys/fs/cgroup/cgroup.controllers"
    files = f"'/sys/fs/cgroup/{path}/memory.max' '/sys/fs/cgroup/memory/{path}/memory.limit_in_bytes'"
    assert machine.output("sh", "-c", f"cat {files} 2>/dev/null") == (str(1 << 30) if machine.output("sh", "-c", here) else "")


# ---- faults ----


def test_a_killed_hvdd_is_started_again_and_jobs_go_on(machine):
    ranks = start_job([machine] * 2, "outlives", STEADY)
    before, first = row_of(machine, "outlives"), main_pid(machine)
    machine.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hvdd"])
    wait_until(lambda: main_pid(machine) not in (0, first), "the next hvdd", 5)
    check_goes_on(machine, row_of(machine, "outlives") | {"engine_pid": before["engine_pid"]})
    check_ended_well(start_job([machine] * 2, "new", SHORT, BOB))
    stop_job(machine, "outlives", ranks)


def test_no_start_limit_puts_the_service_down(machine):
    """systemd's own would be five starts in ten seconds."""
    before = int(machine.show("hvdd.service", "NRestarts")["NRestarts"])
    for _ in range(12):
        first = wait_until(lambda: main_pid(machine), "hvdd", 5)
        machine.run(["kill", "-KILL", str(first)])
        wait_until(lambda old=first: main_pid(machine) not in (0, old), "the next hvdd", 5)
    assert int(machine.show("hvdd.service", "NRestarts")["NRestarts"]) == before + 12
    check_ended_well(start_job([machine] * 2, "new", SHORT))
    assert all(machine.show(unit, "ActiveState")["ActiveState"] == "active" for unit in ("hvdd.socket", "hvdd-engine.socket", "hvdd-gate.socket"))


def test_a_killed_gate_is_replaced_and_jobs_do_not_notice(machine):
    ranks = start_job([machine] * 2, "gateless", STEADY)
    before = row_of(machine, "gateless")
    first = gate_pid(machine)
    machine.run(["kill", "-KILL", str(first)])
    assert ctl(machine, "status", user=ALICE)["daemon"]["pid"] == main_pid(machine)
    assert gate_pid(machine) not in (0, first)
    check_goes_on(machine, before)
    stop_job(machine, "gateless", ranks)


def test_a_gate_that_stands_still_while_hvdd_crashes_is_ended_by_its_watchdog(machine):
    """It would keep the port of the mesh. WatchdogSec=10s, TimeoutStopSec=2s."""
    ctl(machine, "status")
    gate, first = gate_pid(machine), main_pid(machine)
    machine.run(["kill", "-STOP", str(gate)])
    machine.run(["kill", "-KILL", str(first)])
    assert machine.run(["kill", "-0", str(gate)], check=False).returncode == 0
    wait_until(lambda: machine.run(["kill", "-0", str(gate)], check=False).returncode != 0, "the gate to end", 16, 0.1)
    assert ctl(machine, "status")["daemon"]["pid"] not in (0, first)


def test_a_killed_engine_is_the_end_of_its_job_alone(machine):
    victims, others = start_job([machine] * 2, "victim", STEADY), start_job([machine] * 2, "other", STEADY, BOB)
    engine = row_of(machine, "victim")["engine_pid"]
    before = row_of(machine, "other")
    machine.run(["kill", "-KILL", str(engine)])
    for code, err in ends(victims, 20):
        assert code == 1 and "ENGINE_LOST" in err and str(engine) in err, err
    check_goes_on(machine, before)
    stop_job(machine, "other", others)


def test_the_stop_of_an_engines_unit_ends_its_job_alone(machine):
    victims, others = start_job([machine] * 2, "victim", STEADY), start_job([machine] * 2, "other", STEADY, BOB)
    engine = row_of(machine, "victim")["engine_pid"]
    before = row_of(machine, "other")
    unit = cgroup_of(machine, engine).rsplit("/", 1)[1]
    machine.run(["systemctl", "stop", unit])
    for code, err in ends(victims, 20):
        assert code == 1 and "JOB_STOPPED" in err, err
    check_goes_on(machine, before)
    stop_job(machine, "other", others)


def drop_in(machine: Machine, name: str, line: str, unit: str = "hvdd.service") -> None:
    """systemctl edit --runtime UNIT; `line` may be empty."""
    folder = machine.path(f"/run/systemd/system/{unit}.d")
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.conf").write_text(f"[Service]\n{line}\n", encoding="ascii")
    machine.run(["systemctl", "daemon-reload"])


def test_a_hvdd_that_stands_still_is_started_again_and_jobs_go_on(machine):
    drop_in(machine, "watchdog", "WatchdogSec=3s")
    machine.run(["systemctl", "restart", "hvdd"])
    ranks = start_job([machine] * 2, "watched", STEADY)
    before, first = row_of(machine, "watched"), main_pid(machine)
    machine.run(["kill", "-STOP", str(first)])
    wait_until(lambda: main_pid(machine) not in (0, first), "the next hvdd", 10)
    check_goes_on(machine, row_of(machine, "watched") | {"engine_pid": before["engine_pid"]})
    stop_job(machine, "watched", ranks)
    drop_in(machine, "watchdog", "")
    machine.run(["systemctl", "restart", "hvdd"])


def test_a_wrong_configuration_is_told_and_a_start_with_a_right_one_heals_all_units(machine):
    """Trainers start hvdd again and again meanwhile, until systemd puts hvdd.socket down."""
    folder = machine.path("/etc/hvdd")
    folder.mkdir(exist_ok=True)
    (folder / "hvdd.conf").write_text("max-jobs = many\n", encoding="ascii")
    assert machine.run(["systemctl", "restart", "hvdd"], check=False).returncode != 0
    assert "max-jobs" in machine.journal("--unit=hvdd.service", "--lines=10")
    assert all(code == 1 and err for code, err in ends(start_job([machine] * 2, "early", SHORT)))
    wait_until(lambda: machine.show("hvdd.socket", "Result")["Result"] == "trigger-limit-hit", "the limit of the socket", 10, 0.1)
    (folder / "hvdd.conf").unlink()
    machine.run(["systemctl", "start", "hvdd"])
    check_ended_well(start_job([machine] * 2, "late", SHORT))


# ---- restart and stop ----


def test_a_restart_lets_jobs_end(machine):
    ranks = start_job([machine] * 2, "drained", IDLE)
    row_of(machine, "drained")
    first = main_pid(machine)
    machine.run(["systemctl", "restart", "hvdd"], seconds=40)
    assert main_pid(machine) not in (0, first)
    check_ended_well(ranks, 5)


def test_a_gate_that_ends_while_hvdd_drains_is_replaced(machine):
    """systemd starts no unit that has Before=hvdd.service while hvdd is being stopped."""
    ranks = start_job([machine] * 2, "drained", ["--idle", "15"])
    row_of(machine, "drained")
    first = gate_pid(machine)
    machine.run(["systemctl", "stop", "--no-block", "hvdd"])
    wait_until(lambda: ctl(machine, "status")["daemon"]["state"] == "draining", "hvdd to drain", 5)
    machine.run(["kill", "-KILL", str(first)])
    assert ctl(machine, "status")["daemon"]["state"] == "draining"
    assert gate_pid(machine) not in (0, first)
    check_ended_well(ranks)
    wait_until(lambda: machine.show("hvdd.service", "ActiveState")["ActiveState"] == "inactive", "hvdd to end", 10)


def test_a_stop_may_take_as_long_as_the_drain(machine):
    """hvdd asks systemd for that time."""
    drop_in(machine, "stop", "TimeoutStopSec=1s")
    ranks = start_job([machine] * 2, "slow", IDLE)
    row_of(machine, "slow")
    machine.run(["systemctl", "stop", "hvdd"], seconds=40)
    check_ended_well(ranks, 5)
    assert machine.show("hvdd.service", "Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    drop_in(machine, "stop", "")


def test_after_a_reload_a_stop_waits_less_and_the_next_trainer_starts_the_service(machine):
    """Ranks are told."""
    machine.run(["sh", "-c", "mkdir -p /etc/hvdd && echo drain-timeout = 1s >/etc/hvdd/hvdd.conf && systemctl reload hvdd"])
    wait_until(lambda: "drain-timeout" in machine.journal("--unit=hvdd.service", "--lines=20"), "hvdd to name what has changed", 5)
    ranks = start_job([machine] * 2, "stopped", STEADY)
    row_of(machine, "stopped")
    machine.run(["systemctl", "stop", "hvdd"], seconds=15)
    for code, err in ends(ranks, 20):
        assert code == 1 and "JOB_STOPPED" in err and "shuts down" in err, err
    assert machine.units("hvdd-engine@*") == machine.units("hvdd-gate@*") == []
    assert machine.show("hvdd.service", "ActiveState")["ActiveState"] == "inactive"
    check_ended_well(start_job([machine] * 2, "next", SHORT))
    assert machine.show("hvdd.service", "ActiveState")["ActiveState"] == "active"
    machine.run(["sh", "-c", "rm /etc/hvdd/hvdd.conf && systemctl reload hvdd"])


def test_after_the_line_of_the_readme_trainers_have_a_hvdd_of_their_own(machine):
    """The service is stopped for good: its sockets start it no more."""
    line, = re.findall(r"^sudo (systemctl disable --now .*)$", (SOURCE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    machine.run(line.split(), seconds=40)
    check_ended_well([machine.popen(["hvd-perf", *SHORT], ALICE, settings={"HVD_ADDRESS": ""})])
    for unit in ("hvdd.service", "hvdd.socket", "hvdd-gpu.socket"):
        assert machine.show(unit, "ActiveState")["ActiveState"] == "inactive"
    machine.run("systemctl enable --now hvdd".split())


def test_a_service_whose_program_is_gone_is_not_started_again_and_again(machine):
    machine.run(["sh", "-c", "mv /usr/bin/hvdd /usr/bin/gone && systemctl kill --kill-whom=main --signal=KILL hvdd"])
    wait_until(lambda: machine.show("hvdd.service", "ActiveState")["ActiveState"] == "failed", "the unit to fail", 10, 0.1)
    machine.run(["sh", "-c", "mv /usr/bin/gone /usr/bin/hvdd && systemctl start hvdd"])


# ---- engines in bounds, and engines as users ----


def test_an_engine_has_the_bounds_of_its_unit(machine):
    """A user's job is bounded where its engine is: processors, of which it has as many threads, and memory, where the machine has
    that controller. AllowedCPUs= needs control groups of version 2 and was not tried."""
    drop_in(machine, "bounds", "CPUAffinity=0\nMemoryMax=200M", "hvdd-engine@.service")
    ranks = start_job([machine] * 2, "bounded", STEADY)
    engine = row_of(machine, "bounded")["engine_pid"]
    assert status_of(machine, engine)["Cpus_allowed_list"] == "0"
    assert "size=2 seats=2 threads=1 " in machine.journal("-t", "hvdd-engine")
    here = "ls -d /sys/fs/cgroup/memory || grep -w memory /sys/fs/cgroup/cgroup.controllers"
    path = f"system.slice/{cgroup_of(machine, engine)}"
    files = f"'/sys/fs/cgroup/{path}/memory.max' '/sys/fs/cgroup/memory/{path}/memory.limit_in_bytes'"
    assert machine.output("sh", "-c", f"cat {files} 2>/dev/null") == (str(200 << 20) if machine.output("sh", "-c", here) else "")
    stop_job(machine, "bounded", ranks)
    drop_in(machine, "bounds", "", "hvdd-engine@.service")


@pytest.fixture(name="as_users")
def _as_users(machine) -> Iterator[Machine]:
    """With the drop-ins that hvdd(8) names, as it says."""
    folder, folders = "/usr/share/doc/hvdd/engines-as-users", []
    for unit in ("hvdd.service", "hvdd-engine@.service"):
        folders.append(f"/etc/systemd/system/{unit}.d")
        machine.run(["install", "-D", "-m644", f"{folder}/{unit}.conf", f"{folders[-1]}/engines-as-users.conf"])
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "restart", "hvdd"])
    yield machine
    machine.run(["rm", "-r", *folders])
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "restart", "hvdd"])


def test_with_the_drop_ins_an_engine_becomes_its_jobs_user_and_nothing_else_does(as_users):
    jobs_ranks = [start_job([as_users] * 2, name, STEADY, user) for name, user in (("a", ALICE), ("b", BOB))]
    hvdd = as_users.output("id", "-u", "hvdd")
    for name, user in (("a", ALICE), ("b", BOB)):
        status = status_of(as_users, row_of(as_users, name)["engine_pid"])
        assert status["Uid"].split() == status["Gid"].split() == [str(user.uid)] * 4
        assert status["Groups"].split() == [as_users.output("id", "-g", "hvdd")]
        assert [int(status[kind], 16) for kind in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0] * 4
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for pid, rights in ((main_pid(as_users), 1 << 5), (gate_pid(as_users), 0)):
        status = status_of(as_users, pid)
        assert (status["Uid"].split(), int(status["CapEff"], 16)) == ([hvdd] * 4, rights)
    for pattern, most in (EXPOSURE_MAX | {"hvdd-engine@*": 21}).items():
        as_users.run(["systemd-analyze", "security", "--no-pager", f"--threshold={most}", as_users.units(pattern)[0]])
    stop_job(as_users, "a", jobs_ranks[0])
    stop_job(as_users, "b", jobs_ranks[1])


def test_with_the_drop_ins_a_user_harms_his_own_job_alone(as_users):
    """He ends his engine, or stops it; hvdd may end it, and no user another's."""
    others = start_job([as_users] * 2, "other", STEADY, BOB)
    before = row_of(as_users, "other")
    for signal in ("KILL", "STOP"):
        victims = start_job([as_users] * 2, "victim", STEADY)
        engine = row_of(as_users, "victim")["engine_pid"]
        assert as_users.run(["kill", f"-{signal}", str(before["engine_pid"])], ALICE, check=False).returncode != 0
        as_users.run(["kill", f"-{signal}", str(engine)], ALICE)
        for code, err in ends(victims, 20):
            assert code == 1 and "ENGINE_LOST" in err and str(engine) in err, err
        wait_until(lambda: len(as_users.units("hvdd-engine@*")) == 1, "its unit to end", 10)
    check_goes_on(as_users, before)
    stop_job(as_users, "other", others)


def test_with_the_drop_ins_the_next_hvdd_finds_an_engine_of_another_user(as_users):
    ranks = start_job([as_users] * 2, "outlives", STEADY)
    before, first = row_of(as_users, "outlives"), main_pid(as_users)
    as_users.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hvdd"])
    wait_until(lambda: main_pid(as_users) not in (0, first), "the next hvdd", 5)
    check_goes_on(as_users, row_of(as_users, "outlives") | {"engine_pid": before["engine_pid"]})
    stop_job(as_users, "outlives", ranks)


# ---- two machines ----


def join(first: Machine, second: Machine) -> None:
    """By a pair of keys, as hvdd(8) says: the first listens."""
    first.run(["sh", "-c", "mkdir -p /etc/hvdd && hvdctl key new /etc/hvdd/mesh && chown hvdd: /etc/hvdd/mesh.server && "
               f"printf 'mesh-listen = {first.address}:9600\\nmesh-key = /etc/hvdd/mesh\\n' >>/etc/hvdd/hvdd.conf"])
    second.run(["mkdir", "-p", "/etc/hvdd"])
    second.path("/etc/hvdd/mesh.client").write_bytes(first.path("/etc/hvdd/mesh.client").read_bytes())
    second.run(["sh", "-c", "chmod 600 /etc/hvdd/mesh.client && chown hvdd: /etc/hvdd/mesh.client && "
                f"printf 'mesh-join = {first.address}:9600\\nmesh-key = /etc/hvdd/mesh\\n' >>/etc/hvdd/hvdd.conf"])
    for each in (first, second):
        each.run(["systemctl", "restart", "hvdd"])


def test_a_job_over_two_machines_outlives_hvdd_and_may_end_before_a_machine_does(lower):
    with Machine("m1", lower, 1) as first, Machine("m2", lower, 2) as second:
        for each in (first, second):
            each.boot()
            serve(each)
        first.connect(second)
        join(first, second)
        wait_until(lambda: len(ctl(first, "nodes")["nodes"]) == 2, "the mesh", 10)
        check_ended_well(start_job([first, second], "over", SHORT))
        ranks = start_job([first, second], "steady", STEADY)
        engines = [row_of(each, "steady")["engine_pid"] for each in (first, second)]
        for each, engine in zip((first, second), engines):
            assert "hvdd-engine@" in cgroup_of(each, engine)
            assert each.output("readlink", f"/proc/{engine}/ns/net") == each.output("readlink", "/proc/1/ns/net")
            each.run(["systemctl", "kill", "--kill-whom=main", "--signal=KILL", "hvdd"])
        check_goes_on(first, row_of(first, "steady") | {"engine_pid": engines[0]})
        stop_job(first, "steady", ranks)
        check_end_of_a_machine(first, second)


def check_end_of_a_machine(first: Machine, second: Machine) -> None:
    """Before= of the units: hvdd is stopped before engines, and drains."""
    ranks = start_job([first, second], "ends", IDLE)
    row_of(second, "ends")
    second.run(["systemctl", "poweroff", "--no-block"])
    check_ended_well(ranks)
    wait_until(lambda: not second.is_on(), "the machine to be off", 30)
