# SPDX-License-Identifier: Apache-2.0
"""One rank of a test: calls the function that conftest.Ranks has written down, and leaves its result."""
import functools
import gc
import importlib.util
import os
import pathlib
import pickle
import sys


def main() -> None:
    """argv[1]: the folder with the call; the result goes to the file named by this rank."""
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # as in conftest.py
    gc.set_threshold(100_000, 50, 100)  # looking for cycles is a third of the time of importing PyTorch
    folder = pathlib.Path(sys.argv[1])
    filename, name, arguments = pickle.loads((folder / "call").read_bytes())
    sys.path.insert(0, str(pathlib.Path(filename).parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(filename).stem, filename)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = functools.reduce(getattr, name.split("."), module)
    result = function(*arguments)
    (folder / os.environ["HVD_RANK"]).write_bytes(pickle.dumps(result))
    gc.freeze()  # nor are cycles looked for when the interpreter ends


if __name__ == "__main__":
    main()
