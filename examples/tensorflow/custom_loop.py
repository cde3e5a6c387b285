# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with TensorFlow 2 and a training loop of one's own: each rank trains on its shard of the images, and
DistributedGradientTape averages the gradients.

    hvdrun -np 2 python custom_loop.py

The same script runs on Horovod (with a TensorFlow that it supports): see the import.
"""
import argparse
import pathlib

import numpy as np
import tensorflow as tf

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


def make_model():
    """Two convolutions and two dense layers for images of 8x8x1."""
    return tf.keras.Sequential([
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.001, help="of one rank; grows with their number")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--checkpoint", help="rank 0 saves model and optimizer there")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.random.set_seed(args.seed + hvd.rank())  # ranks begin differently; the broadcast makes them equal

    train, (test_images, test_labels) = load(args.data)
    # Every rank takes the same number of batches, or one would wait for gradients that never come.
    batches = TRAIN_IMAGES // hvd.size() // args.batch_size
    dataset = (tf.data.Dataset.from_tensor_slices(train).shard(hvd.size(), hvd.rank()).repeat()
               .shuffle(TRAIN_IMAGES, seed=args.seed).batch(args.batch_size))

    model = make_model()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(args.lr * hvd.size())
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    total = 0.0
    for step, (images, labels) in enumerate(dataset.take(batches * args.epochs)):
        total += train_step(images, labels)
        if step == 0:
            # Only now do all variables exist, those of the optimizer too.
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        if (step + 1) % batches == 0:
            mean = hvd.allreduce(total / batches, name="train_loss")
            if hvd.rank() == 0:
                print(f"epoch {(step + 1) // batches}: train loss {float(mean):.5f}", flush=True)
            total = 0.0

    mine = slice(hvd.rank(), None, hvd.size())
    hits = tf.argmax(model(test_images[mine]), axis=1) == test_labels[mine]
    hits, images = hvd.allreduce(tf.stack([tf.math.count_nonzero(hits), tf.size(hits, tf.int64)]), op=hvd.Sum)
    if hvd.rank() == 0:
        print(f"accuracy {100 * int(hits) / int(images):.2f} %", flush=True)
        if args.checkpoint:
            tf.train.Checkpoint(model=model, optimizer=optimizer).save(args.checkpoint)


if __name__ == "__main__":
    main()
