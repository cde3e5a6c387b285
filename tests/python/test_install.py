# SPDX-License-Identifier: Apache-2.0
"""pip install of a clean copy of the tree into a fresh virtual environment; then what a new user would type."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

from conftest import PROGRAMS, SOURCE, clean_environment


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> pathlib.Path:
    """A virtual environment with our wheels; PyTorch and NumPy come from the environment of the tests, by a .pth file."""
    folder = tmp_path_factory.mktemp("install")
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


def test_hvdrun_starts_ranks_with_nothing_but_the_wheel(venv):
    output = run(venv, "hvdrun", "-np", "2", "python", str(PROGRAMS / "who_am_i.py"))
    assert "rank 0 of 2, local 0 of 2, sum 3" in output and "rank 1 of 2" in output


def test_one_process_needs_no_launcher(venv):
    assert "rank 0 of 1" in run(venv, "python", str(PROGRAMS / "who_am_i.py"))


def test_the_programs_are_there(venv):
    for program in ("hvdrun", "hvdctl", "hvdd", "hvd-perf"):
        assert "Usage" in run(venv, program, "--help"), program


def test_the_package_is_typed_and_knows_its_version(venv):
    code = "import hvd, pathlib; print(hvd.__version__, (pathlib.Path(hvd.__file__).parent / 'py.typed').exists())"
    assert run(venv, "python", "-c", code).split() == ["0.1.0", "True"]


def test_the_wheel_serves_every_python(venv):
    record = next(venv.glob("lib/python*/site-packages/hvd-*.dist-info/WHEEL")).read_text()
    assert "Tag: py3-none-linux" in record


def test_it_can_be_removed_without_a_trace(venv):
    run(venv, "pip", "uninstall", "--quiet", "-y", "hvd")
    assert not list(venv.glob("lib/python*/site-packages/hvd/**/*.py")) and not (venv / "bin" / "hvdrun").exists()
