# SPDX-License-Identifier: Apache-2.0
"""hvd.torch's tensors on CUDA devices, through the real engine and worker, over the fake driver and a double of torch.cuda
(device_double.py says what that leaves untried)."""
import logging
import os
import pathlib
import signal
import threading
import time

import pytest

from conftest import BUILD
from device_double import fake
from hvt import wait_until


def begin():
    """hvd, and the double of this rank's device."""
    import hvd.torch as hvd
    from device_double import install
    hvd.init(process_sets="dynamic")
    return hvd, install(hvd.rank() % 2)


def count_ops():
    """A list that grows with each op that takes part in a stream."""
    from hvd import _streams
    plain, seen = _streams.submit, []

    def submit(current, function, keep, name, *rest, **more):
        seen.append(name)
        return plain(current, function, keep, name, *rest, **more)
    _streams.submit = submit
    return seen


# ---- ops ----


def check_known_shapes(hvd, cuda):
    import torch
    rank, size = hvd.rank(), hvd.size()
    mine = cuda.make((5, 2), torch.float32, float(rank + 1))
    total = size * (size + 1) / 2
    assert (hvd.allreduce(mine, op=hvd.Sum) == total).all() and (mine == rank + 1).all()
    assert (hvd.allreduce(mine, op=hvd.Average, prescale_factor=2.0) == 2 * total / size).all()
    new = hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Max))
    assert cuda.holds(new) and (new == size).all()
    assert hvd.broadcast_(mine, size - 1, name="b") is mine and (mine == size).all()
    for result in hvd.grouped_allreduce([mine, cuda.make((3,), torch.int64, 1)], op=hvd.Sum):
        assert cuda.holds(result) and (result == (size * size if result.is_floating_point() else size)).all()
    rows = cuda.make((2 * size + 1, 3), torch.float64, torch.arange((2 * size + 1) * 3).view(-1, 3))
    for share in (hvd.reducescatter(rows, op=hvd.Average), *hvd.grouped_reducescatter([rows], op=hvd.Average)):
        begin_at = 2 * rank + min(rank, 1)
        assert cuda.holds(share) and torch.equal(share, torch.Tensor.clone(rows[begin_at:begin_at + 2 + (rank == 0)]))
    deep = cuda.make((size, *[1] * 8, 2), torch.float32, 1.0)  # more dimensions than the library has
    assert (hvd.allreduce(deep, op=hvd.Sum) == size).all()
    assert hvd.allgather(deep).shape == (size * size, *deep.shape[1:]) and hvd.alltoall(deep).shape == deep.shape
    assert hvd.reducescatter(deep, op=hvd.Sum).shape == (1, *deep.shape[1:])


def check_sizes_of_others(hvd, cuda):
    import torch
    rank, size = hvd.rank(), hvd.size()
    for name in (None, "named"):
        mine = cuda.make((rank, 2), torch.int32, rank)
        expected = [row for member in range(size) for row in [[member] * 2] * member]
        first, second = hvd.allgather_async(mine, name), hvd.allgather_async(mine, name and name + "2")
        assert hvd.synchronize(second).tolist() == hvd.synchronize(first).tolist() == expected
        two = hvd.grouped_allgather([mine, cuda.make((1, 1), torch.float32, rank)], name=name)
        assert two[0].tolist() == expected and two[1].tolist() == [[float(member)] for member in range(size)]
        sent = cuda.make((size * (rank + 1), 2), torch.float32, float(rank))
        rows, received = hvd.alltoall(sent, splits=torch.tensor([rank + 1] * size, dtype=torch.int32), name=name)
        assert received.tolist() == [member + 1 for member in range(size)] and cuda.holds(rows)
        assert rows.tolist() == [[float(member)] * 2 for member in range(size) for _ in range(member + 1)]
        assert hvd.alltoall(cuda.make((size,), torch.uint8, rank), name=name).tolist() == list(range(size))
    sparse = torch.sparse_coo_tensor([[rank, size]], cuda.make((2,), torch.float32, 1.0), (size + 1,))
    whole = hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)().to_dense()
    assert whole.tolist() == [1.0] * size + [float(size)]


def check_sets(hvd, cuda):
    import torch
    alone = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    mine = cuda.make((3,), torch.float32, float(hvd.rank()))
    assert (hvd.allreduce(mine, op=hvd.Sum, process_set=alone[hvd.rank()]) == hvd.rank()).all()
    assert hvd.allgather(mine, process_set=alone[hvd.rank()]).shape == (3,)


def check_no_call_waits_for_a_device(hvd, cuda):
    """Rank 0 goes on while rank 1 has not come yet; the same name again waits for the op before it."""
    import torch
    from hvd import _native, _ops, _streams
    cuda.eager = False
    mine = cuda.make((4,), torch.float32, 1.0)
    gone_on = pathlib.Path(os.environ["HVT_ADDRESS"], "rank-0-has-gone-on")
    hvd.barrier()
    if hvd.rank() == 1:
        wait_until(gone_on.exists, "rank 0 to go on", 10)
    assert hvd.allreduce_(mine, op=hvd.Sum, name="ahead") is mine
    if hvd.rank() == 0:
        assert _streams._unseen
        gone_on.touch()
    for _ in range(3):
        hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name="ahead"))
    cuda.first.synchronize()
    assert mine.tolist() == [float(hvd.size() ** 4)] * 4
    if hvd.rank() == 1:
        hvd.barrier()
    handle = hvd.allreduce_async_(mine, op=hvd.Sum, name="waited for")
    if hvd.rank() == 0:  # nor for another thread, which is in the library with the same op
        op, = [op for op in _ops._unreleased() if op.name and op.name.endswith(b"waited for")]
        claimed, waited, in_time = threading.Event(), threading.Event(), []

        def claim():
            with op.claim:
                claimed.set()
                in_time.append(waited.wait(10))
        thread = threading.Thread(target=claim)
        thread.start()
        claimed.wait()
        op.wait()
        waited.set()
        thread.join()
        assert in_time == [True] and op.status == _native.INPROGRESS
        hvd.barrier()
    hvd.synchronize(handle)
    cuda.eager = True


def check_streams(hvd, cuda):
    """Submitted in one stream and waited for in another: the memory is recorded there."""
    import torch
    from device_double import Stream
    mine = cuda.make((4,), torch.float32, 1.0)
    handle = hvd.allreduce_async(mine, op=hvd.Sum)
    gathered = hvd.allgather_async(mine)
    cuda.used.clear()
    cuda.threads.stream = other = Stream(cuda.driver)
    assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 4
    assert hvd.synchronize(gathered).tolist() == [1.0] * 4 * hvd.size()
    assert [stream for _, stream in cuda.used][:1] == [other]
    del cuda.threads.stream


def check_errors(hvd, cuda):
    """What has gone wrong on the device's side is raised by the synchronisation, or by the next call."""
    import torch
    mine = cuda.make((4 + hvd.rank(),), torch.float32, 1.0)
    with pytest.raises(hvd.HorovodInternalError, match="[Mm]ismatched"):
        hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name="wrong"))
        for _ in range(100):
            time.sleep(0.05)
            hvd.synchronize(hvd.allreduce_async_(cuda.make((1,), torch.float32, 1.0), name="right", op=hvd.Sum))
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce_(cuda.make((2, 2), torch.float32, 1.0).t())
    with pytest.raises(ValueError, match="both must lie"):
        from hvd.torch._framework import engine
        engine.allreduce(mine, torch.zeros(mine.shape), hvd.Sum, None)


def check_process_group(hvd, cuda):
    """torch.distributed's collectives on the device, by the same session."""
    import torch
    import torch.distributed as dist
    rank, size = hvd.rank(), hvd.size()
    dist.init_process_group("cpu:hvd,cuda:hvd", init_method=f"file://{os.environ['HVT_ADDRESS']}/store", rank=rank, world_size=size)
    mine = cuda.make((4,), torch.float32, float(rank + 1))
    work = dist.all_reduce(mine, async_op=True)
    assert work.wait() and mine.tolist() == [size * (size + 1) / 2] * 4
    dist.broadcast(mine.fill_(rank), 1)
    assert mine.tolist() == [1.0] * 4
    everything = cuda.make((size, 4), torch.float32, 0)
    dist.all_gather_into_tensor(everything, mine.fill_(rank))
    assert everything[:, 0].tolist() == list(range(size))
    share = cuda.make((4,), torch.float32, 0)
    dist.reduce_scatter_tensor(share, everything)
    assert share.tolist() == [float(rank * size)] * 4
    rows = cuda.make((size,), torch.int64, 0)
    dist.all_to_all_single(rows, cuda.make((size,), torch.int64, rank))
    assert rows.tolist() == list(range(size))
    bits = cuda.make((2,), torch.int32, 1 << rank)
    if rank == 0:
        dist.send(bits, 1)
    else:
        dist.recv(bits, 0)
    assert bits.tolist() == [1, 1]
    dist.destroy_process_group()


def check_memory_that_is_given_back(hvd, cuda):
    """The engine forgets a segment before torch gives it back, and when memory has run out the segments that torch has given back by
    itself; it learns of what comes there later."""
    import torch
    from hvd import _streams
    from hvd._native import last_error, lib
    from hvd._session import current
    mine, other = (cuda.make((1 << 20,), torch.float32, 1.0) for _ in range(2))
    place = mine.data_ptr()

    def run_out():
        for observer in cuda.observers:
            observer(0, 1 << 30, 1 << 30, 0)
    for give_back in (torch.cuda.empty_cache, torch.accelerator.empty_cache, run_out):
        for tensor in (mine, other):
            assert (hvd.allreduce(tensor, op=hvd.Sum) == hvd.size()).all()
        for op in list(_streams._unseen):
            op.wait_here()
        cuda.idle = {place}
        give_back()
        assert lib.hvd_device_forget(current().pointer, place) < 0 and "knows no allocation" in last_error()
        give_back()
        cuda.idle = set()
    if cuda.segment is None:  # of an expandable one the engine lets go of all chunks
        assert lib.hvd_device_forget(current().pointer, other.data_ptr()) == 0  # what holds tensors has stayed known
    assert (hvd.allreduce(mine, op=hvd.Sum) == hvd.size()).all()


# ---- models ----


def model_on(cuda):
    """A model whose parameters lie on the device, and a copy on the host."""
    import torch
    torch.manual_seed(1)
    host = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.Tanh(), torch.nn.Linear(300, 200), torch.nn.Tanh(),
                               torch.nn.Linear(200, 1))
    torch.manual_seed(1)
    there = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.Tanh(), torch.nn.Linear(300, 200), torch.nn.Tanh(),
                                torch.nn.Linear(200, 1))
    for module in there:
        for name, parameter in list(module.named_parameters()):
            made = cuda.make(tuple(parameter.shape), parameter.dtype, parameter.detach())
            setattr(module, name, torch.nn.Parameter(made))
    return host, there


def train(hvd, cuda, host, there, close=1e-4, **options):
    """Trains both, the one on the device as ranks; they stay as equal as sums of half a batch let them on any processor."""
    import torch
    plain = torch.optim.SGD(host.parameters(), lr=0.1, momentum=0.9)
    ours = hvd.DistributedOptimizer(torch.optim.SGD(there.parameters(), lr=0.1, momentum=0.9),
                                    named_parameters=there.named_parameters(), **options)
    torch.manual_seed(7)
    x, y = torch.randn(4 * hvd.size(), 8), torch.randn(4 * hvd.size(), 1)
    for step in range(5):
        for which, optimizer, part in ((host, plain, slice(None)), (there, ours, slice(hvd.rank(), None, hvd.size()))):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for _ in range(options.get("backward_passes_per_step", 1)):
                torch.nn.functional.mse_loss(which(x[part]), y[part]).backward()
            optimizer.step()
    for one, other in zip(host.parameters(), there.parameters()):
        torch.testing.assert_close(other, one, rtol=close, atol=close)
    return ours


def check_optimizer(hvd, cuda):
    import torch
    host, there = model_on(cuda)
    ours = train(hvd, cuda, host, there)
    assert all(cuda.holds(parameter.grad) for parameter in there.parameters())
    buckets = {id(segment.bucket): segment.bucket for segment in ours._hvd_reducer._segments}
    assert all(type(bucket).__name__ == "OnDevice" for bucket in buckets.values())
    train(hvd, cuda, *model_on(cuda), backward_passes_per_step=2)
    train(hvd, cuda, *model_on(cuda), close=1e-2, compression=hvd.Compression.fp16)
    train(hvd, cuda, *model_on(cuda), close=1e-2, compression=hvd.Compression.bf16)
    pair = model_on(cuda)  # Adasum's changes, of ranks on the host and of ranks on the device
    both = [hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=0.1), one.named_parameters(), op=hvd.Adasum) for one in pair]
    torch.manual_seed(hvd.rank())
    x, y = torch.randn(4, 8), torch.randn(4, 1)
    for _ in range(2):
        for one, optimizer in zip(pair, both):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(one(x), y).backward()
            optimizer.step()
    for one, other in zip(*(one.parameters() for one in pair)):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        next(there.parameters()).fill_(hvd.rank())
    hvd.broadcast_parameters(there.state_dict(), 0)
    hvd.broadcast_optimizer_state(ours, 0)
    assert (next(there.parameters()) == 0).all()


def check_sync_batch_norm(hvd, cuda):
    """The number of values, which the host needs, is told on the host. The double's arithmetic is the host's."""
    import torch
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    mine = rows[:4] if hvd.rank() == 0 else rows[4:]
    ours, plain = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    wanted = plain(rows)[:4] if hvd.rank() == 0 else plain(rows)[4:]
    torch.testing.assert_close(ours(cuda.make(tuple(mine.shape), mine.dtype, mine)), wanted, rtol=1e-5, atol=1e-5)


def check_default_device(hvd, cuda):
    """What is told on the host is told there though a program makes its tensors elsewhere."""
    import torch
    rank, size = hvd.rank(), hvd.size()
    rows = torch.ones(rank, 3)
    layer = hvd.SyncBatchNorm(3)
    with torch.device("meta"):
        assert hvd.allgather(cuda.make((rank, 3), torch.float32, rows)).shape == (size * (size - 1) // 2, 3)
        for splits in (None, [1] * size):
            result = hvd.alltoall(cuda.make((size,), torch.int32, rank), splits)
            assert (result[0] if splits else result).tolist() == list(range(size))
        layer(cuda.make((2, 3), torch.float32, rank))
    torch.testing.assert_close(layer.running_mean, torch.full((3,), 0.1 * (size - 1) / 2))


def check_everything():
    hvd, cuda = begin()
    from hvd.torch import _framework
    seen = count_ops()
    for check in (check_known_shapes, check_sizes_of_others, check_sets, check_no_call_waits_for_a_device, check_streams,
                  check_default_device, check_process_group, check_memory_that_is_given_back, check_optimizer, check_errors):
        before = len(seen)
        check(hvd, cuda)
        assert len(seen) > before, check
    check_sync_batch_norm(hvd, cuda)
    assert set(_framework.framework._why_not.values()) == {""}
    assert hvd.nccl_built() == (22809 if hvd.cuda_built() else 0)  # what the fake has; kernels are built in where nvcc was found
    hvd.shutdown()
    hvd.init()
    check_sizes_of_others(hvd, cuda)  # in a new session numbers begin anew
    return len(seen)


def test_ops_and_optimizers_work_where_tensors_lie(ranks):
    assert min(ranks(2, check_everything, env=fake(BUILD, HVT_ADDRESS=str(ranks.folder)), timeout=90)) > 50


def check_out_of_memory_stays_that(cuda):
    """What our observer raised would be in the place of torch's OutOfMemoryError."""
    from hvd.exceptions import NotInitializedError
    from hvd.torch import _cuda, _device

    def gone():
        raise NotInitializedError()
    _cuda.watch_allocator(_device.forget_idle, gone)
    cuda.observers[-1](0, 1 << 30, 1 << 30, 0)


def check_allocator_of_others(hvd, cuda):
    """A pluggable one, as RMM's: no observers, no segments."""
    import torch
    from hvd.torch._framework import framework
    cuda.plug_in()
    cuda.observers.clear()
    framework._told_allocator = False
    framework._why_not.clear()
    check_known_shapes(hvd, cuda)
    assert framework._told_allocator and not cuda.observers
    torch.cuda.empty_cache()
    check_known_shapes(hvd, cuda)


def check_expandable():
    hvd, cuda = begin()
    cuda.expand()
    for check in (check_known_shapes, check_sizes_of_others, check_memory_that_is_given_back):
        check(hvd, cuda)
    check_out_of_memory_stays_that(cuda)
    check_allocator_of_others(hvd, cuda)
    hvd.shutdown()


def test_tensors_in_expandable_segments_are_reached_where_they_lie(ranks):
    ranks(2, check_expandable, env=fake(BUILD, HVD_GPU="required"), timeout=90)


# ---- without the engine ----


class Said(logging.Handler):
    """What the package logs."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("hvd").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


def check_staged(why):
    hvd, cuda = begin()
    said, seen = Said(), count_ops()
    check_known_shapes(hvd, cuda)
    check_sizes_of_others(hvd, cuda)
    host, there = model_on(cuda)
    ours = train(hvd, cuda, host, there)
    assert {type(segment.bucket).__name__ for segment in ours._hvd_reducer._segments} == {"Pinned"}
    train(hvd, cuda, *model_on(cuda), close=1e-2, compression=hvd.Compression.fp16)
    assert len(seen) <= 1  # the first op, which was not done
    about = [line for line in said.lines if "travel through pinned memory" in line]
    assert len(about) == 1 and why in about[0], said.lines


@pytest.mark.nightly
@pytest.mark.parametrize("settings, why", [({"HVD_GPU": "staged"}, "HVD_GPU=staged"),
                                           ({"FAKEGPU_FAULT": "hvdd-gpu/no-memory@1"}, "GPU")], ids=["wish", "refusal"])
def test_what_the_engine_does_not_reach_goes_through_the_host_and_that_is_said_once(ranks, settings, why):
    ranks(2, check_staged, why, env=fake(BUILD, **settings), timeout=90)


def check_killed(hvd, cuda):
    """A worker that ends under ops is an exception of a later call."""
    import torch
    mine = cuda.make((4,), torch.float32, 1.0)
    assert (hvd.allreduce(mine, op=hvd.Sum) == hvd.size()).all()
    workers = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()
               and is_worker(entry, os.environ["HVT_ADDRESS"])]
    hvd.barrier()
    if hvd.rank() == 0:
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(hvd.HorovodInternalError):
        for number in range(200):
            hvd.synchronize(hvd.allreduce_async_(mine, op=hvd.Sum, name=f"n{number}"))
            time.sleep(0.05)
    hvd.shutdown()


def check_required_and_killed():
    hvd, cuda = begin()
    os.environ["HVD_GPU"] = "required"
    check_killed(hvd, cuda)


def is_worker(entry, address):
    """Whether a process is a worker of this test."""
    try:
        return (entry / "comm").read_text().startswith("hvdd-gpu") and address.encode() in (entry / "environ").read_bytes()
    except OSError:
        return False


@pytest.mark.nightly
def test_a_worker_that_is_lost_is_an_exception(ranks):
    ranks(2, check_required_and_killed, env=fake(BUILD, HVT_ADDRESS=str(ranks.folder)))
