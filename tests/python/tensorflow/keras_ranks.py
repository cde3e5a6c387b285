# SPDX-License-Identifier: Apache-2.0
"""Cases for Keras, many in one launch of ranks: importing TensorFlow takes longer than most of them.

A module of tests has functions case_<name>(keras, hvd). They run on every rank, for every Keras of the environment:

    CASES = cases_of(globals())

    @pytest.fixture(scope="module")
    def failed():
        return launch(2, __file__, CASES, CASES[:3])

    @pytest.mark.parametrize("case", CASES)
    def test_case(failed, case):
        assert_passed(failed, case)
"""
from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from typing import Any

import pytest


def packages() -> list[str]:
    """The Keras' of this environment, by the name they are imported by."""
    one = os.environ.get("TF_USE_LEGACY_KERAS") or not importlib.util.find_spec("tf_keras")
    return ["tf.keras"] if one else ["tf.keras", "tf_keras"]


def open_keras(package: str = "tf.keras") -> tuple[Any, Any]:
    """(keras, hvd), initialized, with as few threads as there can be."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    if tf.config.threading.get_inter_op_parallelism_threads() == 0:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    import hvd.tensorflow.keras as hvd
    hvd.init()
    return (tf.keras if package == "tf.keras" else importlib.import_module(package)), hvd


def is_keras_3(keras: Any) -> bool:
    """Whether this is Keras 3."""
    return hasattr(keras, "ops")


def run_cases(of: str, wanted: dict[str, list[str]]) -> dict[str, str]:
    """On a rank: runs cases; what went wrong in which, with their Keras. A case that every Keras skips says so as
    "<case> skipped"."""
    module = importlib.import_module(pathlib.Path(of).stem)
    failed, skipped = {}, {}
    for package, names in wanted.items():
        keras, hvd = open_keras(package)
        for name in names:
            keras.utils.set_random_seed(1)
            try:
                getattr(module, "case_" + name)(keras, hvd)
            except pytest.skip.Exception as skip:
                skipped.setdefault(name, []).append(str(skip))
            except Exception:  # pylint: disable=broad-except  # the other cases are tried too
                failed[f"{name} {package}"] = traceback.format_exc()
    for name, texts in skipped.items():
        if len(texts) == sum(name in names for names in wanted.values()):
            failed[f"{name} skipped"] = texts[0]
    return failed


def cases_of(module: dict[str, Any]) -> list[str]:
    """The names of a module's cases."""
    return [name[len("case_"):] for name in module if name.startswith("case_")]


def launch(np: int, of: str, names: list[str], of_another: list[str]) -> dict[str, list[str]]:
    """Runs cases on `np` ranks; what ranks said about "<case> <Keras>" that failed. `of_another`: the cases for a second
    Keras beside the first, which has them all where it is the first."""
    from conftest import Ranks
    folder = tempfile.mkdtemp(prefix="hvt-")
    failed: dict[str, list[str]] = {}
    try:
        wanted = dict(zip(packages(), (names, of_another)))
        said = Ranks(pathlib.Path(folder))(np, run_cases, of, wanted, timeout=240)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for rank, of_rank in enumerate(said):
        for case, text in of_rank.items():
            failed.setdefault(case, []).append(f"rank {rank}:\n{text}")
    return failed


def assert_passed(failed: dict[str, list[str]], name: str) -> None:
    """Fails with what the ranks said about a case, or skips it."""
    if f"{name} skipped" in failed:
        pytest.skip(failed[f"{name} skipped"][0].partition("\n")[2])
    said = [f"{case}: {text}" for case, texts in failed.items() if case.split()[0] == name for text in texts]
    if said:
        pytest.fail("\n".join(said), pytrace=False)


if __name__ == "__main__":  # <file> <function>: a rank that may fail
    getattr(importlib.import_module(pathlib.Path(sys.argv[1]).stem), sys.argv[2])()
