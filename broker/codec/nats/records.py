"""Turn NATS messages of one partition into the log's columns, and find who wants an ack. Pure.

A batch of bare messages becomes one Arrow column, and no message is read twice. Headers, reply
subjects, other subjects and envelopes cost time only for the rows that have them. A message that
cannot be a record is refused alone, with a typed error; the other messages are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.codec.nats import conditions, envelope
from broker.codec.nats import headers as nats_headers
from broker.codec.nats.envelope import Publish
from broker.codec.nats.stream import MessageBatch
from broker.codec.schema import HEADERS_TYPE
from broker.errors import (
    ConditionFailedError,
    EnvelopeError,
    HeadwaterError,
    MalformedMessageError,
    RecordTooLargeError,
)
from broker.model.offsets import ANY_OFFSET, Offset
from broker.model.records import AckPolicy, Headers
from broker.model.stream import StreamConfig

MESSAGE_ID_BYTES_MAX: Final = 1024
_VECTOR_ROWS_MIN: Final = 64  # for fewer rows a Python loop is faster than numpy
_FIXED_BYTES: Final = 2048  # an Arrow message with every column is 1.2 KiB without a byte of data
_ROW_BYTES: Final = 16  # timestamp, validity and padding

DecodePublish = Callable[[bytes], Publish]  # raises EnvelopeError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """How a partition turns the messages on its subject into records."""

    subject: bytes
    key_header: str
    record_bytes_max: int
    batch_bytes_max: int
    puback: bool
    headers_only: bool  # a PubAck only for messages with a header of JetStream's publishers
    stream: str
    partitions: int
    checks_offsets: bool  # store an envelope only at the offset that it names, if it names one

    @property
    def answers_all(self) -> bool:
        """Whether every reply subject is the address for a PubAck."""
        return self.puback and not self.headers_only

    @classmethod
    def of(cls, stream: str, config: StreamConfig, partition: int) -> RecordRules:
        """Take the rules from a stream's configuration; a batch must fit into a segment."""
        return cls(
            subject=config.partition_subject(partition).encode(),
            key_header=config.key_header,
            record_bytes_max=config.record_bytes_max,
            batch_bytes_max=config.segment_bytes_max,
            puback=config.puback,
            headers_only=config.puback_headers_only,
            stream=stream,
            partitions=config.partitions,
            checks_offsets=config.optimistic_concurrency,
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """The content of an envelope, and the subject on which it arrived."""

    publish: Publish
    subject: bytes


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that is not stored, the reason, and where to send the refusal."""

    error: HeadwaterError
    reply: bytes | None  # None: no publisher asked for an answer
    opened: Opened | None


@dataclass(frozen=True, slots=True)
class Records:
    """Rows to append together, and the publishers that wait for an answer, by row."""

    batch: pa.RecordBatch
    message_ids: Sequence[str | None] | None
    replies: Mapping[int, bytes]  # row -> reply subject of a publisher that asked for a PubAck
    opened: Mapping[int, Opened]  # row -> envelope
    policy: AckPolicy = AckPolicy.ALL  # the ack policy that these publishers asked for
    expected_end: Offset | None = None  # store the only row at this log end, or refuse it

    @property
    def rows_count(self) -> int:
        """Number of records."""
        rows: int = self.batch.num_rows
        return rows

    @property
    def size_bytes(self) -> int:
        """Upper estimate of the bytes that the rows take in the log."""
        size: int = self.batch.nbytes + self.batch.num_rows * _ROW_BYTES + _FIXED_BYTES
        return size

    def halves(self) -> tuple[Records, Records]:
        """Split into two parts of about half the rows each; there must be at least two rows."""
        middle = self.batch.num_rows // 2
        assert middle > 0, "one record cannot be split"
        return self._slice(0, middle), self._slice(middle, self.batch.num_rows)

    def _slice(self, start: int, end: int) -> Records:
        ids = self.message_ids
        return Records(
            self.batch.slice(start, end - start),
            None if ids is None else ids[start:end],
            {row - start: one for row, one in self.replies.items() if start <= row < end},
            {row - start: one for row, one in self.opened.items() if start <= row < end},
            self.policy,
        )

    def in_runs(
        self, expected: Mapping[int, Offset], copied_ids: AbstractSet[int] = frozenset()
    ) -> Iterator[Records]:
        """Yield the same rows in order, in runs of one ack policy; a conditional row is alone.

        A row without an envelope has policy ALL. A row that gets a PubAck has policy ALL too.
        ``expected`` maps a row to the only log end at which the row may be stored. Alone, too, are
        the rows of ``copied_ids``: a batch says of all its records whether their ids count.
        """
        weaker = {
            row: one.publish.ack_policy
            for row, one in self.opened.items()
            if one.publish.ack_policy is not AckPolicy.ALL and row not in self.replies
        }
        alone = expected.keys() | copied_ids
        if not weaker and not alone:
            yield self
            return
        start, rows = 0, self.rows_count
        for row in range(1, rows + 1):
            policy = weaker.get(start, AckPolicy.ALL)
            ends = row == rows or start in alone or row in alone
            if ends or weaker.get(row, AckPolicy.ALL) is not policy:
                part = self._slice(start, row)
                yield replace(part, policy=policy, expected_end=expected.get(start))
                start = row

    def fitting(self, bytes_max: int) -> Iterator[Records]:
        """Yield the same rows in order, in parts of at most ``bytes_max``, or of a single row."""
        if self.size_bytes <= bytes_max or self.batch.num_rows == 1:
            yield self
            return
        for half in self.halves():
            yield from half.fitting(bytes_max)


def to_records(
    messages: MessageBatch, rules: RecordRules, decode_publish: DecodePublish
) -> tuple[list[Records], list[RefusedMessage]]:
    """Turn one parsed batch into records to append and refusals. No message makes it raise."""
    values = pa.array(messages.payloads, pa.binary())
    if _is_plain(messages, values, rules):
        batch = pa.RecordBatch.from_arrays([values], names=["value"])
        return list(Records(batch, None, messages.replies, {}).fitting(rules.batch_bytes_max)), []
    columns = _Columns(messages, rules)
    columns.read_envelopes(decode_publish)
    columns.read_headers(messages.blocks)
    columns.sort_replies()
    columns.check_sizes()
    columns.read_subjects()
    records, refused = columns.build()
    if records is None:
        return [], refused
    runs = records.in_runs(columns.expected_ends(), columns.copied_ids())
    return [part for run in runs for part in run.fitting(rules.batch_bytes_max)], refused


def _is_plain(messages: MessageBatch, values: pa.Array, rules: RecordRules) -> bool:
    """Tell whether every message is a bare payload of legal size on the partition's own subject."""
    if messages.blocks or (messages.replies and not rules.answers_all):
        return False
    if any(subject != rules.subject for _, subject in messages.runs):
        return False
    payloads = messages.payloads
    limit = rules.record_bytes_max
    if len(payloads) < _VECTOR_ROWS_MIN:
        magic = envelope.MAGIC
        return not any(one.startswith(magic) or len(one) > limit for one in payloads)
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[: len(payloads) + 1]
    lengths = np.diff(offsets)
    if int(lengths.max()) > limit:
        return False
    starts = offsets[:-1][lengths >= envelope.HEADER_SIZE]
    if not len(starts):
        return True
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    # Text and JSON never begin with this byte. A batch with such a payload takes the slow path.
    return not bool((data[starts] == envelope.MAGIC[0]).any())


class _Columns:
    """The slow path: one list per property of rows, made only if some row has the property."""

    def __init__(self, messages: MessageBatch, rules: RecordRules) -> None:
        self._rules = rules
        self._values = list(messages.payloads)
        self._count = len(self._values)
        self._subjects = _expand(messages.runs, self._count)
        self._replies: Mapping[int, bytes] = messages.replies  # of publishers, once sorted
        self._reply_data: Mapping[int, bytes] = {}  # of messages that ask for no PubAck
        self._of_publishers: set[int] = set()  # rows of JetStream's publishers, if headers_only
        self._expected: dict[int, Offset] = {}  # the only log end at which a row may be stored
        self._keys: dict[int, bytes] = {}
        self._headers: dict[int, Headers] = {}
        self._ids: dict[int, str] = {}
        self._publishes: dict[int, Publish] = {}
        self._errors: dict[int, HeadwaterError] = {}
        self._subject_texts: list[str | None] | None = None
        self._reply_texts: dict[int, str] = {}

    def read_envelopes(self, decode_publish: DecodePublish) -> None:
        """Replace envelopes by their content; a payload that does not parse stays as it is."""
        magic = envelope.MAGIC
        rows = [row for row, payload in enumerate(self._values) if payload.startswith(magic)]
        for row in rows:
            try:
                publish = decode_publish(self._values[row])
            except EnvelopeError:
                continue  # a plain message that happens to begin with the magic
            self._publishes[row] = publish
            self._values[row] = publish.value
            self._headers[row] = publish.headers
            if self._rules.checks_offsets and publish.expected_offset != ANY_OFFSET:
                self._expected[row] = publish.expected_offset
            key = publish.key
            if key is None:
                key = _first(publish.headers, self._rules.key_header)
            if key is not None:
                self._keys[row] = key

    def read_headers(self, blocks: Mapping[int, bytes]) -> None:
        """Take headers, key and message id out of the NATS header blocks."""
        key_header = self._rules.key_header
        for row, block in blocks.items():
            try:
                headers = nats_headers.read(block)
                for name, value in headers:
                    if name == key_header:
                        self._keys.setdefault(row, value)
                    if name == conditions.MESSAGE_ID and value:
                        self._ids.setdefault(row, _message_id(value))
                if self._rules.puback and b"Nats-" in block:
                    self._read_conditions(row, headers)
            except MalformedMessageError as error:
                self._errors[row] = error
                continue
            opened = self._headers.get(row, ())
            # A restart takes a record's first message id: the one that counts must be the first.
            self._headers[row] = headers + opened if row in self._ids else opened + headers

    def _read_conditions(self, row: int, headers: Headers) -> None:
        """Check the conditions of a JetStream publisher; only streams with ``puback`` do so."""
        rules = self._rules
        if rules.headers_only and conditions.is_of_a_publisher(headers):
            self._of_publishers.add(row)
        try:
            end = conditions.check(headers, stream=rules.stream, partitions=rules.partitions)
        except ConditionFailedError as error:
            self._errors[row] = error
        else:
            if end is not None:
                self._expected[row] = end

    def sort_replies(self) -> None:
        """Tell the reply subjects that ask for a PubAck from those that are data."""
        replies = self._replies
        if self._rules.answers_all:
            return
        asked = self._of_publishers if self._rules.puback else set()
        self._replies = {row: one for row, one in replies.items() if row in asked}
        self._reply_data = {row: one for row, one in replies.items() if row not in asked}

    def expected_ends(self) -> Mapping[int, Offset]:
        """Return the log end that a row expects, by the row's place among the rows to store."""
        if not self._expected:
            return {}
        rows = (row for row in range(self._count) if row not in self._errors)
        return {
            place: self._expected[row] for place, row in enumerate(rows) if row in self._expected
        }

    def copied_ids(self) -> AbstractSet[int]:
        """Return the rows whose only message id is data: the envelope brought it, no header did.

        A row is its place among the rows to store. Without ids that count there is no such row.
        """
        if not self._ids:
            return frozenset()
        rows = (row for row in range(self._count) if row not in self._errors)
        return {
            place
            for place, row in enumerate(rows)
            if row in self._publishes
            and row not in self._ids
            and _first(self._publishes[row].headers, conditions.MESSAGE_ID) is not None
        }

    def check_sizes(self) -> None:
        """Refuse records over the limit: value, key and headers together."""
        limit = self._rules.record_bytes_max
        sizes = list(map(len, self._values))
        for row, headers in self._headers.items():
            for name, value in headers:
                sizes[row] += len(name) + len(value)
        for row, key in self._keys.items():
            sizes[row] += len(key)
        if max(sizes) <= limit:
            return
        for row, size in enumerate(sizes):
            if size > limit:
                self._errors[row] = RecordTooLargeError(
                    f"the record has {size} bytes; this stream takes at most {limit} "
                    "(record_bytes_max)",
                    size_bytes=size,
                    limit_bytes=limit,
                )

    def read_subjects(self) -> None:
        """Decode as text the subjects to store, and the reply subjects that get no PubAck.

        The partition's own subject is not stored with each record.
        """
        own = self._rules.subject
        different = {subject for subject in self._subjects if subject != own}
        if different:
            texts = {subject: _text(subject) for subject in different}
            self._subject_texts = [texts.get(subject) for subject in self._subjects]
            if None in texts.values():
                for row, subject in enumerate(self._subjects):
                    if subject != own and texts[subject] is None:
                        self._errors[row] = _not_text("subject", subject)
        for row, reply in self._reply_data.items():
            text = _text(reply)
            if text is None:
                self._errors[row] = _not_text("reply_subject", reply)
            else:
                self._reply_texts[row] = text

    def build(self) -> tuple[Records | None, list[RefusedMessage]]:
        """Return the rows to store as Arrow columns, and the other rows with their errors."""
        refused = [
            RefusedMessage(error, self._replies.get(row), self._opened(row))
            for row, error in self._errors.items()
        ]
        rows: Sequence[int] = range(self._count)
        values = self._values
        if refused:
            rows = [row for row in rows if row not in self._errors]
            values = [values[row] for row in rows]
        if not rows:
            return None, refused
        columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
        if self._keys:
            columns["key"] = pa.array([self._keys.get(row) for row in rows], pa.binary())
        if self._headers:
            columns["headers"] = _headers_column([self._headers.get(row, ()) for row in rows])
        if self._subject_texts is not None:
            texts = self._subject_texts
            columns["subject"] = pa.array([texts[row] for row in rows], pa.string())
        if self._reply_texts:
            columns["reply_subject"] = pa.array(
                [self._reply_texts.get(row) for row in rows], pa.string()
            )
        if any(publish.correlation_id for publish in self._publishes.values()):
            columns["correlation_id"] = pa.array(
                [self._correlation(row) for row in rows], pa.string()
            )
        ids = [self._ids.get(row) for row in rows] if self._ids else None
        batch = pa.RecordBatch.from_pydict(columns)
        return Records(batch, ids, *self._waiting(rows)), refused

    def _waiting(self, rows: Sequence[int]) -> tuple[Mapping[int, bytes], Mapping[int, Opened]]:
        replies: Mapping[int, bytes] = self._replies
        places: Mapping[int, int] = {}
        if self._errors and (replies or self._publishes):
            places = {row: place for place, row in enumerate(rows)}
            replies = {places[row]: one for row, one in replies.items() if row in places}
        opened: dict[int, Opened] = {}
        for row in self._publishes:
            one = self._opened(row)
            if one is not None and row not in self._errors:
                opened[places.get(row, row)] = one
        return replies, opened

    def _opened(self, row: int) -> Opened | None:
        publish = self._publishes.get(row)
        return None if publish is None else Opened(publish, self._subjects[row])

    def _correlation(self, row: int) -> str | None:
        publish = self._publishes.get(row)
        return publish.correlation_id or None if publish is not None else None


def _expand(runs: Sequence[tuple[int, bytes]], count: int) -> list[bytes]:
    if len(runs) == count:
        return [subject for _, subject in runs]
    subjects: list[bytes] = []
    ends = [*(start for start, _ in runs[1:]), count]
    for (start, subject), end in zip(runs, ends, strict=True):
        subjects += [subject] * (end - start)
    return subjects


def _headers_column(rows: Sequence[Headers]) -> pa.Array:
    """Build list<struct<key, value>>; a row without headers is null."""
    flat = [pair for headers in rows for pair in headers]
    counts = np.fromiter((len(headers) for headers in rows), dtype=np.int32, count=len(rows))
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    empty: Any = counts == 0
    mask = pa.array(empty) if bool(empty.any()) else None
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS_TYPE, mask=mask)


def _message_id(value: bytes) -> str:
    text = _text(value)
    if text is None or len(value) > MESSAGE_ID_BYTES_MAX:
        raise MalformedMessageError(
            f"{conditions.MESSAGE_ID} must be UTF-8 of at most {MESSAGE_ID_BYTES_MAX} bytes, "
            f"not {value[:64]!r}",
            part="message_id",
        )
    return text


def _first(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in headers if name == wanted), None)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _not_text(part: str, data: bytes) -> MalformedMessageError:
    return MalformedMessageError(f"{part} {data[:64]!r} is not UTF-8", part=part)
