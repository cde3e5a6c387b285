# SPDX-License-Identifier: Apache-2.0
"""hvdctl as a test sees it: a process with an exit code and JSON."""
import json
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from hvt.build import program, program_for_strangers, scaled
from hvt.nodes import Node


def new_keys(prefix: pathlib.Path) -> pathlib.Path:
    """A pair of key files for a mesh: .server and .client."""
    subprocess.run([program("hvdctl"), "key", "new", str(prefix)], check=True, stdout=subprocess.DEVNULL)
    return prefix


def hvdctl(*words: object, said: str = "") -> str:
    """What hvdctl prints."""
    done = subprocess.run([program("hvdctl"), *map(str, words)], check=True, capture_output=True, text=True, input=said)
    return done.stdout


def new_node_keys(folder: pathlib.Path, names: Sequence[str]) -> dict[str, pathlib.Path]:
    """A folder of keys for each node; all allow each other, as `hvdctl key show | hvdctl key allow NAME -` does it."""
    folders = {name: folder / f"keys-{name}" for name in names}
    for name, own in folders.items():
        hvdctl("key", "new", "--node", name, "--dir", own)
    for name, own in folders.items():
        shown = hvdctl("key", "show", "--dir", own)
        for other in folders.values():
            hvdctl("key", "allow", name, "-", "--dir", other, said=shown)
    return folders


class CtlError(RuntimeError):
    """hvdctl did not exit with 0. `code` is its exit code, `text` what it wrote to stderr."""

    def __init__(self, code: int, text: str):
        super().__init__(f"hvdctl exited with {code}: {text.strip()}")
        self.code = code
        self.text = text


class Ctl:
    """hvdctl against one daemon."""

    def __init__(self, address: pathlib.Path, environment: dict[str, str] | None = None, node: Node | None = None):
        self._run = node.run if node else subprocess.run
        self.environment = dict(os.environ if environment is None else environment, HVD_ADDRESS=str(address))

    def run(self, *arguments: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
        """One hvdctl, finished, whatever its exit code."""
        path, environment = program("hvdctl"), self.environment
        if user is not None:
            path, environment = program_for_strangers("hvdctl", environment)
        return self._run([path, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         timeout=scaled(20), check=False, user=user, stdin=subprocess.DEVNULL)

    def json(self, *arguments: str, user: int | None = None) -> Any:
        """The JSON of one successful hvdctl; CtlError otherwise."""
        done = self.run(*arguments, "--json", user=user)
        if done.returncode != 0:
            raise CtlError(done.returncode, done.stderr or done.stdout)
        return json.loads(done.stdout)
