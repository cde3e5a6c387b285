# SPDX-License-Identifier: Apache-2.0
"""hvd.run: a function on several ranks, its results, and what comes when a rank fails."""
import io
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import conftest

import hvd
from hvd import runner
from hvt.hosts import Hosts
from hvt.wait import wait_until


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """hvd.run takes this process' environment."""
    for name in set(os.environ) - set(conftest.clean_environment()):
        monkeypatch.delenv(name)
    for name, value in conftest.clean_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def total(start, step=1):
    import hvd.numpy as inner
    inner.init()
    print(f"rank {inner.rank()} says hello")
    return inner.rank(), float(inner.allreduce(float(start + step * inner.rank()), op=inner.Sum))


def test_results_come_by_rank_and_output_is_shown(capsys, tmp_path):
    assert hvd.run(total, args=(1,), kwargs={"step": 10}, num_proc=2) == [(0, 12.0), (1, 12.0)]
    shown = capsys.readouterr().out
    assert "[0]<stdout>:rank 0 says hello" in shown and "[1]<stdout>:rank 1 says hello" in shown
    assert not list(tmp_path.iterdir()), "the private folder is gone"


def test_a_lambda_and_what_it_closes_over_travel_where_cloudpickle_is():
    pytest.importorskip("cloudpickle")
    secret = {"a": 3}
    result, = hvd.run(lambda: (secret, lambda: secret["a"]))
    assert result[0] == secret and result[1]() == 3


def test_without_cloudpickle_a_function_of_the_main_program_is_refused(monkeypatch):
    monkeypatch.setattr(runner.run_task, "pickler", runner.pickle)
    monkeypatch.setattr(total, "__module__", "__main__")
    with pytest.raises(ValueError, match="install cloudpickle, or move the function into a module"):
        hvd.run(total, args=(1,))


def fails_on_one():
    import hvd.numpy as inner
    inner.init()
    if inner.rank() == 1:
        raise KeyError("no such dial")
    inner.allreduce(1.0)


def test_a_rank_that_raises_is_named_with_its_traceback(tmp_path):
    with pytest.raises(RuntimeError, match="rank 1 of 2 failed") as caught:
        hvd.run(fails_on_one, num_proc=2)
    assert "KeyError: 'no such dial'" in str(caught.value) and "fails_on_one" in str(caught.value)
    assert not list(tmp_path.iterdir())


def dies_on_one():
    import hvd.numpy as inner
    inner.init()
    inner.barrier()
    if inner.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    inner.allreduce(1.0)


def test_a_rank_that_is_killed_is_named_with_its_signal():
    with pytest.raises(RuntimeError) as caught:
        hvd.run(dies_on_one, num_proc=2)
    assert "Without a result:" in str(caught.value) and "rank 1" in str(caught.value)
    assert "signal 9" in str(caught.value) or "SIGKILL" in str(caught.value)
    known = "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated"
    assert known in str(caught.value)


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(RuntimeError, match="(?s)rank 0 of 1 failed.*pickle"):
        hvd.run(threading.Lock)


def leaves():
    sys.exit(3)


def test_a_rank_that_exits_has_no_result():
    with pytest.raises(RuntimeError, match="(?s)rank 0 of 1 failed.*SystemExit: 3"):
        hvd.run(leaves)


@pytest.fixture
def hosts(monkeypatch):
    """Other hosts, which do not see the caller's folder."""
    running = Hosts()
    monkeypatch.setenv("HVD_SSH", running.environment["HVD_SSH"])
    monkeypatch.setenv("HVD_TEST_TOKEN", running.token)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(running.folder))
    try:
        yield running
        running.check_gone()
    finally:
        running.sweep()


def where(value):
    names = ("HVD_RANK", "HVD_SIZE", "HVD_CROSS_RANK", "HVD_RUN_CALL", "HVD_RUN_RESULT")
    return [os.environ.get(name) for name in names] + [value]


def test_a_call_reaches_several_hosts_and_every_result_comes_back(hosts):
    large = os.urandom(5_000_000)
    assert hvd.run(where, args=(large,), hosts="h1:2,h2:1", num_proc=3) == [
        ["0", "3", "0", None, None, large], ["1", "3", "0", None, None, large], ["2", "3", "1", None, None, large]]
    assert len(hosts.words()) == 2


def test_blanks_around_a_host_do_not_count(hosts):
    assert [place[:3] for place in hvd.run(where, args=(1,), hosts=" h1:1, h2:1", num_proc=2)] == [["0", "2", "0"], ["1", "2", "1"]]
    assert sorted(line.split()[0] for line in hosts.words()) == ["h1", "h2"]


def cores():
    return sorted(os.sched_getaffinity(0))


def test_hosts_that_are_one_machine_divide_its_cores_unless_told_otherwise(hosts):
    everything = cores()
    middle = len(everything) / 2
    assert hvd.run(cores, hosts="h1:1,h2:1", num_proc=2) == [everything[:math.ceil(middle)], everything[math.floor(middle):]]
    assert hvd.run(cores, hosts="h1:1,h2:1", num_proc=2, bind_to="none") == [everything, everything]
    assert hosts


def raises_on_two():
    if os.environ["HVD_RANK"] == "1":
        raise KeyError("no such dial")
    time.sleep(1000)


def test_a_rank_that_raises_on_another_host_is_named_with_its_traceback(hosts):
    with pytest.raises(RuntimeError, match="(?s)rank 1 of 2 failed.*KeyError: 'no such dial'") as caught:
        hvd.run(raises_on_two, hosts="h1:1,h2:1", num_proc=2)
    assert "Without a result: rank 0." in str(caught.value) and "rank 1 (pid" in str(caught.value)
    assert len(hosts.words()) == 2


def raises_on_a_host_that_was_booted_later(folder):
    """Rank 1 fails when hvdrun has taken the failure of rank 0, and its clock is behind."""
    if os.environ["HVD_RANK"] == "1":
        time.monotonic_ns = lambda: 1
        wait_until(lambda: [file for file in pathlib.Path(folder).glob("hvd-run-*/result.0") if file.stat().st_size],
                   "the result of rank 0", 60)
    raise KeyError(f"rank {os.environ['HVD_RANK']} fails")


def test_the_rank_that_fails_first_is_named_whatever_the_clocks_of_the_hosts_say(hosts, tmp_path):
    with pytest.raises(RuntimeError, match="(?s)rank 0 of 2 failed.*KeyError: 'rank 0 fails'.*Also failed, later: rank 1"):
        hvd.run(raises_on_a_host_that_was_booted_later, args=(str(tmp_path),), hosts="h1:1,h2:1", num_proc=2)
    assert hosts


@pytest.mark.parametrize("arrivals, order", [
    (None, [3, 1, 2, 0]),  # one host, which has one clock
    ("2 0\n0 0\n1 0\n3 0\n", [3, 1, 2, 0]),
    ("2 0\n3 1\n0 0\n5 2\n1 1\n", [2, 3, 0, 1]),  # rank 5 has not failed
    ("0 0\n3 2\n2 1\n1 0\n", [1, 3, 2, 0]),  # rank 1 was before rank 0 on their host
])
def test_failures_are_ordered_by_the_clock_of_their_host_and_between_hosts_by_arrival(arrivals, order, tmp_path):
    if arrivals is not None:
        (tmp_path / "arrivals").write_text(arrivals, encoding="ascii")
    failed = {rank: runner.run_task.Result(False, b"", "", when_ns) for rank, when_ns in enumerate((40, 20, 30, 10))}
    assert runner._in_order(tmp_path, failed) == order  # pylint: disable=protected-access


def test_a_host_that_cannot_be_reached_is_named(hosts):
    with pytest.raises(RuntimeError, match="dead: cannot be reached: ssh: connect to host dead"):
        hvd.run(where, args=(1,), hosts="h1:1,dead:1", num_proc=2)
    assert hosts


def reads():
    return sys.stdin.read()


def test_ranks_have_an_empty_standard_input():
    assert hvd.run(reads, num_proc=2) == ["", ""]


def test_another_python_and_a_folder_for_the_output(tmp_path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "by way of a script"\nexec {sys.executable} "$@"\n', encoding="utf-8")
    other.chmod(0o755)
    folder = tmp_path / "logs"
    assert hvd.run(os.getcwd, num_proc=2, executable=str(other), output_filename=str(folder)) == [os.getcwd()] * 2
    assert (folder / "rank.1" / "stdout").read_text(encoding="utf-8") == "by way of a script\n"


@pytest.mark.parametrize("options, message", [
    ({"hosts": "localhost:1", "hostfile": "f"}, "hosts and hostfile exclude each other"),
    ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi exclude each other"),
    ({"hosts": "localhost:1", "num_proc": 2}, "(?i)requested more processes .2. than"),
    ({"num_proc": 0}, "-np takes"),
])
def test_contradictions_are_value_errors(options, message):
    with pytest.raises(ValueError, match=message):
        hvd.run(leaves, **options)


@pytest.mark.parametrize("name", ["min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range",
                                  "host_discovery_script"])
def test_elastic_arguments_are_refused_by_name(name):
    with pytest.raises(NotImplementedError, match=f"{name}: .*fixed number"):
        hvd.run(leaves, **{name: 1})


def test_np_is_the_old_name_of_num_proc():
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc"):
        assert len(hvd.run(os.getpid, np=2)) == 2


def test_np_counts_only_where_num_proc_is_not_given():
    with pytest.warns(DeprecationWarning, match="np is deprecated"):
        assert len(hvd.run(os.getpid, num_proc=2, np=1)) == 2


def test_a_rank_that_exits_like_hvdrun_after_a_wrong_command_line_is_no_value_error(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 2\n", encoding="utf-8")
    other.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"(?s)Without a result: rank 0.*exit status is 2.*exited with code 2"):
        hvd.run(os.getpid, executable=str(other))


def test_output_is_shown_as_it_comes(monkeypatch):
    """Carriage returns, unfinished lines, and characters whose bytes come apart."""
    ours, theirs = os.pipe()
    shown, said = [], []
    sink = io.StringIO()
    monkeypatch.setattr(sink, "write", shown.append)
    with open(ours, "rb") as source:
        thread = threading.Thread(target=runner._forward, args=(source, sink, said))  # pylint: disable=protected-access
        thread.start()
        expected = ""
        for piece, text in ((b"50%\r", "50%\r"), (b"100%\r\nhvd", "100%\r\nhvd"), (b"run: a\nhvdrun: b", "run: a\nhvdrun: b"),
                            (b"c\n\xc3", "c\n"), (b"\xa4", "\u00e4"), (b" hvdrun: no\nhvdrun: d", " hvdrun: no\nhvdrun: d")):
            os.write(theirs, piece)
            expected += text
            wait_until(lambda wanted=expected: "".join(shown) == wanted, lambda: f"what is shown: {shown}", 30, 0.001)
        os.close(theirs)
        thread.join(30)
    assert said == ["hvdrun: a", "hvdrun: bc", "hvdrun: d"]


CALLER = """
import sys, time
import hvd
def waits():
    import os, pathlib, time
    pathlib.Path({folder!r}, os.environ["HVD_RANK"]).write_text(str(os.getpid()))
    time.sleep(600)
hvd.run(waits, num_proc=2)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_the_ranks_end_with_their_caller(number, tmp_path):
    pytest.importorskip("cloudpickle")
    folder = tmp_path / "pids"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", CALLER.format(folder=str(folder))], stderr=subprocess.PIPE) as caller:
        wait_until(lambda: len([file for file in folder.iterdir() if file.read_text()]) == 2, "both ranks to say their pids", 60)
        caller.send_signal(number)
        if number == signal.SIGINT:
            assert b"KeyboardInterrupt" in caller.communicate(timeout=60)[1]
        else:
            caller.wait(60)
        processes = [pathlib.Path("/proc", file.read_text(), "stat") for file in folder.iterdir()]
        wait_until(lambda: not any(process.exists() and " Z " not in process.read_text() for process in processes),
                   "the ranks to end with their caller", 60)
