"""Values that Headwater never writes are refused, even if their checksum is right."""

from __future__ import annotations

import itertools

import pytest

from broker.codec.disk.index_format import IndexEntries, decode_index, encode_index
from broker.codec.disk.log_state_format import decode_epochs, encode_epochs
from broker.codec.disk.raft_state import SessionState, decode_state, encode_state
from broker.errors import IndexCorruptError, MetadataCorruptError
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset

PARTITION = PartitionId(StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(3))


def _starts(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs)


@pytest.mark.parametrize(
    "starts", [_starts((1, 0), (1, 5)), _starts((2, 0), (1, 5)), _starts((1, 5), (2, 4))]
)
def test_epochs_ascend_and_their_starts_do_not_fall(starts: tuple[EpochStart, ...]) -> None:
    """An epoch has one start."""
    with pytest.raises(MetadataCorruptError, match="out of order"):
        decode_epochs(encode_epochs(PARTITION, starts))
    assert decode_epochs(encode_epochs(PARTITION, _starts((1, 5), (2, 5))))[1]


def _index(*, offsets: list[int], positions: list[int], stamps: list[int]) -> bytes:
    return encode_index(
        partition_id=PARTITION,
        base_offset=Offset(10),
        end_offset=Offset(20),
        covered=500,
        max_timestamp_us=9,
        created_us=1,
        sealed=False,
        entries=IndexEntries.of(offsets, positions, stamps),
        epochs=(),
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_an_index_counts_what_key_compaction_removed(sparse: bool) -> None:
    """No more than there are offsets; an older build does not tell, and wrote no dense one."""

    def read(count: int | None) -> int | None:
        data = encode_index(
            partition_id=PARTITION, base_offset=Offset(10), end_offset=Offset(20), covered=500,
            max_timestamp_us=9, created_us=1, sealed=True, sparse=sparse, removed_count=count,
            entries=IndexEntries.of([10], [64], [0]), epochs=(),
        )  # fmt: skip
        return decode_index(data).summary.removed_count

    for count in (None, 0, 3, 10):
        assert read(count) == (count if sparse else 0)
    assert read(1 << 32) == (None if sparse else 0), "it does not fit"
    if sparse:
        with pytest.raises(IndexCorruptError):
            read(11)


def test_an_index_points_into_what_it_covers_and_ascends() -> None:
    """A reader that follows it finds a batch there."""
    good = {"offsets": [10, 15], "positions": [64, 499], "stamps": [0, 5]}
    assert len(decode_index(_index(**good)).entries.offsets) == 2
    bads: tuple[dict[str, list[int]], ...] = (
        {"positions": [64, 500]},
        {"positions": [64, 64]},
        {"positions": [-8, 64]},
        {"offsets": [9, 15]},
        {"offsets": [10, 20]},
        {"offsets": [10, 10]},
        {"stamps": [5, 4]},
        {"offsets": [], "positions": [], "stamps": []},
    )
    for bad in bads:
        with pytest.raises(IndexCorruptError, match="out of order"):
            decode_index(_index(**{**good, **bad}))


def test_equal_states_of_raft_give_equal_bytes_in_one_order() -> None:
    """Sessions and replies are written in the order of their numbers."""
    replies = {3: b"c", 1: b"a", 2: b"b"}
    states = [
        encode_state(7, [SessionState(number, 1, 0, dict(order)) for number in numbers], b"m")
        for order in itertools.permutations(replies.items())
        for numbers in ((5, 6), (6, 5))
    ]
    assert len(set(states)) == 1
    (first, _) = decode_state(7, states[0]).sessions
    assert (first.session, list(first.replies)) == (5, [1, 2, 3])
