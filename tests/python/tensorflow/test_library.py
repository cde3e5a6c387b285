# SPDX-License-Identifier: Apache-2.0
"""The op library: any order on one thread, what ends a wait, and what it knows of TensorFlow's inside."""
from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

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
    hvd.init()
    return library.is_native, float(hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum))


def test_without_the_library(ranks: Any) -> None:
    for is_native, result in ranks(2, check_fallback, env={"HVD_TENSORFLOW_OPS": "python"}):
        assert not is_native and result == 3.0



def _address(tensor: Any) -> int:
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def _home(tensor: Any) -> str:
    """What the memory of a tensor is mapped from."""
    address = _address(tensor)
    for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < end:
            return line.split(maxsplit=5)[5] if len(line.split()) > 5 else ""
    return "nowhere"


def _where(values: Any) -> Any:
    return np.int64(values.__array_interface__["data"][0])


def check_shared_heap() -> Any:
    """A step over three sessions: where a tensor lives in each, and whether a gradient is reduced in place."""
    hvd, ops = _library()

    @tf.function
    def step(x: Any) -> Any:
        wanted_later = x * 2.0
        only_reduced = x * 3.0
        before = tf.numpy_function(_where, [only_reduced], tf.int64)
        kept = ops.hvd_allreduce(tensor=wanted_later, tensor_name="kept", **_SUM)
        with tf.control_dependencies([before]):
            free = ops.hvd_allreduce(tensor=only_reduced, tensor_name="free", **_SUM)
        return wanted_later, kept, free, before

    homes, mine = [], 1.0 + hvd.rank()
    x = tf.fill([1024, 1024], mine)
    for session in range(3):
        hvd.init()
        step(x)  # while the session is told of a region, other ops do without
        doubled, kept, free, before = step(x)
        assert set(doubled.numpy().ravel()) == {2 * mine}, session
        assert set(kept.numpy().ravel()) == {6.0} and set(free.numpy().ravel()) == {9.0}, session
        homes.append((_home(x), int(before) == _address(free)))
        hvd.shutdown()
        assert set(x.numpy().ravel()) == {mine} and set(free.numpy().ravel()) == {9.0}, session
    return homes


#: With it TensorFlow has an allocator that takes whole regions.
_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}


@native
@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is oneDNN's allocator on x86-64 only")
def test_tensors_live_in_shared_memory(ranks: Any) -> None:
    for homes in ranks(2, check_shared_heap, env=_ONEDNN):
        assert all("memfd:hvd-mem" in home and in_place for home, in_place in homes), homes


@native
@pytest.mark.parametrize("settings", [{**_ONEDNN, "HVD_TENSORFLOW_MEMORY": "private"}, {"TF_ENABLE_ONEDNN_OPTS": "0"}],
                         ids=["wish", "allocator"])
def test_tensors_live_in_private_memory(ranks: Any, settings: dict[str, str]) -> None:
    for homes in ranks(2, check_shared_heap, env=settings):
        assert not any("memfd" in home or home == "nowhere" or in_place for home, in_place in homes), homes


def check_child() -> Any:
    """A forked child sees the tensors and writes into a view of its own."""
    hvd, _ops = _library()
    x = tf.fill([1024, 1024], 5.0)
    assert "memfd:hvd-mem" in _home(x)
    numbers = (ctypes.c_float * (1024 * 1024)).from_address(_address(x))
    child = os.fork()
    if child == 0:
        good = numbers[3] == 5.0
        ctypes.memset(numbers, 0, 4096 * 1024)
        os._exit(0 if good and numbers[3] == 0.0 else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, float(tf.reduce_max(hvd.allreduce(x, name="after")))


@native
@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is oneDNN's allocator on x86-64 only")
def test_a_forked_child_writes_its_own(ranks: Any) -> None:
    assert ranks(2, check_child, env=_ONEDNN) == [(0, 5.0), (0, 5.0)]
