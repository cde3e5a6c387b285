# SPDX-License-Identifier: Apache-2.0
"""The build under test, installed, as a user of it sees it."""
import os
import pathlib
import shutil
import subprocess

from hvt.build import BUILD, cache_entry, sanitized, scaled
from hvt.daemon import clean_environment


def run(*command: str, environment: dict[str, str] | None = None, cwd: pathlib.Path | None = None,
        seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """A command that has to succeed; its output is in the error if it does not."""
    done = subprocess.run(command, env=environment or clean_environment(), cwd=cwd, capture_output=True, text=True,
                          timeout=scaled(seconds), check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


class Installation:
    """`cmake --install` of the build into a directory of its own."""

    def __init__(self, prefix: pathlib.Path):
        run("cmake", "--install", str(BUILD), "--prefix", str(prefix))
        self.prefix = prefix
        self.libdir = prefix / cache_entry("CMAKE_INSTALL_LIBDIR")

    def files(self) -> set[str]:
        """Everything installed, relative to the prefix."""
        return {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}

    def environment(self) -> dict[str, str]:
        """What a user sets who has installed into an unusual place."""
        path = f"{self.prefix}/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return dict(clean_environment(), PATH=path, PKG_CONFIG_PATH=f"{self.libdir}/pkgconfig",
                    LD_LIBRARY_PATH=str(self.libdir))


def compiler() -> list[str]:
    """The build's own compiler, with its sanitizers: a program has to have those of the libraries it links."""
    command = [cache_entry("CMAKE_C_COMPILER") or shutil.which("cc") or "cc"]
    return command + ([f"-fsanitize={sanitized()}"] if sanitized() else [])
