"""Records that are hard to mistake for each other: random sizes, nulls, repeated headers.

Every record carries its name in at least one of key, value and headers, so that its fingerprint is
its own. Values that a producer cannot send by its protocol (null through NATS) are left to others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from checkkit.content import fingerprint

KEY_HEADER = "Headwater-Key"
MESSAGE_ID_HEADER = "Nats-Msg-Id"
_FIRST_US = 1_600_000_000_000_000
_SPAN_US = 100_000_000_000_000  # about three years


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRecord:
    """One record as it is sent, and as every later read has to return it."""

    __test__ = False  # not a test class, whatever pytest thinks of the name

    name: str
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    subject: str
    reply_subject: str | None = None
    correlation_id: str | None = None
    timestamp_us: int | None = None  # None: the broker gives one

    @property
    def fingerprint(self) -> bytes:
        """Return what a read must find, bit for bit."""
        return fingerprint(
            key=self.key,
            value=self.value,
            headers=self.headers,
            subject=self.subject,
            reply_subject=self.reply_subject,
            correlation_id=self.correlation_id,
        )


class RecordMaker:
    """Makes the records of one producer, from a seed."""

    def __init__(self, producer: str, subject: str, *, seed: str, large_bytes_max: int) -> None:
        self.producer = producer
        self._subject = subject
        self._random = random.Random(seed)
        self._large_bytes_max = large_bytes_max
        self._next = 0

    def for_nats(self) -> TestRecord:
        """Return a record that NATS can carry; its message id is its name."""
        sequence, name = self._name()
        headers: list[tuple[str, bytes | None]] = [(MESSAGE_ID_HEADER, name.encode())]
        key = self._random.choice([None, b"", b"k%d" % (sequence % 50)])
        if key is not None:
            headers.insert(self._random.randint(0, 1), (KEY_HEADER, key))
        if self._random.random() < 0.3:
            headers += [("Tag", b"a"), ("Other", b""), ("Tag", b"b: c")]
        return TestRecord(
            name=name,
            sequence=sequence,
            key=key,
            value=self._payload(),
            headers=tuple(headers),
            subject=self._subject,
        )

    def for_flight(self) -> TestRecord:
        """Return a record of any shape: null and empty parts, binary and null header values.

        Half of them bring their own time, in no order; all lie before today, so that no segment
        is kept for its youth.
        """
        sequence, name = self._name()
        key: bytes | None = self._random.choice([None, b"", self._random.randbytes(8)])
        value: bytes | None = self._payload()
        headers: tuple[tuple[str, bytes | None], ...] | None
        headers = self._random.choice(
            [None, (), (("", b""),), (("x", None), ("x", self._random.randbytes(4)))]
        )
        carrier = self._random.randrange(3)
        if carrier == 0:
            key = name.encode()
            value = self._random.choice([None, b"", value])
        elif carrier == 1:
            value = name.encode() + b"/" + (value or b"")
        else:
            headers = ((f"id-{name}", b"1"), *(headers or ()))
            value = self._random.choice([None, value])
        return TestRecord(
            name=name,
            sequence=sequence,
            key=key,
            value=value,
            headers=headers,
            subject=self._subject,
            reply_subject=self._random.choice([None, "", f"reply.{sequence % 7}"]),
            correlation_id=self._random.choice([None, "", f"c\u00e9-{name}"]),
            timestamp_us=self._random.choice([None, _FIRST_US + self._random.randrange(_SPAN_US)]),
        )

    def for_liftbridge(self) -> TestRecord:
        """Return a record that Liftbridge's API can carry; its correlation id is its name.

        Without null parts and repeated headers, and without a header that is the API's own.
        """
        sequence, name = self._name()
        headers = self._random.choice([None, (("a", b""), ("b", self._random.randbytes(4)))])
        return TestRecord(
            name=name,
            sequence=sequence,
            key=self._random.choice([None, b"k%d" % (sequence % 50)]),
            value=self._payload(),
            headers=headers,
            subject=self._subject,
            correlation_id=name,
        )

    def _name(self) -> tuple[int, str]:
        sequence = self._next
        self._next += 1
        return sequence, f"{self.producer}-{sequence}"

    def _payload(self) -> bytes:
        dice = self._random.random()
        if dice < 0.1:
            return b""
        if dice < 0.8:
            size = self._random.randint(1, 200)
        elif dice < 0.99:
            size = self._random.randint(200, 4096)
        else:
            size = self._random.randint(4096, self._large_bytes_max)
        return self._random.randbytes(size)
