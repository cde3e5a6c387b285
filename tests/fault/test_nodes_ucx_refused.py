# SPDX-License-Identifier: Apache-2.0
"""Where UCX would not be safe or cannot be, a job that is told to use it fails at its start, with what to do."""
import os
import re

from hvt import program
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
