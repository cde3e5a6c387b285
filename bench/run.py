# SPDX-License-Identifier: Apache-2.0
"""Runs the measures, everybody in turn within each round, and writes raw.jsonl.

    run.py --bin BUILD/bin --cache DIR --out DIR [--quick] [--peers a,b] [--only PATTERN,...] [--rounds N] [--seconds S]
        [--nodes] [--untuned]

One line of raw.jsonl is one run: measure, who, setting, round, and the row it printed or its error. Before the rounds of a
measure, every setting that measures.py lists for a peer has a short trial ("round": "trial"), and the fastest takes part. A
peer whose run in a round differs from that trial has more than one line for the round.
"""
import argparse
import dataclasses
import fnmatch
import functools
import itertools
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from typing import Callable

import measures
from measures import Measure, Setting
from results import SHARES, figure_of
from several import LIMIT_S, Failed, Several, rows_in, why_failed

HERE = pathlib.Path(__file__).resolve().parent
SIZES = HERE / "resnet50.sizes"
REFERENCE = ("memcpy", "onepass", "onepass-huge")
FURTHER_LIMIT_S = 20  # of the trial of an algorithm: there are some that take 3 s for an op that takes others 0.1 s
NO_FIGURE = (Failed, OSError, subprocess.SubprocessError, AssertionError, ValueError)  # what a run may end with
# Memories of hvdd.
IN_PYTHON = ("python", "python-fresh", "python-2.0.1", "tf221", "tf215", "tf212", "tf221-shared", "tf215-shared")


def reply(command: list[str], environment: dict[str, str]) -> list[dict]:
    """The JSON objects that the command prints."""
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            end(process)
            raise Failed(f"no result within {LIMIT_S} s") from error
        except BaseException:  # Ctrl-C: it is in a session of its own and does not get it
            end(process)
            raise
    rows = rows_in(out)
    if process.returncode != 0 or not rows:
        raise Failed(why_failed(process.returncode, err + out))
    return rows


def end(process: subprocess.Popen) -> None:
    """The process and what it has started."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


class Hvdd:
    """Us, through hvd-perf and hvdrun."""

    def __init__(self, binaries: pathlib.Path, cache: pathlib.Path, source: pathlib.Path = HERE.parent) -> None:
        self.source = source  # the package hvd is in its python/
        self.perf = str(binaries / "hvd-perf")
        self.hvdrun = str(binaries / "hvdrun")
        self.library = binaries.resolve().parent / "lib/libhvdclient.so.0"
        self.cache = cache

    def run(self, measure: Measure, memory: str, seconds: float, check: bool = True) -> list[dict]:
        """Rows: ours, then those of the reference. Python programs always check their results."""
        if memory in IN_PYTHON:
            return reply(*self.python(measure, memory, seconds))
        if measure.op == "idle":
            return [self.idle(measure, seconds)]
        command = [*self.start(measure.np), "-o", measure.op, "-m", memory, "--json", "--seconds", str(seconds)]
        if measure.op == "gradients":
            command += ["--sizes", str(SIZES)]
        else:
            command += ["-b", str(measure.size), "-e", str(measure.size), "--outstanding", str(measure.outstanding)]
        if not measure.barrier:
            command.append("--no-barrier")
        if check:
            self.check(measure, memory)
        rows = reply(command, {})
        return rows + self.reference(measure, seconds) if measure.reference and memory == "shared" else rows

    def reference(self, measure: Measure, seconds: float) -> list[dict]:
        """The one-pass kernel on all cores, so by ranks that are not bound. Raises Failed."""
        size = str(measure.size)
        rows = [row for row in reply([self.perf, "-n", str(measure.np), "-b", size, "-e", size, "--json", "--seconds", str(seconds),
                                      "--memcpy"], {}) if row["op"] in REFERENCE]
        cores = len(os.sched_getaffinity(0))
        if any(row.get("threads", cores) < cores for row in rows if row["op"] != "memcpy"):
            raise Failed(f"one pass did not have all {cores} cores")
        return rows

    def python(self, measure: Measure, memory: str, seconds: float) -> tuple[list[str], dict[str, str]]:
        """hvd.torch or hvd.tensorflow on the framework of a peer; command line and environment."""
        place = self.cache / measures.place_of(memory)
        op = "hooks-fresh" if memory == "python-fresh" else measure.op
        bench = ["tensorflow_bench.py", "hvd", op] if memory.startswith("tf") else ["hvd_bench.py", op]
        one_thread_each = memory.startswith("tf")
        bound = ["--bind-to", "core"] if one_thread_each or measure.np > len(os.sched_getaffinity(0)) else []
        whose = {"HVD_TENSORFLOW_MEMORY": "shared" if memory.endswith("-shared") else "private"} if one_thread_each else {}
        return [self.hvdrun, "-np", str(measure.np), *bound, "--no-prefix", str(place / "bin/python"),
                str(HERE / "peers" / bench[0]), *bench[1:], what_of(measure), str(seconds), *extras(measure, "--")], {
                    "HVD_LIBRARY": str(self.library), "PYTHONPATH": str(self.source / "python"), "OMP_NUM_THREADS": "1"} | whose

    def start(self, np: int) -> list[str]:
        """Ranks of hvd-perf; bound to cores, as hvdrun's manual advises, when there are more of them than cores."""
        if np <= len(os.sched_getaffinity(0)):
            return [self.perf, "-n", str(np)]
        return [self.hvdrun, "-np", str(np), "--bind-to", "core", "--no-prefix", self.perf]

    def check(self, measure: Measure, memory: str) -> None:
        """Right results, in a run whose times nobody looks at; raises Failed."""
        size = ["--sizes", str(SIZES)] if measure.op == "gradients" else ["-b", str(measure.size), "-e", str(measure.size)]
        reply([self.perf, "-n", str(measure.np), "-o", measure.op, "-m", memory, "--json", "-i", "1", "-w", "0", "-c",
               "--outstanding", str(measure.outstanding), *size], {})

    def idle(self, measure: Measure, seconds: float) -> dict:
        """CPU share of the engine while its ranks do nothing. Raises Failed."""
        rest = max(seconds * 4, 2)
        with subprocess.Popen([self.perf, "-n", str(measure.np), "--idle", str(rest + 2)], stdout=subprocess.PIPE,
                              text=True, stdin=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                if not select.select([process.stdout], [], [], LIMIT_S)[0] or "idle" not in process.stdout.readline():
                    raise Failed("the ranks did not come")
                engines = engines_under(process.pid)
                if not engines:
                    raise Failed("no hvdd-engine among the descendants of hvdrun")
                time.sleep(1)  # the work of attaching is over
                start_ns, started = sum(map(cpu_ns, engines)), time.monotonic_ns()
                time.sleep(rest)
                if engines_under(process.pid) != engines:
                    raise Failed("an engine has ended")
                used_ns, took_ns = sum(map(cpu_ns, engines)) - start_ns, time.monotonic_ns() - started
                if process.wait(timeout=LIMIT_S) != 0:
                    raise Failed(f"exit status {process.returncode}")
            except BaseException:
                end(process)
                raise
        return {"op": "idle", "np": measure.np, "cpu_percent": round(100 * used_ns / took_ns, 4)}


def stolen_share(before: list[int]) -> float:
    """Of the CPUs' time since then, what the host gave to others (steal in /proc/stat)."""
    passed = [now - then for now, then in zip(cpu_ticks(), before)]
    return passed[7] / max(sum(passed[:8]), 1)


def cpu_ticks() -> list[int]:
    """Of all CPUs together: user, nice, system, idle, iowait, irq, softirq, steal, ..."""
    return [int(word) for word in pathlib.Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]]


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, as the scheduler counts it."""
    return sum(int(path.read_text(encoding="utf-8").split()[0])
               for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))


def engines_under(ancestor: int) -> list[int]:
    """hvdd-engine processes that descend from a process."""
    parents, engines = {}, []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text(encoding="utf-8").split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # it has ended meanwhile
        pid = int(path.parent.name)
        parents[pid] = int(rest.split()[1])
        if name == "hvdd-engine":
            engines.append(pid)

    def descends(pid: int) -> bool:
        while pid > 1 and pid != ancestor:
            pid = parents.get(pid, 0)
        return pid == ancestor

    return [pid for pid in engines if descends(pid)]


def what_of(measure: Measure) -> str:
    """The second argument of every peer's bench."""
    return str(SIZES) if measure.op in ("gradients", "hooks") else str(measure.size)


def extras(measure: Measure, dashes: str) -> list[str]:
    """Barrier and outstanding, in a peer's form."""
    words = [f"{dashes}barrier"] if measure.barrier else []
    if measure.outstanding > 1:
        words += [f"--outstanding={measure.outstanding}"] if dashes else [f"outstanding={measure.outstanding}"]
    return words


def peer_command(peer: str, cache: pathlib.Path, measure: Measure, setting: Setting,
                 seconds: float) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that a peer adds."""
    place = cache / measures.place_of(peer)
    path = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"} | setting.environment
    op = "gradients" if measure.op == "hooks" else measure.op
    bench = [op, what_of(measure), str(seconds)]
    count = str(measure.np)
    if peer == "openmpi":
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        return [str(place / "bin/mpirun"), "--oversubscribe", *root, *setting.arguments, "-np", count,
                str(place / "mpi_bench"), *bench, *extras(measure, "")], path
    if peer == "impi":
        return [str(place / "bin/mpirun"), "-np", count, str(place / "mpi_bench"), *bench, *extras(measure, "")], path | {
            "I_MPI_ROOT": str(place), "LD_LIBRARY_PATH": str(place / "lib"), "I_MPI_FABRICS": "shm"}
    if peer == "gloo":
        root = place / "root/usr/lib"
        triplet = [str(each) for each in (*root.glob("*-linux-gnu*"), *(place / "root/lib").glob("*-linux-gnu*"))]
        return [str(place / "gloo_bench"), count, *setting.arguments, *bench, *extras(measure, "")], path | {
            "LD_LIBRARY_PATH": ":".join([str(root), *triplet])}
    if peer in ("torch", "torch-ddp"):
        op = "ddp" if peer == "torch-ddp" and op == "gradients" else op
        return [str(place / "bin/torchrun"), "--nproc-per-node", count, str(HERE / "peers/torch_bench.py"), op, *bench[1:],
                *extras(measure, "--")], path | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if peer.startswith(("mwms", "alone", "apart")):
        legacy = {"TF_USE_LEGACY_KERAS": "1"} if peer == "mwms-tf221" else {}
        return [str(place / "bin/python"), str(HERE / "peers/tensorflow_bench.py"), peer.split("-")[0], *bench], path | {
            "NP": count, "OMP_NUM_THREADS": "1"} | legacy
    program = ["tensorflow_bench.py", "horovod"] if peer in measures.HOROVODS else ["horovod_bench.py"]
    return [str(place / "bin/horovodrun"), "--gloo", "-np", count, str(place / "bin/python"),
            str(HERE / "peers" / program[0]), *program[1:], *bench, *extras(measure, "--")], path | {
                "OMP_NUM_THREADS": "1", "HOROVOD_GLOO_IFACE": "lo"}


@dataclasses.dataclass(frozen=True)
class Chosen:
    """How a peer takes part, and what it took in the trial."""
    setting: Setting
    trial: float


class Session:
    """The rounds, and the file they are written to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.hvdd = Hvdd(args.bin, args.cache)
        self.file = (args.out / "raw.jsonl").open("w", encoding="utf-8")
        self.take = 0  # the one of the round, for note()
        self.measured = False  # hvdd, at least once

    @functools.cached_property
    def several(self) -> Several:
        """What runs on several nodes."""
        return Several(self.args.bin, self.args.cache, cpu_ns, extras, tuned=not self.args.untuned)

    def note(self, measure: Measure, who: str, setting: str, turn, **result) -> None:
        """One line of the file."""
        print(json.dumps({"measure": measure.name, "who": who, "setting": setting, "round": turn, "take": self.take} | result),
              file=self.file, flush=True)

    def peer(self, measure: Measure, peer: str, setting: Setting, turn, seconds: float, limit_s: float = LIMIT_S) -> float:
        """One run of a peer; its figure, or infinity after a failure, which is noted. The limit is of runs between nodes."""
        try:
            row = (self.several.peer(peer, measure, setting, seconds, limit_s) if measure.nodes else
                   reply(*peer_command(peer, self.args.cache, measure, setting, seconds)))[0]
        except NO_FIGURE as error:
            self.note(measure, peer, setting.text, turn, error=str(error))
            return float("inf")
        self.note(measure, peer, setting.text, turn, row=row)
        return figure_of(row)

    def steadily(self, measure: Measure, peer: str, chosen: Chosen, turn: int) -> None:
        """The run of a peer in a round, repeated while it differs from the trial; report.py takes the fastest."""
        fastest = float("inf")
        for _ in range(1 + measures.REPEATS):
            fastest = min(fastest, self.peer(measure, peer, chosen.setting, turn, self.args.seconds))
            if measure.op in SHARES or not measures.differs(fastest, chosen.trial):
                return

    def ours(self, measure: Measure, memory: str, turn) -> None:
        """One run of hvdd in this memory, and of the reference."""
        try:
            rows = (self.several.ours if measure.nodes else self.hvdd.run)(measure, memory, self.args.seconds)
        except NO_FIGURE as error:
            self.note(measure, f"hvdd-{memory}", "", turn, error=str(error))
            return
        self.measured = True
        for row in rows:
            who = row["op"] if row["op"] in (*REFERENCE, *measures.BESIDE) else f"hvdd-{memory}"
            self.note(measure, who, "", turn, row=row)

    def beside(self, measure: Measure, turn: int) -> None:
        """One run of what stands beside hvdd and its peers on several nodes."""
        try:
            for who, row in self.several.beside(measure, self.args.seconds, "iperf3" in self.args.peers):
                self.note(measure, who, "", turn, row=row)
        except NO_FIGURE as error:
            self.note(measure, "ring-1", "", turn, error=str(error))

    def trials(self, measure: Measure, peer: str, choices: list[Setting], limit_s: float = LIMIT_S) -> list[Chosen]:
        """A short run of each."""
        return [Chosen(setting, self.peer(measure, peer, setting, "trial", self.args.seconds / 3, limit_s)) for setting in choices]

    def choose(self, measure: Measure, peer: str) -> Chosen | None:
        """The fastest setting in a trial of each; None when nothing works."""
        def trial(each: Chosen) -> float:
            return each.trial
        best = min(self.trials(measure, peer, measures.settings(peer, measure, not self.args.untuned)), key=trial)
        if best.trial == float("inf"):
            return None
        further = [] if self.args.untuned else measures.further_settings(peer, measure, best.setting)
        return min([best, *self.trials(measure, peer, further, FURTHER_LIMIT_S)], key=trial)

    def measure(self, measure: Measure) -> None:
        """All rounds of one measure."""
        peers = [peer for peer in measure.peers if measures.place_of(peer) in self.args.peers]
        chosen = {peer: self.choose(measure, peer) for peer in peers}
        turns: list[Callable[[int], None]] = [
            functools.partial(self.ours, measure, memory) for memory in measure.memories
            if memory not in IN_PYTHON or measures.place_of(memory) in self.args.peers]
        turns += [functools.partial(self.steadily, measure, peer, each) for peer, each in chosen.items() if each]
        turns += [functools.partial(self.beside, measure)] if measure.nodes else []
        for turn, self.take in itertools.product(range(self.args.rounds), range(measure.takes)):
            shift = (turn * measure.takes + self.take) % max(len(turns), 1)
            for run in turns[shift:] + turns[:shift]:
                self.undisturbed(measure, functools.partial(run, turn))
        self.take = 0

    def undisturbed(self, measure: Measure, run: Callable[[], None]) -> None:
        """Again while the host has taken much of the CPUs; report.py takes the fastest."""
        for _ in range(1 + measures.REPEATS):
            before = cpu_ticks()
            run()
            if measure.op in SHARES or stolen_share(before) < measures.STOLEN:
                return


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--untuned", action="store_true")
    parser.add_argument("--peers", default=",".join(measures.PEERS))
    parser.add_argument("--only", default="*")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    args.peers = [peer for peer in args.peers.split(",") if peer]
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.seconds = args.seconds or (0.3 if args.quick else 1.0)
    return args


def main() -> int:
    """See the module's text. 1: nothing of hvdd was measured, 2: no measure has such a name."""
    args = arguments()
    session = Session(args)
    wanted = [each for each in measures.MEASURES if (each.quick or not args.quick) and bool(each.nodes) == args.nodes and
              any(fnmatch.fnmatchcase(each.name, pattern) for pattern in args.only.split(","))]
    if not wanted:
        print(f"run.py: no measure is called {args.only}", file=sys.stderr)
        return 2
    for number, measure in enumerate(wanted, 1):
        started = time.monotonic()
        print(f"[{number}/{len(wanted)}] {measure.name}", end=" ", flush=True)
        session.measure(measure)
        print(f"{time.monotonic() - started:.0f} s", flush=True)
    return 0 if session.measured else 1


if __name__ == "__main__":
    sys.exit(main())
