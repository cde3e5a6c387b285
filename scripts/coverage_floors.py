#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what tests reach with the floors of tests/coverage.txt, and these with what they were in each commit before;
scripts/coverage.sh calls it."""
from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import subprocess
import sys
from typing import NamedTuple

HEAD = """\
# The least percentage of a folder's lines that tests have to reach: scripts/coverage.sh [--raise]. Floors only rise.
# One that is lowered on purpose says why, at the end of its row: "lowered: WHY". It keeps that until it is as high as it ever was.
"""
#: What timing decides from run to run, in percent.
STEADY = 0.5


class Floor(NamedTuple):
    """A row of the list."""
    percent: int
    reason: str = ""  # why it was lowered

    @classmethod
    def parse(cls, text: str) -> Floor:
        """What stands behind the folder."""
        percent, _, more = text.strip().partition(" ")
        marker, _, reason = more.strip().partition(" ")
        if marker not in ("", "lowered:") or bool(marker) != bool(reason):
            raise ValueError(f"behind a floor only 'lowered: WHY' may stand: {text}")
        return cls(int(percent), reason.strip())

    def __str__(self) -> str:
        return f"{self.percent}{f' lowered: {self.reason}' if self.reason else ''}"


def read_counts(path: pathlib.Path) -> dict[str, tuple[int, int]]:
    """By file, lines reached and lines; from gcovr's JSON or coverage.py's."""
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    if isinstance(files, dict):
        return {name: (one["summary"]["covered_lines"], one["summary"]["num_statements"]) for name, one in files.items()}
    lines = {one["file"]: [line for line in one["lines"] if not line.get("gcovr/noncode")] for one in files}
    return {name: (sum(line["count"] > 0 for line in each), len(each)) for name, each in lines.items()}


def folder_of(name: str) -> str:
    """What a file counts for: headers for the folder above "include", what lies more than three folders deep for the third."""
    parts = pathlib.PurePath(name).parent.parts[:3]
    return "/".join(parts[:parts.index("include")] if "include" in parts else parts)


def by_folder(files: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The same by folder, without folders that have no line."""
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for name, (reached, lines) in files.items():
        folder = sums[folder_of(name)]
        folder[0] += reached
        folder[1] += lines
    return {folder: (reached, lines) for folder, (reached, lines) in sorted(sums.items()) if lines}


def parse_floors(text: str) -> dict[str, Floor]:
    """By folder."""
    rows = (line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {folder: Floor.parse(floor) for folder, floor in rows}


def read_floors(path: pathlib.Path) -> dict[str, Floor]:
    """The same of a file."""
    return parse_floors(path.read_text(encoding="utf-8")) if path.exists() else {}


def git(path: pathlib.Path, *words: str, check: bool = True) -> str:
    """What git says in a file's folder."""
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", str(path.parent), *words], capture_output=True, text=True, check=check).stdout


def past_floors(path: pathlib.Path) -> list[dict[str, Floor]]:
    """The file as each commit left it that changed it; says so where git does not know all of them."""
    try:
        commits = git(path, "log", "--format=%H", "--", path.name).split()
        if git(path, "rev-parse", "--is-shallow-repository").strip() == "true":
            print("coverage: a shallow clone: whether a floor was lowered is not judged")
            return []
        return [parse_floors(git(path, "show", f"{commit}:./{path.name}", check=False)) for commit in commits]
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"coverage: whether a floor was lowered is not judged: {getattr(error, 'stderr', '').strip() or error}")
        return []


def lowered(floors: dict[str, Floor], past: list[dict[str, Floor]]) -> list[str]:
    """A sentence for each floor that was higher, with the same reason as now or, where none is given, ever."""
    said = []
    for folder, floor in floors.items():
        before = [then[folder] for then in past if folder in then]
        highest = max((then.percent for then in before if not floor.reason or then.reason == floor.reason), default=0)
        if floor.percent < highest:
            said.append(f"LOWERED: {folder} has the floor {floor.percent} and had {highest}; on purpose only with a reason of its own "
                        f"in its row: lowered: WHY")
    return said


def floor_for(percent: float) -> int:
    """The highest floor that a folder will hold from run to run."""
    return max(math.floor(percent - STEADY), 0)


def judge(folder: str, percent: float, floor: Floor | None) -> str:
    """A sentence about a folder, that begins with BELOW if it fails; empty if there is nothing to say."""
    possible = floor_for(percent)
    if floor is None:
        return f"BELOW: {folder} has no floor; scripts/coverage.sh --raise gives it {possible}"
    if percent < floor.percent:
        return f"BELOW: {folder} is at {percent:.1f} %, its floor is {floor.percent}"
    return f"{folder}: the floor {floor.percent} can be raised to {possible}" if possible > floor.percent else ""


def main() -> int:
    """1 if a folder is below its floor, or a floor was lowered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raise", dest="write", action="store_true")
    parser.add_argument("floors", type=pathlib.Path)
    parser.add_argument("counts", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    folders = by_folder({name: count for path in arguments.counts for name, count in read_counts(path).items()})
    percents = {folder: 100 * reached / lines for folder, (reached, lines) in folders.items()}
    floors = read_floors(arguments.floors)
    if arguments.write:
        for folder, percent in percents.items():
            old = floors.get(folder, Floor(0))
            floors[folder] = Floor(max(floor_for(percent), old.percent), old.reason)
        arguments.floors.write_text(HEAD + "".join(f"{folder} {floor}\n" for folder, floor in sorted(floors.items())),
                                    encoding="utf-8")
    print(f"{'folder':40} {'lines':>7} {'reached':>8} {'floor':>6}")
    for folder, (_, lines) in folders.items():
        print(f"{folder:40} {lines:7} {percents[folder]:6.1f} % {floors[folder].percent if folder in floors else '-':>6}")
    said = [sentence for folder in folders if (sentence := judge(folder, percents[folder], floors.get(folder)))]
    said += lowered(floors, past_floors(arguments.floors))
    said += [f"BELOW: {folder} has a floor and no lines; take it out of {arguments.floors}" for folder in floors if folder not in folders]
    for sentence in said:
        print(f"coverage: {sentence}")
    below, down = (sum(sentence.startswith(word) for sentence in said) for word in ("BELOW", "LOWERED"))
    print(f"coverage: {len(folders)} folders, {below} below their floor{f', {down} floors lowered' if down else ''}")
    return 1 if below or down else 0


if __name__ == "__main__":
    sys.exit(main())
