"""The batch parser: what becomes a batch, what is left to nats-py, and a stream gone wrong."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.codec.nats import stream as nats_stream
from broker.codec.nats.stream import MessageBatch, NatsStream


def hot(*sids: int) -> NatsStream:
    """Return a parser with these subscriptions hot."""
    stream = NatsStream()
    for sid in sids:
        stream.add_hot(sid)
    return stream


def test_messages_of_one_subscription_are_one_batch() -> None:
    """Payloads, runs of subject and reply, and header blocks come out as columns."""
    parsed = hot(7).feed(
        b"MSG a.b 7 2\r\nhi\r\n"
        b"MSG a.b 7 0\r\n\r\n"
        b"MSG a.c 7 in.1 3\r\n\r\n\r\r\n"
        b"HMSG a.c 7 in.2 12 14\r\nNATS/1.0\r\n\r\nyo\r\n"
    )
    assert parsed.error is None
    assert parsed.others == []
    assert parsed.batches == [
        MessageBatch(
            7,
            [b"hi", b"", b"\r\n\r", b"yo"],
            [(0, b"a.b"), (2, b"a.c"), (3, b"a.c")],
            {2: b"in.1", 3: b"in.2"},
            {3: b"NATS/1.0\r\n\r\n"},
        )
    ]


@pytest.mark.parametrize("odd", [b"\x0b", b"\x0c", b"\r", b"\x1c", b"\x85", b"\t"])
def test_no_byte_of_a_subject_but_a_blank_ends_it(odd: bytes) -> None:
    """The server lets publishers use them: as a blank one would name another subscription."""
    parsed = hot(1_048_576, 1_048_577).feed(
        b"MSG foo.bar%b1048577 1048576 5\r\nhello\r\n" % odd
        + b"HMSG foo.bar%b1048577 1048576 12 14\r\nNATS/1.0\r\n\r\nyo\r\n" % odd
        + b"MSG orders 1048577 a%bb 2\r\nhi\r\n" % odd
        + b"MSG cold%b1048577 9 2\r\nhi\r\n" % odd
        + b"MSG orders 1048577 1\r\nx\r\n"
    )
    assert parsed.error is None
    assert [(one.sid, one.payloads) for one in parsed.batches] == [
        (1_048_576, [b"hello", b"yo"]),
        (1_048_577, [b"hi", b"x"]),
    ]
    assert parsed.batches[0].replies == {}
    assert {subject for _, subject in parsed.batches[0].runs} == {b"foo.bar%b1048577" % odd}
    assert parsed.batches[1].replies == {0: b"a%bb" % odd}


def test_long_control_lines_are_not_remembered() -> None:
    """Each costs kilobytes, and a publisher to a wildcard can send as many as he likes."""
    stream = hot(1)
    lines = [b"MSG %05d.%b 1 1\r\nx\r\n" % (number, b"s" * 4_000) for number in range(500)]
    tracemalloc.start()
    try:
        (batch,) = stream.feed(b"".join(lines)).batches
        rows = len(batch.payloads)
        del batch
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 500
    assert kept < 200_000


def test_subscriptions_come_apart() -> None:
    """Messages of several hot subscriptions make one batch each, in order within it."""
    parsed = hot(1, 2).feed(b"MSG a 1 1\r\nx\r\nMSG a 2 1\r\nx\r\nMSG b 1 1\r\ny\r\n")
    assert [(one.sid, one.payloads) for one in parsed.batches] == [(1, [b"x", b"y"]), (2, [b"x"])]
    assert parsed.batches[0].runs == [(0, b"a"), (1, b"b")]


def test_everything_else_is_cut_out_whole() -> None:
    """Protocol words and messages of other subscriptions go to the library, in order."""
    parsed = hot(1).feed(
        b'INFO {"a":1}\r\nPING\r\nMSG z 9 4\r\n\r\n\r\n\r\n'
        b"HMSG z 9 r 12 12\r\nNATS/1.0\r\n\r\n\r\nMSG a 1 1\r\nx\r\n-ERR 'x'\r\n+OK\r\nPONG\r\n"
    )
    assert parsed.others == [
        b'INFO {"a":1}\r\n',
        b"PING\r\n",
        b"MSG z 9 4\r\n\r\n\r\n\r\n",
        b"HMSG z 9 r 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"-ERR 'x'\r\n",
        b"+OK\r\n",
        b"PONG\r\n",
    ]
    assert parsed.batches[0].payloads == [b"x"]


@pytest.mark.parametrize(
    "bad",
    [
        b"HELLO\r\n",
        b"\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 r r 5\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 1_0\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 999999999\r\n",
        b"MSG a 9 999999999\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 9 5\r\nhello\r\n",
        b"MSG a 9 2\r\nhello\r\n",
        b"x" * (nats_stream.CONTROL_LINE_BYTES_MAX + 8),
        b"MSG " + b"x" * (nats_stream.CONTROL_LINE_BYTES_MAX + 8) + b" 1 1\r\nx\r\n",
    ],
    ids=lambda bad: repr(bad[:24]),
)
def test_garbage_is_an_error_after_what_was_good(bad: bytes) -> None:
    """A broken item stops the stream; messages before it are still handed out."""
    parsed = hot(1).feed(b"MSG a 1 4\r\ngood\r\n" + bad)
    assert parsed.error is not None
    assert [one.payloads for one in parsed.batches] == [[b"good"]]


@pytest.mark.parametrize("tail", [b"", b"MSG a 1 1\r\nx\r\n"])
def test_a_message_that_ends_wrongly_is_not_handed_out(tail: bytes) -> None:
    """A payload longer than announced is refused, with its run and header block."""
    parsed = hot(1).feed(
        b"MSG a 1 4\r\ngood\r\nHMSG b 1 r 12 14\r\nNATS/1.0\r\n\r\ntoo long\r\n" + tail
    )
    assert parsed.error is not None
    assert parsed.batches == [MessageBatch(1, [b"good"], [(0, b"a")], {}, {})]


def test_a_message_waits_for_its_line_end() -> None:
    """A payload that is there without its CRLF may still turn out to be of the wrong length."""
    stream = hot(1)
    for byte in (b"MSG a 1 1\r\nx", b"\r"):
        assert stream.feed(byte).batches == []
    parsed = stream.feed(b"?")
    assert parsed.error is not None
    assert parsed.batches == []


def test_a_failed_parser_takes_no_more_until_it_is_reset() -> None:
    """After an error only a new connection begins anew."""
    stream = hot(1)
    assert stream.feed(b"nonsense\r\n").error is not None
    with pytest.raises(AssertionError):
        stream.feed(b"PING\r\n")
    stream.reset()
    assert stream.feed(b"MSG a 1 1\r\nx\r\n").batches[0].payloads == [b"x"]


def test_reset_forgets_half_a_message() -> None:
    """The rest of a cut message is not read as the beginning of the next connection."""
    stream = hot(1)
    assert stream.feed(b"MSG a 1 100\r\nhalf").batches == []
    stream.reset()
    assert stream.feed(b"MSG a 1 1\r\nx\r\n").batches[0].payloads == [b"x"]


def test_a_subscription_can_cool_down() -> None:
    """After remove_hot its messages are the library's again, remembered lines included."""
    stream = hot(1)
    assert stream.feed(b"MSG a 1 1\r\nx\r\n").batches
    stream.remove_hot(1)
    assert stream.feed(b"MSG a 1 1\r\nx\r\n").others == [b"MSG a 1 1\r\nx\r\n"]


def test_memory_for_remembered_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wildcard subscription with ever new subjects does not grow the parser for ever."""
    monkeypatch.setattr(nats_stream, "_REMEMBERED_MAX", 4 * 1024)  # a quarter of the product's
    stream = hot(1)
    blob = b"".join(b"MSG s.%d 1 0\r\n\r\n" % number for number in range(12_500))
    tracemalloc.start()
    for position in range(0, len(blob), 65_536):
        stream.feed(blob[position : position + 65_536])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * 1024 * 1024
    assert stream.buffered_bytes < 65_536


def test_a_large_message_is_joined_once() -> None:
    """A message that arrives in many reads is held as chunks until its last byte is there."""
    stream = hot(1)
    body = bytes(range(256)) * 4096
    wire = b"MSG a 1 %d\r\n" % len(body) + body + b"\r\n"
    chunks = [wire[start : start + 1000] for start in range(0, len(wire), 1000)]
    parts = [stream.feed(chunk) for chunk in chunks]
    assert [one for part in parts[:-1] for one in part.batches] == []
    assert parts[-1].batches[0].payloads == [body]
    assert stream.buffered_bytes == 2
