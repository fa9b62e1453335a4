"""One damaged log is set aside while the others stay open, and its replica begins anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.core.metadata.state import MetadataState
from broker.errors import CorruptDataError, KeyProviderUnavailableError
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.stream import StreamConfig
from broker.runtime.replica_opener import ReplicaOpener
from simkit.brokers.lone_broker import Running, killed, running


def _follow(live: Running, partition_id: PartitionId) -> None:
    """Reconcile until the replica is open, undamaged; each call takes one step at least."""
    for _ in range(10):
        live.broker.reconcile()
        found = live.broker.replicas.find(partition_id)
        if found is not None and not found.health.is_damaged:
            return
    raise AssertionError(f"{partition_id} is not opened again")


def test_a_damaged_log_is_kept_beside_and_an_empty_one_takes_its_place(tmp_path: Path) -> None:
    """Its bytes can be examined; a whole log of the same broker is not even closed."""
    at = killed(tmp_path)
    at.segments()[2].unlink()
    with running(at.folder) as live:
        whole = live.broker.streams.create("whole", StreamConfig(subject="w"))
        replicas, damaged = live.broker.replicas, live.partition
        other = replicas.find(PartitionId(whole.uuid, PartitionNumber(0)))
        assert other is not None
        with pytest.raises(CorruptDataError):
            live.rows()
        assert replicas.damaged() == [damaged.partition_id]
        replicas.begin_set_aside(other.partition_id)
        live.broker.reconcile()
        assert replicas.find(other.partition_id) is other, "it is not damaged"
        kept = sorted(one.name for one in at.segments())
        replicas.begin_set_aside(damaged.partition_id)
        _follow(live, damaged.partition_id)
        assert replicas.damaged() == []
        assert replicas.find(other.partition_id) is other
        assert live.partition.reads.log_end == 0
        (aside,) = (at.folder / "damaged").iterdir()
        assert sorted(one.name for one in aside.glob("*.log")) == kept


def test_to_ask_for_it_waits_for_no_reconcile(tmp_path: Path) -> None:
    """A reconcile that opens many logs takes long, and the asker has other failed logs."""
    at = killed(tmp_path)
    at.segments()[2].unlink()
    with running(at.folder) as live, ThreadPoolExecutor(1) as threads:
        replicas, damaged = live.broker.replicas, live.partition
        with replicas._lock:  # as a reconcile holds it
            threads.submit(replicas.begin_set_aside, damaged.partition_id).result(timeout=10)
            assert replicas.find(damaged.partition_id) is damaged, "the next reconcile closes it"
        _follow(live, damaged.partition_id)
        assert replicas.damaged() == []


def test_a_damaged_log_whose_stream_is_deleted_meanwhile_is_removed(tmp_path: Path) -> None:
    """Nobody looks for the records of a deleted stream."""
    at = killed(tmp_path)
    at.segments()[2].unlink()
    with running(at.folder) as live:
        replicas, damaged = live.broker.replicas, live.partition
        with replicas._lock:  # no other thread reconciles before the deletion
            replicas.begin_set_aside(damaged.partition_id)
            replicas.reconcile(MetadataState(), patience_s=60)
            assert not at.log.exists()
            assert not (at.folder / "damaged").exists()


def test_a_damaged_log_is_kept_also_while_another_replica_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has then taken no metadata state as a whole, and still knows what belongs here."""
    at = killed(tmp_path)
    with running(at.folder) as live:
        locked = live.broker.streams.create("locked", StreamConfig(subject="w")).uuid
    at.segments()[2].unlink()
    opened = ReplicaOpener.open

    def open_but_one(self: ReplicaOpener, partition: Any, row: Any) -> Any:
        if partition.stream.uuid == locked:
            raise KeyProviderUnavailableError("the key cannot be had now")
        return opened(self, partition, row)

    monkeypatch.setattr(ReplicaOpener, "open", open_but_one)
    with running(at.folder) as live:
        replicas, damaged = live.broker.replicas, live.partition.partition_id
        assert [one.stream_uuid for one in replicas.unopened()] == [locked]
        kept = sorted(one.name for one in at.segments())
        replicas.begin_set_aside(damaged)
        for _ in range(10):
            with suppress(KeyProviderUnavailableError):
                live.broker.reconcile()
            if replicas.find(damaged) is not None:
                break
        (aside,) = (at.folder / "damaged").iterdir()
        assert sorted(one.name for one in aside.glob("*.log")) == kept
