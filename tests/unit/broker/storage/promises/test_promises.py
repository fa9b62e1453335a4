"""Promises: exact after a kill, and after a power cut never above the synced end."""

from __future__ import annotations

import copy
import errno
import random
from typing import NoReturn

import pytest

from broker.codec.disk.promise_format import (
    KIND_REPLICA,
    SlotValues,
    decode_header,
    decode_slot,
    encode_header,
    encode_slot,
    slot_position,
)
from broker.errors import LogFailedError, MetadataCorruptError
from broker.model.epochs import LeaderEpoch
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.storage.log.config import LogConfig
from broker.storage.log.partition_log import PartitionLog
from broker.storage.log_folder import CUT_NAME
from broker.storage.promises.promises import PROMISES_NAME, Promised, Promises, ReplicaPromise
from cases import each_of, seeds
from simkit.disk.disk import ROOMY, PowerLostError, SimDisk
from simkit.log.batches import FOLDER, PARTITION, SMALL, raw_batch

ROOMY_SEGMENTS = LogConfig(segment_bytes_max=1 << 20, preallocate_bytes=8192)
UUID = "6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"


def _id(number: int) -> PartitionId:
    return PartitionId(StreamUuid(UUID), PartitionNumber(number))


def _promise(replica: ReplicaPromise, end: int, epoch: int = 1) -> None:
    replica.promise(Offset(0), Offset(end), LeaderEpoch(epoch))


def _begun(promises: Promises, number: int, end: int = 0) -> ReplicaPromise:
    replica = promises.replica(_id(number))
    replica.begin(Offset(0), Offset(end), LeaderEpoch(0))
    return replica


def _end(promises: Promises, number: int) -> int | None:
    found = promises.replica(_id(number)).promised
    return None if found is None else int(found.end)


def test_a_promise_is_exact_after_a_kill() -> None:
    """Without a sync the page cache keeps the newest promises of replicas and of a counter."""
    disk = SimDisk(random.Random(1))
    promises = Promises(disk.files())
    for number in range(100):  # several blocks
        _promise(_begun(promises, number), number + 7)
    promises.note("metadata", 41)
    disk.kill()
    again = Promises(disk.files())
    assert [_end(again, number) for number in range(100)] == [n + 7 for n in range(100)]
    assert again.noted("metadata") == (41, 0)
    assert again.complaint is None


@each_of(seeds(200))
def test_after_a_power_cut_a_promise_lags_and_never_leads(seed: int) -> None:
    """Whatever sectors were lost or torn, it is between the last sync and what was written."""
    rng = random.Random(seed)
    disk = SimDisk(rng)
    disk.tear_sectors = True
    promises = Promises(disk.files())
    replicas = [_begun(promises, number) for number in range(3)]
    promises.sync()
    synced, written = [0, 0, 0], [0, 0, 0]
    for _ in range(rng.randrange(30)):
        if rng.random() < 0.2:
            promises.sync()
            synced = list(written)
        else:
            number = rng.randrange(3)
            written[number] += 1
            _promise(replicas[number], written[number])
    disk.lose_power()
    again = Promises(disk.files())
    for number in range(3):
        found = _end(again, number)
        assert found is not None
        assert synced[number] <= found <= written[number]


def test_a_lowered_promise_is_durable_before_it_returns() -> None:
    """A power cut right after it does not bring the higher one back."""
    disk = SimDisk(random.Random(2))
    promises = Promises(disk.files())
    replica = _begun(promises, 0)
    _promise(replica, 50, epoch=3)
    promises.sync()
    replica.lower(Offset(20), LeaderEpoch(2))
    disk.lose_power()
    again = Promises(disk.files()).replica(_id(0))
    assert again.promised == Promised(Offset(0), Offset(20), LeaderEpoch(2))


def test_records_that_a_cut_made_durable_are_promised() -> None:
    """Cutting syncs what stays, so the log tells its leader of it: a lost tail has to be named."""
    disk = SimDisk(random.Random(1))
    files = disk.files()
    promises = Promises(files)
    log = PartitionLog.open(files, FOLDER, PARTITION, SMALL, promise=promises.replica(PARTITION))
    batches = [raw_batch(), raw_batch(), raw_batch()]
    offsets = log.append(batches, leader_epoch=LeaderEpoch(1), now_us=1)
    log.truncate(offsets[2])
    assert log.synced_end == offsets[2]
    disk.kill()
    promised = Promises(disk.files()).replica(PARTITION).promised
    assert promised is not None
    assert (promised.end, promised.last_epoch) == (offsets[2], LeaderEpoch(1))
    assert promised.mark, "the record that is the last now is known"


def test_a_removed_replica_is_not_held_any_more_and_its_slot_is_used_again() -> None:
    """This holds after a power cut, too; a renewed replica is held, and may be absent."""
    disk = SimDisk(random.Random(3))
    promises = Promises(disk.files())
    _begun(promises, 0, 9).remove()
    _begun(promises, 1, 9).renew()
    disk.lose_power()
    again = Promises(disk.files())
    assert _end(again, 0) is None
    assert again.replicas() == [_id(1)]
    found = again.replica(_id(1)).promised
    assert found is not None
    assert found.renewing
    size = len(disk.peek(PROMISES_NAME))
    for _ in range(100):
        _begun(again, 5, 4).remove()
    assert len(disk.peek(PROMISES_NAME)) == size


@pytest.mark.parametrize("copy", [0, 1])
def test_one_damaged_copy_is_survived_and_said(copy: int) -> None:
    """The other one, which may be a little older, counts."""
    disk = SimDisk(random.Random(4))
    promises = Promises(disk.files())
    replica = _begun(promises, 0)
    for end in (5, 6):
        _promise(replica, end)
        promises.sync()
    disk.flip_bit(PROMISES_NAME, slot_position(0, copy) + 50, 3)
    again = Promises(disk.files())
    assert _end(again, 0) in (5, 6)
    assert again.complaint is not None


def test_nothing_is_promised_after_a_failed_sync() -> None:
    """The disk's content is unknown then, so each owner's next promise raises."""
    disk = SimDisk(random.Random(5))
    promises = Promises(disk.files())
    replica = _begun(promises, 0)
    disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        promises.sync()
    with pytest.raises(LogFailedError):
        _promise(replica, 1)


def test_the_bytes_are_frozen() -> None:
    """What was written must be readable for ever: a change needs a new version."""
    slot = SlotValues(
        kind=KIND_REPLICA, sequence=12, key=bytes(range(16)), number=3, flags=1, first=7,
        second=43, third=4,
    )  # fmt: skip
    frozen = (
        "4857504901440100"
        "0c00000000000000000102030405060708090a0b0c0d0e0f0300000001000000"
        "07000000000000002b000000000000000400000000000000"
    )
    assert encode_slot(slot)[:-4].hex() == frozen
    assert decode_slot(encode_slot(slot)) == slot
    assert decode_header(encode_header(UUID)) == UUID
    assert encode_header(UUID)[:8].hex() == "4857504d01240000"


def test_every_flipped_bit_is_noticed() -> None:
    """The checksums cover slots and header."""
    slot = SlotValues(kind=KIND_REPLICA, sequence=1, key=bytes(16))
    for whole, decode in ((encode_slot(slot), decode_slot), (encode_header(UUID), decode_header)):
        for place in range(len(whole) * 8):
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            with pytest.raises(MetadataCorruptError):
                decode(damaged)


def test_a_power_cut_while_a_log_is_cut_looks_like_no_damage() -> None:
    """A disk that dropped some of the bytes that were to go, and kept others, is no rot."""
    interrupted = 0
    for seed in range(30):
        for step in range(60):
            disk = SimDisk(random.Random(seed))
            files = disk.files()
            promises = Promises(files)
            promise = promises.replica(PARTITION)
            log = PartitionLog.open(files, FOLDER, PARTITION, ROOMY_SEGMENTS, promise=promise)
            for fill in range(1, 8):
                log.append([raw_batch(fill, size=640)], leader_epoch=LeaderEpoch(1), now_us=1)
                log.sync()
            disk.stop_after = step
            try:
                log.truncate(Offset(3))
                done = True
            except PowerLostError:
                done = False
            disk.lose_power()
            files = disk.files()
            interrupted += files.exists(f"{FOLDER}/{CUT_NAME}")
            promise = Promises(files).replica(PARTITION)
            log = PartitionLog.open(files, FOLDER, PARTITION, ROOMY_SEGMENTS, promise=promise)
            assert not log.recovery.damaged, f"seed {seed}, step {step}"
            assert not files.exists(f"{FOLDER}/{CUT_NAME}")
            assert log.log_end in {Offset(3), Offset(7)}
            if done:
                assert log.log_end == 3
                break
    assert interrupted > 10


@pytest.mark.parametrize("removed", [True, False], ids=["removed", "an older copy"])
def test_a_file_that_is_exchanged_below_a_running_broker_ends_its_promises(removed: bool) -> None:
    """What is written from then on would be in a file that no restart finds."""
    disk = SimDisk(random.Random(6))
    promises = Promises(disk.files())
    replica = _begun(promises, 0, 4)
    promises.sync()
    older = disk.peek(PROMISES_NAME)
    _promise(replica, 9)
    inode = disk.delete(PROMISES_NAME)
    if not removed:
        other = copy.deepcopy(inode)
        other.content[:], other.durable[:] = older, older
        disk.restore(PROMISES_NAME, other)
    with pytest.raises(LogFailedError, match="exchanged or removed while the broker runs"):
        promises.sync()
    with pytest.raises(LogFailedError, match="exchanged or removed"):
        _promise(replica, 10)


def test_a_file_that_cannot_be_opened_a_second_time_is_no_other_file() -> None:
    """A process without a free descriptor goes on, and checks again later."""
    disk = SimDisk(random.Random(6))
    files = disk.files()
    promises = Promises(files)
    replica = _begun(promises, 0, 4)
    promises.sync()
    _promise(replica, 9)
    opened, files.open = files.open, _no_descriptor  # type: ignore[method-assign]
    promises.sync()
    files.open = opened  # type: ignore[method-assign]
    _promise(replica, 10)
    promises.sync()


def _no_descriptor(path: str, *, create: bool = False) -> NoReturn:
    raise OSError(errno.EMFILE, f"{path} {create}")


@each_of(seeds(200))
def test_a_refused_write_keeps_what_was_promised(seed: int) -> None:
    """A full disk may tear the copy that it refuses; a sync must not count on this copy."""
    rng = random.Random(seed)
    disk = SimDisk(rng)
    disk.copies_on_write = True
    promises = Promises(disk.files())
    replica = _begun(promises, 0)
    promises.sync()
    synced = written = end = 0
    torn = False
    for end in range(1, rng.randrange(2, 30)):
        disk.capacity_bytes = rng.choice((ROOMY, disk.used_bytes() + rng.randrange(100)))
        try:
            _promise(replica, end)
            written, torn = end, False
        except OSError:
            torn = True
            assert replica.promised is not None
            assert replica.promised.end == written
        if rng.random() < 0.3:
            promises.sync()
            synced = synced if torn else written
    disk.capacity_bytes = ROOMY
    disk.lose_power()
    found = _end(Promises(disk.files()), 0)
    assert found is not None
    assert synced <= found <= end  # the last byte of a refused write may be the old one
