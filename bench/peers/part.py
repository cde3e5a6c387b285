#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""part.py NODES COMMAND...: runs it on this node's part of the cores that it may use, as hvdrun divides them among nodes that are
one machine and have as many ranks each (tools/hvdrun/divide.c). A node's name is n1, n2, ..."""
import os
import platform
import sys

nodes, before, cores = int(sys.argv[1]), int(platform.node()[1:]) - 1, sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[len(cores) * before // nodes:-(-len(cores) * (before + 1) // nodes)])
os.execvp(sys.argv[2], sys.argv[2:])
