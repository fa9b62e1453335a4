"""The disk formats of the log: all comes back, and no single changed bit goes unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.codec import record_batch
from broker.codec.checksum import crc32c
from broker.codec.disk import index_format, log_state_format, segment_format
from broker.errors import CorruptDataError
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.offsets import Offset

OFFSETS = st.integers(0, 2**62)
PARTITIONS = st.builds(
    PartitionId,
    st.uuids().map(lambda one: StreamUuid(str(one))),
    st.integers(0, 2**31).map(PartitionNumber),
)


@st.composite
def epoch_starts(draw: st.DrawFn) -> tuple[EpochStart, ...]:
    """Ascending epochs with ascending start offsets."""
    count = draw(st.integers(0, 5))
    epochs = sorted(draw(st.sets(st.integers(1, 2**40), min_size=count, max_size=count)))
    starts = sorted(draw(st.lists(OFFSETS, min_size=count, max_size=count)))
    pairs = zip(epochs, starts, strict=True)
    return tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs)


@st.composite
def index_files(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of encode_index that make sense together."""
    base = draw(st.integers(0, 2**40))
    steps = draw(st.lists(st.tuples(st.integers(1, 999), st.integers(8, 9999)), max_size=20))
    offsets, positions, offset, position = [], [], base, 64
    for records, size in steps:
        offsets.append(offset)
        positions.append(position)
        offset, position = offset + records, position + size
    stamps = sorted(draw(st.lists(OFFSETS, min_size=len(steps), max_size=len(steps))))
    return {
        "partition_id": draw(PARTITIONS),
        "base_offset": Offset(base),
        "end_offset": Offset(offset),
        "covered": position if steps else 0,
        "max_timestamp_us": draw(st.integers(-(2**62), 2**62)),
        "created_us": draw(OFFSETS),
        "sealed": draw(st.booleans()),
        "entries": index_format.IndexEntries.of(offsets, positions, stamps),
        "epochs": draw(epoch_starts()),
    }


@given(index_files())
def test_an_index_comes_back(arguments: dict[str, Any]) -> None:
    """Every field and table of an index survives."""
    found = index_format.decode_index(index_format.encode_index(**arguments))
    entries = arguments["entries"]
    for name in ("partition_id", "base_offset", "end_offset", "covered", "created_us", "sealed"):
        assert getattr(found.summary, name) == arguments[name]
    assert found.summary.max_timestamp_us == arguments["max_timestamp_us"]
    assert found.epochs == arguments["epochs"]
    assert found.entries.offsets.tolist() == entries.offsets.tolist()
    assert found.entries.positions.tolist() == entries.positions.tolist()
    assert found.entries.timestamps_us_before.tolist() == entries.timestamps_us_before.tolist()


@given(PARTITIONS, epoch_starts())
def test_epochs_come_back(partition: PartitionId, epochs: tuple[EpochStart, ...]) -> None:
    """An epoch history survives with its owner."""
    data = log_state_format.encode_epochs(partition, epochs)
    assert log_state_format.decode_epochs(data) == (partition, epochs)


@given(PARTITIONS, st.lists(OFFSETS, min_size=4, max_size=4), st.integers(0, 2**62))
def test_a_recovery_point_comes_back(
    partition: PartitionId, offsets: list[int], position: int
) -> None:
    """A recovery point survives."""
    start, base, end = sorted(offsets[:3])
    point = log_state_format.RecoveryPoint(
        partition_id=partition,
        sequence=offsets[3],
        segment_base=Offset(base),
        position=position,
        log_start=Offset(start),
        log_end=Offset(end),
    )
    data = log_state_format.encode_recovery_point(point)
    assert log_state_format.decode_recovery_point(data) == point


@given(OFFSETS, st.binary(max_size=300))
def test_producer_state_comes_back(offset: int, state: bytes) -> None:
    """Opaque state survives with its offset."""
    data = log_state_format.encode_producer_state(Offset(offset), state)
    assert log_state_format.decode_producer_state(data) == (offset, state)


@given(PARTITIONS, OFFSETS, OFFSETS)
def test_a_segment_header_comes_back(partition: PartitionId, base: int, created_us: int) -> None:
    """A segment header survives, and so does the name of its file."""
    header = segment_format.SegmentHeader(
        partition_id=partition, base_offset=Offset(base), created_us=created_us
    )
    data = segment_format.encode_segment_header(header)
    assert segment_format.decode_segment_header(data) == header
    name = segment_format.segment_name(base, "log")
    assert segment_format.parse_segment_name(name) == (base, "log")


def _batch_header() -> bytes:
    body = bytes(range(1, 65))
    batch = record_batch.PreparedBatch(
        body=body,
        body_crc=crc32c(body),
        records_count=3,
        first_timestamp_us=1,
        max_timestamp_us=9,
        columns=3,
        producer_id=ProducerId(77),
        base_sequence=5,
    )
    return record_batch.encode_header(batch, base_offset=40, leader_epoch=2, synced_end=39)


_PARTITION = PartitionId(StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(3))
_EPOCHS = (EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(4), Offset(20)))
_FORMATS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "batch header": (_batch_header(), record_batch.decode_header),
    "segment header": (
        segment_format.encode_segment_header(
            segment_format.SegmentHeader(
                partition_id=_PARTITION, base_offset=Offset(7), created_us=8
            )
        ),
        segment_format.decode_segment_header,
    ),
    "index": (
        index_format.encode_index(
            partition_id=_PARTITION,
            base_offset=Offset(7),
            end_offset=Offset(30),
            covered=900,
            max_timestamp_us=5,
            created_us=6,
            sealed=True,
            entries=index_format.IndexEntries.of([7, 12], [64, 300], [0, 4]),
            epochs=_EPOCHS,
        ),
        index_format.decode_index,
    ),
    "epochs": (log_state_format.encode_epochs(_PARTITION, _EPOCHS), log_state_format.decode_epochs),
    "recovery point": (
        log_state_format.encode_recovery_point(
            log_state_format.RecoveryPoint(
                partition_id=_PARTITION,
                sequence=9,
                segment_base=Offset(7),
                position=900,
                log_start=Offset(0),
                log_end=Offset(30),
            )
        ),
        log_state_format.decode_recovery_point,
    ),
    "producer state": (
        log_state_format.encode_producer_state(Offset(30), b"opaque"),
        log_state_format.decode_producer_state,
    ),
}


@pytest.mark.parametrize("name", _FORMATS)
def test_every_flipped_bit_is_detected(name: str) -> None:
    """No single bit of any format can change unnoticed."""
    data, decode = _FORMATS[name]
    decode(data)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode(bytes(damaged))


@pytest.mark.parametrize("name", _FORMATS)
def test_every_shortened_file_is_refused(name: str) -> None:
    """Any prefix of a format is refused, by a typed error."""
    data, decode = _FORMATS[name]
    for size in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode(data[:size])


@pytest.mark.parametrize("name", _FORMATS)
@given(data=st.binary(max_size=400))
def test_garbage_is_refused(name: str, data: bytes) -> None:
    """Random bytes, also behind the right magic, give a typed error and nothing else."""
    good, decode = _FORMATS[name]
    for garbage in (data, good[:6] + data, good[:8] + data):
        if garbage[: len(good)] != good:
            with pytest.raises(CorruptDataError):
                decode(garbage)


@given(st.integers(0, 2**62 - 100), st.booleans(), st.integers(0, 2**40))
def test_a_stored_header_is_written_as_it_was(base: int, sparse: bool, producer: int) -> None:
    """A follower writes exactly the header bytes that its leader sent."""
    header = record_batch.decode_header(_batch_header())
    changed = record_batch.BatchHeader(
        **{
            **{name: getattr(header, name) for name in header.__slots__},
            "base_offset": Offset(base),
            "sparse": sparse,
            "offset_span": 9 if sparse else header.records_count,
            "producer_id": ProducerId(producer),
        }
    )
    data = record_batch.encode_stored(changed)
    assert record_batch.decode_header(data) == changed
    assert (
        record_batch.encode_stored(record_batch.decode_header(_batch_header())) == _batch_header()
    )
