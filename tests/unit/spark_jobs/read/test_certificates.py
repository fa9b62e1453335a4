"""The certificate of a Spark read of a table from which key compaction has removed records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.errors import CompactedRangeError
from broker.model.certificate import Certificate
from broker.model.cut import Cut
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from headwater.client import Client
from simkit.tier.lab import TierLab, cut_of
from simkit.tier.source import make_stream
from spark_jobs.read import unified


class Reader(Client):
    """A client of a broker that knows no principals."""

    def __init__(self) -> None:
        pass

    def call(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Answer the only question, which is who reads."""
        return []


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A partition of 80 records in the table, of which the first 60 were compacted."""
    config = StreamConfig(subject="orders", history="compact", tombstone_delay_ms=10**9)
    lab = TierLab(tmp_path / "lake", stream=replace(make_stream(), config=config))
    lab.source.fill(4, 20)
    assert lab.ship_all().whole_start(0) == 60
    return lab


def narrowed(lab: TierLab, until: int | None) -> Cut:
    """Return the cut of the newest version with 10 records in the log, up to an end."""
    cut = cut_of(lab.table.snapshot(), lab.stream)
    [part] = cut.partitions
    end = None if until is None else Offset(until)
    return replace(cut, partitions=(replace(part, hot_end=Offset(90), until=end),))


def certificate(lab: TierLab, cut: Cut) -> Certificate:
    """Prove a cut as a Spark read does."""
    proof, _ = unified.certify(cut, form="counts", client=Reader(), location=lab.table.store.config)
    assert proof is not None
    return proof


def test_a_read_that_ends_where_it_begins_has_counted_nothing(lab: TierLab) -> None:
    """Nobody knows how many records are left below an end among them; of none, there is none."""
    [part] = certificate(lab, narrowed(lab, 0)).partitions

    assert (part.start, part.end) == (0, 0)
    assert (part.cold_count, part.hot_count, part.holes) == (0, 0, ())


def test_a_read_of_all_counts_what_is_left(lab: TierLab) -> None:
    """The hole says what is missing, and the records of the log are counted beside the table's."""
    [part] = certificate(lab, narrowed(lab, None)).partitions

    [hole] = part.holes
    assert hole.missing_count == 80 - part.cold_count > 0
    assert (part.hot_count, part.end) == (10, 90)
    [shorter] = certificate(lab, narrowed(lab, 70)).partitions
    assert (shorter.cold_count, shorter.hot_count) == (part.cold_count - 10, 0)


def test_an_end_among_compacted_records_is_refused(lab: TierLab) -> None:
    """Nothing counts what is left below it."""
    with pytest.raises(CompactedRangeError):
        certificate(lab, narrowed(lab, 30))
