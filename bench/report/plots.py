"""Draws a run of ``make bench-all`` as SVG files: ``python -m bench.report.plots``.

It runs in an environment of its own (bench/requirements.lock), so it may import from ``bench`` only
what needs nothing else. A plot whose figures the run does not have is not drawn, and is named. The
same run gives the same bytes: no date, no random identifier.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.report import series
from bench.report.series import Run
from bench.report.table import quantity

_ROOT: Final = Path(__file__).resolve().parents[2]
_RESULTS: Final = _ROOT / "bench" / "results"
_FOLDER: Final = _ROOT / "docs" / "plots"
_TRIALS: Final = _ROOT / "out" / "bench"  # of sittings at a small scale, whose figures mean nothing
_WIDTH: Final = 9.0  # inches
# Colours that are told apart by everybody (Okabe and Ito), the same for a side in every plot.
_OURS, _OURS_TOO = "#0072B2", "#56B4E9"
_JETSTREAM, _JETSTREAM_SYNCED, _KAFKA = "#E69F00", "#D55E00", "#777777"
_WORSE: Final = _JETSTREAM_SYNCED
_MEMORY_BAR_MIB: Final = 350.0
_STYLE: Final[dict[str, Any]] = {
    "svg.hashsalt": "headwater", "svg.fonttype": "none", "font.family": "sans-serif",
    "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6,
}  # fmt: skip


def throughput(run: Run) -> Figure | None:
    """Draw records per second by record size, ours beside the peers, on a logarithmic scale."""
    sizes = {"100B": "records of 100 B", "1KiB": "records of 1 KiB"}
    paths = {
        "publish/{}/1p": "publish,\none publisher",
        "publish/{}/4p": "publish,\n4 publishers",
        "ingest/{}": "plain NATS\nmade durable",
        "catch_up/{}": "catch-up\nread",
    }
    sides = {
        "Headwater, synced": (("flight", "nats"), _OURS),
        "JetStream, default": (("jetstream",), _JETSTREAM),
        "JetStream, synced": (("jetstream_synced",), _JETSTREAM_SYNCED),
        "Kafka, default": (("kafka",), _KAFKA),
    }
    figure, drawn = Figure(figsize=(_WIDTH, 3.6), layout="constrained"), False
    width = 0.8 / len(sides)
    for number, (size, title) in enumerate(sizes.items()):
        axes = figure.add_subplot(1, 2, number + 1)
        for place, (label, (names, colour)) in enumerate(sides.items()):
            found = series.bars(run, [path.format(size) for path in paths], names)
            drawn |= bool(found)
            where = [at + (place - (len(sides) - 1) / 2) * width for at, _ in found]
            values = [value for _, value in found]
            shown = axes.bar(where, values, width, color=colour, label="" if number else label)
            labels = [quantity(value, "rec/s") for value in values]
            axes.bar_label(shown, labels, rotation=90, padding=2, fontsize=7)
        axes.set_yscale("log")
        axes.margins(y=0.25)
        axes.set_xticks(range(len(paths)), paths.values())
        axes.set_title(title)
        axes.set_ylabel("records/s")
        axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=len(sides), frameon=False)
    return figure if drawn else None


def latency(run: Run) -> Figure | None:
    """Draw how long one outstanding record takes: the share of records that take longer."""
    panels = {
        "one broker": ("latency/100B/{}_p50", {
            "Headwater, Flight": ("flight", _OURS), "Headwater, NATS": ("nats", _OURS_TOO),
            "JetStream, not synced": ("jetstream", _JETSTREAM),
            "JetStream, synced": ("jetstream_synced", _JETSTREAM_SYNCED),
        }),
        "three brokers, of which only ours sync": ("cluster_latency/{}_p50", {
            "Headwater, Flight": ("flight", _OURS), "JetStream R3": ("jetstream", _JETSTREAM),
            "Kafka RF3": ("kafka", _KAFKA),
        }),
    }  # fmt: skip
    figure, drawn = Figure(figsize=(_WIDTH, 3.6), layout="constrained"), False
    for number, (title, (name, sides)) in enumerate(panels.items()):
        axes, legend = figure.add_subplot(1, 2, number + 1), False
        for label, (side, colour) in sides.items():
            curve = series.exceedance(run, name.format(side))
            if curve:
                drawn = legend = True
                times_ms, slower = zip(*curve, strict=True)
                axes.plot(times_ms, slower, color=colour, label=label, marker=".", markersize=4)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.3g} %")
        axes.set_title(f"one outstanding record of 100 B,\n{title}")
        axes.set_xlabel("milliseconds until its acknowledgement")
        axes.set_ylabel("share of records that take longer")
        if legend:
            axes.legend(frameon=False, fontsize=7)
    return figure if drawn else None


def failover(run: Run) -> Figure | None:
    """Draw what a publisher gets acknowledged around the kill of its leader; the median kill."""
    sides = {
        "Headwater, 3 replicas": ("ours", _OURS), "JetStream R3": ("jetstream", _JETSTREAM),
        "Kafka RF3": ("kafka", _KAFKA),
    }  # fmt: skip
    figure, drawn = Figure(figsize=(_WIDTH, 3.2), layout="constrained"), False
    axes = figure.add_subplot()
    for label, (side, colour) in sides.items():
        one = series.timeline(run, f"cluster_failover/{side}")
        if one is not None:
            drawn = True
            name = f"{label}: {one.without_s:.1f} s"
            axes.stairs(  # no line down to 0 where the kept timeline ends
                one.per_s, one.edges_s, baseline=None, color=colour, label=name, linewidth=1.4
            )
    axes.axvline(0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yscale("symlog", linthresh=10)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since kill −9 of the leader (of each side the median kill)")
    axes.set_ylabel("acknowledged records/s, one at a time")
    title = "from the kill to the next acknowledgement"
    figure.legend(title=title, loc="outside upper center", ncols=len(sides), frameon=False)
    return figure if drawn else None


def memory(run: Run) -> Figure | None:
    """Draw the broker's resident memory under the mixed load of the measure ``soak``."""
    found = run.of("soak/rss_mib", "after_s")
    if not found:
        return None
    figure = Figure(figsize=(_WIDTH, 3.0), layout="constrained")
    axes = figure.add_subplot()
    minutes = [one["after_s"] / 60 for one in found]
    axes.plot(minutes, [one["value"] for one in found], color=_OURS, linewidth=1.0)
    axes.axhline(_MEMORY_BAR_MIB, color=_WORSE, linewidth=0.8, linestyle="--")
    bar = f"bar: {_MEMORY_BAR_MIB:g} MiB"
    axes.annotate(bar, (minutes[0], _MEMORY_BAR_MIB), (2, -10), textcoords="offset points")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes of mixed load; the last one is at rest")
    axes.set_ylabel("resident memory of the broker, MiB")
    return figure


def ratios(run: Run) -> Figure | None:
    """Draw how many times as good as its best peer each path is; left of the line is worse."""
    found = series.ratios(run)[::-1]  # the first row is drawn at the top
    if not found:
        return None
    figure = Figure(figsize=(_WIDTH, 0.8 + 0.24 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    colours = [_OURS if ratio >= 1 else _WORSE for _, ratio in found]
    places = range(len(found))
    shown = axes.barh(places, [ratio - 1 for _, ratio in found], left=1, color=colours)
    axes.bar_label(shown, [f"{ratio:.2g}×" for _, ratio in found], padding=3, fontsize=7)
    axes.set_yticks(places, [label for label, _ in found], fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.01)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.set_xlabel("times as good as the best peer of the same run")
    axes.grid(visible=False, axis="y")
    return figure


PLOTS: Final[Mapping[str, Callable[[Run], Figure | None]]] = {
    "throughput": throughput,
    "latency": latency,
    "failover": failover,
    "memory": memory,
    "ratios": ratios,
}


def draw(run: Run, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the plots; return the files, and the names of plots whose figures are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    written, missing = [], []
    with mpl.rc_context(_STYLE):
        for name, plot in PLOTS.items():
            figure = plot(run)
            if figure is None:
                missing.append(name)
                continue
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            written.append(path)
    return written, missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the newest run of ``make bench-all``, or the given one.

    One at a small scale is a trial: its plots are no part of the site, unless a folder is named.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.report.plots", description=__doc__)
    parser.add_argument("result", type=Path, nargs="?", help="default: the newest *-all.json")
    folder_help = "default: docs/plots, or out/bench/plots for a run at a scale below 1"
    parser.add_argument("--folder", type=Path, help=folder_help)
    options = parser.parse_args(arguments)
    kept = [*_RESULTS.glob("*-all.json"), *_TRIALS.glob("*-all.json")]
    result = options.result or max(kept, key=lambda path: path.name, default=None)
    if result is None:
        print("no run of `make bench-all` is in bench/results; name a file", file=sys.stderr)
        return 1
    run = Run.load(result)
    folder = options.folder or (_FOLDER if run.scale >= 1 else _TRIALS / "plots")
    written, missing = draw(run, folder)
    print("\n".join(f"drawn: {path}" for path in written))
    for name in missing:
        print(f"not drawn: {name}; {result.name} does not have its figures", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
