# SPDX-License-Identifier: Apache-2.0
"""Where TensorFlow's tensors lie: in private memory, or in shared memory where the user asks for it (docs/adr/0014)."""
from __future__ import annotations

import ctypes
import logging
import os
import pathlib
import platform
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="TensorFlow has oneDNN's allocator on x86-64 only")

_SUM = {"reduce_op": 1, "prescale_factor": 1.0, "postscale_factor": 1.0, "process_set_id": 0}
#: With it TensorFlow has an allocator that takes whole regions, on every x86-64.
_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "1"}


class _Lines(logging.Handler):
    """What the logger "hvd" says of memory, as (level, text)."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str]] = []
        logging.getLogger("hvd").addHandler(self)
        logging.getLogger("hvd").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        if "emory" in record.getMessage():
            self._lines.append((record.levelname, record.getMessage()))

    def new(self) -> list[tuple[str, str]]:
        """Those since the last call."""
        lines, self._lines = self._lines, []
        return lines


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


def _check_step(ops: Any, x: Any, mine: float) -> Any:
    """A step with a variable, a gradient that is wanted later and one that is not; whether the last was reduced in place."""
    variable = tf.Variable(x)

    @tf.function
    def step(x: Any) -> Any:
        wanted_later = x * 2.0
        only_reduced = x * 3.0
        before = tf.numpy_function(_where, [only_reduced], tf.int64)
        kept = ops.hvd_allreduce(tensor=wanted_later, tensor_name="kept", **_SUM)
        of_variable = ops.hvd_allreduce(tensor=variable, tensor_name="variable", **_SUM)
        with tf.control_dependencies([before]):
            free = ops.hvd_allreduce(tensor=only_reduced, tensor_name="free", **_SUM)
        return wanted_later, kept, of_variable, free, before

    for _ in range(3):  # in the first the session is told of regions, and kernels learn which inputs have other users
        *values, before = step(x)
        doubled, kept, of_variable, free = values
        for each, value in ((doubled, 2 * mine), (kept, 6), (variable, mine), (of_variable, 3), (free, 9)):
            assert bool((each.numpy() == value).all()), value
    return int(before) == _address(free), free


def _check_child(hvd: Any) -> None:
    """A forked child sees the tensors and writes into a view of its own."""
    x = tf.fill([1024, 1024], 5.0)
    assert "memfd:hvd-mem" in _home(x)
    numbers = (ctypes.c_float * (1024 * 1024)).from_address(_address(x))
    child = os.fork()
    if child == 0:
        good = numbers[3] == 5.0
        ctypes.memset(numbers, 0, 4096 * 1024)
        os._exit(0 if good and numbers[3] == 0.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert float(tf.reduce_max(hvd.allreduce(x, name="after"))) == 5.0


def check_shared() -> None:
    """Over three sessions: where a tensor lives in each, and whether a gradient is reduced in place. The argument is that of
    every init() of TensorFlow's and Keras'."""
    lines = _Lines()
    import horovod.keras
    import horovod.tensorflow
    import horovod.tensorflow.keras
    import hvd.keras as hvd_keras
    import hvd.tensorflow as hvd
    import hvd.tensorflow.keras as hvd_tf_keras
    from hvd.tensorflow import _library
    for package in (hvd, hvd_keras, hvd_tf_keras, horovod.keras, horovod.tensorflow, horovod.tensorflow.keras):
        with pytest.raises(ValueError, match="tensorflow_memory is 'all'; it must be 'private' or 'shared'"):
            package.init(tensorflow_memory="all")
    assert not hvd.is_initialized()
    horovod.keras.init(tensorflow_memory="shared")
    (level, text), = lines.new()
    assert level == "INFO" and "from now on" in text and "ranks of this job share" in text, text
    mine = 1.0 + hvd.rank()
    x = tf.fill([1024, 1024], mine)
    for _ in range(3):
        hvd.init()
        in_place, free = _check_step(_library.ops, x, mine)
        assert in_place and "memfd:hvd-mem" in _home(x)
        hvd.shutdown()
        assert set(x.numpy().ravel()) == {mine} and set(free.numpy().ravel()) == {9.0}
    hvd.init()
    _check_child(hvd)
    assert lines.new() == []
    hvd.init(tensorflow_memory="private")
    (level, text), = lines.new()
    assert level == "WARNING" and "comes too late" in text, text


def test_memory_is_shared_when_it_is_asked_for(ranks: Any) -> None:
    ranks(2, check_shared, env={**_ONEDNN, "HVD_TENSORFLOW_MEMORY": "private"})


def check_private() -> None:
    """Private by default, sums too; one line says what sharing would save; asking for it later is answered."""
    lines = _Lines()
    import hvd.tensorflow as hvd
    from hvd.tensorflow import _library
    for wrong in ("Shared", "on", ""):
        with pytest.raises(ValueError, match="tensorflow_memory is '.*'; it must be 'private' or 'shared'"):
            hvd.init(tensorflow_memory=wrong)
    assert not hvd.is_initialized()
    hvd.init()
    mine = 1.0 + hvd.rank()
    x = tf.fill([1024, 1024], mine)
    in_place, _ = _check_step(_library.ops, x, mine)
    assert in_place and "memfd" not in _home(x)
    for number in range(200):
        hvd.allreduce(x[:64], op=hvd.Sum, name=f"gradient {number % 4}")
        if number < 50:
            assert lines.new() == []
    (level, text), = lines.new()
    assert level == "INFO" and "HVD_TENSORFLOW_MEMORY=shared" in text and "tensorflow_memory=" in text, text

    hvd.init(tensorflow_memory="shared")
    (level, text), (late, told) = lines.new()
    assert (level, late) == ("INFO", "WARNING") and "before shared memory was asked for" in told, told
    hvd.shutdown()
    hvd.init()
    assert "memfd" not in _home(x)
    large = tf.fill([16, 1024, 1024], mine)  # nothing that TensorFlow has has room for it
    assert "memfd:hvd-mem" in _home(large)
    assert _check_step(_library.ops, large, mine)[0] and lines.new() == []


def test_memory_is_private_when_it_is_not_asked_for(ranks: Any) -> None:
    ranks(2, check_private, env=_ONEDNN)


def check_impossible() -> None:
    """Where it cannot be, one line says why, and everything works."""
    lines = _Lines()
    import hvd.tensorflow as hvd
    from hvd.tensorflow import _library
    hvd.init()
    (level, text), = lines.new()
    assert level == "WARNING" and "oneDNN is off" in text and tf.__version__ in text, text
    mine = 1.0 + hvd.rank()
    x = tf.fill([1024, 1024], mine)
    in_place, _ = _check_step(_library.ops, x, mine)
    assert in_place and "memfd" not in _home(x)
    for number in range(100):
        hvd.allreduce(x, op=hvd.Sum, name=f"gradient {number % 4}")
    hvd.shutdown()
    hvd.init()
    assert lines.new() == []
    for version in ((2, 14), (2, 18), (2, 22), (3, 15)):
        told = _library._memory.memory._library.hvd_tf_share_heap(*version).decode()
        assert "2.15 and 2.21 only" in told, told

    hvd.shutdown()
    os.environ["HVD_TENSORFLOW_MEMORY"] = "everything"
    with pytest.raises(ValueError, match="HVD_TENSORFLOW_MEMORY is 'everything'; it must be 'private' or 'shared'"):
        hvd.init()
    with pytest.raises(ValueError, match="HVD_TENSORFLOW_MEMORY is 'everything'"):
        _library._session.open_current(dict)  # as the init() of another framework does
    assert not hvd.is_initialized()


def test_where_memory_cannot_be_shared_a_line_says_why(ranks: Any) -> None:
    ranks(2, check_impossible, env={"TF_ENABLE_ONEDNN_OPTS": "0", "HVD_TENSORFLOW_MEMORY": "shared"})
