# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 4 GiB: every offset and count on the way has 64 bits. With HVT_HUGE=1 only: where memory is touched
for the first time this takes minutes (a virtual machine gets it from its host at 100 to 200 MB/s)."""
import os

import pytest

from hvt import arith
from hvt.job import job_of

BYTES = (4 << 30) + (3 << 20) + 5
NEED = 12 << 30


def available() -> int:
    """Bytes of memory that are free."""
    with open("/proc/meminfo", encoding="ascii") as file:
        rows = dict(line.split(":") for line in file)
    return int(rows["MemAvailable"].split()[0]) * 1024


@pytest.fixture(scope="module")
def job():
    if os.environ.get("HVT_HUGE") != "1" or available() < NEED:
        pytest.skip(f"wants HVT_HUGE=1 and {NEED >> 30} GiB of free memory")
    with job_of(2) as running:
        yield running


@pytest.mark.limit(900)
@pytest.mark.parametrize(("kind", "patterns", "wanted"), [("allreduce", (3, 5), 8), ("broadcast", (3, 5), 5)],
                         ids=["allreduce", "broadcast"])
def test_every_byte_of_more_than_four_gigabytes_arrives(job, kind, patterns, wanted):
    row = arith.DTYPES["uint8"]
    ops = []
    for rank, pattern in zip(job.ranks, patterns):
        rank.post("submit", kind=kind, name=kind, dtype=row.number, dims=[BYTES], memory="shared", in_place=True,
                  reduce_op=1, root=1, pattern=pattern)
    for rank in job.ranks:
        reply = rank.collect(120)
        assert reply["status"] == 0, reply
        ops.append(reply["op"])
    for rank, op in zip(job.ranks, ops):
        rank.post("wait", op=op, timeout_ms=120_000, pattern=wanted)
    for rank, op in zip(job.ranks, ops):
        reply = rank.collect(180)
        assert reply["status"] == 0 and reply["wrong"] == 0, reply
        rank.post("free", op=op)
        rank.collect(60)
