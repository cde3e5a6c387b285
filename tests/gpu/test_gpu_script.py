# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu.sh: its arguments, what it does without a GPU, and what it writes, with shell programs for probes."""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu.sh"
TABLE, JSON = "gpu-probes.md", "gpu-probes.json"
HAS_DRIVER = subprocess.run(["sh", "-c", "ldconfig -p 2>/dev/null | grep -q libcuda.so.1"], check=False).returncode == 0
HAS_NVCC = bool(shutil.which("nvcc")) or os.path.exists("/usr/local/cuda/bin/nvcc")

GOOD = """#!/bin/sh
number=$(basename "$0" | tr -d a-z)
echo 'fact device A "GPU" of \\ no kind'
echo 'fact cuda_driver 13.0'
echo 'outcome measured'
case " $* " in *" --check "*) exit 0 ;; esac
echo "probe$number rtt_p50 12.5 us"
echo "probe$number fault none | at all"
echo "note seen: $*"
echo 'outcome measured'
echo '{"probe": '"$number"', "outcome": "measured", "reason": "", "facts": {}, "figures": [], "notes": []}'
"""
# What the script does with a program that ends badly; the first probe asked must pass its check.
BAD = {
    2: "kill -SEGV $$",
    3: "exec sleep 600",
    4: "echo 'probe4 half 1 us'; exit 1",
    5: """echo 'outcome failed: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY'
echo '{"probe": 5, "outcome": "failed", "reason": "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", "figures": []}'; exit 1""",
    6: """echo 'outcome refused: no NCCL'
echo '{"probe": 6, "outcome": "refused", "reason": "no NCCL", "figures": []}'; exit 77""",
}


def run(*arguments, **variables):
    return subprocess.run([str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=280, check=False,
                          env={**os.environ, **variables}, stdin=subprocess.DEVNULL)


def write_program(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture(name="programs")
def _programs(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    for number in range(1, 12):
        write_program(folder / f"probe{number}", GOOD)
    return folder


def test_help_says_what_it_writes_and_the_exit_statuses():
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    for word in ("--only", "--within", "--quick", "--out", TABLE, JSON, "77"):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [["--only", "0"], ["--only", "1,,2"], ["--only", "12"], ["--only", "1,10,011"], ["--within", "9"], ["--within", "soon"], ["--only"], ["--device", "x"],
                                       ["--frob"], ["extra"]], ids=" ".join)
def test_a_wrong_argument_is_refused_with_2(arguments, tmp_path):
    done = run(*arguments, "--out", tmp_path / "out") if len(arguments) > 1 else run(*arguments)
    assert done.returncode == 2
    assert done.stderr.endswith("Try --help.\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has a driver")
@pytest.mark.skipif(not HAS_NVCC, reason="no CUDA toolkit")
def test_in_a_copy_without_cmake_and_packages_it_builds_and_refuses_for_want_of_a_driver(tmp_path):
    """Only the script and the probes are copied, PATH has no cmake, ninja, pkg-config; nothing is written but build-gpu."""
    shutil.copytree(ROOT / "tests" / "gpu" / "probes", tmp_path / "tests" / "gpu" / "probes")
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash sh cat sed awk tr cut head tail dirname basename readlink mkdir rm mv cp mktemp timeout date grep env "
                 "gcc g++ cc as ld collect2 cc1 python3 ls").split():
        if shutil.which(name):
            (tools / name).symlink_to(shutil.which(name))
    done = subprocess.run([tmp_path / "scripts" / "gpu.sh", "--out", tmp_path / "out"], capture_output=True, text=True,
                          timeout=280, check=False, env={"PATH": str(tools), "HOME": str(tmp_path)})
    assert done.returncode == 77, done.stderr
    assert done.stderr.splitlines()[-1].startswith("gpu.sh: no NVIDIA driver: libcuda.so.1: ")
    assert not (tmp_path / "out").exists(), "nothing half-done"
    built = {p.name for p in (tmp_path / "build-gpu").iterdir() if not p.suffix}
    assert built == {f"probe{n}" for n in range(1, 12)}


def test_without_a_toolkit_it_says_so(tmp_path):
    if os.path.exists("/usr/local/cuda/bin/nvcc"):
        pytest.skip("nvcc is in the standard place")
    done = run("--out", tmp_path / "out", PATH="/usr/bin:/bin")
    assert done.returncode == 77 and done.stderr.startswith("gpu.sh: no CUDA toolkit")


@pytest.mark.parametrize("reason", ["no NVIDIA driver: libcuda.so.1: no such file",
                                    "driver too old: have CUDA 12.2, need CUDA 13.0"])
def test_a_machine_that_cannot_is_refused_with_the_probes_sentence(programs, tmp_path, reason):
    for number in range(1, 12):
        write_program(programs / f"probe{number}", f"#!/bin/sh\necho 'probe{number}: {reason}' >&2\nexit 77\n")
    done = run("--programs", programs, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (77, f"gpu.sh: {reason}\n")
    assert not (tmp_path / "out").exists()


def test_all_good_probes_make_a_table_and_valid_json(programs, tmp_path):
    out = tmp_path / "out"
    done = run("--programs", programs, "--out", out, "--quick", "--device", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == [JSON, TABLE]
    written = json.loads((out / JSON).read_text())
    assert [p["probe"] for p in written["probes"]] == list(range(1, 12))
    assert written["device"] == 'A "GPU" of \\ no kind' and written["cuda_driver"] == "13.0"
    assert {"date", "mps", "nccl", "driver", "seconds"} <= set(written)
    table = (out / TABLE).read_text()
    assert "| 9 | rtt_p50 | 12.5 | us |" in table
    assert "| 9 | fault | none \\| at all | |" in table
    assert "| 11 | rtt_p50 | 12.5 | us |" in table
    assert "| 1 | note | seen: --deadline " in table and " --quick --device 2" in table


def test_only_runs_what_is_asked_in_that_order(programs, tmp_path):
    done = run("--programs", programs, "--out", tmp_path, "--only", "11,7,2")
    assert done.returncode == 0
    assert [p["probe"] for p in json.loads((tmp_path / JSON).read_text())["probes"]] == [11, 7, 2]


def test_a_probe_that_crashes_fails_or_refuses_is_a_row_and_the_others_are_measured(programs, tmp_path):
    for number in (2, 4, 5, 6):
        write_program(programs / f"probe{number}", '#!/bin/sh\ncase " $* " in *" --check "*) exit 0 ;; esac\n' + BAD[number])
    (programs / "probe8").unlink()
    done = run("--programs", programs, "--out", tmp_path / "out")
    assert done.returncode == 1
    probes = {p["probe"]: p for p in json.loads((tmp_path / "out" / JSON).read_text())["probes"]}
    outcomes = {number: probe["outcome"] for number, probe in probes.items()}
    assert outcomes == {1: "measured", 2: "crashed", 3: "measured", 4: "crashed", 5: "failed", 6: "refused", 7: "measured",
                        8: "crashed", 9: "measured", 10: "measured", 11: "measured"}
    assert probes[5]["reason"] == "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"
    table = (tmp_path / "out" / TABLE).read_text()
    assert "| 2 | **outcome** | crashed: exit status 139, without a report | |" in table
    assert "| 4 | half | 1 | us |" in table, "what a probe said before it ended is kept"
    assert "| 6 | **outcome** | refused: no NCCL | |" in table


def test_a_refusal_alone_is_no_failure(programs, tmp_path):
    write_program(programs / "probe6", "#!/bin/sh\n" + BAD[6])
    assert run("--programs", programs, "--out", tmp_path, "--only", "1,6").returncode == 0


def test_a_probe_that_does_not_even_keep_its_own_deadline_is_ended(programs, tmp_path):
    write_program(programs / "probe3", "#!/bin/sh\n" + BAD[3])
    script = (SCRIPT.read_text()).replace("most_s=60", "most_s=5")
    assert "most_s=5 " in script
    copy = tmp_path / "scripts" / "gpu.sh"
    copy.parent.mkdir()
    write_program(copy, script)
    began = time.monotonic()
    done = subprocess.run([copy, "--programs", programs, "--out", tmp_path / "out", "--only", "1,3,9"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    outcomes = [p["outcome"] for p in json.loads((tmp_path / "out" / JSON).read_text())["probes"]]
    assert outcomes == ["measured", "hung", "measured"]


def test_results_of_before_stay_whole_when_a_run_is_refused(programs, tmp_path):
    assert run("--programs", programs, "--out", tmp_path / "out", "--only", "1").returncode == 0
    before = (tmp_path / "out" / JSON).read_text()
    write_program(programs / "probe5", "#!/bin/sh\necho 'probe5: no NVIDIA driver' >&2\nexit 77\n")
    assert run("--programs", programs, "--out", tmp_path / "out", "--only", "1").returncode == 77
    assert (tmp_path / "out" / JSON).read_text() == before


@pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
def test_the_suite_without_a_gpu_says_so(tmp_path):
    done = run("--suite", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (77, "") and "no GPU" in done.stderr
    assert not (tmp_path / "out").exists()
