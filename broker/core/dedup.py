"""Recognise retried batches by producer id and base sequence.

``message_ids.py`` recognises single messages by their ids. The table here is derived from the log:
a restart rebuilds it from the newest producer state and the batches after it. So a batch that was
acknowledged is still recognised after the restart.
Source: Kafka's idempotent producer (KIP-98: five batches in flight).
"""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from broker.errors import MetadataCorruptError, SequenceGapError
from broker.model.ids import ProducerId
from broker.model.offsets import OFFSET_MAX, Offset

BATCHES_KEPT: Final = 64  # a producer may have this many batches in flight, and retry each
PRODUCER_BYTES_MAX: Final = 16 * 1024 * 1024  # of one table, in memory
_PRODUCER_BYTES: Final = 512  # the entry, its objects and its two empty arrays
_BATCH_BYTES: Final = 16  # two numbers
_STATE_VERSION: Final = 1


class _Batches:
    """The newest batches of one producer, oldest first; their sequences have no gap."""

    __slots__ = ("counts", "next_sequence", "offsets")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.offsets = array("q")
        self.counts = array("q")

    def add(self, base_sequence: int, records_count: int, base_offset: int) -> int:
        """Add the newest batch; return by how many batches the list grew."""
        before = len(self.offsets)
        if base_sequence != self.next_sequence:  # the producer started again: forget older batches
            self.offsets, self.counts = array("q"), array("q")
        elif before == BATCHES_KEPT:
            del self.offsets[0], self.counts[0]
        self.offsets.append(base_offset)
        self.counts.append(records_count)
        self.next_sequence = base_sequence + records_count
        return len(self.offsets) - before

    def newest_first(self) -> Iterator[tuple[int, int, int]]:
        """Yield (base sequence, number of records, base offset)."""
        sequence = self.next_sequence
        for index in range(len(self.offsets) - 1, -1, -1):
            sequence -= self.counts[index]
            yield sequence, self.counts[index], self.offsets[index]

    def oldest_first(self) -> list[tuple[int, int, int]]:
        """Return (base sequence, number of records, base offset)."""
        return list(self.newest_first())[::-1]


class ProducerTable:
    """The newest batches of each producer.

    The table is bounded in bytes. Above the bound, the producers that were silent for the longest
    time are forgotten with all their batches.
    """

    def __init__(self, *, bytes_max: int = PRODUCER_BYTES_MAX) -> None:
        """Start empty."""
        self._bytes_max = bytes_max
        self._batches: OrderedDict[ProducerId, _Batches] = OrderedDict()
        self.size_bytes = 0
        self.forgotten = 0  # producers that had to go
        self.unknown_below = Offset(0)  # some producers of records below may be missing

    def __len__(self) -> int:
        """Number of producers in the table."""
        return len(self._batches)

    def expected(self, producer: ProducerId) -> int:
        """Return the producer's next sequence.

        For a producer that is not in the table this is 0. With any other sequence either an earlier
        batch is missing, or this batch was stored before the producer was forgotten.
        """
        batches = self._batches.get(producer)
        return 0 if batches is None else batches.next_sequence

    def stored(self, producer: ProducerId, base_sequence: int, records_count: int) -> Offset | None:
        """Return the base offset of this batch if the table has it."""
        batches = self._batches.get(producer)
        if batches is None or base_sequence >= batches.next_sequence:
            return None
        for sequence, count, offset in batches.newest_first():
            if sequence <= base_sequence:
                same = sequence == base_sequence and count == records_count
                return Offset(offset) if same else None
        return None

    def find(self, producer: ProducerId, base_sequence: int, records_count: int) -> Offset | None:
        """Return the base offset of a batch that was stored before; None if it is the next batch.

        Raises:
            SequenceGapError: neither is true; storing the batch would lose or double records.
        """
        expected = self.expected(producer)
        if base_sequence == expected:
            return None
        offset = self.stored(producer, base_sequence, records_count)
        if offset is None:
            raise sequence_gap(producer, base_sequence, records_count, expected)
        return offset

    def add(
        self, producer: ProducerId, base_sequence: int, records_count: int, base_offset: Offset
    ) -> None:
        """Remember a stored batch."""
        batches = self._batches.get(producer)
        if batches is None:
            batches = _Batches()
            batches.next_sequence = base_sequence  # a log may begin in the middle of a sequence
            self._batches[producer] = batches
            self.size_bytes += _PRODUCER_BYTES
        else:
            self._batches.move_to_end(producer)
        grown = batches.add(base_sequence, records_count, base_offset)
        self.size_bytes += grown * _BATCH_BYTES
        while self.size_bytes > self._bytes_max and len(self._batches) > 1:
            _, gone = self._batches.popitem(last=False)
            self.forgotten += 1
            self.size_bytes -= _PRODUCER_BYTES + len(gone.offsets) * _BATCH_BYTES

    def offsets_below(self, end: Offset) -> frozenset[int]:
        """Return the base offsets of the batches below ``end`` that may be sent again."""
        return frozenset(
            offset
            for batches in self._batches.values()
            for offset in batches.offsets
            if offset < end
        )

    def to_state(self) -> bytes:
        """Return the table as bytes for the log's producer state."""
        rows = [[producer, batches.oldest_first()] for producer, batches in self._batches.items()]
        return json.dumps({"v": _STATE_VERSION, "producers": rows}).encode()

    def below(self, end: Offset, *, batches_max: int) -> ProducerTable:
        """Return the table of each producer's newest batches below ``end``."""
        found = ProducerTable()
        for producer, batches in self._batches.items():
            known = [one for one in batches.oldest_first() if one[2] < end]
            for base_sequence, records_count, base_offset in known[-batches_max:]:
                found.add(producer, base_sequence, records_count, Offset(base_offset))
        return found

    @classmethod
    def from_state(cls, state: bytes) -> ProducerTable:
        """Rebuild from :meth:`to_state`; raises MetadataCorruptError for anything else."""
        table = cls()
        try:
            body: dict[str, Any] = json.loads(state)
            if body["v"] != _STATE_VERSION:
                raise MetadataCorruptError(f"producer state version {body['v']!r} is not known")
            for producer, batches in body["producers"]:
                for batch in batches:
                    base_sequence, records_count, base_offset = map(_number, batch)
                    table.add(
                        ProducerId(_number(producer)),
                        base_sequence,
                        records_count,
                        Offset(base_offset),
                    )
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise MetadataCorruptError("producer state is not readable") from cause
        return table


def _number(value: Any) -> int:
    """Return a number of a state if it can be one; raises TypeError or ValueError."""
    if type(value) is not int:
        raise TypeError(f"a whole number was expected, not {type(value).__name__}")
    if not 0 <= value <= OFFSET_MAX:
        raise ValueError("a number is out of bounds")
    return value


def sequence_gap(
    producer: ProducerId, base_sequence: int, records_count: int, expected: int
) -> SequenceGapError:
    """Return the error for a batch that is neither stored nor next."""
    return SequenceGapError(
        f"producer {producer} sent sequence {base_sequence} ({records_count} records), but its "
        f"next sequence is {expected} and no stored batch matches: an earlier batch is missing, or "
        "the batch was stored so long ago that the broker has forgotten it",
        producer_id=producer,
        expected=expected,
        got=base_sequence,
    )


class ProducerPlan:
    """The changes of a producer table by a group of batches, applied once the group is written.

    After a failed write or a crash of the writing thread, the table is as it was before the group.
    """

    def __init__(self, table: ProducerTable) -> None:
        """Plan on top of ``table``."""
        self._table = table
        self._next: dict[ProducerId, int] = {}
        self._planned: dict[tuple[ProducerId, int], tuple[int, Offset]] = {}

    def find(self, producer: ProducerId, base_sequence: int, records_count: int) -> Offset | None:
        """See :meth:`ProducerTable.find`."""
        expected = self._next.get(producer)
        if expected is None:
            return self._table.find(producer, base_sequence, records_count)
        if base_sequence == expected:
            return None
        planned = self._planned.get((producer, base_sequence))
        if planned is not None and planned[0] == records_count:
            return planned[1]
        offset = self._table.stored(producer, base_sequence, records_count)
        if offset is None:
            raise sequence_gap(producer, base_sequence, records_count, expected)
        return offset

    def add(
        self, producer: ProducerId, base_sequence: int, records_count: int, base_offset: Offset
    ) -> None:
        """Plan a batch for which :meth:`find` returned None."""
        self._planned[producer, base_sequence] = (records_count, base_offset)
        self._next[producer] = base_sequence + records_count

    def apply(self) -> None:
        """Put all planned batches into the table: the group is in the log."""
        for (producer, base_sequence), (records_count, base_offset) in self._planned.items():
            self._table.add(producer, base_sequence, records_count, base_offset)
