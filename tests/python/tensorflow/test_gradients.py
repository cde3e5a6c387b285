# SPDX-License-Identifier: Apache-2.0
"""Gradients of the ops of hvd.tensorflow: the rule of each, eagerly, in tf.function and in graphs of TensorFlow 1."""
import modes
import numpy as np
import pytest
from test_ops import everybody_and_a_pair, given


def eager_tape(function, x):
    import tensorflow as tf
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = function(x)
    return tape.gradient(loss, x)


def tape_in_function(function, x):
    import tensorflow as tf
    return tf.function(lambda x: eager_tape(function, x), autograph=False)(tf.constant(x))


def tape_around_function(function, x):
    import tensorflow as tf
    return eager_tape(tf.function(function, autograph=False), x)


def graph(function, x):
    import tensorflow as tf
    with tf.Graph().as_default(), modes.session(tf) as running:
        place = tf.compat.v1.placeholder(x.dtype, [None] * x.ndim)
        gradient, = tf.gradients(function(place), place)
        return running.run(gradient, {place: x})


def check_rules(hvd, members, process_set):
    """The losses are sum(w * f(x)) with a w for each rank; what comes back is compared with the rule of each op."""
    import tensorflow as tf
    me, place, count = hvd.rank(), members.index(hvd.rank()), len(members)
    how = {"process_set": process_set}

    def weight(rank, shape):
        return given(rank, shape, np.float64, 7) + rank

    def weights(shape):
        return [weight(rank, shape) for rank in members]

    def assert_gradient(function, shape, out_shapes, expected):
        def loss(x):
            results = function(x)
            results = results if isinstance(results, (list, tuple)) else [results]
            return tf.add_n([tf.reduce_sum(weight(me, out) * result) for out, result in zip(out_shapes, results)])

        for mode in (eager_tape, tape_in_function, tape_around_function, graph):
            np.testing.assert_allclose(mode(loss, given(me, shape, np.float64)), expected, err_msg=mode.__name__)

    shape = (count, 2)
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / count)):
        assert_gradient(lambda x: hvd.allreduce(x, op=op, name="g", **how), shape, [shape],
                        sum(weights(shape)) * factor)
        assert_gradient(lambda x: hvd.grouped_allreduce([x, x * 2], op=op, **how), shape, [shape, shape],
                        3 * sum(weights(shape)) * factor)
        back = np.concatenate([weight(rank, (1, 2)) for rank in members]) * factor * count
        assert_gradient(lambda x: hvd.reducescatter(x, op=op, **how), shape, [(1, 2)], back)
        assert_gradient(lambda x: hvd.grouped_reducescatter([x, x], op=op, **how), shape, [(1, 2)] * 2, 2 * back)
    assert_gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=3.0, **how), shape, [shape],
                    3 * sum(weights(shape)))
    assert_gradient(lambda x: hvd.reducescatter(x, op=hvd.Average, prescale_factor=3.0, **how), shape, [(1, 2)],
                    3 * np.concatenate([weight(rank, (1, 2)) for rank in members]))
    # whole numbers in a group have no gradient, and a part of the result that nobody uses has one of 0
    assert_gradient(lambda x: hvd.grouped_allreduce([x, tf.constant([1]), x], op=hvd.Sum, **how)[0], shape, [shape],
                    sum(weights(shape)))
    # the gradient of tf.gather is IndexedSlices
    picked = np.zeros(shape)
    picked[0] = sum(weight(rank, (2, 2)).sum(0) for rank in members)
    assert_gradient(lambda x: tf.gather(hvd.allreduce(x, op=hvd.Sum, **how), [0, 0]), shape, [(2, 2)], picked)

    uneven, gathered = (place + 1, 2), (count * (count + 1) // 2, 2)
    start = place * (place + 1) // 2
    back = (sum(weights(gathered)) / count)[start:start + place + 1]
    assert_gradient(lambda x: hvd.allgather(x, name="rows", **how), uneven, [gathered], back)
    assert_gradient(lambda x: hvd.grouped_allgather([x, x], **how), uneven, [gathered] * 2, 2 * back)

    for root in members:
        assert_gradient(lambda x: hvd.broadcast(x, root, **how), shape, [shape],
                        sum(weights(shape)) / count * (me == root))

    # one row to each member, and one that is not sent
    back = np.stack([weight(rank, shape)[place] for rank in members] + [np.zeros(2)])
    assert_gradient(lambda x: hvd.alltoall(x, [1] * count, **how)[0], (count + 1, 2), [shape], back)


def check_more(hvd):
    import tensorflow as tf
    count = hvd.size()

    def second(x):  # gradients have gradients
        with tf.GradientTape() as outer:
            outer.watch(x)
            first = eager_tape(lambda x: tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum)**2), x)
        return outer.gradient(first, x)

    for call in (second, tf.function(second, autograph=False)):
        np.testing.assert_allclose(call(tf.fill([3], 2.0)), np.full(3, 2.0 * count * count))

    x = tf.constant([1.0, 2.0], tf.bfloat16)  # in the tensor's own type, also below a tape that is asked twice
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum, name="half"))
        z = y * 2
    for target, factor in ((y, 1), (z, 2), (y, 1)):
        gradient = tape.gradient(target, x)
        assert gradient.dtype == tf.bfloat16
        np.testing.assert_allclose(tf.cast(gradient, tf.float32), np.full(2, factor * count))

    variable = tf.Variable([1.0, 2.0])  # a training step, in which each op's gradient is one of many
    optimize = tf.function(lambda: _step(tf, hvd, variable), autograph=False)
    for _ in range(3):
        optimize()
    np.testing.assert_allclose(variable, [1 - 3 * 0.5 * count, 2 - 3 * 0.5 * count], rtol=1e-5)

    # nothing is asked of a constant, and no rank waits for it
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allreduce(tf.ones(2)))
    assert tape.gradient(loss, tf.Variable(1.0)) is None


def _step(tf, hvd, variable):
    with tf.GradientTape() as tape:
        losses = [tf.reduce_sum(hvd.allreduce(variable, op=hvd.Sum, name=f"part {at}")) for at in range(50)]
        loss = tf.add_n(losses) / 100
    variable.assign_sub(tape.gradient(loss, variable))


def check_gradients():
    _, hvd = modes.start()
    for members, process_set in everybody_and_a_pair(hvd):
        if hvd.rank() in members:
            check_rules(hvd, members, process_set)
    check_more(hvd)
    hvd.shutdown()


@pytest.mark.parametrize("np_, ops, memory", [
    (3, "native", "shared"), (2, "python", "single"), pytest.param(1, "native", "private", marks=pytest.mark.nightly)])
def test_gradients_follow_the_rule_of_their_op(ranks, np_, ops, memory):
    ranks(np_, check_gradients, env=modes.environment(ops, memory), timeout=300)
