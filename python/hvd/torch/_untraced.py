# SPDX-License-Identifier: Apache-2.0
"""Classes that torch.compile does not look into.

For torch._dynamo a process group is one opaque thing, as those in C++ are: it can neither trace methods of ours, which have
members, nor compile them when C++ calls them, as DDP does. A call breaks the graph then, as a call to a group in C++ does.
Nothing is imported for this: torch._dynamo takes a second.
"""
from __future__ import annotations

import types
from typing import Any, TypeVar

try:
    from torch._C._dynamo import eval_frame as _eval_frame
except ImportError:  # nothing compiles there
    _eval_frame = None  # type: ignore[assignment]

_Kind = TypeVar("_Kind", bound=type)


def _skip(code: types.CodeType) -> None:
    """No frame of it is compiled, and none of what it calls."""
    known: Any = _eval_frame
    if hasattr(known, "set_code_exec_strategy"):
        skip = known._FrameAction.SKIP
        known.set_code_exec_strategy(code, known._FrameExecStrategy(skip, skip))
    elif hasattr(known, "skip_code"):
        known.skip_code(code)


def untraced(kind: _Kind) -> _Kind:
    """The class, whose methods are left as they are."""
    for function in vars(kind).values():
        if isinstance(function, types.FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = "hvd's process groups are no graphs"  # type: ignore[attr-defined]
            _skip(function.__code__)
    return kind
