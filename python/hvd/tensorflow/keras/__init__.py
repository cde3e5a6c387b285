# SPDX-License-Identifier: Apache-2.0
"""Distributed training with tf.keras: `import hvd.tensorflow.keras as hvd`, with the names, arguments and errors of
horovod.tensorflow.keras.

    import hvd.tensorflow.keras as hvd
    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Keras 3, the Keras 2 of TensorFlow to 2.15, and tf_keras: the optimizer decides which, not the order of imports.
"""
from __future__ import annotations

from tensorflow import keras

from hvd._keras import _tensorflow
from hvd._keras.api import Api
from hvd.tensorflow.compression import Compression
from hvd.tensorflow.keras import callbacks, elastic
from hvd.tensorflow.mpi_ops import (Average, ProcessSet, Sum, add_process_set, ccl_built, cross_rank, cross_size,
                                    cuda_built, ddl_built, global_process_set, gloo_built, gloo_enabled, init,
                                    is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                                    mpi_threads_supported, nccl_built, rank, remove_process_set, rocm_built, shutdown,
                                    size, start_timeline, stop_timeline)

_api = Api(keras, _tensorflow)
DistributedOptimizer = _api.DistributedOptimizer
PartialDistributedOptimizer = _api.PartialDistributedOptimizer
broadcast_global_variables = _api.broadcast_global_variables
allreduce = _api.allreduce
allgather = _api.allgather
broadcast = _api.broadcast
reducescatter = _api.reducescatter
load_model = _api.load_model
