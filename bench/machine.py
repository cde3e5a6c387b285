# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, what a reader has to know of the machine and the software of a run.

    machine.py --cache DIR --source DIR [--peers a,b] [--loadavg "A B C"] [--binaries TEXT]

It watches the CPUs for two seconds, so it is to be run when nothing of ours works. Exit status 1 with `--clean-only`, which
prints nothing else: the sources are not those of a commit; standard error says which files differ."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

CPU_FACTS = ("Model name", "CPU(s)", "Thread(s) per core", "Vendor ID", "CPU family", "Model", "Hypervisor vendor", "L1d cache",
             "L2 cache", "L3 cache", "NUMA node(s)")
VECTORS = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "asimd", "sve")
WATCHED_S = 2.0
BUSY_PERCENT = 5  # of a core, from which on a process is named
QUIET_PERCENT = 10  # of all CPUs; above, the machine is not quiet
STOLEN_PERCENT = 2
THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")


def said(*command: str) -> str:
    """What a command prints, or ""."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def text_of(path: pathlib.Path) -> str:
    """The content of a small file, or ""."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def cpu() -> dict[str, str]:
    """From lscpu."""
    lines = dict(line.split(":", 1) for line in said("lscpu").splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in lines.items()}
    flags = set(facts.get("Flags", "").split())
    return {name: facts[name] for name in CPU_FACTS if name in facts} | {
        "vectors": " ".join(name for name in VECTORS if name in flags)}


def peers(cache: pathlib.Path, names: list[str]) -> dict[str, dict]:
    """What compare.sh noted about each peer."""
    result = {}
    for name in names:
        word, _, rest = text_of(cache / f"{name}.state").partition(" ")
        result[name] = {"ok": word == "ok", "text": rest or "never installed"}
    return result


# ---- load ----

def cpu_ticks() -> list[int]:
    """Of all CPUs together: user, nice, system, idle, iowait, irq, softirq, steal."""
    first = (text_of(pathlib.Path("/proc/stat")).splitlines() or ["cpu"])[0]
    return [int(each) for each in first.split()[1:9]]


def process_ticks() -> dict[int, tuple[str, int]]:
    """Name and CPU time of every other process."""
    result = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        name, _, rest = text_of(path).partition("(")[2].rpartition(")")
        if rest and int(path.parent.name) != os.getpid():
            result[int(path.parent.name)] = (name, sum(int(each) for each in rest.split()[11:13]))
    return result


def load(loadavg: str = "") -> dict:
    """The averages that were given, and what the machine does while this waits."""
    cpus, processes = cpu_ticks(), process_ticks()
    time.sleep(WATCHED_S)
    spent = [after - before for before, after in zip(cpus, cpu_ticks())]
    share = 100 / max(sum(spent), 1)
    used = [(100 * (ticks - processes.get(pid, (name, 0))[1]) / WATCHED_S / os.sysconf("SC_CLK_TCK"), name)
            for pid, (name, ticks) in process_ticks().items()]
    return {"loadavg": [float(each) for each in (loadavg or text_of(pathlib.Path("/proc/loadavg"))).split()[:3]],
            "busy_percent": round((sum(spent) - spent[3] - spent[4] - spent[7]) * share, 1),
            "steal_percent": round(spent[7] * share, 1),
            "processes": [{"name": name, "percent": round(percent)} for percent, name in sorted(used, reverse=True)[:5]
                          if percent >= BUSY_PERCENT]}


def load_text(found: dict) -> str:
    """In words."""
    busy = ", ".join(f"{each['name']} {each['percent']:.0f} %" for each in found["processes"]) or "none"
    noisy = found["busy_percent"] > QUIET_PERCENT or found["steal_percent"] > STOLEN_PERCENT
    return (f"load before the run: {' '.join(f'{each:.2f}' for each in found['loadavg'])}; just before the first round "
            f"{found['busy_percent']:.0f} % of all CPUs were busy, {found['steal_percent']:.1f} % stolen by the host; "
            f"busy processes: {busy}" + ("; **the machine was not quiet**" if noisy else ""))


# ---- sources ----

def changes(source: str) -> str | None:
    """What differs from the commit, untracked files as well, but for results; None where there is no commit."""
    if not said("git", "-C", source, "rev-parse", "--verify", "HEAD"):
        return None
    return said("git", "-C", source, "status", "--porcelain", "--", ".", ":(exclude)docs/measurements")


def check_clean(source: str) -> int:
    """Exit status: whether every figure would be of a commit."""
    differing = changes(source)
    if differing:
        print(f"these files are not as in the commit:\n{differing}", file=sys.stderr)
    elif differing is None:
        print("this is no git checkout, so no commit says what is measured", file=sys.stderr)
    return 0 if differing == "" else 1


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path())
    parser.add_argument("--source", required=True)
    parser.add_argument("--peers", default="")
    parser.add_argument("--loadavg", default="")
    parser.add_argument("--binaries", default="")
    parser.add_argument("--clean-only", action="store_true")
    args = parser.parse_args()
    if args.clean_only:
        sys.exit(check_clean(args.source))
    differing = changes(args.source)
    memory = next((line.split()[1] for line in text_of(pathlib.Path("/proc/meminfo")).splitlines()
                   if line.startswith("MemTotal")), "0")
    json.dump({
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": (said("git", "-C", args.source, "rev-parse", "--short=12", "HEAD") or "unknown")
                  + (" with changes" if differing else ""),
        "changed": differing != "",
        "binaries": args.binaries,
        "kernel": platform.release(),
        "system": next((line.split("=", 1)[1].strip('"') for line in text_of(pathlib.Path("/etc/os-release")).splitlines()
                        if line.startswith("PRETTY_NAME=")), ""),
        "compiler": (said("gcc", "--version").splitlines() or [""])[0],
        "python": platform.python_version(),
        "memory_GiB": round(int(memory) / 1024 / 1024, 1),
        "cpu": cpu(),
        "huge_pages": {name: text_of(THP / name) for name in ("enabled", "shmem_enabled")},
        "load": load(args.loadavg),
        "peers": peers(args.cache, [name for name in args.peers.split(",") if name]),
    }, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
