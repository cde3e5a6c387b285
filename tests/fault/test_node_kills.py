# SPDX-License-Identifier: Apache-2.0
"""Any process of a job on several nodes is killed, or stopped for a while, at any moment between hvdrun's start and its end. hvdrun
ends, ranks that fail say why, nothing is left on any node, and another job on the same nodes never notices."""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import tempfile
import time

import pytest

from hvt import Status, procs, program, scaled, wait_until
from hvt.build import patience
from hvt.nodes import Node, Nodes
from hvt.spread import SpreadJob

# Ranks that say in out.N what became of each of their steps.
RANK = '''"$1" <"$2/steps" >"$2/out.$HVD_RANK" 2>"$2/err.$HVD_RANK" || exit; ! grep -q '"status":-' "$2/out.$HVD_RANK"'''
KINDS = ("hvdrun", "agent", "guard", "ssh", "sshd", "hvdd", "hvdd-gate", "hvdd-engine", "sh", "hvt-rank")
UNHARMED = ("guard", "hvdd-gate")  # without them a job goes on
STEPS = 3
STOPS = (0.2, 1.0, 2.5, 6.0)  # seconds
# Since the signal, or the end of the stop: the longest times of docs/design/failure.md.
START_S = 60  # --start-timeout: before ranks run, hvdrun may wait for it
ENDED_NS = 20_000_000_000  # hvdrun has ended, where ranks ran: 13 s until they are told, and what their end and that of a hvdd take
TOLD_NS = 14_000_000_000
NAMES = {Status.ERR_RANK_LOST: r"\brank \d|\bn[1-3]\b", Status.ERR_NODE_LOST: r"\bn[1-3]\b"}
OTHERS = r"\brank \d|\bn[1-3]\b|engine|hvdd|session is NULL"


def kind_of(pid: int) -> str:
    """One of KINDS, or another."""
    name = procs.name(pid)
    if name == "hvdrun" and procs.cmdline(pid).endswith("--node"):
        return "agent"
    return {"hvd-guard": "guard"}.get(name, "sshd" if name.startswith("sshd") else name)


class Turn:
    """A job that something befalls. `usual`: the processes of each node without it, and the files."""

    def __init__(self, nodes: Nodes, usual: dict[str, set], source: random.Random):
        self.nodes, self.usual, self.source = nodes, usual, source
        hosts = source.sample(list(nodes), source.choice((2, len(nodes))))
        slots = [source.choice((1, 2)) for _ in hosts]
        self.size = sum(slots)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="turn-", dir=nodes.shared))
        loop = {"do": "loop", "elements": source.choice((16, 100_000)), "count": source.choice((20, 100)), "rest_us": 1000}
        (self.folder / "steps").write_text("".join(json.dumps(step) + "\n" for step in ({"do": "open"}, loop, {"do": "close"})))
        places = ",".join(f"{node.name}:{count}" for node, count in zip(hosts, slots))
        start: Node = source.choice(list(nodes))
        self.what = f"{places} from {start.name}"
        self.struck_ns = 0
        with (self.folder / "said").open("wb") as said:
            self.hvdrun = start.popen([program("hvdrun"), "-H", places, "--report-time", "2", "--grace", "1", "--start-timeout",
                                       str(int(scaled(START_S))), "sh", "-c", RANK, "sh", program("hvt-rank"), str(self.folder)],
                                      stdout=said, stderr=said)

    def processes(self, kind: str) -> list[int]:
        """Those of this job."""
        return [pid for node in self.nodes for pid in node.processes() if pid not in self.usual["processes"] and kind_of(pid) == kind]

    def strike(self, kind: str, number: int) -> bool:
        """Soon after the first process of that kind is there, or later. False: all was over before."""
        while not self.processes(kind):
            if self.hvdrun.poll() is not None:
                return False
            time.sleep(0.01)
        time.sleep(self.source.uniform(0, self.source.choice((0, 0.02, 0.1, 0.5))))  # not a wait: the point in time is random
        found = self.processes(kind)
        if not found:
            return False
        victim = self.source.choice(found)
        self.what += f", {number.name} of {kind} {victim}"
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, number)
            if number == signal.SIGSTOP:
                time.sleep(self.source.choice(STOPS))
                os.kill(victim, signal.SIGCONT)
        self.struck_ns = time.monotonic_ns()
        return True

    def remains(self) -> list:
        """What is on the nodes that was not there before."""
        return [left for node in self.nodes for left in (*node.processes().items(), *((path, node.name) for path in node.files()))
                if left[0] not in self.usual["processes"] | self.usual["files"]]

    def check_end(self) -> int:
        """hvdrun's exit status, when nothing is left."""
        code = self.hvdrun.wait(scaled(90))
        ran = any(self.folder.glob("out.*"))
        self.check_prompt("hvdrun has ended", time.monotonic_ns(), ENDED_NS if ran else (START_S + 1) * 10**9)
        wait_until(lambda: not self.remains(), lambda: f"nothing to be left: {self.remains()}", 15, 0.05)
        return code

    def check_prompt(self, what: str, at_ns: int, promised_ns: int) -> None:
        """A little later than promised is no reason to run a random test again."""
        took_ns = at_ns - self.struck_ns if self.struck_ns else 0
        assert took_ns <= patience() * promised_ns, f"{what} after {took_ns / 1e9:.1f} s"

    def check_said(self, code: int) -> None:
        """Ranks that fail name a rank, a node, or the process that is gone. Success means that all went well everywhere."""
        done = 0
        for rank in range(self.size):
            path = self.folder / f"out.{rank}"
            replies = [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")] if path.exists() else []
            for reply in replies:
                if reply["status"] >= 0:
                    continue
                assert re.search(NAMES.get(reply["status"], OTHERS), reply["text"]), reply
                self.check_prompt(f"rank {rank} was told", reply.get("at_ns", 0), TOLD_NS)
            done += sum(reply["status"] == Status.OK for reply in replies)
            assert "wrong sum" not in (self.folder / f"err.{rank}").read_text() if replies else True
        assert code != 0 or done == STEPS * self.size, f"exit status 0 after {done} of {STEPS * self.size} steps"


def run(make_nodes, seed: int, turns: int) -> None:
    """So many turns, beside a job that goes on."""
    source = random.Random(seed)
    print(f"seed {seed}")
    nodes = make_nodes(3, ssh=True)
    steady = SpreadJob(nodes, (1, 1, 1))
    for rank in steady.ranks:
        rank.post("loop", name="steady", for_ms=24 * 3600 * 1000, until_stdin=True, rest_us=5000)
    usual = {"processes": {pid for node in nodes for pid in node.processes()}, "files": {path for node in nodes for path in node.files()}}
    for number in range(turns):
        turn = Turn(nodes, usual, source)
        kind = source.choice(KINDS)
        signal_number = source.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        try:
            struck = turn.strike(kind, signal_number)
            code = turn.check_end()
            turn.check_said(code)
            assert code == 0 or struck and not (kind in UNHARMED and signal_number == signal.SIGKILL), f"exit status {code}"
            for rank in steady.ranks:
                assert not rank.has_reply(), f"the other job has ended: {rank.collect()}, {steady.said()}"
        except Exception as error:
            raise AssertionError(f"turn {number}: {turn.what}: {error}\n{(turn.folder / 'said').read_text()}") from error
        print(f"turn {number}: {turn.what}: {code}")
    for rank in steady.ranks:
        rank.post("stop")
    for rank in steady.ranks:
        reply = rank.collect()
        assert reply["status"] == Status.OK and reply["done"] > turns, reply
        rank.collect()
    steady.close()
    for node in nodes:
        node.check_clean(10)


@pytest.mark.limit(300)
def test_a_few_kills_on_several_nodes_leave_nothing_behind(make_nodes):
    run(make_nodes, seed=20261124, turns=3)


@pytest.mark.soak
@pytest.mark.limit(2700)
def test_three_hundred_kills_and_stops_on_several_nodes_leave_nothing_behind(make_nodes):
    run(make_nodes, seed=int(time.time()), turns=300)
