# SPDX-License-Identifier: Apache-2.0
"""Other hosts for hvdrun on this machine: a command in the place of ssh that starts what it is told in an environment of its
own, as a login would have. Its hosts' names say what befalls them:

  dead*   cannot be reached       busy*   drops the connection the first two times
  deaf*   never answers           noisy*  has a shell that greets
  far*    can be reached by this machine, and by no other host
  mute*   has no word of sshd of where it was reached; all others were at 127.0.0.1
  anything else is fine"""
import os
import pathlib
import sys

from hvt.launcher import Launcher

_STAND_IN = """#!/bin/sh
# OPTION... HOST COMMAND
while [ $# -gt 2 ]; do echo "$1" >> {folder}/ssh-options; shift; done
echo "$1 $2" >> {folder}/ssh-words
case $1 in
dead*) echo "banner" >&2; echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;;
busy*)
    echo x >> {folder}/tries.$1
    if [ $(wc -l < {folder}/tries.$1) -le 2 ]; then
        echo "kex_exchange_identification: Connection closed by remote host" >&2
        exit 255
    fi ;;
deaf*) exec sleep 1000 ;;
far*)
    if [ -n "$SSH_CONNECTION" ]; then
        echo "ssh: connect to host $1 port 22: Connection timed out" >&2
        exit 255
    fi ;;
noisy*) echo "Welcome to $1!"; echo "a warning of $1" >&2 ;;
esac
case $1 in
mute* | *@mute*) ;;
*) set -- "$1" "export SSH_CONNECTION='203.0.113.7 5 127.0.0.1 22'; $2" ;;
esac
exec env -i PATH=/usr/bin:/bin HOME=/home-of-$1 XDG_RUNTIME_DIR={folder} HVD_TEST_TOKEN={token} OWN=kept {more}\\
    {run} sh -c "$2"
"""

# Bytes go through it, so that the other side lives on when it is killed, as with ssh.
_RELAY = """
import os, subprocess, sys, threading
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
def pump(source, sink):
    while data := os.read(source, 65536):
        while data:
            data = data[os.write(sink, data):]
    os.close(sink)
threading.Thread(target=pump, args=(0, process.stdin.fileno()), daemon=True).start()
pump(process.stdout.fileno(), 1)
sys.exit(process.wait())
"""


class Hosts(Launcher):
    """A Launcher whose hvdrun reaches any host. `relay`: what stands for ssh can be killed without the agent."""

    def __init__(self, relay: bool = False):
        super().__init__()
        run = ""
        if relay:
            (self.folder / "relay.py").write_text(_RELAY)
            run = f"{sys.executable} {self.folder}/relay.py"
        self._script = self.folder / "remote-shell"
        more = " ".join(f"{name}={value}" for name, value in os.environ.items() if name.endswith("SAN_OPTIONS"))
        self._script.write_text(_STAND_IN.format(folder=self.folder, token=self.token, run=run, more=more))
        self._script.chmod(0o755)
        self.environment["HVD_SSH"] = str(self._script)

    def words(self) -> list[str]:
        """Host and command of every start of an agent."""
        path = self.folder / "ssh-words"
        return path.read_text().splitlines() if path.exists() else []

    def script(self, name: str, text: str) -> str:
        """A program in the test's folder: its path."""
        path = pathlib.Path(self.folder, name)
        path.write_text(text)
        path.chmod(0o755)
        return str(path)
