# SPDX-License-Identifier: Apache-2.0
"""What processes under test get of this process's environment."""
import os

from hvt.build import SOURCE

_FOREIGN = ("HVD_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "LSB_", "MPI_LOCAL")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NOTIFY_SOCKET", "WATCHDOG_USEC",
                  "LISTEN_FDS", "LISTEN_PID", "JOURNAL_STREAM", "TORCHELASTIC_RUN_ID")


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that names a rank, a job or a daemon."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES}
    kept.setdefault("TSAN_OPTIONS", f"suppressions={SOURCE / 'tests' / 'tsan.supp'}")
    return kept
