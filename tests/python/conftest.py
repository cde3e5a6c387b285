# SPDX-License-Identifier: Apache-2.0
"""Ranks in real processes under a real hvdrun and hvdd, for tests of the package hvd.

    def check_sum():                      # runs on every rank, in a process of its own
        import hvd.numpy as hvd
        hvd.init()
        assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()
        return hvd.rank()

    def test_sum(ranks):
        assert ranks(3, check_sum) == [0, 1, 2]

RANKS_IMPORT, names in the test's module, are imported once in each rank's place of a job, which lasts as long as the module's tests:
there a call is a process that is forked. Importing TensorFlow is five seconds of a core. Without it each call is a job of its own.
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
import time
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
_FOREIGN = ("HVD_", "HVDD_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "LSB_", "MPI_LOCAL", "TORCHELASTIC_")
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


class Nursery:
    """A hvdrun whose processes have imported what takes long, and fork for each call."""

    def __init__(self, np: int, imports: tuple[str, ...], filename: str, env: dict[str, str], options: tuple[str, ...]) -> None:
        self.np = np
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hvt-"))
        self.calls = []
        for rank in range(np):
            os.mkfifo(self.folder / f"calls.{rank}")
            self.calls.append(os.open(self.folder / f"calls.{rank}", os.O_RDWR))
        command = [str(BUILD / "bin" / "hvdrun"), "-np", str(np), *options, sys.executable, str(HERE / "rank_main.py"), "--calls",
                   str(self.folder), filename, *imports]
        with open(self.folder / "output", "wb") as output:
            self.process = subprocess.Popen(command, env=clean_environment(XDG_RUNTIME_DIR=str(self.folder), **env),
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)

    def call(self, results: pathlib.Path, timeout: float) -> str:
        """Makes the call that stands in `results` on every rank; why it failed, or nothing. What has failed is not used again."""
        said = (self.folder / "output").stat().st_size
        for each in self.calls:
            os.write(each, f"{results}\n".encode())
        deadline = time.monotonic() + timeout
        why = ""
        while not why:
            statuses = {path.name: path.read_text() for path in results.glob("*.status")}
            if any(status != "0" for status in statuses.values()) and deadline - time.monotonic() > 10:
                deadline = time.monotonic() + 10  # the others are about to be told
            if len(statuses) == self.np:
                why = "" if set(statuses.values()) == {"0"} else f"exit statuses {statuses}"
                break
            if self.process.poll() is not None:
                why = f"hvdrun exited with {self.process.returncode}"
            elif time.monotonic() > deadline:
                why = f"not finished in time, but {statuses}"
            time.sleep(0.01)
        if why:
            self.end()
            why += "\n" + (self.folder / "output").read_bytes()[said:].decode(errors="replace")
        return why

    def end(self) -> None:
        """Ends the processes; may be called again."""
        for each in self.calls:
            os.close(each)
        self.calls = []
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            _end(self.process)


class Nurseries:
    """Those of a module, by what their processes were started with; at most two live at a time."""

    def __init__(self, imports: tuple[str, ...]) -> None:
        self.imports = imports
        self.live: dict[object, Nursery] = {}

    def get(self, np: int, filename: str, env: dict[str, str], options: tuple[str, ...]) -> Nursery:
        """One that lives, or a new one."""
        key = np, filename, tuple(sorted(env.items())), options
        found = self.live.pop(key, None)
        if found is None or found.process.poll() is not None or not found.calls:
            if found is not None:
                self._drop(found)
            found = Nursery(np, self.imports, filename, env, options)
        self.live[key] = found  # the last that was used is the last to go
        while len(self.live) > 2:
            self._drop(self.live.pop(next(iter(self.live))))
        return found

    @staticmethod
    def _drop(nursery: Nursery) -> None:
        nursery.end()
        shutil.rmtree(nursery.folder, ignore_errors=True)

    def end(self) -> None:
        """Ends all of them."""
        while self.live:
            self._drop(self.live.popitem()[1])


class Ranks:
    """Starts ranks. Every launch ends within its timeout, with all its processes."""

    def __init__(self, folder: pathlib.Path, nurseries: Nurseries | None = None) -> None:
        self.folder = folder
        self.nurseries = nurseries
        self.launches = 0

    def __call__(self, np: int, function: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None,
                 timeout: float = 120, options: tuple[str, ...] = ()) -> list[Any]:
        """Calls a function of the test's module on `np` ranks; their results, by rank. A rank that raises fails the
        test with its traceback."""
        self.launches += 1
        results = self.folder / str(self.launches)
        results.mkdir()
        filename = function.__code__.co_filename
        (results / "call").write_bytes(pickle.dumps((filename, function.__qualname__, arguments)))
        if self.nurseries and self.nurseries.imports:
            why = self.nurseries.get(np, filename, env or {}, options).call(results, timeout)
            assert not why, why
            return [pickle.loads((results / str(rank)).read_bytes()) for rank in range(np)]
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
    config.addinivalue_line("markers", "nightly: a ctest test of its own, which only scripts/nightly.sh runs (ctest -C Nightly)")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Frameworks take long to be imported, on every rank; `Ranks` ends a launch that hangs before this."""
    item.add_marker(pytest.mark.limit(420))


@pytest.fixture(scope="module")
def nurseries(request: pytest.FixtureRequest) -> Iterator[Nurseries]:
    """What the module's ranks() use."""
    made = Nurseries(getattr(request.module, "RANKS_IMPORT", ()))
    yield made
    made.end()


@pytest.fixture
def ranks(nurseries: Nurseries) -> Iterator[Ranks]:
    """Runs functions or programs on ranks."""
    folder = tempfile.mkdtemp(prefix="hvt-")
    try:
        yield Ranks(pathlib.Path(folder), nurseries)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a private hvdd may be about to leave it
