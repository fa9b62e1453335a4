"""The rules about late cursors begin when all brokers know them, and refuse nothing before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.core.metadata.state import (
    FEATURE_LEVEL_FENCED,
    FEATURE_LEVEL_RECREATED,
    BrokerState,
)
from broker.errors import UnknownStreamError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.stream import StreamConfig
from broker.runtime.api.groups import Cursors
from broker.runtime.cluster import membership
from simkit.brokers.brokers import disk_broker
from simkit.groups.metadata import stream_of
from simkit.memory_metadata import MemoryMetadata

GROUP = "__group:g"


@pytest.fixture
def metadata() -> MemoryMetadata:
    """Give the metadata of two brokers, one of an older build, and stream s."""
    made = MemoryMetadata(BrokerId("a"))
    levels = {"a": FEATURE_LEVEL_RECREATED, "b": FEATURE_LEVEL_FENCED}
    brokers = {
        BrokerId(name): BrokerState(epoch=BrokerEpoch(1), features_max=level)
        for name, level in levels.items()
    }
    made.state = replace(made.state, brokers=brokers, feature_level=FEATURE_LEVEL_FENCED)
    made.note("s", stream_of("s", 1, 1))
    return made


def test_the_first_cursor_of_a_group_raises_the_level_when_the_last_broker_is_upgraded(
    metadata: MemoryMetadata,
) -> None:
    """Until then groups store their cursors as before; others' cursors raise nothing."""
    cursors = Cursors(metadata)
    cursors.set(GROUP, "s", 0, 4)
    cursors.set(GROUP, "gone", 0, 4)
    assert cursors.get(GROUP, "s", 0) == cursors.get(GROUP, "gone", 0) == 4
    assert metadata.state.feature_level == FEATURE_LEVEL_FENCED
    upgraded = replace(metadata.state.brokers[BrokerId("b")], features_max=FEATURE_LEVEL_RECREATED)
    brokers = {**metadata.state.brokers, BrokerId("b"): upgraded}
    metadata.state = replace(metadata.state, brokers=brokers)
    cursors.set("mine", "gone", 0, 4)
    assert metadata.state.feature_level == FEATURE_LEVEL_FENCED
    with pytest.raises(UnknownStreamError):
        cursors.set(GROUP, "gone", 0, 5)
    assert metadata.state.feature_level == FEATURE_LEVEL_RECREATED


def test_an_upgraded_broker_makes_a_stream_without_the_cursors_that_the_older_build_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation raises the level if there are such cursors, and only then."""
    with monkeypatch.context() as older:
        older.setattr(membership, "FEATURE_LEVEL_MAX", FEATURE_LEVEL_FENCED)
        with disk_broker(tmp_path) as broker:
            broker.cursors.set(GROUP, "s", 0, 41)
            assert broker.cursors.get(GROUP, "s", 0) == 41
    with disk_broker(tmp_path) as broker:
        broker.streams.create("t", StreamConfig(subject="t", tiering=False))
        assert broker._metadata.state.feature_level == FEATURE_LEVEL_FENCED
        broker.streams.create("s", StreamConfig(subject="s", tiering=False))
        assert broker._metadata.state.feature_level == FEATURE_LEVEL_RECREATED
        assert broker.cursors.get(GROUP, "s", 0) is None
