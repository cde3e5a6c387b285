# SPDX-License-Identifier: Apache-2.0
"""Horovod's sentence for ranks that disagree, put before the daemon's, so that scripts that look for it find it."""
from __future__ import annotations

import re

_DAEMONS = re.compile(r"^(?P<op>\w+) '.*': ranks disagree on (?P<about>[a-z ]+): ranks? \S+ said (?P<one>.+?); "
                      r"ranks? \S+ said (?P<another>.+?)(?:; ranks? \S+ said .*)?$", re.DOTALL)
_HOROVODS = {
    "kind": "Mismatched operations: One rank did an {ONE}, but another rank did an {ANOTHER}.",
    "dtype": "Mismatched data types: One rank had type {one}, but another rank had type {another}.",
    "shape": "Mismatched {OP} tensor shapes: One rank sent a tensor of shape {one}, but another rank sent a tensor of "
             "shape {another}.",
    "reduce op": "Mismatched reduction operation: One rank sent reduction op {one}, but another rank sent reduction op "
                 "{another}.",
    "scale factors": "Mismatched prescale and/or postscale factors: One rank sent factors {one}, but another rank sent "
                     "factors {another}.",
    "root": "Mismatched BROADCAST root ranks: One rank specified root rank {one}, but another rank specified root rank "
            "{another}.",
}


def of_mismatch(text: str) -> str:
    """What Python says for the daemon's sentence about a mismatch: both sentences, or the daemon's alone."""
    found = _DAEMONS.match(text)
    sentence = _HOROVODS.get(found["about"]) if found else None
    if not found or not sentence:
        return text
    said = found.groupdict()
    return f"{sentence.format(**said, **{name.upper(): value.upper() for name, value in said.items()})} ({text})"
