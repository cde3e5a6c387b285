# SPDX-License-Identifier: Apache-2.0
"""horovodrun: its command line as an object, and the program itself, which is hvdrun by another name."""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import horovod
from horovod.runner.common.util.config_parser import KNOBS, LOG_LEVELS, set_args_from_config, validate_config_args
from hvd.runner import program

#: Switches that say no, by the attribute of the one that says yes.
_OPPOSITE = {"log_with_timestamp": ["--log-without-timestamp", "--log-hide-timestamp"]}
_ALIAS = {"log_with_timestamp": ["--no-log-hide-timestamp"]}
_TAKEN = "taken and without effect"
_REFUSED = "of elastic jobs, which hvdrun does not start yet"


class _Union(argparse.Action):
    """A set that grows where the option is given again."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        setattr(namespace, self.dest, (getattr(namespace, self.dest) or set()) | values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="horovodrun", description="What each option does: hvdrun(1).")
    parser.add_argument("-v", "--version", action="version", version=horovod.__version__)
    parser.add_argument("-np", "--num-proc", type=int, help="how many processes (ranks) to start")
    parser.add_argument("-cb", "--check-build", action="store_true", default=None, help="what this build can do")
    parser.add_argument("--disable-cache", action="store_true", help=_TAKEN)
    parser.add_argument("--start-timeout", type=int, metavar="S", help="time for the private hvdd to start")
    parser.add_argument("--network-interfaces", "--network-interface", dest="nics", metavar="LIST", action=_Union,
                        help="how other hosts reach this one: interfaces, addresses or networks, with commas between them",
                        type=lambda text: {name for name in text.split(",") if name})
    parser.add_argument("--output-filename", metavar="DIR", help="also keep each rank's output there")
    parser.add_argument("--verbose", action="store_true", help="say what is started and how it ends")
    parser.add_argument("--config-file", metavar="FILE", help="a YAML file with options; those given here win")
    parser.add_argument("-p", "--ssh-port", type=int, metavar="N", help="port of sshd on other hosts")
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="the key to log in there with")
    parser.add_argument("--mpi-args", metavar="ARGS", help=_TAKEN)
    parser.add_argument("--binding-args", metavar="ARGS", help=_TAKEN)
    parser.add_argument("--tcp", dest="tcp_flag", action="store_true", help="no InfiniBand for NCCL (NCCL_IB_DISABLE=1)")
    parser.add_argument("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true",
                        help="date and time before each line")
    for dest, names in (("min_num_proc", ["--min-np", "--min-num-proc"]), ("max_num_proc", ["--max-np", "--max-num-proc"]),
                        ("slots", ["--slots-per-host"]), ("elastic_timeout", ["--elastic-timeout"]),
                        ("reset_limit", ["--reset-limit"])):
        parser.add_argument(*names, dest=dest, type=int, metavar="N", help=_REFUSED)
    parser.add_argument("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2, metavar=("MIN", "MAX"),
                        help=_REFUSED)
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="h1:N,h2:M", help="hosts with N and M slots")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="the same from a file")
    hosts.add_argument("--host-discovery-script", metavar="FILE", help=_REFUSED)
    controllers = parser.add_mutually_exclusive_group()
    for name in ("gloo", "mpi", "jsrun"):
        controllers.add_argument(f"--{name}", dest=f"use_{name}", action="store_true", help=_TAKEN)
    _add_knobs(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the ranks' program")
    return parser


def _add_knobs(parser: argparse.ArgumentParser) -> None:
    for knob in KNOBS:
        name = "--" + knob.dest.replace("_", "-")
        if knob.kind is bool:
            no = ["--stall-check"] if knob.dest == "no_stall_check" else _OPPOSITE.get(knob.dest, ["--no-" + name[2:]])
            yes = [name, *_ALIAS.get(knob.dest, [])]
            parser.add_argument(*yes, dest=knob.dest, action="store_true", default=None, help=knob.text)
            parser.add_argument(*no, dest=knob.dest, action="store_false", default=None, help="the opposite")
        else:
            choices = LOG_LEVELS if knob.dest == "log_level" else None
            parser.add_argument(name, dest=knob.dest, type=knob.kind, choices=choices, help=knob.text)


def _read_config(path: str) -> dict[str, Any]:
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise ImportError("parse_args reads a --config-file with PyYAML: pip install pyyaml (the program horovodrun needs "
                          "none)") from None
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file) or {}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of horovodrun (None: this process') as an object, with a --config-file read. ValueError: a number
    that is negative or too large. What is wrong otherwise ends the process, as argparse does."""
    parser = _parser()
    args = parser.parse_args(argv)
    args.run_func = args.executable = None
    if args.config_file:
        given = {name for name, value in vars(args).items() if value not in (None, False)}
        given |= {knob.dest for knob in KNOBS if getattr(args, knob.dest) is False}
        set_args_from_config(args, _read_config(args.config_file), given)
    validate_config_args(args)
    if not args.check_build and args.num_proc is None:
        parser.error("how many processes? Give -np N")
    return args


def _environment() -> dict[str, str]:
    """For hvdrun: which Python --check-build is about, and which release it is to name."""
    return dict({"HVDRUN_PYTHON": sys.executable}, **os.environ, HVDRUN_VERSION=horovod.__version__)


def check_build(verbose: bool = False) -> None:
    """Prints what this build can do, as horovodrun --check-build."""
    del verbose
    print(subprocess.run(["horovodrun", "--check-build"], executable=program("hvdrun"), env=_environment(), check=True,
                         stdout=subprocess.PIPE, text=True).stdout, end="")


def run_commandline() -> None:
    """The program horovodrun: this process becomes hvdrun."""
    try:
        path = program("hvdrun")
        os.execve(path, ["horovodrun", *sys.argv[1:]], _environment())
    except OSError as error:
        sys.exit(f"horovodrun: {error}")


if __name__ == "__main__":
    run_commandline()
