# SPDX-License-Identifier: Apache-2.0
"""A stranger with many connections that say nothing, each of which comes anew when it has ended."""
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

COUNT = 1200
_PROGRAM = """
import resource, select, socket, sys
address, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64,) * 2)
poll, ends = select.poll(), {}
while True:
    while len(ends) < count:
        one = socket.socket()
        one.setblocking(False)
        one.bind((address, 0))
        one.connect_ex((host, port))
        ends[one.fileno()] = one
        poll.register(one, select.POLLIN)
    for fd, _ in poll.poll(1000):
        try:
            if ends[fd].recv(4096):
                continue
        except OSError:
            pass
        poll.unregister(fd)
        ends.pop(fd).close()
"""


@contextlib.contextmanager
def crowd(popen: Callable[..., subprocess.Popen], address: str, place: tuple[str, int]) -> Iterator[None]:
    """COUNT connections from an IPv4 address to a place, of a process that `popen` starts."""
    process = popen([sys.executable, "-c", _PROGRAM, address, place[0], str(place[1]), str(COUNT)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
