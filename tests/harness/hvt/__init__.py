# SPDX-License-Identifier: Apache-2.0
"""Real daemons, real engines and real rank processes under pytest's control.

A test asks for a `Daemon` (a private hvdd in a fresh directory), starts `Rank` processes in it, and says what it
expects. Leaving the daemon checks what every test has to leave behind: nothing.
"""
from hvt.build import BUILD, patience, program, sanitized, scaled
from hvt.ctl import Ctl, CtlError, new_keys
from hvt.daemon import SERVICE, Daemon, as_service, being, stopped
from hvt.job import Job, job_of
from hvt.log import Line, parse_line
from hvt.nodes import Node, Nodes
from hvt.rank import Rank, RankError, open_job
from hvt.status import Status
from hvt.wait import Expired, check_prompt, wait_until

__all__ = ["BUILD", "Ctl", "CtlError", "Daemon", "Expired", "Job", "Line", "Node", "Nodes", "Rank", "RankError", "SERVICE", "Status", "as_service",
           "being", "check_prompt", "job_of", "new_keys", "open_job", "parse_line", "patience", "program", "stopped", "sanitized", "scaled", "wait_until"]
