# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks are hvt-ranks on several nodes, started by hvdrun."""
import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from hvt import procs
from hvt.build import program, scaled
from hvt.ctl import Ctl
from hvt.job import Job
from hvt.nodes import Node, Nodes
from hvt.rank import Outcome, Rank, RankError
from hvt.wait import wait_until

_TALKS = 'exec "$1" <"$2/in.$HVD_RANK" >"$2/out.$HVD_RANK" 2>"$2/err.$HVD_RANK"'


class _Process:
    """What Rank needs of a subprocess.Popen, for a process that hvdrun has started: named pipes lead to it."""

    def __init__(self, folder: pathlib.Path, rank: int):
        for name in ("in", "out"):
            os.mkfifo(folder / f"{name}.{rank}")
        (folder / f"err.{rank}").touch()
        self.stdin = os.fdopen(os.open(folder / f"in.{rank}", os.O_RDWR | os.O_CLOEXEC), "wb")
        self.stdout = os.fdopen(os.open(folder / f"out.{rank}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        self.stderr = (folder / f"err.{rank}").open("rb")
        self.pid = 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """0 when it has ended; only hvdrun knows how."""
        if self.returncode is None and self.pid and procs.state(self.pid) in "ZX":
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float = 5) -> int:
        """Until it has ended."""
        wait_until(lambda: self.poll() is not None, f"rank process {self.pid} to end", timeout / scaled(1))
        return 0

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _only_process(node: Node, what: str, is_it: Callable[[int, str], bool]) -> int:
    """The node's only process of that kind. One that starts another has a copy for a moment, without a name of its own."""
    def look() -> int:
        found = [pid for pid, line in node.processes().items() if is_it(pid, line)]
        return found[0] if len(found) == 1 else 0
    return wait_until(look, lambda: f"one process {what}: {node.processes()}")


class SpreadRank(Rank):
    """A Rank at the end of two named pipes."""

    def __init__(self, folder: pathlib.Path, rank: int):  # pylint: disable=super-init-not-called
        self.process = _Process(folder, rank)
        self.number = rank
        self._pending = b""


class SpreadJob(Job):
    """hvdrun on the first node, and the ranks that it has started, attached. `slots`: ranks on each node; `environment`: what
    hvdrun has beside the node's; `late`: ranks that do not attach yet; `bind_to`: not what hvdrun has by default, so that a node's
    threads run beside each other, as they do on a machine of its own; "": hvdrun's default."""

    def __init__(self, nodes: Nodes, slots: Sequence[int], *arguments: str, environment: dict[str, str] | None = None,
                 late: Sequence[int] = (), bind_to: str = "none"):  # pylint: disable=super-init-not-called
        self.nodes, self.slots = nodes, slots
        self.size = sum(slots)
        self.name = ""
        self._ops = itertools.count()
        self._transport = os.environ.get("HVT_TRANSPORT", "")  # which its data links are to have, until that was seen
        folder = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=nodes.shared))
        self.stderr = folder / "hvdrun"
        self.ranks = [SpreadRank(folder, rank) for rank in range(self.size)]
        hosts = ",".join(f"{node.name}:{count}" for node, count in zip(nodes, slots))
        binding = ["--bind-to", bind_to] if bind_to else []
        with self.stderr.open("wb") as log:
            self.launcher = nodes[0].popen([program("hvdrun"), "-H", hosts, "--report-time", "30", *binding, *arguments, "sh", "-c",
                                            _TALKS, "sh", program("hvt-rank"), str(folder)], stdout=log, stderr=log,
                                           env=nodes[0].environment() | (environment or {}))
        self._open([rank for rank in self.ranks if rank.number not in late])
        for rank in self.ranks:
            rank.process.pid = self.pid_of(rank.number)

    def run(self, kind: str, **more: Any) -> list[Outcome]:
        """As Job's. When it has gone well for the first time, data has gone over $HVT_TRANSPORT."""
        outcomes = super().run(kind, **more)
        if self._transport and all(outcome.ok for outcome in outcomes):
            links = self.data_links((more.get("ranks") or [0])[0])
            assert all(link["transport"] == self._transport for link in links), links
            self._transport = "" if links else self._transport
        return outcomes

    def data_links(self, rank: int = 0) -> list[dict[str, Any]]:
        """What hvdctl says of the connections for data of all nodes, where that rank is."""
        ctl = self.ctl_of(rank)
        reply = ctl.json("ranks", ctl.json("jobs")["jobs"][0]["job"])
        return [link for row in reply["job_nodes"] for link in row["links"] if link["kind"] == "data"]

    def reopen(self) -> None:
        """Every rank closes its session, whatever became of it, and opens another."""
        for rank in self.ranks:
            rank.post("close")
        for rank in self.ranks:
            rank.collect()
        self._open(self.ranks)

    @staticmethod
    def _open(ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            rank.post("open")
        for rank in ranks:
            outcome = rank.collect_outcome()
            if not outcome.ok:
                raise RankError("hvd_open", outcome)

    def node_of(self, rank: int) -> Node:
        """Where a rank runs."""
        return self.nodes[next(n for n in range(len(self.slots)) if rank < sum(self.slots[:n + 1]))]

    def ranks_of(self, node: Node) -> list[int]:
        """The ranks that run there."""
        return [rank for rank in range(self.size) if self.node_of(rank) is node]

    def pid_of(self, rank: int) -> int:
        """A rank's process."""
        pipe = self.stderr.parent / f"in.{rank}"
        return wait_until(lambda: next((pid for pid in self.node_of(rank).processes() if procs.has_open(pid, 0, pipe)), 0),
                          f"the process of rank {rank}")

    def ctl_of(self, rank: int) -> Ctl:
        """hvdctl for the hvdd of a rank, on its node."""
        given = pathlib.Path(f"/proc/{self.pid_of(rank)}/environ").read_bytes().split(b"\0")
        address = next(each.partition(b"=")[2].decode() for each in given if each.startswith(b"HVD_ADDRESS="))
        node = self.node_of(rank)
        return Ctl(pathlib.Path(address), node.environment(), node)

    def process_of(self, node: Node, name: str) -> int:
        """The node's only process of that program: hvdd, hvdd-engine, hvdd-gate."""
        return _only_process(node, name, lambda _pid, line: line.split(" ")[0].rsplit("/", 1)[-1] == name)

    def agent_of(self, node: Node) -> int:
        """The node's hvdrun --node; its guard has a name of its own."""
        return _only_process(node, "hvdrun --node", lambda pid, line: line.endswith("hvdrun --node") and procs.name(pid) == "hvdrun")

    def ssh_to(self, node: Node) -> int:
        """The ssh on the first node that leads to that one."""
        return _only_process(self.nodes[0], f"ssh to {node.name}", lambda _pid, line: line.startswith("ssh ") and f" {node.name} " in line)

    def said(self) -> str:
        """What hvdrun, the daemons and the ranks have written so far."""
        return self.stderr.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Ends every rank; then hvdrun ends."""
        for rank in self.ranks:
            rank.stop()
        self.await_end()

    def await_end(self, seconds: float = 15) -> int:
        """hvdrun's exit status."""
        try:
            return self.launcher.wait(scaled(seconds))
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"hvdrun does not end: {self.said()}") from error
