# SPDX-License-Identifier: Apache-2.0
"""A process of another user listens where a trainer, a tool or an engine looks for hvdd. It is told nothing."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from hvt import Daemon, Status, as_service, wait_until
from hvt.environment import clean_environment
from hvt.job import Job
from hvt.rank import Rank

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")

NOBODY = 65534
# One line for each connection: what was said there, and how many descriptors came along.
LISTEN = """
import os, select, socket, sys
os.umask(0)
here = {}
for path, kind in (sys.argv[1] + "/attach.sock", socket.SOCK_SEQPACKET), (sys.argv[1] + "/admin.sock", socket.SOCK_STREAM):
    here[kind] = socket.socket(socket.AF_UNIX, kind)
    here[kind].bind(path)
    here[kind].listen(8)
print("listening", flush=True)
while True:
    for one in select.select(list(here.values()), [], [])[0]:
        peer, _ = one.accept()
        peer.settimeout(2)
        try:
            said, fds, _, _ = socket.recv_fds(peer, 65536, 8)
        except (TimeoutError, ConnectionResetError):
            said, fds = b"", []
        print(said.hex(), len(fds), flush=True)
"""


class Impostor:
    """The process. `heard()` returns what it was told since the last call; each connection is one line."""

    def __init__(self, folder: pathlib.Path, process: subprocess.Popen[str]):
        self.folder = folder
        self._process = process

    def heard(self) -> tuple[bytes, int]:
        """The bytes and the number of descriptors of the next connection."""
        said, count = self._process.stdout.readline().removesuffix("\n").split(" ")
        return bytes.fromhex(said), int(count)


@contextlib.contextmanager
def impostor(folder: pathlib.Path) -> Iterator[Impostor]:
    """It listens in `folder`."""
    with subprocess.Popen([sys.executable, "-c", LISTEN, str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, cwd="/", user=NOBODY, group=NOBODY, extra_groups=[]) as process:
        try:
            assert process.stdout.readline() == "listening\n"
            yield Impostor(folder, process)
        finally:
            process.kill()


@pytest.fixture(name="theirs")
def _theirs() -> Iterator[Impostor]:
    """A directory where the other user may make names, called hvdd as in another's $XDG_RUNTIME_DIR, and everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="hvt-theirs-") as above:
        os.chmod(above, 0o755)
        folder = pathlib.Path(above) / "hvdd"
        folder.mkdir()
        os.chmod(folder, 0o1777)
        with impostor(folder) as running:
            yield running


@pytest.mark.parametrize("place", ["HVD_ADDRESS", "XDG_RUNTIME_DIR"])
def test_a_trainer_does_not_send_its_key_to_another_users_process(theirs, place):
    value = theirs.folder if place == "HVD_ADDRESS" else theirs.folder.parent
    rank = Rank(clean_environment() | {"XDG_RUNTIME_DIR": "/nonexistent", place: str(value)})
    try:
        outcome = rank.try_open("mine", 0, 1, key="secret", timeout_ms=1000)
        assert theirs.heard() == (b"", 0)
    finally:
        rank.stop()
    assert outcome.status == Status.ERR_REFUSED, outcome
    if place == "HVD_ADDRESS":
        assert f"has uid {NOBODY}" in outcome.text and f"HVD_SERVICE_UID={NOBODY}" in outcome.text
    else:
        assert "belongs to another user" in outcome.text or "others may write to it" in outcome.text


def test_the_owner_of_a_directory_is_believed_only_where_the_user_names_it(theirs):
    """HVD_ADDRESS says where hvdd is; XDG_RUNTIME_DIR does not."""
    os.chown(theirs.folder, NOBODY, NOBODY)
    for name, value, is_told in (("XDG_RUNTIME_DIR", theirs.folder.parent, False), ("HVD_ADDRESS", theirs.folder, True)):
        rank = Rank(clean_environment() | {"XDG_RUNTIME_DIR": "/nonexistent", name: str(value)})
        try:
            assert not rank.try_open("mine", 0, 1, key="secret", timeout_ms=1000).ok
            assert (b"secret" in theirs.heard()[0]) == is_told
        finally:
            rank.stop()


def test_a_site_may_name_the_user_of_its_service(theirs):
    """The trainer speaks then; that this user's process is no hvdd is another matter."""
    rank = Rank(clean_environment() | {"HVD_ADDRESS": str(theirs.folder), "HVD_SERVICE_UID": str(NOBODY)})
    try:
        assert not rank.try_open("mine", 0, 1, key="secret", timeout_ms=1000).ok
        assert b"secret" in theirs.heard()[0]
    finally:
        rank.stop()


@pytest.mark.parametrize("question", [["jobs"], ["timeline", "mine", "start", "/dev/null"]])
def test_hvdctl_asks_and_gives_another_users_process_nothing(daemon, theirs, question):
    done = daemon.ctl.run("--address", str(theirs.folder), *question)
    assert done.returncode == 3, done
    assert "another user's, so not trusted" in done.stderr
    assert theirs.heard() == (b"", 0)


def test_an_engine_does_not_introduce_itself_to_another_users_process(daemon):
    """It looks for the next hvdd where the last one was."""
    daemon.allow("rank-lost")
    job = Job(daemon, 2)
    daemon.kill()
    daemon.attach_path.unlink()
    daemon.admin_path.unlink()
    daemon.folder.chmod(0o755)
    daemon.address.chmod(0o777)
    with impostor(daemon.address) as running:
        assert running.heard() == (b"", 0)
        job.check_usable()
        daemon.attach_path.unlink()
        daemon.admin_path.unlink()
    daemon.address.chmod(0o700)
    daemon.folder.chmod(0o700)
    daemon.start()
    wait_until(lambda: [row["job"] for row in daemon.jobs()] == [job.name], "the engine to come back")
    job.check_usable()


def test_an_engine_that_has_become_a_user_does_not_introduce_itself_to_that_users_process():
    """What it says there would be a job's; hvdd is another user."""
    with Daemon(options={"private": "no"}, folder_mode=0o755, user=as_service(), rights=("setuid", "setgid", "kill")) as daemon:
        theirs = daemon.rank(user=NOBODY)
        theirs.open("theirs", 0, 1)
        daemon.kill()
        daemon.attach_path.unlink()
        daemon.admin_path.unlink()
        daemon.address.chmod(0o777)
        with impostor(daemon.address) as running:
            assert running.heard() == (b"", 0)
            daemon.attach_path.unlink()
            daemon.admin_path.unlink()
        daemon.address.chmod(0o755)
        daemon.start()
        wait_until(lambda: [row["job"] for row in daemon.jobs()] == ["theirs"], "the engine to come back")
        assert theirs.outcome(theirs.submit("barrier", "b")).ok
