"""Frozen bytes of the log's disk formats, version 1: what was written must be readable for ever.

A failure here means that a format changed. Then it needs a new version number and a reader for the
old one; never change the hex.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from broker.codec import record_batch, sparse
from broker.codec.disk import index_format, log_state_format, segment_format
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, ProducerId, StreamUuid
from broker.model.offsets import Offset

PARTITION: Final = PartitionId(
    StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(3)
)
EPOCHS: Final = (EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(4), Offset(41)))
RECORDS: Final = pa.record_batch(
    {
        "timestamp": pa.array([1_700_000_000_000_000, 1_700_000_000_000_001], pa.int64()),
        "key": pa.array([b"k", None], pa.binary()),
        "value": pa.array([b"first", b"second"], pa.binary()),
    }
)
POINT: Final = log_state_format.RecoveryPoint(
    partition_id=PARTITION,
    sequence=12,
    segment_base=Offset(41),
    position=440,
    log_start=Offset(7),
    log_end=Offset(43),
)
SEGMENT: Final = segment_format.SegmentHeader(
    partition_id=PARTITION, base_offset=Offset(41), created_us=1_700_000_000_000_002
)


def _batch() -> bytes:
    prepared = record_batch.prepare(RECORDS, now_us=0, producer_id=ProducerId(7), base_sequence=3)
    header = record_batch.encode_header(prepared, base_offset=41, leader_epoch=4, synced_end=40)
    return header + bytes(prepared.body)


def _sparse_batch() -> bytes:
    whole = record_batch.decode_header(_batch())
    kept = sparse.Survivors(np.array([47]), RECORDS.slice(1, 1))
    header, body = sparse.encode_sparse(whole, Offset(50), [kept])
    return record_batch.encode_stored(header) + bytes(body)


def _index() -> bytes:
    return index_format.encode_index(
        partition_id=PARTITION,
        base_offset=Offset(41),
        end_offset=Offset(43),
        covered=440,
        max_timestamp_us=1_700_000_000_000_001,
        created_us=1_700_000_000_000_002,
        sealed=True,
        entries=index_format.IndexEntries.of([41], [64], [0]),
        epochs=EPOCHS[1:],
    )


def _sparse_index() -> bytes:
    return index_format.encode_index(
        partition_id=PARTITION,
        base_offset=Offset(41),
        end_offset=Offset(50),
        covered=440,
        max_timestamp_us=1_700_000_000_000_001,
        created_us=1_700_000_000_000_002,
        sealed=True,
        sparse=True,
        removed_count=8,
        entries=index_format.IndexEntries.of([41], [64], [0]),
        epochs=EPOCHS[1:],
    )


MAKERS: Final[dict[str, Callable[[], bytes]]] = {
    "record batch": _batch,
    "sparse batch": _sparse_batch,
    "segment header": lambda: segment_format.encode_segment_header(SEGMENT),
    "index": _index,
    "sparse index": _sparse_index,
    "epochs": lambda: log_state_format.encode_epochs(PARTITION, EPOCHS),
    "recovery point": lambda: log_state_format.encode_recovery_point(POINT),
    "producer state": lambda: log_state_format.encode_producer_state(Offset(43), b"opaque"),
}

FROZEN: Final = {
    "record batch": (
        "485752420158000029000000000000000400000000000000280000000000000000401e18240a060001401e18"
        "240a06000700000000000000030000000000000002000000020000006001000010d6c5b803000000f991fde0"
        "ffffffff0801000014000000000000000c0016000600050008000c000c000000000304001800000050000000"
        "0000000000000a0018000c00040008000a0000009c0000001000000002000000000000000000000008000000"
        "0000000000000000000000000000000000000000000000001000000000000000100000000000000001000000"
        "0000000018000000000000000c00000000000000280000000000000001000000000000003000000000000000"
        "000000000000000030000000000000000c0000000000000040000000000000000b0000000000000000000000"
        "0300000002000000000000000000000000000000020000000000000001000000000000000200000000000000"
        "000000000000000000401e18240a060001401e18240a06000100000000000000000000000100000001000000"
        "000000006b0000000000000000000000050000000b0000000000000066697273747365636f6e640000000000"
    ),
    "sparse batch": (
        "485752420158040029000000000000000400000000000000280000000000000001401e18240a060001401e18"
        "240a0600ffffffffffffffffffffffffffffffff01000000090000002001000052b504bb0200000084a3ef85"
        "fffffffff800000014000000000000000c0016000600050008000c000c000000000304001800000020000000"
        "0000000000000a0018000c00040008000a0000008c0000001000000001000000000000000000000007000000"
        "0000000000000000000000000000000000000000000000000800000000000000080000000000000000000000"
        "0000000008000000000000000800000000000000100000000000000006000000000000001800000000000000"
        "0000000000000000180000000000000004000000000000000000000003000000010000000000000000000000"
        "00000000010000000000000000000000000000000100000000000000000000000000000001401e18240a0600"
        "00000000060000007365636f6e6400000600000000000000"
    ),
    "segment header": (
        "4857534701400000290000000000000002401e18240a0600030000006f1d1c7e93a44c628a520c2f4a1b7d10"
        "00000000000000000000000000000000520bd5db"
    ),
    "index": (
        "485749580158010029000000000000002b00000000000000b80100000000000001401e18240a060002401e18"
        "240a060001000000010000000300000073ae352e6f1d1c7e93a44c628a520c2f4a1b7d1000000000760ea1b7"
        "29000000000000004000000000000000000000000000000004000000000000002900000000000000"
    ),
    "sparse index": (
        "485749580158030029000000000000003200000000000000b80100000000000001401e18240a060002401e18"
        "240a060001000000010000000300000073ae352e6f1d1c7e93a44c628a520c2f4a1b7d1009000000c0638c27"
        "29000000000000004000000000000000000000000000000004000000000000002900000000000000"
    ),
    "epochs": (
        "485745500120000002000000030000006f1d1c7e93a44c628a520c2f4a1b7d10010000000000000000000000"
        "0000000004000000000000002900000000000000f6723310"
    ),
    "recovery point": (
        "48575250014800000c000000000000002900000000000000b80100000000000007000000000000002b000000"
        "00000000030000006f1d1c7e93a44c628a520c2f4a1b7d10da60d7c6"
    ),
    "producer state": ("48575053011c00002b0000000000000006000000000000007adefb2d6f7061717565"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_bytes_are_frozen(name: str) -> None:
    """This build writes exactly these bytes."""
    assert MAKERS[name]().hex() == FROZEN[name]


def test_a_frozen_batch_is_read() -> None:
    """The frozen batch gives the records back."""
    data = bytes.fromhex(FROZEN["record batch"])
    header = record_batch.decode_header(data)
    body = data[record_batch.HEADER_SIZE :]
    record_batch.check_body(header, body)
    assert (header.base_offset, header.end_offset, header.synced_end) == (41, 43, 40)
    assert record_batch.decode_body(header, body).to_pydict() == RECORDS.to_pydict()


def test_a_frozen_sparse_batch_is_read() -> None:
    """The frozen sparse batch has its one record at its offset."""
    data = bytes.fromhex(FROZEN["sparse batch"])
    header = record_batch.decode_header(data)
    body = record_batch.decode_body(header, data[record_batch.HEADER_SIZE :])
    assert (header.base_offset, header.end_offset, header.records_count) == (41, 50, 1)
    assert record_batch.offsets_of(header, body).tolist() == [47]
    assert body.column("value").to_pylist() == [b"second"]


def test_frozen_state_is_read() -> None:
    """The other frozen files give their values back."""
    data = {name: bytes.fromhex(text) for name, text in FROZEN.items()}
    assert segment_format.decode_segment_header(data["segment header"]) == SEGMENT
    assert log_state_format.decode_epochs(data["epochs"]) == (PARTITION, EPOCHS)
    assert log_state_format.decode_recovery_point(data["recovery point"]) == POINT
    assert log_state_format.decode_producer_state(data["producer state"]) == (43, b"opaque")
    index = index_format.decode_index(data["index"])
    assert (index.summary.end_offset, index.summary.sealed, index.epochs) == (43, True, EPOCHS[1:])


def test_the_names_are_frozen() -> None:
    """Files of a segment are named by its base offset, in 20 digits."""
    assert segment_format.segment_name(41, "log") == "00000000000000000041.log"
    assert segment_format.parse_segment_name("00000000000000000041.index") == (41, "index")
    for name in ("41.log", "00000000000000000041.tmp", "99999999999999999999.log", "epochs"):
        assert segment_format.parse_segment_name(name) is None
