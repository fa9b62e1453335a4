"""How many records a measure takes at a run's scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.nats_tools import PeerTools
from bench.recorder import Recorder
from bench.session import RECORDS_MIN, Session


def session_of(scale: float, folder: Path) -> Session:
    """Return a session of this scale that measures nothing."""
    recorder = Recorder(folder / "x.json", {})
    tools = PeerTools(None, None, "none")
    return Session(work=folder, scale=scale, repeat=1, recorder=recorder, tools=tools)


@pytest.mark.parametrize(
    ("scale", "records", "count"),
    [
        (1.0, 8_000_000, 8_000_000),
        (0.5, 8_000_000, 4_000_000),
        (0.0001, 8_000_000, RECORDS_MIN),
        (1.0, 200, 200),
        (0.05, 200, 200),
        (3.0, 200, 600),
    ],
)
def test_a_small_scale_leaves_enough_records_and_never_makes_them_more(
    tmp_path: Path, scale: float, records: int, count: int
) -> None:
    """A measure that creates 200 streams creates 200, not the least number of records."""
    assert session_of(scale, tmp_path).count(records) == count


def test_a_count_is_rounded_up_to_whole_batches(tmp_path: Path) -> None:
    """Each of several publishers has the same number of whole batches."""
    assert session_of(0.001, tmp_path).count(4_000_000, multiple=8192 * 4) == 8192 * 4
