# SPDX-License-Identifier: Apache-2.0
"""A training step whose gradients outweigh its arithmetic: eight dense layers of 1024, 8.4 million parameters, eight rows on
each rank, in Keras's own `fit`. Every library trains it from the same start on the same rows."""
import time
from typing import Any, Callable

import numpy
import tensorflow as tf

import measuring

ROWS = 8  # of each rank
WIDTH = 1024
LAYERS = 8
STEPS_CHECKED = 6


def make_model() -> Any:
    """The same on every rank."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *(layers.Dense(WIDTH, "relu") for _ in range(LAYERS)),
                                 layers.Dense(10)])
    random = numpy.random.default_rng(1)
    model.set_weights([random.normal(0, 0.04, weights.shape).astype("float32") for weights in model.get_weights()])
    return model


def make_optimizer() -> Any:
    """The user's."""
    return tf.keras.optimizers.SGD(0.01)


def endless(rows: Any, wanted: Any) -> Any:
    """The same batch again and again."""
    return tf.data.Dataset.from_tensors((rows, wanted)).repeat()


class _Clock(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """As late as a callback can."""
        self.ends.append(time.perf_counter_ns())


class Training:
    """`compiled` gives a compiled model with a distributed optimizer, `batches` makes a dataset of what `endless` needs,
    and `callbacks` are what a library wants in `fit`."""

    def __init__(self, rank: int, size: int, compiled: Callable[[], Any], batches: Callable[[Any, Any], Any] = endless,
                 callbacks: Callable[[], list[Any]] = list) -> None:
        random = numpy.random.default_rng(2)
        self.rows = random.normal(0, 1, (size * ROWS, WIDTH)).astype("float32")
        self.wanted = random.normal(0, 1, (size * ROWS, 10)).astype("float32")
        self.model, self.callbacks = compiled(), callbacks
        self.start = self.model.get_weights()
        self.dataset = batches(self.rows[rank::size], self.wanted[rank::size])

    def times(self, steps: int) -> list[int]:
        """Nanoseconds of each of so many steps, from one callback to the next; one step more goes before them."""
        clock = _Clock()
        self.model.fit(self.dataset, steps_per_epoch=steps + 1, verbose=0, callbacks=[*self.callbacks(), clock])
        return [end - start for start, end in zip(clock.ends, clock.ends[1:])]

    def right(self) -> bool:
        """Whether some steps from the start lead to where one process with all ranks' rows comes to."""
        alone = make_model()
        alone.compile(make_optimizer(), "mse")
        alone.fit(endless(self.rows, self.wanted), steps_per_epoch=STEPS_CHECKED, verbose=0)
        self.model.set_weights(self.start)
        self.times(STEPS_CHECKED - 1)
        for number, (before, one, ours) in enumerate(zip(self.start, alone.get_weights(), self.model.get_weights())):
            moved, apart = numpy.abs(one - before).max(), numpy.abs(one - ours).max()
            if not 0 < moved or not apart <= 1e-3 * moved:
                print(f"weights {number}: {apart} from those of one process, which moved by {moved}", flush=True)
                return False
        return True

    def prepared(self) -> measuring.Prepared:
        """For measuring.py: a step, the bytes of its gradients, and the check."""
        return measuring.Loop(self.times), sum(weights.nbytes for weights in self.start), self.right
