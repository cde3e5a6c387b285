# SPDX-License-Identifier: Apache-2.0
"""A hvdd on a machine with GPUs, which are tests/fakegpu's, or with HVT_GPU=real the machine's own (scripts/gpu.sh --suite)."""
import contextlib
import glob
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvt import procs
from hvt.build import BUILD
from hvt.daemon import Daemon
from hvt.wait import wait_until

FAKE = BUILD / "fakegpu"
REAL = os.environ.get("HVT_GPU") == "real"
COUNT = len(glob.glob("/dev/nvidia[0-9]*")) if REAL else 16  # GPUs that a hvdd here may have


def there(gpu_of: list[int]) -> list[int]:
    """The same GPUs, the last that is there for each that is not."""
    return [min(gpu, COUNT - 1) for gpu in gpu_of]


def layouts(*of_ranks: list[int]) -> list[list[int]]:
    """On which GPUs ranks have their tensors: those of which all are there."""
    return [gpu_of for gpu_of in of_ranks if gpu_of == there(gpu_of)]


class GpuDaemon(Daemon):
    """`fake` is FAKEGPU, `faults` FAKEGPU_FAULT: tests/fakegpu/settings.h."""

    def __init__(self, fake: str = "devices=2", faults: str = "", **more: Any):
        if REAL and (faults or not re.fullmatch("devices=[12](;free=strict)?", fake)):
            pytest.skip("needs the fake driver")
        options = {"gpu-idle": "200ms"} | more.pop("options", {})
        super().__init__(options=options, **more)
        if REAL:
            return
        # What a trainer frees while a worker has it open stays (P3): most tests free as they like. The first of two settings counts.
        told = {"LD_LIBRARY_PATH": str(FAKE), "FAKEGPU": f"{fake};free=keeps;meet={self.folder}", "FAKEGPU_FAULT": faults}
        self.environment |= told
        self.ctl.environment |= told

    def workers(self) -> list[int]:
        """Pids of the living workers of this daemon, also of one before it."""
        return [pid for pid, line in procs.with_token(self.token).items() if "hvdd-gpu" in line.split(" ")[0]]

    def worker(self) -> int:
        """The pid of the only worker, as soon as it is there."""
        return wait_until(lambda: next(iter(self.workers()), 0), "a worker", 10)

    def meetings(self) -> list[str]:
        """Files by which the fake's NCCL joins communicators: each has one until all have come."""
        return glob.glob(f"{self.folder}/fakegpu-nccl-*")

    def wait_next_may_have(self, job: str) -> None:
        """Until all workers of that job, which is over, may pass to the next one: after a second without an engine."""
        wait_until(lambda: all(row["state"] == "idle" for row in self.ctl.json("gpus")["gpus"] if row["job"] == job),
                   "its workers to be idle", 10, 0.02)
        time.sleep(1.01)

    def wait_no_workers(self, seconds: float = 10) -> None:
        """Until the idle ones have ended."""
        wait_until(lambda: not self.workers(), "workers to end", seconds, 0.02)

    def end_idle_workers(self) -> None:
        """Which would stay for a long gpu-idle."""
        self.wait_no_jobs()
        rows = wait_until(self._idle_rows, "all workers to be idle", 10, 0.02)
        for row in rows[0]:
            os.kill(row["pid"], signal.SIGKILL)
        self.wait_no_workers()

    def _idle_rows(self) -> list[list[dict]]:
        """[] while a worker is not idle; of one that ends hvdd knows."""
        rows = [row for row in self.ctl.json("gpus")["gpus"] if row["state"] != "ending"]
        return [rows] if all(row["state"] == "idle" for row in rows) else []

    def check_clean(self) -> None:
        """As in a hvdd without workers, once they have ended."""
        self.wait_no_jobs()
        self.wait_no_workers()
        for path in self.meetings():  # of those that were killed before all had come; NCCL itself has no file
            os.unlink(path)
        super().check_clean()


@contextlib.contextmanager
def gpus(fake: str = "devices=2", *allowed: str, faults: str = "", environment: dict[str, str] | None = None,
         **options: Any) -> Iterator[GpuDaemon]:
    """A running one; `allowed`: ids of warnings that the test causes; `environment`: of hvdd, and of ranks that have nothing else said;
    options are hvdd's, with _ for -."""
    daemon = GpuDaemon(fake, faults, options={name.replace("_", "-"): value for name, value in options.items()})
    daemon.environment |= environment or {}
    with daemon:
        daemon.allow(*allowed)
        yield daemon


@contextlib.contextmanager
def patient_gpus(fake: str, *allowed: str) -> Iterator[GpuDaemon]:
    """A running one whose idle workers stay for as long as a test on a slow machine takes."""
    with gpus(fake, *allowed, gpu_idle="20s") as daemon:
        yield daemon
        daemon.close_ranks()
        daemon.end_idle_workers()
