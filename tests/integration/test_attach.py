# SPDX-License-Identifier: Apache-2.0
"""Attaches that must not work: a full sentence for the caller and nothing half-created."""
import os

import pytest

from hvt import Daemon, Status, stopped, wire
from hvt.job import Job


def refused(daemon: Daemon, request: bytes) -> wire.Reply:
    """The refusal of a request that is sent by hand; afterwards the connection is closed."""
    with wire.Raw(daemon.attach_path) as raw:
        raw.send(request)
        reply = raw.attach_reply()
        assert reply.status < 0 and reply.text and not reply.descriptors
        assert raw.receive()[0] == b"", "the connection stays open after a refusal"
    return reply


@pytest.mark.parametrize("rank, size, status", [
    (2, 2, Status.ERR_BAD_RANK), (-1, 2, Status.ERR_BAD_RANK), (1 << 30, 2, Status.ERR_BAD_RANK),
    (0, 0, Status.ERR_BAD_SIZE), (0, -4, Status.ERR_BAD_SIZE), (0, 1 << 30, Status.ERR_BAD_SIZE)])
def test_a_rank_or_size_out_of_range_is_refused_by_the_daemon_itself(daemon, rank, size, status):
    daemon.allow("attach-refused")
    reply = refused(daemon, wire.attach_request("range", rank, size))
    assert reply.status in (status, Status.ERR_PROTOCOL), reply.text
    assert not daemon.jobs()


@pytest.mark.parametrize("rank, size, status", [(2, 2, Status.ERR_BAD_RANK), (0, 5000, Status.ERR_BAD_SIZE)])
def test_a_rank_or_size_out_of_range_is_refused_by_the_library(daemon, rank, size, status):
    outcome = daemon.rank().try_open("range", rank, size)
    assert outcome.status == status and str(size) in outcome.text
    assert not daemon.jobs()


def test_another_size_than_the_running_job_is_refused_naming_both(daemon):
    job = Job(daemon, 2, name="sized")
    outcome = daemon.rank().try_open("sized", 1, 3)
    assert outcome.status == Status.ERR_BAD_SIZE
    assert "3" in outcome.text and "2" in outcome.text and "sized" in outcome.text
    job.check_usable()


def test_a_rank_that_is_attached_is_refused_naming_the_process_that_holds_it(daemon):
    job = Job(daemon, 2, name="held")
    outcome = daemon.rank().try_open("held", 1, 2)
    assert outcome.status == Status.ERR_DUPLICATE_RANK
    assert str(job.ranks[1].pid) in outcome.text
    job.check_usable()


def test_a_wrong_job_key_is_refused_without_telling_the_right_one(daemon):
    daemon.allow("attach-refused")
    job = Job(daemon, 1, name="locked", key="open sesame")
    for key in ("simsim", None):
        outcome = daemon.rank().try_open("locked", 0, 1, key=key)
        assert outcome.status == Status.ERR_REFUSED, outcome
        assert "sesame" not in outcome.text
    assert "sesame" not in daemon.log_text()
    job.check_usable()


@pytest.mark.parametrize("protocol, abi", [(2, 2), (1, 1), (999, 999), (0, 2)])
def test_another_version_is_refused_naming_both(daemon, protocol, abi):
    reply = refused(daemon, wire.attach_request("version", protocol=protocol, abi=abi))
    assert reply.status == Status.ERR_VERSION
    wrong = protocol if protocol != wire.PROTOCOL_VERSION else abi
    assert str(wrong) in reply.text and "1" in reply.text
    assert not daemon.jobs()


@pytest.mark.parametrize("job", ["", "a b", "../etc", "x" * 128, "a/b", "naïve", "a\nb"], ids=repr)
def test_a_job_id_that_could_do_harm_in_a_path_or_log_is_refused(daemon, job):
    daemon.allow("attach-refused")
    reply = refused(daemon, wire.attach_request(job))
    assert reply.status in (Status.ERR_PROTOCOL, Status.ERR_INVALID), reply.text
    if job:
        outcome = daemon.rank().try_open(job, 0, 1)
        assert outcome.status == Status.ERR_INVALID
    assert not daemon.jobs()


def test_unknown_fields_and_many_settings_are_accepted(daemon):
    settings = [(f"HVD_SETTING_{number}", "v" * 100) for number in range(60)]
    with wire.Raw(daemon.attach_path) as raw:
        raw.send(wire.attach_request("future", settings=settings, extra=wire.field(99, "later") + wire.field(98, 7)))
        reply = raw.attach_reply()
        assert reply.status == Status.OK, reply.text
        assert len(reply.descriptors) == 5
        close_all(reply.descriptors)
        assert reply.engine_pid > 0
    daemon.expect_line("rank-lost")


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def test_limits_on_jobs_and_sessions_are_refused_with_their_name():
    with Daemon(options={"max-jobs": 2, "max-sessions": 3}) as daemon:
        daemon.allow("attach-refused")
        Job(daemon, 1, name="one")
        two = Job(daemon, 1, name="two")
        outcome = daemon.rank().try_open("three", 0, 1)
        assert outcome.status == Status.ERR_DAEMON_LIMIT and "max-jobs" in outcome.text
        two.close()
        daemon.rank()
        Job(daemon, 2, name="pair")
        outcome = daemon.rank().try_open("one-more", 0, 1)
        assert outcome.status == Status.ERR_DAEMON_LIMIT and "max-" in outcome.text
    with Daemon(options={"max-sessions-per-user": 1}) as daemon:
        daemon.allow("attach-refused")
        Job(daemon, 1, name="one")
        outcome = daemon.rank().try_open("two", 0, 1)
        assert outcome.status == Status.ERR_DAEMON_LIMIT and "max-sessions-per-user" in outcome.text


def test_no_daemon_is_said_with_the_place_that_was_tried(daemon, tmp_path):
    outcome = daemon.rank().try_open("x", 0, 1, address=str(tmp_path), timeout_ms=1000)
    assert outcome.status == Status.ERR_NO_DAEMON
    assert str(tmp_path) in outcome.text


def test_a_stopped_daemon_makes_open_time_out_and_nothing_is_left(daemon):
    rank = daemon.rank()
    with stopped(daemon.pid):
        outcome = rank.try_open("slow", 0, 1, timeout_ms=100)
    assert outcome.status == Status.ERR_ATTACH_TIMEOUT, outcome
    assert rank.try_open("slow", 0, 1).ok
