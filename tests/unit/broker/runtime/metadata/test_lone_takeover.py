"""A data folder of release 0.1's single broker is taken over once, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Final

import pytest

from broker.codec.disk.raft_state import decode_state
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    CreateStream,
    DeleteStream,
    RecordColdEnd,
    RegisterBroker,
    TakeLease,
    encode,
)
from broker.core.metadata.snapshot import decode_snapshot
from broker.core.metadata.state import FEATURE_LEVEL_REPLICATED, MetadataState
from broker.errors import DiskFullError, MetadataCorruptError
from broker.model.ids import BrokerId, LeaseId, StreamUuid
from broker.model.offsets import Offset
from broker.model.raft import NodeId
from broker.model.stream import Stream, StreamConfig
from broker.runtime.metadata.lone import open_lone_journal
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import RaftJournal
from cases import seeds
from simkit.brokers.old_metadata import journal_of, snapshot_of
from simkit.disk.disk import ROOMY, PowerLostError, SimDisk

ME: Final = BrokerId("b1")
KEPT: Final = "metadata.before-raft"
OWNER: Final = "5e3f0a8e-7a52-4c8b-9a70-6a6f4b9f2c11"


def _uuid(number: int) -> StreamUuid:
    return StreamUuid(f"00000000-0000-4000-8000-{number:012}")


def _create(number: int) -> Command:
    stream = Stream(
        name=f"s{number}",
        uuid=_uuid(number),
        config=StreamConfig(subject=f"s{number}"),
        created_us=number,
        table_name=f"s{number}",
    )
    return CreateStream(stream=stream, leader=ME)


COMMANDS: Final[tuple[Command, ...]] = (
    RegisterBroker(broker=ME),
    _create(1),
    _create(2),
    RecordColdEnd(stream_uuid=_uuid(1), partition=0, cold_end=Offset(7)),
    TakeLease(lease_id=LeaseId("l"), stream_uuid=_uuid(1), owner="reader", expires_us=99, now_us=1),
    DeleteStream(name="s2", expected_uuid=_uuid(2)),
    RegisterBroker(broker=ME),
)


def _state(count: int = len(COMMANDS)) -> MetadataState:
    state = MetadataState()
    for command in COMMANDS[:count]:
        state, _ = apply(state, command)
    return state


def _files_of(snapshot: int, journal_from: int) -> dict[str, bytes]:
    """Return a folder after all commands, with a snapshot at one and a journal from another."""
    found = {
        "metadata/journal": journal_of(
            list(map(encode, COMMANDS[journal_from:])), first=journal_from + 1
        ),
        "metadata/ballast": bytes(4096),
        f"streams/{_uuid(1)}/0/epochs": b"x",
    }
    if snapshot:
        found["metadata/snapshot"] = snapshot_of(_state(snapshot), snapshot)
    return found


FOLDERS: Final = {
    "journal": _files_of(0, 0),
    "snapshot and journal": _files_of(4, 4),
    "a crash between snapshot and journal": _files_of(5, 2),
    "snapshot alone": _files_of(7, 7),
}


def _disk(image: dict[str, bytes], seed: int = 1, *, noted: int = len(COMMANDS)) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.put_back(image)
    promises = Promises(disk.files(), OWNER)
    promises.note("metadata", noted)
    promises.close()
    return disk


def _open(disk: SimDisk) -> RaftJournal:
    files = disk.files()
    return open_lone_journal(files, cluster="c", me=NodeId(ME), promises=Promises(files, OWNER))


def _restored(journal: RaftJournal) -> tuple[MetadataState, int]:
    snapshot = journal.stored.snapshot
    assert snapshot is not None
    assert (journal.stored.log.base_index, journal.stored.log.base_term) == (snapshot.id.index, 1)
    assert not journal.stored.log.entries
    assert journal.stored.hard.term == 1
    state = decode_state(snapshot.id.index, snapshot.data)
    assert not state.sessions
    assert state.voters is None
    return decode_snapshot(state.machine)


def _require_taken_over(disk: SimDisk, image: dict[str, bytes]) -> None:
    """Check that state and index are those of the commands, and that the old files are kept."""
    journal = _open(disk)
    state, index = _restored(journal)
    before = _state()
    assert index == len(COMMANDS)
    assert state.feature_level == FEATURE_LEVEL_REPLICATED
    assert (state.brokers, state.streams, state.partitions) == (
        before.brokers,
        before.streams,
        before.partitions,
    )
    assert (state.leases, state.deleted) == (before.leases, before.deleted)
    for path, content in image.items():
        if path.startswith("metadata/"):
            assert disk.peek(path.replace("metadata", KEPT, 1)) == content
    assert not disk.files().exists("metadata")


@pytest.mark.parametrize("name", FOLDERS)
def test_what_the_old_folder_holds_is_the_first_snapshot(name: str) -> None:
    """Streams, epochs, cold ends, leases and deletions, whatever the folder looked like."""
    disk = _disk(FOLDERS[name])
    for _ in range(3):
        _require_taken_over(disk, FOLDERS[name])


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("end", ["kill", "lose_power"])
def test_a_crash_at_any_disk_operation_changes_nothing_of_the_result(name: str, end: str) -> None:
    """Also with a second crash in the next start: the third start has the whole state."""
    image = FOLDERS[name]
    steps = 0
    while _crashed(disk := _disk(image, steps), steps, end):
        _crashed(disk, disk.rng.randrange(50), end)
        _require_taken_over(disk, image)
        steps += 1
    assert steps > 30, "the operations were counted"


def _crashed(disk: SimDisk, step: int, end: str) -> bool:
    """Start and crash at a disk operation; return False if the start ended before it."""
    files = disk.files()
    disk.stop_after = step
    try:
        promises = Promises(files, OWNER)
        open_lone_journal(files, cluster="c", me=NodeId(ME), promises=promises)
    except PowerLostError:
        getattr(disk, end)()
        return True
    disk.stop_after = None
    return False


@pytest.mark.parametrize("seed", seeds(20))
def test_an_entry_that_only_the_page_cache_has_is_made_durable_first(seed: int) -> None:
    """The old process ended at a failed sync. Once a start has found the entry, later ones do."""
    image = FOLDERS["journal"]
    short = journal_of(list(map(encode, COMMANDS[:-1])))
    disk = _disk({**image, "metadata/journal": short}, seed, noted=len(COMMANDS) - 1)
    file = disk.files().open("metadata/journal")
    file.write_at(len(short), [image["metadata/journal"][len(short) :]])
    _crashed(disk, 12 + seed, "lose_power")
    _, index = _restored(_open(disk))
    assert index in {len(COMMANDS) - 1, len(COMMANDS)}
    disk.lose_power()
    assert _restored(_open(disk))[1] == index


def test_a_torn_last_entry_was_never_answered() -> None:
    """At every torn length the earlier entries stay, and the old file is unchanged."""
    whole = FOLDERS["journal"]["metadata/journal"]
    last = len(journal_of(list(map(encode, COMMANDS[:-1]))))
    for cut in range(last, len(whole), 5):
        image = {**FOLDERS["journal"], "metadata/journal": whole[:cut]}
        disk = _disk(image, noted=len(COMMANDS) - 1)
        assert _restored(_open(disk))[1] == len(COMMANDS) - 1
        assert disk.peek(f"{KEPT}/journal") == whole[:cut]


@pytest.mark.parametrize("name", FOLDERS)
def test_damage_is_named_and_nothing_is_changed(name: str) -> None:
    """A flipped bit, a cut, a missing file, an older copy: no start, and no Raft folder."""
    image = FOLDERS[name]
    for damaged in _damages(image):
        disk = _disk(damaged)
        for _ in range(2):
            with pytest.raises(MetadataCorruptError):
                _open(disk)
        assert disk.copy_of("metadata") == {
            path: content for path, content in damaged.items() if path.startswith("metadata/")
        }
        assert not disk.copy_of("raft")


def _damages(image: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    for path in ("metadata/journal", "metadata/snapshot"):
        content = image.get(path, b"")
        for place in range(0, len(content), 11):
            flipped = bytearray(content)
            flipped[place] ^= 0x40
            yield {**image, path: bytes(flipped)}
        for cut in {len(content) - 3, len(content) // 2, 0}:
            if 0 <= cut < len(content):
                yield {**image, path: content[:cut]}
        if content:
            yield {other: one for other, one in image.items() if other != path}


def test_logs_that_the_old_metadata_does_not_know_are_named() -> None:
    """The metadata and the promises are an equally old copy: newer logs are not leftovers."""
    image = {**FOLDERS["journal"], f"streams/{_uuid(9)}/0/epochs": b"x"}
    disk = _disk(image)
    with pytest.raises(MetadataCorruptError, match=_uuid(9)):
        _open(disk)
    assert not disk.copy_of("raft")


def test_logs_beyond_the_partitions_of_the_old_metadata_are_named() -> None:
    """Nothing is converted: the newest copy of the folder can still be put in its place."""
    image = {**_files_of(0, 0), f"streams/{_uuid(1)}/1/epochs": b"x"}
    disk = _disk(image)
    for _ in range(2):
        with pytest.raises(MetadataCorruptError, match=f"streams/{_uuid(1)}/1:"):
            _open(disk)
        assert not disk.copy_of("raft")


def test_an_old_folder_put_back_beside_a_raft_in_use_is_refused() -> None:
    """The operator has to say which of the two is the newer one."""
    image = FOLDERS["journal"]
    disk = _disk(image)
    _require_taken_over(disk, image)
    kept = disk.copy_of("raft")
    disk.put_back({path: one for path, one in image.items() if path.startswith("metadata/")})
    with pytest.raises(MetadataCorruptError, match="Nothing was changed"):
        _open(disk)
    assert disk.copy_of("raft").keys() == kept.keys()
    assert disk.copy_of("metadata")
    disk.exchange(KEPT, {})
    disk.files().remove_folder(KEPT)
    with pytest.raises(MetadataCorruptError, match="raft beside it"):
        _open(disk)
    assert disk.copy_of("metadata")


def test_a_folder_that_never_held_anything_is_taken_over_too() -> None:
    """The broker of that release was killed in its first start."""
    for image in ({"metadata/ballast": bytes(10)}, {"metadata/journal": b""}):
        steps = 0
        while _crashed(disk := _disk(image, steps, noted=0), steps, "lose_power"):
            assert _open(disk).stored.snapshot is None
            steps += 1
        assert _open(disk).stored.snapshot is None
        assert steps > 10


def test_a_full_disk_refuses_the_start_and_the_next_one_goes_on() -> None:
    """With any too small amount of room the old folder stays whole until the new one is done."""
    image = dict(FOLDERS["snapshot and journal"])
    del image["metadata/ballast"]
    refused = 0
    for room in range(0, 60_000, 500):
        disk = _disk(image, room)
        disk.capacity_bytes = disk.used_bytes() + room
        with contextlib.suppress(DiskFullError):
            _open(disk)
            refused -= 1
        refused += 1
        disk.capacity_bytes = ROOMY
        _require_taken_over(disk, image)
    assert refused


def test_the_old_ballast_is_the_room_that_a_full_disk_needs() -> None:
    """Otherwise a broker that needs tiering to free its disk could not start on the new release."""
    image = {**FOLDERS["snapshot and journal"], "metadata/ballast": bytes(256 * 1024)}
    disk = _disk(image)
    disk.capacity_bytes = disk.used_bytes()
    _require_taken_over(disk, {**image, "metadata/ballast": b""})
