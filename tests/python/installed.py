# SPDX-License-Identifier: Apache-2.0
"""Our wheels in a fresh virtual environment. The wheels are built once per build folder, from a clean copy of the tree."""
from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from conftest import BUILD, SOURCE, clean_environment


def files_of_the_tree() -> list[str]:
    """What git knows of, and what it would add: what a clone of the next commit has."""
    names = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(SOURCE), "ls-files", "-co", "--exclude-standard",
                            "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in names if name and (SOURCE / name).is_file())


def digest_of(names: list[str]) -> str:
    """One hash of these files' names and contents."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + hashlib.sha256((SOURCE / name).read_bytes()).digest())
    return digest.hexdigest()


def build_wheels(names: list[str], place: pathlib.Path) -> None:
    """Builds hvd and the package horovod as pip does for `pip install ./python ./python/compat`, in a copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="hvt-clone-") as folder:
        tree = pathlib.Path(folder)
        for name in names:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, tree / name)
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "-w",
                        str(place), str(tree / "python"), str(tree / "python" / "compat")], check=True, timeout=600,
                       env=clean_environment(PYTHONPATH=""))
        left = [path for kind in ("build", "*.egg-info") for path in (tree / "python").rglob(kind)]
        assert not left, f"pip has left in the tree: {left}"


def our_wheels() -> list[str]:
    """The paths of the wheels of the tree as it stands; those of an earlier state are thrown away."""
    place = BUILD / "wheels"
    place.mkdir(exist_ok=True)
    names = files_of_the_tree()
    digest = digest_of(names)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / "digest"
        if not stamp.exists() or stamp.read_text() != digest:
            stamp.unlink(missing_ok=True)
            for old in place.glob("*.whl"):
                old.unlink()
            build_wheels(names, place)
            stamp.write_text(digest)
    return [str(path) for path in sorted(place.glob("*.whl"))]


def make_venv(folder: pathlib.Path) -> pathlib.Path:
    """A virtual environment with our wheels; the framework and NumPy come from the environment of the tests, by a .pth
    file."""
    place = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *our_wheels()],
                   check=True, timeout=600, env=clean_environment(PYTHONPATH=""))
    theirs = sysconfig.get_paths()["purelib"]
    ours = next(place.glob("lib/python*/site-packages"))
    (ours / "tests.pth").write_text(theirs + "\n")
    return place


def run(venv: pathlib.Path, *command: str, **settings: str) -> str:
    """The output of a program of the virtual environment, as a user who has activated it would start it."""
    environment = clean_environment(PATH=f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", **settings)
    for name in ("PYTHONPATH", "HVD_LIBRARY", "HVD_BUILD_DIR"):
        environment.pop(name)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
