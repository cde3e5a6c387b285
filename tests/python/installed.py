# SPDX-License-Identifier: Apache-2.0
"""Our wheels in a fresh virtual environment, made of a clean copy of the tree."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from conftest import SOURCE, clean_environment


def make_venv(folder: pathlib.Path) -> pathlib.Path:
    """A virtual environment with our wheels; the framework and NumPy come from the environment of the tests, by a .pth
    file."""
    tree = folder / "clone"
    files = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(SOURCE), "ls-files", "-co", "--exclude-standard",
                            "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, files):
        if (SOURCE / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, tree / name)
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = [str(tree / "python")] + ([str(tree / "python" / "compat")] if (tree / "python" / "compat").exists() else [])
    subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages],
                   check=True, timeout=600, env=clean_environment(PYTHONPATH=""))
    theirs = sysconfig.get_paths()["purelib"]
    ours = next(place.glob("lib/python*/site-packages"))
    (ours / "tests.pth").write_text(theirs + "\n")
    left = subprocess.run(["find", str(tree / "python"), "-name", "build", "-o", "-name", "*.egg-info"], check=True,
                          capture_output=True, text=True).stdout
    assert not left, f"pip has left in the tree: {left}"
    return place


def run(venv: pathlib.Path, *command: str, **settings: str) -> str:
    """The output of a program of the virtual environment, as a user who has activated it would start it."""
    environment = clean_environment(PATH=f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", **settings)
    for name in ("PYTHONPATH", "HVD_LIBRARY", "HVD_BUILD_DIR"):
        environment.pop(name)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
