"""The audit's writer: chained, in order, bounded, and never in the way of a call."""

from __future__ import annotations

import json
import threading
from typing import Any

from broker.codec.audit_record import AuditCheck
from broker.errors import OverloadedError
from broker.model.access import AUDIT_STREAM, Caller
from broker.model.stream import StreamConfig
from broker.ports.partition import PartitionWriter
from broker.runtime.audit import Audit
from simkit.brokers.memory_broker import MemoryBroker

ANN = Caller(principal="ann", via="token", peer="here")


class Rig:
    """An audit, and the stream in memory that it writes; the stream may be away."""

    def __init__(self, **settings: Any) -> None:
        self.broker = MemoryBroker()
        self.broker.create(AUDIT_STREAM, StreamConfig(subject=AUDIT_STREAM))
        self.away = False
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
        return self.broker.writer(AUDIT_STREAM, 0)

    def note(self, call: str) -> None:
        """Note a call."""
        self.audit.note(caller=ANN, door="flight", call=call, resources=["stream:s"], result="ok")

    def turns(self, count: int = 4) -> None:
        """Let time pass."""
        for _ in range(count):
            self.now_ms += 1_000
            self.heard.clear()
            self.audit.turn(self.now_ms)
            assert not self.audit._writing or self.heard.wait(10)

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


def test_without_a_stream_only_the_log_is_written() -> None:
    """Nothing waits for ever."""
    broker = MemoryBroker()
    audit = Audit(broker.clock, broker="b", chain="c", find_writer=None)
    audit.note(caller=ANN, door="flight", call="x", resources=[], result="ok")
    assert audit.turn(1) > 1
    assert not audit._waiting
