# SPDX-License-Identifier: Apache-2.0
"""hvd.admin beside a real hvdd."""
import json
import os
import re
import select
import shutil
import signal
import sys

import hvd.admin
import pytest

from hvt import Daemon, new_keys, program
from hvt.containers import may_be_made
from hvt.job import Job
from hvt.namespaces import NEW_FS, NEW_MOUNT, Inside


@pytest.fixture
def daemon():
    with Daemon() as running:
        yield running


@pytest.fixture
def admin(daemon):
    with hvd.admin.Admin(str(daemon.address)) as connected:
        yield connected


def test_questions_about_gpus_are_about_the_hvdd_that_runs(daemon, admin, monkeypatch):
    from hvd import _native, basics
    monkeypatch.setenv("HVD_ADDRESS", str(daemon.address))
    assert basics._workers() == (admin.status().gpu_program, "", "") and admin.status().gpu_program.endswith("/hvdd-gpu")
    monkeypatch.setenv("HVD_ADDRESS", "/nonexistent")
    assert basics._workers() == (_native.program_path("hvdd-gpu"), "", "")


@pytest.mark.parametrize("option", ["gpu-program", "gpu-kernels", "gpu-library-path"])
def test_nothing_is_run_that_another_user_may_have_written(monkeypatch, tmp_path, option):
    from hvd import _native, basics
    outside = shutil.copy(program("hvdd-gpu"), tmp_path)
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    options = {"gpu-program": outside, "gpu-kernels": str(other), "gpu-library-path": f"/usr:{other}"}
    with Daemon(options=options) as daemon:
        monkeypatch.setenv("HVD_ADDRESS", str(daemon.address))
        os.chmod(outside, 0o755)
        assert basics._workers() == tuple(options.values())
        for written in (outside if option == "gpu-program" else other, tmp_path):
            os.chmod(written, 0o777)
            assert basics._workers() == (_native.program_path("hvdd-gpu"), "", "")
            os.chmod(written, 0o755)


def test_without_libzmq_questions_about_gpus_go_to_the_own_worker(monkeypatch):
    from hvd import _native, basics
    monkeypatch.setitem(sys.modules, "hvd.admin", None)  # its import raises ImportError
    monkeypatch.delattr("hvd.admin")
    assert basics._workers() == (_native.program_path("hvdd-gpu"), "", "")


@pytest.mark.skipif(os.geteuid() != 0 or not may_be_made(), reason="needs root, to make a namespace")
def test_in_a_container_questions_about_gpus_go_to_the_worker_that_is_there(monkeypatch, tmp_path):
    """The path that hvdd outside names is not to be seen there."""
    from hvd import _native, basics
    outside = shutil.copy(program("hvdd-gpu"), tmp_path)
    container = Inside("container", NEW_FS | NEW_MOUNT)
    with Daemon(options={"gpu-program": outside, "gpu-kernels": "/etc/hostname"}) as daemon:
        monkeypatch.setenv("HVD_ADDRESS", str(daemon.address))
        assert container.call(basics._workers) == (outside, "/etc/hostname", "")
        container.hide(tmp_path)
        assert container.call(basics._workers) == (_native.program_path("hvdd-gpu"), "", "")


def test_a_job_is_seen_as_it_is(daemon, admin):
    assert admin.address == str(daemon.address)
    status = admin.status()
    assert (status.pid, status.uid, status.state) == (daemon.pid, os.getuid(), "running")
    assert admin.jobs().jobs == [] and admin.gpus().gpus == [] and admin.nodes().text
    limits = {(row.limit, row.uid): row for row in admin.limits(owner=os.getuid()).limits}
    assert limits["max-jobs", 0].of == "all" and limits["max-admin", 0].used >= 1
    assert limits["max-sessions-per-user", os.getuid()].used == 0
    job = Job(daemon, 2, name="seen")
    job.check_usable()
    listed, = admin.jobs().jobs
    assert (listed.job, listed.uid, listed.size, listed.attached, listed.withheld) == ("seen", os.getuid(), 2, 2, False)
    answer = admin.ranks("seen")
    assert [(rank.rank, rank.pid, rank.state) for rank in answer.ranks] == [
        (number, rank.pid, "attached") for number, rank in enumerate(job.ranks)]
    assert answer.spans == [] and answer.daemon is None
    newest, = admin.trace("seen", rank=1, limit=1).traces
    assert newest.rank == 1 and newest.status == 0 and newest.done_ns > newest.submit_ns > 0
    op = job.ranks[0].submit("allreduce", "lonely", dtype="int32", dims=[4])
    stall = next(row for row in iter(lambda: admin.stalls("seen").stalls, None) if row)[0]
    assert (stall.tensor, stall.ready, [(row.rank, row.pid) for row in stall.missing]) == ("lonely", [0], [(1, job.ranks[1].pid)])
    assert "being stopped" in admin.stop("seen", reason="enough")
    outcome = job.ranks[0].wait(op)
    assert "enough" in outcome.text


def test_a_timeline_is_written_while_it_is_wanted(daemon, admin, tmp_path):
    job, path = Job(daemon, 2, name="drawn"), tmp_path / "trace.json"
    admin.timeline_start("drawn", path, mark_cycles=True)
    with pytest.raises(RuntimeError, match="already"):
        admin.timeline_start("drawn", tmp_path / "other.json")
    job.run("barrier", name="x")
    admin.timeline_stop("drawn")
    names = [event.get("name") for event in json.loads(path.read_text(encoding="utf-8"))]
    assert "NEGOTIATE_BARRIER" in names and "CYCLE_START" in names
    admin.timeline_stop("drawn")  # there is none


def test_a_killed_rank_is_an_event(daemon, admin):
    daemon.allow("rank-lost", "session-ended", "rank-ended")
    with admin.events() as events:
        assert events.next(0) is None
        job = Job(daemon, 2, name="watched")
        assert next(events)[0] == hvd.admin.GENERATION_BEGAN
        os.kill(job.ranks[1].pid, signal.SIGKILL)
        assert select.select([events], [], [], 20)[0], "its descriptor is readable"
        event = next(event for event in events if event.kind == hvd.admin.RANK_LOST)
        assert (event.job, event.rank, event.pid, event.uid) == ("watched", 1, job.ranks[1].pid, os.getuid())
        assert "SIGKILL" in event.text
    with pytest.raises(ValueError, match="closed"):
        events.next(0)


def test_a_node_that_comes_and_goes_changes_the_hosts(tmp_path):
    keys = new_keys(tmp_path / "mesh")
    with Daemon(options={"mesh-listen": "127.0.0.1:0", "mesh-key": keys}) as daemon:
        port = (daemon.address / "mesh.port").read_text(encoding="ascii").strip()
        with hvd.admin.Admin(str(daemon.address)) as admin, admin.events() as events:
            with Daemon(options={"mesh-join": f"127.0.0.1:{port}", "mesh-key": keys}):
                joined, hosts = next(events), next(events)
                assert (joined.kind, joined.text, joined.added) == (hvd.admin.NODE_JOINED, "127.0.0.1", [])
                assert hosts[0] == hvd.admin.HOSTS_CHANGED and (hosts.added, hosts.removed, hosts.count) == ([joined.node], [], 2)
            lost, hosts = next(events), next(events)
            assert (lost.kind, lost.node) == (hvd.admin.NODE_LOST, joined.node)
            assert (hosts.added, hosts.removed, hosts.count) == ([], [joined.node], 1)


@pytest.mark.parametrize("wrong,error,text", [
    (lambda admin: admin.ranks("nobody"), LookupError, "no job 'nobody' runs here"),
    (lambda admin: admin.ranks("no/job"), ValueError, "is no job id"),
    (lambda admin: admin.timeline_start("nobody", "/dev/null"), LookupError, "no job 'nobody' runs here"),
    (lambda admin: admin.timeline_start("nobody", "/nonexistent/x"), ValueError, "cannot open /nonexistent/x: No such file"),
    (lambda admin: admin.timeline_stop("no/job"), ValueError, "is no job id"),
    (lambda admin: hvd.admin.Admin("/nonexistent/hvdd"), ConnectionError, re.escape("/nonexistent/hvdd (nothing there)")),
], ids=["no-such-job", "no-job-id", "no-job-to-draw", "no-file", "no-job-id-to-draw", "no-hvdd"])
def test_a_refusal_is_an_exception_with_the_librarys_sentence(admin, wrong, error, text):
    with pytest.raises(error, match=text):
        wrong(admin)


def test_what_is_closed_says_so(admin):
    admin.close()
    admin.close()
    with pytest.raises(ValueError, match="closed"):
        admin.status()
