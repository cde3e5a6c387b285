# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, what a reader has to know of the machine and the software of a run."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

CPU_FACTS = ("Model name", "CPU(s)", "Thread(s) per core", "Vendor ID", "CPU family", "Model", "Hypervisor vendor", "L1d cache",
             "L2 cache", "L3 cache", "NUMA node(s)")
VECTORS = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "asimd", "sve")
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


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--peers", default="")
    args = parser.parse_args()
    changed = said("git", "-C", args.source, "status", "--porcelain", "--untracked-files=no")
    memory = next((line.split()[1] for line in text_of(pathlib.Path("/proc/meminfo")).splitlines()
                   if line.startswith("MemTotal")), "0")
    json.dump({
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": (said("git", "-C", args.source, "rev-parse", "--short=12", "HEAD") or "unknown")
                  + (" with changes" if changed else ""),
        "kernel": platform.release(),
        "system": next((line.split("=", 1)[1].strip('"') for line in text_of(pathlib.Path("/etc/os-release")).splitlines()
                        if line.startswith("PRETTY_NAME=")), ""),
        "compiler": (said("gcc", "--version").splitlines() or [""])[0],
        "python": platform.python_version(),
        "memory_GiB": round(int(memory) / 1024 / 1024, 1),
        "cpu": cpu(),
        "huge_pages": {name: text_of(THP / name) for name in ("enabled", "shmem_enabled")},
        "load_before": os.getloadavg()[0],
        "peers": peers(args.cache, [name for name in args.peers.split(",") if name]),
    }, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
