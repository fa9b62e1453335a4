"""Paths, tickets, marks and acknowledgements: what parses, and how everything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.codec.flight.protocol import (
    BATCH_BYTES_MAX,
    ERROR_WIRE_BYTES_MAX,
    TICKET_BYTES_MAX,
    AtTime,
    ReadRequest,
    RowsMark,
    StreamPath,
    bounded_wire,
    decode_ack,
    decode_put_mark,
    encode_ack,
    encode_closing,
    encode_put_mark,
)
from broker.errors import (
    EnvelopeError,
    HeadwaterError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownStreamError,
    from_wire,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import NO_PRODUCER, NO_SEQUENCE, ProducerId, StreamUuid
from broker.model.offsets import Offset
from broker.model.records import AckPolicy, AppendResult

UUID = StreamUuid("0f8fad5b-d9cb-469f-a165-70867728950e")


@pytest.mark.parametrize(
    "path",
    [
        StreamPath(stream="flights"),
        StreamPath(stream="flights", partition=0),
        StreamPath(stream="flights", partition=1023, stream_uuid=UUID),
    ],
)
def test_a_path_comes_back_as_it_was(path: StreamPath) -> None:
    """The server decodes the path that the client has put into a descriptor."""
    assert StreamPath.from_path(path.to_path()) == path


@pytest.mark.parametrize(
    "path",
    [
        StreamPath(stream="flights", partition=0, acks=AckPolicy.NONE),
        StreamPath(stream="flights", partition=0, stream_uuid=UUID, acks=AckPolicy.LEADER),
        StreamPath(stream="flights", partition=0, stream_uuid=UUID),
    ],
)
def test_an_ack_policy_belongs_to_a_put_only(path: StreamPath) -> None:
    """ALL is the default and adds nothing to the path; where nothing is put a policy is refused."""
    assert StreamPath.from_path(path.to_path(), put=True) == path
    if path.acks is AckPolicy.ALL:
        assert path.to_path() == [b"flights", b"0", UUID.encode()]
    else:
        with pytest.raises(InvalidRequestError):
            StreamPath.from_path(path.to_path())


@pytest.mark.parametrize("acks", [AckPolicy.ALL, AckPolicy.LEADER])
@pytest.mark.parametrize("count", [1, 8, 1024])
def test_a_put_may_say_by_how_many_partitions_keys_were_placed(acks: AckPolicy, count: int) -> None:
    """Last in the path, and where nothing is put it is refused."""
    path = StreamPath(stream="s", partition=0, stream_uuid=UUID, acks=acks, placed_by=count)
    assert path.to_path()[-1] == b"partitions=%d" % count
    assert StreamPath.from_path(path.to_path(), put=True) == path
    with pytest.raises(InvalidRequestError):
        StreamPath.from_path(path.to_path())


@pytest.mark.parametrize("text", [b"", b"0", b"1025", b"-1", b"x", b"00001", b"\xff", b"1 "])
def test_an_impossible_number_of_partitions_is_refused(text: bytes) -> None:
    """From 1 to the most that a stream may have."""
    with pytest.raises(InvalidRequestError):
        StreamPath.from_path([b"s", b"0", b"partitions=" + text], put=True)


@pytest.mark.parametrize("acks", [b"acks=", b"acks=LEADER", b"acks=1", b"acks=\xff", b"ack=all"])
def test_an_unknown_ack_policy_is_refused(acks: bytes) -> None:
    """The server does not guess which policy a publisher meant."""
    with pytest.raises(InvalidRequestError):
        StreamPath.from_path([b"flights", b"0", acks], put=True)
    with pytest.raises(InvalidRequestError):
        StreamPath.from_path([b"flights", b"0", UUID.encode(), b"x", b"acks=all"], put=True)


@pytest.mark.parametrize(
    "path",
    [
        None,
        [],
        [b""],
        [b"a b"],
        [b"\xff"],
        [b"x" * 300],
        [b"flights", b""],
        [b"flights", b"-1"],
        [b"flights", b"1024"],
        [b"flights", "\N{SUPERSCRIPT TWO}".encode()],
        [b"flights", b"0", b"not-a-uuid"],
        [b"flights", b"0", UUID.encode(), b"more"],
    ],
)
def test_a_path_that_names_nothing_is_refused(path: list[bytes] | None) -> None:
    """A descriptor is a stream, perhaps a partition, perhaps an incarnation, and nothing else."""
    with pytest.raises(InvalidRequestError):
        StreamPath.from_path(path)


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(stream="s", partition=0),
        ReadRequest(stream="s", partition=3, start="latest", follow=True, stream_uuid=UUID),
        ReadRequest(stream="s", partition=0, start=5, end=Offset(9), columns=("value", "offset")),
        ReadRequest(stream="s", partition=0, start=AtTime(17), batch_bytes_max=BATCH_BYTES_MAX),
    ],
)
def test_a_ticket_comes_back_as_it_was(request_: ReadRequest) -> None:
    """A ticket says everything about a read."""
    assert ReadRequest.from_ticket(request_.to_ticket()) == request_


def test_a_ticket_has_defaults() -> None:
    """Version, stream and partition are enough: everything that is committed now."""
    request = ReadRequest.from_ticket(b'{"v":1,"stream":"s","partition":0}')
    assert request == ReadRequest(stream="s", partition=0, start="earliest", end=None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"v": 2}, "v"),
        ({"v": True}, "v"),
        ({"stream": ""}, "stream"),
        ({"stream": ["s"]}, "stream"),
        ({"partition": -1}, "partition"),
        ({"partition": 1024}, "partition"),
        ({"partition": "0"}, "partition"),
        ({"partition": True}, "partition"),
        ({"start": -1}, "start"),
        ({"start": 2**63}, "start"),
        ({"start": 1.0}, "start"),
        ({"start": "first"}, "start"),
        ({"start": {"timestamp_us": -1}}, "start"),
        ({"start": {"timestamp_us": 1, "more": 2}}, "start"),
        ({"start": None}, "start"),
        ({"end": -1}, "end"),
        ({"end": "latest"}, "end"),
        ({"start": 5, "end": 4}, "start"),
        ({"follow": 1}, "follow"),
        ({"columns": []}, "columns"),
        ({"columns": "offset"}, "columns"),
        ({"columns": ["offset"] * 11}, "columns"),
        ({"stream_uuid": "x"}, "stream_uuid"),
        ({"batch_bytes_max": 1}, "batch_bytes_max"),
        ({"batch_bytes_max": BATCH_BYTES_MAX + 1}, "batch_bytes_max"),
        ({"folow": True}, "folow"),
    ],
)
def test_a_bad_field_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    """The error names the field, so that a person can mend the request."""
    body = {"v": 1, "stream": "s", "partition": 0, **change}
    with pytest.raises(InvalidRequestError) as caught:
        ReadRequest.from_ticket(json.dumps(body).encode())
    assert caught.value.field == field


@pytest.mark.parametrize("columns", [["offset", "offset"], ["rowid"], [7], [None], [["offset"]]])
def test_columns_that_rows_do_not_have_are_refused(columns: list[Any]) -> None:
    """A projection names existing columns, each once."""
    body = {"v": 1, "stream": "s", "partition": 0, "columns": columns}
    with pytest.raises(SchemaMismatchError):
        ReadRequest.from_ticket(json.dumps(body).encode())


@pytest.mark.parametrize(
    "ticket",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 60_000, b"1" * 5_000, b" " * TICKET_BYTES_MAX],
)
def test_a_ticket_that_is_no_object_is_refused(ticket: bytes) -> None:
    """Neither depth nor length nor encoding raises anything but our error."""
    with pytest.raises(InvalidRequestError):
        ReadRequest.from_ticket(ticket)


def test_a_ticket_of_any_size_is_not_parsed() -> None:
    """A ticket beyond its bound is refused by its length alone."""
    with pytest.raises(InvalidRequestError, match="exceeds"):
        ReadRequest.from_ticket(b"[" * (TICKET_BYTES_MAX + 1))


def test_the_mark_of_rows_is_frozen() -> None:
    """Four little-endian numbers, 32 bytes."""
    mark = RowsMark(Offset(1), Offset(3), Offset(9), LeaderEpoch(2))
    data = mark.to_bytes()
    assert data.hex() == "0100000000000000030000000000000009000000000000000200000000000000"
    assert RowsMark.from_bytes(data) == mark


@pytest.mark.parametrize(
    "mark",
    [
        RowsMark(Offset(3), Offset(3), Offset(9), LeaderEpoch(1)),
        RowsMark(Offset(-1), Offset(3), Offset(9), LeaderEpoch(1)),
        RowsMark(Offset(1), Offset(10), Offset(9), LeaderEpoch(1)),
        RowsMark(Offset(1), Offset(3), Offset(9), LeaderEpoch(-1)),
    ],
)
def test_a_mark_that_cannot_be_is_refused(mark: RowsMark) -> None:
    """A client does not believe offsets that contradict each other."""
    with pytest.raises(EnvelopeError):
        RowsMark.from_bytes(mark.to_bytes())


def test_the_mark_of_a_producer_is_frozen() -> None:
    """Producer id and base sequence, little-endian, 16 bytes."""
    data = encode_put_mark(ProducerId(258), 7)
    assert data.hex() == "02010000000000000700000000000000"
    assert decode_put_mark(data) == (258, 7)


def test_a_batch_without_a_mark_has_no_producer() -> None:
    """No metadata, or the explicit none, mean that the batch is not recognised again."""
    nobody = (NO_PRODUCER, NO_SEQUENCE)
    assert decode_put_mark(None) == nobody
    assert decode_put_mark(b"") == nobody
    assert decode_put_mark(encode_put_mark(*nobody)) == nobody


@pytest.mark.parametrize(
    "data",
    [b"x", b"x" * 17, encode_put_mark(ProducerId(-1), 0), encode_put_mark(ProducerId(1), -1)],
)
def test_a_bad_mark_of_a_producer_is_refused(data: bytes) -> None:
    """A half-given identity would make a retry store twice, so it is an error."""
    with pytest.raises(InvalidRequestError):
        decode_put_mark(data)


def test_the_acknowledgement_is_frozen() -> None:
    """Status, duplicate flag, two zero bytes, count, base offset, epoch: 24 bytes."""
    result = AppendResult(Offset(5), 3, LeaderEpoch(2), duplicate=True)
    frame = encode_ack(result)
    assert frame.hex() == "000100000300000005000000000000000200000000000000"
    assert decode_ack(frame) == result


def test_an_error_travels_with_its_facts() -> None:
    """The client raises the class that the server raised, with the same facts."""
    error = OffsetOutOfRangeError("offset 9 is outside", offset=9, start=0, end=5)
    back = decode_ack(encode_ack(error))
    assert type(back) is OffsetOutOfRangeError
    assert (str(back), back.facts) == (str(error), error.facts)


def test_the_closing_frame_is_none() -> None:
    """The server's wish that the stream be finished is neither a result nor an error."""
    assert decode_ack(encode_closing()) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x01",
        b"\x01{}",
        b'\x01{"error":"Exit","message":"x","facts":{}}',
        b"\x01\xff\xff",
        b"\x02\x00",
        b"\x03" + b"\x00" * 23,
        b"\x00" * 24,
        encode_ack(AppendResult(Offset(-1), 1, LeaderEpoch(1))),
        encode_ack(AppendResult(Offset(0), 1, LeaderEpoch(1))) + b"\x00",
    ],
)
def test_a_frame_that_is_no_answer_is_refused(frame: bytes) -> None:
    """A client does not take noise for an acknowledgement."""
    with pytest.raises(EnvelopeError):
        decode_ack(frame)


@pytest.mark.parametrize(
    "error",
    [
        UnknownStreamError(
            "no stream; there are " + "x, " * 5_000, names=["x"] * 5_000, stream="y"
        ),
        HeadwaterError("\N{GRINNING FACE}" * 5_000),
        HeadwaterError("short", fact="\x00" * 100_000),
    ],
)
def test_an_error_of_any_length_fits_its_frame(error: HeadwaterError) -> None:
    """GRPC drops a call whose trailers are too long, so an error is cut, largest fact first."""
    wire = bounded_wire(error)
    assert len(wire) <= ERROR_WIRE_BYTES_MAX
    back = from_wire(wire.decode())
    assert type(back) is type(error)
    assert back.message[:5] == error.message[:5]


def test_small_facts_survive_the_cut() -> None:
    """Only large facts are left out."""
    error = UnknownStreamError("no stream", names=["x"] * 5_000, stream="y")
    back = from_wire(bounded_wire(error).decode())
    assert back is not None
    assert back.facts == {"stream": "y"}


def test_only_an_uncommitted_reply_may_end_above_the_high_watermark() -> None:
    """A reader of committed records refuses a reply with uncommitted ones."""
    mark = RowsMark(Offset(1), Offset(10), Offset(9), LeaderEpoch(1))
    assert RowsMark.from_bytes(mark.to_bytes(), uncommitted=True) == mark


@pytest.mark.parametrize(
    "fields",
    [
        {"leader_epoch": 1},
        {"leader_epoch": 1, "start": "latest"},
        {"leader_epoch": 1, "start": 0},
        {"leader_epoch": -1, "start": 5},
        {"leader_epoch": "1", "start": 5},
        {"uncommitted": 1},
    ],
)
def test_a_position_is_an_offset_and_the_epoch_before_it(fields: dict[str, object]) -> None:
    """An epoch without a record before the start says nothing."""
    body = {"v": 1, "stream": "s", "partition": 0, **fields}
    with pytest.raises(InvalidRequestError):
        ReadRequest.from_ticket(json.dumps(body).encode())


def test_a_reader_that_goes_on_says_its_position() -> None:
    """Its position survives encoding."""
    request = ReadRequest(
        stream="s", partition=0, start=5, leader_epoch=LeaderEpoch(2), uncommitted=True
    )
    assert ReadRequest.from_ticket(request.to_ticket()) == request
