"""Decoders of what comes over NATS: the protocol, header blocks, envelopes, records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import nats.errors
from nats.aio.client import Client as NatsClient

from broker.adapters.nats import liftbridge_messages
from broker.adapters.nats.denials import DenialLog
from broker.adapters.nats.hooks import BatchParser, ServerErrors
from broker.codec.nats import conditions, envelope, headers, puback
from broker.codec.nats.records import RecordRules, to_records
from broker.codec.nats.stream import MessageBatch, NatsStream
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import message_pb2 as wire
from fuzzkit.decoder import Decoder


def _server_bytes() -> list[bytes]:
    block = headers.encode([("a", b"1"), ("Nats-Msg-Id", b"7")])
    headed = b"HMSG s 1 reply %d %d\r\n%b%b\r\n" % (len(block), len(block) + 2, block, b"hi")
    info = b'INFO {"server_id":"x","max_payload":1048576,"connect_urls":["127.0.0.1:1"]}\r\n'
    return [
        info + b"PING\r\n" + b"MSG s 1 5\r\nhello\r\n" * 3 + headed + b"+OK\r\n",
        b"-ERR 'Permissions Violation for Publish to \"in.\\\\x\\u200b\\x01\"'\r\n",
        b"MSG s.1 1 _INBOX.x 3\r\nabc\r\nMSG other 2 1\r\nx\r\n-ERR 'Permissions Violation'\r\n",
    ]


def _nats_stream(data: bytes) -> object:
    """Read a server's bytes in pieces, then store what came as records."""
    stream = NatsStream()
    stream.add_hot(1)
    found = []
    for at in range(0, len(data), 97):
        parsed = stream.feed(data[at : at + 97])
        found += [_recorded(batch) for batch in parsed.batches]
        if parsed.error is not None:
            break
    return found


def _recorded(batch: MessageBatch) -> object:
    config = StreamConfig(subject="s", puback=True)
    rules = RecordRules.of("s", config, 0)
    stored, _ = to_records(batch, rules, liftbridge_messages.decode_publish)
    return [one.batch.validate(full=True) for one in stored]


def _nats_hooks(data: bytes) -> object:
    """Give a server's bytes to the parser that stands in for the one of nats-py."""

    async def run() -> None:
        client = NatsClient()
        client._setup_server_pool(["nats://127.0.0.1:1"])
        client._current_server = client._server_pool[0]
        client._flush_queue = asyncio.Queue()
        vars(client)["_transport"] = _Nowhere()  # where nats-py would answer a PING
        crashes: list[BaseException] = []
        parser = BatchParser(client, NatsStream(), lambda _: None, _errors(), crashes.append)
        with suppress(nats.errors.ProtocolError):
            await parser.parse(data)
        assert not crashes, crashes

    return asyncio.run(run())


def _errors() -> ServerErrors:
    return ServerErrors({}, DenialLog("fuzz"))


class _Nowhere:
    """A transport whose other end hears nothing."""

    def write(self, data: bytes) -> None:
        """Forget the bytes."""

    def writelines(self, data: object) -> None:
        """Forget the bytes."""

    async def drain(self) -> None:
        """Have no more to send."""

    def close(self) -> None:
        """End."""

    def __bool__(self) -> bool:
        return True


def _as_record(data: bytes) -> object:
    """Store a message's payload, which may be an envelope, or its header block."""
    block = data if data.startswith(b"NATS/1.0") else b""
    blocks = {0: block} if block else {}
    batch = MessageBatch(1, [data], [(0, b"s")], blocks, {0: b"reply"})
    return _recorded(batch)


def _header_block(data: bytes) -> object:
    found = headers.read(data)
    parsed = headers.parse(data)
    assert parsed.status or parsed.headers == found, "the quick and the exact reading differ"
    return conditions.check(found, stream="s", partitions=1)


def _publishes() -> list[bytes]:
    message = wire.Message(
        offset=-1, key=b"k", value=b"v", subject="s", ackInbox="inbox", correlationId="c",
        headers={"a": b"1"},
    )  # fmt: skip
    body = message.SerializeToString()
    return [
        envelope.encode(envelope.EnvelopeKind.PUBLISH, body),
        envelope.encode(envelope.EnvelopeKind.PUBLISH, body, checksum=True),
    ]


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield Decoder(
        name="nats_protocol",
        covers=("broker.codec.nats.stream.NatsStream.feed",),
        decode=_nats_stream,
        make_seeds=_server_bytes,
    )
    yield Decoder(
        name="nats_hooks",
        covers=(
            "broker.adapters.nats.hooks.BatchParser.parse",
            "broker.adapters.nats.hooks.ServerErrors.add",
        ),
        decode=_nats_hooks,
        make_seeds=_server_bytes,
    )
    yield Decoder(
        name="nats_headers",
        covers=("broker.codec.nats.headers.parse", "broker.codec.nats.headers.read"),
        decode=_header_block,
        make_seeds=lambda: [
            headers.encode([("a", b"1"), ("Nats-Expected-Last-Sequence", b"7")]),
            b"NATS/1.0 503 No Responders\r\nb: 2\r\n\r\n",
        ],
    )
    yield Decoder(
        name="nats_record",
        covers=("broker.codec.nats.records.to_records",),
        decode=_as_record,
        make_seeds=lambda: [*_publishes(), headers.encode([("Nats-Msg-Id", b"7")])],
    )
    yield Decoder(
        name="nats_publish",
        covers=(
            "broker.adapters.nats.liftbridge_messages.decode_publish",
            "broker.codec.nats.envelope.decode",
            "broker.codec.nats.envelope.decode_extended",
        ),
        decode=liftbridge_messages.decode_publish,
        make_seeds=_publishes,
    )
    yield Decoder(
        name="nats_subject",
        covers=("broker.codec.nats.puback.is_publish_subject",),
        decode=puback.is_publish_subject,
        make_seeds=lambda: [b"a.b.c"],
    )
