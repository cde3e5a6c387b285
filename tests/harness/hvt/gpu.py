# SPDX-License-Identifier: Apache-2.0
"""A hvdd on a machine with GPUs, which are tests/fakegpu's, or with HVT_GPU=real the machine's own (scripts/gpu.sh --suite)."""
import contextlib
import glob
import os
import re
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

    def wait_no_workers(self, seconds: float = 10) -> None:
        """Until the idle ones have ended."""
        wait_until(lambda: not self.workers(), "workers to end", seconds, 0.02)

    def check_clean(self) -> None:
        """As in a hvdd without workers, once they have ended."""
        self.wait_no_jobs()
        self.wait_no_workers()
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
