"""One partition's part of a cut: table and leader have to agree, or the error says how not."""

from __future__ import annotations

import pytest

from broker.core.cuts import partition_cut
from broker.errors import GapError, HeadwaterError, TableMismatchError, TableRolledBackError
from broker.model.cut import PartitionCut
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TableState
from broker.ports.api import PartitionStanding

STREAM = Stream(
    name="s",
    uuid=StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"),
    config=StreamConfig(subject="s"),
    created_us=1,
    table_name="s",
)


def _cut(cold: tuple[int, int] | None, log: tuple[int, int], recorded: int = 0) -> PartitionCut:
    ranges = {} if cold is None else {0: OffsetRange(Offset(cold[0]), Offset(cold[1]))}
    version = None if cold is None else 3
    table = TableState(table_uri="t", version=version, ranges=ranges, files_count=0, files_bytes=0)
    standing = PartitionStanding(Offset(log[0]), Offset(log[1]), LeaderEpoch(2))
    return partition_cut(STREAM, 0, table, standing, recorded=Offset(recorded), lineage_id=None)


@pytest.mark.parametrize(
    ("cold", "log", "recorded", "expected"),
    [
        (None, (0, 7), 0, (0, 0, 7)),
        (None, (3, 7), 0, (3, 3, 7)),
        ((0, 5), (0, 7), 5, (0, 5, 7)),
        ((2, 5), (5, 5), 4, (2, 5, 5)),
        ((0, 5), (4, 9), 3, (0, 5, 9)),
    ],
)
def test_table_below_the_cold_end_and_log_above(
    cold: tuple[int, int] | None, log: tuple[int, int], recorded: int, expected: tuple[int, ...]
) -> None:
    """Records in both tiers are read from the table."""
    found = _cut(cold, log, recorded)
    assert (found.start, found.cold_end, found.hot_end) == expected


@pytest.mark.parametrize(
    ("cold", "log", "recorded", "error"),
    [
        ((0, 5), (0, 9), 6, TableRolledBackError),  # the log still has the missing records
        (None, (0, 9), 1, TableRolledBackError),
        ((0, 5), (6, 9), 5, GapError),
        ((0, 5), (0, 4), 5, TableMismatchError),
    ],
)
def test_what_does_not_fit_is_named(
    cold: tuple[int, int] | None, log: tuple[int, int], recorded: int, error: type[HeadwaterError]
) -> None:
    """A lost commit, records in neither tier, or a table ahead of its log."""
    with pytest.raises(error):
        _cut(cold, log, recorded)
