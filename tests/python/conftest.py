# SPDX-License-Identifier: Apache-2.0
"""Ranks in real processes under a real hvdrun and hvdd, for tests of the package hvd.

    def check_sum():                      # runs on every rank, in a process of its own
        import hvd.numpy as hvd
        hvd.init()
        assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()
        return hvd.rank()

    def test_sum(ranks):
        assert ranks(3, check_sum) == [0, 1, 2]
"""
from __future__ import annotations

import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("HVD_BUILD_DIR", SOURCE / "build"))
PROGRAMS = HERE / "programs"
#: torchrun of one node. Without addresses it takes "localhost" and the host's name, and where those do not resolve it
#: waits for minutes.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
            "--local-addr", "127.0.0.1"]
#: What sits around a test must not tell its ranks who they are.
_FOREIGN = ("HVD_", "HVDD_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL", "TORCHELASTIC_")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")

#: Keras imports scikit-learn where it is installed, for wrappers that no test uses: a third of the time of importing TensorFlow.
#: The examples, which need it, are processes of their own.
sys.modules["sklearn"] = None  # type: ignore[assignment]
sys.path[:0] = [str(SOURCE / "python"), str(HERE.parent / "harness")]
os.environ.setdefault("HVD_LIBRARY", str(BUILD / "lib" / "libhvdclient.so.0"))


def clean_environment(**changes: str) -> dict[str, str]:
    """This process' environment without any rank, job or daemon; the package as it stands in the tree."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES}
    kept.update(HVD_BUILD_DIR=str(BUILD), HVD_LIBRARY=str(BUILD / "lib" / "libhvdclient.so.0"), OMP_NUM_THREADS="1",
                PYTHONPATH=os.pathsep.join([str(SOURCE / "python"), str(SOURCE / "python" / "compat")]),
                PATH=os.pathsep.join([str(BUILD / "bin"), str(pathlib.Path(sys.executable).parent), kept["PATH"]]),
                PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(BUILD / "pycache"), PYTHONFAULTHANDLER="1")
    kept.update(changes)
    return kept


class Ranks:
    """Starts ranks. Every launch ends within its timeout, with all its processes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.launches = 0

    def __call__(self, np: int, function: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None,
                 timeout: float = 120, options: tuple[str, ...] = ()) -> list[Any]:
        """Calls a function of the test's module on `np` ranks; their results, by rank. A rank that raises fails the
        test with its traceback."""
        self.launches += 1
        results = self.folder / str(self.launches)
        results.mkdir()
        (results / "call").write_bytes(pickle.dumps((function.__code__.co_filename, function.__qualname__, arguments)))
        done = self.run(np, str(HERE / "rank_main.py"), str(results), env=env, timeout=timeout, options=options)
        assert done.returncode == 0, f"hvdrun exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return [pickle.loads((results / str(rank)).read_bytes()) for rank in range(np)]

    def run(self, np: int, *command: str, env: dict[str, str] | None = None, timeout: float = 120,
            options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """`hvdrun -np N python command...`; its output as text, whatever its exit status."""
        return self.start([str(BUILD / "bin" / "hvdrun"), "-np", str(np), *options, sys.executable, *command], env=env,
                          timeout=timeout)

    def start(self, command: list[str], env: dict[str, str] | None = None,
              timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Any command in a clean environment, where a private hvdd of another test is not found; killed with everything
        it started when it takes too long."""
        settings = {"XDG_RUNTIME_DIR": str(self.folder), **(env or {})}
        with subprocess.Popen(command, env=clean_environment(**settings), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                output, errors = _end(process)
                pytest.fail(f"{' '.join(command)}: not finished after {timeout} s\n{output}\n{errors}")
            except BaseException:  # the test's own time is over
                print(*_end(process), sep="\n")
                raise
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends a command and what it started; what it had said."""
    process.terminate()  # hvdrun ends its ranks
    try:
        return process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def pytest_configure(config: pytest.Config) -> None:
    """The mark that tests bear, and the rules that every test is under."""
    config.pluginmanager.import_plugin("hvt.rules")
    config.addinivalue_line("markers", "whole: not in ctest's default run, only in the whole one (ctest -C Whole)")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Frameworks take long to be imported, on every rank; `Ranks` ends a launch that hangs before this."""
    item.add_marker(pytest.mark.limit(420))


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Runs functions or programs on ranks."""
    folder = tempfile.mkdtemp(prefix="hvt-")
    try:
        yield Ranks(pathlib.Path(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a private hvdd may be about to leave it
