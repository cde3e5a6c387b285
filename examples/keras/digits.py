# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with Keras' fit() on TensorFlow: what a script for one process needs to run on many are five steps.

    hvdrun -np 2 python digits.py

The images are scikit-learn's copy of the digits (pip install scikit-learn). --split says how work is divided: `epochs`,
each rank sees all images in an order of its own, but for fewer epochs; `steps`, the same with fewer steps in each epoch;
`shard`, each rank has its share of the images. The same script runs on Horovod: see the import.
"""
import argparse

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

try:
    import hvd.tensorflow.keras as hvd
except ImportError:
    import horovod.tensorflow.keras as hvd

TRAIN_IMAGES = 1500


def load():
    """((images, labels) to train on, (images, labels) to test with); images of 8x8x1, from 0 to 1."""
    digits = load_digits()
    images = digits.images.reshape(-1, 8, 8, 1).astype("float32") / 16
    labels = digits.target.astype("int64")
    return (images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]), (images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])


def make_model():
    """Two convolutions and two dense layers."""
    return keras.Sequential([
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(10, activation="softmax"),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.001, help="of one rank; grows with their number")
    parser.add_argument("--split", choices=["epochs", "steps", "shard"], default="shard")
    parser.add_argument("--save", help="rank 0 saves the model there, as .keras or .h5")
    args = parser.parse_args()

    # 1. Start, and find out who is who.
    hvd.init()
    keras.utils.set_random_seed(42 + hvd.rank())

    # 2. One GPU for each rank of the node, where there are any.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    train, test = load()
    dataset = tf.data.Dataset.from_tensor_slices(train)
    steps, epochs = TRAIN_IMAGES // args.batch_size, args.epochs
    if args.split == "shard":
        dataset = dataset.shard(hvd.size(), hvd.rank())
    if args.split == "epochs":
        epochs = epochs // hvd.size()
    else:
        steps = steps // hvd.size()
    dataset = dataset.shuffle(TRAIN_IMAGES).repeat().batch(args.batch_size)

    # 3. All ranks together have a larger batch, so they can take larger steps.
    optimizer = keras.optimizers.Adam(args.lr * hvd.size())

    # 4. Average the gradients.
    optimizer = hvd.DistributedOptimizer(optimizer)

    model = make_model()
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        # 5. Begin with the same weights everywhere.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Metrics of all ranks, not of one's own; before callbacks that look at them.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(args.lr * hvd.size(), warmup_epochs=2, steps_per_epoch=steps),
    ]
    # Everybody trains; what is printed, saved and tested is everywhere the same, so rank 0 does it.
    model.fit(dataset, steps_per_epoch=steps, epochs=epochs, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)
    if hvd.rank() == 0:
        _, accuracy = model.evaluate(*test, verbose=0)
        print(f"accuracy {100 * accuracy:.2f} %", flush=True)
        if args.save:
            model.save(args.save)


if __name__ == "__main__":
    main()
