# SPDX-License-Identifier: Apache-2.0
"""Events of torch's profiler that end in another thread than they begin in.

The profiler notes an event's end in memory of its own, which it gives back when it stops. So an event that is still under way
then must not end any more, not even under the next profiler.
"""
from __future__ import annotations

import functools
import os
import threading
from typing import Any

import torch
from torch.autograd import profiler

_lock = threading.Lock()
_stops = 0


def _count_stops(stop: Any) -> Any:
    @functools.wraps(stop)
    def counted(*arguments: Any) -> Any:
        global _stops
        with _lock:  # an event that is ending now has ended before the profiler stops
            _stops += 1
        return stop(*arguments)
    return counted


def _renew_lock() -> None:
    """In a forked child: a thread of the parent may have had it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
if hasattr(profiler, "_disable_profiler"):
    profiler._disable_profiler = _count_stops(profiler._disable_profiler)


class Event:
    """Begins now, in this thread."""

    def __init__(self, name: str) -> None:
        self._stops = _stops
        event = profiler.record_function(name)
        event.__enter__()  # pylint: disable=unnecessary-dunder-call
        self._end: Any = torch.futures.Future()
        event._call_end_callbacks_on_future(self._end)  # pylint: disable=protected-access

    def end(self) -> None:
        """Once, in a thread without a profiler, where an event that is let go of notes nothing."""
        end, self._end = self._end, None
        with _lock:
            if self._stops == _stops:
                end.set_result(None)
