# SPDX-License-Identifier: Apache-2.0
"""init, identity, process sets, objects, ends: what needs no framework."""
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from conftest import clean_environment
from hvt import Daemon, check_prompt, new_keys, wait_until


def check_identity_and_sets():
    import hvd
    with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
        hvd.rank()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.mpi_threads_supported()
    hvd.init(process_sets=[[0], hvd.ProcessSet([2, 0])])
    hvd.init()
    assert hvd.mpi_threads_supported()
    assert hvd.is_initialized() and (hvd.size(), hvd.local_size(), hvd.cross_size(), hvd.cross_rank()) == (3, 3, 1, 0)
    assert hvd.rank() == hvd.local_rank() and hvd.is_homogeneous()
    assert hvd.global_process_set.ranks == [0, 1, 2] and hvd.global_process_set.size() == 3
    from hvd import process_sets
    assert process_sets.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0], 2: [0, 2]}
    again = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[again])
    assert (again.process_set_id, again.size()) == (2, 2)
    with pytest.raises(ValueError, match="no process set of the ranks .1, 2. is registered .number 1"):
        hvd.init(process_sets=[[0], [1, 2]])
    for twice in ([[0], [0]], [[0, 1, 2]]):
        with pytest.raises(ValueError, match="given twice"):
            hvd.init(process_sets=twice)
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([0, 2])
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([0, 1, 2])
    with pytest.raises(ValueError, match="duplicate rank: 1"):
        hvd.add_process_set([1, 1])
    with pytest.raises(ValueError, match="invalid rank: 7"):
        hvd.add_process_set([1, 7])
    pair = hvd.add_process_set([2, 1])
    assert (pair.process_set_id, pair.ranks, pair.size(), pair.included()) == (3, [1, 2], 2, hvd.rank() > 0)
    if pair.included():
        assert pair.rank() == hvd.rank() - 1
        assert hvd.allreduce([1.0], op=hvd.Sum, process_set=pair) == [2.0]
        assert hvd.allgather_object(hvd.rank(), process_set=pair) == [1, 2]
    else:
        with pytest.raises(ValueError, match="Allreduce: Rank 0 is not a member of the provided process set"):
            hvd.allreduce([1.0], process_set=pair)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.remove_process_set(pair) and pair.process_set_id is None and not hvd.remove_process_set(pair)
    with pytest.raises(ValueError, match="does not exist, or has not been registered"):
        hvd.barrier(process_set=pair)
    hvd.shutdown()
    assert again.process_set_id is None
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.barrier()


def test_a_library_that_is_missing_is_named_with_what_to_do():
    from hvd import _native
    ours, missing = "/x/libhvdclient.so.0", "cannot open shared object file: No such file or directory"
    assert _native._remedy(ours, f"libprotobuf-c.so.1: {missing}") == (
        "install libprotobuf-c.so.1, which it needs: scripts/deps.sh run does so on Debian")
    for words in (f"{ours}: {missing}", f"{ours}: invalid ELF header"):
        assert _native._remedy(ours, words).startswith("install this package with pip, or set HVD_LIBRARY")


def test_identity_and_process_sets(ranks):
    ranks(3, check_identity_and_sets)


def check_sets_that_differ():
    import hvd
    mine = [[0]] if int(os.environ["HVD_RANK"]) == 0 else [[1]]
    with pytest.raises(ValueError, match="Horovod initialization failed"):
        hvd.init(process_sets=mine)
    assert not hvd.is_initialized()


def test_static_sets_that_differ_between_ranks_fail_init_on_all(ranks):
    ranks(2, check_sets_that_differ)


def check_refused_sets():
    import hvd
    last = int(os.environ["HVD_RANK"]) == 2
    if last:
        time.sleep(2.5)  # more than an engine waits for ranks once all that came have left
    with pytest.raises(ValueError, match="given twice"):
        hvd.init(process_sets=[[0], [1, 2], range(3)])
    if last:
        time.sleep(0.2)
    hvd.init(process_sets=[[0], [2, 1]])
    assert hvd.allreduce([1.0], op=hvd.Sum) == [3.0]


def test_ranks_meet_again_after_sets_that_init_has_refused(ranks):
    ranks(3, check_refused_sets)


class Communicator:
    """What is asked of an mpi4py communicator. Its ranks write to files; without ranks it is MPI.COMM_NULL."""

    def __init__(self, folder, ranks):
        self.folder, self.ranks, self.calls = folder, ranks, 0

    def __bool__(self):
        return bool(self.ranks)

    def Get_rank(self):
        return self.ranks.index(int(os.environ["HVD_RANK"]))

    def Get_size(self):
        return len(self.ranks)

    def allgather(self, value):
        self.calls += 1
        files = [self.folder / f"{self.ranks}.{self.calls}.{place}" for place in range(len(self.ranks))]
        written = self.folder / f"{os.getpid()}.new"
        written.write_bytes(pickle.dumps(value))
        written.rename(files[self.Get_rank()])
        return [pickle.loads(wait_until(lambda file=file: file.exists() and file.read_bytes(), "a rank", 20)) for file in files]

    def bcast(self, value, root):
        return self.allgather(value)[root]


def check_communicators(folder):
    import hvd.numpy as hvd
    from hvd import process_sets
    me = int(os.environ["HVD_RANK"])
    world = Communicator(folder, [0, 1, 2, 3])
    half = hvd.ProcessSet(Communicator(folder, [1, 3] if me % 2 else [0, 2]))
    first = hvd.ProcessSet(Communicator(folder, [0, 1] if me < 2 else []))
    assert half.ranks is None and half.included() is None and half.size() is None
    for _ in range(2):
        hvd.init(world, process_sets=[half, first, [0, 3]])
        assert process_sets.get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 3], 2: [0, 1], 3: [0, 2], 4: [1, 3]}
        assert (half.process_set_id, half.ranks, half.rank()) == ((4, [1, 3], me // 2) if me % 2 else (3, [0, 2], me // 2))
        assert hvd.allreduce(me, op=hvd.Sum, process_set=half) == sum(half.ranks)
        assert first.included() == (me < 2) and (first.process_set_id == 2) == (me < 2)
        assert str(process_sets.of_id(2).ranks) == "[0, 1]"
        hvd.barrier()
        hvd.shutdown()
    hvd.init(comm=[world, half.mpi_comm])
    assert process_sets.get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
    whole = Communicator(folder / "more", [0, 1, 2, 3])
    with pytest.raises(ValueError, match="duplicate"):
        hvd.add_process_set(whole)
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(ValueError, match="given twice"):
        hvd.init(world, process_sets=[whole])


def test_communicators_stand_for_process_sets_before_init(ranks):
    (ranks.folder / "files" / "more").mkdir(parents=True)
    ranks(4, check_communicators, ranks.folder / "files")


def check_objects():
    import hvd
    hvd.init()
    me = {"rank": hvd.rank(), "data": bytes(100_000 * hvd.rank())}
    assert hvd.broadcast_object(me, 1)["rank"] == 1
    assert hvd.broadcast_object(None if hvd.rank() else "root's", 0) == "root's"
    gathered = hvd.allgather_object(me)
    assert [(one["rank"], len(one["data"])) for one in gathered] == [(0, 0), (1, 100_000)]


def test_objects_travel(ranks):
    ranks(2, check_objects)


def check_many_sessions():
    import hvd
    for _ in range(200):
        hvd.init()
        hvd.barrier()
        hvd.shutdown()
    return len(os.listdir("/proc/self/fd"))


def test_hundreds_of_inits_leave_no_descriptor(ranks):
    assert max(ranks(2, check_many_sessions)) < 20


class Interrupted:
    """A watcher of the session, in whose closing() a signal handler raises."""

    def closing(self, session):
        raise KeyboardInterrupt

    def stays(self, session):
        pass


def check_shutdowns_that_are_not_finished():
    import hvd
    from hvd import _session
    hvd.init()
    mine = hvd.add_process_set([0])
    session = _session.current()
    _session._CLOSE_PATIENCE_S = 0.01
    session.users.append(-1)  # of a thread that does not come back from the library
    with pytest.raises(hvd.HorovodInternalError, match="stays open"):
        hvd.shutdown()
    session.users.remove(-1)
    _session._CLOSE_PATIENCE_S = 10
    assert hvd.allgather_object(hvd.rank()) == [0, 1] and mine.process_set_id == 1
    hvd.barrier()

    session.watchers.append(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        hvd.shutdown()
    session.watchers.pop()
    assert hvd.allgather_object(hvd.rank()) == [0, 1] and mine.process_set_id == 1
    hvd.barrier()

    let_go = _session.Session._let_go

    def interrupted(pointer):
        let_go(pointer)
        raise KeyboardInterrupt
    _session.Session._let_go = staticmethod(interrupted)
    with pytest.raises(KeyboardInterrupt):
        hvd.shutdown()
    _session.Session._let_go = staticmethod(let_go)
    assert not hvd.is_initialized() and mine.process_set_id is None
    hvd.init()
    assert hvd.add_process_set(mine).process_set_id == 1
    hvd.init(comm=[0, 1])  # attached already, so whoever asks is that rank
    hvd.init(comm=[1 - hvd.rank()])
    assert hvd.allgather_object(hvd.rank()) == [0, 1]


def test_a_shutdown_that_is_not_finished_leaves_a_session_that_works_or_none(ranks):
    ranks(2, check_shutdowns_that_are_not_finished)


def test_init_among_some_ranks_that_cannot_attach_says_so_as_init_does(monkeypatch):
    import hvd
    from hvd import _session

    def refuse(**_fields):
        raise hvd.HorovodInternalError("there is no hvdd")
    monkeypatch.setattr(_session, "open_session", refuse)
    with pytest.raises(ValueError, match="Horovod initialization failed. there is no hvdd"):
        hvd.init(comm=[0, 1])


def test_an_op_of_an_earlier_session_takes_nothing_from_one_with_its_address():
    from hvd import _ops
    sessions = [types.SimpleNamespace(pointer=None, abandoned=[]) for _ in range(2)]
    sessions[1].abandon = lambda pointer, keep, name: sessions[1].abandoned.append(pointer)
    earlier, later = (_ops.Op(session, 4096, None, True) for session in sessions)
    del earlier
    assert later in _ops._unreleased()
    _ops._abandon(sessions[1], [4096], None)
    assert not sessions[1].abandoned
    later.release()


def check_one_process_alone():
    import hvd
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (0, 1)
    assert hvd.allreduce([3.0]) == [3.0] and hvd.broadcast_object("x") == "x"


def test_init_alone_means_size_one():
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_core; " \
           "test_core.check_one_process_alone()"
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), timeout=60, check=True)


def check_dropped_handles():
    import numpy as np

    import hvd.numpy as hvd
    hvd.init()
    array = np.ones(5000)
    for _ in range(10_000):  # more than can be in flight
        hvd.allreduce_async(array)
    handles = [hvd.allreduce_async(array, op=hvd.Sum) for _ in range(3000)]
    assert all(hvd.synchronize(handle)[0] == 2 for handle in handles)
    assert hvd.synchronize(handles[0]) is None
    with pytest.raises(ValueError):
        hvd.poll(handles[0])
    with pytest.raises(TypeError, match="cannot be pickled"):
        import pickle
        pickle.dumps(hvd.barrier and hvd.allreduce_async(array, name="held"))


def test_handles_may_be_dropped_and_thousands_may_be_in_flight(ranks):
    ranks(2, check_dropped_handles)


def check_dropped_names():
    import numpy as np

    import hvd.numpy as hvd
    from hvd import _session
    _session._NAME_KEPT_S = 60  # on a busy machine the moment may be over between two lines
    hvd.init()
    array = np.ones(3)
    for turn in range(20):  # whoever comes second finishes the op at once; the mistake is told all the same
        hvd.allreduce_async(array, name=f"dropped.{turn}")
        with pytest.raises(ValueError, match="in flight on this rank already"):
            hvd.allreduce_async(array, name=f"dropped.{turn}")
        hvd.barrier()
    for _ in range(1000):
        assert hvd.allreduce(array, name="again")[0] == 1


def test_a_name_whose_handle_was_dropped_is_refused_for_a_moment(ranks):
    ranks(2, check_dropped_names)


def check_fork():
    import hvd
    hvd.init()
    child = os.fork()
    if child == 0:
        good = hvd.rank() >= 0 and hvd.size() == 2
        try:
            hvd.barrier()
            good = False
        except hvd.HorovodInternalError:
            pass
        hvd.shutdown()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hvd.barrier()


def test_a_forked_child_may_ask_who_it_is_and_harms_nobody(ranks):
    ranks(2, check_fork)


SCRIPT_WITHOUT_A_GUARD = """
import multiprocessing, sys
import hvd
try:
    hvd.init()
except ValueError as error:
    print(error)
    sys.exit(3)
if __name__ == "__main__":
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=hvd.init)
    worker.start()
    worker.join()
    assert worker.exitcode == int(sys.argv[2]), worker.exitcode
"""


@pytest.mark.parametrize("method, code", [("spawn", "3"), ("fork", "1")])
def test_a_worker_that_attaches_as_its_rank_is_told_where_init_belongs(ranks, tmp_path, method, code):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_WITHOUT_A_GUARD, encoding="utf-8")
    done = ranks.run(1, str(script), method, code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started by multiprocessing" in done.stdout + done.stderr


def check_interrupt():
    import hvd
    hvd.init()
    if hvd.rank() == 1:
        hvd.broadcast_object(None, 0, name="after")
        return 0
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began_ns = time.monotonic_ns()
    with pytest.raises(KeyboardInterrupt):
        hvd.barrier()
    took_ns = time.monotonic_ns() - began_ns
    hvd.broadcast_object("go on", 0, name="after")
    return took_ns


def test_control_c_ends_a_wait(ranks):
    check_prompt("the wait was interrupted", ranks(2, check_interrupt)[0], 5_000_000_000)


SHUTDOWN_BEFORE_THE_NODES_HAVE_MET = """
import os, signal, threading, time
import hvd
hvd.init()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
began_ns = time.monotonic_ns()
try:
    hvd.shutdown()
except KeyboardInterrupt:
    print("interrupted", hvd.is_initialized())
print(time.monotonic_ns() - began_ns)
hvd.shutdown()
"""


def test_control_c_ends_a_shutdown_that_waits_for_other_nodes(tmp_path):
    """A session of several nodes is kept until they have met: up to 45 s."""
    options = {"mesh-listen": "127.0.0.1:0", "mesh-key": new_keys(tmp_path / "mesh"), "port-range": "9732-9763"}
    with Daemon(options=options) as daemon:
        done = subprocess.run([sys.executable, "-c", SHUTDOWN_BEFORE_THE_NODES_HAVE_MET], capture_output=True, text=True,
                              timeout=60, check=False, env=clean_environment(
                                  HVD_ADDRESS=str(daemon.address), HVD_JOB_ID="early", HVD_RANK="0", HVD_SIZE="2",
                                  HVD_LOCAL_RANK="0", HVD_LOCAL_SIZE="1", HVD_CROSS_RANK="0", HVD_CROSS_SIZE="2"))
        assert done.returncode == 0, done
        said, took_ns = done.stdout.splitlines()
        assert said == "interrupted False" and int(took_ns) > 200_000_000, done
        check_prompt("shutdown was interrupted", int(took_ns), 5_000_000_000)


def check_shutdown_in_another_thread():
    import hvd
    hvd.init()
    if hvd.rank() == 0:
        threading.Timer(0.3, hvd.shutdown).start()
        with pytest.raises(hvd.HorovodInternalError):
            hvd.barrier()
    else:
        time.sleep(1)


def test_shutdown_in_another_thread_ends_a_wait(ranks):
    ranks(2, check_shutdown_in_another_thread)


def lose_a_rank(how):
    import hvd
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # hvdrun ends the others at once; they shall say what they saw
    hvd.init()
    if how == "exit":
        dropped = hvd.allgather_async([1.0])
        while not hvd.poll(dropped):
            time.sleep(0.001)
        del dropped  # what is finished and was never asked for is not in flight
    hvd.barrier()
    if hvd.rank() == 1:
        if how == "raise":
            raise RuntimeError("on purpose")
        if how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.barrier()
    except hvd.HorovodInternalError as error:
        print("survivor:", error, flush=True)
        raise


@pytest.mark.parametrize("hosts", [(), ("-H", "localhost:1,127.0.0.1:2")])
@pytest.mark.parametrize("how, fate, code", [("raise", "exited with code 1", 1), ("exit", "exited with code 3", 3),
                                             ("kill", "was killed by signal 9 (SIGKILL)", 137)])
def test_a_lost_rank_is_named_to_the_others(ranks, how, fate, code, hosts):
    done = ranks.run(3, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_core; "
                     f"test_core.lose_a_rank({how!r})", timeout=60, options=hosts)
    first = f"rank 1 on 127.0.0.1: {fate}" if hosts else f"rank 1: {fate}"
    assert done.returncode == code and f"{first}, the first to fail" in done.stderr, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "survivor:" in line]
    assert told and all("rank 1" in line and fate in line for line in told), done.stdout + done.stderr


def await_the_others(over):
    while not os.path.exists(over):
        time.sleep(0.01)


def leave_a_child(over):
    import multiprocessing.util  # as PyTorch does: what it does at exit comes after what hvd does
    import hvd
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        multiprocessing.get_context("fork").Process(target=await_the_others, args=(over,)).start()
        sys.exit(3)
    try:
        with pytest.raises(hvd.HorovodInternalError, match="rank 0"):
            hvd.barrier()
    finally:
        pathlib.Path(over).touch()


def test_a_rank_whose_child_outlives_its_script_leaves_the_others_at_once(ranks):
    done = ranks.run(2, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_core; "
                     f"test_core.leave_a_child({str(ranks.folder / 'over')!r})", timeout=60)
    assert done.returncode == 3 and "rank 0: exited with code 3, the first to fail" in done.stderr, done.stdout + done.stderr


def stand_still():
    import hvd
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        if os.fork() == 0:
            time.sleep(3)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    print("sum", hvd.allreduce([1.0], name="late", op=hvd.Sum)[0], flush=True)


def test_a_stopped_rank_is_waited_for_and_named(ranks):
    done = ranks.run(2, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_core; "
                     "test_core.stand_still()", timeout=60, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"})
    assert done.returncode == 0 and done.stdout.count("sum 2.0") == 2, done.stdout + done.stderr
    assert "rank 1 (pid" in done.stderr and "stopped" in done.stderr and "allreduce.late" in done.stderr, done.stderr


def check_waiting_costs_nothing():
    import hvd
    hvd.init()
    hvd.barrier()
    before = time.process_time()
    if hvd.rank() == 1:
        time.sleep(1)
    hvd.barrier()
    return time.process_time() - before


def test_a_waiting_rank_leaves_its_core_to_others(ranks):
    assert ranks(2, check_waiting_costs_nothing)[0] < 0.1  # a spinning one burns a second
