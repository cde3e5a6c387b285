# SPDX-License-Identifier: Apache-2.0
"""Nothing that belongs to one machine or one person: paths outside the standard hierarchy, home directories, private
addresses, people's mail addresses, remains of a merge.

HVD_LINT_WORDS may name a file with further regular expressions, one a line, that must not match anywhere: what only
some place must keep out stays out of this file too."""
import os
import re

import lintlib
from lintlib import Case, offence

STANDARD = set("bin boot dev etc lib lib32 lib64 libexec media mnt opt proc run sbin share srv sys tmp usr var include".split())
# First parts of paths that tests use because they do not exist, and of example paths in texts.
PLACEHOLDERS = set("a b no nonexistent missing path somewhere x".split())

_PATH = re.compile(r"""(?<![\w})]["'])(?<![\w.})\]$%@~*>:/+-])/([A-Za-z0-9_.-]+)/[A-Za-z0-9_]""")
_RULES = [
    (re.compile(r"(?<![\w$}])/(home|Users|root)/\w+"), "a home directory"),
    (re.compile(r"\b(10\.(?!0\.0\.)\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(1[6-9]|2\d|3[01])\.\d+\.\d+)\b"), "a private address"),
    (re.compile(r"\b[\w.+-]+@(?!(?:[\w-]+\.)*example\.(?:org|com|net)\b)[\w-]+\.(?:[\w-]+\.)*[a-z]{2,}\b(?!\.(service|socket|conf))"),
     "a mail address"),
    (re.compile(r"^(<{7}|>{7}) "), "a remain of a merge"),
]
_BINARY = (".png", ".gz", ".jpg", ".bin", ".idx", ".csv")
_UNIT = re.compile(r"@[\w.-]*\.(service|socket|slice|target)\b")


def _words():
    path = os.environ.get("HVD_LINT_WORDS")
    if not path:
        return []
    with open(path, encoding="utf-8") as lines:
        return [(re.compile(line.strip(), re.I), "a word that HVD_LINT_WORDS forbids") for line in lines if line.strip()]


def _accuse(text, rules):
    for rule, what in rules:
        match = rule.search(text)
        if match:
            yield f"{what}: {match.group(0)}"
    for match in _PATH.finditer(text):
        if match.group(1) not in STANDARD | PLACEHOLDERS and match.group(1) not in ("home", "Users", "root"):
            yield f"a path of one machine: {text[match.start():match.start() + 40].split()[0]}"
    if re.search(r"/tmp/b-", text):
        yield "a build folder of one machine"


def find(tree):
    rules = _RULES + _words()
    for path in tree.files:
        if path.endswith(_BINARY) or path.startswith(("tests/lint/check_private", "LICENSE")):
            continue
        for number, text in tree.lines(path):
            text = _UNIT.sub("", text)
            if "://" in text:
                text = re.sub(r"\w+://\S+", "", text)
            for sentence in _accuse(text, rules):
                yield offence(path, number, sentence)


CASES = [
    Case({"a.md": "see /usr/lib/x, /tmp/x/y, ./a/b, base/a.h, https://host/a/b, 1/2/3, and/or/not, $D/a/b, \"$D\"/a/b\n"}),
    Case({"a.c": "hvdd@x.service user@example.org 127.0.0.1 1.2.3.4 10.0.0.1\n"}),
    Case({"a.md": "one\nbuilt in /scratch7/me/tree\n"}, {"a.md:2"}),
    Case({"a.md": "in /home/me/x\n"}, {"a.md:1"}),
    Case({"a.py": 'X = "/root/x"\n'}, {"a.py:1"}),
    Case({"a.sh": "cmake -B /tmp/b-mine\n"}, {"a.sh:1"}),
    Case({"a.md": "ask some.body@company.net\n"}, {"a.md:1"}),
    Case({"a.md": "connect 192.168.3.4\n"}, {"a.md:1"}),
    Case({"a.c": "<" * 7 + " HEAD\n"}, {"a.c:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
