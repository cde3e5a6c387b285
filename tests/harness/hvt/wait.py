# SPDX-License-Identifier: Apache-2.0
"""Waiting with a deadline and a reason."""
import time
from collections.abc import Callable
from typing import TypeVar

from hvt.build import patience, scaled

T = TypeVar("T")


class Expired(AssertionError):
    """A deadline passed; the text says what was awaited."""


class Late(AssertionError):
    """A promise in milliseconds was not kept: by hvdd, or because the machine had no core to spare just then."""


def check_prompt(what: str, took_ns: int, promised_ns: int) -> None:
    """Raises Late when `what` took longer than promised. hvt.rules then runs the test again."""
    limit_ns = patience() * promised_ns
    if took_ns > limit_ns:
        raise Late(f"{what} after {took_ns / 1e6:.1f} ms, promised within {limit_ns / 1e6:.0f} ms")


def wait_until(predicate: Callable[[], T], what: str | Callable[[], str], seconds: float = 5.0,
               step: float = 0.005) -> T:
    """Polls `predicate` until it returns something true and returns that.

    `seconds` is for a release build and is stretched for sanitizers. Raises Expired naming `what`, which
    may be a function that tells the latest state.
    """
    deadline = time.monotonic() + scaled(seconds)
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            reason = what() if callable(what) else what
            raise Expired(f"still not after {scaled(seconds):.1f} s: {reason} (last value: {value!r})")
        time.sleep(step)
