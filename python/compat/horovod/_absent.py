# SPDX-License-Identifier: Apache-2.0
"""What this package has no use for, and what to do instead."""
from __future__ import annotations

_STARTED = "hvdrun starts the ranks itself; use horovod.run, hvd.run or the program hvdrun"

_WHY = {
    "horovod.mxnet": "MXNet is retired by its makers and not supported; use horovod.torch or horovod.tensorflow",
    "horovod.spark": "Spark is not supported; start a job with horovod.run or hvdrun on the node where the data is",
    "horovod.ray": "Ray is not supported; start a job with horovod.run or hvdrun",
    "horovod.data": "it is not offered; use a torch DataLoader with num_workers and prefetch_factor",
    "horovod.tensorflow.data": "it is not offered; start tf.data.experimental.service.DispatchServer and WorkerServer beside "
                               "the job, and read from them with tf.data.experimental.service.distribute",
    "horovod._keras": "it is the inside of horovod.keras and horovod.tensorflow.keras; use these",
    "horovod.common.elastic": "elastic jobs come later; horovod.torch.elastic has TorchState and ElasticSampler",
    "horovod.runner.util.streams": f"hvdrun passes on what ranks print; {_STARTED}",
    "horovod.runner.util.cache": f"the launcher checks no hosts beforehand, so it keeps no cache of checks; {_STARTED}",
    "horovod.runner.util.lsf": "hvdrun does not ask LSF for hosts; give them by -H",
    "horovod.runner.util.remote": f"hvdrun calls ssh itself; {_STARTED}",
    "horovod.runner.common.util.network": f"there are no services of a launcher; {_STARTED}",
    "horovod.runner.common.service": f"there are no services of a launcher; {_STARTED}",
    "horovod.runner.elastic": "elastic jobs come later",
    "horovod.runner.gloo_run": f"there is no Gloo here; {_STARTED}",
    "horovod.runner.mpi_run": f"no mpirun is called; {_STARTED}. Ranks that mpirun has started are understood",
    "horovod.runner.js_run": f"no jsrun is called; {_STARTED}",
    "horovod.runner.http": f"there is no rendezvous server; {_STARTED}",
    "horovod.runner.driver": f"there is no driver service; {_STARTED}",
    "horovod.runner.task": f"there is no task service; {_STARTED}",
    "horovod.runner.run_task": f"it is part of how Horovod starts ranks; {_STARTED}",
    "horovod.runner.task_fn": f"it is part of how Horovod starts ranks; {_STARTED}",
}


def missing(name: str) -> ImportError:
    """What importing the module `name` raises."""
    return ImportError(f"{name}: {_WHY[name]} (docs/coming-from-horovod.md)", name=name)
