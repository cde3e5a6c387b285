# SPDX-License-Identifier: Apache-2.0
"""TensorFlow as the tests of this folder use it: one thread, and the same calls eagerly, in tf.function and in a graph
of TensorFlow 1."""
import os
import pathlib

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

#: Where tensors lie: by oneDNN's allocator, which takes whole regions, in memory of the process or in memory that the ranks share;
#: or each tensor in an allocation of its own.
_MEMORIES = {"private": {"TF_ENABLE_ONEDNN_OPTS": "1", "HVD_TENSORFLOW_MEMORY": "private"},
             "shared": {"TF_ENABLE_ONEDNN_OPTS": "1", "HVD_TENSORFLOW_MEMORY": "shared"},
             "single": {"TF_ENABLE_ONEDNN_OPTS": "0", "HVD_TENSORFLOW_MEMORY": "private"}}


def environment(ops, memory):
    """What makes a rank use the op library, where this TensorFlow has it, or Python functions; and a kind of memory."""
    return {**({"HVD_TENSORFLOW_OPS": "python"} if ops == "python" else {}), **_MEMORIES[memory]}


def check_memory():
    """That tensors of 256 KiB and more lie where the environment says; the ranks are more than one."""
    import tensorflow as tf
    address = np.asarray(memoryview(tf.zeros([1 << 16]))).__array_interface__["data"][0]
    home = next(line for line in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
                if address < int(line.split()[0].split("-")[1], 16))
    wanted = native() and os.environ.get("HVD_TENSORFLOW_MEMORY") == "shared"
    assert ("memfd:hvd-mem" in home) == wanted, home


def start():
    """TensorFlow with one thread of each kind, and hvd after init()."""
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    import hvd.tensorflow as hvd
    hvd.init()
    if hvd.size() > 1:
        check_memory()
    return tf, hvd


def native():
    """Whether the ops are TensorFlow's own rather than Python functions."""
    from hvd.tensorflow import _library
    return _library.is_native


def session(tf):
    """A session with one thread."""
    return tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1,
                                                                intra_op_parallelism_threads=1))


def eagerly(function, arrays):
    import tensorflow as tf
    results = function(*(tf.constant(array) for array in arrays))
    return tf.nest.map_structure(lambda result: result.numpy(), results)


def in_function(function, arrays):
    import tensorflow as tf
    results = tf.function(function, autograph=False)(*(tf.constant(array) for array in arrays))
    return tf.nest.map_structure(lambda result: result.numpy(), results)


def in_graph(function, arrays):
    import tensorflow as tf
    with tf.Graph().as_default(), session(tf) as running:
        places = [tf.compat.v1.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
        return running.run(function(*places), dict(zip(places, arrays)))


MODES = (eagerly, in_function, in_graph)
