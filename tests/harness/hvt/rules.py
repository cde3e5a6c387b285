# SPDX-License-Identifier: Apache-2.0
"""What holds for every test that pytest runs (each folder's conftest.py has pytest load it): a skip that is not in tests/skips.txt is a
failure; a test that was late is tried again; a test that hangs is ended, and its file with it. See docs/design/testing.md."""
from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import ledger
import pytest
from _pytest.runner import runtestprotocol

from hvt import procs
from hvt.build import sanitized
from hvt.wait import Late

TRIES = 3
LIMIT_S = 60  # for each of a test's fixtures, its body and its end; a test that takes longer bears the mark `limit`
_GRACE_S = 30  # what the end of a test that hangs may take

_late: dict[str, str] = {}  # what Late said, by the id of the test
_tried_again: list[str] = []
_stderr = -1  # where pytest's own errors go, also while it captures a test's


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark; takes SIGINT back where a shell has it ignored."""
    global _stderr  # pylint: disable=global-statement
    _stderr = os.dup(sys.__stderr__.fileno())
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job: programs under test would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", f"limit(seconds): may take longer than {LIMIT_S} s")


# ---- skips ----


def _judge(report: Any, test: str) -> None:
    reason = report.longrepr[2].replace("Skipped: ", "", 1) if isinstance(report.longrepr, tuple) else report.wasxfail
    why = ledger.allowed(test)
    if why:
        ledger.record("listed", test, why)
        return
    report.outcome = "failed"
    vars(report).pop("wasxfail", None)
    report.longrepr = f"{test} was skipped ({reason}), and no line of {ledger.list_path()} allows that here"


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A module that skips itself while it is read."""
    report = (yield).get_result()
    if report.skipped:
        _judge(report, ledger.name_of(collector.path))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """A test that is skipped, by a mark or by itself; and one that is late."""
    report = (yield).get_result()
    if report.skipped:
        _judge(report, ledger.name_of(item.path, item.name))
    if call.when == "call" and call.excinfo and call.excinfo.errisinstance(Late):
        _late[item.nodeid] = str(call.excinfo.value)


# ---- what is late is tried again ----


def _end_all_fixtures(item: pytest.Item) -> pytest.TestReport:
    """Those of the module and the session too, which outlive a test."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(None), "teardown")
    return item.ihook.pytest_runtest_makereport(item=item, call=call)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Runs a test up to TRIES times while it raises Late and nothing else is wrong, each time with new fixtures."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for number in range(1, TRIES + 1):
        _late.pop(item.nodeid, None)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        late = _late.get(item.nodeid)
        if not late or number == TRIES or sum(report.failed for report in reports) > 1:
            break
        ending = _end_all_fixtures(item)
        if ending.failed:
            reports.append(ending)
            break
        ledger.record("late", ledger.name_of(item.path, item.name), f"{late} (try {number} of {TRIES})")
        _tried_again.append(f"{item.nodeid}: {late}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was tried again."""
    for line in _tried_again:
        terminalreporter.write_line(f"LATE, tried again: {line}")


# ---- what hangs is ended ----


def limit_of(item: pytest.Item) -> float:
    """The seconds that a test may take in this build."""
    mark = item.get_closest_marker("limit")
    slower = 4 if sanitized() else 1
    return (mark.args[0] if mark else LIMIT_S) * slower * float(os.environ.get("HVT_TIME_FACTOR", "1"))


def _family(pid: int, depth: int = 0) -> Iterator[str]:
    for child in procs.children(pid):
        yield f"{'  ' * depth}{child} {procs.state(child)} {procs.waits_in(child)}: {procs.cmdline(child)}"
        yield from _family(child, depth + 1)


@contextlib.contextmanager
def _limited(item: pytest.Item, seconds: float) -> Iterator[None]:
    """Ends the block by a failure after its time, and what then still runs a little later by another one. Where Python does not
    get to run (in a call that does not return), pytest as a whole is ended."""
    def end(_number: int, _frame: Any) -> None:
        item.session.shouldfail = f"{item.nodeid} hung"
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        pytest.fail(f"{item.nodeid} hung: not over after {seconds:.0f} s; its processes:\n" + "\n".join(_family(os.getpid())))
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, _GRACE_S)
    faulthandler.dump_traceback_later(seconds + 2 * _GRACE_S, exit=True, file=_stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """The fixtures."""
    with _limited(item, limit_of(item)):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The test."""
    with _limited(item, limit_of(item)):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Its end."""
    with _limited(item, limit_of(item)):
        yield
