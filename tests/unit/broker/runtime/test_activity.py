"""The activity stream on a real log: what is stored there, once and in order, whatever happens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.codec.record_batch import decode_body
from broker.core.metadata.commands import TrimActivity
from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError, InvalidRequestError, InvalidStreamError, OverloadedError
from broker.model.activity import ACTIVITY_STREAM, ActivityEvent, ActivityOutbox
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import RecordsOutcome
from broker.runtime.activity import ActivityWriter
from broker.runtime.broker import Broker
from simkit.brokers.brokers import disk_broker

UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
CONFIG = StreamConfig(subject="s", tiering=False)


def text(event: ActivityEvent) -> bytes:
    """Return an event as this test reads it."""
    return f"{event.id} {event.op} {event.stream}".encode()


def stored(broker: Broker, count: int) -> list[bytes]:
    """Wait until so many events are committed; return all."""
    reads = broker.partitions.handle(ACTIVITY_STREAM, 0).reads
    for end in range(count):
        assert reads.wait_committed(Offset(end), 30_000) > end
    at, end = Offset(0), reads.high_watermark
    found: list[bytes] = []
    while at < end:
        for batch in reads.read(at, end, bytes_max=1 << 20):
            found += decode_body(batch.header, batch.body).column("value").to_pylist()
            at = batch.header.end_offset
    return found


def test_events_are_stored_in_order_and_go_on_after_a_restart(tmp_path: Path) -> None:
    """The first one is the creation of the stream itself; ids have no gap and no repeat."""
    with disk_broker(tmp_path, encode_event=text) as broker:
        broker.streams.create("before", CONFIG)
        broker.streams.create_activity()
        broker.streams.create_activity()
        broker.streams.create("s", StreamConfig(subject="t", tiering=False))
        broker.pauses.pause("s")
        broker.pauses.wake("s", 0)
        first = stored(broker, 4)
    assert first == [
        b"1 create_stream __activity", b"2 create_stream s", b"3 pause_stream s",
        b"4 resume_stream s",
    ]  # fmt: skip
    with disk_broker(tmp_path, encode_event=text) as broker:
        broker.pauses.set_readonly("s")
        broker.streams.delete("s")
        assert stored(broker, 6) == [*first, b"5 set_stream_readonly s", b"6 delete_stream s"]


def test_what_happened_while_nobody_could_store_it_is_stored_later(tmp_path: Path) -> None:
    """The outbox is a part of the metadata, so it outlives the process."""
    with disk_broker(tmp_path) as broker:
        broker.streams.create_activity()
        broker.streams.create("s", CONFIG)
    with disk_broker(tmp_path, encode_event=text) as broker:
        assert stored(broker, 2) == [b"1 create_stream __activity", b"2 create_stream s"]


def test_what_was_stored_and_not_trimmed_is_recognised_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log knows the events that it has, so no reader gets one twice."""
    with monkeypatch.context() as patched:
        patched.setattr(ActivityWriter, "_trim", lambda *_: None)
        with disk_broker(tmp_path, encode_event=text) as broker:
            broker.streams.create_activity()
            broker.streams.create("s", CONFIG)
            first = stored(broker, 2)
    with disk_broker(tmp_path, encode_event=text) as broker:
        broker.streams.delete("s")
        assert stored(broker, 3) == [*first, b"3 delete_stream s"]


def test_nobody_else_makes_it_or_writes_to_it(tmp_path: Path) -> None:
    """A forged event would be believed."""
    with disk_broker(tmp_path) as broker:
        for name in ("__activity", "__cursors"):
            with pytest.raises(InvalidStreamError):
                broker.streams.create(name, CONFIG)
        broker.streams.create_activity()
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x"], pa.binary())})
        with pytest.raises(InvalidRequestError, match="only the cluster"):
            broker.partitions.writer(ACTIVITY_STREAM, 0).submit_records(rows, None, print)
        assert broker.replicas.led()[0].numbers == frozenset(), "it has no subscription on NATS"


class Rig:
    """A writer between a metadata log and a partition that do what the test says."""

    def __init__(self) -> None:
        self.writes: list[tuple[list[bytes], list[str], Any]] = []
        self.proposed: list[TrimActivity] = []
        self.refuses: HeadwaterError | None = None
        self.driver = SimpleNamespace(
            leads=True,
            reads=SimpleNamespace(leader_epoch=LeaderEpoch(1)),
            writes=SimpleNamespace(submit_own=self._submit),
        )
        stream = Stream(
            name=ACTIVITY_STREAM, uuid=UUID, config=CONFIG, created_us=1, table_name="t"
        )
        self.state = MetadataState(streams={ACTIVITY_STREAM: stream})
        self.writer = ActivityWriter(
            cast("Any", self),
            cast("Any", SimpleNamespace(find=lambda _: self.driver)),
            encode=text,
            wake=lambda: None,
        )

    def events(self, *ids: int) -> None:
        """Let these wait in the outbox."""
        found = tuple(ActivityEvent(id=one, op="delete_stream", stream="s") for one in ids)
        outbox = ActivityOutbox(events=found, last_id=max(ids, default=0))
        self.state = MetadataState(streams=self.state.streams, activity=outbox)

    def propose_soon(self, command: TrimActivity, _answered: Any, *, timeout_ms: int) -> None:
        """Note a proposal."""
        assert timeout_ms > 0
        self.proposed.append(command)

    def _submit(self, batch: pa.RecordBatch, ids: list[str], done: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.writes.append((batch.column("value").to_pylist(), ids, done))

    def answer(self, error: HeadwaterError | None = None) -> None:
        """Answer the newest write."""
        values, _, done = self.writes[-1]
        count = len(values)
        outcome = RecordsOutcome([Offset(0)] * count, frozenset(), LeaderEpoch(1))
        done(outcome if error is None else error)


def test_a_failure_holds_up_later_events_and_waits_longer_each_time() -> None:
    """One second, doubled up to ten; the same ids again, so that the log knows them."""
    rig = Rig()
    rig.events(1, 2)
    starts = []
    for now_ms in range(0, 60_000, 250):
        before = len(rig.writes)
        rig.writer.turn(now_ms)
        if len(rig.writes) > before:
            starts.append(now_ms)
            rig.events(1, 2, 3)
            rig.answer(OverloadedError("later"))
    waits = [after - was for was, after in pairwise(starts)]
    assert [one // 1_000 for one in waits[:6]] == [1, 2, 4, 8, 10, 10]
    assert rig.writes[0][1] == ["activity-1", "activity-2"]
    assert rig.writes[-1][1] == ["activity-1", "activity-2", "activity-3"]
    assert rig.proposed == []


def test_a_partition_that_refuses_at_once_is_asked_again_later() -> None:
    """For example while it is paused."""
    rig = Rig()
    rig.events(1)
    rig.refuses = OverloadedError("full")
    rig.writer.turn(0)
    rig.writer.turn(250)
    rig.refuses = None
    rig.writer.turn(500)
    assert rig.writes == []
    rig.writer.turn(1_500)
    assert len(rig.writes) == 1


def test_what_is_stored_is_trimmed_and_not_written_again() -> None:
    """Also if the trim is lost: then it is proposed again."""
    rig = Rig()
    rig.events(1, 2)
    rig.writer.turn(0)
    rig.writer.turn(250)
    assert len(rig.writes) == 1, "one write at a time"
    rig.answer()
    rig.writer.turn(500)
    assert rig.proposed == [TrimActivity(stream_uuid=UUID, through=2)]
    rig.writer.turn(750)
    rig.writer.turn(1_500)
    assert rig.proposed == [TrimActivity(stream_uuid=UUID, through=2)] * 2
    rig.events(1, 2, 3)
    rig.writer.turn(1_750)
    assert rig.writes[-1][1] == ["activity-3"]


def test_a_new_leadership_writes_what_waits_again_and_an_old_outcome_counts_for_nothing() -> None:
    """It does not know what the former leader has stored; its log does."""
    rig = Rig()
    rig.events(1, 2)
    rig.writer.turn(0)
    rig.driver.reads.leader_epoch = LeaderEpoch(2)
    rig.answer()
    rig.writer.turn(250)
    rig.writer.turn(500)
    assert [ids for _, ids, _ in rig.writes] == [["activity-1", "activity-2"]] * 2
    rig.driver.leads = False
    rig.answer()
    rig.writer.turn(750)
    rig.writer.turn(1_000)
    assert len(rig.writes) == 2
