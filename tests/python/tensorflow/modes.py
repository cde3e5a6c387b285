# SPDX-License-Identifier: Apache-2.0
"""TensorFlow as the tests of this folder use it: one thread, and the same calls eagerly, in tf.function and in a graph
of TensorFlow 1."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def environment(ops):
    """What makes a rank use the op library, where this TensorFlow has it, or Python functions."""
    return {"HVD_TENSORFLOW_OPS": "python"} if ops == "python" else {}


def start():
    """TensorFlow with one thread of each kind, and hvd after init()."""
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    import hvd.tensorflow as hvd
    hvd.init()
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
