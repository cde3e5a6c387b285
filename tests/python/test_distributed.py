# SPDX-License-Identifier: Apache-2.0
"""The backend "hvd" of torch.distributed: its operations, DDP and FSDP beside gloo, and how it fails."""
from __future__ import annotations

import pathlib
import re
import sys

import pytest

from conftest import BUILD, PROGRAMS, TORCHRUN

torch = pytest.importorskip("torch")

RANKS_IMPORT = ("torch",)


@pytest.mark.parametrize("np", [pytest.param(np, marks=[] if np == 3 else pytest.mark.nightly) for np in (1, 2, 3, 4)])
def test_every_operation_and_type_gives_what_it_should(ranks, np):
    done = ranks.run(np, str(PROGRAMS / "groups.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all is well") == np


@pytest.mark.nightly
@pytest.mark.parametrize("program", ["nodes.py", "groups.py"])
def test_two_nodes_have_groups_sends_and_a_mesh(ranks, program):
    hvdrun = str(BUILD / "bin" / "hvdrun")
    done = ranks.start([hvdrun, "-H", "localhost:2,127.0.0.1:2", sys.executable, str(PROGRAMS / program)])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("of 4: all is well") == 4


def losses(done) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    found = [line[line.index("losses "):] for line in done.stdout.splitlines() if "losses " in line]
    assert found, done.stdout
    return found


#: Runs a script and leaves without the interpreter's end: gloo's threads outlive destroy_process_group() wherever DDP still
#: holds the group, and one that lets go of a tensor meanwhile aborts the process (torch 2.15, without any of ours).
WITHOUT_AN_END = ("import os, runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__'); "
                  "sys.stdout.flush(); os._exit(0)")


@pytest.mark.parametrize("program", ["train_ddp.py", pytest.param("train_fsdp.py", marks=pytest.mark.nightly)])
def test_an_unmodified_script_has_gloos_losses_to_the_bit(ranks, program):
    path = str(PROGRAMS / program)
    ours = ranks.start([*TORCHRUN, "--nproc-per-node", "2", path, "hvd"])
    assert losses(ours) == losses(ranks.run(2, "-c", WITHOUT_AN_END, path, "gloo"))


def check_repeated_groups(folder: str) -> None:
    import os

    import torch.distributed as dist

    import hvd.torch as hvd

    def begin(number: int) -> None:  # a port would have to be another one each time
        dist.init_process_group("hvd", init_method=f"file://{folder}/{number}", rank=int(os.environ["RANK"]),
                                world_size=2)
    for number in range(8):
        begin(number)
        group = dist.new_group([0, 1])
        room = torch.ones(1)
        dist.all_reduce(room, group=group)
        assert float(room) == 2
        dist.destroy_process_group()
        assert not hvd.is_initialized()
    hvd.init()  # a session of the user's own is used, and stays
    begin(8)
    dist.barrier()
    dist.destroy_process_group()
    assert hvd.is_initialized() and hvd.size() == 2
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == 2


@pytest.mark.nightly
def test_groups_are_made_and_destroyed_again_and_again(ranks, tmp_path):
    ranks(2, check_repeated_groups, str(tmp_path))


ONE_STORE_FOR_TWO_JOBS = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
import hvd.torch
for number in range(2):
    dist.init_process_group("hvd", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    room = torch.ones(1)
    dist.all_reduce(room)
    dist.destroy_process_group()
    print("job", number, "gives", float(room), flush=True)
    time.sleep(0.5 if rank == 0 else 0)  # rank 1 is first to ask what the next job is called
"""


@pytest.mark.nightly
def test_torchruns_store_outlives_a_job_and_serves_the_next(ranks):
    done = ranks.start([*TORCHRUN, "--nproc-per-node", "2", "--no-python", sys.executable, "-c", ONE_STORE_FOR_TWO_JOBS])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"job . gives [0-9.]+", done.stdout)) == 2 * ["job 0 gives 2.0"] + 2 * ["job 1 gives 2.0"]


def check_devices(folder: str) -> None:
    import gc
    import os

    import torch.distributed as dist

    import hvd.torch as hvd
    from hvd.torch import distributed as ours

    def begin(backend: str, store: str):
        dist.init_process_group(backend, init_method=f"file://{folder}/{store}", rank=int(os.environ["RANK"]), world_size=2)
        return dist.distributed_c10d._get_default_group()
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    base, ours._TorchBackend = ours._TorchBackend, object  # an older torch
    with pytest.raises(ValueError, match="from PyTorch 2.15 on.*after hvd.init()"):
        begin("cpu:hvd,cuda:gloo", "refused")
    ours._TorchBackend = base
    for backend, of_cpu, of_cuda in (("cpu:hvd,cuda:hvd", "hvd", "hvd"), ("hvd", "hvd", "hvd"), ("cpu:hvd", "hvd", "hvd"),
                                     ("cpu:hvd,cuda:gloo", "hvd", "gloo"), ("cpu:gloo,cuda:hvd", "gloo", "hvd")):
        world = begin(backend, backend)
        gc.collect()  # torch alone refers to what we have made
        is_mixed = of_cpu != of_cuda
        assert (type(world) is dist.ProcessGroup) == is_mixed, backend  # beside others the group is torch's own
        assert world._get_backend(cpu).name() == of_cpu and world._get_backend(cuda).name() == of_cuda, backend
        assert hvd.is_initialized()
        for group in (world, dist.new_group([0, 1]), dist.split_group(split_ranks=[[0, 1]]) if is_mixed else world):
            check_group(group, of_cpu)
        dist.destroy_process_group()
        assert not hvd.is_initialized()


def check_group(group, of_cpu: str) -> None:
    """Tensors of the host, in a group of which `of_cpu` has them."""
    import torch.distributed as dist

    from hvd.torch.distributed import DistributedError
    rank, ours = dist.get_rank(), group._get_backend(torch.device("cpu"))
    before = ours._get_sequence_number_for_group() if of_cpu == "hvd" else 0
    room = torch.full((3,), float(rank))
    dist.all_reduce(room, group=group, async_op=True).wait()
    assert room.tolist() == [1.0] * 3
    assert of_cpu != "hvd" or ours._get_sequence_number_for_group() == before + 1
    future = dist.all_reduce(room, group=group, async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [4.0] * 3
    everything = [None, None]
    dist.all_gather_object(everything, rank, group=group)
    assert everything == [0, 1]
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), float(rank)), 1 - rank, group),
                                        dist.P2POp(dist.irecv, room[:2], 1 - rank, group)]):
        work.wait()
    assert room.tolist() == [1.0 - rank] * 2 + [2.0]
    dist.barrier(group=group)
    group.monitored_barrier()
    if of_cpu == "hvd":
        with pytest.raises(DistributedError, match="ranks disagree on shape"):
            dist.all_reduce(torch.zeros(3 + rank), group=group)


def test_backends_are_given_by_device(ranks, tmp_path):
    """Without a GPU the tensors are the host's; which backend a device has is asked for all the same."""
    ranks(2, check_devices, str(tmp_path))


def check_split_groups() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    rank = dist.get_rank()

    def summed(group: object) -> float:
        room = torch.full((3,), float(rank))
        dist.all_reduce(room, group=group)
        return float(room[0])
    pair = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    assert dist.get_process_group_ranks(pair) == [rank % 2, rank % 2 + 2] and dist.get_rank(pair) == rank // 2
    assert summed(pair) == (2.0, 4.0)[rank % 2] and dist.get_backend(pair) == "hvd"
    one = dist.split_group(pair, [[1]])  # of each pair
    assert (one is dist.GroupMember.NON_GROUP_MEMBER) == (rank < 2)
    assert rank < 2 or summed(one) == rank
    three = dist.split_group(split_ranks=[[0, 1, 3]], backend="hvd", group_desc="three of four")
    if rank != 2:
        assert summed(three) == 4.0 and three.group_desc == "three of four"
        everything: list = [None] * 3
        dist.all_gather_object(everything, rank, group=three)
        assert everything == [0, 1, 3]
        dist.destroy_process_group(three)
    with pytest.raises(ValueError, match=r"ascending order, not \[.*\]"):
        dist.split_group(split_ranks=[[2, 0], [3, 1]])
    assert summed(dist.new_group([0, 1, 2, 3])) == summed(None) == 6.0
    dist.destroy_process_group()


def test_a_group_is_split(ranks):
    ranks(4, check_split_groups)


def check_death(kind: str) -> str:
    import os
    import signal

    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # hvdrun's, which may be faster than what is to be heard
    dist.init_process_group("hvd")
    if dist.get_rank() == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    room = torch.ones(3)
    work = dist.all_reduce(room, async_op=True) if kind != "recv" else dist.irecv(room, 1)
    future = work.get_future() if kind == "future" else None
    try:
        future.wait() if future is not None else work.wait()
    except RuntimeError as error:
        assert not work.is_success() and work.exception() is not None
        print("heard:", error, flush=True)
        return str(error)
    raise AssertionError("the wait did not fail")


@pytest.mark.parametrize("kind", ["wait", pytest.param("future", marks=pytest.mark.nightly),
                                  pytest.param("recv", marks=pytest.mark.nightly)])
def test_a_killed_rank_is_named_by_the_others_waits(ranks, kind, tmp_path):
    script = tmp_path / "death.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
                      f"import test_distributed; test_distributed.check_death({kind!r})\n")
    done = ranks.run(2, str(script))
    assert done.returncode != 0
    heard = [line for line in (done.stdout + done.stderr).splitlines() if "heard:" in line]
    assert len(heard) == 1 and "rank 1 (pid " in heard[0] and "killed by signal 9" in heard[0], done.stdout + done.stderr


ENDS_UNDER_A_CALLBACK = """
import time
import torch
import torch.distributed as dist
import hvd.torch
dist.init_process_group("hvd")
future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
future.then(lambda _: (time.sleep(0.3), print("called back", flush=True)))
future.wait()
"""


def test_an_interpreter_ends_after_the_callbacks_of_futures(ranks, tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(ENDS_UNDER_A_CALLBACK)
    done = ranks.run(2, str(script))
    assert done.returncode == 0 and done.stdout.count("called back") == 2, done.stdout + done.stderr


def check_callbacks_that_wait() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")

    def summed(value: float, then: object = None) -> float:
        room = torch.full((4,), value)
        future = dist.all_reduce(room, async_op=True).get_future()
        return float((future if then is None else future.then(then)).wait()[0][0])

    def waits(future: object) -> list[torch.Tensor]:
        work = dist.all_reduce(future.value()[0], async_op=True)
        work.get_future()
        work.wait()
        return work.result()

    assert summed(1.0, lambda future: [torch.tensor([summed(float(future.value()[0][0]), waits)])]) == 8.0
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(4)]
    futures = [work.get_future().then(lambda future: [torch.tensor([summed(1.0)])]) for work in works]
    assert [float(future.wait()[0][0]) for future in futures] == [2.0] * 4
    dist.destroy_process_group()


def test_callbacks_of_futures_may_wait_for_other_futures_as_powersgd_does(ranks):
    ranks(2, check_callbacks_that_wait)


def check_what_is_over_has_its_future() -> None:
    """As DDP's reducer reads the number of joined ranks: it waits for the work, then takes its future's value at once."""
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    for number in range(500):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future()
        itself = future.then(lambda _, work=work: work.wait())
        while number % 2 and not work.is_completed():
            pass
        work.wait()
        assert future.done() and future.value()[0].item() == 2.0, number
        assert itself.wait()
    dist.destroy_process_group()


def test_a_work_is_over_when_its_future_is_complete(ranks):
    ranks(2, check_what_is_over_has_its_future)


def check_futures_that_wait_for_others() -> None:
    import threading

    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    from hvd.torch import _work
    _work._PATIENCE_S = 0.05  # a second, for each of the waits here that no thread can know of
    dist.init_process_group("hvd")

    def started(count: int) -> list:
        return [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(count)]
    other = 1 - dist.get_rank()

    def futures_of_receipts(count: int) -> list:
        return [dist.irecv(torch.zeros(2), other).get_future() for _ in range(count)]

    def send(count: int) -> None:
        dist.barrier()  # every callback is there: that of a future which is complete runs in the thread that gives it
        for _ in range(count):
            dist.send(torch.ones(2), other)
    future, = futures_of_receipts(1)
    may_begin = threading.Event()
    waits = future.then(lambda _: may_begin.wait() and later.wait())  # of a future that the callback has not asked for
    send(1)
    later = started(1)[0].get_future()
    may_begin.set()
    waits.wait()
    works = started(5)
    for work in works:
        while not work.is_completed():
            pass
    works = started(5)
    dist.barrier()
    futures = [work.get_future() for work in works]  # all over by now
    for waits in [futures[at].then(lambda _, at=at: futures[at + 1].wait()) for at in range(4)]:
        waits.wait()
    called = threading.Event()  # by who waits for a future, while a callback of another waits for that
    futures = futures_of_receipts(2)
    waits = futures[0].then(lambda _: called.wait())
    send(2)
    futures[1].wait()
    called.set()
    waits.wait()
    for number in range(300):
        work, = started(1)
        work.get_future().wait()
        assert work.is_completed() and work.is_success(), number
    dist.destroy_process_group()


def test_a_callback_may_wait_for_any_future(ranks):
    ranks(2, check_futures_that_wait_for_others)


def check_threads() -> None:
    import threading

    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    from hvd import _native, _ops, _session
    dist.init_process_group("hvd")
    failures: list[Exception] = []

    def of_one(work: object) -> None:
        try:
            work()
        except Exception as error:  # pylint: disable=broad-exception-caught
            failures.append(error)

    def together(*works: object) -> list[threading.Thread]:
        threads = [threading.Thread(target=of_one, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        return threads
    for _ in range(10):  # the first ops of a group, which wait until it is there
        group = dist.new_group([0, 1])
        numbers: list[int] = []
        for thread in together(*[lambda group=group, numbers=numbers: numbers.append(group._number())] * 4):
            thread.join()
        assert len(set(numbers)) == 1 and numbers[0] > 0, numbers
        dist.destroy_process_group(group)
    for number in range(60):  # one thread waits, another needs room for its ops
        tensor = torch.full((4,), float(number))
        work = dist.all_reduce(tensor, async_op=True)
        if number % 2:
            work.get_future()
        thread, = together(work.wait)
        while thread.is_alive():
            _ops._make_room(_session.current(), _native.ERR_RING_FULL)
        assert not failures and tensor.tolist() == [2.0 * number] * 4, (number, failures)
    dist.destroy_process_group()


def test_threads_may_look_at_each_others_ops(ranks):
    ranks(2, check_threads)


def check_barriers() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    rank = dist.get_rank()
    lists, columns = [], []
    for number in range(20):
        columns.append(torch.full((3, 2), float(number)))
        lists.append([torch.zeros(2), torch.zeros(2)])
        dist.all_reduce(columns[-1][:, 0], async_op=True)
        dist.all_gather(lists[-1], torch.full((2,), float(number + rank)), async_op=True)
    received = torch.zeros(1)
    message = dist.irecv(received, 1 - rank)
    if rank == 0:
        dist.barrier()
    else:  # as a future, and after a look
        work = dist.barrier(async_op=True)
        work.is_completed()
        work.get_future().wait()
    assert [column[0].tolist() for column in columns] == [[2.0 * number, number] for number in range(20)]
    assert [part[0].item() for pair in lists for part in pair] == [number + rank for number in range(20) for rank in (0, 1)]
    dist.send(torch.ones(1), 1 - rank)  # after the barrier, which does not wait for the message
    message.wait()
    assert received.item() == 1.0
    group = dist.distributed_c10d._get_default_group()
    assert not group._under_way
    check_failed_end_before_barrier(group)
    check_late_before_barrier(group)
    check_barrier_in_handler(group)
    dist.destroy_process_group()


def check_failed_end_before_barrier(group) -> None:
    import torch.distributed as dist
    dist.all_reduce(torch.ones(1).expand(4), async_op=True)  # the copy at its end fails
    group.start_coalescing()
    group.barrier()
    whole = group.end_coalescing()
    assert len(whole.before) == 1
    whole.wait()
    assert not group._under_way
    dist.all_reduce(torch.ones(1).expand(4), async_op=True)
    dist.barrier()


def check_late_before_barrier(group) -> None:
    """Rank 1 calls an all_reduce after all else: rank 0 keeps little meanwhile, and knows what it waits for."""
    from datetime import timedelta

    import torch.distributed as dist

    from hvd._native import lib
    if dist.get_rank() == 1:
        for _ in range(100):
            dist.broadcast(torch.ones(1), 0)
        for _ in range(2):
            dist.barrier()
        dist.all_reduce(torch.ones(1))
        return
    late = dist.all_reduce(torch.ones(1), async_op=True)
    for _ in range(100):
        lib.hvd_wait(dist.broadcast(torch.ones(1), 0, async_op=True).ops[0].pointer, -1)
        assert len(group._under_way) <= 10
    barrier = dist.barrier(async_op=True)
    lib.hvd_wait(barrier.ops[0].pointer, -1)
    with pytest.raises(RuntimeError, match="barrier: .*has not called the all_reduce before it"):
        barrier.wait(timedelta(milliseconds=1))
    with pytest.raises(RuntimeError, match="all_reduce: .*has not called it"):
        late.wait(timedelta(milliseconds=1))
    assert late not in group._under_way.values()  # no later barrier waits for it
    dist.barrier()
    late.wait()


def check_barrier_in_handler(group) -> None:
    """While the thread waits for an all_reduce, which the barrier has to wait for as well. A child that is forked meanwhile
    may look at its op."""
    import os
    import signal
    import threading
    import time

    import torch.distributed as dist
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["forked"])
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        return

    def is_taken(lock) -> bool:
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        return not free

    def interrupt() -> None:
        while not any(is_taken(op.claim) for work in list(group._under_way.values()) for op in work.ops):
            time.sleep(0.001)
        op, = next(iter(group._under_way.values())).ops
        child = os.fork()
        if child == 0:
            os._exit(0 if not is_taken(op.claim) else 1)
        statuses.append(os.waitpid(child, 0)[1])
        os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: (store.set("forked", "1"), dist.barrier(), statuses.append(0)))
    statuses: list[int] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    dist.all_reduce(torch.ones(1))
    thread.join()
    assert statuses == [0, 0]


def test_a_barrier_is_behind_collectives_whose_handles_are_dropped(ranks):
    ranks(2, check_barriers)


def check_profiled_coalescing() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    group = dist.distributed_c10d._get_default_group()
    with torch.autograd.profiler.profile():
        for number in range(20):
            outputs = [torch.zeros(4), torch.zeros(4)]
            group.start_coalescing()
            for output in outputs:
                group.alltoall_base(output, torch.full((4,), float(number)), [], [])
            group.end_coalescing().wait()
            assert torch.cat(outputs).tolist() == [float(number)] * 8
    dist.destroy_process_group()


def test_a_profiler_leaves_the_parts_of_coalesced_works_alone(ranks):
    ranks(2, check_profiled_coalescing)


def check_profiled_ends() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    for _ in range(50):
        with torch.autograd.profiler.profile() as seen:
            for _ in range(3):
                dist.all_reduce(torch.ones(4), async_op=True).wait()
        events = [event for event in seen.function_events if event.name == "hvd:all_reduce"]
        assert len(events) == 3 and all(event.is_async for event in events)  # begun here, ended by another thread
    dist.destroy_process_group()


def test_who_has_waited_may_stop_the_profiler(ranks):
    ranks(2, check_profiled_ends)


def check_events_under_way() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    store = dist.distributed_c10d._get_default_store()
    for number in range(40):
        late, stopped = torch.ones(4), f"the first profiler has stopped {number}"
        if dist.get_rank() == 1:
            store.wait([stopped])
            dist.all_reduce(late)
            continue
        with torch.autograd.profiler.profile():
            for _ in range(200):
                torch.ones(8).add_(1)
            work = dist.all_reduce(late, async_op=True)
        given_back = [bytearray(b"\x5a") * size for size in (64, 200, 400, 1600, 4000, 16000, 64000) for _ in range(20)]
        with torch.autograd.profiler.profile():
            store.set(stopped, "")
            work.wait()
        assert all(memory.count(b"\x5a") == len(memory) for memory in given_back)
        assert late.tolist() == [2.0] * 4
    dist.destroy_process_group()


def test_an_event_that_is_under_way_when_the_profiler_stops_writes_nowhere(ranks):
    ranks(2, check_events_under_way)


def check_interrupted_waits() -> None:
    import signal

    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import

    class Interrupted(Exception):
        pass

    waits = False

    def interrupt(*_: object) -> None:
        if waits:
            raise Interrupted
    dist.init_process_group("hvd")
    signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    for number in range(400):
        strided = torch.full((20000, 2), float(dist.get_rank() + 1))[:, 0]  # has to be copied back
        work = dist.all_reduce(strided, async_op=True)
        if number % 2:
            work.get_future()
        signal.setitimer(signal.ITIMER_REAL, (1 + number % 60) * 1e-5)  # once
        try:
            waits = True
            work.wait()
            waits = False
        except Interrupted:
            waits = False
            interrupted += 1
            work.wait()
        assert bool((strided == 3).all())
    assert interrupted
    dist.destroy_process_group()


def test_a_wait_that_a_signal_handler_has_interrupted_is_waited_again(ranks):
    ranks(2, check_interrupted_waits)


def check_messages_of_one_tensor() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    message, answer = torch.zeros(4), torch.zeros(1)

    def tell(number: int) -> None:
        message.fill_(number)
        sent = dist.isend(message, 1)
        dist.recv(answer, 1)
        del sent  # it has been received, so it needs no wait
    for number in range(50):
        if dist.get_rank() == 0:
            tell(number)
        else:
            dist.recv(message, 0)
            assert message.tolist() == [number] * 4
            dist.send(answer, 0)
    dist.destroy_process_group()


def test_a_tensor_may_be_sent_again_and_again_without_a_wait(ranks):
    ranks(2, check_messages_of_one_tensor)


def check_monitored_barriers() -> None:
    from datetime import timedelta

    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    group, store, rank = dist.distributed_c10d._get_default_group(), dist.distributed_c10d._get_default_store(), dist.get_rank()
    store.wait([f"rank {other} has failed" for other in range(rank)])
    with pytest.raises(RuntimeError, match="did not"):
        group.monitored_barrier(timedelta(seconds=0.1))
    store.set(f"rank {rank} has failed", "")
    store.wait(["rank 0 has failed", "rank 1 has failed"])
    for _ in range(3):
        group.monitored_barrier(timedelta(seconds=30))
    dist.destroy_process_group()


def test_a_monitored_barrier_that_has_failed_leaves_nothing_to_the_next(ranks):
    ranks(2, check_monitored_barriers)


def check_messages_that_are_taken_back() -> None:
    import torch
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")
    group, rank = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")), dist.get_rank()
    for start in (group.send, group.recv):
        for _ in range(20):
            work = start([torch.zeros(1)], 1 - rank, 7)
            work.take_back()
            assert work.done and "cancelled" in str(work.error)
        dist.barrier()
    dist.destroy_process_group()


def test_a_message_that_was_taken_back_is_over(ranks):
    ranks(2, check_messages_that_are_taken_back)


def check_results_while_closing() -> None:
    import threading

    import torch.distributed as dist

    import hvd.torch
    from hvd import _native
    dist.init_process_group("hvd")
    reads, may_go_on, copy = threading.Event(), threading.Event(), _native.copy_bytes

    def slowly(*arguments):
        reads.set()
        assert may_go_on.wait(30)
        copy(*arguments)
    _native.copy_bytes = slowly
    sparse = torch.sparse_coo_tensor([[0, 3]], torch.ones(2), (4,)).coalesce()
    future = dist.all_reduce(sparse, async_op=True).get_future()
    assert reads.wait(30)
    closing = threading.Thread(target=hvd.torch.shutdown)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()  # the result lies in the session's memory
    may_go_on.set()
    with pytest.raises(RuntimeError, match="has been shut down"):  # of the values, after the indices
        future.wait()
    closing.join(30)
    assert not closing.is_alive()


def test_a_session_is_not_closed_while_a_result_is_read(ranks):
    ranks(2, check_results_while_closing)


def check_compiled() -> None:
    import torch.distributed as dist

    import hvd.torch  # noqa: F401 pylint: disable=unused-import
    dist.init_process_group("hvd")

    def total(tensor):
        tensor = tensor * 2
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor + 1
    parameters = []
    for compiled in (lambda what: what, lambda what: torch.compile(what, backend="aot_eager")):
        assert compiled(total)(torch.full((3,), dist.get_rank() + 1.0)).tolist() == [7.0] * 3
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = compiled(model)
        for number in range(4):
            torch.manual_seed(1 + number + 10 * dist.get_rank())
            optimizer.zero_grad()
            step(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        parameters.append([parameter.tolist() for parameter in model.parameters()])
    assert parameters[0] == parameters[1]
    dist.destroy_process_group()


def test_compiled_programs_give_the_same_numbers(ranks):
    ranks(2, check_compiled)


def check_late_waits() -> None:
    import torch.distributed as dist

    import hvd.torch as hvd
    from hvd._native import lib
    dist.init_process_group("hvd")
    failed = dist.all_reduce(torch.ones(3 + dist.get_rank()), async_op=True)
    assert lib.hvd_wait(failed.ops[0].pointer, -1) < 0
    lost = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() == 0 else None
    failed._wait_here(0.0)  # no time is left, and yet the op is finished
    with pytest.raises(RuntimeError, match="shape"):
        failed.wait()
    hvd.shutdown()
    if lost is not None:
        lost._wait_here(0.0)
        with pytest.raises(RuntimeError, match="shut down"):
            lost.wait()


def test_a_wait_that_comes_late_tells_a_failure(ranks):
    ranks(2, check_late_waits)


def check_two_identities(store: str) -> None:
    import torch.distributed as dist

    import hvd.torch as hvd
    hvd.init()
    with pytest.raises(RuntimeError, match="is rank . of 2 for torch, but hvd.init.. has made it rank . of 2"):
        dist.init_process_group("hvd", init_method=f"file://{store}", rank=1 - hvd.rank(), world_size=2)


def test_two_launchers_that_disagree_are_told(ranks, tmp_path):
    ranks(2, check_two_identities, str(tmp_path / "store"))


def test_torch_knows_the_backend_as_soon_as_hvd_torch_is_imported():
    import hvd.torch
    assert "hvd" in torch.distributed.Backend.backend_list
    hvd.torch.distributed.register()
