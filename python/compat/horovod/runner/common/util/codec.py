# SPDX-License-Identifier: Apache-2.0
"""Objects as text."""
from __future__ import annotations

import base64
from typing import Any

import cloudpickle


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """The pickled object in base64, as str or as bytes."""
    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """The object again. Unpickling runs code: only for text that one trusts."""
    return cloudpickle.loads(base64.b64decode(encoded))
