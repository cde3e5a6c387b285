# SPDX-License-Identifier: Apache-2.0
"""What is under the Keras that is installed."""
from __future__ import annotations

import keras

from hvd._keras.optimizer import framework_of

framework = framework_of(keras)
