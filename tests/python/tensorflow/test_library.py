# SPDX-License-Identifier: Apache-2.0
"""The op library: any order on one thread, what ends a wait, and what it knows of TensorFlow's inside."""
from __future__ import annotations

import io
import logging
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

RANKS_IMPORT = ("tensorflow",)

_SUM = {"reduce_op": 1, "prescale_factor": 1.0, "postscale_factor": 1.0, "process_set_id": 0}
_OPS = 400
native = pytest.mark.skipif(tuple(map(int, tf.__version__.split(".")[:2])) < (2, 15), reason="the op library needs 2.15")


def _library() -> Any:
    import hvd.tensorflow as hvd
    from hvd.tensorflow import _library as library
    hvd.init()
    assert library.is_native
    return hvd, library.ops


def _one_thread() -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def check_any_order() -> float:
    """Hundreds of independent ops, built in another order on every rank, on one thread."""
    _one_thread()
    hvd, ops = _library()
    order = list(range(_OPS))
    random.Random(hvd.rank()).shuffle(order)

    @tf.function
    def reduce_all(x: Any) -> Any:
        sums = {i: ops.hvd_allreduce(tensor=x * i, tensor_name=f"t{i}", **_SUM) for i in order}
        return tf.stack([sums[i] for i in range(_OPS)])

    for _ in range(3):
        result = reduce_all(tf.ones([20]))
    return float(tf.reduce_max(tf.abs(result - hvd.size() * tf.reshape(tf.range(_OPS, dtype=tf.float32), [-1, 1]))))


def check_more_than_fit() -> float:
    """More ops in one step than a session can have in flight."""
    _one_thread()
    hvd, ops = _library()

    def body(i: Any, total: Any) -> Any:
        parts = [ops.hvd_allreduce(tensor=tf.ones([2]), tensor_name=f"m{k}", **_SUM) for k in range(1500)]
        return i + 1, total + tf.add_n(parts)

    @tf.function
    def many() -> Any:
        return tf.while_loop(lambda i, _: i < 4, body, [0, tf.zeros([2])], parallel_iterations=1)[1]

    return float(many()[0]) / hvd.size()


@native
def test_any_order_on_one_thread(ranks: Any) -> None:
    assert ranks(3, check_any_order) == [0.0, 0.0, 0.0]


@native
def test_a_step_of_six_thousand_ops(ranks: Any) -> None:
    assert ranks(2, check_more_than_fit) == [6000.0, 6000.0]


def _told(call: Any) -> tuple[str, str, float]:
    """The class and text of what a call raises, and after how long."""
    start = time.monotonic()
    try:
        call()
    except BaseException as error:  # KeyboardInterrupt too
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "", time.monotonic() - start


def check_ends() -> Any:
    """Rank 0 waits for ops that rank 1 never submits, and is let go in every way there is."""
    hvd, ops = _library()

    @tf.function
    def with_a_failure(x: Any) -> Any:
        lonely = ops.hvd_allreduce(tensor=x, tensor_name="lonely", **_SUM)
        return lonely, tf.debugging.check_numerics(x / 0.0, "not a number")

    def in_session() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            lonely = ops.hvd_allreduce(tensor=tf.ones([2]), tensor_name="lonely", **_SUM)
            session.run(lonely, options=tf.compat.v1.RunOptions(timeout_in_ms=300))

    def alone() -> None:
        ops.hvd_allreduce(tensor=tf.ones([2]), tensor_name="lonely", **_SUM)

    if hvd.rank() == 1:
        return _told(lambda: ops.hvd_allreduce(tensor=tf.ones([2]), tensor_name="other", **_SUM))
    told = [_told(lambda: with_a_failure(tf.ones([2]))), _told(in_session)]
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    told.append(_told(alone))
    threading.Timer(0.3, hvd.shutdown).start()
    told.append(_told(alone))
    return told


@native
def test_what_ends_a_wait(ranks: Any) -> None:
    zero, one = ranks(2, check_ends)
    assert [kind for kind, _, _ in zero] == ["InvalidArgumentError", "DeadlineExceededError", "KeyboardInterrupt",
                                             "UnknownError"]
    assert "not a number" in zero[0][1]
    assert "shut down" in zero[3][1]
    assert one[0] == "UnknownError" and "HorovodAllreduce" in one[1] and "rank 0" in one[1]


def check_mismatch() -> Any:
    hvd, ops = _library()
    told = _told(lambda: ops.hvd_allreduce(tensor=tf.ones([1 + hvd.rank()]), tensor_name="grad", **_SUM))
    again = ops.hvd_allreduce(tensor=tf.ones([2]), tensor_name="grad", **_SUM)
    hvd.shutdown()
    return told[:2], float(again[0]), _told(lambda: ops.hvd_rank())[:2]


@native
def test_ranks_that_disagree(ranks: Any) -> None:
    for (kind, text), again, (kind_after, text_after) in ranks(2, check_mismatch):
        assert kind == "FailedPreconditionError"
        assert "HorovodAllreduce 'grad': Mismatched ALLREDUCE tensor shapes" in text and "rank 1 said [2]" in text
        assert again == 2.0
        assert kind_after == "FailedPreconditionError" and "hvd.init()" in text_after


_OFFSETS = """
#include "tensorflow/core/framework/op_kernel.h"
using tensorflow::OpKernelContext;
static_assert(offsetof(OpKernelContext, params_) == PARAMS, "params_");
static_assert(offsetof(OpKernelContext::Params, cancellation_manager) == MANAGER, "cancellation_manager");
static_assert(offsetof(OpKernelContext::Params, step_id) == 0, "step_id");
"""


@native
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_layout_is_that_of_the_headers(tmp_path: pathlib.Path) -> None:
    from hvd.tensorflow import _library as library
    params, manager = library.CANCELLATION[library.version()]
    source = tmp_path / "offsets.cc"
    source.write_text(_OFFSETS)
    done = subprocess.run(["g++", "-fsyntax-only", "-w", "-fno-access-control", *tf.sysconfig.get_compile_flags(),
                           f"-DPARAMS={params}", f"-DMANAGER={manager}", str(source)], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def check_fallback() -> Any:
    import hvd.tensorflow as hvd
    from hvd.tensorflow import _library as library
    log = io.StringIO()
    logging.getLogger("hvd").addHandler(logging.StreamHandler(log))
    hvd.init(tensorflow_memory="shared")
    assert "keeps its memory private: tensors go through Python" in log.getvalue()
    return library.is_native, float(hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum))


def test_without_the_library(ranks: Any) -> None:
    for is_native, result in ranks(2, check_fallback, env={"HVD_TENSORFLOW_OPS": "python"}):
        assert not is_native and result == 3.0
