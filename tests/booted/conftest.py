# SPDX-License-Identifier: Apache-2.0
"""Makes the harness importable, and installs the build once."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from hvt.booted import install, missing  # noqa: E402 pylint: disable=wrong-import-position
from hvt.plugin import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import


@pytest.fixture(scope="session", name="lower")
def _lower(tmp_path_factory) -> str:
    why = missing()
    if why:
        pytest.fail(why)
    return install(tmp_path_factory.mktemp("installed"))
