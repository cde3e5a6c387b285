# SPDX-License-Identifier: Apache-2.0
"""What a process holds, and that it holds no more after many kills than before: docs/design/testing.md."""
import time
from dataclasses import dataclass

from hvt import procs
from hvt.daemon import Daemon
from hvt.wait import wait_until

WINDOWS = 3
# Ids of the warnings that killing causes.
TOLERATED = ("rank-lost", "engine-killed", "engine-lost", "engine-exited", "engine-ended", "attach-refused",
             "peer-lost", "hello-refused")


@dataclass
class Held:
    """What a process has at its quietest moment: bytes allocated by malloc, descriptors, memfds, and their whole size."""
    heap: int
    descriptors: int
    memfds: int
    shared: int

    @classmethod
    def of(cls, daemon: Daemon, pid: int) -> "Held":
        """Now."""
        looks = []
        for _ in range(50):
            looks.append((daemon.heap_bytes(pid), len(procs.fds(pid))))
            time.sleep(0.004)  # not a wait: ops, and connections that ask hvdd, come and go
        heap, descriptors = (min(numbers) for numbers in zip(*looks))
        return cls(heap, descriptors, len(procs.memfds(pid)), procs.memfd_bytes(pid))

    def is_flat_since(self, before: "Held", chances: int) -> bool:
        """malloc's smallest memory has 24 bytes, so one piece that is forgotten each time is three times what is allowed."""
        return self.heap <= before.heap + 8 * chances and (self.descriptors, self.memfds, self.shared) == (
            before.descriptors, before.memfds, before.shared)


def settle(daemon: Daemon) -> None:
    """Only the job "steady" is left."""
    wait_until(lambda: [row["job"] for row in daemon.jobs()] == ["steady"], "only the steady job to remain")
    wait_until(lambda: len(daemon.engines()) == 1, "only one engine to remain")


def steady_engine(daemon: Daemon) -> int:
    """The pid of the engine of the job "steady"."""
    return daemon.engine_of("steady")
