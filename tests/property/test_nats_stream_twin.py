"""The batch parser against nats-py's own, byte for byte, wherever the socket cuts the stream."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from broker.codec.nats.stream import NatsStream
from cases import examples

Message = tuple[int, bytes, bytes | None, bytes, bytes | None]
HOT = (1, 2)
COLD = 9

SUBJECTS = st.sampled_from([b"a", b"orders.eu", b"$SYS.x", b"MSG", b"PING", b"t.\xc3\xa9"])
REPLIES = st.none() | st.sampled_from([b"_INBOX.x.1", b"_INBOX.x.2", b"1"])
PAYLOADS = st.binary(max_size=24) | st.sampled_from(
    [b"\r\n", b"\r\nMSG a 1 1\r\nx\r\n", b"\r", b"\n", b"PING\r\n", b"-ERR 'x'\r\n"]
)
BLOCKS = st.none() | st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"])
MESSAGES = st.tuples(st.sampled_from([*HOT, COLD]), SUBJECTS, REPLIES, PAYLOADS, BLOCKS)
WORDS = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Slow Consumer'\r\n", b'INFO {"x": 1}\r\n']
)


class Recorder:
    """Stands in for nats-py's client and records the calls of its parser."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.words: list[str] = []

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.messages.append((sid, subject, reply or None, data, headers))

    async def _process_err(self, text: str) -> None:
        self.words.append(text)

    async def _process_ping(self) -> None:
        self.words.append("ping")

    async def _process_pong(self) -> None:
        self.words.append("pong")

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.words.append(str(info))


def wire(item: Message | bytes) -> bytes:
    """Return the protocol bytes of a message, or of a word as it is."""
    if isinstance(item, bytes):
        return item
    sid, subject, reply, payload, block = item
    middle = b"%b %d%b" % (subject, sid, b" " + reply if reply is not None else b"")
    if block is None:
        return b"MSG %b %d\r\n%b\r\n" % (middle, len(payload), payload)
    total = len(block) + len(payload)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (middle, len(block), total, block, payload)


def by_nats_py(data: bytes) -> Recorder:
    """Parse everything with nats-py."""
    recorder = Recorder()
    asyncio.run(Parser(recorder).parse(data))
    return recorder


def by_us(chunks: list[bytes]) -> Recorder:
    """Parse with our parser; the rest goes to nats-py's parser, as in production."""
    stream = NatsStream()
    for sid in HOT:
        stream.add_hot(sid)
    recorder = Recorder()
    for chunk in chunks:
        parsed = stream.feed(chunk)
        assert parsed.error is None
        for batch in parsed.batches:
            starts = [run[0] for run in batch.runs]
            for row, payload in enumerate(batch.payloads):
                run = batch.runs[max(i for i, start in enumerate(starts) if start <= row)]
                reply, block = batch.replies.get(row), batch.blocks.get(row)
                recorder.messages.append((batch.sid, run[1], reply, payload, block))
        for item in parsed.others:
            other = by_nats_py(item)
            recorder.messages += other.messages
            recorder.words += other.words
    return recorder


def assert_same(ours: Recorder, theirs: Recorder) -> None:
    """Compare per subscription, for a batch keeps the order within one only."""
    for sid in (*HOT, COLD):
        got = [message for message in ours.messages if message[0] == sid]
        assert got == [message for message in theirs.messages if message[0] == sid]
    assert len(ours.messages) == len(theirs.messages)
    assert ours.words == theirs.words


SAMPLE: list[Message | bytes] = [
    (1, b"a", None, b"hello", None),
    b"PING\r\n",
    (1, b"a", b"_INBOX.x.1", b"\r\nMSG a 1 1\r\nx\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
    (COLD, b"z", None, b"\r\n\r\n", None),
    (2, b"b", None, b"", None),
    b"-ERR 'Slow Consumer'\r\n",
    (1, b"a", None, b"hello", None),
]


def test_every_split_point_of_a_sample_gives_the_same() -> None:
    """Wherever two reads meet, the messages are those of nats-py's parser."""
    data = b"".join(wire(item) for item in SAMPLE)
    theirs = by_nats_py(data)
    for cut in range(len(data) + 1):
        assert_same(by_us([data[:cut], data[cut:]]), theirs)


def test_single_bytes_give_the_same() -> None:
    """A socket that delivers one byte at a time changes nothing."""
    data = b"".join(wire(item) for item in SAMPLE)
    assert_same(by_us([data[i : i + 1] for i in range(len(data))]), by_nats_py(data))


@examples(150)
@given(st.lists(MESSAGES | WORDS, max_size=12), st.lists(st.integers(0, 600), max_size=6))
def test_any_stream_in_any_pieces_gives_the_same(
    items: list[Message | bytes], cuts: list[int]
) -> None:
    """Both parsers agree on every legal stream, however it is cut."""
    data = b"".join(wire(item) for item in items)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    chunks = [data[start:end] for start, end in pairwise(places)]
    assert_same(by_us(chunks), by_nats_py(data))


@examples(150)
@given(st.lists(MESSAGES | WORDS, min_size=1, max_size=6), st.data())
def test_a_damaged_stream_never_raises_or_hoards(
    items: list[Message | bytes], data: st.DataObject
) -> None:
    """With one byte changed the parser reports an error or not, and holds one feed at most."""
    wire_bytes = bytearray(b"".join(wire(item) for item in items))
    place = data.draw(st.integers(0, len(wire_bytes) - 1))
    wire_bytes[place] = data.draw(st.integers(0, 255))
    stream = NatsStream()
    for sid in HOT:
        stream.add_hot(sid)
    parsed = stream.feed(bytes(wire_bytes))
    assert stream.buffered_bytes <= len(wire_bytes) + 2
    for batch in parsed.batches:
        assert all(row < len(batch.payloads) for row in {*batch.blocks, *batch.replies})
        assert all(run[0] < len(batch.payloads) for run in batch.runs)
