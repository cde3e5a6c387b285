# SPDX-License-Identifier: Apache-2.0
"""The eleven probes against a driver that is not one (tests/fakegpu): that they run to their end, understand their own messages, and
recognise the answers the fake is known to give. What they measure here means nothing."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
FAKE_MODULES = HERE.parent / "fakegpu" / "modules"
PROGRAMS = pathlib.Path(os.environ["HVD_BUILD_DIR"], "gpu")
FAKE = PROGRAMS.parent / "fakegpu"
DRIVER = FAKE / "libcuda.so.1"


def is_for_tsan():
    """That a copy may race with a wait is what probe 4 asks, so the probes are no subject for TSan."""
    return DRIVER.exists() and b"__tsan_init" in DRIVER.read_bytes()


pytestmark = pytest.mark.skipif(not (PROGRAMS / "probe11").exists() or not DRIVER.exists() or is_for_tsan(),
                                reason="no CUDA toolkit: the probes are not built")


def environment(settings="", **variables):
    """Probe 2 frees what is mapped elsewhere, and asks what comes of it."""
    return {**os.environ, "LD_LIBRARY_PATH": str(FAKE), "FAKEGPU": f"devices=1;free=keeps;{settings}",
            "HVD_NCCL_LIB": str(FAKE / "libnccl.so.2"), "PYTHONPATH": str(FAKE_MODULES), "PYTHONDONTWRITEBYTECODE": "1",
            **variables}


def ask(number, *arguments, settings="", **variables):
    done = subprocess.run([str(PROGRAMS / f"probe{number}"), "--quick", "--deadline", "100", *arguments], capture_output=True,
                          text=True, timeout=120, check=False, env=environment(settings, **variables), stdin=subprocess.DEVNULL)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, report["outcome"]) == (0, "measured"), report["reason"] + done.stderr
    report["values"] = {row["name"]: row["value"] for row in report["figures"]}
    return report["values"]


def test_1_all_round_trips_are_timed():
    values = ask(1)
    for load in ("idle", "busy"):
        for name in ("rtt_memop_", "rtt_memop_kernel_"):
            assert values[name + load] > 0
        for name in ("submit_memop_", "submit_event_"):
            assert 0 < values[f"{name}{load}_p50"] <= values[f"{name}{load}_p99"]
    assert values["is_under_mps"] == "no"


def test_1_the_mps_variant_notices_a_server_that_takes_nobody(tmp_path):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    control.chmod(0o755)
    values = ask(1, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert values["mps_outcome"] == "refused: the private MPS server did not take this process"
    assert values["mps_is_under_mps"] == "no"


def test_2_stale_handles_are_recognised():
    values = ask(2, settings="sync=none")
    assert values["open_2MiB"] > 0 and values["close_64MiB"] > 0
    assert values["same_handle_bytes_after_free_alloc"] == "yes"
    assert values["buffer_id_differs"] == "yes"
    assert (values["stale_open"], values["stale_open_reads"]) == ("the old mapping", "the old data")
    assert values["open_close_waits_for_gated_stream"] == "no"
    assert values["open_close_waits_for_running_stream"] == "no"


def test_2_a_close_that_waits_for_running_work_is_noticed():
    values = ask(2, settings="handles=new")
    assert values["open_close_waits_for_running_stream"] == "yes"
    assert values["open_close_waits_for_gated_stream"] == "yes"
    assert values["close_beside_gated_stream"] > 0.9e6
    assert values["same_handle_bytes_after_free_alloc"] == "no"
    assert (values["stale_open"], values["stale_open_reads"]) == ("another address", "the new data")


def test_3_the_owners_death_is_survived():
    values = ask(3)
    assert values["fault"] == "none"
    assert values["wrong_words_during"] == values["wrong_words_afterwards"] == 0
    assert values["kernels_ran_at_the_kill"] == "yes"


def test_4_every_poison_releases():
    values = ask(4)
    for how in ("stream_same", "stream_other", "host_same", "host_other", "memcpy"):
        assert values[how + "_releases"] == "yes"
    assert values["late_waits_pass"] == "yes"


def test_4_a_store_that_releases_nobody_is_an_answer():
    values = ask(4, FAKEGPU_FAULT="deaf")
    assert values["stream_other_releases"] == "yes"
    assert values["memcpy_releases"] == "yes"
    assert values["host_same_releases"] == "no"
    # A stream that comes to its wait after the store, on a busy machine, passes at once: so the first of the hundred may be timed.
    assert "host_other_releases" not in values


def test_5_a_wrong_element_is_counted():
    values = ask(5, settings="memory=12", FAKEGPU_FAULT="wrong-reduce")
    assert values["wrong_reduce_bf16_4"] == 1
    assert "wrong_pack_bf16_4" not in values


def test_5_reduce_and_pack_are_compared_and_right():
    values = ask(5, settings="memory=12")
    assert values["bytes_per_rank"] == 1
    assert not [name for name in values if name.startswith("wrong_")]
    for what in ("reduce", "pack"):
        for dtype in ("fp32", "bf16", "fp16"):
            for ranks in (1, 2, 4, 8):
                assert values[f"{what}_{dtype}_{ranks}_of_copy"] > 0


def test_6_two_ranks_sum_right():
    values = ask(6)
    for size in ("8B", "1MiB", "128MiB"):
        assert values[f"two_{size}_wrong"] == values[f"alone_{size}_wrong"] == 0
        assert values[f"two_{size}_p50"] > 0
    assert "other_rank_8B_wrong_too" not in values


def test_7_all_four_kinds_of_memory_arrive():
    values = ask(7)
    for kind in ("vmm", "pool", "legacy"):
        assert values[kind + "_wrong"] == 0
        assert values[kind + "_nccl_register"] == "accepted"
    assert values["pool_outcome"] == values["legacy_outcome"] == "measured"
    assert values["vmm_buffer_id_differs"] == "yes"
    assert {"other_user_vmm_outcome", "other_user_legacy_outcome"} <= values.keys()  # another user may not even reach the fake
    if b"libasan" in (FAKE / "libcuda.so.1").read_bytes():  # which Python cannot load
        assert values["torch_outcome"] == "refused: the Python process ended without a word"
        return
    assert values["torch_wrong"] == 0
    assert (values["torch_outcome"], values["torch_nccl_register"]) == ("measured", "accepted")
    assert (values["torch_chunks"], values["torch_buffer_ids"], values["torch_mapped"]) == (4, 4, 80)


def test_7_without_pytorch_or_nccl_the_rest_is_answered(tmp_path):
    values = ask(7, PYTHONPATH="", HVD_PYTHON=shutil.which("python3"), HVD_NCCL_LIB=str(tmp_path / "none"))
    assert values["vmm_wrong"] == values["legacy_wrong"] == 0
    assert values["torch_outcome"].startswith("refused: not tried: ") or "torch_chunks" in values
    assert "vmm_nccl_register" not in values


def test_8_streams_behind_gates_are_counted():
    """The fake gives stream i the queue i modulo connections, which is what the prediction assumes."""
    values = ask(8)
    blocked = {(c, g): values[f"blocked_{c}_connections_{g}_gates"] for c in (8, 32) for g in (1, 4, 8, 20)}
    assert [blocked[8, g] for g in (1, 4, 8, 20)] == [4, 16, 32, 20]
    assert blocked[32, 1] <= 1 and 0 < blocked[32, 8] <= 8
    assert values["poison_gets_through_8_connections"] == values["poison_gets_through_32_connections"] == "no"


def test_9_the_crash_is_seen_and_a_new_worker_follows():
    values = ask(9)
    for call in ("stream", "next_synchronize", "next_alloc", "next_get_info"):
        assert values["error_of_" + call] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert values["bystander"] == "works"
    times = [values["crash_until_" + what] for what in ("error_seen", "reaped", "new_context", "new_comm")]
    assert times == sorted(times)
    assert values["host_memory_context"] > 0


def test_10_rounds_beside_kernels_of_all_lengths_are_timed():
    values = ask(10)
    for words in ("device", "host"):
        for us in (0, 50, 200, 1000):
            assert isinstance(values[f"rounds_{words}_{us}"], (int, float))
            assert values[f"single_{words}_{us}_p50"] <= values[f"single_{words}_{us}_p99"]
    assert values["single_host_0_p50"] > 0 and values["batch64_single_host_0_p50"] > 0
    for us in (200, 1000):
        assert values[f"kernel_alone_{us}"] > 0  # a busy machine falsifies it and the clock that it is counted by, both ways
    for how in ("spin", "write_spin", "store_wait"):
        assert f"{how}_host_200_p50" in values
    assert values["batch64_other_stream"] > 0
    for kind in ("sealed", "plain"):
        assert values[f"host_register_{kind}_memfd_trainer"] == values[f"host_register_{kind}_memfd_worker"] == "yes"


def test_10_a_part_that_hangs_is_an_answer_and_not_a_failure():
    # A stream that comes to its wait after the store passes at once: so the first of these waits may pass.
    hung = [value for value in ask(10, FAKEGPU_FAULT="deaf").values() if str(value).startswith("hung: ")]
    assert len(hung) == 1 and hung[0].startswith("hung: not done after 1.5 s: ")


CALLS = ("launch", "write_value", "wait_value", "batch_memop", "query", "progress_of_stream", "copy", "ipc_open", "host_register",
         "mem_alloc")


def test_11_a_close_that_does_not_wait_is_said_and_the_signs_of_a_death_are_timed():
    values = ask(11, settings="sync=none")
    for waiter in ("close", "free", "unregister"):
        assert values[waiter + "_waits_for_gated_stream"] == "no"
    assert not {f"{call}_blocked_by_close" for call in CALLS} & values.keys()
    for sign in ("robust_mutex", "pidfd", "socket_of_after_cuda", "reaped"):
        assert values[f"kill_until_{sign}_p50"] > 0


def test_11_blocked_calls_do_not_keep_the_others_from_being_tried():
    values = ask(11)
    blocked = {"launch", "copy", "host_register", "mem_alloc"}
    for waiter in ("close", "free", "unregister"):
        assert values[waiter + "_waits_for_gated_stream"] == "yes"
        for call in CALLS:
            assert values[f"{call}_blocked_by_{waiter}"] == ("yes" if call in blocked else "no")
    assert values["mem_alloc_beside_close"] > 0.2e6


def test_a_device_that_is_not_there_is_refused():
    done = subprocess.run([str(PROGRAMS / "probe3"), "--device", "5"], capture_output=True, text=True, timeout=60, check=False,
                          env=environment())
    assert (done.returncode, done.stderr) == (77, "probe3: no device 5: the driver shows 1\n")


def test_the_script_writes_what_the_probes_say(tmp_path):
    done = subprocess.run([str(HERE.parents[1] / "scripts" / "gpu.sh"), "--programs", str(PROGRAMS), "--quick", "--only", "4,8",
                           "--out", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False,
                          env=environment(), stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "gpu-probes.json").read_text())
    assert written["device"] == "No GPU 0" and written["cuda_driver"] == "13.0"
    assert [probe["outcome"] for probe in written["probes"]] == ["measured", "measured"]
    assert "| 8 | blocked_8_connections_4_gates | 16 | streams |" in (tmp_path / "gpu-probes.md").read_text()
