# SPDX-License-Identifier: Apache-2.0
"""hvd.torch when something is wrong: arguments, ranks that disagree, leave or die, Ctrl-C, forks, the end of sessions."""
import os
import signal
import threading
import time

import pytest

RANKS_IMPORT = ("torch",)


def check_arguments(hvd):
    """ValueError at once, in Horovod's words; nothing is submitted."""
    import torch
    x, gps = torch.ones(4, 3), hvd.global_process_set
    unregistered = hvd.ProcessSet([0])
    cases = [
        (lambda: hvd.allreduce(x, average=True, op=hvd.Sum), "The op parameter supersedes average"),
        (lambda: hvd.allreduce(x.t()), "Tensor is required to be contiguous."),
        (lambda: hvd.broadcast_async_(x[:, 1], 0), "Tensor is required to be contiguous."),
        (lambda: hvd.allgather(torch.ones(2, dtype=torch.complex64)), r"Tensor type torch.ComplexFloatTensor is not"),
        (lambda: hvd.allreduce([1.0]), "torch.Tensor is needed"),
        (lambda: hvd.grouped_allreduce([x, 1]), "torch.Tensor is needed"),
        (lambda: hvd.grouped_allreduce([]), "at least one tensor"),
        (lambda: hvd.grouped_allgather([x, x.to("meta")]), "Tensors in list must be on same device."),
        (lambda: hvd.allreduce(x.to("meta")), "no contents"),
        (lambda: hvd.allreduce(x, op=17), "17"),
        (lambda: hvd.allreduce(x, op="sum"), "a reduce op is needed, such as hvd.Average or hvd.Sum, not 'sum'"),
        (lambda: hvd.allreduce_(x, op=torch.distributed.ReduceOp.SUM), "a reduce op is needed"),  # whose number is Average's
        (lambda: hvd.grouped_reducescatter([x], op=None), "a reduce op is needed"),
        (lambda: hvd.DistributedOptimizer(torch.optim.SGD([x], 1.0), op="sum"), "a reduce op is needed"),
        (lambda: hvd.DistributedOptimizer(torch.optim.SGD([x], 1.0), compression="fp16"), "hvd.Compression.fp16, not 'fp16'"),
        (lambda: hvd.allreduce(torch._neg_view(x)), "resolve_neg"),  # pylint: disable=protected-access
        (lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool), op=hvd.Sum), "bool"),
        (lambda: hvd.broadcast(x, hvd.size()), f"invalid root rank {hvd.size()} for provided process set"),
        (lambda: hvd.broadcast(x, -1), "invalid root rank -1"),
        (lambda: hvd.alltoall(x, [[1]]), "alltoall expects a 1D splits tensor"),
        (lambda: hvd.alltoall(x, torch.ones(hvd.size())), "to contain 32-bit integer elements"),
        (lambda: hvd.alltoall(x, [1] * (hvd.size() + 1)), "Number of entries in splits does not equal"),
        (lambda: hvd.alltoall(x, [5] * hvd.size()), "Sum of splits entries is greater than the first dimension"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "Reducescatter does not support scalar inputs"),
        (lambda: hvd.grouped_reducescatter([torch.tensor(1.0)]), "Reducescatter does not support scalar inputs"),
        (lambda: hvd.allreduce(x, process_set=unregistered), "Allreduce: Process set provided does not exist"),
        (lambda: hvd.sparse_allreduce_async(x.to_sparse(), "s", hvd.Max), "Sum and Average only"),
        (lambda: hvd.poll(10**9), "was not created or has been cleared"),
        (lambda: hvd.broadcast_parameters("weights", 0), "invalid params of type"),
    ]
    if hvd.size() > 1:
        cases.append((lambda: hvd.alltoall(torch.ones(hvd.size() + 1)), "not an even multiple of the number of workers"))
    for number, (call, text) in enumerate(cases):
        with pytest.raises(ValueError, match=text):
            call()
            pytest.fail(f"case {number} was accepted")
    with pytest.raises(hvd.HorovodInternalError, match="only supports AVERAGE and SUM"):
        hvd.reducescatter(x, op=hvd.Adasum)
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(x, average=False)[0, 0] == hvd.size()
    assert hvd.synchronize(10**9) is None
    hvd.barrier(process_set=gps)


def check_names_in_flight(hvd):
    import torch
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError):
            hvd.allreduce_async(torch.ones(2), name="twice")
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(2), name="twice")
    assert hvd.synchronize(handle).tolist() == [1.0, 1.0]


def check_disagreements(hvd):
    """HorovodInternalError on every rank, the session goes on, and synchronize says it as the blocking call does."""
    import torch
    odd = hvd.rank() % 2
    cases = [
        (lambda: hvd.allreduce_async(torch.ones(2 + odd)), "disagree on shape"),
        (lambda: hvd.allreduce_async_(torch.ones(2, dtype=torch.int32 if odd else torch.int64)), "disagree on"),
        (lambda: hvd.allreduce_async(torch.ones(2), prescale_factor=1.0 + odd), "disagree on"),
        (lambda: hvd.allreduce_async(torch.ones(2), op=hvd.Sum if odd else hvd.Max), "disagree on"),
        (lambda: hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2 + odd)]), "disagree on shape"),
        (lambda: hvd.allgather_async(torch.ones(2, 2 + odd)), "disagree on"),
        (lambda: hvd.allgather_async(torch.ones(2, 2) if odd else torch.ones(2)), "disagree on"),
        (lambda: hvd.broadcast_async(torch.ones(2), odd), "disagree on root"),
        (lambda: hvd.alltoall_async(torch.ones(hvd.size(), 2 + odd)), "disagree on"),
        (lambda: hvd.reducescatter_async(torch.ones(4, 2 + odd)), "disagree on"),
    ]
    for start, text in cases:
        with pytest.raises(hvd.HorovodInternalError, match=text):
            hvd.synchronize(start())
        hvd.barrier()
    x = torch.ones(2 + odd, requires_grad=True)
    with pytest.raises(hvd.InternalError, match="disagree on shape"):
        hvd.allreduce(x)
    with pytest.raises(hvd.HorovodInternalError) as raised:
        hvd.broadcast_(torch.ones(3 + odd), 0, name="weights")
    assert isinstance(raised.value, RuntimeError) and "weights" in str(raised.value)


def check_what_horovod_refuses(hvd, away):
    """Every collective is there for the others while rank `away` is in join()."""
    import torch
    here = [rank for rank in range(hvd.size()) if rank != away]
    mine = torch.full((1,), float(hvd.rank()))
    assert hvd.allgather(mine, name="g").tolist() == here
    assert float(hvd.broadcast(mine, here[-1], name="b")) == here[-1]
    with pytest.raises(hvd.HorovodInternalError, match=f"root rank {away} has joined"):
        hvd.broadcast(mine, away, name="b of nothing")
    rows, counts = hvd.alltoall(mine.repeat(hvd.size()), [1] * hvd.size(), name="a")
    assert rows.tolist() == here and counts.tolist() == [int(rank in here) for rank in range(hvd.size())]
    assert hvd.reducescatter(torch.ones(len(here)), op=hvd.Sum, name="r").tolist() == [float(len(here))]


def check_join(hvd):
    import torch
    for first in range(hvd.size()):
        hvd.barrier()
        if hvd.rank() != first:
            total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"while {first} is away")
            assert total.tolist() == [hvd.size() - 1.0] * 3
            check_what_horovod_refuses(hvd, first)
        last = hvd.join()
        assert last != first or hvd.size() == 1
    assert hvd.join(device=-1) in range(hvd.size())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()


def check_wrong():
    import hvd.torch as hvd
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.join, hvd.barrier):
        with pytest.raises(ValueError, match="Horovod has not been initialized; use hvd.init()."):
            call()
    hvd.init()
    check_arguments(hvd)
    if hvd.size() > 1:
        check_names_in_flight(hvd)
        check_disagreements(hvd)
        check_join(hvd)


@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 3))])
def test_what_is_wrong_is_said_and_training_goes_on(ranks, count):
    ranks(count, check_wrong, timeout=300)


# ---- ends ----


def check_ends():
    import torch
    import hvd.torch as hvd
    kept = []
    for round_ in range(100):
        hvd.init()
        x = torch.full((1000,), float(round_))
        kept.append(hvd.allreduce(x, op=hvd.Sum))
        kept.append(hvd.allgather(x[:3]))
        left = hvd.allreduce_async_(torch.ones(10), name=f"unfinished {hvd.rank()}")
        finished = [hvd.allgather_async(x[:3]), hvd.alltoall_async(x), hvd.reducescatter_async(x)]
        while not all(hvd.poll(handle) for handle in finished):  # the results still lie in the library
            time.sleep(0.0001)
        hvd.barrier()
        hvd.shutdown()
        for handle in (left, *finished):
            with pytest.raises(hvd.HorovodInternalError, match="shut down"):
                hvd.synchronize(handle)
            assert hvd.synchronize(handle) is None
    for round_ in range(100):
        assert (kept[2 * round_] == round_ * int(os.environ["HVD_SIZE"])).all()
        assert (kept[2 * round_ + 1] == round_).all()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))


def test_sessions_come_and_go_and_their_results_stay(ranks):
    ranks(2, check_ends)


class Numbers:
    """A dataset for workers that are forked, and that ask who they are."""

    def __len__(self):
        return 20

    def __getitem__(self, at):
        import torch
        import hvd.torch as hvd
        return torch.tensor(float(at * hvd.size() + hvd.rank()))


def check_workers():
    import torch
    import hvd.torch as hvd
    hvd.init()
    sums = []
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=5, num_workers=2, multiprocessing_context="fork"):
        pending = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
        sums.append(hvd.allreduce(batch.sum(), op=hvd.Sum).item())
        assert hvd.synchronize(pending)[0] == 2
    assert sum(sums) == sum(range(40))


def test_workers_of_a_data_loader_are_forked_amid_training(ranks):
    ranks(2, check_workers)


# ---- Ctrl-C and lost ranks, in every wait ----


def waits(hvd):
    """Calls of rank 0 that wait for rank 1."""
    import torch
    return {
        "allreduce": lambda: hvd.allreduce(torch.ones(2), name="small"),
        "synchronize": lambda: hvd.synchronize(hvd.allgather_async(torch.ones(100_000), name="large")),
        "group": lambda: hvd.grouped_allreduce([torch.ones(2)] * 3, name="group"),
        "backward": lambda: hvd.allreduce(torch.ones(2, requires_grad=True), name="with a gradient"),
        "object": lambda: hvd.broadcast_object(None, 1, name="object"),
        "barrier": hvd.barrier,
        "join": hvd.join,
    }


def check_interrupts(over):
    import hvd.torch as hvd
    hvd.init()
    if hvd.rank() == 1:
        while not os.path.exists(over):  # comes to none of the waits; ranks() has the deadline
            time.sleep(0.01)
        return {}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    took_ns = {}
    for name, wait in waits(hvd).items():
        sent_ns = []

        def interrupt(sent_ns=sent_ns):
            sent_ns.append(time.monotonic_ns())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.2, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        took_ns[name] = time.monotonic_ns() - sent_ns[0]
    open(over, "wb").close()
    return took_ns


def test_control_c_ends_every_wait(ranks):
    from hvt.wait import check_prompt
    took_ns = ranks(2, check_interrupts, str(ranks.folder / "over"))[0]
    assert len(took_ns) == 7, took_ns
    for name, each_ns in took_ns.items():
        check_prompt(f"{name} was interrupted", each_ns, 200_000_000)


def check_leavers():
    import hvd.torch as hvd
    hvd.init()
    told = {}
    for name, wait in waits(hvd).items():
        hvd.barrier()
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError) as raised:
                wait()
            told[name] = str(raised.value)
        hvd.shutdown()
        hvd.init()
    return told


def test_a_rank_that_leaves_ends_every_wait_with_its_number(ranks):
    told = ranks(2, check_leavers)[0]
    assert len(told) == 7 and all("rank 1" in text for text in told.values()), told
