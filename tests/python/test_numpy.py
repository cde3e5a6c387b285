# SPDX-License-Identifier: Apache-2.0
"""hvd.numpy: every function, type and variant against NumPy itself, on one to four ranks."""
import numpy as np
import pytest

MOVED = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
SHAPES = [(), (0,), (5,), (4, 3), (3, 0, 2), (2, 2, 2, 3), (2, 1, 1, 1, 1, 1, 1, 2, 3)]


def sample(rank, dtype, shape, seed=0):
    """Small whole numbers, so that every type adds them up exactly."""
    values = np.random.default_rng([rank, seed, len(shape)]).integers(0, 5, shape)
    return np.asarray(values).astype(dtype)


def world(dtype, shape, seed=0):
    import hvd
    return [sample(rank, dtype, shape, seed) for rank in range(hvd.size())]


def expect(actual, wanted, what):
    wanted = np.asarray(wanted)
    assert isinstance(actual, np.ndarray), what
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape), (what, actual.dtype, actual.shape)
    np.testing.assert_array_equal(actual, wanted, err_msg=str(what))


def truncated(total, size):
    return (total / size).astype(total.dtype) if total.dtype.kind in "iu" else total / total.dtype.type(size)


def check_reductions():
    import hvd.numpy as hvd
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    for dtype in [name for name in MOVED if name != "bool"]:
        for shape in SHAPES:
            ranks = world(dtype, shape)
            total = np.sum(ranks, axis=0, dtype=dtype)
            for op, wanted in ((hvd.Sum, total), (hvd.Average, truncated(total, size)), (hvd.Min, np.min(ranks, axis=0)),
                               (hvd.Max, np.max(ranks, axis=0)), (hvd.Product, np.prod(ranks, axis=0, dtype=dtype))):
                what = ("allreduce", dtype, shape, op)
                expect(hvd.allreduce(ranks[me], op=op), wanted, what)
                expect(hvd.allreduce(ranks[me], op=op, name="named"), wanted, what)
                own = ranks[me].copy()
                assert hvd.allreduce_(own, op=op) is own
                expect(own, wanted, what)
            grouped = hvd.grouped_allreduce([ranks[me], ranks[me].ravel()], op=hvd.Sum)
            expect(grouped[0], total, "grouped")
            expect(grouped[1], total.ravel(), "grouped")
    ranks = world("float64", (6,))
    expect(hvd.allreduce(ranks[me], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), np.sum(ranks, axis=0) * 2,
           "scales")
    expect(hvd.allreduce(sample(me, "bool", (9,)), op=hvd.Max), np.any(world("bool", (9,)), axis=0), "any")
    expect(hvd.allreduce(ranks[me].reshape(2, 3).T, op=hvd.Sum), np.sum(ranks, axis=0).reshape(2, 3).T, "transposed")
    with pytest.warns(DeprecationWarning):
        expect(hvd.allreduce(ranks[me], average=False), np.sum(ranks, axis=0), "average")


def check_moves():
    import hvd.numpy as hvd
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    for dtype in MOVED:
        for tail in ((), (3,), (2, 2)):
            parts = [sample(rank, dtype, (rank, *tail)) for rank in range(size)]
            expect(hvd.allgather(parts[me]), np.concatenate(parts), ("allgather", dtype, tail))
            both = hvd.grouped_allgather([parts[me], parts[me][:1]])
            expect(both[0], np.concatenate(parts), "grouped_allgather")
            expect(both[1], np.concatenate([part[:1] for part in parts]), "grouped_allgather")
            for root in range(size):
                wanted = sample(root, dtype, (2, *tail))
                expect(hvd.broadcast(sample(me, dtype, (2, *tail)), root), wanted, ("broadcast", dtype))
                own = sample(me, dtype, (2, *tail))
                assert hvd.broadcast_(own, root) is own
                expect(own, wanted, ("broadcast_", dtype))
            splits = [[(sender + taker) % 3 for taker in range(size)] for sender in range(size)]
            given = [sample(rank, dtype, (sum(splits[rank]), *tail)) for rank in range(size)]
            wanted = [given[sender][sum(splits[sender][:me]):sum(splits[sender][:me + 1])] for sender in range(size)]
            rows, received = hvd.alltoall(given[me], splits=splits[me])
            expect(rows, np.concatenate(wanted), ("alltoall", dtype))
            expect(received, np.array([splits[sender][me] for sender in range(size)], np.int32), "received")
            even = [sample(rank, dtype, (2 * size, *tail)) for rank in range(size)]
            expect(hvd.alltoall(even[me]), np.concatenate([part[2 * me:2 * me + 2] for part in even]), "even alltoall")


def check_reducescatter():
    import hvd.numpy as hvd
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    for dtype in [name for name in MOVED if name != "bool"]:
        for rows in range(2 * size + 1):
            total = np.sum(world(dtype, (rows, 2)), axis=0, dtype=dtype)
            mine = np.array_split(total, size)[me]
            given = sample(me, dtype, (rows, 2))
            expect(hvd.reducescatter(given, op=hvd.Sum), mine, ("reducescatter", dtype, rows))
            expect(hvd.reducescatter(given), truncated(mine, size), ("reducescatter average", dtype, rows))
            both = hvd.grouped_reducescatter([given, given[:, :1].copy()], op=hvd.Sum)
            expect(both[0], mine, "grouped_reducescatter")
            expect(both[1], mine[:, :1], "grouped_reducescatter")


class OnlyDlpack:
    """What another library's array may be."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def check_foreign_arrays():
    import array

    import hvd.numpy as hvd
    hvd.init()
    wanted = np.arange(4.0) * hvd.size()
    for given in (array.array("d", range(4)), memoryview(np.arange(4.0)), OnlyDlpack(np.arange(4.0)), [0.0, 1, 2, 3]):
        expect(hvd.allreduce(given, op=hvd.Sum), wanted, type(given))


def check_async():
    import hvd.numpy as hvd
    hvd.init()
    me, size = hvd.rank(), hvd.size()
    handles = [hvd.allreduce_async(np.full(7, float(number)), op=hvd.Sum, name=f"a{number}")
               for number in (range(50) if me % 2 else reversed(range(50)))]
    results = [hvd.synchronize(handle) for handle in handles]
    for number, result in zip(range(50) if me % 2 else reversed(range(50)), results):
        expect(result, np.full(7, float(number * size)), "in any order")
    handle = hvd.broadcast_async(np.arange(3), 0)
    while not hvd.poll(handle):
        pass
    expect(hvd.synchronize(handle), np.arange(3), "poll")
    gathered = hvd.allgather(np.full((1000, 100), me))
    hvd.shutdown()
    assert gathered[-1, -1] == size - 1  # a result outlives the session
    hvd.init()


def check_mistakes():
    import hvd.numpy as hvd
    hvd.init()
    own = np.zeros(4)
    own.flags.writeable = False
    for mistake, text in (
            (lambda: hvd.allreduce(np.zeros(2, complex)), "complex128 is not supported"),
            (lambda: hvd.allreduce(np.array(["a"])), "is not supported"),
            (lambda: hvd.allreduce(np.zeros(2, ">f4")), "is not supported"),
            (lambda: hvd.allreduce(np.zeros(2), average=True, op=hvd.Sum), "supersedes average"),
            (lambda: hvd.allreduce_(own), "writeable"),
            (lambda: hvd.allreduce_([1.0]), "numpy.ndarray"),
            (lambda: hvd.allreduce_(np.zeros((4, 4))[:, 1]), "contiguous"),
            (lambda: hvd.broadcast(own, hvd.size()), "invalid root rank"),
            (lambda: hvd.alltoall(np.zeros(hvd.size() + 1)) if hvd.size() > 1 else own[:, 0], "multiple of|indices"),
            (lambda: hvd.alltoall(own, splits=[9] * hvd.size()), "greater than the first dimension"),
            (lambda: hvd.alltoall(own, splits=[0] * (hvd.size() + 1)), "does not equal number of workers"),
            (lambda: hvd.alltoall(own, splits=[0.5] * hvd.size()), "integer"),
            (lambda: hvd.reducescatter(np.float32(1)), "does not support scalar inputs")):
        with pytest.raises((ValueError, IndexError), match=text):
            mistake()
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match=r"m.*rank 0 said \[3\].*ranks? 1\S* said \[4\]"):
            hvd.allreduce(np.zeros(3 if hvd.rank() == 0 else 4), name="m")
        for wrong, text in (
                (lambda first: hvd.allreduce(np.zeros(2, "f4" if first else "f8"), name="m"),
                 "^Mismatched data types: One rank had type float32, but another rank had type float64. "),
                (lambda first: hvd.allreduce(np.zeros((2, 2) if first else 4), name="m"), "^Mismatched ALLREDUCE tensor "
                 r"shapes: One rank sent a tensor of shape \[2, 2\], but another rank sent a tensor of shape \[4\]. "),
                (lambda first: hvd.broadcast(np.zeros(2), 0 if first else 1, name="m"), "^Mismatched BROADCAST root "
                 "ranks: One rank specified root rank 0, but another rank specified root rank 1. "),
                (lambda first: hvd.allreduce(np.zeros(2), op=hvd.Sum if first else hvd.Max, name="m"),
                 "^Mismatched reduction operation: One rank sent reduction op "),
                (lambda first: hvd.allreduce(np.zeros(2), prescale_factor=1.0 + first, name="m"),
                 "^Mismatched prescale and/or postscale factors: One rank sent factors ")):
            with pytest.raises(hvd.HorovodInternalError, match=text):
                wrong(hvd.rank() == 0)
    expect(hvd.allreduce(np.ones(2)), np.ones(2), "the session goes on")


def check_short_floats():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    import hvd.numpy as hvd
    hvd.init()
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = getattr(ml_dtypes, name)
        ranks = [sample(rank, dtype, (9,)) for rank in range(hvd.size())]
        wanted = np.sum([part.astype(np.float32) for part in ranks], axis=0).astype(dtype)
        bits = f"u{wanted.dtype.itemsize}"
        expect(hvd.allreduce(ranks[hvd.rank()], op=hvd.Sum).view(bits), wanted.view(bits), name)


def check_all():
    for check in (check_reductions, check_moves, check_reducescatter, check_foreign_arrays, check_async, check_mistakes,
                  check_short_floats):
        check()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_everything_as_numpy_does_it(ranks, size):
    ranks(size, check_all)
