# SPDX-License-Identifier: Apache-2.0
"""Makes table.md, results.csv and the plots out of raw.jsonl and machine.json in a directory.

    report.py DIR

A figure is the median over the rounds of each run's median; its spread is the smallest and the largest of those. How a bar is
judged: results.py."""
import csv
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict

import measures
from machine import load_text
from measures import Bar
from results import REFERENCES, SHARES, Results, Verdict, judge, measure_of

OURS = ("hvdd-shared", "hvdd-malloc", "hvdd-adopted", "hvdd-python", "hvdd-python-fresh", "hvdd-python-2.0.1",
        "hvdd-tf221", "hvdd-tf221-shared", "hvdd-tf215", "hvdd-tf215-shared", "hvdd-tf212")


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

def why_unknown(results: Results, bar: Bar) -> str:
    """Why a bar has no verdict."""
    error = results.errors.get((bar.measure, f"hvdd-{bar.memory}"))
    measured = (bar.measure, f"hvdd-{bar.memory}") in results.rows
    return f"no figure: {error[:120]}" if error else "no peer to compare with" if measured else "not measured"


def ratio_text(bar: Bar, verdict: Verdict) -> str:
    """That of the medians, and the range over the rounds."""
    if verdict.ratio is None:
        return "–"
    form = "{:.0%}" if bar.kind == "share-of-onepass" else "{:.2f}x"
    text = form.format(verdict.ratio)
    if len(verdict.ratios) > 1:
        text += f" ({form.format(min(verdict.ratios))}–{form.format(max(verdict.ratios))})"
    return text


def rival_text(results: Results, bar: Bar, verdict: Verdict) -> str:
    """Its name and figure, and whether it was steady."""
    if verdict.rival is None:
        return "–"
    name, figure = verdict.rival
    text = f"{name} {amount(figure, measure_of(bar).op)}"
    if bar.kind == "share-of-onepass" and verdict.ours:
        others = [(who, results.figure(bar.measure, who)) for who in REFERENCES if who != name]
        text += "".join(f" ({who} {amount(time)}: {time / verdict.ours:.0%})" for who, time in others if time)
    return text + (" (unsteady)" if results.unsteady(bar.measure, name) else "")


def is_on_nodes(results: Results) -> bool:
    """Whether this run was between nodes."""
    seen = {name for name, _who in (*results.rows, *results.errors)}
    return any(measure.nodes for measure in measures.MEASURES if measure.name in seen)


def bars_table(results: Results) -> list[str]:
    """Markdown: those of one machine, or those between nodes."""
    lines = ["| bar | hvdd | fastest rival | ratio (of the rounds) | |", "|---|---|---|---|---|"]
    for bar in measures.BARS:
        if bool(measure_of(bar).nodes) != is_on_nodes(results):
            continue
        verdict = judge(results, bar)
        ours = amount(verdict.ours, measure_of(bar).op)
        if bar.kind == "ops-per-second" and verdict.ours:
            ours = f"{1e6 / verdict.ours:,.0f} ops/s"
        lines.append(f"| {verdict.bar} | {ours} | {rival_text(results, bar, verdict)} | {ratio_text(bar, verdict)} | "
                     f"{verdict.words() or why_unknown(results, bar)} |")
    return lines


def conditions(machine: dict) -> list[str]:
    """What a reader of the verdicts has to know of the run."""
    lines = []
    if machine.get("changed"):
        lines.append("* **The tree had changes that no commit has: these figures are of nothing that can be had again.**")
    if machine.get("binaries"):
        lines.append(f"* **{machine['binaries']}**")
    load = machine.get("load")
    return [*lines, "* " + (load_text(load) if load else f"load before: {machine['load_before']:.2f}")]


def unsteady_list(results: Results) -> list[str]:
    """Peers that differ from their trials after all repetitions."""
    return [f"* {measure}, {who}: " + ", ".join(f"{times:.2f}x the trial in round {turn + 1}" for turn, times in odd.items())
            for measure, who in results.rows if (odd := results.unsteady(measure, who))]


# ---- figures ----

def spread(results: Results, measure: str, who: str, op: str) -> str:
    """Figure, and the range over the rounds when there were several."""
    times = results.rounds(measure, who).values()
    if not times:
        return "failed" if (measure, who) in results.errors else "–"
    text = amount(statistics.median(times), op)
    return text if len(times) == 1 else f"{text} ({amount(min(times), op)}–{amount(max(times), op)})"


def figures_table(results: Results) -> list[str]:
    """Markdown: a line per measure, a column per participant."""
    order = [*OURS, *REFERENCES, *measures.BESIDE, *measures.PEER_TEXT]
    seen = {who for _measure, who in (*results.rows, *results.errors)}
    columns = [who for who in order if who in seen]
    lines = ["| measure | np | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for measure in measures.MEASURES:
        if any((measure.name, who) in results.rows for who in columns):
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


def machine_text(machine: dict, on_nodes: bool) -> list[str]:
    """What and where."""
    processor = machine["cpu"]
    lines = [f"* {processor.get('CPU(s)', '?')} CPUs, {processor.get('Model name', '?')} "
             f"({processor.get('Vendor ID', '?')} family {processor.get('CPU family', '?')} model "
             f"{processor.get('Model', '?')}), {processor.get('vectors', '')}; L2 {processor.get('L2 cache', '?')}, "
             f"L3 {processor.get('L3 cache', '?')}; hypervisor {processor.get('Hypervisor vendor', 'none')}",
             f"* {machine['memory_GiB']} GiB, Linux {machine['kernel']}, {machine['system']}, {machine['compiler']}",
             f"* transparent huge pages: {machine['huge_pages']['enabled']}; for shared memory: "
             f"{machine['huge_pages']['shmem_enabled']}",
             f"* commit {machine['commit']}, {machine['date']}"]
    for name, peer in machine["peers"].items():
        text = (on_nodes and measures.NODES_TEXT.get(name)) or measures.PLACE_TEXT.get(name) or measures.PEER_TEXT.get(name, "")
        lines.append(f"* {name} {peer['text']}: {text}" if peer["ok"]
                     else f"* **{name} could not be installed**: {peer['text']} ({text})")
    return lines


def write_table(directory: pathlib.Path, results: Results, machine: dict, plots: list[str]) -> None:
    """table.md."""
    failures = [f"* {measure}, {who}: {error}" for (measure, who), error in results.errors.items()]
    parts = [f"# hvdd beside its peers, {machine['date'][:10]}", "", *machine_text(machine, is_on_nodes(results)), "",
             "Everybody in turn within each round. A figure is the median over the rounds of each run's median (smallest to",
             "largest of the rounds in brackets); an iteration counts as its slowest rank. Only figures of one run compare.", "",
             "## Bars", "", *conditions(machine), "",
             "The fastest peer is the fastest of all that ran; a bar holds when it does in every round, against the fastest in it.", "",
             *bars_table(results), "", "## Figures", "", *figures_table(results)]
    for heading, lines in (
            ("Settings that won the trials", settings_list(results)),
            (f"Peers that differ from their own trial by more than {measures.STEADY:g}x, after {measures.REPEATS} repetitions",
             unsteady_list(results)),
            ("What failed", failures)):
        if lines:
            parts += ["", f"## {heading}", "", *lines]
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
            keys = sorted({key for key in (*results.rows, *results.errors) if key[0] == measure.name})
            for key in keys:
                times, rows = list(results.rounds(*key).values()), list(results.rows.get(key, {}).values())
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
              ("nodes-small", "between nodes, small", ("nodes-allreduce-4B", "nodes-allreduce-1M", "nodes-first"), 1, "µs"),
              ("nodes", "between nodes", ("nodes-allreduce-64M", "nodes-gradients", "nodes-broadcast", "nodes-allgather",
                                          "nodes-alltoall", "nodes-reducescatter"), 1e3, "ms"),
              ("others", "other collectives of 64 MiB", ("allgather", "broadcast", "alltoall", "reducescatter"), 1e3, "ms")]
    for name, title, prefixes, divisor, unit in groups:
        rows = [(f"{measure.name} {who}", results.figure(measure.name, who) / divisor)
                for measure in measures.MEASURES if measure.name.startswith(prefixes)
                for who in (*OURS, *REFERENCES, *measures.BESIDE, *measures.PEER_TEXT)
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
    print("\n".join([*conditions(machine), "", *bars_table(results), *unsteady_list(results)]))
    print(f"\nresults: {directory}/table.md, results.csv" + "".join(f", {name}.png" for name in plots))


if __name__ == "__main__":
    main()
