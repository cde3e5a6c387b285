# SPDX-License-Identifier: Apache-2.0
"""Times two builds of hvdd in alternating turns and says which measures have become slower; the rest of regress.sh.

    regress.py --cache DIR [--only LIST] [--turns N] [--seconds S] [--minutes M] --old BUILD SOURCE --new BUILD SOURCE | --check

A measure is slower when the whole interval (interval.py) of the new times over the old ones lies above LIMIT. Exit status 0:
none is; 1: some are; 2: wrong usage; 3: none is, but some could not be judged."""
import argparse
import dataclasses
import fnmatch
import pathlib
import signal
import statistics
import sys
import time

import interval
import machine
import measures
from measures import Measure
from report import amount
from results import SHARES, figure_of
from run import IN_PYTHON, Failed, Hvdd

LIMIT = 1.03
DEFAULT = "allreduce-*,gradients-*,rate-*"


@dataclasses.dataclass
class Timed:
    """A measure in one kind of memory, on both sides."""
    measure: Measure
    memory: str
    pairs: list[tuple[float, float]] = dataclasses.field(default_factory=list)  # old, new: µs
    error: str = ""  # of the first run that failed; then it is left alone

    def name(self) -> str:
        """For the table."""
        return f"{self.measure.name}, {self.memory}"

    def ratios(self) -> list[float]:
        """New over old."""
        return [new / old for old, new in self.pairs]


def wanted(patterns: str) -> list[Timed]:
    """hvdd's figures whose measures match. A share of a core that is near zero has no ratio: those are left out."""
    chosen = [measure for measure in measures.MEASURES if measure.op not in SHARES and not measure.nodes
              and any(fnmatch.fnmatchcase(measure.name, pattern) for pattern in patterns.split(","))]
    return [Timed(dataclasses.replace(measure, reference=False), memory) for measure in chosen for memory in measure.memories]


def run(side: str, hvdd: Hvdd, timed: Timed, seconds: float, check: bool = False) -> float:
    """One run of one side. Raises Failed."""
    try:
        return figure_of(hvdd.run(timed.measure, timed.memory, seconds, check)[0])
    except (Failed, OSError) as error:
        raise Failed(f"{side}: {error}") from error


def pair(sides: dict[str, Hvdd], timed: Timed, turn: int, seconds: float) -> None:
    """Both sides once; each begins in every other turn. The first turn checks the results, too."""
    order = list(sides.items())
    times = {}
    try:
        for side, hvdd in order if turn % 2 == 0 else reversed(order):
            times[side] = run(side, hvdd, timed, seconds, check=turn == 0)
    except Failed as error:
        timed.error = str(error)
        return
    timed.pairs.append((times["old"], times["new"]))


def take_turns(sides: dict[str, Hvdd], everything: list[Timed], args: argparse.Namespace) -> None:
    """Every measure once in each turn, until the turns or the minutes are over."""
    deadline = time.monotonic() + args.minutes * 60
    for turn in range(args.turns):
        started = time.monotonic()
        for timed in everything:
            if time.monotonic() > deadline:
                print(f"regress: the {args.minutes:g} minutes are over in turn {turn + 1} of {args.turns}", file=sys.stderr)
                return
            if not timed.error:
                pair(sides, timed, turn, args.seconds)
        print(f"turn {turn + 1} of {args.turns}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def judge(timed: Timed) -> tuple[str, str]:
    """The verdict ("" where there is none), and the rest of the line of the table."""
    old, new = (amount(statistics.median(times)) for times in zip(*timed.pairs)) if timed.pairs else ("–", "–")
    start = f"| {timed.name()} | {old} | {new} |"
    if timed.error or len(timed.pairs) < interval.LEAST:
        why = timed.error or f"{len(timed.pairs)} turns, an interval takes {interval.LEAST}"
        return "", f"{start} – | – | {len(timed.pairs)} | **not judged**: {why} |"
    low, middle, high = interval.of_ratios(timed.ratios())
    verdict = ("slower" if low > LIMIT else "faster" if high < 1 / LIMIT else "not slower" if high <= LIMIT
               else "not known")
    bold = f"**{verdict}**" if verdict == "slower" else verdict
    return verdict, f"{start} {middle:.3f} | {low:.3f}–{high:.3f} | {len(timed.pairs)} | {bold} |"


def report(everything: list[Timed]) -> int:
    """Prints the table; the exit status."""
    lines = [judge(timed) for timed in everything]
    print("| measure, memory | old | new | new/old | 95 % interval | turns | |", "|---|---|---|---|---|---|---|",
          *(line for _verdict, line in lines), sep="\n")
    verdicts = [verdict for verdict, _line in lines]
    slower, unknown, vague = (verdicts.count(each) for each in ("slower", "", "not known"))
    print(f"\n{slower} of {len(lines)} measures are slower: their whole interval lies above {LIMIT:g}"
          + (f"; of {vague} it is not known: more turns or a quieter machine would tell" if vague else "")
          + (f"; {unknown} could not be judged" if unknown else ""))
    return 1 if slower else 3 if unknown else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--old", nargs=2, type=pathlib.Path)
    parser.add_argument("--new", nargs=2, type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="only look whether the other options are right")
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=DEFAULT)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--minutes", type=float, default=30)
    args = parser.parse_args()
    if args.turns < interval.LEAST:
        parser.error(f"--turns must be at least {interval.LEAST}: with fewer no interval is sure by 95 %")
    return args


def main() -> int:
    """See the module's text."""
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is being timed is ended, too
    everything = wanted(args.only)
    if not everything:
        print(f"regress: no measure that has a time matches '{args.only}'; measures.py lists them", file=sys.stderr)
        return 2
    missing = {place for each in everything if each.memory in IN_PYTHON
               if not (args.cache / (place := measures.place_of(each.memory)) / "bin/python").exists()}
    if missing:
        print(f"regress: not installed in {args.cache}: {', '.join(sorted(missing))}; "
              "bench/compare.sh --peers LIST installs them", file=sys.stderr)
        return 2
    if args.check:
        return 0
    print(machine.load_text(machine.load()), end="\n\n", flush=True)
    take_turns({"old": Hvdd(args.old[0] / "bin", args.cache, args.old[1]),
                "new": Hvdd(args.new[0] / "bin", args.cache, args.new[1])}, everything, args)
    return report(everything)


if __name__ == "__main__":
    sys.exit(main())
