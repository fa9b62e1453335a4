"""What a run keeps, and what is read from it later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.recorder import Recorder, figures_of, load_figures
from bench.stats import Summary


def test_a_saved_run_gives_the_same_figures_again(tmp_path: Path) -> None:
    """Raw samples, details and facts are in the file; figures are computed from the samples."""
    recorder = Recorder(tmp_path / "results" / "run.json", {"scale": 1.0})
    for value in (3.0, 1.0, 2.0):
        recorder.add("tier/local/x", value, "s", tool="this one")
    recorder.failed("spark", OSError("no Java"))
    recorder.save()
    assert load_figures(recorder.path) == {"tier/local/x": Summary(2.0, 1.0, 3.0, 3)}
    body = json.loads(recorder.path.read_text())
    assert [sample["value"] for sample in body["samples"]] == [3.0, 1.0, 2.0]
    assert body["samples"][0]["tool"] == "this one"
    assert body["facts"] == {"scale": 1.0}
    assert body["failures"] == {"spark": "OSError: no Java"}


def test_the_peer_is_shown_by_its_fastest_tool() -> None:
    """Which tool is fastest is decided by medians, apart for synced and default."""
    samples = [
        {"figure": "publish/1p/jetstream_async", "value": 100},
        {"figure": "publish/1p/jetstream_bench_batch", "value": 90},
        {"figure": "publish/1p/jetstream_async_synced", "value": 5},
        {"figure": "publish/1p/jetstream_bench_batch_synced", "value": 80},
    ]
    figures = figures_of(samples)
    assert figures["publish/1p/jetstream"].median == 100
    assert figures["publish/1p/jetstream_synced"].median == 80


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    """An old or foreign file is not reported as if it were ours."""
    path = tmp_path / "x.json"
    path.write_text('{"format": 99, "samples": []}')
    with pytest.raises(ValueError, match="not a benchmark result"):
        load_figures(path)


def test_an_interrupted_run_goes_on_with_what_was_finished(tmp_path: Path) -> None:
    """Samples of the measure that was cut off are dropped; a failed measure runs again."""
    path = tmp_path / "all.json"
    facts = {"scale": 1.0, "repeat": 3}
    first = Recorder.resumed(path, facts)
    for measure, value in (("publish", 1.0), ("latency", 2.0), ("spark", 3.0)):
        first.begin(measure)
        first.add(f"{measure}/x", value, "s")
        if measure == "publish":
            first.end(measure)
    first.failed("latency", OSError("disk"))
    first.save()

    again = Recorder.resumed(path, facts)
    assert again.finished == ("publish",)
    assert set(again.figures()) == {"publish/x"}
    again.begin("latency")
    again.add("latency/x", 4.0, "s")
    again.end("latency")
    again.save()
    assert json.loads(path.read_text())["failures"] == {}
    assert Recorder.resumed(path, facts).figures()["latency/x"].median == 4.0
    with pytest.raises(ValueError, match="begun with scale"):
        Recorder.resumed(path, facts | {"scale": 0.5})
