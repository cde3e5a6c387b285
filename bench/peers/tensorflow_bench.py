# SPDX-License-Identifier: Apache-2.0
"""One measurement of a library for TensorFlow, as measuring.py does it. Prints one JSON line.

    tensorflow_bench.py LIBRARY OP BYTES|FILE SECONDS

LIBRARY: hvd (under hvdrun), horovod (under horovodrun), mwms (MultiWorkerMirroredStrategy; starts its NP=n ranks itself),
alone (one process), apart (NP=n processes at once, each alone: what no library can be faster than). OP: step
(tensorflow_training.py), and of hvd and horovod gradients (each tensor of FILE, all in one tf.function) and allreduce
(eager). Every rank has one intra-op thread, and with BENCH_CORE_EACH=1 a core of its own."""
import argparse
import importlib
import json
import os
import socket
import subprocess
import sys

import measuring

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def horovods(name: str) -> measuring.Peer:
    """hvd or Horovod; they have the same functions."""
    import tensorflow as tf
    hvd = importlib.import_module(f"{name}.tensorflow")

    def step(size: int) -> measuring.Prepared:
        """As its documentation says."""
        import tensorflow_training as training
        hvd_keras = importlib.import_module(f"{name}.tensorflow.keras")

        def compiled():
            model = training.make_model()
            model.compile(hvd_keras.DistributedOptimizer(training.make_optimizer()), "mse")
            return model
        return training.Training(hvd.rank(), size, compiled, callbacks=lambda: [
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)]).prepared()

    def prepare(args: argparse.Namespace, size: int) -> measuring.Prepared:
        if args.op == "step":
            return step(size)
        kept: list = []
        counts = measuring.sizes_of(args.what) if args.op == "gradients" else [max(int(args.what) // 4, 1)]
        tensors = [tf.fill([count], 1.0 + hvd.rank()) for count in counts]

        def reduce_all() -> list:
            return [hvd.allreduce(tensor, name=f"t{i}", op=hvd.Sum) for i, tensor in enumerate(tensors)]
        reducing = tf.function(reduce_all) if args.op == "gradients" else reduce_all

        def run() -> None:
            kept.clear()
            kept.extend(reducing())
        return run, sum(counts) * 4, lambda: all(
            bool(tf.reduce_all(each == float(sum(range(1, size + 1))))) for each in kept)
    return measuring.with_horovods_api(f"tensorflow_bench {name}", hvd, lambda numbers: tf.constant(numbers, tf.float64),
                                       prepare)


def mirrored() -> measuring.Peer:
    """TensorFlow's own, one of the ranks that start_ranks() starts."""
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation[os.environ.get("MWMS_COMMUNICATION", "RING")]))
    import tensorflow_training as training
    cluster = json.loads(os.environ["TF_CONFIG"])
    rank, size = cluster["task"]["index"], len(cluster["cluster"]["worker"])

    def compiled():
        with strategy.scope():
            model = training.make_model()
            model.compile(training.make_optimizer(), "mse")
        return model

    def largest(numbers: list[float]) -> list[float]:
        mine = strategy.run(lambda: tf.constant([numbers], tf.float64))
        return tf.reduce_max(strategy.gather(mine, axis=0), axis=0).numpy().tolist()

    def prepare(_args: argparse.Namespace, size: int) -> measuring.Prepared:
        return training.Training(rank, size, compiled, lambda rows, wanted: (
            strategy.distribute_datasets_from_function(lambda _context: training.endless(rows, wanted)))).prepared()
    return measuring.Peer("tensorflow_bench mwms", rank, size, lambda: largest([0.0]), largest, prepare)


def alone(rank: int = 0) -> measuring.Peer:
    """What one process takes, without any library."""
    import tensorflow_training as training

    def compiled():
        model = training.make_model()
        model.compile(training.make_optimizer(), "mse")
        return model
    return measuring.Peer("tensorflow_bench alone", rank, 1, lambda: None, lambda numbers: numbers,
                          lambda _args, size: training.Training(0, size, compiled).prepared())


def start_ranks(np: int) -> int:
    """Runs this program `np` times as TF_CONFIG says. When one fails the others are ended. 0 or 1."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(np)]
    workers = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})})
             for rank in range(np)]
    failed = any(os.wait()[1] for _ in ranks)  # in the order in which they end, up to the first failure
    for rank in ranks if failed else []:
        rank.kill()
    return int(failed)


def take_a_core() -> None:
    """The rank's own one, as `hvdrun --bind-to core` and `mpirun --bind-to core` give."""
    rank = os.environ.get("HOROVOD_RANK") or json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})


def open_peer(library: str) -> measuring.Peer:
    """The library, started."""
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if library in ("hvd", "horovod"):
        return horovods(library)
    if library == "apart":
        return alone(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    return mirrored() if library == "mwms" else alone()


if __name__ == "__main__":
    chosen = sys.argv[1]
    if chosen in ("mwms", "apart") and "TF_CONFIG" not in os.environ:
        sys.exit(start_ranks(int(os.environ["NP"])))
    if os.environ.get("BENCH_CORE_EACH"):
        take_a_core()
    del sys.argv[1]
    measuring.main(lambda: open_peer(chosen))
