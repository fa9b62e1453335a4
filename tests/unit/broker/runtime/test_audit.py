"""The audit's writer: chained, in order, bounded, and never in the way of a call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
import structlog

from broker.codec.audit_record import RECORD_BYTES_MAX, AuditCheck
from broker.errors import HeadwaterError, OverloadedError, RecordTooLargeError
from broker.model.access import AUDIT_STREAM, Caller
from broker.model.stream import StreamConfig
from broker.ports.partition import PartitionWriter, RecordsOutcome
from broker.runtime.audit import Audit
from simkit.brokers.memory_broker import MemoryBroker

ANN = Caller(principal="ann", via="token", peer="here")


class SmallWriter:
    """A writer whose stream takes at most so many bytes of values in one write."""

    def __init__(self, writer: PartitionWriter, bytes_max: int) -> None:
        self._writer = writer
        self._bytes_max = bytes_max

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Callable[[RecordsOutcome | HeadwaterError], None],
    ) -> None:
        """Refuse what no segment would hold."""
        size = sum(len(one) for one in batch.column("value").to_pylist())
        if size > self._bytes_max:
            raise RecordTooLargeError("too large", size_bytes=size, limit_bytes=self._bytes_max)
        self._writer.submit_records(batch, message_ids, done)


class Rig:
    """An audit, and the stream in memory that it writes; the stream may be away."""

    def __init__(self, **settings: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.create(AUDIT_STREAM, StreamConfig(subject=AUDIT_STREAM))
        self.away = False
        self.takes: int | None = None  # bytes in one write
        self.now_ms = 0
        self.heard = threading.Event()
        self.audit = Audit(
            self.broker.clock,
            broker="b",
            chain="c",
            find_writer=self._writer,
            wake=self.heard.set,
            **settings,
        )

    def _writer(self) -> PartitionWriter:
        if self.away:
            raise OverloadedError("away")
        writer = self.broker.writer(AUDIT_STREAM, 0)
        return writer if self.takes is None else SmallWriter(writer, self.takes)  # type: ignore[return-value]

    def note(self, call: str, resource: str = "stream:s", caller: Caller = ANN) -> None:
        """Note a call."""
        self.audit.note(caller=caller, door="flight", call=call, resources=[resource], result="ok")

    def turns(self, count: int = 4) -> None:
        """Let time pass."""
        for _ in range(count):
            self.now_ms += 1_000
            self.heard.clear()
            self.audit.turn(self.now_ms)
            assert not self.audit._writing or self.heard.wait(60)

    def stored(self) -> list[dict[str, Any]]:
        """Return the records; each is checked."""
        reads = self.broker.handle(AUDIT_STREAM, 0).reads
        check, found = AuditCheck(), []
        for batch in reads.read(reads.log_start, reads.log_end, bytes_max=1 << 30):
            for value in values_of(batch):
                check.take(value, "")
                found.append(json.loads(value))
        assert check.problems == []
        return found


def values_of(batch: Any) -> list[bytes]:
    """Return the values of a stored batch."""
    from broker.codec.record_batch import decode_body

    return list(decode_body(batch.header, batch.body).column("value").to_pylist())


def test_notes_are_stored_in_order_and_chained() -> None:
    """Several together, then more behind them."""
    rig = Rig()
    for call in ("a", "b", "c"):
        rig.note(call)
    rig.turns()
    rig.note("d")
    rig.turns()
    assert [one["call"] for one in rig.stored()] == ["a", "b", "c", "d"]
    assert [one["number"] for one in rig.stored()] == [0, 1, 2, 3]
    first = rig.stored()[0]
    assert (first["principal"], first["peer"], first["resources"]) == ("ann", "here", ["stream:s"])


def test_what_waits_is_bounded_and_the_gap_is_told() -> None:
    """Calls go on while the stream is away; the first record behind the gap counts it."""
    rig = Rig(waiting_max=2)
    rig.away = True
    for number in range(5):
        rig.note(str(number))
    rig.turns()
    assert rig.stored() == []
    rig.away = False
    rig.turns(8)
    assert [(one["call"], one["lost"]) for one in rig.stored()] == [("0", 3), ("1", 0)]


def test_a_flood_of_one_principal_leaves_the_notes_of_others_their_places() -> None:
    """Strangers are one principal; the notes that were given up are counted as missing."""
    stranger, bob = Caller(peer="there"), Caller(principal="bob", via="token", peer="here")
    rig = Rig(waiting_max=6)
    rig.away = True
    rig.turns()
    for number in range(100):
        rig.note(f"refused {number}", caller=stranger)
    rig.note("grant")
    rig.note("delete", caller=bob)
    rig.note("revoke")
    for number in range(100):
        rig.note(f"refused again {number}", caller=stranger)
    rig.away = False
    rig.turns(8)
    calls = [one["call"] for one in rig.stored()]
    assert calls == ["refused 0", "grant", "delete", "refused 1", "revoke", "refused 2"]
    assert sum(one["lost"] for one in rig.stored()) == 203 - 6


def test_a_flood_of_long_notes_leaves_the_notes_of_others_their_places() -> None:
    """Who takes the largest share of the place gives notes up, not who has the most of them."""
    rig = Rig(waiting_weight_max=20_000)
    rig.away = True
    for number in range(10):
        rig.note(f"grant {number}")
    for number in range(100):
        rig.note(f"refused {number}", "stream:" + "x" * 1_000, caller=Caller(peer="there"))
    rig.away = False
    rig.turns(8)
    assert sum(one["call"].startswith("grant") for one in rig.stored()) == 10


def test_what_one_principal_notes_waits_for_one_note_of_each_other() -> None:
    """However much the others have noted before."""
    rig = Rig()
    rig.away = True
    for number in range(600):
        rig.note(f"refused {number}", caller=Caller(peer="there"))
    rig.note("grant")
    rig.away = False
    rig.turns(8)
    assert [one["call"] for one in rig.stored()[:3]] == ["refused 0", "grant", "refused 1"]
    assert len(rig.stored()) == 601


def test_without_a_stream_only_the_log_is_written() -> None:
    """Nothing waits for ever."""
    broker = MemoryBroker()
    audit = Audit(broker.clock, broker="b", chain="c", find_writer=None)
    audit.note(caller=ANN, door="flight", call="x", resources=[], result="ok")
    assert audit.turn(1) > 1
    assert not audit._waiting


@pytest.mark.parametrize("character", ["x", "é", "😀", "\ud800", "\x00", '"'])
def test_no_text_makes_a_record_or_its_line_longer_than_the_check_takes(character: str) -> None:
    """Whatever each field holds; the note tells how long it was, and its digest."""
    rig = Rig()
    long = character * 100_000
    with structlog.testing.capture_logs() as lines:
        rig.audit.note(
            caller=Caller(principal=long, via=long, peer=long),
            door=long,
            call=long,
            resources=[long] * 1_000,
            result=long,
        )
    assert len(json.dumps(lines)) < RECORD_BYTES_MAX
    rig.note("after")
    rig.turns()
    first, second = rig.stored()
    assert "100000 characters, SHA-256 " in first["resources"][0]
    assert second["call"] == "after"


def test_what_waits_is_bounded_by_its_size_too() -> None:
    """A few long notes count as many short ones."""
    rig = Rig(waiting_weight_max=10_000)
    rig.away = True
    for number in range(20):
        rig.note(str(number), "stream:" + "x" * 1_000)
    rig.turns()
    rig.away = False
    rig.turns(8)
    told = rig.stored()
    assert 0 < len(told) < 10
    assert sum(one["lost"] for one in told) == 20 - len(told)
    rig.note("later")  # what was stored waits no more
    rig.turns()
    assert (rig.stored()[-1]["call"], rig.stored()[-1]["lost"]) == ("later", 0)


def test_notes_that_do_not_fit_together_are_stored_in_pieces() -> None:
    """All of them, in their order, and the next ones as well."""
    rig = Rig()
    rig.takes = 2_000
    calls = [str(number) for number in range(20)]
    for call in calls:
        rig.note(call)
    rig.turns(40)
    assert [one["call"] for one in rig.stored()] == calls


def test_a_note_that_the_stream_never_takes_is_replaced_and_later_ones_are_stored() -> None:
    """The record in its place says so, and the chain is whole."""
    rig = Rig()
    rig.takes = 900
    rig.note("a")
    rig.note("b", "stream:" + "x" * 1_000)
    rig.note("c")
    rig.turns(20)
    told = rig.stored()
    assert [(one["call"], one["number"], one["lost"]) for one in told] == [
        ("a", 0, 0), ("b", 1, 0), ("c", 2, 0),
    ]  # fmt: skip
    assert told[1]["resources"][0].startswith("not kept here: ")


def test_a_stream_that_takes_nothing_costs_no_later_note_its_place() -> None:
    """Notes that are refused even when they are short are counted as missing."""
    rig = Rig()
    rig.takes = 10
    for call in ("a", "b", "c"):
        rig.note(call)
    rig.turns(20)
    assert rig.stored() == []
    rig.takes = None
    rig.note("d")
    rig.turns()
    assert [(one["call"], one["number"], one["lost"]) for one in rig.stored()] == [("d", 0, 3)]
