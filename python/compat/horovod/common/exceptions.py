# SPDX-License-Identifier: Apache-2.0
"""The exceptions, which are hvd's."""
from __future__ import annotations

from hvd.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of a HorovodVersionMismatchError."""
    return str(HorovodVersionMismatchError(name, version, installed_version))


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt",
           "get_version_mismatch_message"]
