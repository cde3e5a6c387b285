# SPDX-License-Identifier: Apache-2.0
"""The table of limits in docs/design/knobs.md has the rows of base/limits.def: name, whose, counted by whom, default."""
import re

import lintlib
from lintlib import Case, offence

PAGE, TABLE = "docs/design/knobs.md", "base/limits.def"
_BY = {"NODE": "hvdd", "GATE": "its gate", "ENGINE": "the engine"}
_OPTION = re.compile(r'^HVI_LIMIT\(\w+, "([^"]+)", \w+, "([^"]*)", \w+, \w+, \w+, "\w+",\s+(\w+),\s+(\w+),', re.MULTILINE)
_FIXED = re.compile(r'^HVI_LIMIT_FIXED\(\w+, "([^"]+)", (\d+),\s+(\w+),\s+(\w+),', re.MULTILINE)


def _said(tree):
    """Name: (line, its cells without what is refused)."""
    rows, inside = {}, False
    for number, text in tree.lines(PAGE):
        inside = text.startswith("| limit | of |") or inside and text.startswith("|")
        if inside and text.startswith("| `"):
            cells = [cell.strip() for cell in text.strip("|").split(" | ")]
            rows[cells[0].strip("`")] = number, cells[1:4]
    return rows


def find(tree):
    if TABLE not in tree.files:
        return
    text, said = tree.read(TABLE), _said(tree)
    rows = _OPTION.findall(text) + _FIXED.findall(text)
    if len(rows) != len(re.findall(r"^HVI_LIMIT", text, re.MULTILINE)):
        yield offence(TABLE, 1, "a row that this check cannot read")
    for name, default, of, by in rows:
        number, cells = said.pop(name, (1, None))
        wanted = [of.lower(), _BY.get(by, by), default]
        if cells != wanted:
            yield offence(PAGE, number, f"{name}: {' | '.join(cells or ['no row'])}, but {TABLE} says {' | '.join(wanted)}")
    for name, (number, _) in said.items():
        yield offence(PAGE, number, f"{TABLE} has no limit {name}")


_DEF = ('HVI_LIMIT(max_jobs, "max-jobs", COUNT, "256", RELOAD, 1, 65536, "N",\n          ALL, NODE, "help")\n'
        'HVI_LIMIT_FIXED(log_rate, "log-rate", 10, USER, GATE,\n                "help")\n')
_HEAD = "| limit | of | counted by | default | refused |\n|---|---|---|---|---|\n"
_GOOD = "| `max-jobs` | all | hvdd | 256 | a job |\n| `log-rate` | user | its gate | 10 | a line |\n"
CASES = [
    Case({TABLE: _DEF, PAGE: _HEAD + _GOOD}),
    Case({TABLE: _DEF, PAGE: _HEAD + _GOOD.replace("256", "255")}, {f"{PAGE}:3"}),
    Case({TABLE: _DEF, PAGE: _HEAD + _GOOD.replace("its gate", "hvdd")}, {f"{PAGE}:4"}),
    Case({TABLE: _DEF, PAGE: _HEAD + _GOOD.splitlines()[0] + "\n"}, {f"{PAGE}:1"}),
    Case({TABLE: _DEF, PAGE: _HEAD + _GOOD + "| `more` | all | hvdd | 1 | x |\n"}, {f"{PAGE}:5"}),
    Case({TABLE: _DEF + 'HVI_LIMIT(odd)\n', PAGE: _HEAD + _GOOD}, {f"{TABLE}:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
