# SPDX-License-Identifier: Apache-2.0
"""The driver of the long run of kills works (many_kills.py), and finds nothing within a minute."""
import pytest
from many_kills import run

from hvt import sanitized


@pytest.mark.limit(600)
def test_some_hundred_kills_of_jobs_side_by_side_leave_nothing_behind():
    run(kills=100 if sanitized() else 300, seed=20261123, lanes=4)
