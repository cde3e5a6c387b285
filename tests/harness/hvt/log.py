# SPDX-License-Identifier: Apache-2.0
"""The daemons' log lines, taken apart.

    2026-11-21T10:00:00.123Z hvdd-engine[4711] warning stall op-stalled: waits for rank 2 job=a tensor=w1 age_ms=60001
"""
import re
from dataclasses import dataclass, field

_LINE = re.compile(r"^(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z) (?P<program>\S+)\[(?P<pid>\d+)\] "
                   r"(?P<level>error|warning|info|debug|trace) (?P<topic>\S+) (?P<id>[\w-]+): (?P<rest>.*)$")
_PAIR = re.compile(r"(?:^|\s)([a-z_]+)=(\"(?:[^\"\\]|\\.)*\"|\S*)")


@dataclass(frozen=True)
class Line:
    """One parsed line: `text` is the sentence with its pairs, `pairs` the key=value part."""
    program: str
    pid: int
    level: str
    topic: str
    id: str
    text: str
    raw: str
    pairs: dict[str, str] = field(default_factory=dict)


def parse_line(raw: str) -> Line | None:
    """The line, or None for text that is not in the log's format."""
    match = _LINE.match(raw)
    if not match:
        return None
    pairs = {key: value.strip('"') for key, value in _PAIR.findall(match["rest"])}
    return Line(match["program"], int(match["pid"]), match["level"], match["topic"], match["id"], match["rest"], raw,
                pairs)
