"""What clients did and heard, one event after the other, kept as columns.

A *record* is published once and may be retried; every attempt can be answered with ok or fail, or
never (info: the outcome is unknown). Under one id all attempts are one record. Consumers poll.
Times are monotonic nanoseconds of one clock, taken before a send or a poll and after its answer.

Pure: no clock, no lock. Whoever records from several threads locks around it (see crashkit).
Source: jepsen.tests.kafka for the operations and their outcomes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, cast

from broker.model.records import AckPolicy
from checkkit.anomalies import Anomaly, Violation
from checkkit.readings import NO_TIME, Range, RowColumns, Rows

NEVER: Final = (1 << 63) - 1
NOBODY: Final = -1
POLICIES: Final = tuple(AckPolicy)


class Names:
    """Numbers for names, from 0 in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.known: list[str] = []

    def number(self, name: str) -> int:
        """Return the name's number; the empty name is nobody."""
        if not name:
            return NOBODY
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.known)
            self.known.append(name)
        return found

    def name(self, number: int) -> str:
        """Return the name behind a number."""
        return self.known[number] if number >= 0 else "nobody"


class Columns:
    """Named columns of 64-bit integers that grow together."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._columns = {name: array("q") for name in names}
        self._order = tuple(self._columns.values())

    def __len__(self) -> int:
        return len(self._order[0])

    def __getitem__(self, name: str) -> array[int]:
        return self._columns[name]

    def add(self, *values: int) -> int:
        """Append a row, in the order of the names; return its number."""
        for column, value in zip(self._order, values, strict=True):
            column.append(value)
        return len(self._order[0]) - 1


class History:
    """Everything that clients did. One thread at a time; the caller locks."""

    def __init__(self) -> None:
        self.values: dict[bytes, int] = {}  # fingerprint -> number
        self.record_of_value: array[int] = array("q")  # NOBODY: read, but sent by nobody
        self.records = Columns(
            "value", "producer", "client", "sequence", "partition", "policy", "identified",
            "first_ns", "attempts", "fails", "timestamp_us",
        )  # fmt: skip
        self.acks = Columns(
            "record", "at_ns", "partition", "offset", "epoch", "node", "duplicate", "attempts"
        )
        self.sessions = Columns("consumer", "partition", "position", "to_the_end")
        self.polls = Columns("session", "committed", "at_ns", "first_row", "rows_count")
        self.poll_rows = Columns("poll", "offset", "value", "epoch", "timestamp_us")
        self.high_watermarks = Columns("partition", "node", "epoch", "end", "began_ns", "at_ns")
        self.leaders: dict[tuple[int, int], list[int]] = {}  # (partition, epoch) -> nodes
        self.producers, self.clients, self.nodes, self.consumers = (Names() for _ in range(4))
        self.names: list[str] = []  # by record
        self.fail_reasons: dict[int, str] = {}  # by record, the newest
        self.ordered: set[int] = set()  # producers
        self.holes: dict[int, list[Range]] = {}  # by partition
        self.forgiven: dict[int, list[tuple[int, int]]] = {}  # by partition: (end, at_ns)
        self.violations: list[Violation] = []  # what only the recorder can see
        self._session_of: dict[tuple[int, int], int] = {}
        self._acked: set[int] = set()
        self._acked_in: Counter[int] = Counter()  # by partition

    @property
    def acked_count(self) -> int:
        """Records acknowledged so far."""
        return len(self._acked)

    def acked_in(self, partition: int) -> int:
        """Return how many records of one partition were acknowledged so far."""
        return self._acked_in[partition]

    @property
    def sent_count(self) -> int:
        """Records sent so far."""
        return len(self.records)

    # ------------------------------------------------------------------ publishers

    def expect_order(self, producer: str) -> None:
        """Declare that a producer's records keep their sequence within each partition."""
        self.ordered.add(self.producers.number(producer))

    def publish(
        self,
        fingerprint: bytes,
        *,
        partition: int,
        at_ns: int,
        producer: str = "",
        sequence: int = -1,
        policy: AckPolicy = AckPolicy.ALL,
        identified: bool = True,
        client: str = "",
        name: str = "",
        timestamp_us: int = NO_TIME,
    ) -> int:
        """Note a first attempt and return the record's number.

        Args:
            fingerprint: the content; the same content twice as new is a mistake of the test.
            partition: where it has to land.
            at_ns: before the bytes leave.
            producer: whose sequence it is; with :meth:`expect_order` the log must keep it.
            sequence: its place in that sequence.
            policy: what an ack of it means.
            identified: has a message id or a sequence, so that all attempts are stored once.
            client: whose ears hear the answers; one client never believes an older epoch.
            timestamp_us: that it is sent with; without one the broker gives one, once.
            name: for messages; made of producer and sequence when not given.
        """
        value = self.value_of(fingerprint)
        assert self.record_of_value[value] == NOBODY, f"{name or sequence}: content is not unique"
        record = self.records.add(
            value, self.producers.number(producer), self.clients.number(client), sequence,
            partition, POLICIES.index(policy), identified, at_ns, 1, 0,
            timestamp_us,
        )  # fmt: skip
        self.record_of_value[value] = record
        self.names.append(name)
        return record

    def retry(self, record: int) -> None:
        """Note one more attempt; call it before the bytes leave."""
        self.records["attempts"][record] += 1

    def fail(self, record: int, reason: str) -> None:
        """Note an answer that proves that one attempt stored nothing."""
        self.records["fails"][record] += 1
        self.fail_reasons[record] = reason

    def ok(
        self,
        record: int,
        *,
        at_ns: int,
        offset: int,
        leader_epoch: int = NOBODY,
        partition: int | None = None,
        duplicate: bool = False,
        node: str = "",
    ) -> None:
        """Note an acknowledgement, after it was heard. ``node``: the process that sent it."""
        if partition is None:
            partition = self.records["partition"][record]
        attempts = self.records["attempts"][record]
        self.acks.add(
            record, at_ns, partition, offset, leader_epoch, self.nodes.number(node), duplicate,
            attempts,
        )  # fmt: skip
        if record not in self._acked:
            self._acked.add(record)
            self._acked_in[partition] += 1
        if node and leader_epoch != NOBODY:
            self.leads(partition, leader_epoch, node)

    def ok_unsent(self, name: str, *, partition: int, offset: int) -> None:
        """Note an acknowledgement of something that nobody ever sent."""
        detail = f"{name} was never sent"
        self.violations.append(Violation(Anomaly.ACK_UNSENT, partition, offset, detail))

    def leads(self, partition: int, leader_epoch: int, node: str) -> None:
        """Note that a process was seen to act as leader of this epoch."""
        seen = self.leaders.setdefault((partition, leader_epoch), [])
        number = self.nodes.number(node)
        if number not in seen:
            seen.append(number)

    def name(self, record: int) -> str:
        """Return what to call a record in a message."""
        if self.names[record]:
            return self.names[record]
        producer = self.producers.name(self.records["producer"][record])
        return f"{producer}/{self.records['sequence'][record]}"

    # ------------------------------------------------------------------ consumers

    def follow_to_the_end(self, consumer: str, partition: int) -> None:
        """Declare that a consumer has read on until the end that it was told after all load."""
        self.sessions["to_the_end"][self._session(consumer, partition)] = 1

    def poll(
        self,
        consumer: str,
        partition: int,
        rows: Rows,
        *,
        at_ns: int,
        began_ns: int = 0,
        committed: bool = True,
        high_watermark: int = NOBODY,
        node: str = "",
        leader_epoch: int = NOBODY,
    ) -> None:
        """Note what one poll returned, in its order.

        Args:
            consumer: who goes on where its last poll ended, unless it seeks or is truncated.
            partition: of what.
            rows: offset, content and epoch of each.
            at_ns: after the answer.
            began_ns: before the question.
            committed: COMMITTED; else UNCOMMITTED, which a truncation may take back.
            high_watermark: what the answer said, if it did; then ``node`` and ``leader_epoch``
                say which leader said so.
            node: the process that answered as leader.
            leader_epoch: in which epoch it did.
        """
        columns = rows if isinstance(rows, RowColumns) else RowColumns.of(rows)
        session = self._session(consumer, partition)
        first = len(self.poll_rows)
        poll = self.polls.add(session, committed, at_ns, first, len(columns))
        self.poll_rows["poll"].extend([poll] * len(columns))
        self.poll_rows["offset"].extend(columns.offsets.tolist())
        self.poll_rows["value"].extend(self.values_of(columns.fingerprints))
        self.poll_rows["epoch"].extend(columns.leader_epochs.tolist())
        self.poll_rows["timestamp_us"].extend(columns.timestamps_us.tolist())
        if high_watermark != NOBODY:
            self.saw_high_watermark(
                partition, high_watermark,
                node=node, leader_epoch=leader_epoch, began_ns=began_ns, at_ns=at_ns,
            )  # fmt: skip

    def seek(self, consumer: str, partition: int, position: int = NOBODY) -> None:
        """Note that a consumer goes on elsewhere, and knows it: a seek, a rebalance, a restart."""
        who = self.consumers.number(consumer)
        self._session_of[who, partition] = self.sessions.add(who, partition, position, 0)

    def truncated(self, consumer: str, partition: int, end: int) -> None:
        """Note that a consumer was told: what you read from ``end`` on is no more."""
        self.seek(consumer, partition, end)

    def saw_high_watermark(
        self, partition: int, end: int, *, node: str, leader_epoch: int, began_ns: int, at_ns: int
    ) -> None:
        """Note what a leader showed as the end of what is committed."""
        number = self.nodes.number(node)
        self.high_watermarks.add(partition, number, leader_epoch, end, began_ns, at_ns)

    def _session(self, consumer: str, partition: int) -> int:
        who = self.consumers.number(consumer)
        if (who, partition) not in self._session_of:
            self.seek(consumer, partition)
        return self._session_of[who, partition]

    # ------------------------------------------------------------------ what is allowed

    def hole(self, partition: int, start: int, end: int) -> None:
        """Note offsets without records whose cause is recorded: retention, compaction, erasure."""
        self.holes.setdefault(partition, []).append((start, end))

    def forgive(self, partition: int, end: int, at_ns: int) -> None:
        """Note an operator's choice to lose the records at ``end`` and above."""
        self.forgiven.setdefault(partition, []).append((end, at_ns))

    # ------------------------------------------------------------------ contents

    def value_of(self, fingerprint: bytes) -> int:
        """Return the number of a content; a new one belongs to nobody yet."""
        number = self.values.setdefault(fingerprint, len(self.record_of_value))
        if number == len(self.record_of_value):
            self.record_of_value.append(NOBODY)
        return number

    def values_of(self, fingerprints: Iterable[bytes]) -> list[int]:
        """Return the numbers of contents."""
        contents = fingerprints if isinstance(fingerprints, Sequence) else list(fingerprints)
        numbers = list(map(self.values.get, contents))
        if None not in numbers:
            return cast("list[int]", numbers)
        return [self.value_of(one) for one in contents]
