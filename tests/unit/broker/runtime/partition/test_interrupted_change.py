"""A cut or a copy of a follower's log that no descriptor was left for, and what it knows then.

The follower becomes leader before it has tried again. Its retry tables must know the records that
its log has, and no others: else a retry is acknowledged and nowhere, or stored twice. Each change
meets the shortage at each of its calls, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from broker.core.dedup import ProducerTable
from broker.core.replication.view import PartitionView
from broker.model.epochs import BrokerEpoch, PartitionEpoch
from broker.model.ids import ProducerId
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.records import AckPolicy, AppendResult
from broker.model.replica_messages import EpochEndAnswer, EpochEndRequest, FetchAnswer, FetchRequest
from broker.ports.partition import StoredBatch
from broker.runtime.partition.dedup_recovery import rebuild_producers
from simkit.brokers.driver_rig import ME, DriverRig, alone_view, values_of
from simkit.brokers.quiet_links import OTHER, QuietLinks, following
from simkit.disk.disk import SimDisk
from simkit.disk.scarce_files import ScarceFiles
from simkit.log.keyed import keyed_batch

PRODUCER = 7
COUNT = 9
SEGMENT: dict[str, Any] = {"segment_bytes_max": 4096}
BODY = 900  # some of these fill a segment


def _view(epoch: int, **changes: Any) -> PartitionView:
    """Return the view of a partition of both brokers in an epoch."""
    both = {OTHER: BrokerEpoch(1), ME: BrokerEpoch(1)}
    view = replace(
        alone_view(leader_epoch=epoch), replicas=(OTHER, ME), isr=frozenset(both), min_isr=1,
        broker_epochs=both, joinable=frozenset(both),
    )  # fmt: skip
    return replace(view, **changes)


def _lead(rig: DriverRig, epoch: int) -> None:
    """Lead alone, by way of a candidate, as every leader."""
    now, then = PartitionEpoch(2 * epoch), PartitionEpoch(2 * epoch + 1)
    alone = frozenset({ME})
    rig.view(
        _view(
            epoch, status="candidate_found", leader=None, candidate=ME, isr=alone,
            partition_epoch=now,
        )
    )  # fmt: skip
    rig.view(_view(epoch, isr=alone, partition_epoch=then))
    for _ in range(3):
        rig.clock.advance(us=1_100_000)
        rig.driver.replication.tick()
        rig.turns.run()


def _value(number: int) -> bytes:
    return b"%d " % number + bytes(BODY)


def _put(rig: DriverRig, numbers: range) -> list[Any]:
    """Send these batches of the producer, each of one record; return the answers."""
    answers = [
        rig.put(_value(number), producer=PRODUCER, sequence=number, policy=AckPolicy.LEADER)
        for number in numbers
    ]
    rig.turns.run()
    return [one for told in answers for one in told]


def _require_each_once(rig: DriverRig, count: int, answers: list[Any]) -> None:
    """Require that every batch is acknowledged, at an offset where it is, and in the log once."""
    assert all(isinstance(one, AppendResult) for one in answers), answers
    values = values_of(rig.driver)
    assert sorted(values) == sorted(_value(number) for number in range(count))
    assert [values[one.base_offset] for one in answers] == [_value(at) for at in range(count)]


def _told_to_cut(rig: DriverRig, links: QuietLinks, epoch: int, end: int) -> None:
    """Follow the other broker in an epoch, whose log shares the records below ``end``."""
    rig.view(_view(epoch, leader=OTHER, partition_epoch=PartitionEpoch(2 * epoch)))
    request = links.sent[-1]
    assert isinstance(request, EpochEndRequest)
    rig.driver.replication.deliver(
        EpochEndAnswer(
            leader_epoch=request.leader_epoch, request_id=request.request_id,
            epoch=request.epoch, known_epoch=request.epoch, end=Offset(end),
        )
    )  # fmt: skip
    rig.turns.run()


Then = Callable[[DriverRig, QuietLinks], DriverRig]  # what follows an interrupted change


def _is_elected(rig: DriverRig, _links: QuietLinks) -> DriverRig:
    _lead(rig, 4)
    return rig


def _is_leader_at_once(rig: DriverRig, _links: QuietLinks) -> DriverRig:
    """The view of the candidate was passed over: a newer one was there."""
    rig.view(_view(4, isr=frozenset({ME}), partition_epoch=PartitionEpoch(9)))
    return rig


def _stops_and_starts(rig: DriverRig, _links: QuietLinks) -> DriverRig:
    rig.close()
    return DriverRig(rig.files, epoch=5, **SEGMENT)


def _copies_on(rig: DriverRig, links: QuietLinks) -> DriverRig:
    """Fetch the records from the log's end on, and then lead."""
    for _ in range(3):
        rig.clock.advance(us=2_000_000)
        rig.driver.replication.tick()
        rig.turns.run()
    if isinstance(links.sent[-1], FetchRequest):  # else the cut was not made: it asks again
        rig.driver.replication.deliver(_records_for(links.sent[-1], COUNT))
        rig.turns.run()
        assert rig.driver.reads.log_end == COUNT, "it stopped fetching"
    _lead(rig, 4)
    return rig


THEN: dict[str, Then] = {
    "is elected": _is_elected,
    "is leader at once": _is_leader_at_once,
    "stops and starts": _stops_and_starts,
    "copies on": _copies_on,
}


@cache
def _batches(count: int, epoch: int) -> tuple[StoredBatch, ...]:
    """Return batches of the producer, as another broker has stored them."""
    leader = DriverRig(SimDisk(random.Random(2)).files(), epoch=epoch)
    _put(leader, range(count))
    return tuple(leader.driver.reads.read(Offset(0), Offset(count), bytes_max=1 << 20))


def _records_for(request: FetchRequest, count: int) -> FetchAnswer:
    batches = _batches(count, min(request.leader_epoch, 3))
    return FetchAnswer(
        leader_epoch=request.leader_epoch, request_id=request.request_id,
        start=request.fetch_from, high_watermark=Offset(0), log_end=Offset(count),
        batches=batches[request.fetch_from :],
    )  # fmt: skip


@pytest.mark.parametrize("then", THEN.values(), ids=THEN)
@pytest.mark.parametrize("kept", [0, 5])
def test_a_retry_of_records_that_an_interrupted_cut_removes_is_stored(
    kept: int, then: Then
) -> None:
    """Any later call finishes the cut silently; the table has the records until it is built."""
    for allowed in range(60):
        scarce, links = ScarceFiles(SimDisk(random.Random(1)).files()), QuietLinks()
        rig = DriverRig(scarce, links=links, **SEGMENT)
        _lead(rig, 2)
        _put(rig, range(COUNT))
        scarce.allowed = allowed
        _told_to_cut(rig, links, 3, kept)
        met, scarce.allowed = scarce.refused_count, None
        rig = then(rig, links)
        assert rig.driver.health.failure is None
        local = rig.driver._local
        counted = local.tier.unshipped_bytes
        local.log.sync()  # by now the cut is finished
        local.watch_segments()
        assert local.tier.unshipped_bytes == counted, "bytes that were cut count"
        _require_each_once(rig, COUNT, _put(rig, range(COUNT)))
        if not met:
            return
    raise AssertionError("the cut needs fewer descriptors")


@pytest.mark.parametrize("then", THEN.values(), ids=THEN)
def test_a_retry_of_records_that_an_interrupted_copy_wrote_is_not_stored_twice(then: Then) -> None:
    """A part of the batches is in the log, and the table may lack it until it is built."""
    for allowed in range(60):
        scarce, links = ScarceFiles(SimDisk(random.Random(1)).files()), QuietLinks()
        rig = DriverRig(scarce, links=links, **SEGMENT)
        request = following(rig, links)
        scarce.allowed = allowed
        rig.driver.replication.deliver(_records_for(request, COUNT))
        rig.turns.run()
        met, scarce.allowed = scarce.refused_count, None
        rig = then(rig, links)
        _require_each_once(rig, COUNT, _put(rig, range(COUNT)))
        if not met:
            return
    raise AssertionError("the copy needs fewer descriptors")


def _half_cut(**settings: Any) -> tuple[DriverRig, QuietLinks]:
    """Follow, with a log that is cut at 5, files that have more, and a table of all."""
    scarce, links = ScarceFiles(SimDisk(random.Random(1)).files()), QuietLinks()
    rig = DriverRig(scarce, links=links, **SEGMENT, **settings)
    _lead(rig, 2)
    _put(rig, range(COUNT))
    scarce.allowed = 0
    _told_to_cut(rig, links, 3, 5)
    scarce.allowed = None
    assert rig.driver.reads.log_end == 5
    return rig, links


def test_a_log_that_begins_at_the_table_s_end_forgets_what_an_interrupted_cut_removed() -> None:
    """The next leader of an unclean election takes the producers over from its old log."""
    rig, _ = _half_cut()
    rig.view(
        _view(
            4, status="candidate_found", leader=None, candidate=ME, isr=frozenset(),
            cold_end=Offset(20), partition_epoch=PartitionEpoch(8),
        )
    )  # fmt: skip
    assert rig.driver.reads.log_end == 20
    assert rig.driver._local.retries.producers.expected(ProducerId(PRODUCER)) == 5


def test_a_candidate_is_confirmed_once_it_knows_the_producers() -> None:
    """Until then another replica may be elected, which knows them."""
    for allowed in range(60):
        rig, links = _half_cut()
        links.confirmed.clear()
        assert isinstance(rig.files, ScarceFiles)
        rig.files.allowed, rig.files.refused_count = allowed, 0
        rig.view(
            _view(
                4, status="candidate_found", leader=None, candidate=ME, isr=frozenset({ME}),
                partition_epoch=PartitionEpoch(8),
            )
        )  # fmt: skip
        known = rig.driver._local.retries.producers.expected(ProducerId(PRODUCER))
        assert known == 5 or not links.confirmed
        rig.files.allowed = None
        rig.clock.advance(us=400_000)
        rig.driver.replication.tick()
        rig.turns.run()
        assert set(links.confirmed) == {5}
        if not rig.files.refused_count:
            return
    raise AssertionError("a candidate needs fewer descriptors")


def test_a_candidate_without_descriptors_begins_at_the_table_s_end_later() -> None:
    """It asks again, as for a log that waits for room."""
    rig, _ = _half_cut()
    assert isinstance(rig.files, ScarceFiles)
    rig.files.allowed = 0
    rig.view(
        _view(
            4, status="candidate_found", leader=None, candidate=ME, isr=frozenset(),
            cold_end=Offset(20), partition_epoch=PartitionEpoch(8),
        )
    )  # fmt: skip
    assert rig.driver.reads.log_end == 5
    rig.files.allowed = None
    rig.clock.advance(us=400_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert rig.driver.reads.log_end == 20
    assert rig.driver.health.failure is None


def test_a_follower_is_told_only_of_producers_that_an_interrupted_cut_left() -> None:
    """A leader whose log begins behind the follower's end sends them with the log's start."""
    rig, _ = _half_cut()
    sent = ProducerTable.from_state(rig.driver._local.producers_before(Offset(COUNT)))
    assert sent.expected(ProducerId(PRODUCER)) == 5


def _half_copied(**settings: Any) -> DriverRig:
    """Follow, with a log that has a part of a copy, and a table of nothing."""
    for allowed in range(60):
        scarce, links = ScarceFiles(SimDisk(random.Random(1)).files()), QuietLinks()
        rig = DriverRig(scarce, links=links, **SEGMENT, **settings)
        request = following(rig, links)
        scarce.allowed = allowed
        rig.driver.replication.deliver(_records_for(request, COUNT))
        rig.turns.run()
        scarce.allowed = None
        if len(rig.driver.tier.segments()) > 1:
            assert not len(rig.driver._local.retries.producers)
            return rig
    raise AssertionError("no part was copied")


def test_producers_of_a_part_of_a_copy_are_saved_before_it_is_freed() -> None:
    """A table of nothing needs no state on the disk: this one is not of nothing."""
    rig = _half_copied(local_retention_bytes=0, dedup_window_ms=0)
    local = rig.driver._local
    local.learn_cold_end(local.log.log_end)
    rig.driver.frees.soon(lambda: Offset(OFFSET_MAX))
    rig.turns.run()
    assert local.log.log_start > 0
    found = rebuild_producers(local.log)  # as a restart does
    assert found.stored(ProducerId(PRODUCER), 0, 1) == 0


def test_a_segment_that_an_interrupted_cut_opens_again_is_not_freed() -> None:
    """The log lists it as sealed until the cut is finished, and the turn that frees finishes it."""
    rig, _ = _half_cut(local_retention_bytes=0, dedup_window_ms=0)
    listed = [(one.base_offset, one.end_offset) for one in rig.driver.tier.segments()]
    assert listed[:2] == [(0, 3), (3, 6)]
    rig.driver._local.learn_cold_end(Offset(COUNT))
    rig.driver.frees.soon(lambda: Offset(OFFSET_MAX))
    rig.turns.run()
    assert rig.driver.health.failure is None
    left = [(one.base_offset, one.end_offset) for one in rig.driver.tier.segments()]
    assert left == [(3, 5)]
    assert rig.driver._local.retries.producers.expected(ProducerId(PRODUCER)) == 5


COMPACTED: dict[str, Any] = {
    **SEGMENT, "compact": True, "tiering": False, "dedup_window_ms": 0, "compact_dirty_percent": 1
}  # fmt: skip


def _compacted() -> tuple[DriverRig, QuietLinks, Offset, Offset]:
    """Lead with a log in which batches were joined; return also the bounds of such a batch."""
    scarce, links = ScarceFiles(SimDisk(random.Random(1)).files()), QuietLinks()
    rig = DriverRig(scarce, links=links, **COMPACTED)
    _lead(rig, 2)
    for number in range(120):
        rig.driver.writes.submit(
            [keyed_batch([(b"%d" % (number % 50), bytes(200))])], lambda _: None
        )
        rig.turns.run()
    for _ in range(100):
        rig.driver.compaction.step(lambda: Offset(OFFSET_MAX))
        rig.turns.run()
    log = rig.driver._local.log
    read = log.read(log.log_start, log.log_end, bytes_max=1 << 20)
    joined = next(one.header for one in read if one.header.sparse and one.header.base_offset)
    return rig, links, joined.base_offset, joined.end_offset


def test_a_cut_inside_a_joined_batch_waits_for_a_descriptor() -> None:
    """Where that batch begins is read from the log, and the read needs one, too."""
    rig, links, base, end = _compacted()
    assert isinstance(rig.files, ScarceFiles)
    rig.files.allowed = 0
    _told_to_cut(rig, links, 3, end - 1)
    assert rig.files.refused_count
    rig.files.allowed = None
    rig.clock.advance(us=400_000)
    rig.driver.replication.tick()
    rig.turns.run()
    assert links.asked_last().fetch_from == base == rig.driver.reads.log_end
    assert rig.driver.health.failure is None


def test_readers_are_shown_the_records_of_a_joined_batch_again_after_the_cut() -> None:
    """They were committed, and come again from the leader."""
    rig, links, base, end = _compacted()
    rest = tuple(rig.driver.reads.read(base, end, bytes_max=1 << 20))
    _told_to_cut(rig, links, 3, end - 1)
    assert rig.driver.reads.high_watermark == base == rig.driver.reads.log_end
    request = links.asked_last()
    rig.driver.replication.deliver(
        FetchAnswer(
            leader_epoch=request.leader_epoch, request_id=request.request_id,
            start=request.fetch_from, high_watermark=Offset(end - 1), log_end=end, batches=rest,
        )
    )  # fmt: skip
    rig.turns.run()
    assert rig.driver.reads.high_watermark == end - 1


def test_a_cut_inside_a_joined_batch_shows_no_record_that_was_not_shown_before() -> None:
    """A replica that was just started does not know yet which records below are committed."""
    rig, _, base, end = _compacted()
    rig.close()
    links = QuietLinks()
    rig = DriverRig(rig.files, links=links, **COMPACTED)
    _told_to_cut(rig, links, 3, end - 1)
    assert (rig.driver.reads.log_end, rig.driver.reads.high_watermark) == (base, 0)
