# SPDX-License-Identifier: Apache-2.0
"""The GPU probes where there is no GPU: arguments, refusals, and the supervision of processes that hang, crash or fail.

probe_selftest is a probe without CUDA (selftest.c); tests/fakegpu's bare/libcuda.so.1 is a driver that is too old or sees no device."""
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import time

import pytest

PROGRAMS = pathlib.Path(os.environ["HVD_BUILD_DIR"], "gpu")
FAKE = PROGRAMS.parent / "fakegpu" / "bare"
SELFTEST = PROGRAMS / "probe_selftest"
PROBES = sorted(PROGRAMS.glob("probe[1-9]*"), key=lambda program: int(program.name[5:]))
needs_probes = pytest.mark.skipif(not PROBES, reason="no CUDA toolkit: the probes are not built")
needs_bare = pytest.mark.skipif(not PROBES or not (FAKE / "libcuda.so.1").exists(), reason="the probes, or the fake driver, are not built")


def has_driver():
    return subprocess.run(["sh", "-c", "ldconfig -p 2>/dev/null | grep -q libcuda.so.1"], check=False).returncode == 0


def run(program, *arguments, **variables):
    """Output, errors, exit status and the JSON object, if the last line is one."""
    environment = {**os.environ, **variables}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env=environment, stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines()
    done.json = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    return done


def selftest(what, *arguments, **variables):
    return run(SELFTEST, *(arguments or ("--deadline", "20")), PROBE_SELFTEST=what, **variables)


def figures(done):
    return {row["name"]: row["value"] for row in done.json["figures"]}


# --- arguments ---

@pytest.mark.parametrize("program", [SELFTEST, *PROBES], ids=lambda p: p.name)
def test_help_names_every_option_and_exits_with_0(program):
    done = run(program, "--help")
    assert done.returncode == 0 and done.stderr == ""
    for option in ("--check", "--deadline", "--device", "--json", "--quick", "--help"):
        assert option in done.stdout


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["extra"], ["--device", "x"], ["--device", "-1"], ["--device"],
                                       ["--deadline", "0"], ["--deadline", "soon"], ["--deadline", "nan"]],
                         ids=" ".join)
def test_a_wrong_argument_is_refused_with_usage_and_2(arguments):
    done = run(SELFTEST, *arguments)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.endswith("Try --help.\n")


@needs_probes
def test_there_are_eleven_probes_and_each_knows_its_number():
    assert [p.name for p in PROBES] == [f"probe{n}" for n in range(1, 12)]
    for number, program in enumerate(PROBES, 1):
        assert run(program, "--help").stdout.startswith(f"Usage: probe{number} ")


# --- refusals ---

@needs_probes
@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
@pytest.mark.parametrize("program", PROBES, ids=lambda p: p.name)
def test_without_a_driver_a_probe_says_so_and_exits_with_77(program):
    done = run(program)
    number = program.name[5:]
    assert done.returncode == 77
    assert done.stderr.startswith(f"probe{number}: no NVIDIA driver: libcuda.so.1: ")
    assert done.json["outcome"] == "refused" and done.json["probe"] == int(number)
    assert done.json["reason"].startswith("no NVIDIA driver: ")
    assert not done.json["figures"]


@needs_bare
@pytest.mark.parametrize("version,have", [(11040, "11.4"), (12090, "12.9")])
@pytest.mark.parametrize("program", PROBES, ids=lambda p: p.name)
def test_a_driver_that_is_too_old_is_named_with_what_is_needed(program, version, have):
    done = run(program, LD_LIBRARY_PATH=str(FAKE), FAKEGPU=f"version={version}")
    assert done.returncode == 77
    assert done.stderr == f"{program.name}: driver too old: have CUDA {have}, need CUDA 13.0\n"
    assert done.json["reason"] == f"driver too old: have CUDA {have}, need CUDA 13.0"


@needs_bare
def test_a_driver_that_lacks_a_function_is_too_old_and_the_function_is_named():
    done = run(PROBES[0], LD_LIBRARY_PATH=str(FAKE))
    assert done.returncode == 77
    assert done.stderr.startswith("probe1: driver too old: have CUDA 13.0 without cu")


@needs_bare
def test_a_driver_without_a_device_is_told_from_no_driver():
    done = run(PROBES[0], LD_LIBRARY_PATH=str(FAKE), FAKEGPU="devices=0")
    assert (done.returncode, done.stderr) == (77, "probe1: no NVIDIA device: the driver (CUDA 13.0) sees none\n")


# --- the report ---

def test_figures_facts_notes_and_answers_are_lines_and_one_json_object(tmp_path):
    done = selftest("", "--json", str(tmp_path / "x.json"), "--quick", "--device", "3")
    assert done.returncode == 0 and done.json["outcome"] == "measured"
    assert "probe0 before 0.5 s\n" in done.stdout
    assert "probe0 three_p50 2 us\n" in done.stdout
    assert figures(done)["answer_of_peer"] == 42
    assert figures(done)["works"] == "yes, it does"
    assert figures(done)["endless"] == "inf", "what JSON cannot hold as a number is text"
    assert done.json["facts"]["device"] == 'none, "this" is\ta self-test\\'
    assert done.json["notes"][0] == 'variant "plain", quick 1, device 3'
    assert json.loads((tmp_path / "x.json").read_text())["figures"] == done.json["figures"]


def test_json_to_a_place_that_cannot_be_written_is_an_error():
    done = selftest("", "--json", "/nonexistent/x.json")
    assert done.returncode == 1 and "cannot write /nonexistent/x.json" in done.stderr


# --- what can go wrong ---

@pytest.mark.parametrize("what,status,outcome,reason", [
    ("refuse", 77, "refused", "no such thing"),
    ("fail", 1, "failed", "something: 7"),
    ("failing peer", 1, "failed", "the peer says why"),
    ("exit", 1, "failed", "exit status 9 in: the start"),
    ("crash", 1, "crashed", "Segmentation fault in: the step"),
])
def test_how_a_run_ended_is_reported_and_what_was_measured_is_kept(what, status, outcome, reason):
    # A sanitizer turns the signal into an exit of its own; that path is the plain build's to test.
    if what == "crash" and "handle_segv" not in os.environ.get("ASAN_OPTIONS", ""):
        done = selftest(what, ASAN_OPTIONS="handle_segv=0", TSAN_OPTIONS="handle_segv=0")
    else:
        done = selftest(what)
    assert done.returncode == status
    assert (done.json["outcome"], done.json["reason"]) == (outcome, reason)
    assert figures(done)["before"] == 0.5


@pytest.mark.parametrize("what,where", [("hang", "the step"), ("silent peer", "talking")])
def test_a_hang_is_a_result_with_the_step_it_hung_in(what, where):
    began = time.monotonic()
    done = selftest(what, "--deadline", "2")
    assert time.monotonic() - began < 30
    assert done.returncode == 1 and done.json["outcome"] == "hung"
    assert re.fullmatch(rf"after \d+ s in: {where}", done.json["reason"])
    assert figures(done)["before"] == 0.5


def processes_of(program):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "exe") == str(program.resolve()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_supervisor_that_is_ended(number):
    before = set(processes_of(SELFTEST))
    with subprocess.Popen([SELFTEST, "--deadline", "60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env={**os.environ, "PROBE_SELFTEST": "silent peer"}) as process:
        wait_until(lambda: len(set(processes_of(SELFTEST)) - before) == 3)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    wait_until(lambda: not set(processes_of(SELFTEST)) - before)
    if number == signal.SIGTERM:
        assert json.loads(output.splitlines()[-1])["reason"].startswith("stopped from outside after ")


# --- MPS ---

FAKE_CONTROL = """#!/bin/sh
# Behaves as nvidia-cuda-mps-control does towards its caller, and does nothing.
pipe=$CUDA_MPS_PIPE_DIRECTORY
echo "$* $pipe" >>"$FAKE_LOG"
if [ "$1" = -d ]; then
    [ -n "$FAKE_FAILS" ] && exit 1
    setsid sleep 300 >/dev/null 2>&1 &
    echo $! >"$pipe/nvidia-cuda-mps-control.pid"
else
    read -r order
    echo "$order" >>"$FAKE_LOG"
    [ -n "$FAKE_DEAF" ] || kill "$(cat "$pipe/nvidia-cuda-mps-control.pid")"
fi
"""


@pytest.fixture(name="control")
def _control(tmp_path):
    """Variables that put a fake control program first in PATH."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(FAKE_CONTROL, encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAKE_LOG": str(tmp_path / "log")}


def left_over(control):
    lines = pathlib.Path(control["FAKE_LOG"]).read_text(encoding="utf-8").splitlines()
    return lines, [line.split()[1] for line in lines if line.startswith("-d ") and os.path.exists(line.split()[1])]


def test_without_the_program_mps_is_an_answer_and_not_a_failure(tmp_path):
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    done = selftest("", PATH=str(tmp_path))
    assert done.returncode == 0
    assert figures(done)["mps_outcome"] == "refused: nvidia-cuda-mps-control is not installed"


def test_the_mps_variant_runs_between_start_and_quit_and_its_figures_are_named_so(control):
    done = selftest("", **control)
    assert done.returncode == 0 and done.json["outcome"] == "measured"
    assert figures(done)["mps_outcome"] == "measured"
    assert figures(done)["mps_answer_of_peer"] == 42 == figures(done)["answer_of_peer"]
    lines, folders = left_over(control)
    assert lines[0].startswith("-d /tmp/hvd-mps-") and lines[-1] == "quit -t 3"
    assert not folders, "the directories are gone"


def test_a_server_that_does_not_start_is_an_answer(control):
    done = selftest("", FAKE_FAILS="1", **control)
    assert done.returncode == 0
    assert figures(done)["mps_outcome"] == "refused: nvidia-cuda-mps-control -d failed"
    assert not left_over(control)[1]


def test_a_server_that_does_not_quit_is_ended(control):
    done = selftest("", "--deadline", "40", FAKE_DEAF="1", **control)
    assert done.returncode == 0
    assert not left_over(control)[1]
    sleeping = subprocess.run(["pgrep", "-fx", "sleep 300"], capture_output=True, check=False)
    assert sleeping.returncode == 1, "the daemon is still there"


def test_a_hang_under_mps_leaves_the_plain_figures_measured_and_no_server(control):
    done = selftest("hang in mps", "--deadline", "5", **control)
    assert done.returncode == 0 and done.json["outcome"] == "measured"
    assert figures(done)["mps_outcome"].startswith("hung: after ")
    assert figures(done)["mps_outcome"].endswith(" s in: the step")
    assert left_over(control)[0][-1] == "quit -t 3"
