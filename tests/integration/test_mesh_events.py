# SPDX-License-Identifier: Apache-2.0
"""What libhvdadmin's subscribers are told of the nodes of a mesh, at a seed and at a node that is none: by hvdctl, which asks by it
alone. Each node has a network, a hvdd and a gate of its own."""
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from hvt import Daemon, wait_until
from hvt.build import program
from hvt.ctl import new_node_keys
from test_mesh_seeds import states

MESH = ("node-joined", "node-lost", "hosts-changed")


class Watcher:
    """hvdctl events on one node."""

    def __init__(self, daemon: Daemon):
        self.name = daemon.node.name
        self.path = daemon.folder / f"events.{os.urandom(4).hex()}"
        with open(self.path, "wb") as out:
            self.process = daemon.node.popen([program("hvdctl"), "events", "--json"], stdout=out, stderr=subprocess.STDOUT,
                                             env=daemon.ctl.environment)
        wait_until(lambda: '"subscribed"' in self.path.read_text(encoding="utf-8"), f"{self.name} to subscribe")
        self.read = 0  # events that were taken

    def events(self) -> list[dict[str, Any]]:
        """Those of the mesh that have not been taken yet."""
        lines = self.path.read_text(encoding="utf-8").split("\n")[1:-1]
        return [event for event in map(json.loads, lines) if event["event"] in MESH][self.read:]

    def take(self, count: int) -> list[dict[str, Any]]:
        """The next ones."""
        wait_until(lambda: len(self.events()) >= count, lambda: f"{count} events at {self.name}: {self.events()}", 10, 0.02)
        taken = self.events()[:count]
        self.read += count
        return taken

    def names(self) -> set[str]:
        """What a program knows that has heard of all hosts that changed."""
        names: set[str] = set()
        self.read = 0
        for event in self.events():
            names = names - set(event["removed"]) | set(event["added"])
        return names

    def reach(self, node: str, now: int) -> None:
        """This node comes, after whatever there was before."""
        wait_until(lambda: self.events() and self.events()[-1]["count"] == now, lambda: f"{node} at {self.name}: {self.events()}", 10)
        assert node in [event["node"] for event in self.events() if event["event"] == "node-joined"]
        assert node in [name for event in self.events() for name in event["added"]]
        self.take(len(self.events()))

    def expect(self, node: str, came: bool, text: str, now: int) -> None:
        """This node comes or goes, next."""
        one, hosts = self.take(2)
        assert (one["event"], one["node"]) == ("node-joined" if came else "node-lost", node), one
        assert text in one["text"] and one["job"] == "" and one["rank"] == -1, one
        assert (hosts["event"], hosts["kind"], hosts["node"], hosts["count"]) == ("hosts-changed", 9, "", now), hosts
        assert (hosts["added"], hosts["removed"]) == (([node], []) if came else ([], [node])), hosts
        assert hosts["at_ns"] >= one["at_ns"] > 0

    def expect_anew(self, node: str, now: int) -> None:
        """This node has begun anew, next."""
        lost, joined, hosts = self.take(3)
        assert (lost["event"], lost["node"], lost["text"]) == ("node-lost", node, "it has begun anew"), lost
        assert (joined["event"], joined["node"]) == ("node-joined", node), joined
        assert (hosts["added"], hosts["removed"], hosts["count"]) == ([node], [node], now), hosts

    def end(self) -> None:
        """The subscription."""
        self.process.kill()
        self.process.wait(10)
        self.path.unlink()


@contextlib.contextmanager
def watching(*daemons: Daemon) -> Iterator[list[Watcher]]:
    """At each of them."""
    watchers = [Watcher(daemon) for daemon in daemons]
    try:
        yield watchers
    finally:
        for watcher in watchers:
            watcher.end()


@pytest.fixture(name="daemons")
def _daemons(make_nodes):
    """The hvdds of n1, the seed, and of n2 and n3, which are not running."""
    nodes = make_nodes(3, families=(4,))
    folders = new_node_keys(nodes.shared, ("n1", "n2", "n3"))
    made = [Daemon(node=node, options={"mesh-seeds": "n1:9600", "mesh-key": folders[node.name]}) for node in nodes]
    for daemon in made:
        daemon.allow("mesh-not-joined", "gate-ended")
    return made


def test_each_node_is_told_of_the_nodes_that_come_leave_and_die(daemons):
    seed, other, third = daemons
    with other:
        with watching(other) as [early], seed:
            early.expect("n1", True, seed.node.address, 2)
            with watching(seed, other) as watchers, third:
                watchers[0].reach("n3", 3)  # which may have been told of n2 a moment after that was there
                for watcher in (watchers[1], early):
                    watcher.expect("n3", True, third.node.address, 3)
                with watching(third) as [own]:
                    assert third.terminate() == 0
                    assert own.process.wait(10) == 3  # its hvdd has gone
                for watcher in watchers:
                    watcher.expect("n3", False, "its connection has ended", 2)
                third.start()
                for watcher in watchers:
                    watcher.expect("n3", True, third.node.address, 3)
                third.kill()
                for watcher in watchers:
                    watcher.expect("n3", False, "its connection has ended", 2)
                os.kill(seed.gate(), signal.SIGKILL)  # a seed that begins anew takes no node away
                third.start()
                wait_until(lambda: states(other).get("n3") == "joined", "the mesh", 10, 0.05)
                watchers[1].expect("n3", True, third.node.address, 3)
                seed.kill()
                seed.start()
                watchers[1].expect_anew("n1", 3)
                wait_until(lambda: states(other).get("n3") == "joined", "the mesh", 10, 0.05)
                assert watchers[1].events() == []
                assert early.names() == watchers[1].names() == {"n1", "n3"}
