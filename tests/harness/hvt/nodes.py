# SPDX-License-Identifier: Apache-2.0
"""Several machines on one: nodes are namespaces with a cable between them, and the cable can be cut.

    with Nodes(2, ssh=True) as nodes:
        n1, n2 = nodes
        n1.run(["ssh", "n2", "hostname"])
        n2.cut()

A node has its own network, host name, processes, System V memory, /tmp, /run, /dev/shm, home directory and /etc/hosts, so that
nothing works by accident. It shares the other files of the machine with the other nodes, as machines with a network file
system do, and `nodes.shared`. Nothing of it has a name on this machine but one directory; the rest goes when the test goes, however
that ends, since each node's init ends when its pipe to the test does. The directory of a test that was killed is removed by
the next test.
"""
import contextlib
import fcntl
import functools
import os
import pathlib
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hvt import namespaces, procs, sockets
from hvt.build import BUILD, SOURCE, scaled
from hvt.environment import clean_environment
from hvt.namespaces import Inside, mount
from hvt.wait import wait_until

T = TypeVar("T")

SSH_PORT = 22
_PREFIX = "hvt-nodes-"
_PRIVATE = ("/tmp", "/run", "/dev/shm")
_ALL = (namespaces.NEW_FS | namespaces.NEW_MOUNT | namespaces.NEW_UTS | namespaces.NEW_IPC | namespaces.NEW_PID
        | namespaces.NEW_NET)
# What the kernel needs to run a node at all, without this module.
PROBE = ("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
         "PATH=$PATH:/usr/sbin:/sbin; ip link add n1 type veth peer name n2 && tc -V && nft add table inet t && "
         "ip -6 addr add fd00::1/64 dev lo && mount -t tmpfs tmpfs /run && mount -t sysfs sysfs /sys")
_INIT = pathlib.Path(__file__).with_name("node_init.py")


@functools.cache
def missing() -> str:
    """Why this process cannot make nodes; "" if it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    try:
        done = subprocess.run(PROBE, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        return str(error)
    return f"no namespaces here: {done.stderr.strip()[-200:]}" if done.returncode != 0 else ""


def _under(path: pathlib.Path, folder: str) -> bool:
    return pathlib.Path(folder) in (path, *path.parents)


_NETWORK = "10.77.1"
SECOND_NETWORK = "10.77.2"

# What makes the jobs of a test go over UCX; $HVT_TRANSPORT makes those of all tests.
UCX = {"HVD_NET_TRANSPORT": "ucx", "HVD_TRUSTED_NETWORKS": f"{_NETWORK}.0/24,{SECOND_NETWORK}.0/24,fd00:77::/64"}


def _transport() -> dict[str, str]:
    return UCX if os.environ.get("HVT_TRANSPORT") == "ucx" else {}


def complaints(text: str) -> str:
    """What programs have written, but for the warning that UCX has TCP alone, as on all of these nodes."""
    return "".join(line for line in text.splitlines(keepends=True) if " net ucx-tcp: " not in line)


class Node:
    """One machine. `Nodes` makes it; `number` counts from 1."""

    def __init__(self, nodes: "Nodes", number: int, host_name: str):
        self.number = number
        self.name = f"n{number}"
        self.host_name = host_name
        self.address = f"{_NETWORK}.{number}"
        self.address6 = f"fd00:77::{number}"
        self.second_address = f"{SECOND_NETWORK}.{number}"  # on eth1, after Nodes.add_network
        self.mac = f"02:00:00:77:01:{number:02x}"  # the same again after a restart, as a machine's
        self.token = nodes.token
        self.folder = nodes.folder / self.name  # the test's and this node's, under the same path; the others do not see it
        self.home = self.folder / "home"
        self.hosts = self.folder / "hosts"  # its /etc/hosts
        self.sshd: subprocess.Popen[bytes] | None = None
        self._nodes = nodes
        self._started: list[subprocess.Popen[Any]] = []
        self._rules: list[tuple[str, str]] = []
        self._usual: set[str] = set()
        self._inside: Inside | None = None
        self._init: subprocess.Popen[bytes] | None = None

    def addresses(self) -> list[str]:
        """Of the families that these nodes have."""
        return [{4: self.address, 6: self.address6}[family] for family in self._nodes.families]

    # ---- life -------------------------------------------------------------------------------------------------------

    def write_files(self, hosts: str) -> None:
        """Before it starts."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        # as Debian's installer does
        self.hosts.write_text(hosts + f"127.0.1.1 {self.host_name}\n" * (self.host_name != self.name), encoding="utf-8")
        mine = pwd.getpwuid(os.geteuid())
        lines = pathlib.Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
        moved = [line if line.split(":")[0] != mine.pw_name else ":".join([*line.split(":")[:5], str(self.home), mine.pw_shell])
                 for line in lines]
        (self.folder / "passwd").write_text("\n".join(moved) + "\n", encoding="utf-8")

    def start(self) -> None:
        """The namespaces and the init, which is not ready yet."""
        self._inside = Inside(self.name, _ALL)
        self._inside.call(self._furnish)
        self._init = self._inside.call(subprocess.Popen, [sys.executable, "-I", "-S", str(_INIT)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, start_new_session=True, cwd="/")

    def _furnish(self) -> None:
        mount("none", "/", None, namespaces.RECURSIVE | namespaces.PRIVATE)
        hidden = [*_PRIVATE, str(self._nodes.folder)]
        kept = {path: os.open(path, os.O_PATH) for path in {self.folder, *self._nodes.visible}
                if any(_under(path, folder) for folder in hidden) and path.is_dir()}
        control = "/sys/fs/cgroup"
        if os.path.isdir(control):
            kept[pathlib.Path(control)] = os.open(control, os.O_PATH)
        for folder in hidden:
            os.makedirs(folder, exist_ok=True)  # that of all nodes may be in a /tmp that is hidden now
            mount("tmpfs", folder, "tmpfs", 0, "mode=1777" if folder != "/run" else "mode=755")
        mount("sysfs", "/sys", "sysfs")  # which has this network's devices, but no cgroups
        for path, descriptor in kept.items():
            os.makedirs(path, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", str(path), None, namespaces.BIND | namespaces.RECURSIVE)
            os.close(descriptor)
        for name in ("hosts", "passwd"):
            mount(str(self.folder / name), f"/etc/{name}", None, namespaces.BIND)
        os.makedirs("/run/sshd", mode=0o755)
        os.makedirs(self.runtime, mode=0o700)
        socket.sethostname(self.host_name)

    def await_init(self) -> None:
        """Until processes can be started and the network be set up."""
        ready = self._init.stdout.read(5)
        assert ready == b"ready", f"the init of {self.name} ended with {self._init.wait(scaled(5))}"
        self._usual = set(self._all_files())

    def set_up_network(self) -> None:
        """When eth0 is there."""
        self.call(_keep_addresses)
        lines = {4: f"addr add {self.address}/24 dev eth0", 6: f"addr add {self.address6}/64 dev eth0 nodad"}
        self.ip("link set lo up", "link set eth0 up", *(lines[family] for family in self._nodes.families))

    def end(self) -> None:
        """Kills whatever runs in it; its namespaces end."""
        if self._init:
            self._init.stdin.close()
            self._init.kill()
        for process in self._started:  # the init ends last, after its parent, the test, has reaped these
            process.kill()
            process.wait(scaled(10))
        self._started.clear()
        if self._init:
            self._init.wait(scaled(10))
            self._init.stdout.close()
        if self._inside:
            self._inside.close()
        self._init = self._inside = self.sshd = None
        self._rules.clear()

    # ---- processes --------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Its init's pid on this machine, for nsenter(1)."""
        return self._init.pid

    def network(self) -> str:
        """A path that means its network namespace, for ip(8) on this machine."""
        return self._inside.network()

    @property
    def runtime(self) -> str:
        """XDG_RUNTIME_DIR inside."""
        return f"/run/user/{os.geteuid()}"

    def environment(self) -> dict[str, str]:
        """What a process inside gets if nothing else is said; what names a rank, a job or a daemon of this machine is not in it."""
        kept = {name: value for name, value in clean_environment().items() if name != "TMPDIR"}
        return kept | {"HOME": str(self.home), "XDG_RUNTIME_DIR": self.runtime, procs.TOKEN: self.token,
                       "HOSTNAME": self.host_name} | _transport() | self._nodes.environment(self)

    def call(self, function: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """The function's result; sockets that it opens are inside for good, also when others use them."""
        return self._inside.call(function, *arguments, **more)

    def popen(self, command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen inside; its pid is the one on this machine. It starts in the directory that all nodes share."""
        process = self.call(subprocess.Popen, [str(word) for word in command],
                            **{"env": self.environment(), "cwd": self._nodes.shared, "stdin": subprocess.DEVNULL} | more)
        self._started = [each for each in self._started if each.poll() is None] + [process]
        return process

    def run(self, command: Sequence[str], *, timeout: float | None = None, check: bool = False,
            **more: Any) -> subprocess.CompletedProcess[str]:
        """A command inside, finished; its output is text, unless said otherwise."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
        given = options.pop("input", None)
        if given is not None:
            options["stdin"] = subprocess.PIPE
        with self.popen(command, **options) as process:
            try:
                out, err = process.communicate(given, scaled(20) if timeout is None else timeout)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and done.returncode != 0:
            raise AssertionError(f"{self.name}: {' '.join(map(str, command))}: exit status {done.returncode}: {out}{err}")
        return done

    def inner_pid(self, pid: int) -> int:
        """What a process of this machine is called inside."""
        for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        raise ValueError(f"process {pid} is in no pid namespace")

    def processes(self) -> dict[int, str]:
        """pid on this machine -> command line of what runs inside, but for the init and sshd."""
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        own = {self.pid, self.sshd.pid if self.sshd else 0}
        found = {}
        for pid in procs.pids():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == mine and pid not in own and procs.state(pid) not in "ZX":
                    found[pid] = procs.cmdline(pid)
        return found

    def kill_all(self) -> None:
        """SIGKILL for everything inside, sshd too. The kernel lives on and closes the connections."""
        if self.sshd:
            self.sshd.kill()
            self.sshd.wait(scaled(5))
            self.sshd = None

        def gone() -> bool:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            return not self.processes()
        wait_until(gone, f"the processes of {self.name} to end")

    # ---- what remains -----------------------------------------------------------------------------------------------

    def path(self, inside: str | os.PathLike) -> pathlib.Path:
        """Where this machine sees a path of the node."""
        return pathlib.Path(f"/proc/{self.pid}/root{os.fspath(inside)}")

    def _all_files(self) -> Iterator[str]:
        for top in _PRIVATE:
            base = self.path(top)
            device = base.stat().st_dev
            for folder, names, files in os.walk(base):
                names[:] = [name for name in names if os.lstat(f"{folder}/{name}").st_dev == device]  # not into what is visible
                for name in (*names, *files):
                    yield f"{top}/{os.path.relpath(f'{folder}/{name}', base)}"

    def files(self) -> list[str]:
        """What has come into /tmp, /run and /dev/shm."""
        return sorted(set(self._all_files()) - self._usual)

    def sockets(self) -> list[str]:
        """The sockets inside, but for sshd's own and TCP's TIME_WAIT."""
        return [str(each) for each in sockets.of_process(self.pid)
                if not (self.sshd and each.state == "LISTEN" and each.port == self._nodes.ssh_port)]

    def remains(self) -> dict[str, Any]:
        """What a program has left: processes, sockets, files."""
        found = {"processes": self.processes(), "sockets": self.sockets(), "files": self.files()}
        return {what: left for what, left in found.items() if left}

    def check_clean(self, seconds: float = 5) -> None:
        """Until nothing remains. Raises Expired."""
        wait_until(lambda: not self.remains(), lambda: f"{self.name} to be as it was: {self.remains()}", seconds, 0.05)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def ip(self, *lines: str) -> None:
        """Commands of ip(8), inside."""
        self.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", check=True)

    def _filter(self, *rules: tuple[str, str]) -> None:
        self._rules += rules
        chains = []
        for chain, hook, side in (("in", "input", "iifname"), ("out", "output", "oifname")):
            chains += [f"chain {chain} {{", f"type filter hook {hook} priority 0; policy accept;", f'{side} "lo" accept',
                       # as ARP, which no filter here sees: a cut is silence, not "no route to host"
                       "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
                       *(rule for where, rule in self._rules if where == chain), "}"]
        text = "\n".join(["table inet hvt", "delete table inet hvt", "table inet hvt {", *chains, "}", ""])
        self.run(["nft", "-f", "-"], input=text, check=True)

    def cut(self, direction: str = "both", peer: "Node | None" = None) -> None:
        """Silence: packets are lost, from and to everybody or one peer. "in": what comes is lost; "out": what goes."""
        for chain, side in (("in", "saddr"), ("out", "daddr")):
            if direction in (chain, "both"):
                self._filter(*([(chain, f"ip {side} {peer.address} drop"), (chain, f"ip6 {side} {peer.address6} drop")]
                               if peer else [(chain, "drop")]))

    def drop_port(self, port: int) -> None:
        """What comes to a TCP port is lost."""
        self._filter(("in", f"tcp dport {port} drop"))

    def reset_port(self, port: int) -> None:
        """What comes to a TCP port is answered by a reset."""
        self._filter(("in", f"tcp dport {port} reject with tcp reset"))

    def lose(self, percent: float) -> None:
        """Of the packets that come, so many are lost."""
        self._filter(("in", f"numgen random mod 10000 < {round(percent * 100)} drop"))

    def limit_rate(self, rate: str) -> None:
        """What it sends goes no faster, e.g. "100mbit"."""
        self.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256k", "latency", "20ms"],
                 check=True)

    def unplug(self) -> None:
        """Link down. A peer on a cable of its own sees that too, one behind a bridge does not."""
        self.ip("link set eth0 down")

    def heal(self) -> None:
        """Ends every fault."""
        self._rules.clear()
        self._filter()
        self.run(["tc", "qdisc", "del", "dev", "eth0", "root"])  # which there need not be
        self.ip("link set eth0 up")

    # ---- ssh --------------------------------------------------------------------------------------------------------

    def start_sshd(self) -> None:
        """sshd, which lets in whoever has the key of these nodes."""
        config = self.folder / "sshd_config"
        config.write_text(f"Port {self._nodes.ssh_port}\nHostKey {self.folder / 'host_key'}\nPidFile none\nUsePAM no\n"
                          "PasswordAuthentication no\nPermitRootLogin prohibit-password\nPrintMotd no\n", encoding="utf-8")
        given = " ".join(f'"{name}={value}"' for name, value in self._nodes.environment(self).items())
        if given:
            with config.open("a", encoding="utf-8") as more:
                more.write(f"SetEnv {given}\n")
        with open(self.folder / "sshd.log", "ab") as log:
            sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
            assert sshd, "there is no sshd here; Debian's package is openssh-server"
            self.sshd = self.popen([sshd, "-D", "-e", "-f", str(config)], stderr=log)

        def listens() -> bool:
            if self.sshd.poll() is not None:
                raise AssertionError(f"sshd ended with {self.sshd.returncode}: {(self.folder / 'sshd.log').read_text()[-1000:]}")
            return any(each.port == self._nodes.ssh_port and each.state == "LISTEN" for each in sockets.of_process(self.pid))
        wait_until(listens, f"sshd of {self.name} to listen")


def _keep_addresses() -> None:
    """A link that goes down keeps its IPv6 addresses, as it keeps those of IPv4, and uses them at once."""
    for name, value in (("keep_addr_on_down", "1"), ("accept_dad", "0"), ("disable_ipv6", "0")):
        for where in ("all", "eth0"):
            with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                pathlib.Path(f"/proc/sys/net/ipv6/conf/{where}/{name}").write_text(value, encoding="ascii")


class Nodes(Sequence[Node]):
    """The nodes n1, n2, ... as a context manager. Two have a cable between them, more of them, or with `bridge`, a switch. Leaving it
    without an error asserts that no process is left in any of them."""

    def __init__(self, count: int = 2, *, ssh: bool = False, ssh_port: int = SSH_PORT, bridge: bool | None = None,
                 families: Sequence[int] = (4, 6), host_names: Sequence[str] = (), share: Sequence[str | os.PathLike] = (),
                 environment: Callable[["Node"], dict[str, str]] = lambda node: {}):
        """`families`: of addresses; `host_names`: what hostname(1) says, n1, n2, ... if not given; `share`: directories below
        /tmp, /run or /dev/shm that all nodes see too, as they see the build, the sources and this Python; `environment`: what every
        process of a node gets beside the rest, also those that ssh starts."""
        self.count = count
        self.token = secrets.token_hex(8)
        self.ssh, self.ssh_port = ssh, ssh_port
        self.bridge = count > 2 if bridge is None else bridge
        self.families = families
        self._host_names = list(host_names) or [f"n{number}" for number in range(1, count + 1)]
        self._share = [pathlib.Path(path) for path in share]
        self.environment = environment
        self._nodes: list[Node] = []
        self._switch: Inside | None = None
        self._lock = -1
        self._before: Any = None  # what SIGTERM did
        self.folder = pathlib.Path()

    def __getitem__(self, index: Any) -> Any:
        return self._nodes[index]

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def shared(self) -> pathlib.Path:
        """A directory that the test and all nodes see under the same path."""
        return self.folder / "shared"

    @property
    def visible(self) -> set[pathlib.Path]:
        """Directories that every node sees."""
        return {self.shared, SOURCE, BUILD, pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix), *self._share}

    @property
    def key(self) -> pathlib.Path:
        """The private key of ssh, also for -i."""
        return self.folder / "shared" / "id_ed25519"

    # ---- life -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Nodes":
        why = missing()
        if why:
            raise RuntimeError(why)
        self._end_by_exception()
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.check_no_process()
        finally:
            self._end()

    def _end_by_exception(self) -> None:
        """SIGTERM does what Ctrl-C does, so that fixtures and context managers end."""
        def interrupt(_number: int, _frame: Any) -> None:
            raise KeyboardInterrupt("SIGTERM")
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, interrupt)

    def _make(self) -> None:
        self.folder, self._lock = _folder()
        self.shared.mkdir()
        self._nodes = [Node(self, number, name) for number, name in enumerate(self._host_names, 1)]
        hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + "".join(
            f"{address} {node.name}\n" for node in self for address in node.addresses())
        for node in self:
            node.write_files(hosts)
        if self.ssh:
            self._make_keys()
        for node in self:
            node.start()
        if self.bridge:
            self._switch = Inside("switch", namespaces.NEW_NET)
        self._connect()
        for node in self:
            node.await_init()
            node.set_up_network()
        if self.ssh:
            for node in self:
                node.start_sshd()

    def _end(self) -> None:
        with contextlib.ExitStack() as stack:  # each, whatever becomes of the others
            if self._before is not None:
                stack.callback(signal.signal, signal.SIGTERM, self._before)
            if self._lock >= 0:
                stack.callback(os.close, self._lock)
                stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if self._switch:
                stack.callback(self._switch.close)
            for node in self:
                stack.callback(node.end)
        self._lock, self._before, self._switch = -1, None, None

    def check_no_process(self) -> None:
        """Nothing runs in any node, or is about to end."""
        def left() -> dict[str, dict[int, str]]:
            return {node.name: running for node in self if (running := node.processes())}
        wait_until(lambda: not left(), lambda: f"the processes of the nodes to end: {left()}")

    # ---- cables -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self.bridge:
            first, second = (f"eth0 address {node.mac} netns {node.network()}" for node in self)
            _ip(f"link add {first} type veth peer name {second}")
            return
        self._switch.call(_ip, "link add br0 type bridge forward_delay 0 mcast_snooping 0", "link set br0 up",
                          *(line for node in self for line in self._cable(node)))

    @staticmethod
    def _cable(node: Node) -> list[str]:
        return [f"link add {node.name} type veth peer name eth0 address {node.mac} netns {node.network()}",
                f"link set {node.name} master br0 up"]

    def add_network(self) -> None:
        """A second cable between two nodes, eth1, of which no name of a host tells."""
        assert not self.bridge, "behind a bridge a node has one network"
        first, second = (f"eth1 netns {node.network()}" for node in self)
        _ip(f"link add {first} type veth peer name {second}")
        for node in self:
            node.ip("link set eth1 up", f"addr add {node.second_address}/24 dev eth1")

    def partition(self, left: Sequence[Node], right: Sequence[Node]) -> None:
        """Silence between two groups, both ways."""
        for one in left:
            for other in right:
                one.cut(peer=other)

    def restart(self, node: Node) -> None:
        """Power failure: the node is silent at once, and comes back empty under the same address."""
        with self.powerless(node):
            pass

    @contextlib.contextmanager
    def powerless(self, node: Node) -> Iterator[None]:
        """The node is away meanwhile. Only behind a bridge, as a peer on a cable of its own would lose its address."""
        assert self._switch, "only a node behind a bridge can be restarted: Nodes(2, bridge=True)"
        self._switch.call(_ip, f"link del {node.name}")
        node.end()
        try:
            yield
        finally:
            self._power_on(node)

    def _power_on(self, node: Node) -> None:
        node.start()
        self._switch.call(_ip, *self._cable(node))
        node.await_init()
        node.set_up_network()
        if self.ssh:
            node.start_sshd()

    # ---- ssh --------------------------------------------------------------------------------------------------------

    def _make_keys(self) -> None:
        for path in (self.key, *(node.folder / "host_key" for node in self)):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path], check=True,
                           stdin=subprocess.DEVNULL)
        known = ""
        for node in self:
            names = [node.name, *node.addresses()]
            if self.ssh_port != SSH_PORT:
                names = [f"[{name}]:{self.ssh_port}" for name in names]
            known += f"{','.join(names)} {(node.folder / 'host_key.pub').read_text(encoding='ascii')}"
        for node in self:
            place = node.home / ".ssh"
            place.mkdir(mode=0o700)
            shutil.copy(self.key, place)
            shutil.copy(f"{self.key}.pub", place / "authorized_keys")
            (place / "known_hosts").write_text(known, encoding="ascii")
            (place / "config").write_text("StrictHostKeyChecking yes\nLogLevel ERROR\n", encoding="ascii")


def _ip(*lines: str) -> None:
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip: {done.stderr.strip()}")


def _folder() -> tuple[pathlib.Path, int]:
    """A new directory, and the lock that says that it is in use; and no other that is not in use."""
    top = pathlib.Path(tempfile.gettempdir())
    for path in top.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
    while True:
        path = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=top))
        path.chmod(0o755)
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
                return path, lock
            os.close(lock)
