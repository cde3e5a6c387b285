# SPDX-License-Identifier: Apache-2.0
"""Says who it is and adds up 1 + rank over all ranks."""
import hvd

hvd.init()
total = int(hvd.allreduce([1.0 + hvd.rank()], op=hvd.Sum)[0])
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}, sum {total}", flush=True)
