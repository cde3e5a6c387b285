# SPDX-License-Identifier: Apache-2.0
"""What of the environment goes where."""
from __future__ import annotations

import os
import re

IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"}
LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

#: The highest number that Slurm gives a step of srun; a batch script and an interactive shell have higher ones or none.
_SLURM_STEP_MAX = 0xfffffff0


def is_exportable(v: str) -> bool:
    """Whether a variable of this name is one to hand on to ranks."""
    return not any(re.fullmatch(pattern, v) for pattern in IGNORE_REGEXES)


def _is_task_of_slurm() -> bool:
    """Whether srun has started this process: what an allocation says of ranks is not for other processes."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) <= _SLURM_STEP_MAX


def _said(rank: str, size: str) -> list[tuple[int, int]]:
    """The pair of numbers, or nothing where one of them is not set."""
    if rank == "SLURM_PROCID" and "SLURM_JOB_ID" in os.environ and not _is_task_of_slurm():
        return []
    both = os.environ.get(rank), os.environ.get(size)
    return [(int(both[0]), int(both[1]))] if both[0] and both[1] else []


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size as the launcher has told them, without hvd.init(); 0 of 1 when none did."""
    ours = _said("HVD_RANK", "HVD_SIZE") + _said("HOROVOD_RANK", "HOROVOD_SIZE")
    torchs = _said("RANK", "WORLD_SIZE")
    others = (_said("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") + _said("PMI_RANK", "PMI_SIZE")
              + _said("SLURM_PROCID", "SLURM_NTASKS"))
    if not (os.environ.get("LOCAL_RANK") or os.environ.get("TORCHELASTIC_RUN_ID")):
        # A cluster may export RANK and WORLD_SIZE to every process; client/attach/identity.c judges alike.
        torchs = [pair for pair in torchs if not others or others[0][1] < pair[1]]
    return next(iter(ours + torchs + others), (0, 1))


def is_kubeflow_mpi() -> bool:
    """Whether this is a launcher pod of Kubeflow's MPI operator."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC
