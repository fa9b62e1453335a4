"""A stream is changed while it is in use: its partitions obey at once, and after a restart."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from broker.core.metadata.commands import AlterStream, Command
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.errors import (
    FixedSettingError,
    InvalidStreamError,
    OverloadedError,
    RecordTooLargeError,
    StreamChangedError,
)
from broker.model.stream import StreamConfig
from broker.runtime.led import LedPartitions
from broker.runtime.metadata.metadata_log import Answered
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from simkit.brokers.brokers import disk_broker
from simkit.brokers.lone_broker import STREAM, Running, running
from simkit.brokers.memory_broker import records

CONFIG = StreamConfig(subject="s", tiering=False)


def _stored(live: Running, message_id: str) -> tuple[int, bool]:
    """Publish a row with a message id; return its offset, and whether it was known."""
    outcomes: SimpleQueue[Any] = SimpleQueue()
    headers = pa.array(
        [[{"key": "Nats-Msg-Id", "value": message_id.encode()}]], ROW_SCHEMA.field("headers").type
    )
    rows = records([b"x"], headers=headers)
    live.partition.writes.submit_records(rows, [message_id], outcomes.put)
    found = outcomes.get(timeout=30)
    return found.offsets[0], bool(found.duplicates)


def _segments(live: Running) -> int:
    return len(live.partition.tier.segments())


def test_segments_have_the_new_size_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """Sealed segments stay unchanged."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, CONFIG)
        for number in range(20):
            live.put(b"%03d" % number * 200)
        assert _segments(live) == 1
        altered = live.broker.streams.alter(STREAM, {"segment_bytes_max": 4096})
        assert altered.changes == {"segment_bytes_max": (CONFIG.segment_bytes_max, 4096)}
        for number in range(20):
            live.put(b"%03d" % number * 200)
        assert (count := _segments(live)) > 3
        assert isinstance(live.put(bytes(5000)), RecordTooLargeError)
    with running(tmp_path) as live:
        assert live.partition.config.segment_bytes_max == 4096
        for number in range(20):
            live.put(b"%03d" % number * 200)
        assert _segments(live) >= 2 * count - 2
        assert len(live.rows()) == 60


def test_a_window_of_ids_that_grows_knows_what_the_log_still_has(tmp_path: Path) -> None:
    """A window that is turned off recognises nothing: the id is stored again."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, CONFIG)
        assert _stored(live, "a") == (0, False)
        live.broker.streams.alter(STREAM, {"dedup_window_ms": 0})
        assert _stored(live, "b") == (1, False)
        assert _stored(live, "a") == (2, False)
        live.broker.streams.alter(STREAM, {"dedup_window_ms": 60_000_000})
        assert _stored(live, "b") == (1, True)


def test_the_bound_of_unshipped_bytes_comes_and_goes(tmp_path: Path) -> None:
    """Writes are refused while the log is above it, and taken again without it."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, StreamConfig(subject="s", segment_bytes_max=4096))
        for number in range(30):
            live.put(b"%03d" % number * 200)
        live.broker.streams.alter(STREAM, {"unshipped_bytes_max": 8192})
        assert isinstance(live.put(b"one more"), OverloadedError)
        live.broker.streams.alter(STREAM, {"unshipped_bytes_max": None})
        assert live.put(b"one more").base_offset == 30


def test_new_batches_are_compressed(tmp_path: Path) -> None:
    """Old ones are read as before."""
    with running(tmp_path) as live:
        live.broker.streams.create(STREAM, CONFIG)
        outcomes: SimpleQueue[Any] = SimpleQueue()
        value = bytes(100_000)
        for codec in ("none", "zstd"):
            if codec != "none":
                live.broker.streams.alter(STREAM, {"compression": codec})
            rows = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary())})
            live.partition.writes.submit_records(rows, None, outcomes.put)
            outcomes.get(timeout=30)
        plain, packed = live.partition.reads.read(0, 2, bytes_max=1 << 20)  # type: ignore[arg-type]
        assert plain.header.size > 100_000 > 10 * packed.header.size
        assert live.rows() == [value, value]


def test_who_serves_the_stream_is_told_once(tmp_path: Path) -> None:
    """The listener gets the new settings and the same partitions; an empty change is not told."""
    told: list[LedPartitions] = []

    class Listener:
        def led_changed(self, led: LedPartitions) -> None:
            """Remember."""
            told.append(led)

    with disk_broker(tmp_path) as broker:
        broker.add_listener(Listener())
        created = broker.streams.create("s", CONFIG)
        altered = broker.streams.alter("s", {"puback": True})
        broker.streams.alter("s", {"puback": True})
        broker.streams.alter("s", {"puback": False}, dry_run=True)
        assert told == [
            LedPartitions(created, frozenset({0})),
            LedPartitions(altered.after, frozenset({0})),
        ]


def test_a_dry_run_says_what_the_change_would_say(tmp_path: Path) -> None:
    """Refusals, too; nothing is changed."""
    with disk_broker(tmp_path) as broker:
        before = broker.streams.create("s", CONFIG)
        told = broker.streams.alter("s", {"record_bytes_max": 1000}, dry_run=True)
        assert (told.before, told.after.config.record_bytes_max) == (before, 1000)
        for changes, kind in (
            ({"partitioner": "each_client"}, FixedSettingError),
            ({"record_bytes_max": 0}, InvalidStreamError),
            ({"colour": "red"}, InvalidStreamError),
            ({"record_bytes_max": "large"}, InvalidStreamError),
        ):
            for dry_run in (True, False):
                with pytest.raises(kind):
                    broker.streams.alter("s", changes, dry_run=dry_run)
        assert broker.streams.get("s") == before


class Between:
    """A metadata log in which another operator's change comes first, once."""

    def __init__(self, log: RaftMetadataLog) -> None:
        self._log = log
        self.late: list[AlterStream] = []

    @property
    def state(self) -> MetadataState:
        """See ``MetadataLog.state``."""
        return self._log.state

    def propose_soon(self, command: Command, answered: Answered, *, timeout_ms: int) -> None:
        """See ``ProposingMetadata.propose_soon``."""
        self._log.propose_soon(command, answered, timeout_ms=timeout_ms)

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """Apply the other operator's change first."""
        if isinstance(command, AlterStream) and not self.late:
            self.late.append(command)
            config = {**command.expected.config.to_dict(), "key_header": "Other"}
            other = type(command.expected)(
                name=command.expected.name,
                uuid=command.expected.uuid,
                config=StreamConfig.from_dict(config),
                created_us=command.expected.created_us,
                table_name=command.expected.table_name,
            )
            self._log.propose(AlterStream(expected=command.expected, wanted=other))
        return self._log.propose(command, timeout_ms=timeout_ms)

    def barrier(self, *, timeout_ms: int = 1_000) -> int:
        """See ``MetadataLog.barrier``."""
        return self._log.barrier(timeout_ms=timeout_ms)


def test_changes_of_two_operators_are_both_kept(tmp_path: Path) -> None:
    """The second change is planned anew on the state after the first."""
    with disk_broker(tmp_path, watched=Between) as broker:
        broker.streams.create("s", CONFIG)
        altered = broker.streams.alter("s", {"puback": True})
        assert altered.changes == {"puback": (False, True)}
        config = broker.streams.get("s").config
        assert (config.key_header, config.puback) == ("Other", True)


def test_a_stream_that_never_holds_still_is_given_up(tmp_path: Path) -> None:
    """The error says that the stream changes all the time, and that a retry may succeed."""

    class Restless(Between):
        def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
            """Refuse as the metadata would."""
            if isinstance(command, AlterStream):
                self.late.append(command)
                raise StreamChangedError("meanwhile", stream="s")
            return super().propose(command, timeout_ms=timeout_ms)

    logs: list[Restless] = []

    def watched(log: RaftMetadataLog) -> Restless:
        logs.append(Restless(log))
        return logs[0]

    with disk_broker(tmp_path, watched=watched) as broker:
        broker.streams.create("s", CONFIG)
        with pytest.raises(StreamChangedError):
            broker.streams.alter("s", {"puback": True})
        assert len(logs[0].late) == 5
