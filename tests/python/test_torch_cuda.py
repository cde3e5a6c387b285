# SPDX-License-Identifier: Apache-2.0
"""hvd.torch and the backend of torch.distributed on real GPUs: what test_torch_device.py tries over a double, and what only torch on a
GPU has: its streams, its allocator, autograd's threads, autocast. Ranks share the GPUs that are there."""
import glob
import os
import pathlib
import sys
import types

import pytest

import test_torch_device as over_double

GPUS = len(glob.glob("/dev/nvidia[0-9]*"))
pytestmark = pytest.mark.skipif(not GPUS, reason="needs a GPU, and hvdd's kernels for it")


class Real:
    """device_double.Double's face, over torch.cuda."""

    def __init__(self):
        import torch
        self.torch = torch
        self.eager = True
        self.first = torch.cuda.current_stream()

    def make(self, shape, dtype, fill=None):
        made = self.torch.empty(shape, dtype=dtype, device="cuda")
        return made if fill is None else made.copy_(self.torch.as_tensor(fill))

    def holds(self, tensor):
        return tensor.is_cuda


def begin():
    import torch

    import hvd.torch as hvd
    hvd.init(process_sets="dynamic")
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    assert hvd.cuda_built()
    return hvd, Real()


def check_ops():
    hvd, cuda = begin()
    for check in (over_double.check_known_shapes, over_double.check_sizes_of_others, over_double.check_sets,
                  over_double.check_no_call_waits_for_a_device, over_double.check_process_group, over_double.check_errors):
        check(hvd, cuda)


def test_ops(ranks):
    ranks(2, check_ops, env={"HVD_GPU": "required", "HVT_ADDRESS": str(ranks.folder)}, timeout=300)


def check_expandable():
    """Tensors lie in chunks of 2 and of 20 MiB, which the worker maps."""
    hvd, cuda = begin()
    for check in (over_double.check_known_shapes, over_double.check_sizes_of_others):
        check(hvd, cuda)


def test_expandable_segments(ranks):
    ranks(2, check_expandable, env={"HVD_GPU": "required", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, timeout=300)


def check_streams():
    """Submitted in one stream, waited for in another; the inputs and the results are made by kernels that take long."""
    import torch
    hvd, _ = begin()
    aside = torch.cuda.Stream()
    for _ in range(20):
        mine = torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(20_000_000)
        mine += hvd.rank() + 1
        handle = hvd.allreduce_async(mine, op=hvd.Sum)
        rows = hvd.allgather_async(mine[:hvd.rank() + 1])
        with torch.cuda.stream(aside):
            total, gathered = hvd.synchronize(handle), hvd.synchronize(rows)
            twice = total * 2
        torch.cuda.current_stream().wait_stream(aside)
        assert (twice == hvd.size() * (hvd.size() + 1)).all()
        assert gathered.sum().item() == sum((rank + 1) ** 2 for rank in range(hvd.size()))
        del mine, total, gathered, twice


def check_pinned():
    """After a script's line that pins its GPU, tensors of "cuda" lie there, and so do results; the questions agree with torch."""
    import torch
    hvd, _ = begin()
    mine = torch.ones(4, device="cuda")
    assert mine.device.index == hvd.local_rank() % torch.cuda.device_count()
    for result in (hvd.allreduce(mine, op=hvd.Sum), hvd.allgather(mine), hvd.broadcast(mine, 0)):
        assert result.device == mine.device
    assert hvd.nccl_built() >= 21800 and hvd.cuda_built() and not hvd.rocm_built()


def use_a_gibibyte(hvd):
    """The worker has mapped it, and torch's allocator keeps it."""
    import torch
    mine = torch.ones(1 << 28, device="cuda")
    hvd.allreduce_(mine)
    torch.cuda.synchronize()
    hvd.allreduce_(mine[:1])  # which sees the op before it finished
    del mine
    torch.cuda.synchronize()


def check_allocator():
    """Memory is given back and comes again at the same places, beside ops. What the worker has had mapped is free at once."""
    import torch
    hvd, _ = begin()
    for number, size in enumerate((1 << 18, 1 << 24, 1 << 20) * 5):
        mine = torch.full((size,), float(hvd.rank()), device="cuda")
        hvd.allreduce_(mine, op=hvd.Sum)
        assert (mine == sum(range(hvd.size()))).all()
        del mine
        (torch.accelerator if number % 2 else torch.cuda).empty_cache()
    hvd.barrier()
    free = torch.cuda.mem_get_info()[0]
    use_a_gibibyte(hvd)
    hvd.barrier()
    torch.cuda.empty_cache()
    hvd.barrier()
    assert torch.cuda.mem_get_info()[0] > free - (1 << 29)


def check_out_of_memory():
    """What torch's allocator frees by itself, before it gives up, is free for what is tried next."""
    import torch
    hvd, _ = begin()
    hvd.allreduce_(torch.ones(4, device="cuda"))
    hvd.barrier()
    free, total = torch.cuda.mem_get_info()
    hvd.barrier()
    use_a_gibibyte(hvd)
    hvd.allreduce_(torch.ones(4, device="cuda"))
    hvd.barrier()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    hvd.barrier()
    assert torch.cuda.mem_get_info()[0] > free - (1 << 29)


def check_capture():
    """An op in a graph that is being captured is refused with what to do."""
    import torch
    hvd, _ = begin()
    mine = torch.ones(4, device="cuda")
    hvd.allreduce_(mine)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ValueError, match="captured"):
        with torch.cuda.graph(graph):
            hvd.allreduce_(mine)


def model():
    """A small network with normalisation, on the GPU, the same on all ranks."""
    import torch
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 600), torch.nn.BatchNorm1d(600), torch.nn.ReLU(), torch.nn.Linear(600, 600),
                               torch.nn.ReLU(), torch.nn.Linear(600, 1)).cuda()


def check_training(**options):
    """A step of the ranks is a step on the whole batch."""
    import torch
    hvd, _ = begin()
    alone, ours = model(), model()
    ours[1] = hvd.SyncBatchNorm(600).cuda()
    plain = torch.optim.SGD(alone.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.05), named_parameters=ours.named_parameters(),
                                         **options)
    hvd.broadcast_parameters(ours.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    torch.manual_seed(5)
    x, y = torch.randn(8 * hvd.size(), 16, device="cuda"), torch.randn(8 * hvd.size(), 1, device="cuda")
    for step in range(6):
        for net, opt, part in ((alone, plain, slice(None)), (ours, optimizer, slice(hvd.rank(), None, hvd.size()))):
            opt.zero_grad(set_to_none=step % 2 == 0)
            torch.nn.functional.mse_loss(net(x[part]), y[part]).backward()
            opt.step()
    close = 1e-4 if not options else 3e-2
    for one, other in zip(alone.parameters(), ours.parameters()):
        torch.testing.assert_close(other, one, rtol=close, atol=close)


def check_compressed_training():
    import hvd.torch as hvd
    check_training(compression=hvd.Compression.fp16)


def check_scaler():
    """autocast and GradScaler: an infinity on one rank makes all ranks leave the step out."""
    import torch
    hvd, _ = begin()
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05), named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), 0)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=100)
    x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 1, device="cuda")
    for step in range(4):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.mse_loss(net(x), y)
        if step == 2 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 32.0
    for parameter in net.parameters():
        assert (hvd.allgather(parameter.detach().reshape(1, -1)) == parameter.detach().reshape(1, -1)).all()


def check_sparse():
    import torch
    hvd, _ = begin()
    table = torch.nn.Embedding(50, 8, sparse=True).cuda()
    hvd.broadcast_parameters(table.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(list(table.parameters())), named_parameters=table.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank(), 7], device="cuda")).sum().backward()
        optimizer.step()
    weight = table.weight.detach().reshape(1, -1)
    assert (hvd.allgather(weight) == weight).all()


def begin_group(backend, folder):
    """torch.distributed on this rank's GPU."""
    import torch
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=f"file://{os.environ['HVT_ADDRESS']}/{folder}", rank=rank, world_size=size)
    return rank, size


def check_ddp():
    """DDP's reducer, which waits for futures, on the backend hvd."""
    import torch
    import torch.distributed as dist
    rank, size = begin_group("cpu:hvd,cuda:hvd", "ddp")
    net = torch.nn.parallel.DistributedDataParallel(model()[:1])
    for step in range(3):
        net(torch.full((4, 16), float(rank + step), device="cuda")).sum().backward()
        gradient = net.module[0].weight.grad.reshape(1, -1)
        every = torch.empty(size, gradient.numel(), device="cuda")
        dist.all_gather_into_tensor(every, gradient)
        assert (every == gradient).all()
    dist.destroy_process_group()


def check_fsdp():
    """FSDP2: shards are gathered, and gradients scattered, by the backend hvd; losses are those of one process."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    rank, size = begin_group("cpu:hvd,cuda:hvd", "fsdp")
    mesh = init_device_mesh("cuda", (size,))
    alone, ours = model()[3:], model()[3:]
    for layer in (ours[0], ours[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(ours, mesh=mesh)
    plain, optimizer = (torch.optim.SGD(net.parameters(), lr=0.05) for net in (alone, ours))
    torch.manual_seed(9)
    x = torch.randn(4 * size, 600, device="cuda")
    for _ in range(4):
        whole = alone(x).pow(2).mean()
        mine = ours(x[rank::size]).pow(2).mean()
        whole.backward()
        mine.backward()
        told = mine.detach().clone()
        dist.all_reduce(told, dist.ReduceOp.AVG)
        torch.testing.assert_close(told, whole.detach(), rtol=1e-4, atol=1e-6)
        for one in (plain, optimizer):
            one.step()
            one.zero_grad()
    dist.destroy_process_group()


def check_killed():
    """A worker that is lost is an exception, not a number."""
    hvd, cuda = begin()
    over_double.check_killed(hvd, cuda)


CHECKS = types.MappingProxyType({name[6:]: value for name, value in list(globals().items())
                                 if name.startswith("check_") and name not in ("check_ops", "check_expandable")})


@pytest.mark.parametrize("wish", ["required", "staged"])
@pytest.mark.parametrize("name", sorted(CHECKS))
def test_two_ranks(ranks, name, wish):
    if wish == "staged" and name in ("capture", "killed"):
        return  # a copy waits for the stream, which torch refuses in its own words; there is no worker
    ranks(2, CHECKS[name], env={"HVD_GPU": wish, "HVT_ADDRESS": str(ranks.folder)}, timeout=300)


def check_beside_nccl():
    """Tensors of the host by hvd, of GPUs by NCCL, in one group of torch's own."""
    import torch
    import torch.distributed as dist
    rank, size = begin_group("cpu:hvd,cuda:nccl", "nccl")
    world = dist.distributed_c10d._get_default_group()
    assert [world._get_backend(torch.device(name)).name() for name in ("cpu", "cuda")] == ["hvd", "nccl"]
    for device in ("cpu", "cuda"):
        room = torch.full((4,), float(rank), device=device)
        dist.all_reduce(room)
        assert room.tolist() == [size * (size - 1) / 2] * 4
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank), device=device), 1 - rank),
                                            dist.P2POp(dist.irecv, room, 1 - rank)]):
            work.wait()
        assert room.tolist() == [1.0 - rank] * 4
    net = torch.nn.parallel.DistributedDataParallel(model()[:1], device_ids=[torch.cuda.current_device()])
    net(torch.full((4, 16), float(rank), device="cuda")).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.skipif(GPUS < 2, reason="NCCL has a GPU once in a communicator")
def test_nccl_has_the_gpus_and_hvd_the_host(ranks):
    ranks(2, check_beside_nccl, env={"HVT_ADDRESS": str(ranks.folder)}, timeout=300)


def check_keras():
    """Keras 3 on PyTorch: variables and gradients lie on the GPU."""
    # Beside this file there is a folder of that name, which Keras would take for TensorFlow.
    sys.path[:] = [path for path in sys.path if path != str(pathlib.Path(__file__).resolve().parent)]
    import keras
    import numpy as np
    import torch

    import hvd.keras as hvd
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    keras.utils.set_random_seed(hvd.rank())
    net = keras.Sequential([keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])
    net.build((None, 3))
    net.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 3)).astype("float32")
    losses = net.fit(x, x.sum(axis=1, keepdims=True), batch_size=8, epochs=3, verbose=0,
                     callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]).history["loss"]
    assert losses[-1] < losses[0]
    for variable in net.trainable_variables:
        assert variable.value.is_cuda
        every = hvd.allgather(variable.value.detach().reshape(1, -1))
        assert every.is_cuda and (every == every[:1]).all()


def test_keras_on_torch(ranks):
    ranks(2, check_keras, env={"HVD_GPU": "required", "KERAS_BACKEND": "torch"}, timeout=300)
