"""Claims in the lake: of two copies of one history only one leads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.errors import ForeignHistoryError, HistoryClaimedError, ObjectCorruptError
from broker.model.ids import PartitionId
from broker.model.lineage import Lineage
from broker.model.stream import Stream
from broker.ports.tiering import TierSource
from simkit.tier.faulty_store import Fault, FaultyStore
from simkit.tier.lab import TierLab
from simkit.tier.source import MemoryTierCatalog, MemoryTierSource, make_stream
from simkit.wall_clock import WallClock
from tiering.config import TieringConfig
from tiering.read.lake import Lake
from tiering.ship.claimant import Claimant
from tiering.ship.claims import ClaimBook, claim_key, claim_of
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectInfo
from tiering.store.opening import open_store
from tiering.table.delta_table import DeltaStreamTable

WAIT_S = 60.0


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """Threads for the second listing."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream with a cold part, led and claimed in epoch 1."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(2, 20)
    lab.ship_all()
    settle(lab, lab.source)
    return lab


def settle(lab: TierLab, source: MemoryTierSource) -> None:
    """Claim the leadership of a source, as its process would."""
    with ThreadPoolExecutor(1) as pool:
        claim = claim_of(source.lineage, source.partition_id, cluster="lab", broker="b", time_us=1)
        book = ClaimBook(lab.table, source.partition_id)
        book.settle(source.lineage, claim, pool, cold_end=source.cold_end)


def look(lab: TierLab, source: MemoryTierSource, *, thorough: bool = False) -> None:
    """Check that the claim still stands."""
    ClaimBook(lab.table, source.partition_id).look(source.lineage, thorough=thorough)


# ----------------------------------------------------------------------------------- two copies


def story_of_the_same_epoch(lab: TierLab) -> None:
    """Both begin a new leadership, and the claim of the second exists already."""
    twin = lab.source.copied()
    twin.lead_again()
    lab.source.lead_again()
    settle(lab, twin)
    with pytest.raises(HistoryClaimedError):
        settle(lab, lab.source)
    look(lab, twin)


def story_of_the_loser_that_starts_again(lab: TierLab) -> None:
    """It leads a new epoch, but the leadership before it is the one that lost."""
    twin = lab.source.copied()
    twin.lead_again()
    settle(lab, twin)
    for _ in range(3):
        lab.source.lead_again()
        with pytest.raises(HistoryClaimedError):
            settle(lab, lab.source)
    look(lab, twin, thorough=True)


def story_of_a_claim_above(lab: TierLab) -> None:
    """The other has restarted more often."""
    twin = lab.source.copied()
    twin.lead_again()
    twin.lead_again()
    settle(lab, twin)
    lab.source.lead_again()
    with pytest.raises(HistoryClaimedError):
        settle(lab, lab.source)
    look(lab, twin, thorough=True)


STORIES = [story_of_the_same_epoch, story_of_the_loser_that_starts_again, story_of_a_claim_above]


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__[9:])
def test_the_second_of_two_copies_learns_it(lab: TierLab, story: Callable[[TierLab], None]) -> None:
    """It learns so before it takes a write; the first copy goes on."""
    story(lab)


def claims_overwrite(patch: pytest.MonkeyPatch) -> None:
    """A claim is stored even if its key exists."""

    def put(self: FaultyStore, key: str, body: bytes, *, crc32c: int) -> ObjectInfo:
        del crc32c
        path = self.config.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(body))
        return ObjectInfo(key, len(body))

    patch.setattr(FaultyStore, "put_if_absent", put)


def older_claims_ignored(patch: pytest.MonkeyPatch) -> None:
    """Claims of older epochs are not read."""
    real = ClaimBook._require_in

    def require(self: ClaimBook, lineage: Lineage, epoch: int) -> None:
        if epoch >= lineage[-1].leader_epoch:
            real(self, lineage, epoch)

    patch.setattr(ClaimBook, "_require_in", require)


def newer_claims_ignored(patch: pytest.MonkeyPatch) -> None:
    """Claims of newer epochs are not read."""
    patch.setattr(ClaimBook, "_require_none_newer", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "story"),
    [
        (claims_overwrite, story_of_the_same_epoch),
        (older_claims_ignored, story_of_the_loser_that_starts_again),
        (newer_claims_ignored, story_of_a_claim_above),
    ],
    ids=lambda one: one.__name__,
)
def test_a_hole_in_the_claims_is_seen(
    lab: TierLab,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    story: Callable[[TierLab], None],
) -> None:
    """A story fails on each planted bug."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        story(lab)


def test_the_original_of_a_copy_learns_it_at_its_next_look(lab: TierLab) -> None:
    """The copy has led since; the original may have failed to store its first claim."""
    look(lab, lab.source)
    twin = lab.source.copied()
    twin.lead_again()
    settle(lab, twin)
    with pytest.raises(HistoryClaimedError, match="broker 'b' leads a copy"):
        look(lab, lab.source)
    other = TierLab(lab.lake.config.root / "other")
    settle(other, other.source)
    late = other.source.copied()
    late.lead_again()
    late.lead_again()
    settle(other, late)
    look(other, other.source)
    with pytest.raises(HistoryClaimedError):
        look(other, other.source, thorough=True)


def test_a_log_that_is_older_than_the_table_does_not_begin_to_lead(lab: TierLab) -> None:
    """A restored backup lacks records that the original has shipped."""
    older = lab.source.copied()
    lab.source.fill(1, 20)
    lab.ship_all()
    older.lead_again()
    with pytest.raises(ForeignHistoryError, match="an older copy"):
        settle(lab, older)


@pytest.mark.parametrize("segments", [0, 2], ids=["alone", "before others"])
def test_a_log_that_ends_within_what_the_table_was_given_does_not_begin_to_lead(
    lab: TierLab, segments: int
) -> None:
    """The copy was taken within a segment that the original shipped later."""
    lab.source.append(10)
    older = lab.source.copied()
    lab.source.append(10)
    lab.source.seal_active()
    lab.source.fill(segments, 20)
    lab.ship_all()
    older.lead_again()
    with pytest.raises(ForeignHistoryError, match=r"holds .* ended at 50"):
        settle(lab, older)


@pytest.mark.parametrize("noted", [0, 2], ids=["nothing noted", "some noted"])
def test_a_log_that_is_older_than_a_commit_that_was_not_noted_does_not_begin_to_lead(
    tmp_path: Path, noted: int
) -> None:
    """The original died between its last commit and the ledger's entry of it."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(noted, 20)
    while lab.shipper().run_cycle():
        pass
    settle(lab, lab.source)
    lab.source.append(10)
    older = lab.source.copied()
    lab.source.append(10)
    lab.source.seal_active()
    lab.commit_unnoted()
    older.lead_again()
    with pytest.raises(ForeignHistoryError, match=r"holds .* an older copy"):
        settle(lab, older)
    lab.source.lead_again()
    settle(lab, lab.source)


def test_a_range_that_the_metadata_has_not_heard_of_hinders_nobody(lab: TierLab) -> None:
    """The leader died after the commit; the log has the whole range."""
    lab.source.fill(1, 20)
    lab.ship_all()
    lab.source.recorded.pop()
    lab.source.fill(1, 20)
    lab.commit_unnoted()
    for number in range(3):
        lab.source.lead_again()
        settle(lab, lab.source)
        lab.source.append(number)


def test_a_history_that_goes_on_claims_again_and_again(lab: TierLab) -> None:
    """Restarts, the same claim twice, leaderships that the lake never heard of."""
    for number in range(4):
        settle(lab, lab.source)
        lab.source.lead_again()
        if number == 2:
            lab.source.lead_again()
        settle(lab, lab.source)
        lab.source.fill(1, 20)
        lab.ship_all()
        look(lab, lab.source, thorough=True)


def test_a_claim_costs_two_listings_a_look_at_the_log_a_get_and_a_put(lab: TierLab) -> None:
    """One listing runs in parallel to the other and the table's log; a check costs one request."""
    lab.source.lead_again()
    store = lab.table.store
    assert isinstance(store, FaultyStore)
    store.calls.clear()
    settle(lab, lab.source)
    assert dict(store.calls) == {"list": 2, "head": 1, "get": 1, "put": 1}
    store.calls.clear()
    look(lab, lab.source)
    assert dict(store.calls) == {"head": 1}


def test_a_claim_says_who_and_after_whom(lab: TierLab) -> None:
    """A claim names its broker and the leadership before it, for people and for a restore."""
    lab.source.lead_again()
    settle(lab, lab.source)
    found = json.loads(lab.table.store.get(claim_key(0, 2)))
    before, own = lab.source.lineage
    assert found == {
        "v": 1, "cluster": "lab", "stream_uuid": lab.stream.uuid, "partition": 0,
        "leader_epoch": 2, "lineage_id": own.lineage_id, "start": 40, "parent_epoch": 1,
        "parent_id": before.lineage_id, "broker": "b", "time_us": 1,
    }  # fmt: skip


def test_a_damaged_claim_is_named(lab: TierLab) -> None:
    """It is neither taken as a claim nor ignored."""
    (lab.table.store.config.root / claim_key(0, 1)).write_bytes(b"{}")
    lab.source.lead_again()
    with pytest.raises(ObjectCorruptError, match="is not a readable claim"):
        settle(lab, lab.source)


# ----------------------------------------------------------------------------------- the threads


class Rig:
    """A claimant over in-memory logs and a lake that can be switched off."""

    def __init__(self, root: Path, catalog: MemoryTierCatalog | None = None) -> None:
        self.store = FaultyStore(open_store(StoreConfig.from_env(str(root))))
        self.catalog = catalog or MemoryTierCatalog()
        self.happened = threading.Condition()
        self.events: list[str] = []
        self.replaced: set[str] = set()  # leaderships that the metadata has ended
        self.asked: list[str] = []  # about which leaderships the metadata was asked
        self.claimant = Claimant(
            self._table_of,
            cluster="rig",
            clock=WallClock(),
            config=TieringConfig(check_interval_ms=10, backoff_ms_min=5, backoff_ms_max=20),
            observer=self._heard,
            source_of=self.catalog.source,
            is_replaced=self._is_replaced,
        )

    def _is_replaced(self, partition: PartitionId, lineage_id: str) -> bool:
        assert self.catalog.streams()[0].uuid == partition.stream_uuid
        with self.happened:
            self.asked.append(lineage_id)
            self.happened.notify_all()
        return lineage_id in self.replaced

    def _table_of(self, stream: Stream) -> DeltaStreamTable:
        return Lake(self.store, cluster="rig").table(stream)

    def _heard(self, event: str, facts: object) -> None:
        assert facts
        with self.happened:
            self.events.append(event)
            self.happened.notify_all()

    def lead(self) -> dict[PartitionId, tuple[Stream, TierSource]]:
        """Claim the leaderships of the catalog."""
        led: dict[PartitionId, tuple[Stream, TierSource]] = {
            one.partition_id: (stream, one)
            for stream in self.catalog.streams()
            for one in self.catalog.of(stream)
        }
        self.claimant.ensure(led)
        return led

    def until(self, *wanted: str) -> None:
        """Wait for events."""
        with self.happened:
            assert self.happened.wait_for(lambda: set(wanted) <= set(self.events), WAIT_S)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A rig that is stopped."""
    rig = Rig(tmp_path / "lake")
    yield rig
    rig.claimant.stop()


def test_a_lake_that_is_away_is_claimed_once_it_is_back(rig: Rig) -> None:
    """Before that the source is neither admitted nor refused."""
    source = rig.catalog.add(make_stream())[0]
    rig.store.down = True
    rig.lead()
    rig.until("claim_delayed")
    assert (source.admitted, source.refused) == ([], None)
    rig.store.down = False
    rig.until("leadership_claimed")
    rig.claimant.stop()  # a claim is settled before its source is admitted
    assert source.admitted


def test_a_lost_answer_is_no_lost_claim(rig: Rig) -> None:
    """The claim was put and only the answer was lost: the same claim again is ours."""
    source = rig.catalog.add(make_stream())[0]
    rig.store.faults["put"].append(Fault.ANSWER_LOST)
    rig.lead()
    rig.until("leadership_claimed")
    assert source.refused is None


def test_an_original_is_fenced_by_its_copy(rig: Rig, tmp_path: Path) -> None:
    """A check finds the copy's claim, before the next commit would; the copy goes on."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    rig.lead()
    rig.until("leadership_claimed")
    twin = Rig(tmp_path / "lake", rig.catalog.copied())
    copied = twin.catalog.of(stream)[0]
    copied.lead_again()
    twin.lead()
    twin.until("leadership_claimed")
    source.append(5)
    rig.until("leadership_lost")
    assert isinstance(source.refused, HistoryClaimedError)
    assert rig.claimant.error_of(source.partition_id) is source.refused
    assert copied.refused is None
    twin.claimant.stop()


def test_a_leader_that_the_metadata_replaced_is_not_fenced_by_its_successor(
    rig: Rig, tmp_path: Path
) -> None:
    """It was suspended and finds the successor's claim; its clients have to learn the leader."""
    stream = make_stream()
    source = rig.catalog.add(stream)[0]
    rig.lead()
    rig.until("leadership_claimed")
    rig.replaced.add(source.lineage[-1].lineage_id)
    successor = Rig(tmp_path / "lake", rig.catalog.copied())
    successor.catalog.of(stream)[0].lead_again()
    successor.lead()
    successor.until("leadership_claimed")
    source.append(5)
    with rig.happened:
        assert rig.happened.wait_for(lambda: len(rig.asked) > 1, WAIT_S)
    assert source.refused is None
    assert "leadership_lost" not in rig.events
    successor.claimant.stop()


def test_a_successor_s_records_in_the_table_fence_only_who_is_not_replaced(rig: Rig) -> None:
    """A replaced leader that does not know so yet is not a copy; a copy is fenced for good."""
    replaced, copy = rig.catalog.add(make_stream(partitions=2))
    rig.lead()
    rig.until("leadership_claimed")
    rig.replaced.add(replaced.lineage[-1].lineage_id)
    for source in (replaced, copy):
        rig.claimant.lose(source.partition_id, ForeignHistoryError("records of another history"))
    assert replaced.refused is None
    assert isinstance(copy.refused, ForeignHistoryError)


class CountingLock:
    """A lock that counts its callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.came = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_callers_that_wait_share_a_look_at_the_table(
    lab: TierLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions begin at once; none gets the result of a check that began before its call."""
    table, lock = lab.table, CountingLock()
    newest, looks = table._library.newest, []

    def looked() -> object:
        looks.append(1)
        return newest()

    monkeypatch.setattr(table, "_lock", lock)
    monkeypatch.setattr(table._library, "newest", looked)
    with ThreadPoolExecutor(8) as pool:
        with lock:
            asked = [pool.submit(table.cold_ends) for _ in range(8)]
            for _ in range(9):
                assert lock.came.acquire(timeout=WAIT_S)
            lab.source.fill(1, 20)
            while lab.shipper().run_cycle():
                pass
        assert [one.result() for one in asked] == [{0: 60}] * 8
    assert len(looks) == 1
    lab.source.fill(1, 20)
    while lab.shipper().run_cycle():
        pass
    assert table.cold_ends() == {0: 80}


def test_many_partitions_are_claimed_side_by_side(rig: Rig) -> None:
    """A broker that starts waits for all of them at once."""
    sources = rig.catalog.add(make_stream(partitions=40))
    rig.lead()
    rig.claimant.wait_settled(60_000)
    rig.claimant.stop()  # a claim is settled before its source is admitted
    assert all(source.admitted for source in sources)
