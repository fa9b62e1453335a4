"""AS OF without Spark: what values mean, which are refused, and where a time lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from broker.codec.flight.protocol import AtTime
from broker.errors import (
    CompactedRangeError,
    ExpiredError,
    InvalidCutError,
    InvalidRequestError,
    OffsetOutOfRangeError,
)
from broker.model.cut import Cut
from broker.model.offsets import Offset
from headwater.client import Client
from headwater.reads.as_of import AtOffsets, narrowed, parse_as_of
from headwater.reads.history import History
from headwater.reads.verification import verify_cut
from simkit.tier.lake_broker import Served, serving
from tiering.table.ledger import ledger_key

BASE_US = 1_700_000_000_000_000
# Out of order: offset 3 is the first to reach 300, offset 5 is older than it again.
STAMPS = [0, 100, 200, 300, 301, 150, 400, 400, 500, 350, 600, 700]


@contextmanager
def _serving(folder: Path) -> Iterator[Served]:
    """Serve stream ``s`` of two partitions with those times; 8 and 0 records are cold."""
    with serving(str(folder / "lake")) as found, Client(found.server) as client:
        client.create_stream("s", partitions=2)
        for partition in range(2):
            with client.producer("s", partition) as producer:
                for half in (STAMPS[:5], STAMPS[5:]):
                    for stamp in half:
                        producer.send([{"value": b"v", "timestamp": BASE_US + stamp}])
        found.broker.ship("s", 0, Offset(8), files=3)
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """That stream, for tests that change nothing of it."""
    with _serving(tmp_path_factory.mktemp("served")) as found:
        yield found


def ends(served: Served, moment: Any) -> list[int]:
    """Return where each partition ends at a moment."""
    with Client(served.server) as client:
        wanted = parse_as_of(moment)
        assert not isinstance(wanted, Cut)
        cut = narrowed(client.cut("s"), wanted, client)
        return [int(part.end) for part in cut.partitions]


@pytest.mark.parametrize(
    ("stamp", "end"),
    [(0, 0), (1, 1), (150, 2), (299, 3), (300, 3), (302, 6), (400, 6), (401, 8), (501, 10)],
)
def test_a_time_is_the_first_offset_that_reaches_it_in_either_tier(
    served: Served, stamp: int, end: int
) -> None:
    """The table's answer and the log's are the same, also where times are out of order."""
    assert ends(served, BASE_US + stamp) == [end, end]


def test_a_time_that_nothing_reached_is_everything(served: Served) -> None:
    """Without a record at or after the time, each partition is read to its high watermark."""
    assert ends(served, BASE_US + 701) == [12, 12]


def test_a_time_to_come_is_refused(served: Served) -> None:
    """Records of tomorrow may yet arrive, so tomorrow has no rows to pin."""
    with pytest.raises(InvalidRequestError, match="in the future"):
        ends(served, datetime.now(UTC) + timedelta(days=1))


def test_offsets_name_every_partition_within_its_bounds(served: Served) -> None:
    """A vector is taken as it is, or refused: too far, too few, too many."""
    assert ends(served, {0: 3, 1: 12}) == [3, 12]
    assert ends(served, '{"1": 0, "0": 12}') == [12, 0]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        ends(served, {0: 13, 1: 0})
    assert (caught.value.offset, caught.value.end) == (13, 12)
    for wrong in ({0: 1}, {0: 1, 1: 1, 2: 1}):
        with pytest.raises(InvalidRequestError, match="name each of them"):
            ends(served, wrong)


@pytest.mark.parametrize("end", [0, 5, 8, 10, 12])
def test_a_narrowed_cut_is_read_and_verified_up_to_its_end(served: Served, end: int) -> None:
    """History without Spark, the certificate and the digest cover the same rows, saved or not."""
    with Client(served.server) as client:
        moment = AtOffsets({0: Offset(end), 1: Offset(end)})
        cut = narrowed(client.cut("s"), moment, client)
        again = Cut.load(cut.save())
        assert again == cut
        assert cut.records_count == 2 * end
        history = History(client, again)
        offsets = [
            (row["partition"], row["offset"])
            for batch in history.batches(["partition", "offset"])
            for row in batch.to_pylist()
        ]
        assert offsets == [(p, n) for p in range(2) for n in range(end)]
        counted, full = history.certificate(), verify_cut(client, cut)
        for proof in (counted, full):
            assert [(one.end, one.records_count) for one in proof.partitions] == [(end, end)] * 2
        assert [(one.cold_count, one.hot_count) for one in full.partitions] == [
            (min(end, 8), max(0, end - 8)),
            (0, end),
        ]


def test_the_digest_of_a_narrowed_cut_does_not_depend_on_the_tier(tmp_path: Path) -> None:
    """The same rows, cold at one proof and hot at another, have one digest."""
    moment = AtOffsets({0: Offset(5), 1: Offset(5)})
    with _serving(tmp_path) as served, Client(served.server) as client:
        before = verify_cut(client, narrowed(client.cut("s"), moment, client))
        served.broker.ship("s", 1, Offset(12))
        after = verify_cut(client, narrowed(client.cut("s"), moment, client))
    assert [one.cold_count for one in before.partitions] == [5, 0]
    assert [one.cold_count for one in after.partitions] == [5, 5]
    assert [one.digest for one in before.partitions] == [one.digest for one in after.partitions]


def test_a_cut_that_is_not_narrowed_says_nothing_of_it(served: Served) -> None:
    """Older readers know ordinary cuts; a narrowed one has a field that they refuse."""
    with Client(served.server) as client:
        cut = client.cut("s")
        assert "until" not in cut.save()
        assert '"until":3' in narrowed(cut, AtOffsets({0: Offset(3), 1: Offset(0)}), client).save()


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20",
        "2023-11-14T23:13:20+01:00",
        " 2023-11-14 22:13:20.000000 ",
        BASE_US,
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        datetime(2023, 11, 14, 20, 13, 20, tzinfo=timezone(timedelta(hours=-2))),
    ],
)
def test_times_in_all_their_forms(text: Any) -> None:
    """Text without a zone is UTC; a datetime is exact to the microsecond."""
    assert parse_as_of(text) == AtTime(BASE_US)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("yesterday", InvalidCutError),
        ("", InvalidCutError),
        ("hwcut1.0000000000000000.{}", InvalidCutError),
        ("{", InvalidRequestError),
        ('{"0": 1, "0": 2}', InvalidRequestError),
        ('{"0": true}', InvalidRequestError),
        (1_700_000_000, InvalidRequestError),  # seconds: would silently be a time in 1970
        (1_700_000_000_000, InvalidRequestError),  # milliseconds
        (1_700_000_000_000_000_000, InvalidRequestError),  # nanoseconds
        (datetime(2023, 1, 1), InvalidRequestError),  # noqa: DTZ001  (that is the point)
        (datetime(1969, 1, 1, tzinfo=UTC), InvalidRequestError),
        ({0: -1}, InvalidRequestError),
        ({0: 1.5}, InvalidRequestError),
        ({"x": 1}, InvalidRequestError),
        ({"0": 1, 0: 1}, InvalidRequestError),
        (True, InvalidRequestError),
        (1.5, InvalidRequestError),
        ([1], InvalidRequestError),
    ],
)
def test_what_is_no_moment_is_refused(value: Any, kind: type[InvalidRequestError]) -> None:
    """A misunderstood moment would silently be other rows; it is an error instead."""
    with pytest.raises(kind):
        parse_as_of(value)


def test_a_vector_is_json_too() -> None:
    """What a program printed as JSON can be given back."""
    vector = {"0": 5, "1": 0}
    assert parse_as_of(json.dumps(vector)) == AtOffsets({0: Offset(5), 1: Offset(0)})


# ------------------------------------------------------------------- moments of records that went

# Offset 1 reaches 80, what follows it is older again.
_EARLY: list[list[tuple[bytes, int]]] = [
    [(b"a", 10), (b"k", 100)],
    [(b"z", 50), (b"k", 60)],
    [(b"r", 200)],
    [(b"r", 150)],
]


@contextmanager
def _shipped(folder: Path, *, compact: bool = False) -> Iterator[tuple[Served, Client]]:
    """Serve stream ``s``, all of it cold, a file for each list of records."""
    with serving(str(folder / "lake")) as found, Client(found.server) as client:
        client.create_stream("s", compact=compact, tiering=not compact)
        count = 0
        for rows in _EARLY:
            with client.producer("s", 0) as producer:
                for key, stamp in rows:
                    producer.send([{"key": key, "value": b"v", "timestamp": BASE_US + stamp}])
            count += len(rows)
            if not compact:
                found.broker.ship("s", 0, Offset(count))
        yield found, client


def test_a_moment_that_expired_is_refused_and_later_ones_are_not(tmp_path: Path) -> None:
    """The record that defined it has gone, and with it the end of the moment's rows."""
    with _shipped(tmp_path) as (served, _):
        assert ends(served, BASE_US + 80) == [1]
        served.broker.expire("s", 0, Offset(2))
        for stamp in (5, 80, 100):
            with pytest.raises(ExpiredError, match="a later moment") as caught:
                ends(served, BASE_US + stamp)
            assert (caught.value.offset, caught.value.start) == (0, 2)
        for stamp, end in ((101, 4), (150, 4), (200, 4), (201, 6)):
            assert ends(served, BASE_US + stamp) == [end]
        served.broker.expire("s", 0, Offset(4))
        assert ends(served, BASE_US + 101) == [4]


def test_a_moment_whose_record_key_compaction_removed_is_refused(tmp_path: Path) -> None:
    """Later moments have all their records, and a hole for those that were superseded."""
    with _shipped(tmp_path) as (served, _):
        served.broker.compact_keys("s", 0, Offset(4))
        for stamp in (50, 80, 100):
            with pytest.raises(CompactedRangeError, match="a later moment") as caught:
                ends(served, BASE_US + stamp)
            assert (caught.value.start, caught.value.end) == (0, 2)
        assert ends(served, BASE_US + 10) == [0]  # the first record of all is left
        for stamp, end in ((101, 4), (200, 4), (201, 6)):
            assert ends(served, BASE_US + stamp) == [end]


def test_a_moment_is_refused_if_the_ledger_does_not_know_what_went(tmp_path: Path) -> None:
    """An entry of the ledger has the greatest time of its range; without it nothing is known."""
    with _shipped(tmp_path) as (served, _):
        served.broker.expire("s", 0, Offset(2))
        (tmp_path / "lake/default/s" / ledger_key(0, 0)).unlink()
        with pytest.raises(ExpiredError):
            ends(served, BASE_US + 101)


def test_a_compacted_log_without_a_table_knows_no_moment_beyond_what_went(tmp_path: Path) -> None:
    """Nothing has the times of its removed records."""
    with _shipped(tmp_path, compact=True) as (served, _):
        assert ends(served, BASE_US + 80) == [1]
        served.broker.handle("s", 0).compact(Offset(4), [0, 2, 3])
        for stamp in (80, 101, 201):
            with pytest.raises(CompactedRangeError):
                ends(served, BASE_US + stamp)
        assert ends(served, BASE_US + 10) == [0]
