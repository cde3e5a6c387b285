# SPDX-License-Identifier: Apache-2.0
"""hvd.torch's names and signatures, model and optimizer state, SyncBatchNorm, elastic's states and sampler."""
import copy
import inspect

import pytest

NAMES = """elastic Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters
    allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
    grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
    grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize init shutdown is_initialized
    start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank mpi_threads_supported mpi_enabled
    mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set
    add_process_set remove_process_set Average Sum Adasum Min Max Product HorovodInternalError SyncBatchNorm
    _check_has_gpu InternalError""".split()

_SCALED = "prescale_factor=1.0 postscale_factor=1.0"
SIGNATURES = {
    "allreduce": f"tensor average=None name=None compression=NONE op=None {_SCALED} process_set=ALL",
    "allreduce_async allreduce_ allreduce_async_":
        f"tensor average=None name=None op=None {_SCALED} process_set=ALL",
    "grouped_allreduce": f"tensors average=None name=None compression=NONE op=None {_SCALED} process_set=ALL",
    "grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_":
        f"tensors average=None name=None op=None {_SCALED} process_set=ALL",
    "sparse_allreduce_async": "tensor name op process_set=ALL",
    "allgather allgather_async": "tensor name=None process_set=ALL",
    "grouped_allgather grouped_allgather_async": "tensors name=None process_set=ALL",
    "broadcast broadcast_async broadcast_ broadcast_async_": "tensor root_rank name=None process_set=ALL",
    "alltoall alltoall_async": "tensor splits=None name=None process_set=ALL",
    "reducescatter": f"tensor name=None compression=NONE op=0 process_set=ALL {_SCALED}",
    "reducescatter_async": f"tensor name=None op=0 process_set=ALL {_SCALED}",
    "grouped_reducescatter": f"tensors name=None compression=NONE op=0 process_set=ALL {_SCALED}",
    "grouped_reducescatter_async": f"tensors name=None op=0 process_set=ALL {_SCALED}",
    "join": "device=-1", "barrier": "process_set=ALL", "poll synchronize": "handle",
    "broadcast_parameters": "params root_rank process_set=ALL",
    "broadcast_optimizer_state": "optimizer root_rank model=None process_set=ALL",
    "broadcast_object": "obj root_rank=0 name=None process_set=ALL", "allgather_object": "obj name=None process_set=ALL",
    "init": "comm=None process_sets=None", "start_timeline": "file_path mark_cycles=False",
    "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
}


def test_names_and_signatures_are_horovods():
    import hvd.torch as hvd
    assert [name for name in NAMES if not hasattr(hvd, name)] == []
    known = {hvd.Compression.none: "NONE", hvd.global_process_set: "ALL"}

    def default(value):
        return known[value] if value in known else repr(value)

    for names, expected in SIGNATURES.items():
        for name in names.split():
            found = [p.name if p.default is p.empty else f"{p.name}={default(p.default)}"
                     for p in inspect.signature(getattr(hvd, name)).parameters.values()]
            assert " ".join(found) == expected, name
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


# ---- state ----


def check_parameters(hvd):
    import torch
    last = hvd.size() - 1
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    forms = [lambda: model.state_dict(), lambda: list(model.named_parameters()), lambda: list(model.parameters()),
             lambda: {"absent": None, **model.state_dict()}]
    for form in forms:
        for tensor in model.state_dict().values():
            tensor.fill_(hvd.rank() + 1)
        places = [tensor.data_ptr() for tensor in model.parameters()]
        hvd.broadcast_parameters(form(), last)
        assert all((tensor == last + 1).all() for tensor in model.parameters())
        assert places == [tensor.data_ptr() for tensor in model.parameters()]


def check_optimizers(hvd):
    """After the broadcast the ranks' optimizers are equal in every value, and make equal steps."""
    import torch
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.ones(1)]), 0)
    kinds = [(torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}), (torch.optim.SGD, {}),
             (torch.optim.Adam, {"amsgrad": True}), (torch.optim.Adagrad, {}), (torch.optim.ASGD, {}),
             (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}), (torch.optim.Rprop, {})]
    for kind, options in kinds:
        for who_has_state in ("root", "others", "nobody"):
            model = torch.nn.Linear(3, 2)
            torch.nn.init.constant_(model.weight, hvd.rank())
            frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
            groups = [{"params": [model.weight], "lr": 0.01 * (hvd.rank() + 1)}, {"params": [frozen, model.bias]}]
            optimizer = kind(groups, lr=0.5, **options)
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, hvd.rank() + 1.0)
            if {"root": hvd.rank() == 0, "others": hvd.rank() != 0, "nobody": False}[who_has_state]:
                optimizer.step()
            before = copy.deepcopy(optimizer.state_dict())
            hvd.broadcast_parameters(model.state_dict(), 0)
            hvd.broadcast_optimizer_state(optimizer, 0)
            roots = hvd.broadcast_object(before, 0)
            mine = optimizer.state_dict()
            assert mine["param_groups"] == roots["param_groups"] and mine["state"].keys() == roots["state"].keys()
            for key, values in roots["state"].items():
                for name, value in values.items():
                    assert type(mine["state"][key][name]) is type(value), name
                    torch.testing.assert_close(mine["state"][key][name], value, rtol=0, atol=0)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            torch.testing.assert_close(model.weight, hvd.broadcast(model.weight, 0), rtol=0, atol=0)


def check_sync_batch_norm(hvd):
    """Equal to plain batch normalisation over all ranks' batches together, which have different sizes."""
    import torch
    torch.manual_seed(1)
    bounds = [0, 4, 5, 5, 9][:hvd.size()] + [12]  # rank 2 of more than two has an empty batch
    mine = slice(bounds[hvd.rank()], bounds[hvd.rank() + 1])
    for shape, options in (((12, 3), {}), ((12, 3, 4), {"momentum": None}), ((12, 3, 2, 2), {"affine": False}),
                           ((12, 3, 2, 2, 2), {"track_running_stats": False})):
        plain = torch.nn.BatchNorm3d(3, **options).double()
        plain._check_input_dim = lambda _: None
        ours = hvd.SyncBatchNorm(3, **options).double()
        for parameter in plain.parameters():
            torch.nn.init.uniform_(parameter)
        ours.load_state_dict(plain.state_dict())
        for _ in range(2):
            whole = (torch.randn(shape, dtype=torch.float64) * 3 + 5).requires_grad_()
            part = whole.detach()[mine].clone().requires_grad_()
            weights = torch.randn(shape, dtype=torch.float64)
            expected, got = plain(whole), ours(part)
            (expected * weights).sum().backward()
            (got * weights[mine]).sum().backward()
            torch.testing.assert_close(got, expected[mine])
            torch.testing.assert_close(part.grad, whole.grad[mine])
        for name, buffer in plain.named_buffers():
            torch.testing.assert_close(dict(ours.named_buffers())[name], buffer)
        for one, other in zip(plain.parameters(), ours.parameters()):
            torch.testing.assert_close(hvd.allreduce(other.grad, op=hvd.Sum), one.grad)
        plain.eval(), ours.eval()
        torch.testing.assert_close(ours(whole), plain(whole))
    with pytest.raises(ValueError, match="at least 2D"):
        hvd.SyncBatchNorm(3)(torch.ones(3))
    assert hvd.SyncBatchNorm(3)(torch.randn(4, 3).bfloat16()).dtype is torch.bfloat16
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            hvd.SyncBatchNorm(3)(torch.ones(1 if hvd.rank() == 0 else 0, 3))


def check_batch_norms_at_once(hvd):
    """Layers of two threads, whose ops meet in any order."""
    import threading

    import torch
    results = {}

    def work(name, seed):
        layer = hvd.SyncBatchNorm(2)
        layer.op_name = name
        generator = torch.Generator().manual_seed(seed + hvd.rank())
        for _ in range(20):
            results[name] = layer(torch.randn(5, 2, generator=generator) + seed).detach()
        results[name + " mean"] = layer.running_mean

    threads = [threading.Thread(target=work, args=(name, seed)) for name, seed in (("left", 10), ("right", -10))]
    for thread in threads if hvd.rank() % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert (results["left mean"] > 7).all() and (results["right mean"] < -7).all()
    for name in ("left", "right"):
        assert hvd.allreduce(results[name].mean(0)).abs().max() < 1e-5


def check_elastic(hvd):
    import torch
    sampler = hvd.elastic.ElasticSampler(range(11), shuffle=True, seed=3)
    share = -(-11 // hvd.size())
    dealt = hvd.allgather_object(list(sampler))
    assert len(sampler) == share and all(len(part) == share for part in dealt)
    assert sorted(set(sum(dealt, []))) == list(range(11)) and (hvd.size() == 1 or dealt[0] != dealt[1])
    used = [index for part in dealt for index in part[:1]]
    sampler.record_batch(0, 1)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": hvd.size()}
    sampler.reset()
    left = sum(hvd.allgather_object(list(sampler)), [])
    assert sorted({*used, *left}) == list(range(11)) and not {*used} & {*left}
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and hvd.allgather_object(list(sampler)) != dealt

    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, float(hvd.rank()))
    state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank()),
                                   sampler=sampler, epoch=hvd.rank(), best=[hvd.rank()])
    state.sync()
    assert state.epoch == 0 and state.best == [0] and (model.weight == 0).all()
    assert state.optimizer.param_groups[0]["lr"] == 0.1
    state.epoch, state.best[0] = 5, 5
    torch.nn.init.constant_(model.weight, 5.0)
    state.restore()
    assert state.epoch == 0 and state.best == [0] and (model.weight == 0).all()
    state.epoch = 7
    state.commit()
    state.epoch = 8
    state.restore()
    called = []
    state.register_reset_callbacks([lambda: called.append(1)])
    state.on_hosts_updated(0.0, 0)
    state.on_reset()
    assert state.epoch == 7 and called == [1]
    with pytest.raises(AttributeError, match="no 'nothing'"):
        state.nothing
    state.epoch = hvd.rank() + 3

    @hvd.elastic.run
    def train(given, more, end=None):
        assert given is state and given.epoch == 3  # rank 0's
        if end is not None:
            raise end
        return more + given.epoch
    assert train(state, 4) == 7 and train.__name__ == "train"
    with pytest.raises(hvd.HorovodInternalError, match="a rank was lost"):
        train(state, 4, end=hvd.HorovodInternalError("a rank was lost"))


def check_what_is_saved_outlives_restores(hvd):
    import torch
    model = torch.nn.Linear(2, 1)
    state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def step():
        model.weight.grad, model.bias.grad = torch.ones(1, 2), torch.ones(1)
        state.optimizer.step()
    step()
    state.commit()
    for _ in range(3):
        step()
        state.restore()
        assert all(bool((kept["momentum_buffer"] == 1).all()) for kept in state.optimizer.state.values())


class Schedule:
    """A scheduler without a state dict."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def check_objects_stay(hvd):
    """restore() and sync() change the objects that the script has, and put no copies in their place."""
    import threading

    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    sampler = torch.utils.data.DistributedSampler(range(8), hvd.size(), hvd.rank())
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, loss=None, lock=None)
    for rate in (0.5, 0.25):
        state.sync()
        state.restore()
        assert state.scheduler is scheduler and state.sampler is sampler and sampler.rank == hvd.rank()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.scheduler.step()
        assert optimizer.param_groups[0]["lr"] == rate
    state.restore()
    assert scheduler.last_epoch == 1 and optimizer.param_groups[0]["lr"] == 0.5

    own = hvd.elastic.TorchState(model, optimizer, scheduler=Schedule(optimizer))
    own.restore()
    assert own.scheduler.optimizer is optimizer

    state.loss, state.lock = model(torch.ones(1, 2)).sum(), threading.Lock()  # nothing that copy.deepcopy() takes
    value, lock = state.loss.item(), state.lock
    state.commit()
    state.loss = state.lock = None
    state.restore()
    assert state.loss.item() == value and state.lock is lock


def check_saves_are_whole(hvd):
    import torch

    class Stateful(torch.nn.Identity):
        def state_dict(self):
            if self.is_interrupted:
                raise KeyboardInterrupt
            return {}
        is_interrupted = False
    model, last = torch.nn.Linear(1, 1, bias=False), Stateful()
    torch.nn.init.constant_(model.weight, 1.0)
    state = hvd.elastic.TorchState(model, last=last, epoch=1)
    torch.nn.init.constant_(model.weight, 2.0)
    state.epoch, last.is_interrupted = 2, True
    with pytest.raises(KeyboardInterrupt):
        state.commit()
    last.is_interrupted = False
    state.restore()
    assert (model.weight.item(), state.epoch) == (1.0, 1)


def check_resets(hvd):
    from hvd._elastic import State
    called = []

    class Mine(State):
        _reset_callbacks = [lambda: called.append("callback")]

        def reset(self):
            called.append("reset")
    Mine().on_reset()
    assert called == ["reset", "callback"]


def check_state():
    import hvd.torch as hvd
    hvd.init()
    for check in (check_parameters, check_optimizers, check_sync_batch_norm, check_batch_norms_at_once, check_elastic,
                  check_what_is_saved_outlives_restores, check_objects_stay, check_saves_are_whole, check_resets):
        check(hvd)


@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 4))])
def test_state_is_everywhere_what_it_is_on_the_root(ranks, count):
    ranks(count, check_state, timeout=300)
