"""The NATS protocol on the subscriber's side: turns socket bytes into columns. No I/O.

A Python callback for each message would cost more than the message itself. So this parser reads
the buffer once and returns one batch per subscription and call of :meth:`NatsStream.feed`. A
control line that was seen before costs one dictionary look-up. A *hot* subscription is one whose
messages this parser reads. All other protocol items (PING, INFO, -ERR, +OK, messages of other
subscriptions) are cut out whole, for the client library's own parser.

The CRLF at the end of an item is read as the first two bytes of the next control line. So a wrong
length needs no check of its own: the next control line is then an unknown line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

CONTROL_LINE_BYTES_MAX: Final = 64 * 1024  # INFO names every server of a cluster
PAYLOAD_BYTES_MAX: Final = 65 * 1024 * 1024  # nats-server refuses a max_payload above 64 MiB
_REMEMBERED_MAX: Final = 16 * 1024  # control lines, subjects, lengths; about 250 B each
_REMEMBERED_BYTES_MAX: Final = 512  # of one of them; longer ones are parsed each time
_CRLF: Final = b"\r\n"
_PLAIN_OPS: Final = frozenset({b"PING", b"PONG", b"+OK", b"-ERR", b"INFO"})
_LENGTH_DIGITS_MAX: Final = 9
_M: Final = ord("M")  # the first byte of MSG, not of HMSG


@dataclass(slots=True)
class MessageBatch:
    """Messages of one subscription from one feed, in the order of arrival, as columns.

    Columns that few rows have are dictionaries by row. There is no object per message, because an
    object would cost more than the message.
    """

    sid: int
    payloads: list[bytes] = field(default_factory=list)
    # (first row, subject): the subject of all rows up to the next run, which may have the same one.
    runs: list[tuple[int, bytes]] = field(default_factory=list)
    replies: dict[int, bytes] = field(default_factory=dict)  # reply subjects
    blocks: dict[int, bytes] = field(default_factory=dict)  # header blocks


@dataclass(frozen=True, slots=True)
class Parsed:
    """The items that one feed completed. After an ``error`` the connection must be closed."""

    batches: list[MessageBatch]  # one per hot subscription that got messages
    others: list[bytes]  # whole protocol items for the client library, in order
    error: str | None = None


_NOTHING: Final = Parsed([], [])

_Route = tuple[int, bytes]  # subscription id, subject; equal routes are the same object
# The parts of a control line: route, bytes of the header block, bytes in total, reply subject.
_Line = tuple[_Route, int, int, bytes | None]


class _BadProtocol(Exception):  # noqa: N818  (never leaves this module)
    """The bytes are not the NATS protocol."""


class NatsStream:
    """Incremental parser of one connection. Not thread-safe: one owner."""

    __slots__ = ("_chunks", "_failed", "_have", "_heads", "_hot", "_lengths", "_lines", "_need")

    def __init__(self) -> None:
        """Begin without a hot subscription."""
        self._hot: dict[bytes, int] = {}
        self._forget_lines()
        self.reset()

    def _forget_lines(self) -> None:
        self._lines: dict[bytes, _Line] = {}  # whole lines without a reply subject
        self._heads: dict[bytes, _Route] = {}  # lines up to the subscription id
        self._lengths: dict[bytes, int] = {}

    def reset(self) -> None:
        """Forget the incomplete item: the next byte is the first byte of a new connection."""
        self._chunks: list[bytes] = [_CRLF]
        self._have = len(_CRLF)
        self._need = 0  # bytes of the item in progress; 0 while unknown
        self._failed = False

    def add_hot(self, sid: int) -> None:
        """Parse this subscription's messages into batches from now on."""
        self._hot[b"%d" % sid] = sid

    def remove_hot(self, sid: int) -> None:
        """Leave this subscription's messages to the client library again."""
        self._hot.pop(b"%d" % sid, None)
        self._forget_lines()

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for an item that is not complete; at most one item and one feed."""
        return self._have

    def feed(self, data: bytes) -> Parsed:
        """Take the next bytes from the socket; return the items that they complete."""
        assert not self._failed, "a parser that met a protocol error takes no more bytes"
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return _NOTHING  # join chunks only for a whole item: a large message costs linear time
        joined = b"".join(self._chunks)
        batches: dict[int, MessageBatch] = {}
        others: list[bytes] = []
        error = None
        try:
            position = self._walk(joined, batches, others)
        except _BadProtocol as cause:
            self._failed = True
            position = len(joined)
            error = str(cause)
        self._chunks = [joined[position:]]
        self._have = len(joined) - position
        return Parsed([one for one in batches.values() if one.payloads], others, error)

    def _walk(self, data: bytes, batches: dict[int, MessageBatch], others: list[bytes]) -> int:
        """Parse whole items; return the position of the CRLF before the first incomplete item."""
        size = len(data)
        find = data.find
        known = self._lines.get
        position = 0
        current: _Route | None = None
        batch: MessageBatch | None = None
        payloads: list[bytes] = []
        self._need = 0
        while True:
            end_of_line = find(_CRLF, position + 2)
            if end_of_line < 0:
                self._check_partial(data, position, batch)
                return position
            line = data[position:end_of_line]
            meaning = known(line) or self._with_reply(line)
            if meaning is None:
                meaning = self._new_line(line, batch)
                if meaning is None:  # for the client library: a protocol item or a cold message
                    position = self._cut_other(data, position, end_of_line, others)
                    if self._need:
                        return position
                    continue
            route, header_size, total, reply = meaning
            start = end_of_line + 2
            end = start + total
            if end + 2 > size:
                self._need = end + 2 - position
                return position
            if route is not current:
                current = route
                batch = batches.get(route[0])
                if batch is None:
                    batch = batches[route[0]] = MessageBatch(route[0])
                payloads = batch.payloads
                batch.runs.append((len(payloads), route[1]))
            assert batch is not None
            if reply is not None:
                batch.replies[len(payloads)] = reply
            if header_size:
                batch.blocks[len(payloads)] = data[start : start + header_size]
                start += header_size
            payloads.append(data[start:end])
            position = end

    def _with_reply(self, line: bytes) -> _Line | None:
        """Parse a line with a reply subject by its remembered parts.

        Each message has a new reply subject, so the whole line is never remembered.
        """
        lengths = self._lengths
        parts = line.rsplit(b" ", 2)
        route = self._heads.get(parts[0])
        if route is not None and line[2] == _M:
            total = lengths.get(parts[2])
            return None if total is None or not parts[1] else (route, 0, total, parts[1])
        parts = line.rsplit(b" ", 3)
        route = self._heads.get(parts[0])
        if route is None or line[2] == _M:
            return None
        header_size, total = lengths.get(parts[2]), lengths.get(parts[3])
        if header_size is None or total is None or header_size > total or not parts[1]:
            return None
        return route, header_size, total, parts[1]

    def _new_line(self, line: bytes, batch: MessageBatch | None) -> _Line | None:
        """Parse and remember a control line; None when the line is for the client library."""
        if len(line) > CONTROL_LINE_BYTES_MAX:
            raise _BadProtocol(f"a control line is longer than {CONTROL_LINE_BYTES_MAX} bytes")
        if not line.startswith(_CRLF):
            _drop_last(batch)
            raise _BadProtocol("a message is not as long as its control line says")
        # Single blanks, as the server writes them. A subject may have any other byte below 0x20:
        # the server lets publishers use it, and as a blank it would be a forged line.
        words = line[len(_CRLF) :].split(b" ")
        op = words[0]
        if op == b"MSG":
            sizes = 1
        elif op == b"HMSG":
            sizes = 2
        elif op in _PLAIN_OPS:
            return None
        else:
            raise _BadProtocol(f"unknown protocol operation {op[:16]!r}")
        if len(words) not in {3 + sizes, 4 + sizes} or b"" in words:
            raise _BadProtocol(f"malformed control line {line[:64]!r}")
        total = self._length(words[-1])
        header_size = self._length(words[-2]) if sizes == 2 else 0
        if header_size > total:
            raise _BadProtocol(f"a header block of {header_size} bytes in a message of {total}")
        sid = self._hot.get(words[2])
        if sid is None:
            return None
        if len(line) > _REMEMBERED_BYTES_MAX:
            return (sid, words[1]), header_size, total, words[3] if len(words) > 3 + sizes else None
        if max(len(self._lines), len(self._heads), len(self._lengths)) >= _REMEMBERED_MAX:
            self._forget_lines()
        head = b"\r\n%b %b %b" % (op, words[1], words[2])
        route = self._heads.setdefault(head, (sid, words[1]))
        if len(words) == 4 + sizes:
            return route, header_size, total, words[3]
        meaning = self._lines[line] = (route, header_size, total, None)
        return meaning

    def _length(self, digits: bytes) -> int:
        length = self._lengths[digits] = _length(digits)
        return length

    def _cut_other(self, data: bytes, position: int, end_of_line: int, others: list[bytes]) -> int:
        """Cut one item for the client library; if it is incomplete, set ``_need`` and keep it."""
        words = data[position + 2 : end_of_line].split(b" ")
        end = end_of_line
        if words[0] in {b"MSG", b"HMSG"}:
            end += 2 + _length(words[-1])
            if end + 2 > len(data):
                self._need = end + 2 - position
                return position
            if data[end : end + 2] != _CRLF:
                raise _BadProtocol("a message is not as long as its control line says")
        others.append(data[position + 2 : end + 2])
        return end

    def _check_partial(self, data: bytes, position: int, batch: MessageBatch | None) -> None:
        if len(data) - position >= 2 and data[position : position + 2] != _CRLF:
            _drop_last(batch)
            raise _BadProtocol("a message is not as long as its control line says")
        if len(data) - position > CONTROL_LINE_BYTES_MAX:
            raise _BadProtocol(f"a control line is longer than {CONTROL_LINE_BYTES_MAX} bytes")


def _length(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX:
        raise _BadProtocol(f"not a length: {digits[:32]!r}")
    length = int(digits)
    if length > PAYLOAD_BYTES_MAX:
        raise _BadProtocol(f"a message of {length} bytes exceeds {PAYLOAD_BYTES_MAX}")
    return length


def _drop_last(batch: MessageBatch | None) -> None:
    """Remove the message before a missing CRLF: its length was wrong, so it may not be whole."""
    if batch is None or not batch.payloads:
        return
    batch.payloads.pop()
    row = len(batch.payloads)
    batch.blocks.pop(row, None)
    batch.replies.pop(row, None)
    if batch.runs[-1][0] == row:
        batch.runs.pop()
