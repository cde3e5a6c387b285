# SPDX-License-Identifier: Apache-2.0
"""Events of torch's profiler that end in another thread than they begin in."""
from __future__ import annotations

from typing import Any

import torch
from torch.autograd import profiler


def _is_on() -> bool:
    return bool(getattr(profiler, "_is_profiler_enabled", True))


class Event:
    """Begins now, in this thread. The profiler that it begins under notes its end in memory that is gone once that profiler
    has stopped: an event that is under way then has no end."""

    def __init__(self, name: str) -> None:
        event = profiler.record_function(name)
        event.__enter__()  # pylint: disable=unnecessary-dunder-call
        self._end: Any = torch.futures.Future()
        event._call_end_callbacks_on_future(self._end)  # pylint: disable=protected-access
        self._was_on = _is_on()  # false under a profiler that was not started from Python, of which nothing is known

    def end(self) -> None:
        """Once. In a thread without a profiler, where an event that is let go of notes nothing."""
        end, self._end = self._end, None
        if _is_on() or not self._was_on:
            end.set_result(None)
