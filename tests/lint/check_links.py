# SPDX-License-Identifier: Apache-2.0
"""A relative link in a page of Markdown names a file that is there, and where it has a fragment, a heading of that page. Pictures are
not looked at: those of measurements that were repeated are not kept."""
import pathlib
import re

import lintlib
from lintlib import Case, offence

_LINK = re.compile(r"(?<!!)\[[^\[\]]*\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


def _blank(match):
    """As many lines, and nothing in them."""
    return "\n" * match.group(0).count("\n")


def _text(tree, path):
    return _FENCE.sub(_blank, "\n".join(text for _, text in tree.lines(path)))


def _slugs(text):
    """As GitHub makes them; a second heading of the same words has a number behind it."""
    slugs = set()
    for heading in _HEADING.findall(text):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        slugs.add(next(name for name in (slug, *(f"{slug}-{n}" for n in range(1, 99))) if name not in slugs))
    return slugs


def find(tree):
    pages = {str(path): _text(tree, path) for path in tree.named(".md")}
    slugs = {path: _slugs(text) for path, text in pages.items()}
    for path, text in pages.items():
        for match in _LINK.finditer(_CODE.sub(lambda code: " " * len(code.group(0)), text)):
            target, _, fragment = match.group(1).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            number = text.count("\n", 0, match.end()) + 1
            where = (tree.root / path).parent / target if target else tree.root / path
            if not where.exists():
                yield offence(path, number, f"{target} is not there")
                continue
            page = pathlib.Path(where.resolve()).relative_to(tree.root.resolve()).as_posix()
            if fragment and page in slugs and fragment not in slugs[page]:
                yield offence(path, number, f"{page} has no heading #{fragment}")


CASES = [
    Case({"a.md": "# One, two\n[x](b/c.md#the-end-of-it) [y](#one-two) [z](https://h/x#y)\n", "b/c.md": "## The `end` of it\n[up](../a.md)\n"}),
    Case({"a.md": "```\n[x](none.md)\n```\n`[x](none.md)`\n"}),
    Case({"a.md": "![x](none.png)\n"}),
    Case({"a.md": "[x](b/)\n## Twice\n## Twice\n[y](#twice-1)\n", "b/c.md": "\n"}),
    Case({"a.md": "one\n[x\ny](none.md)\n"}, {"a.md:3"}),
    Case({"a.md": "# One\n\n[x](#two)\n"}, {"a.md:3"}),
    Case({"a.md": "[x](b.md#two)\n", "b.md": "```\n# Two\n```\n"}, {"a.md:1"}),
]

if __name__ == "__main__":
    lintlib.main(find, CASES)
