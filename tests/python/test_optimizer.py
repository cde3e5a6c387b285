# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer against plain torch: one process with the global batch is the oracle.

Each `check_*` runs on every rank, in a session of its own. All checks of a launch share its processes: starting torch
takes longer than they do."""
import contextlib
import pathlib
import resource
import sys
import tempfile
import traceback
import warnings

import pytest

from conftest import Ranks

torch = pytest.importorskip("torch")


# ---- models and the oracle ----


def _hvd():
    import hvd.torch as hvd
    return hvd


def _model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 200), torch.nn.Tanh(), torch.nn.Linear(200, 300), torch.nn.Tanh(),
                               torch.nn.Linear(300, 2))


def _data(rows=12):
    torch.manual_seed(7)
    return torch.randn(rows, 6), torch.randn(rows, 2)


def _mine(tensor):
    hvd = _hvd()
    return tensor[hvd.rank()::hvd.size()]


def _loss(model, x, y):
    return ((model(x) - y) ** 2).mean()


def _train(model, optimizer, x, y, steps=6, each=lambda: None, **zero):
    for _ in range(steps):
        optimizer.zero_grad(**zero)
        _loss(model, x, y).backward()
        optimizer.step()
        each()


def _same(one, other, tolerance=2e-6):
    pairs = list(zip(one.parameters(), other.parameters()))
    worst = max(float((a - b).detach().abs().max()) for a, b in pairs if a.numel())
    assert pairs and worst <= tolerance, f"parameters differ by {worst}"


def _wrapped(model, make, **options):
    return _hvd().DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(), **options)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def _against_oracle(make=_sgd, tolerance=2e-6, **options):
    x, y = _data()
    alone, model = _model(), _model()
    _train(alone, make(alone.parameters()), x, y)
    _train(model, _wrapped(model, make, **options), _mine(x), _mine(y))
    _same(model, alone, tolerance)


# ---- the same numbers as one process ----


def check_optimizers_train_as_one_process_with_the_global_batch():
    _against_oracle()
    _against_oracle(lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-3))
    _against_oracle(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-3, foreach=False))
    _against_oracle(lambda parameters: torch.optim.RMSprop(parameters, lr=0.001, eps=1e-3))


def check_gradients_that_stay_are_zeroed_in_place():
    x, y = _data()
    alone, model = _model(), _model()
    _train(alone, _sgd(alone.parameters()), x, y)
    optimizer = _wrapped(model, _sgd)
    places = []
    _train(model, optimizer, _mine(x), _mine(y), each=lambda: places.append([id(p.grad) for p in model.parameters()]),
           set_to_none=False)
    _same(model, alone)
    assert len(set(map(tuple, places))) == 1


def check_groups_schedulers_and_unnamed_parameters():
    x, y = _data()
    alone, model = _model(), _model()

    def make(which, wrap):
        first, last = list(which[0].parameters()), list(which[2].parameters()) + list(which[4].parameters())
        optimizer = wrap(torch.optim.SGD([{"params": first, "lr": 0.2}, {"params": last}], lr=0.05))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return optimizer, scheduler
    plain, plain_scheduler = make(alone, lambda optimizer: optimizer)
    ours, our_scheduler = make(model, _hvd().DistributedOptimizer)
    _train(alone, plain, x, y, each=plain_scheduler.step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()"
        _train(model, ours, _mine(x), _mine(y), each=our_scheduler.step)
    _same(model, alone)
    assert ours.param_groups[0]["lr"] == pytest.approx(0.025)


def check_reduce_ops_scales_and_groups():
    x, y = _data()
    hvd = _hvd()
    _against_oracle(gradient_predivide_factor=4.0)
    _against_oracle(groups=2)
    _against_oracle(groups=100, gradient_predivide_factor=0.5)
    with pytest.warns(DeprecationWarning, match="`num_groups` has been replaced by `groups`"):
        _against_oracle(num_groups=3)
    alone, model = _model(), _model()
    parameters = list(model.parameters())
    optimizer = _wrapped(model, _sgd, groups=[[parameters[0], parameters[5]], [parameters[2]]])
    _train(alone, _sgd(alone.parameters()), x, y)
    _train(model, optimizer, _mine(x), _mine(y))
    _same(model, alone)
    alone, model = _model(), _model()
    _train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), x, y)
    _train(model, _wrapped(model, lambda p: torch.optim.SGD(p, lr=0.1 / hvd.size()), op=hvd.Sum), _mine(x), _mine(y))
    _same(model, alone)


def check_compression():
    hvd = _hvd()

    class Halved:
        """A compressor of one's own."""

        @staticmethod
        def compress(tensor):
            return tensor.double() / 2, tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return (tensor * 2).to(ctx)
    _against_oracle(compression=Halved)
    _against_oracle(compression=hvd.Compression.fp16, tolerance=2e-3)
    _against_oracle(compression=hvd.Compression.bf16, tolerance=2e-2)
    model = _model()
    optimizer = _wrapped(model, _sgd, compression=hvd.Compression.fp16)
    _train(model, optimizer, *_data(), steps=1)
    for parameter in model.parameters():
        gradient = parameter.grad
        assert gradient.dtype is torch.float32 and torch.equal(gradient.half().float(), gradient)


# ---- what users do between backward and step ----


def check_accumulation_over_backward_passes():
    x, y = _data()
    for zero in ({}, {"set_to_none": False}):
        alone, model = _model(), _model()
        plain = _sgd(alone.parameters())
        ours = _wrapped(model, _sgd, backward_passes_per_step=2)
        for _ in range(3):
            plain.zero_grad()
            (2 * _loss(alone, x, y)).backward()  # Horovod sums over the passes
            plain.step()
            ours.zero_grad(**zero)
            for half in (0, 1):
                _loss(model, _mine(x)[half::2], _mine(y)[half::2]).backward()
            ours.step()
        _same(model, alone)
    ours.set_backward_passes_per_step(1)
    _loss(model, x, y).backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times before call to step"):
        _loss(model, x, y).backward()
    with pytest.raises(AssertionError, match="optimizer.zero_grad.. was called after loss.backward"):
        ours.zero_grad()
    ours.step()
    ours.zero_grad()


def check_a_step_before_all_passes_were_made():
    x, y = _data()
    alone, model = _model(), _model()
    _train(alone, _sgd(alone.parameters()), x, y)
    _train(model, _wrapped(model, _sgd, backward_passes_per_step=3), _mine(x), _mine(y))
    _same(model, alone)


def check_clipping_and_changed_gradients():
    x, y = _data()
    alone, model = _model(), _model()
    plain, ours = _sgd(alone.parameters()), _wrapped(model, _sgd)
    for replaced in (False, True, False):
        plain.zero_grad()
        _loss(alone, x, y).backward()
        ours.zero_grad()
        _loss(model, _mine(x), _mine(y)).backward()
        ours.synchronize()
        for which in (alone, model):
            torch.nn.utils.clip_grad_norm_(which.parameters(), 0.1)
            if replaced:
                for parameter in which.parameters():
                    parameter.grad = parameter.grad * 3 + 0.01
        plain.step()
        with ours.skip_synchronize(), warnings.catch_warnings():
            warnings.simplefilter("error")
            ours.step()
        _same(model, alone)
    for change in range(3):  # old scripts give a gradient other memory, at any moment
        for which, optimizer, (a, b) in ((alone, plain, (x, y)), (model, ours, (_mine(x), _mine(y)))):
            optimizer.zero_grad(set_to_none=False)
            if change == 0:
                which[0].weight.grad.data = torch.zeros(200, 6)
            _loss(which, a, b).backward()
            if change == 1 and which is model and _hvd().size() > 1:
                which[2].weight.grad.data = torch.ones(300, 200)  # too late: it is being reduced
            if which is model:
                optimizer.synchronize()
            if change == 2:
                which[4].weight.grad.data = which[4].weight.grad * 2
        plain.step()
        with ours.skip_synchronize():
            ours.step()
        _same(model, alone)
    ours.zero_grad()
    _loss(model, _mine(x), _mine(y)).backward()
    ours.synchronize()
    with pytest.warns(UserWarning, match="called without optimizer.skip_synchronize"):
        ours.step()


def check_a_gradient_that_was_kept_stays_as_it_was():
    x, y = _data()
    model = _model()
    ours = _wrapped(model, _sgd)
    _train(model, ours, _mine(x), _mine(y), steps=1)
    kept = [parameter.grad for parameter in model.parameters()]
    copies = [gradient.clone() for gradient in kept]
    addresses = [gradient.data_ptr() for gradient in kept]
    _train(model, ours, _mine(x), _mine(y), steps=2)
    assert all(torch.equal(one, other) for one, other in zip(kept, copies))
    assert addresses == [parameter.grad.data_ptr() for parameter in model.parameters()]
    kept = [parameter.grad for parameter in model.parameters()]  # of a step that does not reach all parameters, too
    copies = [gradient.clone() for gradient in kept]
    ours.zero_grad()
    model[0](_mine(x)).mean().backward()
    ours.step()
    assert all(torch.equal(one, other) for one, other in zip(kept, copies))
    del kept
    _train(model, ours, _mine(x), _mine(y), steps=2)
    assert addresses == [parameter.grad.data_ptr() for parameter in model.parameters()]  # nobody keeps these
    before = [id(parameter.grad) for parameter in model.parameters()]
    _train(model, ours, _mine(x), _mine(y), steps=2)
    if hasattr(torch._C, "_storage_Use_Count"):
        assert before == [id(parameter.grad) for parameter in model.parameters()]  # nothing was made


def check_views_of_a_gradient_stay_as_they_were():
    x, y = _data()
    views = (lambda g: g.data, lambda g: g.detach(), lambda g: g.view(-1), lambda g: g[:1], lambda g: g.numpy())
    _hvd()
    reducer = sys.modules["hvd.torch._reducer"]
    known = reducer._uses_of
    for reached, uses_of in ((slice(0, 5), known), (slice(0, 1), known), (slice(0, 5), None)):  # of the step that follows
        reducer._uses_of = uses_of  # None: as in a build without CUDA
        alone, model = _model(), _model()
        plain, ours = _sgd(alone.parameters()), _wrapped(model, _sgd)
        _train(alone, plain, x, y, steps=1)
        _train(model, ours, _mine(x), _mine(y), steps=1)
        kept = [view(parameter.grad) for view, parameter in zip(views, model.parameters())]
        copies = [torch.as_tensor(value).clone() for value in kept]
        for which, optimizer, a in ((alone, plain, x), (model, ours, _mine(x))):
            optimizer.zero_grad()
            which[reached](a).pow(2).mean().backward()
            if which is alone:  # as Horovod gives them to parameters that no rank has reached
                for parameter in alone.parameters():
                    parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            optimizer.step()
        _train(alone, plain, x, y, steps=2)
        _train(model, ours, _mine(x), _mine(y), steps=2)
        assert all(torch.equal(torch.as_tensor(value), copy) for value, copy in zip(kept, copies))
        _same(model, alone)
    reducer._uses_of = known


def check_grad_scaler():
    x, y = _data()
    alone, model = _model(), _model()
    plain, ours = _sgd(alone.parameters()), _wrapped(model, _sgd)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2) for _ in range(2)]
    for step in range(5):
        for which, optimizer, scaler, (a, b) in ((alone, plain, scalers[0], (x, y)),
                                                 (model, ours, scalers[1], (_mine(x), _mine(y)))):
            optimizer.zero_grad()
            loss = _loss(which, a, b)
            if step == 2 and (which is alone or _hvd().rank() == 1):
                loss = loss * float("inf")  # on one rank: all must skip
            scaler.scale(loss).backward()
            if which is model:
                optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(which.parameters(), 1.0)
            if which is model:
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
    _same(model, alone)
    assert scalers[0].get_scale() == scalers[1].get_scale() == 64.0 * 2 * 0.5 * 2


def check_closures():
    x, y = _data()

    def train(model, optimizer, a, b):
        def closure():
            optimizer.zero_grad()
            loss = _loss(model, a, b)
            loss.backward()
            return loss
        return [float(optimizer.step(closure)) for _ in range(4)]
    for make in (_sgd, lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5, line_search_fn="strong_wolfe")):
        alone, model = _model(), _model()
        losses = train(alone, make(alone.parameters()), x, y)
        ours = train(model, _wrapped(model, make), _mine(x), _mine(y))
        _same(model, alone, 1e-4)
        if make is not _sgd:
            assert ours == pytest.approx(losses, abs=1e-4)


def check_graphs_that_are_kept():
    x, y = _data()
    alone, model = _model(), _model()
    plain, ours = _sgd(alone.parameters()), _wrapped(model, _sgd, backward_passes_per_step=2)
    for _ in range(2):
        for which, optimizer, (a, b) in ((alone, plain, (x, y)), (model, ours, (_mine(x), _mine(y)))):
            optimizer.zero_grad()
            loss = _loss(which, a, b)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
    _same(model, alone)
    # A penalty on gradients: torch.autograd.grad fires no hook, and differentiating through p.grad works.
    penalty = _model()
    ours = _wrapped(penalty, _sgd, backward_passes_per_step=2)
    _loss(penalty, _mine(x), _mine(y)).backward(create_graph=True)
    assert all(p.grad.requires_grad for p in penalty.parameters())
    sum((p.grad ** 2).sum() for p in penalty.parameters()).backward()
    ours.step()
    assert not any(p.grad.requires_grad for p in penalty.parameters())
    own = _model()
    parts = []
    for rank in range(_hvd().size()):
        own.zero_grad()
        _loss(own, x[rank::_hvd().size()], y[rank::_hvd().size()]).backward(create_graph=True)
        sum((p.grad ** 2).sum() for p in own.parameters()).backward()
        parts.append([p.grad.detach().clone() for p in own.parameters()])
    for parameter, *each in zip(penalty.parameters(), *parts):
        assert torch.allclose(parameter.grad, sum(each) / len(each), atol=1e-5)


# ---- parameters of all kinds ----


class _Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.branches = torch.nn.ModuleList([torch.nn.Linear(6, 2) for _ in range(12)])

    def forward(self, x, which):
        return sum(self.branches[at](x) for at in which)


def check_ranks_that_use_other_parameters_or_another_order():
    hvd = _hvd()
    x, y = _data()
    alone, model = _Branches(), _Branches()
    plain, ours = torch.optim.SGD(alone.parameters(), lr=0.1), _wrapped(model, lambda p: torch.optim.SGD(p, lr=0.1))
    used = [[0, 5, 7, 1], [1, 7, 2, 11]] + [[3]] * hvd.size()
    for step in range(4):
        plain.zero_grad(set_to_none=step < 2)
        sum(((alone(x[r::hvd.size()], used[r]) - y[r::hvd.size()]) ** 2).mean() / hvd.size()
            for r in range(hvd.size())).backward()
        plain.step()
        ours.zero_grad(set_to_none=step < 2)
        ((model(_mine(x), used[hvd.rank()]) - _mine(y)) ** 2).mean().backward()
        ours.step()
        _same(model, alone)
    assert bool((model.branches[4].weight.grad == 0).all())  # nobody used it: Horovod gives zeroes


def check_parameters_frozen_thawed_and_added():
    x, y = _data()
    hvd = _hvd()
    alone, model = _model(), _model()
    alone[0].weight.requires_grad_(False)
    model[0].weight.requires_grad_(False)

    def make(which, wrap):
        return wrap(_sgd(list(which[0].parameters()) + list(which[2].parameters())))
    plain = make(alone, lambda optimizer: optimizer)
    ours = make(model, lambda optimizer: hvd.DistributedOptimizer(optimizer, model.named_parameters()))
    for step in range(8):
        if step == 2:
            for which, optimizer in ((alone, plain), (model, ours)):
                which[2].bias.requires_grad_(False)
                optimizer.add_param_group({"params": which[4].parameters(), "lr": 0.02})
        if step == 4:
            alone[0].weight.requires_grad_(True)
            model[0].weight.requires_grad_(True)
        if step == 6:
            alone[2].bias.requires_grad_(True)
            model[2].bias.requires_grad_(True)
        _train(alone, plain, x, y, steps=1)
        _train(model, ours, _mine(x), _mine(y), steps=1)
        _same(model, alone)
        if 2 <= step < 6:
            assert model[2].bias.grad is None


def check_parameters_that_are_replaced():
    """As a growing set of points is trained, or a model gets another head: by another tensor in a group's list."""
    hvd = _hvd()
    x, y = _data()
    for named in (True, False):
        alone, model = _model(), _model()
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        ours = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                        model.named_parameters() if named else None)
        for width in (200, 150, 170, 170):
            for which, optimizer in ((alone, plain), (model, ours)):
                torch.manual_seed(width)
                which[0], which[2] = torch.nn.Linear(6, width), torch.nn.Linear(width, 300)
                optimizer.param_groups[0]["params"][:4] = [*which[0].parameters(), *which[2].parameters()]
            _train(alone, plain, x, y, steps=2)
            _train(model, ours, _mine(x), _mine(y), steps=2)
            _same(model, alone)
        assert ours._hvd_reducer._slots.keys() == set(model.parameters())
        assert len(ours._parameter_names) == len(alone.state_dict()) + 4 * named


def check_groups_that_hold_master_copies():
    """As apex's O2: from the first step on, groups hold copies of more bits, and autograd goes on with the model's own."""
    x, y = _data()
    alone, model = _model(), _model()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    ours = _wrapped(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    plain.synchronize, plain.skip_synchronize = lambda: None, contextlib.nullcontext

    def train(which, optimizer, mine):
        copies = [parameter.detach().double().requires_grad_() for parameter in which.parameters()]
        optimizer.param_groups[0]["params"] = copies
        zeroes = 0
        for _ in range(5):
            which.zero_grad()
            _loss(which, *mine).backward()
            optimizer.synchronize()
            for copy, parameter in zip(copies, which.parameters()):
                zeroes += copy.grad is not None
                copy.grad = parameter.grad.double()
            with optimizer.skip_synchronize():
                optimizer.step()
            for copy, parameter in zip(copies, which.parameters()):
                parameter.data.copy_(copy.data)
                copy.grad = None
        return zeroes
    train(alone, plain, (x, y))
    zeroes = train(model, ours, (_mine(x), _mine(y)))
    _same(model, alone)
    assert not zeroes, "a copy, which autograd never reaches, was given a gradient"
    ours.param_groups[0]["params"] = list(model.parameters())  # the copies have gone
    _train(model, ours, _mine(x), _mine(y), steps=1)
    assert not ours._hvd_copies and ours._hvd_reducer._slots.keys() == set(model.parameters())


def check_parameters_of_more_bits_that_replace_others():
    """Autograd reaches these, so they are no copies, used at once or later."""
    hvd = _hvd()
    for unused in (0, 1):
        old = torch.nn.Parameter(torch.ones(3))
        ours = hvd.DistributedOptimizer(torch.optim.SGD([old], lr=1.0))
        new = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        ours.param_groups[0]["params"] = [new]
        for step in range(3):
            ours.zero_grad()
            if step >= unused:
                ((hvd.rank() + 1) * new).sum().backward()
            ours.step()
        assert new[0].item() == 1 - (3 - unused) * (hvd.size() + 1) / 2
        assert set(ours._hvd_reducer._slots) == {new}


def check_shared_and_strangely_laid_out_parameters():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            self.one = torch.nn.Linear(4, 4)
            self.two = torch.nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.turned = torch.nn.Parameter(torch.randn(5, 4).t())
            self.scalar = torch.nn.Parameter(torch.tensor(0.5))
            self.empty = torch.nn.Parameter(torch.zeros(0, 3))
            self.expanded = torch.nn.Parameter(torch.randn(1, 5).expand(1, 5))

        def forward(self, x):
            hidden = self.conv(x.to(memory_format=torch.channels_last)).mean((2, 3))
            return (self.two(self.one(hidden)) @ self.turned) * self.scalar * self.expanded
    torch.manual_seed(4)
    x = torch.randn(12, 3, 5, 5)
    alone, model = Net(), Net()
    plain, ours = torch.optim.SGD(alone.parameters(), lr=0.1), _wrapped(model, lambda p: torch.optim.SGD(p, lr=0.1))
    for _ in range(4):
        plain.zero_grad()
        (alone(x) ** 2).mean().backward()
        plain.step()
        ours.zero_grad()
        (model(_mine(x)) ** 2).mean().backward()
        ours.step()
        _same_tensors = [(a.grad, b.grad) for a, b in zip(alone.parameters(), model.parameters()) if a.numel()]
        for a, b in _same_tensors:
            assert torch.allclose(a, b, atol=1e-6) and a.stride() == b.stride()
    assert model.conv.weight.grad.is_contiguous(memory_format=torch.channels_last)


def check_element_types_and_a_model_that_changes_its_own():
    torch.manual_seed(6)
    values = {dtype: torch.randn(7, 3, dtype=dtype) for dtype in
              (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)}
    parameters = [torch.nn.Parameter(torch.zeros_like(value)) for value in values.values()]
    ours = _hvd().DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    scale = _hvd().rank() + 1.0
    sum((p * v.conj() * scale).sum().real.double() for p, v in zip(parameters, values.values())).backward()
    ours.synchronize()
    mean = sum(range(1, _hvd().size() + 1)) / _hvd().size()
    for parameter, value in zip(parameters, values.values()):
        assert parameter.grad.dtype is value.dtype and torch.allclose(parameter.grad, value * mean, rtol=1e-2)
    x, y = _data()
    alone, model = _model(), _model()
    plain, ours = torch.optim.SGD(alone.parameters(), lr=0.1), _wrapped(model, lambda p: torch.optim.SGD(p, lr=0.1))
    for convert in (lambda m: m, lambda m: m.double()):
        dtype = convert(alone)[0].weight.dtype
        convert(model)
        _train(alone, plain, x.to(dtype), y.to(dtype), steps=2)
        _train(model, ours, _mine(x).to(dtype), _mine(y).to(dtype), steps=2)
        _same(model, alone)


class _Words(torch.nn.Module):
    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(5)
        self.words = torch.nn.Embedding(rows, 8, sparse=True)

    def forward(self, index):
        return (self.words(index) ** 2).sum(-1).mean()


def check_sparse_gradients():
    hvd = _hvd()
    index = torch.tensor([[1, 2], [2, 3], [3, 9], [0, 0], [5, 5], [1, 6]])
    for rows, dense in ((10, False), (10, True), (9000, False), (9000, True)):  # shares an op, or has one of its own
        for make in (lambda p: torch.optim.SGD(p, lr=0.5), lambda p: torch.optim.SparseAdam(list(p), lr=0.1)):
            alone, model = _Words(rows), _Words(rows)
            plain, ours = make(alone.parameters()), _wrapped(model, make, sparse_as_dense=dense)
            for step in range(3):
                lacking = step == 2 and hvd.rank() != 1
                plain.zero_grad()
                ours.zero_grad()
                if step == 2:
                    (alone(index[1::hvd.size()]) / hvd.size()).backward()
                else:
                    alone(index).backward()
                if not lacking:
                    model(_mine(index)).backward()
                plain.step()
                ours.step()
                assert model.words.weight.grad.is_sparse
                _same(model, alone)


def check_a_rank_that_knows_nothing_of_a_sparse_gradient_is_told():
    hvd = _hvd()
    model = _Words(9000)
    ours = _wrapped(model, lambda p: torch.optim.SGD(p, lr=0.5))
    if hvd.rank() == 0:
        model(torch.tensor([1])).backward()
    with pytest.raises(hvd.HorovodInternalError, match="words.weight"):
        ours.step()


# ---- the object ----


def check_the_class_and_what_it_shares():
    hvd = _hvd()
    model = _model()
    inner = _sgd(model.parameters())
    calls = []
    inner.state[model[0].weight]["momentum_buffer"] = torch.ones_like(model[0].weight)
    ours = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert type(ours).__name__ == "SGD" and isinstance(ours, torch.optim.SGD) and type(ours) is not torch.optim.SGD
    assert ours.param_groups is inner.param_groups and ours.state is inner.state and ours.defaults == inner.defaults
    ours.register_step_post_hook(lambda *_: calls.append("post"))
    ours.register_step_pre_hook(lambda *_: calls.append(model[0].weight.grad.clone()))
    x, y = _data()
    _loss(model, _mine(x), _mine(y)).backward()
    ours.step()
    assert len(calls) == 2 and calls[1] == "post"
    assert hvd.allgather_object(float(calls[0].sum())) == [float(calls[0].sum())] * hvd.size()  # reduced ones
    saved = ours.state_dict()
    assert saved["state"] and set(saved) == {"state", "param_groups"}
    _loss(model, x, y).backward()
    ours.synchronize()
    ours.load_state_dict(saved)
    assert len(ours.state) == len(saved["state"])
    ours.zero_grad()
    torch.optim.lr_scheduler.LambdaLR(inner, lambda _: 0.25)  # which sets lr at once
    assert ours.param_groups[0]["lr"] == pytest.approx(0.025)


def check_one_gradient_is_reduced_by_itself():
    hvd = _hvd()
    rank, size = hvd.rank(), hvd.size()
    dense, table = torch.nn.Linear(3, 1), torch.nn.Embedding(4, 2, sparse=True)
    named = [*dense.named_parameters(), ("table", table.weight)]
    for options in ({}, {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named, **options)
        whole = sum(range(1, size + 1)) / (1 if options.get("op") == hvd.Sum else size)
        dense.weight.grad, dense.bias.grad = torch.full((1, 3), rank + 1.0), None
        handle, context = optimizer._allreduce_grad_async(dense.weight)
        reduced = options.get("compression", hvd.Compression.none).decompress(hvd.synchronize(handle), context)
        assert reduced.dtype == torch.float32 and torch.equal(reduced, torch.full((1, 3), whole))
        handle, _ = optimizer._allreduce_grad_async(dense.bias)
        hvd.synchronize(handle)
        assert torch.equal(dense.bias.grad, torch.zeros(1))
        table.weight.grad = torch.sparse_coo_tensor([[rank]], torch.full((1, 2), rank + 1.0), (4, 2))
        finish, _ = optimizer._allreduce_grad_async(table.weight)
        rows = finish().to_dense().sum(dim=0)
        assert torch.equal(rows, torch.full((2,), whole))
        optimizer.zero_grad()


def check_arguments_that_are_refused():
    hvd = _hvd()
    model = _model()
    named = list(model.named_parameters())

    def made(**options):
        return hvd.DistributedOptimizer(_sgd(model.parameters()), **{"named_parameters": named, **options})
    for match, options in (
            ("should be a sequence of tuples", {"named_parameters": list(model.parameters())}),
            ("must be unique. Found duplicates: 0.weight", {"named_parameters": named + [("0.weight", named[1][1])]}),
            ("one or more model parameters were not named. Python object ids: " + str(id(named[0][1])),
             {"named_parameters": named[1:]}),
            ("groups should be a non-negative integer or a list of list", {"groups": 0}),
            ("groups should be a non-negative integer or a list of list", {"groups": "2"}),
            ("groups must consist of torch.Tensor", {"groups": [["0.weight"]]}),
            ("A parameter can only appear once in groups", {"groups": [[named[0][1]], [named[0][1]]]}),
            ("gradient_predivide_factor not supported with op != Average",
             {"gradient_predivide_factor": 2.0, "op": hvd.Sum}),
            ("backward_passes_per_step must be > 0", {"backward_passes_per_step": 0})):
        with pytest.raises(ValueError, match=match):
            made(**options)
    with pytest.raises(NotImplementedError, match="Adasum does not support non-global process sets"):
        made(op=hvd.Adasum, process_set=hvd.add_process_set([0]))
    for op in (hvd.Average, hvd.Adasum):
        with pytest.raises(ValueError, match="distributed already"):
            hvd.DistributedOptimizer(made(op=op))


def check_an_optimizer_that_was_replaced_reduces_no_more():
    x, y = _data()
    alone, model = _model(), _model()
    for _ in range(3):  # as a notebook's cell that is run again
        optimizer = _wrapped(model, _sgd)
        _loss(model, _mine(x), _mine(y)).backward()
        optimizer.synchronize()
        optimizer.zero_grad()
    _train(alone, _sgd(alone.parameters()), x, y)
    _train(model, optimizer, _mine(x), _mine(y))
    _same(model, alone)
    shared = _shared_mappings()
    for _ in range(20):
        optimizer = _wrapped(model, _sgd)
        _train(model, optimizer, _mine(x), _mine(y), steps=1)
    # The other rank's are mapped while they are used, and unmapped in a call after that rank has given them back.
    assert _shared_mappings() < shared + 10, "buckets of optimizers that are gone stay"


def _shared_mappings():
    return pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:")


def check_a_failed_step_can_be_followed_by_others_in_a_new_session():
    hvd = _hvd()
    x, y = _data()
    alone, model = _model(), _model()
    ours = _wrapped(model, _sgd)
    _train(model, ours, _mine(x), _mine(y), steps=1)
    saved = [parameter.detach().clone() for parameter in model.parameters()]
    momenta = [ours.state[parameter]["momentum_buffer"].clone() for parameter in model.parameters()]
    ours.zero_grad()
    if hvd.rank() == 0:
        with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
            _loss(model, _mine(x), _mine(y)).backward()
            ours.step()
    hvd.shutdown()
    hvd.init()
    ours.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(saved, model.parameters()))
    assert all(torch.equal(a, ours.state[p]["momentum_buffer"]) for a, p in zip(momenta, model.parameters()))
    _train(alone, _sgd(alone.parameters()), x, y, steps=4)
    _train(model, ours, _mine(x), _mine(y), steps=3)
    _same(model, alone)


def check_two_optimizers_take_turns():
    x, y = _data()
    pairs = [(_model(seed), _model(seed)) for seed in (1, 2)]
    plain = [_sgd(alone.parameters()) for alone, _ in pairs]
    ours = [_hvd().DistributedOptimizer(_sgd(model.parameters())) for _, model in pairs]
    for _ in range(3):
        for (alone, model), one, other in zip(pairs, plain, ours):
            _train(alone, one, x, y, steps=1)
            _train(model, other, _mine(x), _mine(y), steps=1)
    for alone, model in pairs:
        _same(model, alone)


def check_ranks_outside_the_process_set_train_alone():
    hvd = _hvd()
    x, y = _data()
    pair = hvd.add_process_set([0])
    whole = _model()
    _train(whole, _sgd(whole.parameters()), x, y)
    model = _model()
    _train(model, _wrapped(model, _sgd, process_set=pair), x, y)
    _same(model, whole, 1e-6)
    hvd.barrier()  # a rank that leaves ends the others' ops, whatever their set


def check_shutdown_between_steps():
    hvd = _hvd()
    x, y = _data()
    alone, model = _model(), _model()
    _train(alone, _sgd(alone.parameters()), x, y)
    ours = _wrapped(model, _sgd)
    mine = _mine(x), _mine(y)
    for _ in range(3):
        _train(model, ours, *mine, steps=2)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        hvd.shutdown()
        assert all(torch.equal(parameter.grad, gradient) for parameter, gradient in zip(model.parameters(), gradients))
        hvd.init()
    _same(model, alone)


def check_a_rank_that_has_joined_counts_as_zeroes():
    hvd = _hvd()
    x, y = _data()
    alone, model = _model(), _model()
    plain, ours = _sgd(alone.parameters()), _wrapped(model, _sgd)
    for step in range(3):
        plain.zero_grad()
        rows = slice(None) if step == 0 else slice(0, None, hvd.size())
        (_loss(alone, x[rows], y[rows]) / (1 if step == 0 else hvd.size())).backward()
        plain.step()
        if step == 0 or hvd.rank() == 0:
            _train(model, ours, _mine(x), _mine(y), steps=1)
    hvd.join()
    if hvd.rank() == 0:
        _same(model, alone)


def _mapping_of(address):
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line
    return ""


def check_gradients_lie_in_memory_that_the_engine_shares():
    x, y = _data()
    model = _model()
    optimizer = _wrapped(model, _sgd)
    _train(model, optimizer, _mine(x), _mine(y), steps=2)
    for parameter in model.parameters():
        assert "memfd:" in _mapping_of(parameter.grad.data_ptr())
    _hvd().shutdown()
    for parameter in model.parameters():
        assert "memfd:" not in _mapping_of(parameter.grad.data_ptr())


def check_without_shared_memory_it_is_said_once():
    import logging
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("hvd").addHandler(handler)
    x, y = _data()
    alone, model = _model(), _model()
    _train(alone, _sgd(alone.parameters()), x, y)
    ours = _wrapped(model, _sgd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    places = sys.modules["hvd.torch._buckets"]
    adopt = places._native.lib.hvd_adopt

    def without_descriptors(*arguments):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            return adopt(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    places._native.lib.hvd_adopt = without_descriptors
    try:
        _train(model, ours, _mine(x), _mine(y))
        again = _model()
        _train(again, _wrapped(again, _sgd), _mine(x), _mine(y))
    finally:
        places._native.lib.hvd_adopt = adopt
        logging.getLogger("hvd").removeHandler(handler)
    _same(model, alone)
    assert "memfd:" not in _mapping_of(model[0].weight.grad.data_ptr())
    assert len([line for line in lines if "gradients stay in ordinary memory" in line]) == 1, lines


# ---- Adasum ----


def _adasum(a, b):
    dot, aa, bb = float((a * b).sum()), float((a * a).sum()), float((b * b).sum())
    return a * (1 - dot / (2 * aa) if aa else 1) + b * (1 - dot / (2 * bb) if bb else 1)


def check_adasum_combines_steps():
    hvd = _hvd()
    if hvd.size() != 2:
        return
    x, y = _data()
    model, alone = _model(), _model()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    ours = _wrapped(model, make, op=hvd.Adasum)
    for step in range(3):
        starts = [parameter.detach().clone() for parameter in alone.parameters()]
        changes = []
        for rank in range(2):
            alone.zero_grad()
            _loss(alone, x[rank::2], y[rank::2]).backward()
            changes.append([-0.1 * parameter.grad for parameter in alone.parameters()])
        with torch.no_grad():
            for parameter, start, one, other in zip(alone.parameters(), starts, *changes):
                parameter.copy_(start + _adasum(one, other))
        ours.zero_grad()
        _loss(model, _mine(x), _mine(y)).backward()
        if step == 0:
            with pytest.raises(AssertionError, match="zero_grad"):
                ours.zero_grad()
            with pytest.raises(AssertionError, match="Skipping synchronization is not supported"):
                with ours.skip_synchronize():
                    pass
        ours.synchronize()
        ours.step()
        _same(model, alone, 1e-5)


CHECKS = {name: function for name, function in list(globals().items()) if name.startswith("check_")}
ON_THREE = ("check_optimizers_train_as_one_process_with_the_global_batch", "check_sparse_gradients",
            "check_ranks_that_use_other_parameters_or_another_order", "check_a_rank_that_has_joined_counts_as_zeroes")


def run_checks(names):
    """Check -> "" or why it failed, on this rank. A check that fails here fails on the others, as the session ends."""
    torch.set_num_threads(1)
    outcomes = {}
    for name in names:
        _hvd().init()
        try:
            CHECKS[name]()
            outcomes[name] = ""
        except BaseException:  # pylint: disable=broad-except
            outcomes[name] = traceback.format_exc()
        _hvd().shutdown()
    return outcomes


_outcomes = {}


def _outcome(np, names, name):
    if np not in _outcomes:
        with tempfile.TemporaryDirectory(prefix="hvt-", ignore_cleanup_errors=True) as folder:
            _outcomes[np] = Ranks(pathlib.Path(folder))(np, run_checks, names)
    failures = [f"rank {rank}:\n{outcome[name]}" for rank, outcome in enumerate(_outcomes[np]) if outcome[name]]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", CHECKS)
def test_on_two_ranks(name):
    _outcome(2, list(CHECKS), name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ON_THREE)
def test_on_three_ranks(name):
    _outcome(3, list(ON_THREE), name)


@pytest.mark.parametrize("name", ["check_the_class_and_what_it_shares", "check_clipping_and_changed_gradients",
                                  "check_closures", "check_reduce_ops_scales_and_groups"])
def test_alone(name):
    _outcome(1, ["check_the_class_and_what_it_shares", "check_clipping_and_changed_gradients", "check_closures",
                 "check_reduce_ops_scales_and_groups"], name)


# ---- who shares an op ----


def test_who_shares_an_op_follows_from_names_alone():
    import random

    from hvd.torch import _buckets
    members = [(f"layer{i}.weight", (i % 7) * 30_000 + 4, "float32" if i % 3 else "float16", None if i % 5 else i % 2)
               for i in range(300)]
    composed = _buckets.compose(members)
    for seed in range(5):
        shuffled = list(members)
        random.Random(seed).shuffle(shuffled)
        assert _buckets.compose(shuffled) == composed
    by_name = {member[0]: member for member in members}
    assert sorted(name for names in composed for name in names) == sorted(by_name)
    for names in composed:
        assert len({by_name[name][2:] for name in names}) == 1, "types and groups do not mix"
        ungrouped = by_name[names[0]][3] is None
        if ungrouped and len(names) > 1:
            assert all(by_name[name][1] < _buckets.LARGE_BYTES for name in names)
            assert sum(_buckets.padded(by_name[name][1]) for name in names) <= _buckets.JOINT_BYTES
    assert len([names for names in composed if by_name[names[0]][3] is not None]) == 4
    assert all(len(names) == 1 for names in _buckets.compose(members[1:4], join=False))


def test_layers_are_sorted_as_people_count():
    from hvd.torch import _buckets
    names = ["layer10.w", "layer2.w", "layer2.b", "a"]
    assert sorted(names, key=_buckets.natural_key) == ["a", "layer2.b", "layer2.w", "layer10.w"]
