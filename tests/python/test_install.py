# SPDX-License-Identifier: Apache-2.0
"""pip install of a clean copy of the tree into a fresh virtual environment; then what a new user would type."""
from __future__ import annotations

import pathlib

import pytest

from conftest import PROGRAMS, SOURCE
from installed import make_venv, run


@pytest.fixture(scope="module")
def venv(tmp_path_factory) -> pathlib.Path:
    """A virtual environment with our wheels."""
    return make_venv(tmp_path_factory.mktemp("install"))


def test_hvdrun_starts_ranks_with_nothing_but_the_wheel(venv):
    output = run(venv, "hvdrun", "-np", "2", "python", str(PROGRAMS / "who_am_i.py"))
    assert "rank 0 of 2, local 0 of 2, sum 3" in output and "rank 1 of 2" in output


def test_one_process_needs_no_launcher(venv):
    assert "rank 0 of 1" in run(venv, "python", str(PROGRAMS / "who_am_i.py"))


def test_the_programs_are_there(venv):
    for program in ("hvdrun", "hvdctl", "hvdd", "hvd-perf"):
        assert "Usage" in run(venv, program, "--help"), program


def test_the_ops_for_tensorflow_are_there(venv):
    assert list(venv.glob("lib/python*/site-packages/hvd/_native_files/lib/libhvd_tensorflow.so"))


def test_the_worker_of_gpus_lies_where_it_looks_for_nccls_wheel_beside_it(venv):
    """PACKAGE of daemon/gpu/nccl.c."""
    assert list(venv.glob("lib/python*/site-packages/hvd/_native_files/libexec/hvdd/hvdd-gpu"))


def test_the_package_is_typed_and_knows_its_version(venv):
    code = "import hvd, pathlib; print(hvd.__version__, (pathlib.Path(hvd.__file__).parent / 'py.typed').exists())"
    assert run(venv, "python", "-c", code).split() == ["0.1.0", "True"]


def test_the_wheel_serves_every_python(venv):
    record = next(venv.glob("lib/python*/site-packages/hvd-*.dist-info/WHEEL")).read_text()
    assert "Tag: py3-none-linux" in record


def test_the_wheels_carry_the_licence(venv):
    site, = venv.glob("lib/python*/site-packages")
    for wheel in ("hvd", "hvd_horovod"):
        found, = site.glob(f"{wheel}-*.dist-info/**/LICENSE")
        assert found.read_text(encoding="utf-8") == (SOURCE / "LICENSE").read_text(encoding="utf-8")


def test_it_can_be_removed_without_a_trace(venv):
    run(venv, "pip", "uninstall", "--quiet", "-y", "hvd")
    assert not list(venv.glob("lib/python*/site-packages/hvd/**/*.py")) and not (venv / "bin" / "hvdrun").exists()
