# SPDX-License-Identifier: Apache-2.0
"""The exceptions that training code sees, under the names that Horovod's users catch."""
from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An op failed while it was under way: a rank died or left, ranks disagreed, the daemon went away. The text is the
    daemon's sentence: what, who (ranks, pid, signal), and what to do. Also exported as `hvd.InternalError`."""


class NotInitializedError(ValueError, HorovodInternalError):
    """An op or a question before `hvd.init()` or after `hvd.shutdown()`."""

    def __init__(self, text: str = "Horovod has not been initialized; use hvd.init().") -> None:
        super().__init__(text)


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed, so an elastic job starts its next round.

    `skip_sync`: no rank is new, so nobody needs the state of another."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """The installed binding does not fit the framework that is installed."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"hvd was made for {name} {version}, but {installed_version} is installed")
        self.name = name
        self.version = version
        self.installed_version = installed_version
