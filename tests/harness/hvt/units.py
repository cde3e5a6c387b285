# SPDX-License-Identifier: Apache-2.0
"""A hvdd whose engines, gate and workers of GPUs have units of their own. systemd-socket-activate stands for the socket units: as
systemd, it accepts each connection and starts a program with it."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from hvt import procs, sockets
from hvt.build import program, program_for_strangers
from hvt.daemon import Daemon, service_programs, with_rights
from hvt.gpu import GpuDaemon
from hvt.wait import wait_until

ACTIVATE = shutil.which("systemd-socket-activate")
NAMES = ("engine", "gate", "gpu")


class UnitDaemon(Daemon):
    """As Daemon. hvdd has the options that hvdd.service gives it."""

    def __init__(self, *, programs: dict[str, Sequence[str]] | None = None, without: Sequence[str] = (),
                 options: dict[str, Any] | None = None, unit_settings: dict[str, str] | None = None,
                 unit_rights: dict[str, Sequence[str]] | None = None, **more: Any):
        """`programs`: what the unit "engine", "gate" or "gpu" starts instead; `without`: units that start_unit starts; `unit_settings`:
        Environment= of the units; `unit_rights`: AmbientCapabilities= of each, where it has any."""
        self._sockets = pathlib.Path(tempfile.mkdtemp(prefix="hvt-units-"))
        super().__init__(options={f"{name}-socket": self.socket(name) for name in NAMES} | (options or {}), **more)
        self._without = without
        self._unit_settings = unit_settings or {}
        self._unit_rights = unit_rights or {}
        self._commands = self._usual_commands() | {name: list(words) for name, words in (programs or {}).items()}
        self._units: dict[str, subprocess.Popen[bytes]] = {}
        if self.user:
            os.chown(self._sockets, self.user["user"], self.user["group"])

    def _usual_commands(self) -> dict[str, list[str]]:
        if not self.user:
            return {name: [program(f"hvdd-{name}")] for name in NAMES}
        _hvdd, _engine, self.environment = service_programs(self.environment)
        return {name: [program_for_strangers(f"hvdd-{name}", {})[0]] for name in NAMES}

    def socket(self, name: str) -> pathlib.Path:
        """Where the unit listens."""
        return self._sockets / f"{name}.sock"

    def start_unit(self, name: str, command: Sequence[str] = ()) -> None:
        """systemctl start hvdd-NAME.socket; `command`: what it starts instead."""
        given = {key: value for key, value in self.environment.items()
                 if key in ("HVD_TEST_TOKEN", "LD_LIBRARY_PATH", "LD_PRELOAD", "FAKEGPU", "FAKEGPU_FAULT") or key.endswith("SAN_OPTIONS")}
        settings = [f"--setenv={key}={value}" for key, value in (given | self._unit_settings).items()]
        command = [ACTIVATE, "--accept", "--seqpacket", *settings, f"--listen={self.socket(name)}", *(command or self._commands[name])]
        rights = self._unit_rights.get(name)
        command = [*(with_rights(rights) if rights else []), *command]
        with open(self.log_path, "ab") as log:
            self._units[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                                                 env={"PATH": os.environ["PATH"], "SYSTEMD_LOG_LEVEL": "err"},
                                                 **({} if rights else self.user))
        wait_until(lambda: sockets.unix_listens(self.socket(name)), f"the unit {name} to listen")

    def started(self, name: str) -> list[int]:
        """Pids of the living programs that the unit has started."""
        return procs.children(self._units[name].pid)

    def stop_unit(self, name: str) -> None:
        """systemctl stop hvdd-NAME.socket, and what it has started."""
        started = self.started(name)
        unit = self._units.pop(name)
        unit.kill()
        unit.wait()
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.socket(name).unlink()

    def __enter__(self) -> "UnitDaemon":
        try:
            for name in NAMES:
                if name not in self._without:
                    self.start_unit(name)
            super().__enter__()
        except BaseException:
            self._end_units()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._end_units()

    def _end_units(self) -> None:
        for name in list(self._units):
            self.stop_unit(name)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def gate(self) -> int:
        """Pid of the living gate; 0 when there is none just now."""
        return next(iter(self.started("gate")), 0)


class GpuUnitDaemon(GpuDaemon, UnitDaemon):
    """As UnitDaemon, on a machine with GPUs."""
