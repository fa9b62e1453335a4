"""Recognising retries: producer sequences (exact) and message ids (within a window).

Both tables are derived from the log: a restart rebuilds them from the newest producer state and
the batches after it, so what was acknowledged as stored stays recognised as stored.
Source: Kafka's idempotent producer (KIP-98: five batches in flight); JetStream's Nats-Msg-Id.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import MetadataCorruptError, SequenceGapError
from broker.model.ids import ProducerId
from broker.model.offsets import Offset

_BATCHES_KEPT: Final = 64  # a producer may have this many batches in flight, and retry any
_PRODUCERS_MAX: Final = 10_000
_STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A producer's batch as it was stored."""

    base_sequence: int
    records_count: int
    base_offset: Offset


class ProducerTable:
    """The last batches of each producer. Bounded: the longest silent producer is forgotten."""

    def __init__(self) -> None:
        """Start empty."""
        self._batches: OrderedDict[ProducerId, deque[AppendedBatch]] = OrderedDict()

    def __len__(self) -> int:
        """How many producers are remembered."""
        return len(self._batches)

    def find(self, producer: ProducerId, base_sequence: int, records_count: int) -> Offset | None:
        """Return the base offset of a batch stored before, or None if it is the next one.

        Raises:
            SequenceGapError: it is neither; storing it would lose or double records.
        """
        batches = self._batches.get(producer, ())
        # A producer that is not known (any more) may only begin: in the middle, an earlier batch
        # is missing, or this one was stored before it was forgotten.
        expected = batches[-1].base_sequence + batches[-1].records_count if batches else 0
        if base_sequence == expected:
            return None
        for batch in reversed(batches):
            if batch.base_sequence == base_sequence and batch.records_count == records_count:
                return batch.base_offset
        raise SequenceGapError(
            f"producer {producer} sent sequence {base_sequence} ({records_count} records) where "
            f"{expected} is next and no stored batch matches",
            producer_id=producer,
            expected=expected,
            got=base_sequence,
        )

    def add(
        self, producer: ProducerId, base_sequence: int, records_count: int, base_offset: Offset
    ) -> None:
        """Remember a stored batch."""
        batches = self._batches.get(producer)
        if batches is None:
            batches = self._batches[producer] = deque(maxlen=_BATCHES_KEPT)
            if len(self._batches) > _PRODUCERS_MAX:
                self._batches.popitem(last=False)
        else:
            self._batches.move_to_end(producer)
        batches.append(AppendedBatch(base_sequence, records_count, base_offset))

    def forget_from(self, producer: ProducerId, offset: Offset) -> None:
        """Take back batches at or above ``offset``: their write did not happen."""
        batches = self._batches.get(producer)
        while batches and batches[-1].base_offset >= offset:
            batches.pop()
        if batches is not None and not batches:
            del self._batches[producer]

    def to_state(self) -> bytes:
        """Return the table as bytes for the log's producer state."""
        rows = [
            [producer, [[b.base_sequence, b.records_count, b.base_offset] for b in batches]]
            for producer, batches in self._batches.items()
        ]
        return json.dumps({"v": _STATE_VERSION, "producers": rows}).encode()

    def below(self, end: Offset, *, batches_max: int) -> ProducerTable:
        """Return what is known of records below ``end``: each producer's newest batches there."""
        found = ProducerTable()
        for producer, batches in self._batches.items():
            kept = [one for one in batches if one.base_offset < end][-batches_max:]
            for one in kept:
                found.add(producer, one.base_sequence, one.records_count, one.base_offset)
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
                for base_sequence, records_count, base_offset in batches:
                    table.add(
                        ProducerId(int(producer)),
                        int(base_sequence),
                        int(records_count),
                        Offset(int(base_offset)),
                    )
        except (ValueError, KeyError, TypeError) as cause:
            raise MetadataCorruptError("producer state is not readable") from cause
        return table


class MessageIdWindow:
    """Message ids of the last ``window_us``, and where their records stand."""

    def __init__(self, *, window_us: int, ids_max: int) -> None:
        """Remember at most ``ids_max`` ids; ``window_us`` 0 turns the window off."""
        self._window_us = window_us
        self._ids_max = ids_max
        self._seen: OrderedDict[str, tuple[Offset, int]] = OrderedDict()
        self.forgotten_early = 0  # ids that left for want of room before their time

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, message_id: str, now_us: int) -> Offset | None:
        """Return the offset of the record that carried this id within the window, if any."""
        seen = self._seen.get(message_id)
        if seen is None or seen[1] <= now_us - self._window_us:
            return None
        return seen[0]

    def add(self, message_id: str, offset: Offset, now_us: int) -> None:
        """Remember an id that was stored at ``offset``."""
        if self._window_us:
            self._seen[message_id] = (offset, now_us)
            self._seen.move_to_end(message_id)

    def discard(self, message_id: str) -> None:
        """Take an id back: the write of its record did not happen."""
        self._seen.pop(message_id, None)

    def oldest_offset(self) -> Offset | None:
        """Return the lowest offset that an id still stands for; None when there is no id."""
        return next(iter(self._seen.values()))[0] if self._seen else None

    def expire(self, now_us: int) -> None:
        """Forget ids older than the window, and the oldest beyond the bound."""
        horizon_us = now_us - self._window_us
        while self._seen:
            message_id, (_, stamp_us) = next(iter(self._seen.items()))
            if stamp_us > horizon_us:
                if len(self._seen) <= self._ids_max:
                    return
                self.forgotten_early += 1
            del self._seen[message_id]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows of a batch whose message id was stored before, or stands earlier in the batch.

    ``stored`` maps a row to its first offset; ``inside`` maps a row to the earlier row.
    """

    stored: dict[int, Offset]
    inside: dict[int, int]

    def __bool__(self) -> bool:
        return bool(self.stored or self.inside)


def find_repeats(
    window: MessageIdWindow, message_ids: Sequence[str | None], now_us: int
) -> Repeats:
    """Compare a batch's ids with the window and with each other."""
    stored: dict[int, Offset] = {}
    inside: dict[int, int] = {}
    first_rows: dict[str, int] = {}
    for row, message_id in enumerate(message_ids):
        if message_id is None:
            continue
        offset = window.find(message_id, now_us)
        if offset is not None:
            stored[row] = offset
        elif message_id in first_rows:
            inside[row] = first_rows[message_id]
        else:
            first_rows[message_id] = row
    return Repeats(stored, inside)
