# SPDX-License-Identifier: Apache-2.0
"""Scripts that were written for Horovod, as they are."""
from __future__ import annotations

import re
from typing import Any

import pytest

from conftest import SOURCE


@pytest.mark.parametrize("name", ["horovod_tensorflow", "horovod_keras"])
def test_a_script_that_two_nodes_train_learns_on_one(ranks: Any, name: str) -> None:
    done = ranks.run(2, str(SOURCE / "tests" / "python" / "programs" / f"{name}.py"), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank (\d) of 2 on .*: accuracy ([0-9.]+) %, weights ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    assert sorted(row[0] for row in said) == ["0", "1"] and said[0][1:] == said[1][1:] and float(said[0][1]) >= 80, done.stdout
