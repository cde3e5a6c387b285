# SPDX-License-Identifier: Apache-2.0
"""A tour of horovod.torch, written as users write for Horovod. What real Horovod 0.28.1 (torch 2.0.1, Gloo, 2 ranks)
printed is in tour.expected; each line begins with the rank, so that the lines can be sorted."""
import warnings

import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import Average, Sum

warnings.simplefilter("ignore")
torch.set_printoptions(precision=4)
hvd.init()
rank, size = hvd.rank(), hvd.size()


def show(what, value):
    print(f"{rank}: {what}: {value}", flush=True)


def attempt(what, call, *arguments, **keywords):
    """The class of what is raised, of the kinds that scripts catch; of a ValueError the beginning, too."""
    try:
        show(what, call(*arguments, **keywords))
    except ValueError as error:
        show(what, f"ValueError {str(error)[:48]}")
    except HorovodInternalError:
        show(what, "HorovodInternalError")


# Who am I
show("identity", (rank, size, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(),
                  hvd.is_initialized()))
show("constants", (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product))

# Allreduce in every spelling
x = torch.arange(6, dtype=torch.float32).reshape(2, 3) * (rank + 1)
show("average", hvd.allreduce(x))
show("sum", hvd.allreduce(x, op=hvd.Sum, name="x.sum"))
show("average=False", hvd.allreduce(x, average=False))
attempt("average and op", hvd.allreduce, x, average=True, op=hvd.Sum)
for op in ("Min", "Max", "Product"):
    show(op, hvd.allreduce(x + 1, op=getattr(hvd, op)))
show("scaled", hvd.allreduce(x, op=Sum, prescale_factor=0.5, postscale_factor=3.0))
y = x.clone()
show("in place", (hvd.allreduce_(y, op=Sum) is y, y))
handle = hvd.allreduce_async_(y, op=Average, name="later")
show("handle", isinstance(handle, int))
show("synchronized", hvd.synchronize(handle) is y)
show("synchronized twice", hvd.synchronize(handle))
attempt("polled after", hvd.poll, 10**9)
for dtype in (torch.float16, torch.float64, torch.int32, torch.int64):
    show(f"sum of {dtype}", hvd.allreduce(torch.ones(3, dtype=dtype) * (rank + 1), op=Sum))
show("integers on average", hvd.allreduce(torch.tensor([1, 2, 3]) + rank))
show("fp16 compression", hvd.allreduce(x, compression=hvd.Compression.fp16).dtype)
show("empty", hvd.allreduce(torch.zeros(0)).shape)
show("scalar", hvd.allreduce(torch.tensor(float(rank))))
show("grouped", hvd.grouped_allreduce([x, x * 2], op=Sum))
show("grouped in place", hvd.grouped_allreduce_([x.clone(), x.clone()])[1])
show("sparse", hvd.sparse_allreduce_async(torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (4,)), "s",
                                          Sum)().to_dense())

# The other collectives
show("allgather", hvd.allgather(torch.full((rank + 1, 2), rank)))
show("allgather uint8", hvd.allgather(torch.tensor([rank], dtype=torch.uint8)))
show("grouped allgather", list(hvd.grouped_allgather([torch.tensor([rank]), torch.tensor([rank * 10.0])])))
show("broadcast", hvd.broadcast(x, root_rank=1))
z = torch.tensor([rank])
show("broadcast_", (hvd.broadcast_(z, 1) is z, z))
show("alltoall", hvd.alltoall(torch.arange(4) + 10 * rank))
show("alltoall with splits", hvd.alltoall(torch.arange(3) + 10 * rank, splits=torch.tensor([1, 2], dtype=torch.int32)))
show("reducescatter", hvd.reducescatter(torch.arange(6.0).reshape(3, 2), op=Sum))
show("grouped reducescatter", hvd.grouped_reducescatter([torch.ones(2), torch.ones(4)]))
show("objects", hvd.allgather_object({"rank": rank}))
show("object", hvd.broadcast_object(f"from {rank}", root_rank=1))
hvd.barrier()

# Gradients
for name, call in (("allreduce", lambda t: hvd.allreduce(t, op=Sum)), ("allgather", hvd.allgather),
                   ("broadcast", lambda t: hvd.broadcast(t, 0)), ("alltoall", hvd.alltoall),
                   ("reducescatter", lambda t: hvd.reducescatter(t, op=Sum)),
                   ("grouped_allreduce", lambda t: hvd.grouped_allreduce([t, t * t])[1])):
    t = torch.tensor([1.0, 2.0], requires_grad=True)
    result = call(t)
    (result * torch.arange(1.0, result.numel() + 1)).sum().backward()
    show(f"gradient of {name}", t.grad)

# Errors
attempt("a shape that differs", hvd.allreduce, torch.ones(2 + rank), name="shape")
attempt("a type that differs", hvd.allreduce, torch.ones(2, dtype=torch.float32 if rank else torch.float64), name="type")
attempt("a root that differs", hvd.broadcast, torch.ones(2), rank, name="root")
attempt("no such root", hvd.broadcast, torch.ones(2), 9)
attempt("not contiguous", hvd.allreduce_, torch.ones(2, 3).t())
attempt("splits too large", hvd.alltoall, torch.ones(2), torch.tensor([3, 3], dtype=torch.int32))
attempt("a set added later", hvd.add_process_set, [0])

# Process sets, and a second life
hvd.shutdown()
attempt("after shutdown", hvd.size)
ours = hvd.ProcessSet([rank])
theirs = hvd.ProcessSet([1 - rank])
zero, one = (ours, theirs) if rank == 0 else (theirs, ours)
hvd.init(process_sets=[zero, one])
show("sets", (zero.process_set_id, one.process_set_id, ours.included(), theirs.included(), ours.rank(), ours.size()))
show("in a set", hvd.allreduce(torch.tensor([5.0 + rank]), process_set=ours))
attempt("not a member", hvd.allreduce, torch.ones(1), process_set=theirs)

# Uneven data
for step in range(2 + rank):
    last = hvd.allreduce(torch.tensor([1.0]), op=Sum, name="uneven")
show("with a joined rank", last)
show("last to join", hvd.join())
hvd.shutdown()
