# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks, for Keras 2, tf_keras and Keras 3 on TensorFlow.

Ranks tell each other how many values a channel has here, their sum and the sum of their squares, in float64, where
E[x^2] - E[x]^2 loses nothing that float32 would keep; so batches may have different sizes, also none. The gradient is that
of these formulas, through the op's own.

Importing this module imports TensorFlow's Keras, which is tf_keras where TF_USE_LEGACY_KERAS=1 is set.
"""
from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd.basics import Sum, size
from hvd.tensorflow import mpi_ops


def _together(mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
    """Mean and variance over all ranks, of what `count` values of each channel are here."""
    wide_mean, wide_variance, count = (tf.cast(part, tf.float64) for part in (mean, variance, count))
    squares = wide_variance + tf.square(wide_mean)
    own = tf.concat([count[tf.newaxis], *(tf.reshape(tf.math.multiply_no_nan(part, count), [-1])
                                          for part in (wide_mean, squares))], 0)
    every = mpi_ops._allreduce(own, op=Sum)
    all_mean, all_squares = tf.split(every[1:] / every[0], 2)
    all_variance = tf.maximum(all_squares - tf.square(all_mean), 0.0)
    return (tf.cast(tf.reshape(all_mean, tf.shape(mean)), mean.dtype),
            tf.cast(tf.reshape(all_variance, tf.shape(variance)), variance.dtype))


def _count(inputs: Any, axes: Any, mask: Any) -> Any:
    """How many values each channel has here."""
    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, tf.float64))
    return tf.reduce_prod(tf.gather(tf.shape(inputs), list(axes)))


def class_on(base: Any) -> Any:
    """SyncBatchNormalization made of a Keras' BatchNormalization, for example tf_keras.layers.BatchNormalization beside
    Keras 3."""
    is_keras_2 = hasattr(base, "_calculate_mean_and_var")

    class SyncBatchNormalization(base):  # type: ignore[misc]
        """BatchNormalization of Keras whose training statistics are those of all ranks together. With one rank, and in
        inference, it is Keras' own. Takes its arguments; `fused` only as False: ValueError."""

        def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
            if fused in (True, None):
                raise ValueError("SyncBatchNormalization does not support fused=True.")
            if is_keras_2:
                kwargs["fused"] = False
            super().__init__(**kwargs)
            self.supports_jit = False  # for Keras 3: XLA has no such op

        def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Keras 2: (inputs, reduction_axes, keep_dims, mask=None); Keras 3: (inputs, mask)."""
            mean, variance = super()._moments(inputs, *args, **kwargs)
            if size() == 1:
                return mean, variance
            names = ("reduction_axes", "keep_dims", "mask") if is_keras_2 else ("mask",)
            given = dict(zip(names, args), **kwargs)
            axes = given["reduction_axes"] if is_keras_2 else self._reduction_axes
            return _together(mean, variance, _count(inputs, axes, given.get("mask")))

    return SyncBatchNormalization


SyncBatchNormalization = class_on(tf.keras.layers.BatchNormalization)
