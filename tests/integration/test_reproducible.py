# SPDX-License-Identifier: Apache-2.0
"""The same inputs give the same bits: between runs, kinds of memory, submission orders, thread counts and op sizes."""
import hashlib

import pytest

from hvt import arith
from hvt.job import job_of

DTYPES = ("float16", "bfloat16", "float32", "float64")
COUNT = 90_001  # several chunks, the last one odd


def digests(size: int, memory: str, order: list[int], fused: bool, **options: object) -> dict[str, str]:
    found = {}
    with job_of(size, **options) as job:
        for dtype in DTYPES:
            row = arith.DTYPES[dtype]
            inputs = [arith.sample(row, COUNT, f"repeat {rank}") for rank in range(size)]
            if fused:  # the same elements as many small ops that share batches
                step = 3000
                pieces = [b"" for _ in range(size)]
                ops = []
                for begin in range(0, COUNT, step):
                    part = slice(begin * row.bytes, (begin + step) * row.bytes)
                    ops.append([job.ranks[rank].submit("allreduce", f"{dtype}{begin}", dtype=dtype,
                                                       dims=[len(inputs[rank][part]) // row.bytes],
                                                       data=inputs[rank][part], reduce_op="average", memory=memory)
                                for rank in order])
                for row_of_ops in ops:
                    for rank, op in zip(order, row_of_ops):
                        outcome = job.ranks[rank].outcome(op)
                        assert outcome.ok, outcome
                        pieces[rank] += outcome.data
            else:
                outcomes = job.run("allreduce", dtype=dtype, dims=[COUNT], data=inputs, reduce_op="average",
                                   memory=memory, order=order)
                assert all(outcome.ok for outcome in outcomes)
                pieces = [outcome.data for outcome in outcomes]
            assert len(set(pieces)) == 1, f"{dtype}: the ranks got different results"
            found[dtype] = hashlib.sha256(pieces[0]).hexdigest()
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_runs_memory_orders_threads_and_fusion_do_not_change_a_bit(size):
    forward, backward = list(range(size)), list(reversed(range(size)))
    wanted = digests(size, "malloc", forward, False)
    assert digests(size, "malloc", forward, False) == wanted, "another run"
    assert digests(size, "shared", forward, False) == wanted, "shared memory"
    assert digests(size, "shared", backward, False, threads=1) == wanted, "another order, one thread"
    assert digests(size, "registered", backward, True, threads=4) == wanted, "small ops in shared batches"
