# SPDX-License-Identifier: Apache-2.0
"""Scripts in the way people write them for Horovod print what they print with Horovod 0.28.1; the examples learn."""
import re
import sys

import pytest

from conftest import PROGRAMS, SOURCE

EXAMPLES = SOURCE / "examples" / "pytorch"
NUMBER = re.compile(r"-?\d+\.\d+")
#: Runs a program where there is no NumPy: PyTorch does not need it, so neither does hvd.torch.
WITHOUT_NUMPY = ["-c", "import runpy, sys; sys.modules['numpy'] = None; sys.argv = sys.argv[1:]; "
                       "runpy.run_path(sys.argv[0], run_name='__main__')"]


def lines_of(ranks, *command):
    """What all ranks printed, by rank."""
    done = ranks.run(2, *command, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^\[(\d+)\]<stdout>:(.*)$", done.stdout, re.MULTILINE)
    return [text for _, text in sorted(found, key=lambda line: int(line[0]))]


@pytest.mark.parametrize("name, before, arguments", [
    ("tour", WITHOUT_NUMPY, []), pytest.param("uneven", [], [], marks=pytest.mark.nightly),
    pytest.param("synthetic_benchmark", [], ["--fp16-allreduce", "--no-cuda"], marks=pytest.mark.nightly)])
def test_a_script_for_horovod_prints_what_horovod_prints(ranks, name, before, arguments):
    lines = lines_of(ranks, *before, str(PROGRAMS / f"{name}.py"), *arguments)
    expected = (PROGRAMS / f"{name}.expected").read_text(encoding="utf-8").splitlines()
    assert [NUMBER.sub("#", line) for line in lines] == [NUMBER.sub("#", line) for line in expected]
    for line, wanted in zip(lines, expected):
        assert [float(number) for number in NUMBER.findall(line)] == pytest.approx(
            [float(number) for number in NUMBER.findall(wanted)], rel=2e-3, abs=1e-4), line


def test_the_script_that_two_nodes_train_learns_on_one(ranks):
    lines = lines_of(ranks, str(PROGRAMS / "horovod_torch.py"))
    said = [re.match(r"rank (\d) of 2 on .*: (accuracy ([0-9.]+) %, weights [0-9a-f]+)$", line) for line in lines]
    assert [match[1] for match in said] == ["0", "1"] and said[0][2] == said[1][2] and float(said[0][3]) >= 80


@pytest.mark.nightly
@pytest.mark.parametrize("name, epochs, least", [("digits", "5", 88), ("resnet", "3", 80)])
def test_an_example_learns_the_digits(ranks, name, epochs, least):
    """After their default number of epochs both are above 93 %."""
    lines = lines_of(ranks, str(EXAMPLES / f"{name}.py"), "--epochs", epochs)
    losses = [float(re.search(r"train loss ([0-9.]+)", line).group(1)) for line in lines]
    assert losses[-1] < losses[0] / 4
    assert float(re.search(r"accuracy ([0-9.]+) %", lines[-1]).group(1)) >= least


@pytest.mark.nightly
def test_training_goes_on_from_a_checkpoint_of_rank_0(ranks, tmp_path):
    def train(epochs):
        return lines_of(ranks, str(EXAMPLES / "digits.py"), "--epochs", str(epochs), "--clip", "1", "--checkpoint",
                        str(tmp_path / "digits.pt"))
    assert [line.split(":")[0] for line in train(1)] == ["epoch 1"]
    assert [line.split(":")[0] for line in train(2)] == ["epoch 2"]


def test_one_process_needs_no_launcher_and_can_start_two(ranks):
    done = ranks.start([sys.executable, *WITHOUT_NUMPY, str(EXAMPLES / "alone.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["rank 0 of 1", "tensor([1., 2., 3.])", "y = 3.000 x + 1.000", "[0.5, 0.5]"]
