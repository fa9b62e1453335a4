"""What ``headwater publish`` sends: lines of the input become records with a place. No connection.

Every line is a record, byte for byte, without its line feed: an empty line and a carriage return
are kept unless an option says otherwise. What cannot be a record is refused with the line's
number, or written to the file of ``--skip-bad``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from broker.codec.checksum import crc32c
from broker.errors import InvalidRequestError, RecordTooLargeError, UnknownPartitionError
from broker.model.partitioner import partition_of_key
from broker.model.stream import Stream
from headwater.cli.parsing import expand_subject

_READ_BYTES: Final = 256 * 1024
_RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_FIELD_PLACE: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to send, with its destination."""

    partition: int
    subject: str
    key: bytes | None
    value: bytes


class Router:
    """Decides subject, partition and key of each value. Holds no connection."""

    def __init__(
        self,
        *,
        stream: Stream,
        subject: str | None,
        partition: int | None,
        key: bytes | None,
        key_field: str | None,
    ) -> None:
        """Check the choices against the stream.

        Raises:
            UnknownPartitionError: the stream does not have this partition.
            InvalidRequestError: a wildcard needs a subject, the stream does not record the
                subject, or the subject is another partition's.
        """
        config = stream.config
        if partition is not None and partition >= config.partitions:
            raise UnknownPartitionError.of(stream.name, partition, config.partitions)
        wildcard = any(token in ("*", ">") for token in config.subject.split("."))
        if wildcard and subject is None:
            raise InvalidRequestError(
                f"stream {stream.name!r} records {config.subject!r}: give the subject to publish "
                "on with --subject"
            )
        self._stream = stream
        self._config = config
        self._template = subject if _FIELD_PLACE.search(subject or "") else None
        self._subject: str | None = None
        self._partition = partition
        if subject is not None and self._template is None:
            self._subject, self._partition = subject, self._partition_on(subject)
        self._key = key
        self._key_field = key_field
        self._parse = key_field is not None or self._template is not None
        self._by_batch = config.partitioner == "crc32"  # else as this command did in release 0.1
        self._turn = -1 if self._by_batch else 0

    @property
    def placed_by(self) -> int | None:
        """The number of partitions with which keys are placed; None if no key chooses one."""
        keyed = self._key is not None or self._key_field is not None
        chosen = self._partition is not None or self._template is not None
        return self._config.partitions if keyed and self._by_batch and not chosen else None

    def begin_batch(self) -> None:
        """Begin the next batch: its records without a key go to the next partition."""
        self._turn += self._by_batch

    def route(self, value: bytes) -> OutgoingRecord:
        """Return the record for a value, with its partition, subject and key.

        Raises:
            InvalidRequestError: the value is not a JSON object, lacks a needed field, or its
                subject is none of the stream's.
            RecordTooLargeError: the stream takes no record of this size.
        """
        fields = _fields(value) if self._parse else {}
        key = self._key if self._key_field is None else _key(fields, self._key_field)
        _refuse_too_large(len(value) + len(key or b""), self._config.record_bytes_max)
        if self._template is not None:
            try:
                subject = expand_subject(self._template, fields)
            except ValueError as cause:
                raise InvalidRequestError(str(cause)) from cause
            return OutgoingRecord(self._partition_on(subject), subject, key, value)
        partition = self._choose_partition(key)
        subject = self._subject or self._config.partition_subject(partition)
        return OutgoingRecord(partition, subject, key, value)

    def _partition_on(self, subject: str) -> int:
        """Return the partition that records a subject; refuse a subject outside the stream."""
        found = self._config.partition_on(subject)
        if found is None:
            raise InvalidRequestError(
                f"stream {self._stream.name!r} records {self._config.subject!r}, not "
                f"{subject[:255]!r}",
                subject=subject[:255],
            )
        if self._partition not in (None, found):
            raise InvalidRequestError(
                f"subject {subject!r} is of partition {found}, not of {self._partition}",
                subject=subject,
            )
        return found

    def _choose_partition(self, key: bytes | None) -> int:
        count = self._config.partitions
        if self._partition is not None:
            return self._partition
        if count == 1:
            return 0
        if key is not None:
            if self._by_batch:
                return partition_of_key(key, count)
            return crc32c(key) % count  # the rule of this command in release 0.1
        if self._by_batch:
            return self._turn % count
        turn, self._turn = self._turn, self._turn + 1
        return turn % count


class Converter:
    """Turns groups of lines into records, in order, and counts what it leaves out."""

    def __init__(
        self,
        router: Router,
        *,
        strip_cr: bool = False,
        skip_blank: bool = False,
        skip_bad: BinaryIO | None = None,
    ) -> None:
        """``skip_bad`` is the file for lines that cannot be records; without one they are errors.

        Such lines are written as they were read, each with a line feed.
        """
        self._router = router
        self._strip_cr = strip_cr
        self._skip_blank = skip_blank
        self._skip_bad = skip_bad
        self._lines_count = 0
        self.skipped = 0  # lines written to the file of skip_bad

    def convert(self, group: Sequence[bytes]) -> list[OutgoingRecord]:
        """Return the records of the next lines.

        Raises:
            InvalidRequestError, RecordTooLargeError: with the line's number.
        """
        self._router.begin_batch()
        records = []
        for line in group:
            self._lines_count += 1
            value = line.removesuffix(b"\r") if self._strip_cr else line
            if not value and self._skip_blank:
                continue
            try:
                records.append(self._router.route(value))
            except (InvalidRequestError, RecordTooLargeError) as error:
                if self._skip_bad is None:
                    message = f"line {self._lines_count}: {error.message}"
                    raise type(error)(message, **error.facts) from error
                self._skip_bad.write(line + b"\n")
                self.skipped += 1
        return records


def values(source: BinaryIO, *, raw: bool) -> Iterator[list[bytes]]:
    """Yield values in groups as they arrive, so that a slow pipe is published without delay.

    Raises:
        RecordTooLargeError: a line, or with ``raw`` the whole input, is larger than any stream
            takes.
    """
    if raw:
        data = source.read(_RECORD_BYTES_MAX + 1)
        _refuse_too_large(len(data), _RECORD_BYTES_MAX)
        yield [data]
        return
    rest = b""
    while chunk := _read_some(source):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        _refuse_too_large(len(rest), _RECORD_BYTES_MAX)
        if lines:
            yield lines
    if rest:
        yield [rest]


def _read_some(source: BinaryIO) -> bytes:
    read1 = getattr(source, "read1", None)  # returns available bytes without waiting for more
    chunk: bytes = read1(_READ_BYTES) if read1 else source.read(_READ_BYTES)
    return chunk


def _refuse_too_large(size: int, limit: int) -> None:
    if size > limit:
        raise RecordTooLargeError(
            f"a record has {size} bytes; {limit} is the maximum",
            size_bytes=size,
            limit_bytes=limit,
        )


def _fields(value: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as cause:
        blank = "; --skip-blank leaves empty lines out" if not value.strip() else ""
        raise InvalidRequestError(f"not JSON: {value[:80]!r}{blank}") from cause
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"not a JSON object: {value[:80]!r}")
    return fields


def _key(fields: dict[str, Any], name: str) -> bytes | None:
    if name not in fields:
        raise InvalidRequestError(f"the record has no field {name!r} for its key", field=name)
    found = fields[name]
    if found is None:
        return None
    try:
        return (found if isinstance(found, str) else json.dumps(found)).encode()
    except UnicodeEncodeError as cause:  # JSON can escape half a character
        raise InvalidRequestError(f"the field {name!r} is not text", field=name) from cause
