# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on PyTorch: handwritten digits (scikit-learn's) with fit(), data parallel.

    KERAS_BACKEND=torch hvdrun -np 2 python on_torch.py

Without KERAS_BACKEND the script chooses PyTorch itself; with KERAS_BACKEND=tensorflow it is the same on TensorFlow.
"""
import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import hvd.keras as hvd  # noqa: E402

TRAIN_IMAGES = 1500


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.001, help="of one rank; grows with their number")
    args = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(42 + hvd.rank())
    if keras.backend.backend() == "torch":
        import torch  # pylint: disable=import-outside-toplevel
        torch.set_num_threads(1)
        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank())

    digits = load_digits()
    images = digits.images.astype("float32") / 16
    labels = digits.target.astype("int64")
    # As many images for each rank, or one would wait for gradients that never come.
    mine = slice(hvd.rank(), TRAIN_IMAGES // hvd.size() * hvd.size(), hvd.size())

    model = keras.Sequential([
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(args.lr * hvd.size()))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images[mine], labels[mine], batch_size=args.batch_size, epochs=args.epochs,
              verbose=2 if hvd.rank() == 0 else 0,
              callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])
    if hvd.rank() == 0:
        _, accuracy = model.evaluate(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:], verbose=0)
        print(f"accuracy {100 * accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
