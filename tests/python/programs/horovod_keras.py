# SPDX-License-Identifier: Apache-2.0
"""A training script in the way people write it for Horovod with Keras. Each rank says where it is and what came of it."""
import hashlib
import socket

import horovod.tensorflow.keras as hvd
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
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9))
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
model.fit(dataset, steps_per_epoch=40 // hvd.size(), epochs=6, callbacks=callbacks, verbose=0)

_loss, accuracy = model.evaluate(images[1400:], labels[1400:], verbose=0)
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.trainable_variables)).hexdigest()[:16]
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: accuracy {100 * accuracy:.1f} %, weights {digest}", flush=True)
