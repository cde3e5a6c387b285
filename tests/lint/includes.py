# SPDX-License-Identifier: Apache-2.0
"""How includes are found and resolved, for the checks about them."""
import posixpath
import re

import lintlib

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PUBLIC = ("client/include", "admin/include")
ENDINGS = lintlib.C_ENDINGS + (".def", ".cc", ".cpp")


def of(tree, path):
    """(line, name as written, quoted?) of each include of a file."""
    for number, text in tree.lines(path):
        match = _INCLUDE.match(text)
        if match:
            yield number, match.group(2), match.group(1) == '"'


def resolve(tree, path, name):
    """The file of this tree that `name`, included by `path`, means; None for anything from outside."""
    known = set(tree.files)
    for base in (posixpath.dirname(path), "", *PUBLIC):
        candidate = posixpath.normpath(posixpath.join(base, name))
        if candidate in known:
            return candidate
    return None
