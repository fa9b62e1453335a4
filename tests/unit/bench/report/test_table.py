"""Rows, bars and verdicts of the benchmark's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.cluster_rows import CLUSTER_ROWS
from bench.report.rows import ROWS
from bench.report.secure_rows import SECURE_ROWS
from bench.report.table import (
    AtLeast,
    AtMost,
    Row,
    Times,
    quantity,
    render,
    render_beside,
    render_headlines,
    replace_between,
    verdict,
)
from bench.stats import Summary

ROOT = Path(__file__).parents[4]
BEGIN, END = "<!-- x:begin -->", "<!-- x:end -->"


def one(value: float) -> Summary:
    """Return a figure with one sample."""
    return Summary(value, value, value, 1)


RATE = Row(
    path="publish",
    unit="rec/s",
    ours=("p/flight",),
    default=("p/jetstream",),
    synced=("p/jetstream_synced",),
    bar="≥ 2×",
    bars=((Times(2.0, ("p/jetstream",)),),),
)


@pytest.mark.parametrize(("ours", "expected"), [(200.0, "yes"), (199.9, "**no**")])
def test_a_ratio_bar_is_judged_against_the_peer_of_the_same_run(ours: float, expected: str) -> None:
    """Exactly the factor is enough, anything below it is not."""
    assert verdict(RATE, {"p/flight": one(ours), "p/jetstream": one(100.0)}) == expected


def test_a_bar_whose_peer_did_not_run_is_neither_met_nor_missed() -> None:
    """The table says which peer was missing instead of guessing."""
    assert verdict(RATE, {"p/flight": one(1e9)}) == "peer not run"
    kafka = Row(path="x", unit="rec/s", ours=("x/a",), bars=((Times(4.0, ("x/kafka",)),),))
    assert verdict(kafka, {"x/a": one(1e9)}) == "Kafka not run"


def test_a_missed_bar_is_missed_also_when_another_peer_did_not_run() -> None:
    """One broken bar decides, whatever the others would have said."""
    bars = ((Times(1.3, ("x/jetstream",)), Times(1.3, ("x/kafka",))),)
    row = Row(path="x", unit="rec/s", ours=("x/a",), bars=bars)
    assert verdict(row, {"x/a": one(100.0), "x/jetstream": one(100.0)}) == "**no**"


def test_every_figure_of_a_row_has_its_own_bar() -> None:
    """A fast median does not make up for a slow tail."""
    row = Row(
        path="latency", unit="ms", ours=("l/p50", "l/p99"), bars=((AtMost(0.5),), (AtMost(1.0),))
    )
    assert verdict(row, {"l/p50": one(0.5), "l/p99": one(1.0)}) == "yes"
    assert verdict(row, {"l/p50": one(0.1), "l/p99": one(1.1)}) == "**no**"


def test_a_row_without_a_bar_has_no_verdict() -> None:
    """What is only shown is not judged."""
    row = Row(path="x", unit="s", ours=("x/a",))
    assert verdict(row, {"x/a": one(1.0)}) == "–"


def test_an_upper_ratio_bar_uses_the_smallest_peer() -> None:
    """The limit is the factor times the smallest peer."""
    row = Row(path="x", unit="s", ours=("o",), bars=((Times(1.1, ("n",), at_most=True),),))
    assert verdict(row, {"o": one(1.1), "n": one(1.0)}) == "yes"
    assert verdict(row, {"o": one(1.2), "n": one(1.0)}) == "**no**"
    least = Row(path="x", unit="s", ours=("o",), bars=((AtLeast(2.0),),))
    assert verdict(least, {"o": one(1.9)}) == "**no**"


def test_the_table_has_medians_ranges_ratio_and_verdict() -> None:
    """One line per measured row; rows that this run did not measure are left out."""
    figures = {
        "p/flight": Summary(2_000_000.0, 1_500_000.0, 2_500_000.0, 3),
        "p/jetstream": Summary(160_000.0, 150_000.0, 170_000.0, 3),
    }
    absent = Row(path="absent", unit="s", ours=("q/x",))
    lines = render([RATE, absent], figures).splitlines()
    cells = ["publish", "2.00 M rec/s (1.50 M–2.50 M)", "160 k rec/s (150 k–170 k)", "–"]
    assert lines[2:] == [f"| {' | '.join([*cells, '12.50×', '≥ 2×', 'yes'])} |"]


CLUSTER_RATE = Row(
    path="publish",
    unit="rec/s",
    ours=("c/flight",),
    default=("c/jetstream",),
    kafka=("c/kafka",),
    bar="≥ 8×",
    bars=((Times(8.0, ("c/jetstream", "c/kafka")),),),
)


def test_a_cluster_is_compared_with_the_better_of_its_peers() -> None:
    """The higher rate is better; a note below says that the peers do not sync."""
    figures = {"c/flight": one(800.0), "c/jetstream": one(100.0), "c/kafka": one(50.0)}
    table = render_beside([CLUSTER_RATE], figures)
    assert table.splitlines()[2] == (
        "| publish | 800 rec/s | 100 rec/s | 50.0 rec/s | 8.00× | ≥ 8× | yes |"
    )
    assert "Neither JetStream R3 nor Kafka RF3 syncs" in table
    assert "**no**" in render_beside([CLUSTER_RATE], figures | {"c/kafka": one(101.0)})


def test_the_better_peer_of_a_time_is_the_shorter_one() -> None:
    """Figure by figure, because one peer may have the median and the other the tail."""
    row = Row(
        path="latency",
        unit="ms",
        ours=("l/a_p50", "l/a_p99"),
        default=("l/j_p50", "l/j_p99"),
        kafka=("l/k_p50", "l/k_p99"),
    )
    figures = {
        "l/a_p50": one(1.0), "l/a_p99": one(2.0), "l/j_p50": one(0.5), "l/j_p99": one(4.0),
        "l/k_p50": one(2.0), "l/k_p99": one(1.0),
    }  # fmt: skip
    assert "| 2.00× / 2.00× |" in render_beside([row], figures)


def test_a_cluster_whose_peers_did_not_run_has_no_ratio() -> None:
    """Its bar is neither met nor missed; without figures of Headwater there is no table at all."""
    assert "| – | ≥ 8× | Kafka not run |" in render_beside([CLUSTER_RATE], {"c/flight": one(1.0)})
    assert render_beside([CLUSTER_RATE], {"c/kafka": one(1.0)}) == ""


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (999.0, "rec/s", "999"),
        (1_000.0, "rec/s", "1.00 k"),
        (999_499.0, "rec/s", "999 k"),
        (999_500.0, "rec/s", "1.00 M"),
        (12_345_678.0, "rows/s", "12.3 M"),
        (4_321.0, "MiB/s", "4321"),
        (0.123, "ms", "0.12"),
    ],
)
def test_quantities_have_three_digits(value: float, unit: str, expected: str) -> None:
    """Rates of records are in k and M, everything else is as it is."""
    assert quantity(value, unit) == expected


def test_only_what_is_between_the_markers_changes() -> None:
    """The text around the table stays, and writing twice changes nothing."""
    other = "<!-- other:begin -->\n<!-- other:end -->\n"
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n{other}"
    once = replace_between(text, "x", "| new |")
    assert once == f"# Title\n\n{BEGIN}\n\n| new |\n\n{END}\n\nmore\n{other}"
    assert replace_between(once, "x", "| new |") == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_text_without_one_pair_of_markers_is_refused(text: str) -> None:
    """A table is never written to a place that was not meant for it."""
    with pytest.raises(ValueError, match="needs one"):
        replace_between(text, "x", "table")


@pytest.mark.parametrize("rows", [ROWS, CLUSTER_ROWS, SECURE_ROWS])
def test_the_rows_of_the_product_are_well_formed(rows: tuple[Row, ...]) -> None:
    """No row has more bars than figures, or a bar without words for it."""
    assert all(len(row.bars) <= len(row.ours) for row in rows)
    assert all(bool(row.bar) == bool(row.bars) for row in rows)


def test_no_path_of_the_first_table_is_named_twice() -> None:
    """A reader who looks for a figure finds one."""
    paths = [row.path for row in ROWS]
    assert len(set(paths)) == len(paths)


def test_the_short_table_names_the_best_peer() -> None:
    """Most of a rate, least of a time; a row that was not measured is absent."""
    rows = (
        Row(
            path="p", unit="rec/s", ours=("a/flight",), default=("a/jetstream",),
            kafka=("a/kafka",), headline="rate",
        ),
        Row(path="p", unit="ms", ours=("b/flight",), default=("b/jetstream",), headline="time"),
        Row(path="p", unit="s", ours=("c/flight",), headline="alone"),
        Row(path="p", unit="s", ours=("d/flight",), headline="not measured"),
        Row(path="p", unit="rec/s", ours=("a/flight",), default=("a/jetstream",)),
    )  # fmt: skip
    found = {"a/flight": 3.0, "a/jetstream": 1.0, "a/kafka": 2.0, "b/flight": 4.0}
    found |= {"b/jetstream": 1.0, "c/flight": 7.0}
    lines = render_headlines(rows, {name: one(value) for name, value in found.items()})
    assert lines.splitlines()[2:] == [
        "| rate | 3.00 rec/s | 2.00 rec/s, Kafka | 1.50× |",
        "| time | 4.00 ms | 1.00 ms, JetStream | 4.00× |",
        "| alone | 7.00 s | – | – |",
    ]


def test_the_readme_s_table_has_eight_rows() -> None:
    """What a stranger reads first; the rest is in docs/performance.md."""
    assert sum(bool(row.headline) for row in ROWS) == 8


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("README.md", "bench"),
        ("docs/performance.md", "bench"),
        ("docs/performance.md", "bench-cluster"),
    ],
)
def test_the_pages_have_the_markers_that_their_tables_are_written_between(
    page: str, name: str
) -> None:
    """A whole run would otherwise end without a table that it took an hour to measure."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "the table" in replace_between(text, name, "the table")
