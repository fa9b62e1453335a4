"""What remote retention lets expire: the plan alone, over files that are made up."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from broker.model.offsets import OFFSET_MAX, Offset, OffsetRange
from broker.model.stream import StreamConfig
from cases import seeds
from tiering.ship import expiry_plan
from tiering.ship.expiry_plan import RemoteRetention, plan_expiry, plan_removal
from tiering.table.table import DataFile

NO_LIMIT = Offset(OFFSET_MAX)


def a_file(start: int, end: int, *, size: int = 100, newest_us: int | None = None) -> DataFile:
    """Return a file of ``[start, end)``; its newest record is at its last offset's time."""
    return DataFile(
        path=f"{start}-{end}",
        size_bytes=size,
        partition=0,
        records_count=end - start,
        min_offset=Offset(start),
        max_offset=Offset(end - 1),
        max_timestamp_us=end - 1 if newest_us is None else newest_us,
        min_timestamp_us=start,
    )


FILES = [a_file(0, 10), a_file(10, 20), a_file(20, 30)]
HELD = OffsetRange(Offset(0), Offset(30))


def start(retention: RemoteRetention, **other: Any) -> int:
    """Return the start that a plan over FILES gives."""
    given = {"limit": NO_LIMIT, "now_us": 1_000, **other}
    files, held = given.pop("files", FILES), given.pop("held", HELD)
    return plan_expiry(files, held, retention=retention, **given)


def test_without_a_bound_nothing_expires() -> None:
    """The default keeps everything for ever."""
    assert RemoteRetention.of(StreamConfig(subject="s")).keeps_all
    assert start(RemoteRetention(), now_us=10**18) == 0


@pytest.mark.parametrize(
    ("keep_us", "expected"), [(992, 0), (991, 10), (982, 10), (981, 20), (972, 20), (971, 30)]
)
def test_a_file_is_old_once_its_newest_record_is(keep_us: int, expected: int) -> None:
    """FILES are 991, 981 and 971 µs old; a file of just the age expires."""
    assert start(RemoteRetention(keep_us=keep_us)) == expected


@pytest.mark.parametrize(("keep", "expected"), [(301, 0), (201, 0), (200, 10), (100, 20), (1, 20)])
def test_what_remains_has_at_least_the_bytes(keep: int, expected: int) -> None:
    """A file goes only if the later ones still have so much."""
    assert start(RemoteRetention(keep_bytes=keep)) == expected


@pytest.mark.parametrize(("keep", "expected"), [(30, 0), (21, 0), (20, 10), (10, 20), (1, 20)])
def test_what_remains_has_at_least_the_records(keep: int, expected: int) -> None:
    """Records are counted by offsets."""
    assert start(RemoteRetention(keep_records=keep)) == expected


def test_one_bound_that_is_exceeded_is_enough() -> None:
    """As in Kafka and Liftbridge: each bound alone lets files expire."""
    assert start(RemoteRetention(keep_bytes=10**9, keep_records=10)) == 20
    assert start(RemoteRetention(keep_us=10**9, keep_bytes=200)) == 10


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (9, 0), (10, 10), (19, 10), (29, 20)])
def test_nothing_at_or_above_the_limit_expires(limit: int, expected: int) -> None:
    """A reader holds it: a file that reaches above the limit stays whole."""
    assert start(RemoteRetention(keep_us=0), limit=Offset(limit)) == expected


def test_a_younger_file_protects_the_older_ones_after_it() -> None:
    """Only a prefix expires, so the table never gets a hole."""
    files = [FILES[0], a_file(10, 20, newest_us=999), FILES[2]]
    assert start(RemoteRetention(keep_us=500), files=files) == 10


def test_files_that_overlap_go_together() -> None:
    """After a foreign OPTIMIZE two files may interleave; one alone would leave a hole."""
    files = [a_file(0, 19), a_file(5, 20), FILES[2]]
    assert start(RemoteRetention(keep_us=0), files=files, limit=Offset(19)) == 0
    assert start(RemoteRetention(keep_us=0), files=files, limit=Offset(29)) == 20


def test_what_the_statistics_do_not_tell_is_kept() -> None:
    """Files without bounds or times; and what lies behind a gap, which is an error elsewhere."""
    blind = replace(FILES[1], min_offset=None, max_offset=None, records_count=None)
    assert start(RemoteRetention(keep_us=0), files=[FILES[0], blind, FILES[2]]) == 0
    timeless = replace(FILES[1], max_timestamp_us=None)
    assert start(RemoteRetention(keep_us=0), files=[FILES[0], timeless, FILES[2]]) == 10
    assert start(RemoteRetention(keep_us=0), files=[FILES[0], FILES[2]]) == 10
    assert start(RemoteRetention(keep_us=0), files=FILES[1:]) == 0


def test_a_removal_takes_whole_files_up_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that spans the decided start stays; a long removal is done in parts."""
    assert plan_removal(FILES, HELD, upto=Offset(20)) == (20, FILES[:2])
    assert plan_removal(FILES, HELD, upto=Offset(19)) == (10, FILES[:1])
    assert plan_removal(FILES, HELD, upto=Offset(9)) == (0, [])
    monkeypatch.setattr(expiry_plan, "FILES_MAX", 1)
    assert plan_removal(FILES, HELD, upto=Offset(30)) == (10, FILES[:1])


@pytest.mark.parametrize("seed", seeds(50))
def test_a_plan_is_what_a_slow_model_says(seed: int) -> None:
    """The largest prefix of which each file, alone, may go: over random files and bounds."""
    dice = random.Random(seed)
    files, at = [], dice.randrange(5)
    held_start = at
    for _ in range(dice.randrange(8)):
        end = at + dice.randrange(1, 9)
        files.append(a_file(at, end, size=dice.randrange(1, 50), newest_us=dice.randrange(100)))
        at = end
    held = OffsetRange(Offset(held_start), Offset(at))
    bounds = {
        name: dice.choice([None, dice.randrange(100)])
        for name in ("keep_us", "keep_bytes", "keep_records")
    }
    limit, now_us = dice.randrange(at + 2), dice.randrange(150)

    def may_go(count: int) -> bool:
        rest, last = files[count:], files[count - 1]
        assert last.max_offset is not None
        assert last.max_timestamp_us is not None
        if last.max_offset + 1 > limit:
            return False
        left = {
            "keep_bytes": sum(one.size_bytes for one in rest),
            "keep_records": sum(one.records_count or 0 for one in rest),
            "keep_us": now_us - last.max_timestamp_us,
        }
        return any(keep is not None and left[name] >= keep for name, keep in bounds.items())

    count = 0
    while count < len(files) and may_go(count + 1):
        count += 1
    expected = held_start + sum(one.records_count or 0 for one in files[:count])
    dice.shuffle(files)
    retention = RemoteRetention(**bounds)
    found = plan_expiry(files, held, retention=retention, limit=Offset(limit), now_us=now_us)
    assert found == expected
