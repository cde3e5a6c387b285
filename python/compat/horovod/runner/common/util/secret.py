# SPDX-License-Identifier: Apache-2.0
"""Keys, and digests made with them."""
from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = SECRET_LENGTH = 32


def make_secret_key() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """HMAC with SHA-256."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Whether `digest` is the one of `message`; takes the same time either way."""
    return hmac.compare_digest(compute_digest(key, message), digest)
