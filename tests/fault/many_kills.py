# SPDX-License-Identifier: Apache-2.0
"""Many random kills: python3 tests/fault/many_kills.py [--kills 50000] [--seed N|clock] [--lanes N]

hvt-kills runs and kills jobs, several at a time; beside them one job goes on and must not notice. In the first fifth of the
kills hvdd is among the victims, and the steady job's engine must stay flat; in the rest hvdd lives and must stay flat itself.
At the end nothing is left. HVD_BUILD_DIR names the build."""
import argparse
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "harness"))

from hvt import Daemon, Job, Status, program, sanitized, scaled  # noqa: E402 pylint: disable=wrong-import-position
from hvt.held import TOLERATED, WINDOWS, Held, settle, steady_engine  # noqa: E402 pylint: disable=wrong-import-position

DAEMON_EVERY = 50


def show(daemon: Daemon) -> None:
    """What hvdd knows while something hangs."""
    for words in (("jobs",), ("stalls", "--min-age", "0")):
        try:
            print(words, daemon.ctl.json(*words), flush=True)
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(words, error, flush=True)


def kill(daemon: Daemon, seed: int, first: int, count: int, lanes: int, daemon_every: int) -> int:
    """Kills number `first` and the next: how often hvdd was killed."""
    environment = {name: value for name, value in daemon.environment.items() if name != "LD_PRELOAD"}
    command = [program("hvt-kills"), "--address", daemon.address, "--seed", seed, "--first", first, "--kills", count,
               "--lanes", lanes, "--daemon-every", daemon_every, "--seconds-to-hang", int(scaled(30))]
    renewed = 0
    with subprocess.Popen(list(map(str, command)), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as driver:
        for line in driver.stdout:
            print(f"{time.strftime('%H:%M:%S')} {line}" if line not in ("daemon\n", "failed\n") else "", end="", flush=True)
            if line == "daemon\n":
                daemon.kill()
                daemon.start()
                renewed += 1
            elif line == "failed\n":
                show(daemon)
            else:
                continue
            driver.stdin.write("go on\n")
            driver.stdin.flush()
    assert driver.returncode == 0, f"hvt-kills ended with {driver.returncode}"
    return renewed


def kill_and_watch(daemon: Daemon, seed: int, first: int, count: int, lanes: int, daemon_every: int,
                   watched: Callable[[Daemon], int]) -> None:
    """In so many windows, in one of which at least a process stays flat: a table that grows once is no leak."""
    size = count // (WINDOWS + 1)
    kill(daemon, seed, first, size, lanes, daemon_every)
    flat = []
    for window in range(1, WINDOWS + 1):
        settle(daemon)
        before = Held.of(daemon, watched(daemon)) if not sanitized() else None
        renewed = kill(daemon, seed, first + window * size, size, lanes, daemon_every)
        settle(daemon)
        if before:
            after = Held.of(daemon, watched(daemon))
            flat.append(after.is_flat_since(before, renewed or size))
            print(f"{size} kills, {renewed} of hvdd: {before} -> {after}", flush=True)
    assert not flat or any(flat), "a process grew in each window of kills"


def run(kills: int, seed: int, lanes: int) -> None:
    """The whole of it."""
    options = {"log-level": "warning", "engine-silence": "60s", "start-rate-per-user": 1000}  # in a service all jobs are one user's
    with Daemon(preload=None if sanitized() else "libhvt-heap.so", options=options) as daemon:
        daemon.allow(*TOLERATED, "no-start")  # hvdd was killed before it had told an engine its job
        steady = Job(daemon, 2, name="steady")
        for rank in steady.ranks:
            rank.post("loop", name="", for_ms=24 * 3600 * 1000, until_stdin=True, rest_us=2000)
        fifth = kills // 5
        kill_and_watch(daemon, seed, 1, fifth, lanes, max(2, min(DAEMON_EVERY, fifth // 6)), steady_engine)
        kill_and_watch(daemon, seed, 1 + fifth, kills - fifth, lanes, 0, lambda running: running.pid)
        for rank in steady.ranks:
            rank.post("stop")
        for rank in steady.ranks:
            reply = rank.collect()
            assert reply["status"] == Status.OK and reply["done"] > kills, reply
            rank.collect()
        steady.check_usable()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50_000)
    parser.add_argument("--seed", default="clock")
    parser.add_argument("--lanes", type=int, default=4)
    arguments = parser.parse_args()
    seed = int(time.time()) if arguments.seed == "clock" else int(arguments.seed)
    began = time.monotonic()
    print(f"seed {seed}, {arguments.kills} kills", flush=True)
    run(arguments.kills, seed, arguments.lanes)
    print(f"{arguments.kills} kills with seed {seed} in {time.monotonic() - began:.0f} s: nothing hung, nothing was wrong, "
          "nothing is left")


if __name__ == "__main__":
    main()
