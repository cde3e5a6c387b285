# SPDX-License-Identifier: Apache-2.0
"""What the lint checks share.

A check is one file with

    def find(tree):        yields offence(path, line, sentence)
    CASES = [...]          trees that must and must not be accused, tried before the real one

and ends with lintlib.main(find, CASES). A check whose cases do not come out as stated fails: it could not be trusted
to fail when it should. Exit status: 0 clean, 1 offences, 77 the tool it needs is not here (ctest: skipped).
"""
import argparse
import collections
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIP = 77
C_ENDINGS = (".c", ".h", ".inc", ".cu")

Offence = collections.namedtuple("Offence", "path line text")


class Skip(Exception):
    """The check cannot be made here; the text says why."""


def offence(path, line, text):
    return Offence(str(path), line, text)


class Case:
    """A small tree, and what the check must say about it: `accused` is a set of "path:line", empty for a clean tree.

    A check that looks at something else than a tree uses functions instead, which return what went wrong, or None."""

    def __init__(self, files, accused=()):
        self.files = files
        self.accused = set(accused)


class Tree:
    """The source files below `root`. `options` holds the command line (build directory, library, ...)."""

    def __init__(self, root, options=None, is_real=False):
        self.root = pathlib.Path(root)
        self.options = options
        self.is_real = is_real
        self.files = sorted(self._list())

    def _list(self):
        if (self.root / ".git").exists() and shutil.which("git"):
            listed = subprocess.run(
                ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                capture_output=True, check=False)
            if listed.returncode == 0:
                names = listed.stdout.decode().split("\0")
                return {name for name in names if name and (self.root / name).is_file()}
        return set(self._walk())

    def _walk(self):
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "__pycache__") and not f.startswith("build")]
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), self.root)

    def note(self, text):
        """Says something that is no offence; self-tests are silent."""
        if self.is_real:
            print(f"note: {text}")

    def named(self, *endings):
        return [path for path in self.files if path.endswith(endings)]

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def lines(self, path):
        """(number, text) of each line."""
        return list(enumerate(self.read(path).splitlines(), 1))


def need(*names):
    """The first of these programs that is here."""
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise Skip(f"{' or '.join(names)} is not installed")


def run(*command, **keywords):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **keywords)


def _try_case(find, case, options):
    if callable(case):
        return case()
    with tempfile.TemporaryDirectory(prefix="hvd-lint-") as folder:
        for name, text in case.files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        found = {f"{o.path}:{o.line}" for o in find(Tree(folder, options))}
    if found != case.accused:
        return f"self-test: accused {sorted(found)}, expected {sorted(case.accused)}, in {sorted(case.files)}"
    return None


def _options(extra):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parents[2])
    for name in extra:
        parser.add_argument(f"--{name}")
    return parser.parse_args()


def main(find, cases, extra=()):
    options = _options(extra)
    if not any(callable(case) or case.accused for case in cases):
        sys.exit("this check has no case that shows it can fail")
    try:
        broken = [text for text in (_try_case(find, case, options) for case in cases) if text]
        if broken:
            sys.exit("\n".join(broken))
        offences = sorted(find(Tree(options.root, options, is_real=True)))
    except Skip as skip:
        print(f"SKIP: {skip}")
        sys.exit(SKIP)
    for o in offences:
        print(f"{o.path}:{o.line}: {o.text}")
    print(f"{len(offences)} offences" if offences else f"clean; {len(cases)} self-tests passed")
    sys.exit(1 if offences else 0)
