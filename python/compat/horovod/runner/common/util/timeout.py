# SPDX-License-Identifier: Apache-2.0
"""A deadline with a sentence."""
from __future__ import annotations

import time


class TimeoutException(Exception):
    """The time is over."""


class Timeout:
    """`timeout`: seconds from now. `message`: may have {activity} in it."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds left; 0 when it is over."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._end

    def check_time_out_for(self, activity: str) -> None:
        """TimeoutException when it is over."""
        if self.timed_out():
            raise TimeoutException(f"{self._message.format(activity=activity)}. Timeout after {self._timeout} seconds.")
