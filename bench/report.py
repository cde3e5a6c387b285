# SPDX-License-Identifier: Apache-2.0
"""Makes table.md, results.csv and the plots out of raw.jsonl and machine.json in a directory.

    report.py DIR

A figure is the median over the rounds of each run's median; its spread is the smallest and the largest of those. A bar is
compared with the fastest peer of the same run."""
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict

import measures
from measures import Bar

REFERENCES = ("onepass", "onepass-huge")
KIND = {"times-peer": "≥{:g}x the fastest peer", "share-of-onepass": "≥{:.0%} of one pass", "at-most-us": "≤{:g} µs",
        "at-most-peer": "≤{:g}x the fastest peer's time", "ops-per-second": "≥{:,.0f} ops/s",
        "at-most-percent": "0.0 % (<{:g} %)", "at-most-share": "≤{:g} %"}
OURS = ("hvdd-shared", "hvdd-malloc", "hvdd-adopted", "hvdd-python", "hvdd-python-fresh", "hvdd-python-2.0.1",
        "hvdd-tf221", "hvdd-tf215", "hvdd-tf212")
SHARES = ("idle", "wait")  # ops whose figure is a share of a core


class Results:
    """Figures by measure and who."""

    def __init__(self, lines: list[dict]) -> None:
        self.times = defaultdict(list)  # (measure, who) -> a median per round, µs (idle: per cent)
        self.rows = defaultdict(list)
        self.errors = {}
        self.settings = {}
        for line in lines:
            key = line["measure"], line["who"]
            if "error" in line:
                self.errors[key] = line["error"]
            elif line["round"] != "trial":
                row = line["row"]
                self.times[key].append(row.get("time_us", row.get("cpu_percent")))
                self.rows[key].append(row)
                self.settings[key] = line["setting"]

    def figure(self, measure: str, who: str) -> float | None:
        """Median over the rounds."""
        times = self.times.get((measure, who))
        return statistics.median(times) if times else None

    def fastest(self, measure: str, names) -> tuple[str, float] | None:
        """Of these, the one with the smallest figure."""
        figures = [(who, self.figure(measure, who)) for who in names]
        known = [pair for pair in figures if pair[1] is not None]
        return min(known, key=lambda pair: pair[1]) if known else None


def amount(value: float | None, op: str = "") -> str:
    """A time with the digits it deserves, or a share."""
    if value is None:
        return "–"
    if op in SHARES:
        return f"{value:.2f} %"
    if value >= 1000:
        return f"{value / 1000:.1f} ms" if value >= 10000 else f"{value / 1000:.2f} ms"
    return f"{value:.0f} µs" if value >= 100 else f"{value:.1f} µs" if value >= 10 else f"{value:.2f} µs"


# ---- bars ----

def judge(results: Results, bar: Bar) -> dict:
    """One line of the table of bars. holds is None when there is nothing to judge by."""
    measure = next(each for each in measures.MEASURES if each.name == bar.measure)
    ours = results.figure(bar.measure, f"hvdd-{bar.memory}")
    rival = None
    if bar.kind in ("times-peer", "at-most-peer"):
        rival = results.fastest(bar.measure, bar.peers or measure.peers)
    elif bar.kind == "share-of-onepass":
        rival = results.fastest(bar.measure, REFERENCES)
    verdict = {"bar": f"{measure.title} np={measure.np}, {bar.memory}: {KIND[bar.kind].format(bar.limit)}",
               "ours": amount(ours, measure.op), "rival": f"{rival[0]} {amount(rival[1])}" if rival else "–", "ratio": "–",
               "holds": None}
    if bar.kind == "share-of-onepass" and rival and ours:
        others = [(who, results.figure(bar.measure, who)) for who in REFERENCES if who != rival[0]]
        verdict["rival"] += "".join(f" ({who} {amount(time)}: {time / ours:.0%})" for who, time in others if time)
    if ours is None or (rival is None and bar.kind in ("times-peer", "at-most-peer", "share-of-onepass")):
        return verdict
    if bar.kind in ("times-peer", "share-of-onepass"):
        ratio = rival[1] / ours
        return verdict | {"ratio": f"{ratio:.0%}" if bar.kind == "share-of-onepass" else f"{ratio:.2f}x",
                          "holds": ratio >= bar.limit}
    if bar.kind == "at-most-peer":
        return verdict | {"ratio": f"{ours / rival[1]:.2f}x", "holds": ours / rival[1] <= bar.limit}
    if bar.kind == "ops-per-second":
        return verdict | {"ours": f"{1e6 / ours:,.0f} ops/s", "holds": 1e6 / ours >= bar.limit}
    return verdict | {"holds": ours < bar.limit if bar.kind == "at-most-percent" else ours <= bar.limit}


def why_unknown(results: Results, bar: Bar) -> str:
    """Why a bar has no verdict."""
    error = results.errors.get((bar.measure, f"hvdd-{bar.memory}"))
    measured = any(measure == bar.measure for measure, _who in results.times)
    return f"no figure: {error[:120]}" if error else "no peer to compare with" if measured else "not measured"


def bars_table(results: Results) -> list[str]:
    """Markdown."""
    lines = ["| bar | hvdd | fastest rival | ratio | |", "|---|---|---|---|---|"]
    for bar in measures.BARS:
        verdict = judge(results, bar)
        words = {True: "holds", False: "**does not hold**", None: why_unknown(results, bar)}
        lines.append(f"| {verdict['bar']} | {verdict['ours']} | {verdict['rival']} | {verdict['ratio']} | "
                     f"{words[verdict['holds']]} |")
    return lines


# ---- figures ----

def spread(results: Results, measure: str, who: str, op: str) -> str:
    """Figure, and the range over the rounds when there were several."""
    times = results.times.get((measure, who))
    if not times:
        return "failed" if (measure, who) in results.errors else "–"
    text = amount(statistics.median(times), op)
    return text if len(times) == 1 else f"{text} ({amount(min(times), op)}–{amount(max(times), op)})"


def figures_table(results: Results) -> list[str]:
    """Markdown: a line per measure, a column per participant."""
    order = [*OURS, *REFERENCES, *measures.PEER_TEXT]
    seen = {who for _measure, who in (*results.times, *results.errors)}
    columns = [who for who in order if who in seen]
    lines = ["| measure | np | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for measure in measures.MEASURES:
        if any((measure.name, who) in results.times for who in columns):
            cells = [spread(results, measure.name, who, measure.op) for who in columns]
            lines.append(f"| {measure.title} | {measure.np} | " + " | ".join(cells) + " |")
    return lines


def settings_list(results: Results) -> list[str]:
    """Which settings won the trials, where they are not the defaults."""
    lines = []
    for peer in measures.PEER_TEXT:
        chosen = defaultdict(list)
        for (measure, who), setting in results.settings.items():
            if who == peer and setting not in ("", "defaults"):
                chosen[setting].append(measure)
        lines += [f"* {peer}, {setting}: {', '.join(names)}" for setting, names in chosen.items()]
    return lines


def machine_text(machine: dict) -> list[str]:
    """What and where."""
    processor = machine["cpu"]
    lines = [f"* {processor.get('CPU(s)', '?')} CPUs, {processor.get('Model name', '?')} "
             f"({processor.get('Vendor ID', '?')} family {processor.get('CPU family', '?')} model "
             f"{processor.get('Model', '?')}), {processor.get('vectors', '')}; L2 {processor.get('L2 cache', '?')}, "
             f"L3 {processor.get('L3 cache', '?')}; hypervisor {processor.get('Hypervisor vendor', 'none')}",
             f"* {machine['memory_GiB']} GiB, Linux {machine['kernel']}, {machine['system']}, {machine['compiler']}",
             f"* transparent huge pages: {machine['huge_pages']['enabled']}; for shared memory: "
             f"{machine['huge_pages']['shmem_enabled']}",
             f"* commit {machine['commit']}, {machine['date']}, load before: {machine['load_before']:.2f}"]
    for name, peer in machine["peers"].items():
        text = measures.PLACE_TEXT.get(name) or measures.PEER_TEXT[name]
        lines.append(f"* {name} {peer['text']}: {text}" if peer["ok"]
                     else f"* **{name} could not be installed**: {peer['text']} ({text})")
    return lines


def write_table(directory: pathlib.Path, results: Results, machine: dict, plots: list[str]) -> None:
    """table.md."""
    failures = [f"* {measure}, {who}: {error}" for (measure, who), error in results.errors.items()]
    parts = [f"# hvdd beside its peers, {machine['date'][:10]}", "", *machine_text(machine), "",
             "Everybody in turn within each round. A figure is the median over the rounds of each run's median (smallest to",
             "largest of the rounds in brackets); an iteration counts as its slowest rank. Only figures of one run compare.", "",
             "## Bars", "", *bars_table(results), "", "## Figures", "", *figures_table(results)]
    chosen = settings_list(results)
    if chosen:
        parts += ["", "## Settings that won the trials", "", *chosen]
    if failures:
        parts += ["", "## What failed", "", *failures]
    if plots:
        parts += ["", *[f"![{name}]({name}.png)" for name in plots]]
    (directory / "table.md").write_text("\n".join(parts) + "\n", encoding="utf-8")


def write_csv(directory: pathlib.Path, results: Results) -> None:
    """results.csv: one line per measure and participant."""
    with (directory / "results.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["measure", "op", "np", "bytes", "who", "setting", "unit", "median", "smallest", "largest", "rounds",
                        "p99_median", "mean_median", "error"])
        for measure in measures.MEASURES:
            keys = sorted({key for key in (*results.times, *results.errors) if key[0] == measure.name})
            for key in keys:
                times, rows = results.times.get(key, []), results.rows.get(key, [])
                unit = "percent" if measure.op in SHARES else "us"
                figures = [statistics.median(times), min(times), max(times)] if times else ["", "", ""]
                tails = [statistics.median(row[name] for row in rows) if rows and name in rows[0] else ""
                         for name in ("time_us_p99", "time_us_mean")]
                table.writerow([measure.name, measure.op, measure.np, rows[0].get("bytes", "") if rows else measure.size,
                                key[1], results.settings.get(key, ""), unit, *figures, len(times), *tails,
                                "" if times else results.errors.get(key, "")])


# ---- plots ----

def write_plot(directory: pathlib.Path, name: str, title: str, rows: list[tuple[str, float]], unit: str) -> bool:
    """A bar chart by gnuplot; False when gnuplot says no."""
    low = min(value for _label, value in rows) / 3
    lines = [f'"{label}" {low:.6g} {value:.6g} "{value:.3g}"' for label, value in reversed(rows)]  # the first on top
    (directory / f"{name}.dat").write_text("\n".join(lines) + "\n", encoding="utf-8")
    script = f"""set terminal pngcairo size 1100,{120 + 24 * len(rows)} font 'sans,10'
set output '{name}.png'
set title '{title}'
set logscale x
set xrange [{low:.6g}:{max(value for _label, value in rows) * 3:.6g}]
set yrange [-0.7:{len(rows) - 0.3}]
set xlabel '{unit}, less is better'
set grid xtics
set key off
set style fill solid 0.8
plot '{name}.dat' using 3:0:2:3:($0-0.35):($0+0.35):ytic(1) with boxxyerrorbars lc rgb '#4477aa', \\
     '' using 3:0:4 with labels left offset 0.5,0
"""
    (directory / f"{name}.gnuplot").write_text(script, encoding="utf-8")
    done = subprocess.run(["gnuplot", f"{name}.gnuplot"], cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"report: gnuplot: {done.stderr.strip()[:300]}", file=sys.stderr)
    return done.returncode == 0


def write_plots(directory: pathlib.Path, results: Results) -> list[str]:
    """One chart per group of measures; the names of those that were drawn."""
    drawn = []
    if shutil.which("gnuplot") is None:
        print("report: no gnuplot, hence no plots (Debian: gnuplot-nox)", file=sys.stderr)
        return drawn
    groups = [("small", "small allreduces", ("allreduce-4B", "allreduce-2K"), 1, "µs"),
              ("1M", "allreduce of 1 MiB", ("allreduce-1M",), 1, "µs"),
              ("64M", "allreduce of 64 MiB", ("allreduce-64M",), 1e3, "ms"),
              ("gradients", "161 gradients of ResNet-50", ("gradients",), 1e3, "ms"),
              ("python", "hvd.torch", ("python-hooks", "python-step"), 1e3, "ms"),
              ("tensorflow", "hvd.tensorflow", ("tensorflow-step", "tensorflow-gradients"), 1e3, "ms"),
              ("others", "other collectives of 64 MiB", ("allgather", "broadcast", "alltoall", "reducescatter"), 1e3, "ms")]
    for name, title, prefixes, divisor, unit in groups:
        rows = [(f"{measure.name} {who}", results.figure(measure.name, who) / divisor)
                for measure in measures.MEASURES if measure.name.startswith(prefixes)
                for who in (*OURS, *REFERENCES, *measures.PEER_TEXT)
                if results.figure(measure.name, who)]
        if rows and write_plot(directory, name, title, rows, unit):
            drawn.append(name)
    return drawn


def main() -> None:
    """See the module's text."""
    directory = pathlib.Path(sys.argv[1])
    with (directory / "raw.jsonl").open(encoding="utf-8") as file:
        results = Results([json.loads(line) for line in file])
    machine = json.loads((directory / "machine.json").read_text(encoding="utf-8"))
    plots = write_plots(directory, results)
    write_csv(directory, results)
    write_table(directory, results, machine, plots)
    print("\n".join(bars_table(results)))
    print(f"\nresults: {directory}/table.md, results.csv" + "".join(f", {name}.png" for name in plots))


if __name__ == "__main__":
    main()
