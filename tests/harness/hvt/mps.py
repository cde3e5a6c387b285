# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's MPS (tests/fakegpu/mps), and what a process knows of one."""
import os

from hvt import procs
from hvt.build import SOURCE
from hvt.wait import wait_until

FOLDER = SOURCE / "tests/fakegpu/mps"
# FAKEMPS: what is wrong with it
ENVIRONMENT = {"PATH": f"{FOLDER}:{os.environ['PATH']}"}


def variables(pid: int) -> dict[str, str]:
    """What a process was started with of CUDA's variables."""
    with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
        pairs = (entry.partition("=") for entry in file.read().split("\0"))
        return {name: value for name, _, value in pairs if name.startswith("CUDA_")}


def control(token: str) -> int:
    """The pid of the only living control daemon of a test, as soon as it is there."""
    def look() -> int:
        found = [pid for pid, line in procs.with_token(token).items() if line.endswith("nvidia-cuda-mps-control -f")]
        return found[0] if len(found) == 1 else 0

    return wait_until(look, "one control daemon", 10, 0.02)


def servers(token: str) -> list[int]:
    """Pids of its servers."""
    return [pid for pid, line in procs.with_token(token).items() if line == "sleep 1000"]
