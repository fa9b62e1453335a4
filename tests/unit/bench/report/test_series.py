"""What the plots of a run show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.recorder import Recorder, figures_of
from bench.report.series import Run, bars, exceedance, ratios, timeline
from bench.stats import LEVELS


def run_of(*samples: dict[str, Any]) -> Run:
    """Return a run with these samples."""
    return Run(samples, figures_of(list(samples)))


def test_a_path_that_was_not_measured_has_no_bar() -> None:
    """The bars of the others keep their places."""
    run = run_of(
        {"figure": "publish/1KiB/flight", "value": 3.0},
        {"figure": "ingest/1KiB/nats", "value": 5.0},
    )
    found = bars(run, ["publish/1KiB", "catch_up/1KiB", "ingest/1KiB"], ["flight", "nats"])
    assert found == [(0, 3.0), (2, 5.0)]


def test_a_curve_is_the_median_of_the_turns_and_ends_before_the_share_of_nothing() -> None:
    """Keys are as JSON has them, and as Go writes them."""
    turns = [{f"{share:g}": 1000.0 * (turn + share) for share in LEVELS} for turn in (1, 2, 9)]
    run = run_of(*({"figure": "l", "value": 1.0, "levels_us": one} for one in turns))
    curve = exceedance(run, "l")
    assert len(curve) == len(LEVELS) - 1
    assert curve[0] == pytest.approx((2.01, 0.99))
    assert curve[-1] == pytest.approx((2.999, 0.001))


def test_the_timeline_is_of_the_median_kill() -> None:
    """Its counts become rates; there is one edge more than slots."""

    def kill(seconds: float, counts: list[int]) -> dict[str, Any]:
        details = {"slot_s": 0.5, "acks_from_s": -1.0, "acks_by_slot": counts}
        return {"figure": "f", "value": seconds, **details}

    found = timeline(run_of(kill(9.0, [1]), kill(0.5, [4, 6, 0, 3]), kill(0.1, [7])), "f")
    assert found is not None
    assert found.without_s == 0.5
    assert found.edges_s == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert found.per_s == (8.0, 12.0, 0.0, 6.0)


def test_a_run_without_details_has_no_curve_and_no_timeline() -> None:
    """As runs before 2026-11-29."""
    run = run_of({"figure": "f", "value": 1.0})
    assert exceedance(run, "f") == []
    assert timeline(run, "f") is None


def test_above_one_is_better_for_rates_and_for_times() -> None:
    """The peer is the best one of the run; a path without a peer is left out."""
    found = dict(ratios(run_of(
        {"figure": "publish/100B/1p/flight", "value": 300.0},
        {"figure": "publish/100B/1p/jetstream_async", "value": 100.0},
        {"figure": "publish/100B/1p/kafka", "value": 50.0},
        {"figure": "cluster_latency/flight_p50", "value": 4.0},
        {"figure": "cluster_latency/flight_p99", "value": 4.0},
        {"figure": "cluster_latency/kafka_p50", "value": 2.0},
        {"figure": "catch_up/100B/flight", "value": 1.0},
    )))  # fmt: skip
    assert list(found.values()) == [3.0, 0.5]
    assert next(reversed(found)) == "three brokers: one outstanding record, 100 B"


def test_the_name_of_a_bar_is_a_path_without_its_percentiles() -> None:
    """A bar compares one figure, the first one of its row."""
    found = ratios(run_of(
        {"figure": "cluster_failover/ours_p50", "value": 1.0},
        {"figure": "cluster_failover/kafka_p50", "value": 9.0},
    ))  # fmt: skip
    assert found == [("three brokers: leader kill −9 → next acked publish", 9.0)]


def test_a_run_knows_its_scale(tmp_path: Path) -> None:
    """Plots of a trial, whose figures mean nothing, are not drawn into the site."""
    recorder = Recorder(tmp_path / "x.json", {"scale": 0.01})
    recorder.save()
    assert Run.load(recorder.path).scale == 0.01


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A result has its format's number."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"samples": []}), encoding="utf-8")
    with pytest.raises(ValueError, match="not a benchmark result"):
        Run.load(path)
