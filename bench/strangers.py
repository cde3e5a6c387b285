# SPDX-License-Identifier: Apache-2.0
"""What a stranger who floods hvdd costs the others.

    strangers.py --build BUILD [--rounds N] [--seconds S] [--only KIND,...] [--json]     (root, two cores)

A hvdd for all users, with a user of its own. A job of two ranks (hvd-perf) and its engine have one core. The stranger, uid 65534, is
bound to the other one; hvdd and its gate may run on both. Turns of each round, each beginning with another one:

    quiet      nobody else
    spin       the stranger computes, and leaves hvdd alone: what a neighbour on the other core costs anyway
    flood      a process of each kind of stranger.c: attaches, admin requests, silence and noise, at once

A step is an allreduce of --bytes on both ranks; its mean over the turn counts, as a pause would not show in the median. The ratio of
flood to spin is what hvdd lets a stranger do. While the flood lasts, root attaches to a job of its own, and asks hvdctl for the status,
20 times each. Memory is the private memory of hvdd and of its gate at the end of each turn, CPU their time per second of the flood.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import interval
import machine

HERE = pathlib.Path(__file__).resolve().parent
NOBODY = 65534
KINDS = ["connect", "garbage", "silent", "admin", "ask", "jobs"]
STRANGERS_CORE, JOBS_CORE = 0, 1
LIMIT_S = 120
PROBES = 20


def compiled(build: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """stranger.c, beside a library that anybody may read."""
    program = folder / "stranger"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HERE.parent}/client/include", HERE / "stranger.c",
                    "-o", program, f"-L{build}/lib", "-lhvdclient"], check=True, timeout=LIMIT_S)
    for library in (build / "lib").glob("libhvdclient.so*"):
        (folder / library.name).write_bytes(library.read_bytes())
    return program


def bind(pid: int, core: int) -> None:
    """All threads of the process."""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


def cpu_ns(pid: int) -> int:
    """CPU time of the main thread; hvdd and its gate have one."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


def private_kib(pid: int) -> int:
    """Private memory."""
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))


class Bench:
    """One hvdd, and who comes to it."""

    def __init__(self, daemon: Any, build: pathlib.Path, stranger: pathlib.Path, options: argparse.Namespace):
        self.daemon, self.build, self.stranger, self.options = daemon, build, stranger, options
        self.environment = daemon.environment | {"HVD_ADDRESS": str(daemon.address), "LD_LIBRARY_PATH": str(stranger.parent)}

    @contextlib.contextmanager
    def strangers(self, turn: str) -> Iterator[None]:
        """Those of the turn."""
        kinds = {"quiet": [], "spin": ["spin"], "flood": self.options.only.split(",")}[turn]
        bound = lambda: os.sched_setaffinity(0, {STRANGERS_CORE})  # noqa: E731
        processes = [subprocess.Popen([self.stranger, self.daemon.address, kind], env=self.environment, cwd="/", preexec_fn=bound,
                                      user=NOBODY, group=NOBODY, extra_groups=[]) for kind in kinds]
        try:
            time.sleep(1)  # until what may come at once has come
            yield
            assert all(process.poll() is None for process in processes), "a stranger has ended"
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def step(self) -> dict[str, float]:
        """The row of hvd-perf."""
        command = [self.build / "bin/hvd-perf", "-n", "2", "--address", self.daemon.address, "--json", "--seconds",
                   str(self.options.seconds), "-b", str(self.options.bytes), "-e", str(self.options.bytes), "-w", "50"]
        before = set(self.daemon.engines())
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment, cwd="/",
                              preexec_fn=lambda: os.sched_setaffinity(0, {JOBS_CORE})) as process:
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:  # the job's engine, and threads that it has started since
                for job in self.jobs_of_root():
                    if job["engine_pid"] not in before:
                        bind(job["engine_pid"], JOBS_CORE)
                time.sleep(0.1)
            out, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, out
        return next(json.loads(line) for line in out.splitlines() if line.startswith("{"))

    def jobs_of_root(self) -> list[dict]:
        """From hvdctl."""
        return [job for job in self.daemon.jobs() if job["uid"] == 0]

    def probe(self) -> dict[str, list[float]]:
        """Milliseconds that root waits."""
        attached, asked = [], []
        rank = self.daemon.rank()
        for number in range(PROBES):
            began = time.monotonic()
            outcome = rank.try_open(f"root{number}", 0, 1)
            attached.append(1e3 * (time.monotonic() - began))
            assert outcome.ok, outcome
            rank.close()
            began = time.monotonic()
            assert self.daemon.ctl.json("status")["daemon"]["pid"] == self.daemon.pid
            asked.append(1e3 * (time.monotonic() - began))
        self.daemon.ranks.remove(rank)
        rank.stop()
        return {"attach_ms": attached, "status_ms": asked}

    def turn(self, turn: str) -> dict[str, Any]:
        """All figures of a turn."""
        gate = self.daemon.gate()
        processes = {"hvdd": self.daemon.pid, "gate": gate}
        with self.strangers(turn):
            before, began = {name: cpu_ns(pid) for name, pid in processes.items()}, time.monotonic()
            row = self.step()
            took = time.monotonic() - began
            used = {name: (cpu_ns(pid) - before[name]) / 1e7 / took for name, pid in processes.items()}
            found = self.probe()
            memory = {name: private_kib(pid) for name, pid in processes.items()}
        assert self.daemon.gate() == gate, "the gate was replaced"
        return {"mean_us": row["time_us_mean"], "median_us": row["time_us"], "cpu_percent": used, "memory_kib": memory} | found


def three(values: list[float], unit: str) -> str:
    """The median, and the ends."""
    return f"{statistics.median(values):9.1f} {unit} ({min(values):.1f} to {max(values):.1f})"


def ratio_text(rows: dict[str, list[dict]], one: str, other: str, key: str) -> str:
    """Turn by turn."""
    ratios = [a[key] / b[key] for a, b in zip(rows[one], rows[other])]
    text = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    if len(ratios) >= interval.LEAST:
        low, middle, high = interval.of_ratios(ratios)
        text += f"; {middle:.3f}, 95 % within {low:.3f} to {high:.3f}"
    return text


def show(rows: dict[str, list[dict]]) -> None:
    """For people."""
    for turn, those in rows.items():
        print(f"{turn}: {len(those)} turns")
        print(f"  step, mean      {three([row['mean_us'] for row in those], 'us')}")
        print(f"  step, median    {three([row['median_us'] for row in those], 'us')}")
        print(f"  root attaches   {three([ms for row in those for ms in row['attach_ms']], 'ms')}")
        print(f"  hvdctl status   {three([ms for row in those for ms in row['status_ms']], 'ms')}")
        for name in ("hvdd", "gate"):
            print(f"  {name}: memory   {', '.join(str(row['memory_kib'][name]) for row in those)} KiB;"
                  f" CPU {three([row['cpu_percent'][name] for row in those], '%')}")
    for one, other in (("flood", "spin"), ("flood", "quiet"), ("spin", "quiet")):
        for key in ("mean_us", "median_us"):
            print(f"{one}/{other}, {key[:-3]:6} {ratio_text(rows, one, other, key)}")


def main() -> int:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--bytes", type=int, default=4 << 20)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("strangers.py: needs root, to be several users, and two cores")
    build = options.build.resolve()
    os.environ["HVD_BUILD_DIR"] = str(build)
    sys.path.append(str(HERE.parent / "tests/harness"))
    from hvt import Daemon, as_service  # pylint: disable=import-outside-toplevel  # which needs a build
    load = machine.load()
    rows: dict[str, list[dict]] = {"quiet": [], "spin": [], "flood": []}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        stranger = compiled(build, pathlib.Path(folder))
        with Daemon(options={"private": "no", "admin-mode": "0666"}, folder_mode=0o755, user=as_service()) as daemon:
            daemon.allow("attach-refused", "admin-limit", "cannot-accept", "bad-request", "rank-lost", "session-ended", "rank-ended")
            bench = Bench(daemon, build, stranger, options)
            for number in range(options.rounds):
                for at in range(len(rows)):
                    turn = list(rows)[(number + at) % len(rows)]
                    rows[turn].append(bench.turn(turn))
            log_bytes = daemon.log_path.stat().st_size
    if options.json:
        print(json.dumps({"load": load, "log_bytes": log_bytes, "turns": rows}))
        return 0
    print(machine.load_text(load))
    show(rows)
    print(f"log: {log_bytes} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
