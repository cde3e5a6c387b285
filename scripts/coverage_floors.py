#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what tests reach with the floors of tests/coverage.txt; scripts/coverage.sh calls it."""
from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import sys

HEAD = """\
# The least percentage of a folder's lines that tests have to reach: scripts/coverage.sh [--raise]. Floors only rise.
"""
#: What timing decides from run to run, in percent.
STEADY = 0.5


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


def read_floors(path: pathlib.Path) -> dict[str, int]:
    """Percent by folder."""
    if not path.exists():
        return {}
    rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    return {folder: int(percent) for folder, percent in rows}


def floor_for(percent: float) -> int:
    """The highest floor that a folder will hold from run to run."""
    return max(math.floor(percent - STEADY), 0)


def judge(folder: str, percent: float, floor: int | None) -> str:
    """A sentence about a folder, that begins with BELOW if it fails; empty if there is nothing to say."""
    possible = floor_for(percent)
    if floor is None:
        return f"BELOW: {folder} has no floor; scripts/coverage.sh --raise gives it {possible}"
    if percent < floor:
        return f"BELOW: {folder} is at {percent:.1f} %, its floor is {floor}"
    return f"{folder}: the floor {floor} can be raised to {possible}" if possible > floor else ""


def main() -> int:
    """1 if a folder is below its floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raise", dest="write", action="store_true")
    parser.add_argument("floors", type=pathlib.Path)
    parser.add_argument("counts", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    folders = by_folder({name: count for path in arguments.counts for name, count in read_counts(path).items()})
    percents = {folder: 100 * reached / lines for folder, (reached, lines) in folders.items()}
    floors = read_floors(arguments.floors)
    if arguments.write:
        floors |= {folder: max(floor_for(percent), floors.get(folder, 0)) for folder, percent in percents.items()}
        arguments.floors.write_text(HEAD + "".join(f"{folder} {floor}\n" for folder, floor in sorted(floors.items())),
                                    encoding="utf-8")
    print(f"{'folder':40} {'lines':>7} {'reached':>8} {'floor':>6}")
    for folder, (_, lines) in folders.items():
        print(f"{folder:40} {lines:7} {percents[folder]:6.1f} % {floors.get(folder, '-'):>6}")
    said = [sentence for folder in folders if (sentence := judge(folder, percents[folder], floors.get(folder)))]
    said += [f"BELOW: {folder} has a floor and no lines; take it out of {arguments.floors}" for folder in floors if folder not in folders]
    for sentence in said:
        print(f"coverage: {sentence}")
    below = sum(sentence.startswith("BELOW") for sentence in said)
    print(f"coverage: {len(folders)} folders, {below} below their floor")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
