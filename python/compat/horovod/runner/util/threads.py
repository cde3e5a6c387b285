# SPDX-License-Identifier: Apache-2.0
"""Functions in threads."""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def _check_arguments(args: Any) -> None:
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}, for a single argument use (arg,)")


def in_thread(target: Callable[..., Any], args: Sequence[Any] = (), name: str | None = None, daemon: bool = True,
              silent: bool = False) -> threading.Thread:
    """Starts `target(*args)` in a thread. `silent`: what it raises is only logged."""
    _check_arguments(args)

    def quietly(*given: Any) -> None:
        try:
            target(*given)
        except Exception:  # pylint: disable=broad-except
            logging.getLogger("hvd").debug("%s failed", name or target, exc_info=True)

    thread = threading.Thread(target=quietly if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(event: threading.Event, func: Callable[..., Any], args: Sequence[Any] = (),
             stop: threading.Event | None = None, check_stop_interval_s: float = 1.0, daemon: bool = True,
             silent: bool = False) -> threading.Thread:
    """Calls `func(*args)` in a thread once `event` is set; never, once `stop` is. ValueError: no event, arguments that are
    no tuple, or a thread that nothing could end."""
    if event is None:
        raise ValueError("Event must not be None")
    _check_arguments(args)
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait() -> None:
        while not event.wait(check_stop_interval_s if stop else None):
            if stop and stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(fn: Callable[..., Any], args_list: Iterable[Sequence[Any]],
                                   block_until_all_done: bool = True,
                                   max_concurrent_executions: int = 1000) -> dict[int, Any] | None:
    """Calls `fn(*args)` for each of `args_list` in threads; the results by their place in it. None at once when not
    `block_until_all_done`."""
    calls = list(args_list)
    pool = ThreadPoolExecutor(max(1, min(len(calls), max_concurrent_executions)))
    futures = [pool.submit(fn, *args) for args in calls]
    pool.shutdown(wait=block_until_all_done)
    return {place: future.result() for place, future in enumerate(futures)} if block_until_all_done else None
