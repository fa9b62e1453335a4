"""A data folder that release 0.1's single broker left when it was killed: it opens for ever.

The archive was written by that release: three streams, one of several partitions and one that syncs
by interval, a deleted stream, a cold end, a lease, a snapshot and a journal of commands after it.
``told.json`` has what that broker's metadata held.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from broker.codec.record_batch import decode_body
from broker.core.metadata.state import (
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_REPLICATED,
    MetadataState,
)
from broker.model.ids import LeaseId, PartitionId, PartitionNumber
from broker.runtime.broker import Broker
from simkit.brokers.lone_broker import Running, image, running

ARCHIVE: Final = Path(__file__).with_name("lone_data_folder_0_1.tar.xz")
RECORDS: Final = {
    ("s", 0): [*(b"s%03d" % number for number in range(20)), b"last"],
    ("wide", 0): [b"w0"],
    ("wide", 1): [b"w1"],
    ("wide", 2): [b"w2"],
    ("lazy", 0): [b"lazy"],
}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The data folder, as it was found."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def _told(left: Path) -> Any:
    return json.loads((left.parent / "told.json").read_text())


def _rows(broker: Broker, name: str, number: int) -> list[bytes]:
    partition = broker.partitions.handle(name, number)
    found: list[bytes] = []
    at = partition.reads.log_start
    while at < partition.reads.high_watermark:
        for batch in partition.reads.read(at, partition.reads.high_watermark, bytes_max=1 << 20):
            found += decode_body(batch.header, batch.body).column("value").to_pylist()
            at = batch.header.end_offset
    return found


def _require_all(live: Running, told: Any) -> None:
    """Everything that the metadata held is there, and every record."""
    before = MetadataState.from_json(json.dumps(told["state"]))
    state = live.broker._metadata.state
    assert state.streams == before.streams
    assert state.deleted == before.deleted
    assert state.leases.keys() == before.leases.keys() == {LeaseId(told["lease"])}
    assert state.leases[LeaseId(told["lease"])] == before.leases[LeaseId(told["lease"])]
    assert state.next_id == before.next_id
    assert state.feature_level == FEATURE_LEVEL_REPLICATED
    for uuid, rows in before.partitions.items():
        for number, old in enumerate(rows):
            new = state.partition(PartitionId(uuid, PartitionNumber(number)))
            assert new is not None
            assert new.leader_epoch > old.leader_epoch
            assert new.partition_epoch > old.partition_epoch
            assert new.lineage[: len(old.lineage)] == old.lineage
            assert (new.cold_end, new.opened, new.isr) == (old.cold_end, old.opened, old.isr)
    for (name, number), values in RECORDS.items():
        assert _rows(live.broker, name, number) == values


def test_a_folder_of_the_last_release_opens_with_all_it_held(left: Path, tmp_path: Path) -> None:
    """Records, epochs, leases, lineages, cold ends and deletions, also after a kill and a stop."""
    told = _told(left)
    metadata = {one.name: one.read_bytes() for one in (left / "metadata").iterdir()}
    with running(left) as live:
        _require_all(live, told)
        killed = image(left, tmp_path / "killed")
    for folder in (left, killed):
        with running(folder) as live:
            _require_all(live, told)
            kept = folder / "metadata.before-raft"
            assert {one.name: one.read_bytes() for one in kept.iterdir()} == metadata
            result = live.put(b"new")
            assert result.base_offset == 21
        with running(folder) as live:
            assert live.rows() == [*RECORDS["s", 0], b"new"]


def test_a_stream_of_the_last_release_can_be_changed(left: Path) -> None:
    """The first change raises the feature level, for good: older builds do not know the command."""
    told = _told(left)
    with running(left) as live:
        state = live.broker._metadata.state
        assert state.feature_level == FEATURE_LEVEL_REPLICATED
        live.broker.streams.alter("wide", {"record_bytes_max": 1000}, dry_run=True)
        assert live.broker._metadata.state.feature_level == FEATURE_LEVEL_REPLICATED
        live.broker.streams.alter("wide", {"record_bytes_max": 1000})
    with running(left) as live:
        state = live.broker._metadata.state
        assert state.feature_level == FEATURE_LEVEL_ALTERED
        before = MetadataState.from_json(json.dumps(told["state"])).streams["wide"]
        assert state.streams["wide"].config.record_bytes_max == 1000
        assert state.streams["wide"].uuid == before.uuid
        for (name, number), values in RECORDS.items():
            assert _rows(live.broker, name, number) == values
