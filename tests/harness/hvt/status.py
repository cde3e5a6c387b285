# SPDX-License-Identifier: Apache-2.0
"""enum hvd_status, read from base/status.def so that it cannot drift."""
import enum
import re

from hvt.build import SOURCE


def _rows() -> dict[str, int]:
    text = (SOURCE / "base" / "status.def").read_text(encoding="utf-8")
    return {name: int(number) for name, number in re.findall(r"^HVI_ROW\((\w+), (-?\d+),", text, re.MULTILINE)}


Status = enum.IntEnum("Status", _rows())
