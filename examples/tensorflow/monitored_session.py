# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits in the style of TensorFlow 1: a graph, an optimizer of tf.compat.v1.train, MonitoredTrainingSession.

    hvdrun -np 2 python monitored_session.py

The same script runs on Horovod (with a TensorFlow that it supports): see the import.
"""
import argparse
import pathlib

import numpy as np
import tensorflow.compat.v1 as tf

try:
    import hvd.tensorflow as hvd
except ImportError:
    import horovod.tensorflow as hvd

DATA = pathlib.Path(__file__).resolve().parents[1] / "digits" / "digits.csv"
TRAIN_IMAGES = 1500


def load(path):
    """((images, labels) to train on, (images, labels) to test with); a line of the file is 64 pixels of 0..16 and the
    digit."""
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    images = table[:, :64].reshape(-1, 8, 8, 1).astype("float32") / 16
    labels = table[:, 64]
    return (images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]), (images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])


def conv_layer(inputs, filters, name):
    """A 3x3 convolution and relu."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, inputs.shape[-1], filters])
        bias = tf.get_variable("bias", [filters], initializer=tf.zeros_initializer())
    return tf.nn.relu(tf.nn.conv2d(inputs, kernel, strides=1, padding="SAME") + bias)


def dense_layer(inputs, units, name):
    """A linear layer."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def logits_of(images):
    """Two convolutions and two dense layers."""
    hidden = conv_layer(conv_layer(images, 16, "conv1"), 32, "conv2")
    hidden = tf.nn.max_pool2d(hidden, 2, 2, "VALID")
    hidden = tf.nn.relu(dense_layer(tf.reshape(hidden, [-1, 4 * 4 * 32]), 64, "fc1"))
    return dense_layer(hidden, 10, "fc2")


def batches_of(images, labels, batch_size, seed):
    """Shuffled batches without end."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(images))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            picked = order[start:start + batch_size]
            yield images[picked], labels[picked]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500, help="of one rank alone; shared among all")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.03, help="of one rank; grows with their number")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint-dir", help="rank 0 saves there, and all go on from there")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    tf.disable_v2_behavior()
    hvd.init()
    tf.set_random_seed(args.seed + hvd.rank())  # ranks begin differently; the hook makes them equal

    (train_images, train_labels), (test_images, test_labels) = load(args.data)
    mine = slice(hvd.rank(), None, hvd.size())
    batches = batches_of(train_images[mine], train_labels[mine], args.batch_size, args.seed)

    images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    logits = logits_of(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    hits = tf.count_nonzero(tf.equal(tf.argmax(logits, 1), labels))
    # Every rank runs it with its share of the test images.
    all_hits = hvd.allreduce(tf.stack([hits, tf.size(labels, out_type=tf.int64)]), op=hvd.Sum, name="hits")

    global_step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.AdagradOptimizer(args.lr * hvd.size()))
    train_op = optimizer.minimize(loss, global_step=global_step)

    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    last_step = args.steps // hvd.size()
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    # Ranks that write the same checkpoint would spoil it, so only rank 0 has a folder.
    folder = args.checkpoint_dir if hvd.rank() == 0 else None

    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, config=config, hooks=hooks) as session:
        step = session.run(global_step)
        while step < last_step:
            batch_images, batch_labels = next(batches)
            _, value, step = session.run([train_op, loss, global_step], {images: batch_images, labels: batch_labels})
            if hvd.rank() == 0 and step % 50 == 0:
                print(f"step {step}: loss {value:.5f}", flush=True)
        feed = {images: test_images[mine], labels: test_labels[mine]}
        right, tested = session.run(all_hits, feed)
    if hvd.rank() == 0:
        print(f"accuracy {100 * right / tested:.2f} %", flush=True)


if __name__ == "__main__":
    main()
