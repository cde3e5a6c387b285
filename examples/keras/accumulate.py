# SPDX-License-Identifier: Apache-2.0
"""Gradients of several batches are summed up on each rank before the ranks exchange them: a batch too large for memory,
or a network too slow for every one. With an embedding layer, whose gradients are sparse.

    hvdrun -np 2 python accumulate.py

The model reads handwritten digits (scikit-learn's) as a text: each of the 64 pixels is one of 17 words, at one of 64
places, and each pair of word and place has a vector.
"""
import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

try:
    import hvd.tensorflow.keras as hvd
except ImportError:
    import horovod.tensorflow.keras as hvd

TRAIN_IMAGES, WORDS = 1500, 17


def load():
    """((texts, labels) to train on, (texts, labels) to test with); a text is 64 numbers below 64 * WORDS."""
    digits = load_digits()
    texts = digits.data.astype("int64") + WORDS * np.arange(64)
    labels = digits.target.astype("int64")
    return (texts[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]), (texts[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=8, help="of each rank and backward pass")
    parser.add_argument("--passes", type=int, default=4, help="how many of them make a step")
    parser.add_argument("--lr", type=float, default=0.005, help="of one rank; grows with their number")
    args = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(42 + hvd.rank())
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    train, test = load()
    dataset = tf.data.Dataset.from_tensor_slices(train).shard(hvd.size(), hvd.rank())
    dataset = dataset.shuffle(TRAIN_IMAGES).repeat().batch(args.batch_size)
    # Whole steps only: what is summed up at the end of an epoch goes on in the next.
    batches = TRAIN_IMAGES // hvd.size() // args.batch_size // args.passes * args.passes

    model = keras.Sequential([
        keras.layers.Embedding(64 * WORDS, 16),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.Adam(args.lr * hvd.size()), backward_passes_per_step=args.passes,
        average_aggregated_gradients=True,  # a step as large as that of one batch
        sparse_as_dense=True)               # sparse gradients cannot be summed up
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(dataset, steps_per_epoch=batches, epochs=args.epochs, verbose=2 if hvd.rank() == 0 else 0,
              callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
    if hvd.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        print(f"accuracy {100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
