# SPDX-License-Identifier: Apache-2.0
"""The ops of hvd.tensorflow against NumPy oracles: every op, variant and element type, eagerly, in tf.function and in
graphs of TensorFlow 1, with 1 to 4 ranks; hundreds of checks in each launch."""
import itertools
import random
import threading

import modes
import numpy as np
import pytest


def dtypes():
    """Those of hvd that this TensorFlow has, as NumPy has them."""
    from hvd.tensorflow import mpi_ops
    return sorted((np.dtype(kind.as_numpy_dtype) for kind in mpi_ops._TYPES), key=str)


def given(rank, shape, dtype, seed=0):
    """What a rank brings: small whole numbers, exact in every type also when four are added or multiplied."""
    top = 2 if dtype == bool else 3
    return np.random.default_rng([seed, rank]).integers(0, top, shape).astype(dtype)


def plain(array):
    return np.asarray(array).astype(np.float64)


def is_whole(dtype):
    return dtype.kind in "iu"


def reduced(hvd, op, arrays):
    """The oracle of a reduction, in float64."""
    stacked = np.stack([plain(array) for array in arrays])
    if op == hvd.Average:
        mean = stacked.sum(0) / len(arrays)
        return np.trunc(mean) if is_whole(arrays[0].dtype) else mean
    return {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](stacked, axis=0)


def reductions(hvd, dtype):
    return (hvd.Min, hvd.Max) if dtype == bool else (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)


_PRECISION = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-6, "float64": 1e-15, "float8_e4m3fn": 2**-3,
              "float8_e5m2": 2**-2}


class Cases:
    """Calls with their inputs and what they must give; all of them are made in one graph and run at once."""

    def __init__(self):
        self.calls = []

    def add(self, call, arrays, *expected):
        """`call` gives a tensor for each of `expected`."""
        self.calls.append((call, arrays, expected))

    def check(self):
        for mode in modes.MODES:
            # Python functions make slow graphs; to them all types are alike
            calls = [call for call in self.calls if modes.native() or mode is modes.eagerly or not call[1]
                     or call[1][0].dtype.name in ("bool", "int32", "float32", "bfloat16")]

            def everything(*tensors, calls=calls):
                tensors = iter(tensors)
                results = [call(*itertools.islice(tensors, len(arrays))) for call, arrays, _ in calls]
                return [list(result) if isinstance(result, (list, tuple)) else [result] for result in results]

            all_results = mode(everything, [array for _, arrays, _ in calls for array in arrays])
            for number, (results, (_, _, expected)) in enumerate(zip(all_results, calls)):
                assert len(results) == len(expected)
                for array, wanted in zip(results, expected):
                    where = f"{mode.__name__}, call {number}"
                    assert array.dtype == wanted.dtype, where
                    assert array.shape == wanted.shape, where
                    np.testing.assert_allclose(plain(array), plain(wanted), atol=0, err_msg=where,
                                               rtol=_PRECISION.get(wanted.dtype.name, 0))


def everybody_and_a_pair(hvd):
    """The sets to try: all ranks, and the first and the last where that is another."""
    sets = [(list(range(hvd.size())), hvd.global_process_set)]
    if hvd.size() > 2:
        pair = hvd.add_process_set([0, hvd.size() - 1])
        sets.append((pair.ranks, pair))
    return sets


# ---- values ----


def check_reductions(hvd, members, process_set):
    cases = Cases()
    for dtype in dtypes():
        theirs = [given(rank, (3, 2), dtype) for rank in members]
        mine = given(hvd.rank(), (3, 2), dtype)
        for op in reductions(hvd, dtype):
            how = {"op": op, "process_set": process_set}
            expected = reduced(hvd, op, theirs).astype(dtype)
            cases.add(lambda x, how=how: hvd.allreduce(x, **how), [mine], expected)
            cases.add(lambda x, y, how=how: hvd.grouped_allreduce([x, y], **how), [mine, mine], expected, expected)
    cases.check()


def check_shapes_and_scales(hvd, members, process_set):
    cases, total = Cases(), sum(rank + 1 for rank in members)
    for shape in ((), (1,), (0,), (0, 3), (2, 0, 2), (1, 2, 1, 2, 1, 2, 1, 2), (70_001,)):
        mine = given(hvd.rank(), shape, np.float32)
        summed = reduced(hvd, hvd.Sum, [given(rank, shape, np.float32) for rank in members]).astype(np.float32)
        cases.add(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=process_set), [mine], summed)
        cases.add(lambda x: hvd.broadcast(x, members[-1], process_set=process_set), [mine],
                  given(members[-1], shape, np.float32))
    for dtype in (np.int32, np.float32, np.float64):
        mine = np.full((2 * len(members),), hvd.rank() + 1, dtype)
        how = {"op": hvd.Sum, "process_set": process_set}
        cases.add(lambda x, how=how: hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.5, **how), [mine],
                  np.full_like(mine, total))
        cases.add(lambda x, how=how: hvd.grouped_allreduce([x], prescale_factor=3.0, **how), [mine],
                  np.full_like(mine, 3 * total))
        cases.add(lambda x, how=how: hvd.reducescatter(x, postscale_factor=2.0, **how), [mine],
                  np.full(2, 2 * total, dtype))
    # a group of different types and shapes
    mine = [given(hvd.rank(), (2,), np.float32), given(hvd.rank(), (), np.int64), given(hvd.rank(), (3, 1), np.float16)]
    theirs = [[given(rank, array.shape, array.dtype) for rank in members] for array in mine]
    cases.add(lambda *group: hvd.grouped_allreduce(list(group), op=hvd.Sum, process_set=process_set), mine,
              *(reduced(hvd, hvd.Sum, arrays).astype(arrays[0].dtype) for arrays in theirs))
    cases.check()


def check_gathers_and_broadcasts(hvd, members, process_set):
    cases = Cases()
    for dtype in dtypes():
        rows = {rank: given(rank, (rank, 2), dtype) for rank in members}  # rank 0 has none
        mine, gathered = rows[hvd.rank()], np.concatenate([rows[rank] for rank in members])
        cases.add(lambda x: hvd.allgather(x, process_set=process_set), [mine], gathered)
        cases.add(lambda x, y: hvd.grouped_allgather([x, y], process_set=process_set), [mine, mine[:1]], gathered,
                  np.concatenate([rows[rank][:1] for rank in members]))
        for root in members:
            cases.add(lambda x, root=root: hvd.broadcast(x, root, process_set=process_set),
                      [given(hvd.rank(), (2, 3), dtype)], given(root, (2, 3), dtype))
    cases.check()


def check_alltoalls(hvd, members, process_set):
    cases, place, count = Cases(), members.index(hvd.rank()), len(members)

    def sent(rank, dtype):  # rank r sends r + i rows to member i, and has one row more, which stays
        splits = [rank + at for at in range(count)]
        return splits, given(rank, (sum(splits) + 1, 2), dtype)

    for dtype in dtypes():
        splits, mine = sent(hvd.rank(), dtype)
        parts = []
        for rank in members:
            theirs, rows = sent(rank, dtype)
            start = sum(theirs[:place])
            parts.append(rows[start:start + theirs[place]])
        received = np.array([len(part) for part in parts], np.int32)
        for kind in (np.int32, np.int64):
            cases.add(lambda x, s: hvd.alltoall(x, s, process_set=process_set), [mine, np.array(splits, kind)],
                      np.concatenate(parts), received)
        equal = np.concatenate([given(rank, (2 * count, 3), dtype)[2 * place:2 * place + 2] for rank in members])
        cases.add(lambda x: hvd.alltoall(x, process_set=process_set), [given(hvd.rank(), (2 * count, 3), dtype)], equal)
    cases.check()


def check_reducescatters(hvd, members, process_set):
    cases, place, count = Cases(), members.index(hvd.rank()), len(members)
    for dtype in dtypes():
        if dtype == bool:
            continue
        for rows in (2 * count + 1, 1, 0) if dtype == np.float32 else (count + 1,):
            mine = given(hvd.rank(), (rows, 2), dtype)
            theirs = [given(rank, (rows, 2), dtype) for rank in members]
            for op in (hvd.Average, hvd.Sum):
                how = {"op": op, "process_set": process_set}
                expected = np.array_split(reduced(hvd, op, theirs), count)[place].astype(dtype)
                cases.add(lambda x, how=how: hvd.reducescatter(x, **how), [mine], expected)
                cases.add(lambda x, y, how=how: hvd.grouped_reducescatter([x, y], **how), [mine, mine], expected,
                          expected)
    cases.check()


def check_large(hvd):
    """Every op on tensors of 256 KiB and more, which TensorFlow has made: they lie where its allocator puts them."""
    import tensorflow as tf
    cases, place, count = Cases(), hvd.rank(), hvd.size()
    theirs = [given(rank, (1200 * count, 100), np.float32) for rank in range(count)]
    mine, total = theirs[place], sum(theirs)

    def made(x):
        return tf.concat([x[:1], x[1:]], 0)

    for call, *expected in (
            (lambda x: hvd.allreduce(made(x), op=hvd.Sum), total),
            (lambda x: hvd.grouped_allreduce([made(x), x], op=hvd.Sum), total, total),
            (lambda x: hvd.broadcast(made(x), count - 1), theirs[-1]),
            (lambda x: hvd.allgather(made(x)), np.concatenate(theirs)),
            (lambda x: hvd.grouped_allgather([made(x), x]), np.concatenate(theirs), np.concatenate(theirs)),
            (lambda x: hvd.alltoall(made(x)), np.concatenate([each[1200 * place:][:1200] for each in theirs])),
            (lambda x: hvd.reducescatter(made(x), op=hvd.Sum), total[1200 * place:][:1200]),
            (lambda x: hvd.grouped_reducescatter([made(x), x], op=hvd.Sum), total[1200 * place:][:1200],
             total[1200 * place:][:1200])):
        cases.add(call, [mine], *expected)
    cases.check()


def check_questions(hvd, members, process_set):
    cases, me = Cases(), hvd.rank()
    set_id = process_set.process_set_id
    for call, answer in ((hvd.rank_op, me), (hvd.size_op, hvd.size()), (hvd.local_rank_op, hvd.local_rank()),
                         (hvd.local_size_op, hvd.local_size()), (lambda: hvd.size_op(set_id), len(members)),
                         (lambda: hvd.process_set_included_op(set_id), int(me in members)),
                         (lambda: hvd.size_op(process_set_id=0, name="how_many"), hvd.size())):
        cases.add(call, [], np.array(answer, np.int32))
    cases.check()


# ---- variables ----


def check_broadcast_in_place(hvd):
    import tensorflow as tf
    root, arrays = hvd.size() - 1, [given(hvd.rank(), (3, 2), np.float32), given(hvd.rank(), (), np.int64)]
    expected = [given(root, array.shape, array.dtype) for array in arrays]

    def assert_same(got):
        for array, wanted in zip(got, expected):
            np.testing.assert_array_equal(array, wanted)

    variables = [tf.Variable(array) for array in arrays]
    updated = hvd.broadcast_(variables, root)
    assert [a is b for a, b in zip(updated, variables)] == [True, True]
    assert_same(variable.numpy() for variable in variables)

    variables = [tf.Variable(array) for array in arrays]
    assert_same(value.numpy() for value in tf.function(lambda: hvd.broadcast_(variables, root), autograph=False)())
    assert_same(variable.numpy() for variable in variables)

    for use_resource in (True, False):
        with tf.Graph().as_default(), modes.session(tf) as running:
            variables = [tf.compat.v1.Variable(array, use_resource=use_resource) for array in arrays]
            updated = hvd.broadcast_(variables, root, name="start")
            running.run(tf.compat.v1.global_variables_initializer())
            assert_same(running.run(updated))
            assert_same(running.run(variables))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="resource variables or ref variables"):
        hvd.broadcast_([tf.compat.v1.Variable(1.0, use_resource=use) for use in (True, False)], 0)
    with pytest.raises(TypeError, match="broadcast_ takes variables"):
        hvd.broadcast_([1.0], 0)


# ---- order, names, threads ----


def check_any_order(hvd):
    """Each rank makes the same ops in an order of its own, and has one thread."""
    import tensorflow as tf
    count = 200 if modes.native() else 50

    def many(x):
        results = {}
        for number in random.Random(hvd.rank()).sample(range(count), count):
            name, value = f"op_{number}", x + number
            if number % 3 == 0:
                results[name] = hvd.allreduce(value, op=hvd.Sum, name=name)
            elif number % 3 == 1:
                results[name] = hvd.allgather(value, name=name)
            else:
                results[name] = tf.add_n(hvd.grouped_allreduce([value, value], op=hvd.Max, name=name))
        return results

    array = np.ones(2, np.float32)
    for mode in (modes.in_graph, *([modes.in_function] if modes.native() else [])):
        for name, result in mode(many, [array]).items():
            value = array + int(name[3:])
            expected = (value * hvd.size(), np.tile(value, hvd.size()), 2 * value)[int(name[3:]) % 3]
            np.testing.assert_allclose(result, expected)


def check_groups_of_more_than_an_op_takes(hvd):
    """More tensors than 1024, and names that are too long together."""
    import tensorflow as tf
    if not modes.native() or hvd.size() > 2:
        return  # as on other frameworks
    count, long = 1030, "layer/" * 40
    values = [np.full(2, place, np.float32) for place in range(count)]

    def many(x):
        sums = hvd.grouped_allreduce([x + value for value in values], op=hvd.Sum, name="many")
        named = hvd.grouped_allreduce([x + value for value in values[:300]], op=hvd.Sum, name=long)
        rows = hvd.grouped_allgather([x + value for value in values[:300]], name=long + "rows")
        parts = hvd.grouped_reducescatter([tf.tile(x, [hvd.size()]) for _ in values], op=hvd.Sum)
        return {"sums": tf.stack(sums), "named": tf.stack(named), "rows": tf.stack(rows), "parts": tf.stack(parts)}

    got = modes.in_function(many, [np.zeros(2, np.float32)])
    np.testing.assert_allclose(got["sums"], hvd.size() * np.stack(values))
    np.testing.assert_allclose(got["named"], hvd.size() * np.stack(values[:300]))
    np.testing.assert_allclose(got["rows"], np.tile(np.stack(values[:300]), [1, hvd.size()]))
    assert got["parts"].shape == (count, 2) and not got["parts"].any()


def check_names(hvd):
    """Graphs that are built alike give alike names, whatever was traced before; twins of a graph are told apart."""
    import tensorflow as tf
    one = tf.ones(2)

    @tf.function(autograph=False)
    def twins(x):
        with tf.name_scope("outer"):
            a = hvd.allreduce(x, op=hvd.Sum, name="twin")
            b = hvd.allreduce(2 * x, op=hvd.Sum, name="twin")
        c = tf.cond(x[0] > 0, lambda: hvd.allreduce(tf.cast(x, tf.float64), op=hvd.Sum),
                    lambda: tf.cast(x, tf.float64))
        d = tf.cond(x[0] > 0, lambda: hvd.allreduce(tf.cast(3 * x, tf.float64), op=hvd.Sum),
                    lambda: tf.cast(x, tf.float64))
        return a + b + hvd.allreduce(one, op=hvd.Sum)[0] + tf.cast(c + d, tf.float32)

    for rank in range(hvd.rank()):  # some ranks trace more often, and do not run that
        twins.get_concrete_function(tf.TensorSpec([3 + rank], tf.float32))
    np.testing.assert_allclose(twins(one), np.full(2, 8.0 * hvd.size()))


def check_functions_keep_running(hvd):
    """A trained step's function is traced once and run often; what it returns is new each time."""
    import tensorflow as tf
    state = tf.Variable(tf.zeros(3))

    @tf.function(autograph=False)
    def step(x):
        state.assign_add(hvd.allreduce(x, op=hvd.Sum))
        return hvd.allgather(state[:1])

    for _ in range(20):
        gathered = step(tf.ones(3))
    np.testing.assert_allclose(state, np.full(3, 20.0 * hvd.size()))
    np.testing.assert_allclose(gathered, np.full(hvd.size(), 20.0 * hvd.size()))
    shapes = tf.function(lambda x: (hvd.allreduce(x), hvd.allgather(x), hvd.broadcast(x, 0), hvd.reducescatter(x),
                                    hvd.alltoall(x)), autograph=False)
    concrete = shapes.get_concrete_function(tf.TensorSpec([4, 7], tf.float32))
    assert [shape.as_list() for shape in concrete.output_shapes] == [[4, 7], [None, 7], [4, 7], [None, 7], [None, 7]]


def check_threads(hvd):
    import tensorflow as tf
    wrong = []

    def work(number):
        try:
            for at in range(20):
                total = hvd.allreduce(tf.fill([number + 1], float(at)), op=hvd.Sum, name=f"thread {number}")
                assert total.numpy().tolist() == [float(at * hvd.size())] * (number + 1)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_join(hvd):
    """Rank r has r + 1 batches; the others' ops go on without it."""
    import tensorflow as tf
    join = {modes.eagerly: hvd.join, modes.in_function: tf.function(hvd.join, autograph=False)}
    for mode, call in join.items():
        for batch in range(hvd.rank() + 1):
            total, = mode(lambda x, batch=batch: [hvd.allreduce(x, op=hvd.Sum, name=f"batch {batch}")],
                          [np.ones(2, np.float32)])
            np.testing.assert_allclose(total, np.full(2, hvd.size() - batch))
        assert int(call()) == hvd.size() - 1


def check_everything():
    _, hvd = modes.start()
    for members, process_set in everybody_and_a_pair(hvd):
        if hvd.rank() in members:
            for check in (check_reductions, check_shapes_and_scales, check_gathers_and_broadcasts, check_alltoalls,
                          check_reducescatters, check_questions):
                check(hvd, members, process_set)
    for check in (check_large, check_broadcast_in_place, check_any_order, check_groups_of_more_than_an_op_takes, check_names, check_functions_keep_running, check_threads,
                  check_join):
        check(hvd)
    hvd.shutdown()


@pytest.mark.parametrize("np_, ops, memory", [
    (2, "native", "shared"), (3, "native", "private"), (2, "python", "single"),
    *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((1, "native", "private"), (4, "native", "single")))])
def test_every_op_gives_what_numpy_gives(ranks, np_, ops, memory):
    ranks(np_, check_everything, env=modes.environment(ops, memory), timeout=300)
