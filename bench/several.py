# SPDX-License-Identifier: Apache-2.0
"""Runs on several nodes, which are namespaces of this machine (tests/harness/hvt/nodes.py): hvdd by hvdrun -H, the peers by
launchers of their own over ssh, the bare ring (ring_limit.c) and iperf3. Each run has new nodes."""
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import measures
from measures import Measure, Setting

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 120  # of one run
BEAT_MS = 300  # that of engines: ENGINE_MESH_BEAT_NS in daemon/engine/mesh/link.h
SETTLE_S = 5  # attaching is over, and what an engine looks at for 4 s after small ops (docs/design/threads.md)
PORT = 29500
START_CORES = 2  # for all nodes of a start
HUGE_PAGES = {"BENCH_HUGE_PAGES": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # mpi_bench's buffers; large malloc()s of anybody
Commands = list[tuple[Any, list[str], dict[str, str]]]  # node, command line, what it adds to the node's environment


class Failed(Exception):
    """A run that gave no figure; the text says why."""


def rows_in(text: str) -> list[dict]:
    """The JSON objects that a program has printed, with whatever a launcher puts before them."""
    return [json.loads(line[line.index("{"):]) for line in text.splitlines() if '{"op"' in line]


def why_failed(code: int, text: str) -> str:
    """The last lines of what was said."""
    said = [line for line in text.splitlines() if line.strip()]
    return f"exit status {code}: {' / '.join(said[-3:])[:400]}"


class Outputs:
    """Processes on nodes, and the files that their output goes to."""

    def __init__(self, folder: pathlib.Path, commands: Commands) -> None:
        self.paths = [folder / f"out.{number}" for number in range(len(commands))]
        self.processes = []
        for path, (node, command, more) in zip(self.paths, commands):
            with path.open("wb") as out, path.with_suffix(".err").open("wb") as err:
                self.processes.append(node.popen(command, env=node.environment() | more, stdout=out, stderr=err))

    def text(self, number: int = 0) -> str:
        """Its output so far, then its errors."""
        return "".join(path.read_text(encoding="utf-8", errors="replace")
                       for path in (self.paths[number].with_suffix(".err"), self.paths[number]))

    def rows(self, limit_s: float = LIMIT_S) -> list[dict]:
        """Of the first process, when all have ended well. Raises Failed."""
        deadline = time.monotonic() + limit_s
        for number, process in enumerate(self.processes):
            try:
                code = process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired as error:
                raise Failed(f"no result within {limit_s:g} s: {self.text(number)[-300:]}") from error
            if code != 0:
                raise Failed(why_failed(code, self.text(number)))
        rows = rows_in(self.paths[0].read_text(encoding="utf-8", errors="replace"))
        if not rows:
            raise Failed(f"no figure: {why_failed(0, self.text())}")
        return rows

    def first_row(self) -> dict:
        """As soon as it is printed."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            text = self.paths[0].read_text(encoding="utf-8", errors="replace")
            if '{"op"' in text and text.endswith("\n"):
                return rows_in(text)[0]
            if self.processes[0].poll() not in (None, 0):
                raise Failed(why_failed(self.processes[0].returncode, self.text()))
            time.sleep(0.002)
        raise Failed(f"no result within {LIMIT_S} s")


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """What is started inside has so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def hosts_of(measure: Measure) -> str:
    """For -H."""
    return ",".join(f"n{number}:{measure.np // measure.nodes}" for number in range(1, measure.nodes + 1))


class Several:
    """hvdd, the peers and what stands beside them, on nodes."""

    def __init__(self, binaries: pathlib.Path, cache: pathlib.Path, cpu_ns: Callable[[int], int],
                 extras: Callable[[Measure, str], list[str]], tuned: bool = True) -> None:
        self.pages = HUGE_PAGES if tuned else {}
        self.binaries, self.cache = binaries.resolve(), cache.resolve()
        self.cpu_ns, self.extras = cpu_ns, extras
        os.environ.setdefault("HVD_BUILD_DIR", str(self.binaries.parent))
        sys.path.append(str(HERE.parent / "tests/harness"))
        from hvt import nodes  # pylint: disable=import-outside-toplevel  # which needs a build and, to make nodes, root
        if nodes.missing():
            raise SystemExit(f"run.py: no nodes: {nodes.missing()}")
        self._make: Callable[..., Any] = nodes.Nodes

    def nodes(self, count: int) -> Any:
        """New ones."""
        return self._make(count, ssh=True, share=[self.cache, self.binaries.parent, HERE.parent])

    def run(self, measure: Measure, commands: Callable[[Any], Commands], leaves: bool = False,
            limit_s: float = LIMIT_S) -> list[dict]:
        """The rows that the first of the commands prints; `leaves`: it may leave processes behind. Failed."""
        try:
            with self.nodes(measure.nodes) as nodes:
                rows = Outputs(nodes.shared, commands(nodes)).rows(limit_s)
                if leaves:
                    for node in nodes:
                        node.kill_all()
                return rows
        except AssertionError as error:
            raise Failed(str(error)) from error

    # ---- hvdd ----

    def ours(self, measure: Measure, memory: str, seconds: float) -> list[dict]:
        """Rows; first of hvdd, then what it is compared with. Failed."""
        how = {"idle": self._idle, "start": self._start, "first": self._first}.get(measure.op, self._usual)
        try:
            return how(measure, memory, seconds)
        except Failed as error:
            refusal = self._refusal(measure)
            raise Failed(f"not possible yet: {refusal}" if refusal else str(error)) from error

    def _refusal(self, measure: Measure) -> str:
        """What is said where not even the smallest job can be on several nodes."""
        with self.nodes(measure.nodes) as nodes:
            done = nodes[0].run([self.binaries / "hvdrun", "-np", str(measure.nodes), "-H",
                                 ",".join(f"{node.name}:1" for node in nodes), "--no-prefix", self.binaries / "hvd-perf", "-b", "4",
                                 "-e", "4", "-i", "1", "-w", "0"], timeout=LIMIT_S)
            for node in nodes:
                node.kill_all()
        said = (done.stderr or done.stdout).strip().splitlines()
        return "" if done.returncode == 0 else said[0] if said else f"exit status {done.returncode}"

    def _hvdrun(self, measure: Measure, *program: str) -> Callable[[Any], Commands]:
        hosts = ["-H", hosts_of(measure)] if measure.nodes > 1 else []
        command = [str(self.binaries / "hvdrun"), "-np", str(measure.np), *hosts, "--no-prefix", *program]
        return lambda nodes: [(nodes[0], command, {})]

    def _perf(self, measure: Measure, memory: str, *more: str) -> Callable[[Any], Commands]:
        op = "allreduce" if measure.op in ("start", "first") else measure.op
        barrier = [] if measure.barrier else ["--no-barrier"]
        size = str(measure.size)
        return self._hvdrun(measure, str(self.binaries / "hvd-perf"), "-o", op, "-m", memory, "-b", size, "-e", size, "--json",
                            *barrier, *more)

    def _usual(self, measure: Measure, memory: str, seconds: float) -> list[dict]:
        if memory == "python":
            place = self.cache / measures.place_of(memory)
            command = self._hvdrun(measure, str(place / "bin/python"), str(HERE / "peers/hvd_bench.py"), measure.op,
                                   str(HERE / "resnet50.sizes"), str(seconds))
            more = {"HVD_LIBRARY": str(self.binaries.parent / "lib/libhvdclient.so.0"), "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(HERE.parent / "python")}
            return self.run(measure, lambda nodes: [(node, words, more) for node, words, _ in command(nodes)])
        self.run(measure, self._perf(measure, memory, "-i", "1", "-w", "0", "-c"))
        return self.run(measure, self._perf(measure, memory, "--seconds", str(seconds)))

    def _first(self, measure: Measure, memory: str, seconds: float) -> list[dict]:
        """Ops each of which is the first of its name, and beside them the same op when it is replayed."""
        for names in (["--new-names"], []):
            self.run(measure, self._perf(measure, memory, *names, "-i", "3", "-w", "0", "-c"))
        first = self.run(measure, self._perf(measure, memory, "--new-names", "--seconds", str(seconds)))[0]
        replayed = self.run(measure, self._perf(measure, memory, "--seconds", str(seconds)))[0]
        return [first | {"op": "first"}, replayed | {"op": "replayed"}]

    def _start(self, measure: Measure, memory: str, _seconds: float) -> list[dict]:
        """From hvdrun to the result of one op."""
        self.run(measure, self._perf(measure, memory, "-i", "1", "-w", "0", "-c"))
        with on_cores(START_CORES), self.nodes(measure.nodes) as nodes:
            began_ns = time.monotonic_ns()
            outputs = Outputs(nodes.shared, self._perf(measure, memory, "-i", "1", "-w", "0")(nodes))
            outputs.first_row()
            took_us = (time.monotonic_ns() - began_ns) / 1e3
            outputs.rows()
        return [{"op": "start", "bytes": measure.size, "np": measure.np, "time_us": took_us}]

    def _idle(self, measure: Measure, _memory: str, seconds: float) -> list[dict]:
        """CPU share of the engine that takes most while its ranks do nothing, of one of a job on one node, and of two processes
        that exchange beats."""
        rest_s = max(seconds * 8, 2)
        one_node = dataclasses.replace(measure, nodes=1, np=measure.np // measure.nodes)
        return [self._idle_engine(measure, rest_s), self._idle_engine(one_node, rest_s) | {"op": "one-node"},
                self.run(measure, lambda nodes: self._limit(nodes, measure, rest_s, "--beats", str(BEAT_MS)))[0]]

    def _idle_engine(self, measure: Measure, rest_s: float) -> dict:
        with self.nodes(max(measure.nodes, 2)) as nodes:  # a cable has two ends
            program = [str(self.binaries / "hvd-perf"), "--idle", str(SETTLE_S + rest_s + 1)]
            outputs = Outputs(nodes.shared, self._hvdrun(measure, *program)(nodes))
            deadline = time.monotonic() + LIMIT_S
            while "idle" not in outputs.text() and outputs.processes[0].poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(SETTLE_S)
            engines = [pid for node in nodes for pid, line in node.processes().items() if "hvdd-engine" in line.split(" ")[0]]
            if len(engines) != measure.nodes:
                raise Failed(f"there are {len(engines)} engines on {measure.nodes} nodes: {outputs.text()[-300:]}")
            before, began_ns = [self.cpu_ns(pid) for pid in engines], time.monotonic_ns()
            time.sleep(rest_s)
            used_ns = max(self.cpu_ns(pid) - start for pid, start in zip(engines, before))
            took_ns = time.monotonic_ns() - began_ns
            if outputs.processes[0].wait(LIMIT_S) != 0:
                raise Failed(why_failed(outputs.processes[0].returncode, outputs.text()))
        return {"op": "idle", "np": measure.np, "cpu_percent": round(100 * used_ns / took_ns, 4)}

    # ---- peers ----

    def peer(self, peer: str, measure: Measure, setting: Setting, seconds: float, limit_s: float = LIMIT_S) -> list[dict]:
        """Rows. Failed."""
        return self.run(measure, lambda nodes: self.peer_commands(nodes, peer, measure, setting, seconds), True, limit_s)

    def peer_commands(self, nodes: Any, peer: str, measure: Measure, setting: Setting, seconds: float) -> Commands:
        """Command lines and environments."""
        place = self.cache / measures.place_of(peer)
        more = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | self.pages | setting.environment
        op = "gradients" if measure.op == "hooks" else measure.op
        bench = [op, str(HERE / "resnet50.sizes") if op == "gradients" else str(measure.size), str(seconds)]
        each = measure.np // measure.nodes
        part = [str(HERE / "peers/part.py"), str(measure.nodes)] if "BENCH_PARTS" in setting.environment else []
        if peer == "openmpi":
            given = [word for name in self.pages for word in ("-x", name)]
            return [(nodes[0], [str(place / "bin/mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-H",
                                hosts_of(measure), "-np", str(measure.np), *given, *setting.arguments, *part, str(place / "mpi_bench"), *bench,
                                *self.extras(measure, "")], more)]
        if peer == "impi":
            more |= {"I_MPI_ROOT": str(place), "LD_LIBRARY_PATH": str(place / "lib"), "I_MPI_PIN": "0", "FI_PROVIDER": "tcp",
                     "I_MPI_FABRICS": "shm:ofi" if each > 1 else "ofi", "FI_TCP_IFACE": "eth0", "I_MPI_HYDRA_IFACE": "eth0"}
            return [(nodes[0], [str(place / "bin/mpirun"), "-bootstrap", "ssh", "-hosts", ",".join(node.name for node in nodes),
                                "-ppn", str(each), "-np", str(measure.np), *part, str(place / "mpi_bench"), *bench,
                                *self.extras(measure, "")], more)]
        if peer in ("torch", "torch-ddp"):
            bench[0] = "ddp" if peer == "torch-ddp" else bench[0]
            return [(node, [*part, str(place / "bin/python"), "-m", "torch.distributed.run", "--nnodes", str(measure.nodes), "--node-rank",
                            str(node.number - 1), "--nproc-per-node", str(each), "--master-addr", nodes[0].address, "--master-port",
                            str(PORT), str(HERE / "peers/torch_bench.py"), *bench, *self.extras(measure, "--")],
                     more | {"GLOO_SOCKET_IFNAME": "eth0"}) for node in nodes]
        return [(nodes[0], [str(place / "bin/horovodrun"), "--gloo", "--network-interfaces", "eth0", "-np", str(measure.np), "-H",
                            hosts_of(measure), *part, str(place / "bin/python"), str(HERE / "peers/horovod_bench.py"), *bench,
                            *self.extras(measure, "--")], more | {"HOROVOD_GLOO_IFACE": "eth0"})]

    # ---- what stands beside them ----

    def beside(self, measure: Measure, seconds: float, with_iperf3: bool) -> Iterator[tuple[str, dict]]:
        """(who, row) of the bare ring over one and two connections, and of iperf3. Failed."""
        for parts in (False, True) if "ring-1" in measure.beside else ():  # the faster way counts, as of a peer
            for row in self.run(measure, lambda nodes, parts=parts: self._ring(nodes, measure, seconds, parts)):
                yield f"ring-{row['connections']}", row | {"parts": parts}
        if "iperf3" in measure.beside and with_iperf3:
            yield "iperf3", self._iperf3(measure, seconds)

    def _ring(self, nodes: Any, measure: Measure, seconds: float, parts: bool) -> Commands:
        """With the cores divided among the nodes, as hvdrun divides them, or not."""
        size = measure.size or measures.GRADIENT_BYTES
        part = [str(HERE / "peers/part.py"), str(measure.nodes)] if parts else []
        return [(node, [*part, *command], more)
                for node, command, more in self._limit(nodes, measure, seconds, str(size))]

    def _limit(self, nodes: Any, measure: Measure, seconds: float, *more: str) -> Commands:
        return [(node, [str(self.cache / "ring_limit"), "--rank", str(node.number - 1), "--addresses",
                        ",".join(each.address for each in nodes), "--locals", str(measure.np // measure.nodes), "--seconds",
                        str(seconds), *more], {}) for node in nodes]

    def _iperf3(self, measure: Measure, seconds: float) -> dict:
        """The time in which it moves as many bytes both ways at once as a ring of two nodes has to."""
        program = str(self.cache / "iperf3/bin/iperf3")
        with self.nodes(measure.nodes) as nodes:
            server = nodes[1].popen([program, "-s", "-1"], stdout=subprocess.DEVNULL)
            for _ in range(100):
                if nodes[1].sockets():
                    break
                time.sleep(0.02)
            done = nodes[0].run([program, "-c", nodes[1].address, "-t", str(max(1, round(seconds))), "-l", "256K", "--bidir",
                                 "--json"], timeout=LIMIT_S)
            server.kill()
            server.wait()
        try:
            end = json.loads(done.stdout)["end"]
            rates = [end[name]["bits_per_second"] for name in ("sum_received", "sum_received_bidir_reverse")]
        except (ValueError, KeyError) as error:
            raise Failed(why_failed(done.returncode, done.stderr + done.stdout)) from error
        return {"op": "iperf3", "bytes": measure.size, "np": measure.np, "gbit_per_s": [round(rate / 1e9, 2) for rate in rates],
                "time_us": round(8e6 * measure.size / min(rates), 3)}
