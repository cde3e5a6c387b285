# SPDX-License-Identifier: Apache-2.0
"""A thread in namespaces of its own: what it starts or opens is there. Python 3.11 has no os.unshare(), hence ctypes."""
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from hvt.build import scaled
from hvt.wait import Expired

T = TypeVar("T")

NEW_FS, NEW_MOUNT, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET = 0x200, 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)
    _check(_libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)), f"mount {target}")


class Inside:
    """The thread. Its first child is the init of its pid namespace, if it has one: when that ends, the kernel kills the
    others. The namespaces end with the thread and its children."""

    def __init__(self, name: str, flags: int):
        """`flags`: NEW_... of the namespaces that are its own."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.tid = 0
        self.tid = self.call(self._enter, flags)

    @staticmethod
    def _enter(flags: int) -> int:
        _check(_libc.unshare(flags), "unshare")
        return threading.get_native_id()

    def call(self, function: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """The function's result, from the thread; it may start processes there, but no threads."""
        if threading.get_native_id() == self.tid:
            return function(*arguments, **more)
        future = self._executor.submit(function, *arguments, **more)
        if not wait([future], scaled(60)).done:
            raise Expired(f"{function} in a node took longer than {scaled(60):.0f} s")
        return future.result()

    def hide(self, folder: str | os.PathLike) -> None:
        """From now on the folder is empty inside, which has mounts of its own (NEW_FS and NEW_MOUNT)."""
        self.call(mount, "none", "/", None, RECURSIVE | PRIVATE)
        self.call(mount, "tmpfs", os.fspath(folder), "tmpfs")

    def network(self) -> str:
        """A path that means its network namespace, for everybody whose /proc is the machine's."""
        return f"/proc/{os.getpid()}/task/{self.tid}/ns/net"

    def close(self) -> None:
        """Ends the thread."""
        self._executor.shutdown()
