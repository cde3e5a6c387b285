# SPDX-License-Identifier: Apache-2.0
"""What hvd.keras and hvd.tensorflow.keras share, for every Keras: 2 and 3, tf_keras, on TensorFlow and on PyTorch.

optimizer.py wraps an optimizer; _tensorflow.py and _torch.py are what it, the callbacks and the values need of the
framework under it. Nothing here imports TensorFlow or PyTorch before an object of theirs is there.
"""
