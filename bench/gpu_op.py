# SPDX-License-Identifier: Apache-2.0
"""CPU time of an op on memory of GPUs, by process and thread, on the fake driver of the tests.

    gpu_op.py --build BUILD... [--rounds N] [--seconds S] [--np N] [--only MODE,...] [--json]

Two ranks of gpu_op.c share one GPU of the fake. Modes and builds take turns within a round; a figure is the median of the rounds, with
the smallest and the largest. CPU time is the scheduler's (schedstat), wake-ups are voluntary switches, both per op: what
client, engine and worker have used between "begin" and "end", divided by the ops. What the fake's own threads use, which stand for a GPU,
is told apart. What it uses inside of its calls is not: it lies in the threads that call (profile it with perf).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODES = {  # name: arguments of gpu_op
    "alone": [],
    "alone-stream": ["--stream"],
    "four": ["--outstanding", "4"],
    "four-stream": ["--outstanding", "4", "--stream"],
    "sixteen": ["--outstanding", "16"],
    "sixteen-stream": ["--outstanding", "16", "--stream"],
    "many": ["--outstanding", "64"],
    "many-stream": ["--outstanding", "64", "--stream"],
}
LIMIT_S = 120
Used = dict[str, tuple[int, int]]  # "process/thread": nanoseconds, switches


def descendants(ancestor: int) -> list[int]:
    """The process, and all that it has started."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            rest = path.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile
        children.setdefault(int(rest[1]), []).append(int(path.parent.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found


def used_by(pids: list[int]) -> Used:
    """What each thread has used so far; threads of one name are one."""
    used: Used = {}
    for pid in pids:
        process = pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            key = f"{process}/{(task / 'comm').read_text(encoding='utf-8').strip()}"
            ns = int((task / "schedstat").read_text(encoding="utf-8").split()[0])
            switches = next(int(line.split()[1]) for line in (task / "status").read_text(encoding="utf-8").splitlines()
                            if line.startswith("voluntary"))
            before = used.get(key, (0, 0))
            used[key] = (before[0] + ns, before[1] + switches)
    return used


def compiled(build: pathlib.Path, folder: str) -> str:
    """gpu_op.c, with the library and the fake of the build."""
    os.mkdir(folder)
    path = f"{folder}/gpu_op"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HERE.parent}/client/include", HERE / "gpu_op.c",
                    "-o", path, f"-L{build}/lib", "-lhvdclient", f"-Wl,-rpath,{build}/lib", f"-L{build}/fakegpu",
                    "-l:libcuda.so.1"], check=True, timeout=LIMIT_S)
    return path


def run(command: list[str], environment: dict[str, str]) -> dict:
    """One row: of each thread the CPU time and the wake-ups of an op in microseconds."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        before, after, end = {}, {}, ["", "0", "0"]
        for line in process.stdout:
            if line.startswith("begin"):
                pids = descendants(process.pid)
                before = used_by(pids)
            elif line.startswith("end"):
                after, end = used_by(pids), line.split()
        if process.wait(timeout=LIMIT_S) != 0 or not after:
            raise SystemExit(f"{' '.join(command)} has failed: status {process.returncode}")
    ops = int(end[1])
    return {"ops": ops, "time_us": int(end[2]) / ops / 1000,
            "cpu_us": {key: (ns - before.get(key, (0, 0))[0]) / ops / 1000 for key, (ns, _) in after.items()},
            "switches": {key: (switches - before.get(key, (0, 0))[1]) / ops for key, (_, switches) in after.items()}}


def is_ours(key: str) -> bool:
    """Whether a thread is of client, engine or worker, and not one that stands for the GPU."""
    return not key.endswith("/fakegpu") and not key.startswith("hvdrun/")


def three(values: list[float]) -> str:
    """The median, and the ends."""
    return f"{statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})"


def show(name: str, rows: list[dict]) -> None:
    """A table of one mode of one build."""
    print(f"{name}: {rows[0]['ops']} ops and more in each of {len(rows)} rounds")
    print(f"  {'time of an op':24}{three([row['time_us'] for row in rows])} µs")
    print(f"  {'CPU time of an op':24}{three([row['cpu_sum_us'] for row in rows])} µs")
    for key in sorted(rows[0]["cpu_us"]):
        cpu = [row["cpu_us"].get(key, 0.0) for row in rows]
        if max(cpu) >= 0.01:
            switches = statistics.median(row["switches"].get(key, 0.0) for row in rows)
            print(f"    {key:22}{three(cpu)} µs, {switches:.2f} wake-ups{'' if is_ours(key) else '; not counted'}")


def main() -> int:
    """See the top."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--only", default=",".join(MODES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    builds = [build.resolve() for build in options.build]
    cases = [(mode, build) for mode in options.only.split(",") for build in builds]
    rows: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        programs = {build: compiled(build, f"{folder}/{number}") for number, build in enumerate(builds)}
        for turn in range(options.rounds):
            for at in range(len(cases)):
                mode, build = cases[(turn + at) % len(cases)]
                environment = {"LD_LIBRARY_PATH": f"{build}/fakegpu", "FAKEGPU": "devices=1;free=keeps"}
                row = run([f"{build}/bin/hvdrun", "-np", str(options.np), "--no-prefix", programs[build], *MODES[mode], "--seconds",
                           str(options.seconds)], environment)
                row["cpu_sum_us"] = sum(us for key, us in row["cpu_us"].items() if is_ours(key))
                rows.setdefault(mode if len(builds) == 1 else f"{mode}, {build.name}", []).append(row)
    if options.json:
        print(json.dumps(rows))
    for name in sorted(rows) if not options.json else []:
        show(name, rows[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
