# SPDX-License-Identifier: Apache-2.0
"""Hosts, slots, and which rank goes where."""
from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Sequence


class HostInfo:
    """A host and how many ranks it takes."""

    def __init__(self, hostname: str, slots: int) -> None:
        self.hostname = hostname
        self.slots = slots

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """From "host:slots". ValueError for anything else."""
        hostname, slots = host_string.strip().split(":")
        return HostInfo(hostname, int(slots))


@dataclasses.dataclass
class SlotInfo:
    """A rank's place: its numbers in the job, on its host, and among the hosts that have its local rank."""
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None

    def to_response_string(self) -> str:
        """The numbers with commas between."""
        return ",".join(str(number) for number in (self.rank, self.size, self.local_rank, self.local_size,
                                                   self.cross_rank, self.cross_size))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """"a:2,b:4" as HostInfos."""
    return [HostInfo.from_string(host) for host in hosts_string.split(",")]


def parse_host_files(filename: str) -> str:
    """A file with lines "a slots=2" as "a:2,b:4". Blank lines and what follows # do not count."""
    hosts = []
    with open(filename, encoding="utf-8") as file:
        for line in file:
            words = line.partition("#")[0].split()
            if words:
                slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
                hosts.append(f"{words[0]}:{slots[0] if slots else 1}")
    return ",".join(hosts)


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in "a:2,b:4", and each one's slots. ValueError when that is not its form."""
    names, slots = [], {}
    for host in hosts.split(","):
        if not re.match(r"^[\w.-]+:[0-9]+$", host.strip()):
            raise ValueError("Invalid host input, please make sure it has format as : worker-0:2,worker-1:2.")
        info = HostInfo.from_string(host)
        names.append(info.hostname)
        slots[info.hostname] = info.slots
    return names, slots


def get_host_assignments(hosts: Sequence[HostInfo], min_num_proc: int,
                         max_num_proc: int | None = None) -> list[SlotInfo]:
    """The ranks in order: the hosts' slots one after the other, at most `max_num_proc` (None: all there are). ValueError:
    fewer than `min_num_proc`."""
    places = [(host.hostname, local_rank) for host in hosts for local_rank in range(host.slots)][:max_num_proc]
    if len(places) < min_num_proc:
        raise ValueError(f"Requested more processes ({min_num_proc}) than there are available slots ({len(places)})")
    local_sizes = collections.Counter(hostname for hostname, _ in places)
    cross_sizes = collections.Counter(local_rank for _, local_rank in places)
    seen: collections.Counter[int] = collections.Counter()
    slots = []
    for rank, (hostname, local_rank) in enumerate(places):
        slots.append(SlotInfo(hostname, rank, local_rank, seen[local_rank], len(places), local_sizes[hostname],
                              cross_sizes[local_rank]))
        seen[local_rank] += 1
    return slots
