# SPDX-License-Identifier: Apache-2.0
"""The wheel beside a TensorFlow that was there before it: what a new user would type."""
from __future__ import annotations

from installed import make_venv, run

PROGRAM = """
import logging, sys
warned = []
logging.getLogger("hvd").addHandler(type("Note", (logging.Handler,), {"emit": lambda self, record: warned.append(record)})())
import horovod.tensorflow as hvd
import horovod.keras, horovod.tensorflow.keras
import hvd.tensorflow as ours
import tensorflow as tf
assert hvd.allreduce is ours.allreduce and "torch" not in sys.modules and not warned, warned
hvd.init()
print("rank", hvd.rank(), "sum", hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Sum).numpy().tolist())
"""


def test_ranks_need_nothing_but_the_wheel_and_tensorflow(tmp_path):
    venv = make_venv(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    said = run(venv, "hvdrun", "-np", "2", "python", str(tmp_path / "program.py"))
    assert "rank 0 sum [3.0]" in said and "rank 1 sum [3.0]" in said
