# SPDX-License-Identifier: Apache-2.0
"""Makes the harness importable."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from hvt.plugin import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
