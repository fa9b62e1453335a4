"""Flipped bytes in sealed segments: intact batches are read, damaged ones are named only.

The oracle is the image of the log before the damage: it says which bytes are of which batch.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass

import pytest

from broker.codec.disk.segment_format import SEGMENT_HEADER_SIZE, segment_name
from broker.codec.record_batch import HEADER_SIZE
from broker.errors import SegmentCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.log.partition_log import LogConfig, PartitionLog
from broker.storage.log_folder import SUSPECT_NAME
from cases import seeds
from simkit.disk.disk import SimDisk
from simkit.log.batches import FOLDER, open_log, raw_batch

CONFIG = LogConfig(
    segment_bytes_max=4000,
    index_interval_bytes=600,
    preallocate_bytes=4096,
    checkpoint_bytes=1 << 30,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of one batch, and its records."""

    path: str
    position: int
    size: int
    base: int
    end: int
    body: bytes


def written(disk: SimDisk, chance: random.Random) -> tuple[PartitionLog, list[Stored]]:
    """Return a log of some ten segments, synced, and where each batch of it lies."""
    log = open_log(disk.files(), CONFIG)
    for _ in range(60):
        batch = raw_batch(
            chance.randrange(256), size=8 * chance.randint(1, 90), records=chance.randint(1, 9)
        )
        log.append([batch], leader_epoch=LeaderEpoch(1), now_us=1)
    log.sync()
    found: list[Stored] = []
    at = Offset(0)
    segments = [one.base_offset for one in log.segments()]
    while at < log.log_end:
        (one,) = log.read(at, Offset(at + 1), bytes_max=1)
        header, base = one.header, segments[bisect_right(segments, at) - 1]
        path = f"{FOLDER}/{segment_name(base, 'log')}"
        before = found[-1] if found and found[-1].path == path else None
        position = SEGMENT_HEADER_SIZE if before is None else before.position + before.size
        found.append(Stored(path, position, header.size, at, header.end_offset, bytes(one.body)))
        at = header.end_offset
    assert len(segments) > 5
    return log, found


def flipped(disk: SimDisk, chance: random.Random, batches: list[Stored]) -> set[int]:
    """Flip bits within some batches of sealed segments, neighbours too; return their bases."""
    last = batches[-1].path
    sealed = [one for one in batches if one.path != last]
    victims: set[int] = set()
    for _ in range(chance.randint(1, 4)):
        first = chance.randrange(len(sealed))
        for one in sealed[first : first + chance.choice((1, 1, 1, 2, 5))]:
            if one.base in victims:
                continue
            within = HEADER_SIZE if chance.random() < 0.5 else one.size
            disk.flip_bit(one.path, one.position + chance.randrange(within), chance.randrange(8))
            victims.add(one.base)
    return victims


def check(log: PartitionLog, batches: list[Stored], victims: set[int]) -> None:
    """Read from every offset: undamaged batches come byte for byte, a damaged one is the error."""
    bad = [one.base in victims for one in batches]
    for number, one in enumerate(batches):
        for start in {one.base, one.end - 1}:
            if not bad[number]:
                found = log.read(Offset(start), log.log_end, bytes_max=3000)
                intact = []
                for expected, is_bad in zip(batches[number:], bad[number:], strict=True):
                    if is_bad:
                        break
                    intact.append((expected.base, expected.body))
                got = [(batch.header.base_offset, bytes(batch.body)) for batch in found]
                assert got, "at least one batch"
                assert got == intact[: len(got)], "nothing else, and no gap"
                continue
            with pytest.raises(SegmentCorruptError) as caught:
                log.read(Offset(start), log.log_end, bytes_max=3000)
            told = caught.value
            behind = next(k for k in range(number, len(batches) + 1) if not (*bad, False)[k])
            assert told.path == one.path
            assert told.offset <= start < told.end_offset
            assert all(
                (*bad,)[k]
                for k, other in enumerate(batches)
                if told.offset <= other.base < told.end_offset
            ), "no intact batch is called damaged"
            assert told.readable_from == batches[behind].base
            again = log.read(Offset(told.readable_from), log.log_end, bytes_max=1)
            assert again[0].header.base_offset == told.readable_from
            assert f"from offset {told.readable_from}" in told.message


@pytest.mark.parametrize("seed", seeds(40))
def test_every_intact_batch_is_read_and_no_other(seed: int) -> None:
    """Both in an open log and after a start that knows of damage and has scanned every byte."""
    chance = random.Random(seed)
    disk = SimDisk(chance)
    log, batches = written(disk, chance)
    check(log, batches, set())
    victims = flipped(disk, chance, batches)
    check(log, batches, victims)
    log.mark_suspect()
    log.close()
    log = open_log(disk.files(), CONFIG)
    assert disk.has_file(f"{FOLDER}/{SUSPECT_NAME}")
    named = {
        one.base
        for one in batches
        if any(one.base in damage.offsets for damage in log.recovery.damaged_ranges)
    }
    assert named == victims
    check(log, batches, victims)
    disk.kill()
    for one in batches:  # a missing index is rebuilt from the intact batches
        if one.position == SEGMENT_HEADER_SIZE and one.path != batches[-1].path:
            disk.delete(one.path.replace(".log", ".index"))
    log = open_log(disk.files(), CONFIG)
    check(log, batches, victims)


def test_damage_up_to_the_end_has_nothing_behind_it() -> None:
    """The error says so, and names no unreadable offset as the next one."""
    chance = random.Random(3)
    disk = SimDisk(chance)
    log, batches = written(disk, chance)
    tail = [one for one in batches if one.base >= batches[-8].base]
    for one in tail:
        disk.flip_bit(one.path, one.position + HEADER_SIZE, 1)
    with pytest.raises(SegmentCorruptError, match="no record behind it can be read") as caught:
        log.read(Offset(tail[0].base), log.log_end, bytes_max=1)
    assert caught.value.readable_from is None
