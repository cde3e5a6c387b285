# SPDX-License-Identifier: Apache-2.0
"""The knobs that horovodrun takes: option, variable in the ranks' environment, key in a configuration file.

One table, KNOBS, of which the options of horovod.runner.launch.parse_args are made too. What each does under hvdrun is in
hvdrun(1)."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, MutableMapping
from typing import Any

LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
NCCL_IB_DISABLE = "NCCL_IB_DISABLE"


@dataclasses.dataclass(frozen=True)
class Knob:
    """`dest`: attribute of what parse_args returns. `variable`: without HOROVOD_. `key`: "section.key"; "" for none.
    `kind`: int, float, str, or bool for a pair of switches. `inverse`: the variable and the key say the opposite."""
    dest: str
    variable: str
    key: str
    kind: Callable[[str], Any]
    text: str
    highest: float | None = None
    inverse: bool = False


KNOBS = (
    Knob("fusion_threshold_mb", "FUSION_THRESHOLD", "params.fusion_threshold_mb", int,
         "most MiB of a batch of small operations"),
    Knob("cycle_time_ms", "CYCLE_TIME", "params.cycle_time_ms", float, "without effect: there is no cycle"),
    Knob("cache_capacity", "CACHE_CAPACITY", "params.cache_capacity", int, "0: check every operation anew"),
    Knob("hierarchical_allreduce", "HIERARCHICAL_ALLREDUCE", "params.hierarchical_allreduce", bool, "without effect"),
    Knob("hierarchical_allgather", "HIERARCHICAL_ALLGATHER", "params.hierarchical_allgather", bool, "without effect"),
    Knob("torus_allreduce", "TORUS_ALLREDUCE", "params.torus_allreduce", bool, "without effect"),
    Knob("autotune", "AUTOTUNE", "autotune.enabled", bool, "without effect: there is nothing to tune"),
    Knob("autotune_log_file", "AUTOTUNE_LOG", "autotune.log_file", str, "without effect"),
    Knob("autotune_warmup_samples", "AUTOTUNE_WARMUP_SAMPLES", "autotune.warmup_samples", int, "without effect"),
    Knob("autotune_steps_per_sample", "AUTOTUNE_STEPS_PER_SAMPLE", "autotune.steps_per_sample", int, "without effect"),
    Knob("autotune_bayes_opt_max_samples", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "autotune.bayes_opt_max_samples", int,
         "without effect"),
    Knob("autotune_gaussian_process_noise", "AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "autotune.gaussian_process_noise", float,
         "without effect", highest=1),
    Knob("timeline_filename", "TIMELINE", "timeline.filename", str, "rank 0 writes a timeline there"),
    Knob("timeline_mark_cycles", "TIMELINE_MARK_CYCLES", "timeline.mark_cycles", bool,
         "mark in the timeline when an operation starts"),
    Knob("no_stall_check", "STALL_CHECK_DISABLE", "", bool, "no warnings about operations that wait"),
    Knob("stall_check_warning_time_seconds", "STALL_CHECK_TIME_SECONDS", "stall_check.warning_time_seconds", int,
         "warn about an operation that has waited that long"),
    Knob("stall_check_shutdown_time_seconds", "STALL_SHUTDOWN_TIME_SECONDS", "stall_check.shutdown_time_seconds", int,
         "end the job when an operation has waited that long"),
    Knob("mpi_threads_disable", "MPI_THREADS_DISABLE", "library_options.mpi_threads_disable", bool, "without effect"),
    Knob("num_nccl_streams", "NUM_NCCL_STREAMS", "library_options.num_nccl_streams", int, "without effect"),
    Knob("thread_affinity", "THREAD_AFFINITY", "library_options.thread_affinity", int, "without effect"),
    Knob("gloo_timeout_seconds", "GLOO_TIMEOUT_SECONDS", "library_options.gloo_timeout_seconds", int,
         "without effect"),
    Knob("log_level", "LOG_LEVEL", "logging.level", str, "of the ranks and the private hvdd"),
    Knob("log_with_timestamp", "LOG_HIDE_TIME", "logging.with_timestamp", bool, "ask the ranks to log with the time",
         inverse=True),
)

#: HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD", and so on for every knob.
globals().update({f"HOROVOD_{_knob.variable}": f"HOROVOD_{_knob.variable}" for _knob in KNOBS})


def set_args_from_config(args: Any, config: Mapping[str, Any], override_args: Container[str]) -> None:
    """Sets the attributes of `args` that a configuration file names and that are not in `override_args`, which holds
    those that the command line gave."""
    controller = config.get("controller")
    if controller and not {"use_gloo", "use_mpi", "use_jsrun"} & {name for name in vars(args) if name in override_args}:
        setattr(args, f"use_{str(controller).lower()}", True)
    for knob in KNOBS:
        section, _, key = knob.key.partition(".")
        value = (config.get(section) or {}).get(key)
        if value is not None and knob.dest not in override_args:
            setattr(args, knob.dest, value)
    enabled = (config.get("stall_check") or {}).get("enabled")
    if enabled is not None and "no_stall_check" not in override_args:
        args.no_stall_check = not enabled


def validate_config_args(args: Any) -> None:
    """ValueError for numbers that are negative or too large."""
    for knob in KNOBS:
        value = getattr(args, knob.dest, None)
        if knob.kind not in (int, float) or value is None:
            continue
        if knob.highest is not None and not 0 <= value <= knob.highest:
            raise ValueError(f"{knob.dest}={value} must be in [0, {knob.highest:g}]")
        if value < 0:
            raise ValueError(f"{knob.dest}={value} must be >= 0")


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """Sets the variables that `args` asks for in `env`, and returns it."""
    for knob in KNOBS:
        value = getattr(args, knob.dest, None)
        tuning = knob.dest.startswith("autotune_")
        if value is None or (tuning and not getattr(args, "autotune", None)):
            continue
        if knob.dest == "fusion_threshold_mb":
            value *= 1 << 20
        if knob.kind is bool:
            value = int(bool(value) != knob.inverse)
        env[f"HOROVOD_{knob.variable}"] = str(value)
    if getattr(args, "tcp_flag", None):
        env[NCCL_IB_DISABLE] = "1"
    return env
