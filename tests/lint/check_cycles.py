# SPDX-License-Identifier: Apache-2.0
"""Files that include each other, also through others, form groups of 3 at most; a.c, a.h and a.inc count as one file, `a`.
And no header is included by more than 12 files of the product, but for the few that are made for it.

tests/lint/cycles.txt names what breaks these rules today. That list only shrinks: a line in it that is no longer true is
an offence as well."""
import collections
import posixpath

import includes
import lintlib
from lintlib import Case, offence

CYCLE = 3
INCLUDERS = 12
KNOWN = "tests/lint/cycles.txt"

# The leaf utilities, the public API, and the borders that two processes share.
FOR_ALL = ("base/", "client/include/hvd/hvd.h", "admin/include/hvd/hvd_admin.h", "client/error.h", "shm/abi.h", "proto/wire.h")
NOT_PRODUCT = ("tests/", "bench/", "examples/")


def _unit(path):
    return posixpath.splitext(path)[0]


def _includes(tree):
    """(path, line, file of ours that it includes) of the whole tree."""
    for path in tree.named(*includes.ENDINGS):
        for line, name, _quoted in includes.of(tree, path):
            target = includes.resolve(tree, path, name)
            if target is not None:
                yield path, line, target


def _finished(graph):
    """Every unit, each one after all that it leads to and that do not lead back to it."""
    seen, order = set(), []
    for start in sorted(graph):
        stack = [] if start in seen else [(start, iter(sorted(graph[start])))]
        seen.add(start)
        while stack:
            unit, ahead = stack[-1]
            following = next((one for one in ahead if one not in seen), None)
            if following is None:
                order.append(unit)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))
    return order


def _cycles(graph):
    """The sets of units that reach each other (Kosaraju: forward for the order, backward for the sets)."""
    back = collections.defaultdict(set)
    for unit, targets in graph.items():
        for target in targets:
            back[target].add(unit)
    taken = set()
    for start in reversed(_finished(graph)):
        cycle, open_units = set(), [start]
        while open_units:
            unit = open_units.pop()
            if unit not in taken:
                taken.add(unit)
                cycle.add(unit)
                open_units += back[unit]
        if len(cycle) > 1:
            yield cycle


def _large_cycles(tree, found):
    """{"cycle unit": (path, line, sentence)}: each unit of a cycle that is too large, at its first include of another."""
    graph, first = collections.defaultdict(set), {}
    for path, line, target in found:
        if _unit(path) != _unit(target):
            graph[_unit(path)].add(_unit(target))
            first.setdefault((_unit(path), _unit(target)), (path, line))
    broken = {}
    for cycle in _cycles(graph):
        names = ", ".join(sorted(cycle))
        if len(cycle) <= CYCLE:
            tree.note(f"{len(cycle)} files include each other: {names}")
            continue
        tree.note(f"{len(cycle)} files include each other, at most {CYCLE} may: {names}")
        for unit in cycle:
            path, line, target = min((*first[unit, other], other) for other in graph[unit] & cycle)
            broken[f"cycle {unit}"] = (path, line, f"includes {target}, which leads back here: {len(cycle)} files include "
                                                   f"each other, at most {CYCLE} may")
    return broken


def _crowded_headers(tree, found):
    """{"header path": (path, line, sentence)}: each header that too many files of the product include."""
    users = collections.defaultdict(set)
    for path, _line, target in found:
        if not path.startswith(NOT_PRODUCT) and target.endswith(".h") and not target.startswith(FOR_ALL):
            users[target].add(path)
    broken = {}
    for header, files in sorted(users.items()):
        if len(files) > INCLUDERS:
            tree.note(f"{header} is included by {len(files)} files, at most {INCLUDERS} may")
            broken[f"header {header}"] = (header, 1, f"included by {len(files)} files, at most {INCLUDERS} may; "
                                                     f"{', '.join(NOT_PRODUCT)} are not counted")
    return broken


def _known(tree):
    """{"cycle unit" or "header path": line in the list}"""
    if KNOWN not in tree.files:
        return {}
    return {text.strip(): line for line, text in tree.lines(KNOWN) if text.strip() and not text.startswith("#")}


def find(tree):
    found = list(_includes(tree))
    broken = _large_cycles(tree, found) | _crowded_headers(tree, found)
    known = _known(tree)
    for entry, (path, line, sentence) in broken.items():
        if entry not in known:
            yield offence(path, line, sentence)
    for entry, line in known.items():
        if entry not in broken:
            yield offence(KNOWN, line, f"no longer true, take the line out: {entry}")
    tree.note(f"{len(known)} lines are left in {KNOWN}")


def _ring(count, folder="a"):
    """x0.h includes x1.h, which includes x2.h, and so on, and the last one the first."""
    return {f"{folder}/x{i}.h": f'/* one */\n#include "{folder}/x{(i + 1) % count}.h"\n' for i in range(count)}


def _all_of(count, folder="a"):
    return {f"{folder}/x{i}.h:2" for i in range(count)}


def _listed(*entries):
    return {KNOWN: "".join(f"{entry}\n" for entry in ("# a comment", *entries))}


def _users(count, header, folder="a"):
    return {header: "", **{f"{folder}/u{i}.c": f'#include "{header}"\n' for i in range(count)}}


_CYCLE_OF_4 = tuple(f"cycle a/x{i}" for i in range(4))

CASES = [
    Case(_ring(3)),
    Case(_ring(4), _all_of(4)),
    Case(_ring(4, "tests/a"), _all_of(4, "tests/a")),
    # a.c counts as a.h, so two sources that see each other's headers are a cycle of two, and four are one of four.
    Case({f"a/x{i}.h": "" for i in range(4)} | {f"a/x{i}.c": f'#include "a/x{(i + 1) % 4}.h"\n' for i in range(4)},
         {f"a/x{i}.c:1" for i in range(4)}),
    Case({f"a/x{i}.h": "" for i in range(4)} | {f"a/x{i}.c": f'#include "a/x{i}.h"\n' for i in range(4)}),
    # Two cycles that share a file are one.
    Case(_ring(3) | {"a/x0.c": '#include "a/y.h"\n', "a/y.h": '#include "a/x0.h"\n'},
         {"a/x0.c:1", "a/x1.h:2", "a/x2.h:2", "a/y.h:1"}),
    # A chain into a small cycle is none.
    Case(_ring(3) | {"a/y.h": '#include "a/z.h"\n', "a/z.h": '#include "a/x0.h"\n'}),
    Case(_ring(4) | _listed(*_CYCLE_OF_4)),
    Case(_ring(4) | _listed(*_CYCLE_OF_4[:3]), {"a/x3.h:2"}),
    Case(_ring(3) | _listed(*_CYCLE_OF_4), {f"{KNOWN}:{line}" for line in range(2, 6)}),
    Case(_users(12, "a/one.h")),
    Case(_users(13, "a/one.h"), {"a/one.h:1"}),
    Case(_users(13, "a/one.h", "tests/a")),
    Case(_users(13, "base/one.h")),
    Case(_users(13, "shm/abi.h")),
    Case(_users(13, "shm/ring.h"), {"shm/ring.h:1"}),
    Case(_users(13, "a/one.def")),
    Case(_users(13, "a/one.h") | _listed("header a/one.h")),
    Case(_users(12, "a/one.h") | _listed("header a/one.h"), {f"{KNOWN}:2"}),
    Case(_listed("cycle a/gone", "header a/gone.h", "nonsense"), {f"{KNOWN}:2", f"{KNOWN}:3", f"{KNOWN}:4"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
