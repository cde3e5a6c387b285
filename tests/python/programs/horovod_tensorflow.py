# SPDX-License-Identifier: Apache-2.0
"""A training script in the way people write it for Horovod with TensorFlow. Each rank says where it is and what came of it."""
import hashlib
import socket

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
tf.random.set_seed(42 + hvd.rank())
tf.config.threading.set_intra_op_parallelism_threads(1)

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((images[:1400], labels[:1400])).shard(hvd.size(), hvd.rank())
dataset = dataset.shuffle(1400, seed=1).repeat().batch(32)

model = tf.keras.Sequential([tf.keras.layers.Input((64,)), tf.keras.layers.Dense(64, activation="relu"),
                             tf.keras.layers.Dense(10)])
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)


@tf.function
def train_step(batch, wanted, first):
    """One step; the first one also spreads rank 0's variables."""
    with tf.GradientTape() as tape:
        loss = loss_of(wanted, model(batch, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
    return loss


for step, (batch, wanted) in enumerate(dataset.take(240 // hvd.size())):
    train_step(batch, wanted, step == 0)

hits = tf.cast(tf.argmax(model(images[1400:]), 1) == labels[1400:], tf.float32)[hvd.rank()::hvd.size()]
accuracy = float(hvd.allreduce(tf.reduce_mean(hits), name="accuracy"))
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest()[:16]
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: accuracy {100 * accuracy:.1f} %, weights {digest}", flush=True)
