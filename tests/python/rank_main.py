# SPDX-License-Identifier: Apache-2.0
"""One rank of a test: calls the function that conftest.Ranks has written down, and leaves its result.

    rank_main.py FOLDER                         the call in FOLDER; the result goes to the file named by this rank
    rank_main.py --calls FOLDER FILE NAME...    reads FILE, imports NAMEs, and forks for each line of FOLDER/calls.RANK, which is a folder
                                                with a call; leaves the exit status in it, too
"""
import functools
import gc
import importlib.util
import os
import pathlib
import pickle
import sys
import types

RANK = os.environ["HVD_RANK"]


def module_of(filename: str) -> types.ModuleType:
    """A test's module, read once."""
    name = pathlib.Path(filename).stem
    if name not in sys.modules:
        sys.path.insert(0, str(pathlib.Path(filename).parent))
        spec = importlib.util.spec_from_file_location(name, filename)
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def next_call(folder: pathlib.Path, filename: str, names: list[str]) -> pathlib.Path:
    """The folder of a call, in a process of its own; in this one it does not return."""
    module_of(filename)
    for name in names:
        importlib.import_module(name)
    gc.freeze()
    with open(folder / f"calls.{RANK}", encoding="utf-8") as calls:
        while line := calls.readline():
            results = pathlib.Path(line.rstrip("\n"))
            child = os.fork()
            if child == 0:
                return results
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            (results / f"{RANK}.new").write_text(str(status))
            (results / f"{RANK}.new").rename(results / f"{RANK}.status")
    sys.exit()


def main() -> None:
    """As the head of this file says."""
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # as in conftest.py
    gc.set_threshold(100_000, 50, 100)  # looking for cycles is a third of the time of importing PyTorch
    folder = next_call(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]) if sys.argv[1] == "--calls" else pathlib.Path(sys.argv[1])
    filename, name, arguments = pickle.loads((folder / "call").read_bytes())
    function = functools.reduce(getattr, name.split("."), module_of(filename))
    result = function(*arguments)
    (folder / RANK).write_bytes(pickle.dumps(result))
    gc.freeze()  # nor are cycles looked for when the interpreter ends


if __name__ == "__main__":
    main()
