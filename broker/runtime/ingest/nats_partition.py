"""NATS ingest of one partition: its rules, its counters, and the answers to its publishers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog

from broker.codec.nats.envelope import Ack, AckError
from broker.codec.nats.puback import (
    PubAckEncoder,
    encode_publishes,
    is_publish_subject,
)
from broker.codec.nats.records import Opened, RecordRules, Records, RefusedMessage
from broker.errors import (
    ConditionFailedError,
    EncryptionKeyError,
    HeadwaterError,
    RecordTooLargeError,
)
from broker.model.offsets import Offset
from broker.model.partitioner import partition_of_key
from broker.model.records import AckPolicy
from broker.model.stream import Stream
from broker.model.subjects import INBOX
from broker.ports.partition import PartitionWriter, RecordsOutcome

_log = structlog.get_logger(__name__)

# Most addresses are a client's own inbox: these are not asked about.
_INBOX: Final = f"{INBOX}.".encode()
_ANSWER_BYTES_MAX: Final = 64 * 1024  # servers take 1 MiB unless they are set to less
TakesAnswers = Callable[[Stream, bytes], bool]  # whether a stream's publishers get answers there


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStats:
    """The counters of one partition's subscription. Numbers named ``..._total`` only grow."""

    stream: str
    partition: int
    received_messages_total: int
    received_bytes_total: int
    stored_messages_total: int
    duplicate_messages_total: int
    dropped_messages_total: int  # lost because the queue was full
    refused_messages_total: int  # could not be stored; answered if the publisher wants an answer
    pending_bytes: int  # read from the socket, but not yet durable
    misplaced_keys_total: int  # records whose key belongs to another partition of the stream
    gaps_total: int  # lost connections: messages that were published meanwhile are unknown
    slow_consumer_total: int  # of these, ended by the server because this broker read too slowly
    errors_total: dict[str, int]  # refused and dropped messages by error class


@dataclass(slots=True)
class Answers:
    """Answers to publishers, collected for one write."""

    encode_ack: Callable[[Ack], bytes]
    received_us: int
    now_us: int
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the protocol bytes of all answers."""
        return encode_publishes(self.messages)


@dataclass(slots=True)
class _Counters:
    received_messages: int = 0
    received_bytes: int = 0
    stored_messages: int = 0
    duplicate_messages: int = 0
    dropped_messages: int = 0
    refused_messages: int = 0
    misplaced_keys: int = 0
    gaps: int = 0
    slow_consumer: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class PartitionIngest:
    """The ingest of one partition. Owner: the event loop."""

    def __init__(
        self,
        stream: Stream,
        number: int,
        writes: PartitionWriter,
        sid: int,
        takes_answers: TakesAnswers = lambda _stream, _address: True,
    ) -> None:
        """Take over a partition that this broker leads; ``sid`` is its subscription id."""
        self.number = number
        self._takes_answers = takes_answers
        self.writes = writes
        self.subject = stream.config.partition_subject(number)
        self.configure(stream)
        self.sid = sid
        self.counters = _Counters()
        self.pending_bytes = 0
        self.submitted_bytes = 0  # of these, what the log has taken
        self.shedding = False
        self._dropped_before = 0
        self._pubacks = PubAckEncoder(stream, number)

    def configure(self, stream: Stream) -> None:
        """Take changed settings of the stream, for the messages from now on."""
        self.stream = stream
        self.rules = RecordRules.of(stream.name, stream.config, self.number)
        self._checks_keys = stream.config.partitions > 1 and stream.config.partitioner == "crc32"

    def stats(self) -> IngestStats:
        """Return a snapshot. Any thread."""
        counters = self.counters
        return IngestStats(
            stream=self.stream.name,
            partition=self.number,
            received_messages_total=counters.received_messages,
            received_bytes_total=counters.received_bytes,
            stored_messages_total=counters.stored_messages,
            duplicate_messages_total=counters.duplicate_messages,
            dropped_messages_total=counters.dropped_messages,
            refused_messages_total=counters.refused_messages,
            pending_bytes=self.pending_bytes,
            misplaced_keys_total=counters.misplaced_keys,
            gaps_total=counters.gaps,
            slow_consumer_total=counters.slow_consumer,
            errors_total=dict(counters.errors),
        )

    def count_misplaced_keys(self, rows: pa.RecordBatch) -> None:
        """Count the keys that the stream's partitioner gives to another partition; log the first.

        The records are stored: a publisher chooses the partition with its subject.
        """
        if not self._checks_keys or "key" not in rows.schema.names:
            return
        count = self.stream.config.partitions
        misplaced = [
            key
            for key in rows.column("key").to_pylist()
            if key is not None and partition_of_key(key, count) != self.number
        ]
        if misplaced and not self.counters.misplaced_keys:
            right = partition_of_key(misplaced[0], count)
            _log.warning(
                "keys_misplaced",
                stream=self.stream.name,
                partition=self.number,
                key=misplaced[0][:80],
                belongs_to=self.stream.config.partition_subject(right),
                advice="publish a record with a key on the subject of crc32(key) % partitions",
            )
        self.counters.misplaced_keys += len(misplaced)

    def stored(self, records: Records, outcome: RecordsOutcome, answers: Answers) -> None:
        """Count durable rows; answer the publishers that wait."""
        duplicates = outcome.duplicates
        self.counters.stored_messages += records.rows_count - len(duplicates)
        self.counters.duplicate_messages += len(duplicates)
        offsets, messages = outcome.offsets, answers.messages
        if self.stream.config.puback:
            encode, epoch = self._pubacks.encode, outcome.leader_epoch
            messages += [
                (reply, encode(offsets[row], epoch, duplicate=row in duplicates))
                for row, reply in records.replies.items()
                if self._answers(reply)
            ]
        for row, opened in records.opened.items():
            self._ack(opened, offsets[row], answers, AckError.OK)

    def refuse_one(self, refused: RefusedMessage, answers: Answers) -> None:
        """Count one message that cannot be a record; answer its publisher if it waits."""
        replies = {} if refused.reply is None else {0: refused.reply}
        opened = {} if refused.opened is None else {0: refused.opened}
        self._refuse(refused.error, 1)
        self._tell(replies, opened, refused.error, answers)

    def refuse(self, records: Records, error: HeadwaterError, answers: Answers) -> None:
        """Count rows that the log refused; answer the publishers that wait."""
        self._refuse(error, records.rows_count)
        self._tell(records.replies, records.opened, error, answers)

    def _refuse(self, error: HeadwaterError, rows: int) -> None:
        self.counters.refused_messages += rows
        first = self._count_error(error, rows)
        if first:
            _log.warning(
                "messages_refused",
                stream=self.stream.name,
                partition=self.number,
                messages_count=rows,
                error=type(error).__name__,
                reason=error.message,
            )

    def drop(self, records: Records, error: HeadwaterError, answers: Answers) -> None:
        """Count rows that the log did not accept in time; answer the publishers that wait."""
        rows = records.rows_count
        if not self.shedding:
            self.shedding = True
            self._dropped_before = self.counters.dropped_messages
            _log.error(
                "messages_dropping",
                stream=self.stream.name,
                partition=self.number,
                error=type(error).__name__,
                reason=error.message,
            )
        self.counters.dropped_messages += rows
        self._count_error(error, rows)
        self._tell(records.replies, records.opened, error, answers)

    def stop_shedding(self) -> None:
        """Note that the log accepts batches again."""
        self.shedding = False
        _log.error(
            "messages_dropped",
            stream=self.stream.name,
            partition=self.number,
            messages_count=self.counters.dropped_messages - self._dropped_before,
        )

    def _count_error(self, error: HeadwaterError, rows: int) -> bool:
        """Count by error class; return whether to log: at 1, 2, 4, 8 ... errors of the class."""
        return self._count(type(error).__name__, rows)

    def _count(self, kind: str, rows: int) -> bool:
        before = self.counters.errors.get(kind, 0)
        self.counters.errors[kind] = before + rows
        return before.bit_length() != (before + rows).bit_length()

    def _tell(
        self,
        replies: Mapping[int, bytes],
        opened: Mapping[int, Opened],
        error: HeadwaterError,
        answers: Answers,
    ) -> None:
        if replies:
            body = self._pubacks.encode_error(error)
            if self._is_short(body):
                answers.messages += [
                    (reply, body) for reply in replies.values() if self._answers(reply)
                ]
        for one in opened.values():
            self._ack(one, Offset(0), answers, _ack_error(error))

    def _is_short(self, answer: bytes) -> bool:
        """Tell whether the server takes an answer, which repeats a publisher's text; count others.

        The server closes the broker's connection for a message above its ``max_payload``.
        """
        if len(answer) <= _ANSWER_BYTES_MAX:
            return True
        self._count("OversizedAnswer", 1)
        return False

    def _answers(self, address: bytes) -> bool:
        """Tell whether an answer may go to this address; count and log it if not."""
        if address.startswith(_INBOX) or self._takes_answers(self.stream, address):
            return True
        if self._count("RefusedReplyAddress", 1):
            _log.warning(
                "answers_withheld",
                stream=self.stream.name,
                partition=self.number,
                address=address.decode("ascii", "replace"),
            )
        return False

    def _ack(self, opened: Opened, offset: Offset, answers: Answers, error: AckError) -> None:
        """Answer an AckInbox. The caller has waited until the ack policy allows it."""
        publish = opened.publish
        inbox = publish.ack_inbox.encode()
        if publish.ack_policy is AckPolicy.NONE or not inbox:
            return
        if not is_publish_subject(inbox):
            self._count("InvalidAckInbox", 1)
            return
        if not self._answers(inbox):
            return
        ack = Ack(
            stream=self.stream.name,
            partition_subject=self.subject,
            message_subject=opened.subject.decode("utf-8", "replace"),
            offset=offset,
            ack_inbox=publish.ack_inbox,
            correlation_id=publish.correlation_id,
            ack_policy=publish.ack_policy,
            received_us=answers.received_us,
            committed_us=answers.now_us if error is AckError.OK else 0,
            error=error,
        )
        body = answers.encode_ack(ack)
        if self._is_short(body):
            answers.messages.append((inbox, body))


def _ack_error(error: HeadwaterError) -> AckError:
    """Return the code by which Liftbridge's clients know an error."""
    if isinstance(error, RecordTooLargeError):
        return AckError.TOO_LARGE
    if isinstance(error, ConditionFailedError):
        return AckError.INCORRECT_OFFSET
    if isinstance(error, EncryptionKeyError):
        return AckError.ENCRYPTION
    return AckError.UNKNOWN
