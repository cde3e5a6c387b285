# SPDX-License-Identifier: Apache-2.0
"""Where the wheel's native files lie. Imports nothing of the package, so that the console scripts start fast."""
from __future__ import annotations

import pathlib


def installation() -> pathlib.Path:
    """The folder that holds bin/, lib/ and libexec/ of this wheel."""
    return pathlib.Path(__file__).resolve().parent / "_native_files"
