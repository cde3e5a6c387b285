# SPDX-License-Identifier: Apache-2.0
"""hvd.torch against a NumPy oracle: every op, variant and element type, with 1 to 4 ranks; many checks in each launch."""
import gc
import threading

import numpy as np
import pytest

DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64",
          "float8_e4m3fn", "float8_e5m2")


def dtypes():
    """Those of hvd that this torch has."""
    import torch
    return [getattr(torch, name) for name in DTYPES if hasattr(torch, name)]


def given(rank, shape, dtype, seed=0):
    """What a rank brings: small whole numbers, exact in every type also when four are added or multiplied."""
    import torch
    top = 2 if dtype is torch.bool else 3
    return torch.from_numpy(np.random.default_rng([seed, rank]).integers(0, top, shape)).to(dtype)


def plain(tensor):
    """A float64 NumPy array of a tensor's values."""
    import torch
    return tensor.detach().to(torch.float64).numpy()


def reduced(hvd, op, arrays, dtype):
    """The oracle of a reduction."""
    stacked = np.stack(arrays)
    if op == hvd.Average:
        mean = stacked.sum(0) / len(arrays)
        return mean if dtype.is_floating_point else np.trunc(mean)
    return {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](stacked, axis=0)


def assert_same(tensor, expected, dtype):
    """Equal to the oracle, up to what rounding to the type does to it."""
    import torch
    assert tensor.dtype is dtype
    assert tuple(tensor.shape) == np.shape(expected)
    loss = torch.finfo(dtype).eps if dtype.is_floating_point else 0
    np.testing.assert_allclose(plain(tensor), expected, rtol=loss, atol=0)


def members_and_set(hvd):
    """The sets to try: all ranks, and the first and the last where that is another."""
    everybody = (list(range(hvd.size())), hvd.global_process_set)
    if hvd.size() < 3:
        return [everybody]
    pair = hvd.add_process_set([0, hvd.size() - 1])
    return [everybody, (pair.ranks, pair)]


# ---- values ----


def check_reductions(hvd, members, process_set):
    import torch
    for dtype in dtypes():
        ops = (hvd.Min, hvd.Max) if dtype is torch.bool else (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
        for op in ops:
            mine = given(hvd.rank(), (3, 2), dtype)
            expected = reduced(hvd, op, [plain(given(rank, (3, 2), dtype)) for rank in members], dtype)
            how = {"op": op, "process_set": process_set}
            before = plain(mine)
            pending = hvd.allreduce_async(mine, **how)
            assert_same(hvd.allreduce(mine, **how), expected, dtype)
            assert_same(hvd.synchronize(pending), expected, dtype)
            np.testing.assert_array_equal(plain(mine), before)
            for result in hvd.grouped_allreduce([mine, mine.clone()], name="group", **how):
                assert_same(result, expected, dtype)
            group = [mine.clone(), mine.clone()]
            results = hvd.grouped_allreduce_(group, **how)
            assert isinstance(results, tuple) and all(a is b for a, b in zip(results, group))
            assert hvd.allreduce_(mine, name="in place", **how) is mine
            for result in (mine, *group):
                assert_same(result, expected, dtype)
            mine = given(hvd.rank(), (3, 2), dtype)
            assert hvd.synchronize(hvd.allreduce_async_(mine, **how)) is mine
            assert_same(mine, expected, dtype)


def check_shapes(hvd, members, process_set):
    import torch
    for shape in ((), (1,), (0,), (0, 3), (2, 0, 2), (1, 2, 1, 2, 1, 2, 1, 2), (70_001,), (1, 2, 1, 2, 1, 2, 1, 2, 3),
                  (2,) * 10):
        mine = given(hvd.rank(), shape, torch.float32)
        expected = reduced(hvd, hvd.Sum, [plain(given(rank, shape, torch.float32)) for rank in members], mine.dtype)
        for _ in range(3):  # the first of a name takes another way than the next
            assert_same(hvd.allreduce(mine, op=hvd.Sum, name=f"shape {shape}", process_set=process_set), expected,
                        mine.dtype)
        assert_same(hvd.broadcast(mine, members[-1], process_set=process_set),
                    plain(given(members[-1], shape, torch.float32)), mine.dtype)
    check_more_dimensions_than_the_library_has(hvd, members, process_set)


def check_more_dimensions_than_the_library_has(hvd, members, process_set):
    import torch
    rest, count, place = (1, 2, 1, 1, 2, 1, 1, 3, 2), len(members), members.index(hvd.rank())
    mine = given(hvd.rank(), (2 * count, *rest), torch.float32)
    every = [plain(given(rank, (2 * count, *rest), torch.float32)) for rank in members]
    total, how = sum(every), {"process_set": process_set}
    for result in (hvd.allreduce_(mine.clone(), op=hvd.Sum, **how), *hvd.grouped_allreduce([mine], op=hvd.Sum, **how)):
        assert_same(result, total, mine.dtype)
    assert_same(hvd.broadcast_(mine.clone(), members[-1], **how), every[-1], mine.dtype)
    for result in (hvd.allgather(mine[:place], **how), *hvd.grouped_allgather([mine[:place]], **how)):
        assert_same(result, np.concatenate([rows[:at] for at, rows in enumerate(every)]), mine.dtype)
    for result in (hvd.reducescatter(mine, op=hvd.Sum, **how), *hvd.grouped_reducescatter([mine], op=hvd.Sum, **how)):
        assert_same(result, np.array_split(total, count)[place], mine.dtype)
    assert_same(hvd.alltoall(mine, **how), np.concatenate([rows[2 * place:2 * place + 2] for rows in every]), mine.dtype)
    if count > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.allreduce(torch.ones(*rest[:-1], 2 + (place == 0)), name="other", **how)


def check_scales(hvd, members, process_set):
    import torch
    total = sum(rank + 1 for rank in members)
    for dtype in (torch.int32, torch.float32, torch.float64):
        mine = torch.full((4,), hvd.rank() + 1).to(dtype)
        scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5, process_set=process_set)
        assert_same(scaled, np.full(4, total), dtype)
        scaled = hvd.grouped_allreduce([mine], op=hvd.Sum, prescale_factor=3.0, process_set=process_set)[0]
        assert_same(scaled, np.full(4, 3 * total), dtype)
        wide = mine.repeat(len(members))
        scaled = hvd.reducescatter(wide, op=hvd.Sum, postscale_factor=2.0, process_set=process_set)
        assert_same(scaled, np.full(4, 2 * total), dtype)
    scale = torch.ones(())
    for factor in (1.0, 0.5, 2.0):  # one tensor, whose value changes
        scaled = hvd.allreduce(torch.ones(4), op=hvd.Sum, postscale_factor=scale.fill_(factor), process_set=process_set)
        assert_same(scaled, np.full(4, factor * len(members)), torch.float32)
    half = hvd.allreduce(torch.full((4,), 3, dtype=torch.int32), op=hvd.Max, postscale_factor=0.5,
                         process_set=process_set)
    assert_same(half, np.full(4, 1), torch.int32)


def rows_of(rank, dtype, seed=0):
    """Rank r brings r rows: rank 0 none."""
    return given(rank, (rank, 2), dtype, seed)


def check_gathers(hvd, members, process_set):
    for dtype in dtypes():
        mine = rows_of(hvd.rank(), dtype)
        expected = np.concatenate([plain(rows_of(rank, dtype)) for rank in members])
        pending = hvd.allgather_async(mine, name="gather", process_set=process_set)
        assert_same(hvd.allgather(mine, process_set=process_set), expected, dtype)
        assert_same(hvd.synchronize(pending), expected, dtype)
        both = hvd.grouped_allgather([mine, mine[:1]], process_set=process_set)
        assert isinstance(both, list)
        assert_same(both[0], expected, dtype)
        assert_same(both[1], np.concatenate([plain(rows_of(rank, dtype)[:1]) for rank in members]), dtype)
        assert isinstance(hvd.synchronize(hvd.grouped_allgather_async([mine], process_set=process_set)), tuple)


def check_broadcasts(hvd, members, process_set):
    for dtype in dtypes():
        for root in members:
            mine, expected = given(hvd.rank(), (2, 3), dtype), plain(given(root, (2, 3), dtype))
            before = plain(mine)
            pending = hvd.broadcast_async(mine, root, process_set=process_set)
            assert_same(hvd.broadcast(mine, root, name="b", process_set=process_set), expected, dtype)
            assert_same(hvd.synchronize(pending), expected, dtype)
            np.testing.assert_array_equal(plain(mine), before)
            other = mine.clone()
            assert hvd.broadcast_(mine, root, process_set=process_set) is mine
            assert hvd.synchronize(hvd.broadcast_async_(other, root, process_set=process_set)) is other
            assert_same(mine, expected, dtype)
            assert_same(other, expected, dtype)


def check_alltoalls(hvd, members, process_set):
    import torch
    place, count = members.index(hvd.rank()), len(members)

    def sent(rank, dtype):  # rank r sends r + i rows to member i, and has one row more, which stays
        splits = [rank + at for at in range(count)]
        return splits, given(rank, (sum(splits) + 1, 2), dtype)

    for dtype in dtypes():
        splits, mine = sent(hvd.rank(), dtype)
        parts, counts = [], []
        for rank in members:
            theirs, rows = sent(rank, dtype)
            start = sum(theirs[:place])
            parts.append(plain(rows)[start:start + theirs[place]])
            counts.append(theirs[place])
        for form in (splits, torch.tensor(splits, dtype=torch.int32)):
            rows, received = hvd.alltoall(mine, form, process_set=process_set)
            assert_same(rows, np.concatenate(parts), dtype)
            assert received.dtype is torch.int32 and received.tolist() == counts
        equal = given(hvd.rank(), (2 * count, 3), dtype)
        expected = np.concatenate([plain(given(rank, (2 * count, 3), dtype))[2 * place:2 * place + 2]
                                   for rank in members])
        assert_same(hvd.alltoall(equal, process_set=process_set), expected, dtype)
        rows, received = hvd.synchronize(hvd.alltoall_async(equal, name="a", process_set=process_set))
        assert_same(rows, expected, dtype)
        assert received.tolist() == [2] * count


def check_reducescatters(hvd, members, process_set):
    import torch
    place, count = members.index(hvd.rank()), len(members)
    for dtype in dtypes():
        if dtype is torch.bool:
            continue
        for rows in (2 * count, 2 * count + 1, 1, 0):
            for op in (hvd.Average, hvd.Sum):
                whole = reduced(hvd, op, [plain(given(rank, (rows, 2), dtype)) for rank in members], dtype)
                expected = np.array_split(whole, count)[place]
                mine = given(hvd.rank(), (rows, 2), dtype)
                pending = hvd.reducescatter_async(mine, op=op, process_set=process_set)
                assert_same(hvd.reducescatter(mine, op=op, name="r", process_set=process_set), expected, dtype)
                assert_same(hvd.synchronize(pending), expected, dtype)
                for result in hvd.grouped_reducescatter([mine, mine], op=op, process_set=process_set):
                    assert_same(result, expected, dtype)


def check_compression(hvd, members, process_set):
    import torch
    for compressor, step in ((hvd.Compression.fp16, 2.0**-10), (hvd.Compression.bf16, 2.0**-7)):
        mine = torch.tensor([1.0 + step / 4, 3.0])  # the first is rounded to 1 on the way
        how = {"compression": compressor, "op": hvd.Sum, "process_set": process_set}
        expected = np.array([1.0, 3.0]) * len(members)
        assert_same(hvd.allreduce(mine, **how), expected, torch.float32)
        assert_same(hvd.grouped_allreduce([mine], **how)[0], expected, torch.float32)
        assert_same(hvd.reducescatter(mine.repeat(len(members)).double(), **how), expected, torch.float64)
        whole = torch.tensor([2**20 + 1])
        assert_same(hvd.allreduce(whole, **how), plain(whole) * len(members), torch.int64)
        small, ctx = compressor.compress(mine)
        assert small.element_size() == 2 and compressor.decompress(small, ctx).dtype is torch.float32


def check_sparse(hvd, members, process_set):
    import torch
    dense = [np.diag(np.arange(1.0, 5.0)) * rank for rank in range(hvd.size())]
    mine = torch.from_numpy(dense[hvd.rank()]).to_sparse().requires_grad_()
    finish = {op: hvd.sparse_allreduce_async(mine, name=f"sparse.{op}", op=op, process_set=process_set)
              for op in (hvd.Sum, hvd.Average)}
    total = sum(dense[rank] for rank in members)
    np.testing.assert_allclose(finish[hvd.Sum]().to_dense().numpy(), total)
    np.testing.assert_allclose(finish[hvd.Average]().to_dense().numpy(), total / len(members))
    for wrong in (lambda: hvd.allreduce(mine, process_set=process_set),
                  lambda: hvd.sparse_allreduce_async(torch.ones(3), "dense", hvd.Sum, process_set)):
        with pytest.raises(ValueError, match="sparse"):
            wrong()


# ---- gradients ----


def check_gradients(hvd, members, process_set):
    """The losses are sum(w * f(x)) with a w for each rank; what comes back is compared with the rule of each op."""
    import torch
    me, place, count = hvd.rank(), members.index(hvd.rank()), len(members)

    def weight(rank, shape):
        return given(rank, shape, torch.float64, 7) + rank

    def gradient(function, shape, out_shapes):
        x = given(me, shape, torch.float64).requires_grad_()
        results = function(x)
        results = results if isinstance(results, (list, tuple)) else [results]
        sum((weight(me, out) * result).sum() for out, result in zip(out_shapes, results)).backward()
        return x.grad.numpy()

    def weights(shape):
        return [weight(rank, shape).numpy() for rank in members]

    shape, how = (count, 2), {"process_set": process_set}
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / count)):
        np.testing.assert_allclose(gradient(lambda x: hvd.allreduce(x, op=op, name="g", **how), shape, [shape]),
                                   sum(weights(shape)) * factor)
        np.testing.assert_allclose(
            gradient(lambda x: hvd.grouped_allreduce([x, x * 2], op=op, **how), shape, [shape, shape]),
            3 * sum(weights(shape)) * factor)
        back = np.concatenate([weight(rank, (1, 2)).numpy() for rank in members]) * factor * count
        np.testing.assert_allclose(gradient(lambda x: hvd.reducescatter(x, op=op, **how), shape, [(1, 2)]), back)
        np.testing.assert_allclose(
            gradient(lambda x: hvd.grouped_reducescatter([x, x], op=op, **how), shape, [(1, 2)] * 2), 2 * back)
    np.testing.assert_allclose(
        gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0, **how), shape, [shape]),
        3 * sum(weights(shape)))

    uneven, gathered = (place + 1, 2), (count * (count + 1) // 2, 2)
    start = place * (place + 1) // 2
    back = (sum(weights(gathered)) / count)[start:start + place + 1]
    np.testing.assert_allclose(gradient(lambda x: hvd.allgather(x, **how), uneven, [gathered]), back)
    np.testing.assert_allclose(gradient(lambda x: hvd.grouped_allgather([x, x], **how), uneven, [gathered] * 2), 2 * back)

    for root in members:
        np.testing.assert_allclose(gradient(lambda x: hvd.broadcast(x, root, **how), shape, [shape]),
                                   sum(weights(shape)) / count * (me == root))

    # one row to each member, and one that is not sent
    back = np.stack([weight(rank, shape).numpy()[place] for rank in members] + [np.zeros(2)])
    np.testing.assert_allclose(
        gradient(lambda x: hvd.alltoall(x, [1] * count, **how)[0], (count + 1, 2), [shape]), back)

    # gradients of gradients, and none where none is asked for
    x = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    first, = torch.autograd.grad((hvd.allreduce(x, op=hvd.Sum, **how)**2).sum(), x, create_graph=True)
    second, = torch.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second.numpy(), np.full(3, 2.0 * count * count))
    with torch.no_grad():
        assert not hvd.allreduce(x, **how).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(x, **how)).requires_grad
    assert hvd.allreduce(x, compression=hvd.Compression.fp16, **how).requires_grad


# ---- handles, memory, threads ----


def check_handles(hvd):
    import torch
    handles = [hvd.allreduce_async(torch.ones(100), name=f"many {at}", op=hvd.Sum) for at in range(500)]
    for handle in reversed(handles):
        assert isinstance(handle, int) and hvd.synchronize(handle)[0] == hvd.size()
    assert hvd.synchronize(handles[0]) is None
    with pytest.raises(ValueError):
        hvd.poll(handles[0])
    handle = hvd.allreduce_async(torch.ones(1))
    hvd.barrier()
    while not hvd.poll(handle):  # ranks() has the deadline
        pass
    assert hvd.synchronize(handle) == 1
    for at in range(50):  # nobody keeps the tensors, nobody asks for the results
        hvd.allreduce_async_(torch.ones(50_000), name=f"dropped {at}")
        hvd.allgather_async(torch.ones(50_000))
    gc.collect()
    assert hvd.allreduce(torch.ones(50_000), op=hvd.Sum).sum() == 50_000 * hvd.size()


def check_threads(hvd):
    import torch
    wrong = []

    def work(number):
        try:
            for at in range(30):
                total = hvd.allreduce(torch.full((number + 1,), float(at)), op=hvd.Sum, name=f"thread {number}")
                assert total.tolist() == [float(at * hvd.size())] * (number + 1)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Far:
    """torch's framework, as if tensors with an attribute `far` were on a device that the engine does not reach."""

    def __new__(cls):
        import torch
        from hvd.torch import _framework, _staged

        class Copies(_staged.Staged):
            made = 0

            def copies(self, tensors):
                self.made += len(tensors)
                return [torch.Tensor.clone(tensor) for tensor in tensors]

            def _back(self, host, output):
                self.made += 1
                return output.copy_(host)

        class Distant(_framework.Torch):
            def __init__(self):
                super().__init__()
                self.staged = Copies(self.staged._host)

            def on_host(self, tensor):
                return not hasattr(tensor, "far")

            def is_reached(self, tensor):
                return False

            def empty(self, shape, like):
                made = super().empty(shape, like)
                made.far = True
                return made
        return Distant()


def check_staging(hvd):
    """Tensors that are not in host memory are copied there and back."""
    import torch
    from hvd import collectives
    framework = Far()
    engine, count = collectives.Collectives(framework), hvd.size()
    mine = framework.empty((count, 2), torch.ones(1))
    mine.fill_(hvd.rank() + 1)
    total = count * (count + 1) / 2
    assert engine.allreduce(mine, mine, hvd.Sum, None) is mine and (mine == total).all() and framework.staged.made == 2
    output = framework.empty((count, 2), mine)
    engine.broadcast(mine, output, 0, None)
    assert (output == total).all()
    for started in (engine.start_allgather(mine, None), engine.start_grouped_allgather([mine], None)):
        result = collectives.complete(started)
        result = result[0] if isinstance(result, tuple) else result
        assert result.far and result.shape == (count * count, 2) and (result == total).all()
    first, second = collectives.complete(engine.start_grouped_allreduce([mine, mine], [mine, output], hvd.Sum, None))
    assert first is mine and second is output and (mine == count * total).all() and (output == mine).all()
    rows, received = collectives.complete(engine.start_alltoall(mine, None, None, list))
    assert rows.far and received == [1] * count and (rows == mine).all()
    share = collectives.complete(engine.start_reducescatter(mine, hvd.Average, None))
    assert share.far and share.shape == (1, 2)


def check_groups_of_more_than_the_library_takes_at_once(hvd):
    import torch
    many = [torch.full((1 + place % 3,), float(place)) for place in range(2050)]
    for place, total in enumerate(hvd.grouped_allreduce(many, op=hvd.Sum, name="many")):
        assert total.tolist() == [float(place * hvd.size())] * (1 + place % 3)
    for place, total in enumerate(hvd.grouped_allreduce(many[:700], op=hvd.Sum, name=200 * "long")):  # the names are too much for one
        assert total.tolist() == [float(place * hvd.size())] * (1 + place % 3)
    gathered = hvd.grouped_allgather(many)
    assert [int(rows.numel()) for rows in gathered] == [hvd.size() * (1 + place % 3) for place in range(2050)]
    wide = [torch.ones(hvd.size(), requires_grad=True) for _ in range(1025)]
    parts = hvd.grouped_reducescatter(wide, op=hvd.Sum)
    assert len(parts) == 1025 and all(part.tolist() == [float(hvd.size())] for part in parts)
    sum(part.sum() for part in parts).backward()
    assert all(bool((tensor.grad == hvd.size()).all()) for tensor in wide)


def check_everything():
    import hvd.torch as hvd
    hvd.init(process_sets="dynamic")
    for members, process_set in members_and_set(hvd):
        if hvd.rank() in members:
            for check in (check_reductions, check_shapes, check_scales, check_gathers, check_broadcasts,
                          check_alltoalls, check_reducescatters, check_compression, check_sparse, check_gradients):
                check(hvd, members, process_set)
    hvd.barrier()
    for check in (check_handles, check_threads, check_staging, check_groups_of_more_than_the_library_takes_at_once):
        check(hvd)


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 2, 4))])
def test_every_op_agrees_with_numpy(ranks, count):
    ranks(count, check_everything, timeout=300)


# ---- where new tensors are made ----


def on_host(values, dtype=None):
    import torch
    return torch.tensor(values, dtype=dtype, device="cpu")


def check_ops_on_the_host(hvd):
    import torch
    rank, size = hvd.rank(), hvd.size()
    mine = torch.full((size, 2), float(rank), device="cpu", requires_grad=True)
    gathered = hvd.allgather(mine[:rank])
    assert gathered.tolist() == [[float(member)] * 2 for member in range(size) for _ in range(member)]
    for splits in ([1] * size, on_host([1] * size, torch.int32)):
        rows, received = hvd.alltoall(mine, splits)
        assert rows.tolist() == [[float(member)] * 2 for member in range(size)] and received.tolist() == [1] * size
    reduced = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
    (reduced.sum() + gathered.sum() + rows.sum() + hvd.reducescatter(mine, op=hvd.Sum).sum()
     + hvd.grouped_allgather([mine])[0].sum() + hvd.broadcast(mine, 0).sum()).backward()
    assert mine.grad.device.type == "cpu" and float(mine.grad.sum()) > 0
    sparse = torch.sparse_coo_tensor(on_host([[rank]]), on_host([1.0]), (size,), device="cpu")
    assert hvd.sparse_allreduce_async(sparse, "s", hvd.Sum)().to_dense().tolist() == [1.0] * size
    layer = hvd.SyncBatchNorm(3).to_empty(device="cpu")
    layer.reset_parameters()
    layer(torch.from_numpy(np.arange(3.0 * (rank + 2), dtype="float32").reshape(-1, 3))).sum().backward()


def check_optimizers_on_the_host(hvd):
    import torch
    from hvd.torch.optimizer import _averaged
    rank, size = hvd.rank(), hvd.size()
    with torch.device("cpu"):
        model = torch.nn.Sequential(torch.nn.Embedding(4, 3, sparse=True), torch.nn.Linear(3, 1))
    for options in ({}, {"sparse_as_dense": True}, {"groups": 2, "compression": hvd.Compression.bf16}):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1 * (rank + 1)),
                                             model.named_parameters(), **options)
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
        optimizer.zero_grad()
        if rank == 0:  # no other rank has gradients
            model(on_host([0, 1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(on_host([rank])).sum().backward()
        optimizer.step()
        weight = model[1].weight.detach()
        assert torch.equal(hvd.allreduce(weight, op=hvd.Max), weight)
        hvd.broadcast_optimizer_state(optimizer, 0)
    assert float(_averaged(float(rank), hvd.global_process_set)) == (size - 1) / 2
    received = hvd.broadcast_object({"tensor": on_host([rank])}, 1)
    assert received["tensor"].tolist() == [1]


def check_groups_on_the_host():
    import torch
    import torch.distributed as dist
    import hvd.torch.distributed  # noqa: F401  # pylint: disable=unused-import
    dist.init_process_group("hvd")
    rank, size = dist.get_rank(), dist.get_world_size()
    sparse = torch.sparse_coo_tensor(on_host([[rank]]), on_host([1.0]), (size,), device="cpu")
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size
    parts = [torch.empty(1, device="cpu") for _ in range(size)]
    dist.all_gather(parts, on_host([float(rank)]))
    assert [float(part) for part in parts] == list(range(size))
    dist.monitored_barrier()
    dist.destroy_process_group()


def check_with_a_default_device():
    """A tensor on "meta" has no contents, so each one that hvd makes for itself there is noticed."""
    import torch
    torch.set_default_device("meta")
    import hvd.torch as hvd
    hvd.init()
    check_ops_on_the_host(hvd)
    check_optimizers_on_the_host(hvd)
    hvd.shutdown()
    check_groups_on_the_host()


def test_a_default_device_is_not_where_ops_of_the_host_are_done(ranks):
    ranks(2, check_with_a_default_device, timeout=120)
