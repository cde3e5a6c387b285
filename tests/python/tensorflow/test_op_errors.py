# SPDX-License-Identifier: Apache-2.0
"""The ops of hvd.tensorflow when something is wrong: arguments, ranks that disagree or leave, names, sessions."""
import threading

import modes
import numpy as np
import pytest


def check_arguments(hvd):
    """At once, whatever the mode; nothing is submitted."""
    import tensorflow as tf
    x, n = tf.ones([4, 3]), hvd.size()
    unregistered, unknown = hvd.ProcessSet([0]), hvd.ProcessSet([0])
    unknown.process_set_id = 10
    cases = [
        (lambda: hvd.allreduce(x, average=True, op=hvd.Sum), ValueError, "op parameter supersedes average"),
        (lambda: hvd.allgather(tf.constant("text")), TypeError, "string is not supported.*broadcast_object"),
        (lambda: hvd.allreduce(tf.ones(2, tf.complex64)), TypeError, "complex64 is not supported.*tf.cast"),
        (lambda: hvd.broadcast(tf.ones(2, tf.uint32), 0), TypeError, "uint32 is not supported"),
        (lambda: hvd.allgather(tf.ragged.constant([[1], [2, 3]])), TypeError, r"dense tensors.*to_tensor\(\)"),
        (lambda: hvd.allgather(tf.sparse.from_dense(x)), TypeError, "dense tensors.*tf.sparse.to_dense"),
        (lambda: hvd.allreduce(x, op=17), ValueError, r"op is 17; it must be one of hvd\.Average"),
        (lambda: hvd.grouped_allgather(x), TypeError, "a list of tensors"),
        (lambda: hvd.grouped_allgather([]), ValueError, "at least one tensor"),
        (lambda: hvd.alltoall(x, [[1]]), ValueError, "alltoall expects a 1D splits tensor"),
        (lambda: hvd.alltoall(x, tf.ones(n)), TypeError, "splits are of type float32.*tf.int32"),
        (lambda: hvd.reducescatter(tf.constant(1.0)), ValueError, "Reducescatter does not support scalar inputs"),
        (lambda: hvd.allgather(1.0), ValueError, "Allgather does not support scalar inputs"),
        (lambda: hvd.reducescatter(x, op=hvd.Adasum), ValueError, "only supports AVERAGE and SUM"),
        (lambda: hvd.allreduce(x, process_set=unregistered), ValueError, "Process set provided does not exist"),
        (lambda: hvd.allreduce(x, process_set=unknown), ValueError, "Process set provided does not exist"),
        (lambda: hvd.allgather(x, process_set=unknown), ValueError, "Process set provided does not exist"),
    ]
    for number, (call, kind, text) in enumerate(cases):
        for attempt in (call, tf.function(call, autograph=False)):
            with pytest.raises(kind, match=text):
                attempt()
                pytest.fail(f"case {number} was accepted")


def check_arguments_of_running_ops(hvd):
    """What only the op sees."""
    import tensorflow as tf
    x, n = np.ones((4, 3), np.float32), hvd.size()
    for call, text in (
        (lambda x: hvd.broadcast(x, n), "root"),
        (lambda x: hvd.alltoall(x, [1] * (n + 1)), "Number of entries in splits"),
        (lambda x: hvd.alltoall(x, [1] * (n - 1)), "Number of entries in splits"),
        (lambda x: hvd.alltoall(x, [5] * n), "plits"),
        (lambda x: hvd.alltoall(tf.ones(n + 1)), "no multiple|not an even multiple"),
        (lambda x: hvd.allreduce(x > 0, op=hvd.Sum), "bool"),
    ):
        for mode in modes.MODES:
            with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError), match=text):
                mode(call, [x])


def check_disagreements(hvd):
    """An error on every rank, which names the op and both sides; the session goes on."""
    import tensorflow as tf
    odd = hvd.rank() % 2
    x = np.ones((2 + odd, 2), np.float32)
    for call, op, text in (
        (lambda x: hvd.allreduce(x, name="a"), "HorovodAllreduce", "disagree on shape"),
        (lambda x: hvd.allreduce(tf.cast(x, tf.int32 if odd else tf.int64), name="b"), "HorovodAllreduce", "disagree"),
        (lambda x: hvd.allreduce(x[:1], prescale_factor=1.0 + odd, name="c"), "HorovodAllreduce", "disagree"),
        (lambda x: hvd.allreduce(x[:1], op=hvd.Sum if odd else hvd.Max, name="d"), "HorovodAllreduce", "disagree"),
        (lambda x: hvd.grouped_allreduce([x[:1], x], name="e"), "HorovodGroupedAllreduce", "disagree on shape"),
        (lambda x: hvd.allgather(tf.transpose(x), name="f"), "HorovodAllgather", "disagree"),
        (lambda x: hvd.broadcast(x[:1], odd, name="g"), "HorovodBroadcast", "disagree on root"),
        (lambda x: hvd.alltoall(tf.ones([hvd.size(), 2 + odd]), name="h"), "HorovodAlltoall", "disagree"),
        (lambda x: hvd.reducescatter(x, name="i"), "HorovodReducescatter", "disagree"),
    ):
        for mode in modes.MODES:
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"(?s){op}.*{text}"):
                mode(call, [x])
    assert hvd.allreduce(tf.ones(1), op=hvd.Sum).numpy().tolist() == [hvd.size()]


def check_strangers(hvd):
    """A set's op on a rank that is no member fails there, when it runs and not before."""
    import tensorflow as tf
    only_first = hvd.add_process_set([0])
    call = tf.function(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum, process_set=only_first), autograph=False)
    either = tf.function(lambda: tf.cond(hvd.process_set_included_op(only_first.process_set_id) > 0, call,
                                         lambda: tf.zeros(2)), autograph=False)
    assert either().numpy().tolist() == [float(hvd.rank() == 0)] * 2
    if hvd.rank() == 0:
        assert call().numpy().tolist() == [1.0, 1.0]
    else:
        for mode in modes.MODES:
            with pytest.raises(tf.errors.InvalidArgumentError, match="member"):
                mode(lambda x: hvd.allreduce(x, process_set=only_first), [np.ones(2)])
    hvd.remove_process_set(only_first)
    with pytest.raises(tf.errors.InvalidArgumentError):
        call()


def check_names_in_flight(hvd):
    """Two threads of a rank use a name at once: one has the op, the other is told so."""
    import tensorflow as tf
    told, totals = threading.Event(), []

    def work():
        try:
            totals.append(hvd.allreduce(tf.ones(2), op=hvd.Sum, name="twice").numpy().tolist())
        except tf.errors.FailedPreconditionError as error:
            assert "twice" in str(error)
            told.set()

    threads = [threading.Thread(target=work) for _ in range(2 if hvd.rank() == 0 else 0)]
    for thread in threads:
        thread.start()
    assert hvd.rank() != 0 or told.wait(60)
    hvd.allgather(tf.ones(1), name="go on")
    if hvd.rank() != 0:
        work()
    for thread in threads:
        thread.join()
    assert totals == [[float(hvd.size())] * 2]


def check_leavers(hvd):
    """A rank shuts down while others wait: UnknownError, which names the op and the rank. Afterwards all begin again,
    and functions that were traced before go on to work."""
    import tensorflow as tf
    ask = tf.function(lambda: hvd.size_op(), autograph=False)
    total = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="waited for"), autograph=False)
    calls = {modes.eagerly: lambda: hvd.allreduce(tf.ones(2), name="waited for"),
             modes.in_function: lambda: total(tf.ones(2)),
             modes.in_graph: lambda: modes.in_graph(lambda x: hvd.allreduce(x, name="waited for"), [np.ones(2)])}
    for mode, call in calls.items():
        hvd.allgather(tf.ones(1))  # all have begun
        if hvd.rank() != hvd.size() - 1:
            sentence = f"(?s)HorovodAllreduce.*waited for.*rank {hvd.size() - 1}"
            with pytest.raises(tf.errors.UnknownError, match=sentence):
                call()
        hvd.shutdown()
        for attempt in (hvd.size_op, ask, lambda mode=mode: mode(lambda x: hvd.allreduce(x), [np.ones(2)])):
            with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError),
                               match="init"):
                attempt()
        hvd.init()
        assert int(ask()) == hvd.size()
        assert total(tf.ones(2)).numpy().tolist() == [hvd.size()] * 2


def check_elastic_runs(hvd):
    """run() raises HorovodInternalError in the place of the UnknownError of an op, and of no other."""
    import tensorflow as tf
    state = hvd.elastic.TensorFlowState([tf.Variable(1.0)])
    last = hvd.rank() == hvd.size() - 1

    def train(_state, call):
        return call()

    def fail():
        raise tf.errors.UnknownError(None, None, "Failed to get convolution algorithm")
    with pytest.raises(tf.errors.UnknownError, match="convolution"):
        hvd.elastic.run(train)(state, fail)
    wait = tf.function(lambda: hvd.allreduce(tf.ones(2), name="waited for"), autograph=False)
    if last:
        state.sync()
    else:
        with pytest.raises(hvd.HorovodInternalError, match=f"(?s)waited for.*rank {hvd.size() - 1}"):
            hvd.elastic.run(train)(state, wait)
    hvd.shutdown()
    hvd.init()


class Interrupted:
    """A watcher of the session in whose closing() a signal handler raises."""

    def closing(self, session):
        raise KeyboardInterrupt

    def stays(self, session):
        pass


def check_shutdown_that_is_interrupted(hvd):
    import tensorflow as tf
    from hvd import _session
    watchers = _session.current().watchers
    watchers.append(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        hvd.shutdown()
    watchers.pop()
    assert hvd.allreduce(tf.ones(1), op=hvd.Sum).numpy().tolist() == [hvd.size()]


def check_everything():
    tf, hvd = modes.start()
    for check in (check_arguments, check_arguments_of_running_ops, check_disagreements, check_strangers,
                  check_names_in_flight, check_leavers, check_elastic_runs, check_shutdown_that_is_interrupted):
        check(hvd)
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
        hvd.allreduce(tf.ones(1))
    with pytest.raises(ValueError, match="init"):
        hvd.size()


@pytest.mark.parametrize("ops, memory", [("native", "shared"), ("python", "single")])
def test_what_is_wrong_is_told_by_the_right_class_and_sentence(ranks, ops, memory):
    ranks(2, check_everything, env=modes.environment(ops, memory), timeout=300)
