# SPDX-License-Identifier: Apache-2.0
"""Where UCX would not be safe or cannot be, a job that is told to use it fails at its start, with what to do."""
import contextlib
import os
import re
import time

from hvt import Daemon, Status, check_prompt, new_keys, program
from hvt.namespaces import BIND, mount
from hvt.nodes import UCX


def check_refused(nodes, environment, words):
    """A job says so on some node, and nothing is left."""
    command = [program("hvdrun"), "-H", "n1:1,n2:1", "--no-prefix", program("hvd-perf"), "-o", "barrier", "-i", "1"]
    done = nodes[0].run(command, timeout=60, env=nodes[0].environment() | environment)
    assert done.returncode != 0 and re.search(words, done.stderr), done
    for node in nodes:
        node.check_clean(10)


def test_it_is_refused_outside_of_trusted_networks_and_with_encryption(make_nodes):
    nodes = make_nodes(2, ssh=True)
    check_refused(nodes, UCX | {"HVD_TRUSTED_NETWORKS": ""},
                  r"node \(n[12]\) may use it only within trusted-networks \(HVD_TRUSTED_NETWORKS\): it is empty; list the networks")
    check_refused(nodes, UCX | {"HVD_TRUSTED_NETWORKS": "10.0.0.0/24"},
                  r"the interface eth0 has the address 10\.77\.1\.[12], which is in none of them; list the networks")
    check_refused(nodes, UCX | {"HVD_ENCRYPT": "1"}, r"net-transport is ucx, which encrypts nothing, and this node \(n[12]\) is to encrypt")


def test_a_node_without_the_library_is_named_with_what_to_install(make_nodes):
    nodes = make_nodes(2, ssh=True)
    lines = nodes[1].run(["/sbin/ldconfig", "-p"], check=True).stdout.splitlines()
    library = next(line.split(" => ")[1] for line in lines if "libucp.so.0" in line)
    nodes[1].call(mount, "/dev/null", os.path.realpath(library), None, BIND)
    check_refused(nodes, UCX, r"on node n2: net-transport is ucx, and the library cannot be loaded: .*; install libucx0")


def test_a_node_that_refuses_it_after_the_nodes_have_met_is_named_at_once_on_the_other(tmp_path):
    options = {"mesh-key": new_keys(tmp_path / "mesh"), "port-range": "9664-9695", "net-transport": "ucx"}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Daemon(options=options | {"mesh-listen": "127.0.0.1:0", "trusted-networks": "127.0.0.0/8,::1/128"}))
        port = (first.address / "mesh.port").read_text(encoding="ascii").strip()
        second = stack.enter_context(Daemon(options=options | {"mesh-join": f"127.0.0.1:{port}"}))
        for daemon in (first, second):
            daemon.allow("no-job", "ucx-tcp")
        place = {"HVD_SIZE": "2", "HVD_LOCAL_RANK": "0", "HVD_LOCAL_SIZE": "1", "HVD_CROSS_SIZE": "2"}
        waits, refused = (daemon.rank(environment=place | {"HVD_RANK": str(rank), "HVD_CROSS_RANK": str(rank)})
                          for rank, daemon in enumerate((first, second)))
        waits.open("wide")
        op = waits.submit("barrier")
        at_ns = time.monotonic_ns()
        refused.post("open", job="wide")
        outcome = waits.outcome(op)
        print(f"after {(outcome.at_ns - at_ns) / 1e6:.1f} ms: {outcome}")
        check_prompt("the rank that waits was told", outcome.at_ns - at_ns, 1_000_000_000)
        assert outcome.status == Status.ERR_REFUSED and re.search("^on .*may use it only within trusted-networks", outcome.text), outcome
        refused.collect_outcome()
