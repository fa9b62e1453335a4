"""Decoders of what clients and commands read: a broker's answers, saved cuts, settings, files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast, get_type_hints

from broker import config, errors
from broker.codec.flight import protocol, table_credentials
from broker.errors import HeadwaterError, NotLeaderError, to_wire
from broker.keys.local_keys import EnvironmentKeys, read_keyring
from broker.model import cluster_status, groups
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.model.stream import Stream, StreamConfig
from fuzzkit.decoder import Decoder, scratch
from fuzzkit.entries.in_logs import STREAM, UUID
from headwater.cli import parsing
from headwater.cli.publish_records import Converter, Router
from headwater.client.address import read_token, resolve_address
from headwater.client.flight_connection import result_of
from headwater.local import embedded_cluster
from headwater.local.runtime_file import RuntimeFile
from headwater.nats_answers import AnswersOf
from headwater.reads.as_of import parse_as_of


def _file(data: bytes, name: str = "file") -> Path:
    """Return a file with these bytes, which only its owner can read."""
    path = scratch() / name
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def _of_json(read: Callable[[Any], object]) -> Callable[[bytes], object]:
    """Return the decoder of a JSON value that Flight's client has parsed already."""

    def decode(data: bytes) -> object:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return read(body)

    return decode


# ------------------------------------------------------------------------------------- answers


def _cut() -> Cut:
    part = PartitionCut(
        partition=0,
        start=Offset(10),
        cold_end=Offset(20),
        hot_end=Offset(30),
        leader_epoch=LeaderEpoch(1),
        lineage_id="a" * 32,
    )
    return Cut(
        cluster="c",
        stream="s",
        stream_uuid=UUID,
        subject="s",
        table_uri="file:///t",
        table_version=3,
        partitions=(part,),
        taken_us=1,
        lease=Lease(lease_id=LeaseId("l"), expires_us=2),
    )


def _saved_again(data: bytes) -> bytes:
    """Put the checksum of a saved cut right."""
    head, _, rest = data.partition(b".")
    body = rest.partition(b".")[2]
    return b".".join((head, hashlib.sha256(body).hexdigest()[:16].encode(), body))


def _status() -> list[tuple[str, Any, dict[str, Any]]]:
    """Return each answer about the cluster: its name, its reader, its JSON."""
    kinds = {one.__name__: one for one in cluster_status._Wire.__subclasses__()}
    return [
        (name, kind, {one: _plain(hint) for one, hint in get_type_hints(kind).items()})
        for name, kind in kinds.items()
    ]


def _plain(hint: Any) -> Any:
    """Return a JSON value of a field's type."""
    text = str(hint)
    nested = next((one for one in cluster_status._NESTED if one.__name__ in text), None)
    if text.startswith("tuple"):
        hints = {} if nested is None else get_type_hints(nested)
        return ["b"] if nested is None else [{one: _plain(kind) for one, kind in hints.items()}]
    if text.startswith("dict"):
        return {"flight": "h:1"}
    return True if hint is bool else 5 if "int" in text else "s"


_VIEW: Final = {
    "epoch": 1,
    "coordinator": "b",
    "settled": True,
    "claims": [
        {
            "stream": "s", "stream_uuid": UUID, "partition": 0, "epoch": 2,
            "wanted": False, "position": {"offset": 7, "leader_epoch": 1},
        }
    ],
}  # fmt: skip
_GROUP: Final = {
    "group": "g", "kind": "headwater", "epoch": 1, "coordinator": "b",
    "members": [{"member": "m", "streams": ["s"], "owner": "o", "static": False, "session_ms": 1}],
    "partitions": [
        {"stream": "s", "stream_uuid": UUID, "partition": 0, "offset": 7, "member": "m"}
    ],
}  # fmt: skip
_CREDENTIALS: Final = {
    "tables": ["s3://b/t"], "access_key_id": "a", "secret_access_key": "b", "session_token": "c",
    "expires_us": 5, "endpoint": None, "region": "r", "path_style": False,
}  # fmt: skip


_REFUSED: Final = {
    "error": {"code": 503, "description": "x"}, "stream": "orders",
    "headwater": {"type": "NotLeaderError", "facts": {"leader": "b"}},
}  # fmt: skip


def _answers(data: bytes) -> object:
    return AnswersOf(STREAM).parse(0, data)


def _rows_mark(data: bytes) -> object:
    mark = protocol.RowsMark.from_bytes(data)
    assert mark.to_bytes() == data
    return protocol.RowsMark.from_bytes(data, uncommitted=True)


def _told() -> Iterator[Decoder]:
    yield Decoder(
        name="action_result",
        covers=("headwater.client.flight_connection.result_of",),
        decode=result_of,
        make_seeds=lambda: [b'{"name":"s"}'],
    )
    mark = protocol.RowsMark(Offset(1), Offset(5), Offset(7), LeaderEpoch(2), 3)
    yield Decoder(
        name="rows_mark",
        covers=("broker.codec.flight.protocol.RowsMark.from_bytes",),
        decode=_rows_mark,
        make_seeds=lambda: [mark.to_bytes(), mark.to_bytes()[:32]],
    )
    result = AppendResult(Offset(1), 3, LeaderEpoch(2), False)
    yield Decoder(
        name="flight_ack",
        covers=("broker.codec.flight.protocol.decode_ack", "broker.codec.flight.protocol.is_ready"),
        decode=protocol.decode_ack,
        make_seeds=lambda: [
            protocol.encode_ack(result),
            protocol.encode_ack(NotLeaderError("no", leader="b")),
            protocol.encode_closing(),
        ],
    )
    yield Decoder(
        name="error",
        covers=("broker.errors.from_wire",),
        decode=lambda data: errors.from_wire(data.decode(errors="replace")),
        make_seeds=lambda: [to_wire(NotLeaderError("no", leader="b", epoch=4)).encode()],
    )
    yield Decoder(
        name="nats_answer",
        covers=("headwater.nats_answers.AnswersOf.parse",),
        decode=_answers,
        make_seeds=lambda: [
            f'{{"stream":"orders","seq":3,"partition":0,"stream_uuid":"{UUID}"}}'.encode(),
            json.dumps(_REFUSED).encode(),
        ],
    )
    yield from _answered()


def _answered() -> Iterator[Decoder]:
    for name, kind, values in _status():
        yield _answer(
            f"answer_{name}", "broker.model.cluster_status._Wire.from_dict", kind.from_dict, values
        )
    yield _answer(
        "answer_member",
        "broker.model.groups.MemberView.from_dict",
        groups.MemberView.from_dict,
        _VIEW,
    )
    yield _answer(
        "answer_group",
        "broker.model.groups.GroupDescription.from_dict",
        groups.GroupDescription.from_dict,
        _GROUP,
    )
    yield _answer(
        "answer_stream", "broker.model.stream.Stream.from_dict", Stream.from_dict, STREAM.to_dict()
    )
    yield _answer("answer_cut", "broker.model.cut.Cut.from_dict", Cut.from_dict, _cut().to_dict())
    yield _answer(
        "answer_credentials",
        "broker.codec.flight.table_credentials.from_values",
        table_credentials.from_values,
        _CREDENTIALS,
    )
    yield _answer(
        "stream_config",
        "broker.model.stream.StreamConfig.from_dict",
        StreamConfig.from_dict,
        STREAM.config.to_dict(),
    )


def _answer(name: str, covers: str, read: Callable[[Any], object], values: Any) -> Decoder:
    return Decoder(
        name=name,
        covers=(covers,),
        decode=_of_json(read),
        make_seeds=lambda: [json.dumps(values).encode()],
    )


# ------------------------------------------------------------------------------------- files


_CONFIG: Final = b"""[node]
id = "b1"
data_dir = "/var/lib/headwater"

[nats]
url = "tls://nats.example:4222"

[flight]
host = "b1.example"
port = 7410

[cluster]
brokers = "b1=b1.example:7412,b2=b2.example:7412,b3=b3.example:7412"
tls_ca_file = "/etc/headwater/ca.crt"
tls_cert_file = "/etc/headwater/b1.crt"
tls_key_file = "/etc/headwater/b1.key"

[access]
enabled = true
"""
_KEYRING: Final = b'current = "k1"\n[keys]\nk1 = "' + b"A" * 43 + b'="\n'
_RUNTIME: Final = {
    "v": 1, "pid": 77, "flight": "grpc://h:1", "nats": "nats://h:2", "http": "http://h:3",
    "lake": "file:///l", "moto": None, "started_us": 5,
}  # fmt: skip


def _typed(data: bytes) -> object:
    """Read a text that somebody typed: a moment, a size, a time, a header, an address."""
    text = data.decode(errors="replace")
    refused: list[Exception] = []
    for read, kinds in (
        (parse_as_of, (HeadwaterError,)),
        (parsing.parse_size, (ValueError,)),
        (parsing.parse_duration_ms, (ValueError,)),
        (lambda one: parsing.parse_start(one, now_us=5), (ValueError,)),
        (parsing.parse_header, (ValueError,)),
        (lambda one: resolve_address(one, environment={}), (HeadwaterError,)),
    ):
        try:
            cast("Callable[[str], object]", read)(text)
        except kinds as error:
            refused.append(error)
    return refused


def _lines(data: bytes) -> object:
    """Publish lines of JSON whose fields choose key and subject."""
    config = StreamConfig(subject="s.*")
    stream = Stream(name="s", uuid=UUID, config=config, created_us=5, table_name="t")
    router = Router(stream=stream, subject="s.{to}", partition=None, key=None, key_field="id")
    return Converter(router).convert(data.split(b"\n"))


def _files() -> Iterator[Decoder]:
    yield Decoder(
        name="published_lines",
        covers=("headwater.cli.publish_records.Converter.convert",),
        decode=_lines,
        make_seeds=lambda: [b'{"id":"k","to":"a"}', b'{"id":7,"to":"a"}\n{"id":null,"to":"b"}'],
    )
    yield Decoder(
        name="saved_cut",
        covers=("broker.model.cut.Cut.load",),
        decode=lambda data: Cut.load(data.decode(errors="replace")),
        make_seeds=lambda: [_cut().save().encode()],
        reseal=_saved_again,
    )
    yield Decoder(
        name="broker_config",
        covers=("broker.config.load",),
        decode=lambda data: config.load(_file(data), {}),
        make_seeds=lambda: [_CONFIG],
    )
    yield Decoder(
        name="keyring",
        covers=("broker.keys.local_keys.read_keyring",),
        decode=lambda data: read_keyring(_file(data)),
        make_seeds=lambda: [_KEYRING],
    )
    yield Decoder(
        name="keys_in_environment",
        covers=("broker.keys.local_keys.EnvironmentKeys",),
        decode=lambda data: EnvironmentKeys(
            {"HEADWATER_ENCRYPTION_KEY": data.decode(errors="replace")}
        ),
        make_seeds=lambda: [b"k1:" + b"A" * 43 + b"="],
    )
    yield Decoder(
        name="runtime_file",
        covers=("headwater.local.runtime_file.RuntimeFile.read",),
        decode=lambda data: RuntimeFile.read(_file(data)),
        make_seeds=lambda: [json.dumps(_RUNTIME).encode()],
    )
    yield Decoder(
        name="cluster_plan",
        covers=("headwater.local.embedded_cluster.read_plan",),
        decode=lambda data: embedded_cluster.read_plan(_file(data, embedded_cluster._PLAN).parent),
        make_seeds=lambda: [b'{"broker-0":[1,2,3],"broker-1":[4,5,6]}'],
    )
    yield Decoder(
        name="token_file",
        covers=("headwater.client.address.read_token",),
        decode=lambda data: read_token(_file(data)),
        make_seeds=lambda: [b"hw_" + b"a" * 16 + b"_" + b"b" * 64 + b"\n"],
    )
    yield Decoder(
        name="typed_text",
        covers=(
            "headwater.reads.as_of.parse_as_of",
            "headwater.cli.parsing.parse_size",
            "headwater.cli.parsing.parse_duration_ms",
            "headwater.cli.parsing.parse_start",
            "headwater.cli.parsing.parse_header",
            "headwater.client.address.resolve_address",
        ),
        decode=_typed,
        make_seeds=lambda: [
            b"2026-01-31T08:00:00Z", b'{"0": 5}', b"64MiB", b"5m", b"latest", b"a: b",
            b"grpc+tls://h:7410", b"1700000000000000", b"-5m", b"grpc://[::1]:7410",
        ],
    )  # fmt: skip


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield from _told()
    yield from _files()
