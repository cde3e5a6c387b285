# SPDX-License-Identifier: Apache-2.0
"""What raw.jsonl says: figures by measure, participant and round, and whether the bars hold.

The fastest peer is the fastest of all that ran, whatever measures.py says of them, except of the floors, which no library can
reach, and of what stands beside hvdd on several nodes. A bar that is about certain peers names them. A bar holds when it does in every round, against the fastest in that round."""
import dataclasses
import math
import statistics
from collections import defaultdict

import measures
from measures import Bar

REFERENCES = ("onepass", "onepass-huge")
SHARES = ("idle", "wait")  # ops whose figure is a share of a core
OF_RIVALS = ("times-peer", "at-most-peer", "at-most-more", "share-of-onepass")
KIND = {"times-peer": "≥{limit:g}x {rival}", "share-of-onepass": "≥{limit:.0%} of one pass", "at-most-us": "≤{limit:.7g} µs",
        "at-most-peer": "≤{limit:g}x the time of {rival}", "at-most-more": "≤{rival} + {limit:g} µs", "ops-per-second": "≥{limit:,.0f} ops/s",
        "at-most-percent": "0.0 % (<{limit:g} %)", "at-most-share": "≤{limit:g} %"}


class Results:
    """Figures by measure and participant ("who"): µs, of an op in SHARES per cent."""

    def __init__(self, lines: list[dict]) -> None:
        self.rows: dict[tuple[str, str], dict[int, dict]] = defaultdict(dict)  # by round
        takes: dict[tuple[str, str, int], dict[int, dict]] = defaultdict(dict)  # of several runs of a take the fastest
        self.trials: dict[tuple[str, str, str], float] = {}  # by setting, too
        self.errors: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], set[int]] = defaultdict(set)  # rounds that a run failed in
        self.settings: dict[tuple[str, str], str] = {}
        for line in lines:
            key, turn = (line["measure"], line["who"]), line["round"]
            if "error" in line:
                self.errors[key] = line["error"] if turn != "trial" else f"trial of {line['setting']}: {line['error']}"
                if turn != "trial":
                    self.failed[key].add(turn)
            elif turn == "trial":
                self.trials[(*key, line["setting"])] = figure_of(line["row"])
            else:
                self.settings[key] = line["setting"]
                tries = takes[(*key, turn)]
                tries[line.get("take", 0)] = min(tries.get(line.get("take", 0), line["row"]), line["row"], key=figure_of)
        for (*key, turn), tries in takes.items():
            self.rows[tuple(key)][turn] = sorted(tries.values(), key=figure_of)[len(tries) // 2]

    def rounds(self, measure: str, who: str) -> dict[int, float]:
        """The figure of each round."""
        return {turn: figure_of(row) for turn, row in sorted(self.rows.get((measure, who), {}).items())}

    def figure(self, measure: str, who: str) -> float | None:
        """Median over the rounds."""
        figures = self.rounds(measure, who)
        return statistics.median(figures.values()) if figures else None

    def rivals(self, measure: str) -> list[str]:
        """All peers that ran."""
        return sorted(who for name, who in self.rows if name == measure and who not in (*REFERENCES, *measures.BESIDE)
                      and not who.startswith(("hvdd-", "memcpy", *measures.FLOORS)))

    def fastest(self, measure: str, names) -> tuple[str, float] | None:
        """Of these, the one with the smallest figure."""
        figures = [(who, self.figure(measure, who)) for who in names]
        known = [pair for pair in figures if pair[1] is not None]
        return min(known, key=lambda pair: pair[1]) if known else None

    def fastest_by_round(self, measure: str, names) -> dict[int, float]:
        """The smallest figure of these in each round."""
        figures: dict[int, float] = {}
        for who in names:
            for turn, figure in self.rounds(measure, who).items():
                figures[turn] = min(figure, figures.get(turn, figure))
        return figures

    def unsteady(self, measure: str, who: str) -> dict[int, float]:
        """The rounds whose figure is not what the trial of the same setting had, as a multiple of that."""
        trial = self.trials.get((measure, who, self.settings.get((measure, who), "")))
        share = any(row["op"] in SHARES for row in self.rows.get((measure, who), {}).values())  # is never repeated
        return {} if not trial or share else {turn: figure / trial for turn, figure in self.rounds(measure, who).items()
                                              if measures.differs(figure, trial)}


def figure_of(row: dict) -> float:
    """What counts of a run."""
    return row.get("time_us", row.get("cpu_percent"))


@dataclasses.dataclass
class Verdict:
    """What came of a bar. `good` says of each round whether it holds; empty when there is nothing to judge by."""
    bar: str
    ours: float | None
    rival: tuple[str, float] | None = None
    ratio: float | None = None  # of the medians
    ratios: list[float] = dataclasses.field(default_factory=list)  # of each round
    good: list[bool] = dataclasses.field(default_factory=list)
    judged: bool = True  # False: the bar has no limit, it is printed beside another

    def words(self) -> str:
        """For the last column; "" when nothing was measured."""
        if not self.good or not self.judged:
            return "beside it" if self.good else ""
        return "holds" if all(self.good) else "**does not hold**" if not any(self.good) else (
            f"**does not hold**: in {self.good.count(True)} of {len(self.good)} rounds")


def measure_of(bar: Bar) -> measures.Measure:
    """The measure that the bar is about."""
    return next(each for each in measures.MEASURES if each.name == bar.measure)


def title(bar: Bar) -> str:
    """The bar in words."""
    measure = measure_of(bar)
    rival = "the bare ring" if bar.against == measures.RINGS else "the fastest peer" if not bar.against else bar.against[0] if len(bar.against) == 1 else (
        f"the fastest of {', '.join(bar.against)}")
    what = f"beside {rival}" if bar.limit is None else KIND[bar.kind].format(limit=bar.limit, rival=rival)
    return f"{measure.title} np={measure.np}, {measures.MEMORY_TEXT.get(bar.memory, bar.memory)}: {what}"


def _ratio(kind: str, ours: float, rival: float) -> float:
    over, under = (ours, rival) if kind in ("at-most-peer", "at-most-more") else (rival, ours)
    return over / under if under else math.inf  # a share of a core may be 0


def _holds(bar: Bar, ours: float, ratio: float | None) -> bool:
    if bar.kind == "at-most-more":
        return ours - ours / ratio <= bar.limit
    if bar.kind in ("times-peer", "share-of-onepass"):
        return ratio >= bar.limit
    if bar.kind == "at-most-peer":
        return ratio <= bar.limit
    if bar.kind == "ops-per-second":
        return 1e6 / ours >= bar.limit
    return ours < bar.limit if bar.kind == "at-most-percent" else ours <= bar.limit


def names_against(results: Results, bar: Bar) -> list[str]:
    """With whom the bar compares."""
    if bar.kind == "share-of-onepass":
        return list(REFERENCES)
    return list(bar.against) or results.rivals(bar.measure)


def judge(results: Results, bar: Bar) -> Verdict:
    """Round by round. A round in which hvdd failed is one in which the bar does not hold; one in which no rival ran
    does not count."""
    who = f"hvdd-{bar.memory}"
    verdict = Verdict(title(bar), results.figure(bar.measure, who), judged=bar.limit is not None)
    rivals: dict[int, float] = {}
    if bar.kind in OF_RIVALS:
        names = names_against(results, bar)
        verdict.rival = results.fastest(bar.measure, names)
        rivals = results.fastest_by_round(bar.measure, names)
    if verdict.ours is None or (bar.kind in OF_RIVALS and not verdict.rival):
        return verdict
    for turn, ours in results.rounds(bar.measure, who).items():
        ratio = None
        if bar.kind in OF_RIVALS:
            if turn not in rivals:
                continue
            ratio = _ratio(bar.kind, ours, rivals[turn])
            verdict.ratios.append(ratio)
        verdict.good.append(not verdict.judged or _holds(bar, ours, ratio))
    verdict.good += [False] * len(results.failed[bar.measure, who])
    if verdict.rival:
        verdict.ratio = _ratio(bar.kind, verdict.ours, verdict.rival[1])
    return verdict
