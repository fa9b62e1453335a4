"""Decoders of what clients of Flight send: tickets, paths, bodies of actions, Arrow rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from broker.adapters.flight.served_put import check_subjects, put_path, validate
from broker.codec.flight import protocol
from broker.codec.flight.actions import ACTIONS, decode_body
from broker.codec.record_batch import Preparer
from broker.model.ids import ProducerId
from broker.model.stream import StreamConfig
from fuzzkit.decoder import Decoder
from fuzzkit.entries.in_logs import UUID
from simkit.brokers.memory_broker import records

_WHO: Final = {"group": "g", "member": "m", "instance": "i"}
# A value for each field of an action; one that is not here is refused by its seed's test.
_FIELDS: Final[dict[str, Any]] = {
    **_WHO,
    "name": "s",
    "names": ["s", "t"],
    "config": {"subject": "s", "partitions": 2},
    "changes": {"puback": True},
    "stream_uuid": UUID,
    "lease_id": "l",
    "owner": "me",
    "operator": "me",
    "ttl_ms": 1000,
    "timeout_ms": 1000,
    "version": 1,
    "partition": 0,
    "partitions": [0, 1],
    "before": 7,
    "before_us": None,
    "readonly": True,
    "resume_all": True,
    "dry_run": True,
    "streams": ["s"],
    "session_ms": 10_000,
    "static": True,
    "membership": 1,
    "epoch": 7,
    "coordinator": "a",
    "principal": "ann",
    "kind": "stream",
    "resource": "s",
    "action": "consume",
    "actions": ["consume"],
    "token_id": "ab" * 8,
    "digest": "cd" * 32,
    "broker": "b",
    "to": "b",
    "target": ["a", "b"],
    "votes": True,
    "ticket": "t",
    "partition_epoch": 1,
    "known_end": 7,
}


def _body_of(action: str) -> bytes:
    spec = ACTIONS[action]
    values = {
        name: _SPECIAL.get((action, name), _FIELDS.get(name, spec.defaults.get(name)))
        for name in spec.fields
    }
    return json.dumps(values).encode()


_POSITION: Final = {
    "stream_uuid": UUID, "partition": 0, "epoch": 1, "number": 1, "offset": 7, "leader_epoch": 1,
    "back": False, "release": True,
}  # fmt: skip
_GRANT: Final = {"principal": "ann", "kind": "stream", "pattern": "a*", "actions": ["consume"]}
_SPECIAL: Final[dict[tuple[str, str], Any]] = {
    ("check_cut", "positions"): [["a" * 32, 7], [None, 0]],
    ("commit_positions", "positions"): [_POSITION],
    ("reset_group", "positions"): [{"stream_uuid": UUID, "partition": 0, "offset": 7}],
    ("grant_access", "grants"): [_GRANT],
    ("revoke_access", "grants"): [_GRANT],
}


def _actions() -> Iterator[Decoder]:
    for action in ACTIONS:

        def decode(data: bytes, action: str = action) -> object:
            return decode_body(action, data)

        def seeds(action: str = action) -> list[bytes]:
            return [_body_of(action)]

        yield Decoder(
            name=f"action_{action}",
            covers=("broker.codec.flight.actions.decode_body",),
            decode=decode,
            make_seeds=seeds,
        )


def _tickets() -> list[bytes]:
    return [
        protocol.ReadRequest(stream="s", partition=0).to_ticket(),
        protocol.ReadRequest(
            stream="s", partition=3, start=7, follow=True, columns=("offset", "value"),
            stream_uuid=UUID, leader_epoch=4,  # type: ignore[arg-type]  # plain numbers
        ).to_ticket(),
        protocol.ReadRequest(stream="s", partition=0, start=protocol.AtTime(5)).to_ticket(),
    ]  # fmt: skip


def _path(data: bytes) -> object:
    parts = data.split(b"/")
    for read in (protocol.StreamPath.from_path, put_path):
        read(parts)
    return protocol.StreamPath.from_path(parts, put=True)


def _put_rows(codec: str | None = None) -> bytes:
    rows = records([b"first", b"second", None], key=[b"k", None, b"k"], subject=["s", None, "s"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def _put(data: bytes) -> object:
    """Take a producer's Arrow stream as a do_put does; Flight itself has read it by then."""
    try:
        with pa.ipc.open_stream(data) as stream:
            rows = list(stream)
            schema = stream.schema
    except (pa.ArrowException, OSError, EOFError, MemoryError):
        return None
    preparer = Preparer(schema)
    for batch in rows:
        validate(batch)
        check_subjects(batch, StreamConfig(subject="s"))
        preparer.prepare(batch, now_us=7)
    return rows


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _actions()
    yield Decoder(
        name="flight_rows",
        covers=(
            "broker.adapters.flight.served_put.validate",
            "broker.adapters.flight.served_put.check_subjects",
            "broker.codec.record_batch.Preparer.prepare",
        ),
        decode=_put,
        make_seeds=lambda: [_put_rows(), _put_rows("lz4"), _put_rows("zstd")],
    )
    yield Decoder(
        name="flight_ticket",
        covers=(
            "broker.codec.flight.protocol.ReadRequest.from_ticket",
            "broker.codec.flight.protocol.parse_object",
        ),
        decode=protocol.ReadRequest.from_ticket,
        make_seeds=_tickets,
    )
    yield Decoder(
        name="flight_path",
        covers=(
            "broker.codec.flight.protocol.StreamPath.from_path",
            "broker.adapters.flight.served_put.put_path",
        ),
        decode=_path,
        make_seeds=lambda: [b"s/0", b"s/3"],
    )
    yield Decoder(
        name="flight_put_mark",
        covers=("broker.codec.flight.protocol.decode_put_mark",),
        decode=protocol.decode_put_mark,
        make_seeds=lambda: [protocol.encode_put_mark(ProducerId(7), 3)],
    )
