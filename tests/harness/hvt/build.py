# SPDX-License-Identifier: Apache-2.0
"""Where the programs under test are, and how much slower than a release build they run."""
import atexit
import functools
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping

SOURCE = pathlib.Path(__file__).resolve().parents[3]
PATIENCE_MAX = 4.0


def _find_build() -> pathlib.Path:
    given = os.environ.get("HVD_BUILD_DIR")
    usual = [SOURCE / name for name in ("build-release", "build-debug", "build")]
    candidates = [pathlib.Path(given)] if given else usual
    for folder in candidates:
        if (folder / "CMakeCache.txt").exists():
            return folder.resolve()
    raise RuntimeError(f"no build found in {', '.join(map(str, candidates))}: set HVD_BUILD_DIR to a built tree")


BUILD = _find_build()


@functools.cache
def cache_entry(name: str) -> str:
    """The value of a variable in the build's CMakeCache.txt; "" if it has none."""
    text = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace")
    match = re.search(rf"^{re.escape(name)}:\w+=(.*)$", text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def sanitized() -> str:
    """The value of HVD_SANITIZE in the build: "" for none, else e.g. "thread" or "address,undefined"."""
    return cache_entry("HVD_SANITIZE")


def time_factor() -> float:
    """By how much a time limit is stretched in this build. HVT_TIME_FACTOR adds to it on a slow machine."""
    kind = sanitized()
    factor = 10.0 if "thread" in kind else 5.0 if kind else 1.0
    return factor * float(os.environ.get("HVT_TIME_FACTOR", "1"))


def scaled(seconds: float) -> float:
    """`seconds` of a release build, in this build."""
    return seconds * time_factor()


def patience() -> float:
    """What a promise in milliseconds is stretched by: it is made for a machine with a core to spare, so a machine with
    more work than cores stretches it by that much, but by no more than PATIENCE_MAX."""
    return time_factor() * min(PATIENCE_MAX, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@functools.cache
def _for_strangers() -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hvt-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    for library in (BUILD / "lib").glob("libhvdclient.so*"):
        shutil.copy(library, folder)
        (folder / library.name).chmod(0o755)
    return folder


def program_for_strangers(name: str, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Path and environment of a built program that another user starts: a copy, as a build may lie below a folder that only
    its owner may enter."""
    folder = _for_strangers()
    if not (folder / name).exists():
        shutil.copy(program(name), folder)
        (folder / name).chmod(0o755)
    return str(folder / name), dict(environment, LD_LIBRARY_PATH=str(folder))


def library_for_strangers(name: str) -> str:
    """Path of a library of the build that processes of other users load: a copy, for the same reason."""
    path = _for_strangers() / name
    if not path.exists():
        shutil.copy(BUILD / "lib" / name, path)
        path.chmod(0o755)
    return str(path)


_FOLDERS = {"hvdd-engine": "libexec/hvdd", "hvdd-gate": "libexec/hvdd", "hvdd-gpu": "libexec/hvdd"}


def program(name: str) -> str:
    """Path of a built program. Raises FileNotFoundError with the place where it was expected."""
    path = BUILD / _FOLDERS.get(name, "bin") / name
    if not path.exists():
        raise FileNotFoundError(f"{name} is not built: expected {path}")
    return str(path)
