#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hvdd on a GPU: what an op costs, beside the same thing inside one process. Writes DIR/gpu.md, DIR/raw.jsonl and a log of each program.

    gpu.py --build build-release --out DIR [--python PATH] [--only op4,reduce] [--rounds N] [--seconds S] [--fake]

Measures come in the order of their weight, and each has a limit of its own; what does not fit into --seconds is a row that says so,
and so is a measure that fails. All results are compared before anything is timed. --python is a Python with torch for GPUs, which
the training measure needs, and whose NCCL the others compare with. --fake: tiny sizes on the fake driver of the build.
bench/README.md says what each figure means.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable

HERE = pathlib.Path(__file__).resolve().parent
SIZES = HERE / "resnet50.sizes"
MIB = 1 << 20
MPS = "nvidia-cuda-mps-control"
GRACE_S = 8  # from SIGTERM to SIGKILL: hvdrun ends its ranks and its hvdd meanwhile
ADDED_US, REDUCE_PERCENT, PACK_PERCENT, OPEN_US, CALL_US = 10, 90, 85, 5000, 5

Figures = dict[str, tuple[float, str]]  # by name: value, unit


class Failed(Exception):
    """A program has not ended well: the text says why; .figures are those that it printed before."""

    def __init__(self, text: str, figures: Figures | None = None) -> None:
        super().__init__(text)
        self.figures = figures or {}


@dataclasses.dataclass
class Row:
    """One line of the table. `holds` None: it has no bar."""

    measure: str
    what: str
    value: str
    bar: str = ""
    holds: bool | None = None

    def line(self) -> str:
        """In Markdown."""
        verdict = "**held**" if self.holds else "**not held**"
        if self.holds is None:
            verdict = "**failed**" if self.value.startswith("failed: ") else "published"
        return f"| {self.measure} | {self.what} | {self.value} | {self.bar} | {verdict} |"


def tail(path: pathlib.Path) -> str:
    """The last lines that say something, behind the command: hvdrun's own only tell which rank has ended."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[1:] if line.strip()]
    lines = [line for line in lines if not line.startswith(("hvdrun", "Process name:", "Exit code:"))] or lines
    return " / ".join(lines[-3:]).replace("|", "\\|")[-500:]


def end(process: subprocess.Popen) -> None:
    """The process with its group: by SIGTERM, which hvdrun passes on, or else by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


class Bench:
    """Runs programs, and keeps what they say."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.build = options.build.resolve()
        self.until = time.monotonic() + options.seconds
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.failures = 0
        self.nccl = find_nccl(options.python)
        self.raw = (options.out / "raw.jsonl").open("w", encoding="utf-8")
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [
                str(self.build / "lib"), str(self.build / "fakegpu") if options.fake else "", os.environ.get("LD_LIBRARY_PATH", "")])),
            "HVD_LIBRARY": str(self.build / "lib/libhvdclient.so.0"), "HVD_GPU": "required",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")])),
            "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/mps", "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "HVD_STALL_CHECK_TIME_SECONDS": "5"}
        if options.fake:
            self.environment["FAKEGPU"] = "devices=1;free=keeps"
        elif self.nccl:
            self.environment["HVD_NCCL_LIB"] = self.nccl

    def left(self) -> float:
        """Seconds of the whole run."""
        return self.until - time.monotonic()

    def run(self, name: str, command: list[str], limit_s: float, more: dict[str, str]) -> Figures:
        """The figures that a program prints."""
        limit_s = min(limit_s, self.left() - GRACE_S)
        if limit_s < 3:
            raise Failed(f"the {self.options.seconds:.0f} s of --seconds are over")
        out, err = self.options.out / f"{name}.out", self.options.out / f"{name}.err"
        since = time.monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            stderr.write(f"{' '.join(command)}\n".encode())
            stderr.flush()
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=self.environment | more,
                                  start_new_session=True) as process:
                try:
                    status: int | None = process.wait(timeout=limit_s)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    end(process)
        figures = self.read(name, out, round(time.monotonic() - since, 2))
        if status != 0:
            why = f"not over after {limit_s:.0f} s" if status is None else f"exit status {status}"
            raise Failed(f"{name}: {why}: {tail(err)}", figures)
        if not figures:
            raise Failed(f"{name}: no figures; {out.name} has what it printed")
        return figures

    def read(self, name: str, path: pathlib.Path, took_s: float) -> Figures:
        """What a program has printed; it goes to the raw data."""
        figures: Figures = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            row = json.loads(line)
            self.raw.write(json.dumps({"program": name, **row}) + "\n")
            if "figure" in row:
                figures[row["figure"]] = (row["value"], row["unit"])
            else:
                self.notes.append(f"* {name}: {row['note']}")
        self.raw.write(json.dumps({"program": name, "took_s": took_s}) + "\n")
        self.raw.flush()
        return figures

    def program(self, name: str, ranks: int, measure: str, limit_s: float, more: dict[str, str] | None = None, **arguments) -> Figures:
        """hvd-gpu-bench, under hvdrun with so many ranks, or (0) alone: the medians of the rounds."""
        words = [str(self.build / "bin/hvd-gpu-bench"), measure, "--limit", str(int(min(limit_s, self.left() - GRACE_S)) - 2)]
        for key, value in arguments.items():
            words += [f"--{key}", str(value)]
        command = [*self.hvdrun(ranks), *words] if ranks else words
        found = [self.run(f"{name}-{turn}", command, limit_s, more or {}) for turn in range(self.options.rounds)]
        return {key: (statistics.median(each[key][0] for each in found if key in each), unit) for key, (_value, unit) in found[0].items()}

    def judged(self, rows: Callable[[Figures], None], *what, **arguments) -> None:
        """Rows of a program's figures, also of those before it failed."""
        try:
            figures = self.program(*what, **arguments)
        except Failed as failure:
            rows(failure.figures)
            raise
        rows(figures)

    def hvdrun(self, ranks: int) -> list[str]:
        """Its command line so far."""
        return [str(self.build / "bin/hvdrun"), "-np", str(ranks), "--no-prefix"]

    def add(self, *row) -> None:
        """A row of the table, which is shown and written."""
        self.rows.append(Row(*row))
        print(self.rows[-1].line(), flush=True)
        self.raw.write(json.dumps({"row": dataclasses.asdict(self.rows[-1])}) + "\n")
        self.raw.flush()

    def attempt(self, name: str, part: Callable[..., None], *arguments) -> None:
        """A part whose failure is a row, and ends nothing else."""
        try:
            part(self, *arguments)
        except Exception as failure:  # pylint: disable=broad-exception-caught
            self.failures += 1  # a fault of this script's is one, too
            self.add(name, "all of it, or the rest", f"failed: {type(failure).__name__}: {failure}".replace("\n", " "))

    def publish(self, measure: str, figures: Figures, texts: dict[str, str]) -> None:
        """Rows without a bar, of what is there."""
        for key, text in texts.items():
            if key in figures:
                self.add(measure, text, shown(*figures[key]))


def shown(value: float, unit: str) -> str:
    """Four digits."""
    return f"{value:.4g} {'µs' if unit == 'us' else unit}"


def find_nccl(python: str) -> str:
    """libnccl.so.2 of the wheel beside that Python's torch; "": there is none."""
    if os.environ.get("HVD_NCCL_LIB"):
        return os.environ["HVD_NCCL_LIB"]
    script = ("import os, sys\n"
              "files = (os.path.join(path, 'nvidia/nccl/lib/libnccl.so.2') for path in sys.path)\n"
              "print(next((each for each in files if os.path.isfile(each)), ''))")
    try:
        return subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class MpsServer:
    """An MPS of this run's own: its folders are private, and nothing about the device is changed."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        self.folder = tempfile.mkdtemp(prefix="hvd-mps-")
        os.mkdir(f"{self.folder}/log")
        # As hvdrun --gpu-mps has it: all clients share one pool of connections.
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": f"{self.folder}/log",
                            "CUDA_DEVICE_MAX_CONNECTIONS": "8"}

    def _control(self, words: list[str], text: str, limit_s: float) -> str:
        """"" or why it has failed."""
        try:
            done = subprocess.run([MPS, *words], input=text, env=os.environ | self.environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, text=True, timeout=limit_s, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return f"{MPS} {' '.join(words)} has ended with status {done.returncode}" if done.returncode else ""

    def __enter__(self) -> MpsServer:
        why = self._control(["-d"], "", 10)
        if why:
            self.__exit__()
            raise Failed(why)
        return self

    def __exit__(self, *_error: object) -> None:
        pid = 0
        try:
            pid = int(pathlib.Path(self.folder, f"{MPS}.pid").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            pass
        self._control([], "quit -t 3\n", 10)
        until = time.monotonic() + 5
        while pid and os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
            time.sleep(0.05)
        if pid and os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)  # its servers end with their last clients, which are over
        with contextlib.suppress(OSError):
            for log in pathlib.Path(self.folder, "log").iterdir():
                shutil.copy(log, self.out / f"mps-{log.name}")
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- measures ----

def in_process(alone: Figures, ranks: int, how: str) -> tuple[float, str]:
    """The cheapest way to have the same inside one process, and its name; nothing, where none has a figure."""
    ways = {f"the kernel alone, {ranks} inputs": f"kernel_{ranks}_{how}", "NCCL np 1": f"nccl_{how}"}
    return min(((alone[key][0], text) for text, key in ways.items() if key in alone), default=(0.0, "nothing"))


def op_rows(bench: Bench, measure: str, ranks: int, alone: Figures, figures: Figures) -> None:
    """Of one run of op."""
    label = f"{measure} np {ranks}"
    if measure.startswith("mps") and not figures.get("mps", (0, ""))[0]:
        bench.add(label, "whether MPS has taken the ranks", "no: the rows below are not under MPS")
    for how, text in (("open", "the host enqueues meanwhile"), ("gated", "enqueued before it begins")):
        if f"op_{how}" not in figures:
            continue
        base, name = in_process(alone, ranks, how)
        value = figures[f"op_{how}"][0]
        added = value - base
        bench.add(label, f"4 B stream to stream, {text}: added to {name}",
                  f"{added:.2f} µs ({value:.2f}, in-process {base:.2f})", f"≤ {ADDED_US} µs", added <= ADDED_US)
    if "op_busy" in figures:
        base, name = in_process(alone, ranks, "busy")
        early = figures["op_busy_early"][0]
        bench.add(label, f"the same beside kernels of 0.5 ms, beside {name}", f"{figures['op_busy'][0]:.4g} µs (in-process {base:.4g})" +
                  (f"; these were over before {early:.0f} of 6 chains" if early else ""))
    bench.publish(label, figures, {
        "op_open_submit": "host's calls for an op in a stream", "op_host": "host to host, median", "op_host_p99": "host to host, 99 %",
        "op_host_busy": "host to host beside kernels of 0.5 ms"})


def op_run(bench: Bench, measure: str, ranks: int, alone: Figures, more: dict[str, str]) -> None:
    """One run of op."""
    bench.judged(lambda figures: op_rows(bench, measure, ranks, alone, figures), f"{measure.replace(' ', '-')}-np{ranks}", ranks, "op", 20,
                 more, **op_arguments(bench))


def op_pair(bench: Bench, measure: str, name: str, size: int, more: dict[str, str]) -> None:
    """What one process has, and np 1 and 2."""
    alone: Figures = {}
    bench.attempt(f"{measure} in-process", lambda _bench: bench.judged(alone.update, name, 0, "alone", 20, more, bytes=size,
                                                                       **op_arguments(bench)))
    for ranks in (1, 2):
        bench.attempt(f"{measure} np {ranks}", op_run, measure, ranks, alone, more)
    bench.publish(f"{measure} in-process", alone, {
        f"{way}_{how}": f"{text}, {when}"
        for way, text in (("kernel_1", "the worker's kernel, 1 input"), ("kernel_2", "the same, 2 inputs"),
                          ("nccl", "NCCL np 1, not in place"))
        for how, when in (("open", "the host enqueues meanwhile"), ("gated", "enqueued before"), ("busy", "beside kernels of 0.5 ms"))})


def op_arguments(bench: Bench) -> dict:
    """Of op and alone."""
    if bench.options.fake:
        return {"chain": 4, "repeats": 2, "calls": 10, "load": 4096, "busy": 1}
    return {"chain": 32, "repeats": 50, "calls": 2000, "load": 1024 * MIB, "busy": 1}


def op4(bench: Bench) -> None:
    """4 bytes, without MPS."""
    op_pair(bench, "op4", "alone", 65536 if bench.options.fake else MIB, {})


def mps(bench: Bench) -> None:
    """The same under MPS."""
    if bench.options.fake or not shutil.which(MPS):
        bench.add("mps", "op4 and training under MPS", f"not measured: {MPS} is not installed" if not bench.options.fake else
                  "not measured: the fake driver has no MPS")
        return
    with MpsServer(bench.options.out) as server:
        op_pair(bench, "mps op4", "mps-alone", MIB, server.environment)
        for ranks in (2, 8):
            bench.attempt(f"mps reduce np {ranks}", reduce_run, ranks, "mps ", server.environment)


def reduce_run(bench: Bench, ranks: int, prefix: str = "", more: dict[str, str] | None = None) -> None:
    """So many ranks."""
    fake = bench.options.fake

    def rows(figures: Figures) -> None:
        if prefix and not figures.get("mps", (0, ""))[0]:
            bench.add(f"{prefix}reduce np {ranks}", "whether MPS has taken the ranks", "no: the rows below are not under MPS")
        for kind in ("fp32_in_place", "bf16_in_place", "fp32_apart", "bf16_apart"):
            if f"{kind}_of_copy" not in figures:
                continue
            percent = figures[f"{kind}_of_copy"][0]
            bench.add(f"{prefix}reduce np {ranks}", f"256 MiB per rank, {kind.replace('_', ' ')}, of a copy's rate",
                      f"{percent:.1f} % ({figures[kind][0]:.4g} µs; copy {figures['copy'][0]:.4g} GB/s)", f"≥ {REDUCE_PERCENT} %",
                      percent >= REDUCE_PERCENT)
        bench.publish(f"{prefix}reduce np {ranks}", figures, {"fp32_in_turn_of_copy": "fp32 apart, each op when the one before is over, of a copy's rate"})
    bench.judged(rows, f"{prefix.strip()}reduce-np{ranks}", ranks, "reduce", 30, more, bytes=65536 if fake else 256 * MIB, chain=3 if fake else 16,
                 repeats=2 if fake else 3)


def reduce(bench: Bench) -> None:
    """Large tensors of several ranks of one GPU."""
    for ranks in (2,) if bench.options.fake else (2, 4, 8):
        bench.attempt(f"reduce np {ranks}", reduce_run, ranks)


def kernels(bench: Bench) -> None:
    """The reduction alone: the worker's kernel, with 1, 2, 4 and 8 inputs and outputs."""
    figures = bench.program("kernels", 0, "kernels", 20, bytes=65536 if bench.options.fake else 256 * MIB, repeats=2 if bench.options.fake else 7)
    for kind in ("fp32", "bf16"):
        parts = [figures[f"{kind}_{inputs}_of_copy"][0] for inputs in (1, 2, 4, 8)]
        bench.add("kernels", f"hvd_reduce alone, 256 MiB each, {kind}, 1, 2, 4, 8 inputs, of a copy's rate",
                  ", ".join(f"{part:.1f}" for part in parts) + f" % (copy {figures['copy'][0]:.4g} GB/s)", f"≥ {REDUCE_PERCENT} %",
                  min(parts) >= REDUCE_PERCENT)


def pack(bench: Bench) -> None:
    """The gradients of ResNet-50, packed by the worker's kernels, and as ops."""
    fake = bench.options.fake
    sizes = SIZES
    if fake:
        sizes = bench.options.out / "sizes"
        sizes.write_text("".join(f"{count} t\n" for count in (1, 1000, 3, 64, 140000)), encoding="utf-8")
    repeats = 2 if fake else 30
    figures = bench.program("pack", 0, "pack", 20, bytes=65536 if fake else 256 * MIB, sizes=sizes, repeats=repeats)
    for way in ("pack", "unpack"):
        percent = figures[f"{way}_of_copy"][0]
        bench.add("pack", f"{way}, 161 gradients of ResNet-50, fp32, of a copy's rate",
                  f"{percent:.1f} % ({figures[way][0]:.4g} µs; copy {figures['copy'][0]:.4g} GB/s)", f"≥ {PACK_PERCENT} %",
                  percent >= PACK_PERCENT)
    bench.publish("pack", figures, {"pack_small_of_copy": "pack, those below 512 KiB, of a copy's rate",
                                    "unpack_small_of_copy": "unpack, those below 512 KiB, of a copy's rate"})
    bench.attempt("pack", group, sizes, repeats)


def group(bench: Bench, sizes: pathlib.Path, repeats: int) -> None:
    """The same tensors as ops."""
    figures = bench.program("group", 2, "group", 15, sizes=sizes, repeats=repeats)
    bench.publish("pack", figures, {"group": "161 allreduces as a group, np 2: a step, by the device", "group_host": "the same, by the host",
                                    "each": "161 allreduces one by one, np 2: a step, by the device", "each_host": "the same, by the host"})


def attach(bench: Bench) -> None:
    """What a rank pays once."""
    fake = bench.options.fake

    def rows(figures: Figures) -> None:
        if "open" in figures:
            value = figures["open"][0]
            bench.add("attach", "hvd_open with a warm worker", f"{value / 1e3:.3f} ms (most {figures['open_most'][0] / 1e3:.3f})",
                      f"≤ {OPEN_US // 1000} ms", value <= OPEN_US)
        if "call" in figures:
            value = figures["call"][0]
            bench.add("attach", "hvd_allreduce_async of memory that is known, the whole call", f"{value:.3f} µs", f"≤ {CALL_US} µs",
                      value <= CALL_US)
        bench.publish("attach", figures, {
            "call_stream": "the same with a stream", "attributes": "three attributes of a pointer, the driver's part of it",
            "import": "first op on new 64 MiB, less a warm one", "import_most": "the slowest of them",
            "open_first_op": "first op after hvd_open", "first_op": "first op of the job, with the worker's start"})
    bench.judged(rows, "attach", 1, "attach", 20, bytes=65536 if fake else 64 * MIB, calls=20 if fake else 2000)


def train_rows(bench: Bench, measure: str, figures: Figures) -> None:
    """Of one training run."""
    for kind in ("fp32", "bf16"):
        for way in ("apart", "ddp", "hvd"):
            if f"{way}_{kind}" in figures:
                bench.add(measure, f"ResNet-50, batch 32 per rank, {kind}, {way}",
                          f"{figures[f'{way}_{kind}'][0]:.2f} ms, {figures[f'{way}_{kind}_rate'][0]:.0f} img/s")
    if "bytes" in figures:
        bench.add(measure, "gradients of a step and rank", shown(figures["bytes"][0] / 1e6, "MB"))


def train_run(bench: Bench, name: str, ranks: int, ways: str, more: dict[str, str]) -> None:
    """Rows also of what was measured before it failed."""
    command = [*bench.hvdrun(ranks), bench.options.python, str(HERE / "gpu_train.py"), "--ways", ways]
    if bench.options.fake:
        command += ["--device", "cpu", "--batch", "2", "--side", "32", "--steps", "1"]
    try:
        figures = bench.run(name, command, 50, more)
    except Failed as failure:
        train_rows(bench, name.replace("-", " "), failure.figures)
        raise
    train_rows(bench, name.replace("-", " "), figures)


def train(bench: Bench) -> None:
    """Training, without MPS."""
    bench.attempt("train np1", train_run, "train-np1", 1, "apart,hvd,ddp", {})
    bench.attempt("train np2", train_run, "train-np2", 2, "apart,hvd", {})


def train4(bench: Bench) -> None:
    """Four ranks."""
    train_run(bench, "train-np4", 4, "apart,hvd", {})


def train_mps(bench: Bench) -> None:
    """Two ranks under MPS."""
    if bench.options.fake or not shutil.which(MPS):
        return  # `mps` has said so
    with MpsServer(bench.options.out) as server:
        train_run(bench, "train-mps-np2", 2, "apart,hvd", server.environment)


def large(bench: Bench) -> None:
    """One rank, beside NCCL."""
    fake = bench.options.fake
    for size in (64, 256):
        count = 16384 * size // 64 if fake else size * MIB
        figures = bench.program(f"large-{size}M", 1, "reduce", 15, bytes=count, chain=3 if fake else 16, repeats=2 if fake else 3)
        alone = bench.program(f"large-{size}M-alone", 0, "alone", 15, bytes=count, chain=4, repeats=2)
        nccl = f"{alone['nccl_large'][0]:.4g} µs" if "nccl_large" in alone else "not there"
        bench.add("large", f"{size} MiB fp32, np 1, not in place, beside NCCL in-process", f"{figures['fp32_apart'][0]:.4g} µs (NCCL {nccl})")


MEASURES: dict[str, Callable[[Bench], None]] = {
    "op4": op4, "kernels": kernels, "reduce": reduce, "pack": pack, "attach": attach, "mps": mps, "train": train, "train-mps": train_mps, "large": large,
    "train4": train4}


def machine(bench: Bench) -> list[str]:
    """What it ran on."""
    def said(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, env=bench.environment).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            return f"({error})"
    return [f"* date: {datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')}",
            f"* commit: {said('git', '-C', str(HERE), 'describe', '--always', '--dirty', '--abbrev=12')}",
            "* GPU: " + ("the fake driver: no figure says anything" if bench.options.fake else
                         said("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader")),
            f"* CPUs: {os.cpu_count()}, load {os.getloadavg()[0]:.2f}", f"* NCCL: {bench.nccl or 'none was found'}",
            *(f"* {line}" for line in said(str(bench.build / "libexec/hvdd/hvdd-gpu"), "--can").splitlines())]


def write(bench: Bench, header: list[str]) -> None:
    """The table as far as it is; a reader sees a whole file."""
    lines = ["# hvdd on a GPU", "", *header, "", "| measure | what | figure | bar | verdict |", "|---|---|---|---|---|",
             *(row.line() for row in bench.rows), "", *bench.notes]
    path = bench.options.out / "gpu.md"
    path.with_suffix(".new").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.with_suffix(".new").replace(path)


def main() -> int:
    """0: everything that was asked for has figures; 1: something has failed, as the table says; 2: wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default=",".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--fake", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"there is no measure {unknown[0]}; there are {', '.join(MEASURES)}")
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    bench = Bench(options)
    header = machine(bench)
    print("\n".join(header), flush=True)
    for name in names:
        since = time.monotonic()
        bench.attempt(name, MEASURES[name])
        print(f"({name}: {time.monotonic() - since:.1f} s)", file=sys.stderr, flush=True)
        write(bench, header)
    print(options.out / "gpu.md", file=sys.stderr)
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
