# SPDX-License-Identifier: Apache-2.0
"""Fixtures and the `soak` mark, shared by the integration and the fault tests (their conftest.py imports this)."""
import contextlib
from collections.abc import Callable, Iterator

import ledger
import pytest

from hvt.daemon import Daemon
from hvt.nodes import Nodes, missing


def pytest_addoption(parser: pytest.Parser) -> None:
    """--soak also runs what takes minutes. Where files of several folders run, each of which has these fixtures, it is there once."""
    with contextlib.suppress(ValueError):
        parser.addoption("--soak", action="store_true", help="also run the tests that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark, and has the rules that every test is under."""
    config.addinivalue_line("markers", "soak: takes minutes; run with --soak")
    config.pluginmanager.import_plugin("hvt.rules")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips soak tests unless they are asked for, and what tests/skips.txt leaves out of a run with HVT_SERVICE."""
    for item in items:
        why = ledger.allowed(ledger.name_of(item.path, item.name), "service")
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
        if item.get_closest_marker("soak") and not config.getoption("--soak"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --soak"))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A running private hvdd; leaving it checks that nothing is left behind."""
    with Daemon() as running:
        yield running


@pytest.fixture
def make_nodes() -> Iterator[Callable[..., Nodes]]:
    """What makes `Nodes`, which end with the test. Where none can be made, the test is skipped."""
    why = missing()
    if why:
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        yield lambda count=2, **options: stack.enter_context(Nodes(count, **options))
