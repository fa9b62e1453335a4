"""What the claimant does in each turn of its pump, by a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.codec.checksum import crc32c
from broker.errors import (
    ForeignHistoryError,
    HistoryClaimedError,
    UnavailableError,
)
from broker.model.ids import PartitionId
from broker.model.lineage import Lineage
from broker.model.stream import Stream
from broker.ports.pumps import NEVER_MS, Driven, PumpTurn
from broker.ports.tiering import TierSource
from simkit.brokers.memory_broker import FakeClock
from simkit.tier.faulty_store import Fault, FaultyStore
from simkit.tier.source import MemoryTierCatalog, MemoryTierSource, make_stream
from tiering.config import TieringConfig
from tiering.read.lake import Lake
from tiering.ship.claimant import Claimant
from tiering.ship.claims import claim_key, claim_of
from tiering.store.location import StoreConfig
from tiering.store.opening import open_store
from tiering.table.delta_table import DeltaStreamTable

CHECK_MS = 100
WAIT_S = 60.0


class Driver:
    """Implements ``Driven``: a test takes the turns."""

    def __init__(self) -> None:
        self.turn: PumpTurn = lambda _: NEVER_MS

    def drive(self, name: str, turn: PumpTurn) -> Driven:
        """See ``Drive``."""
        assert name == "claims"
        self.turn = turn
        return self

    def start(self) -> None:
        """See ``Driven``."""

    def wake(self) -> None:
        """See ``Driven``."""

    def stop(self, timeout_s: float | None = None) -> None:
        """See ``Driven``."""


class Rig:
    """A claimant over one partition."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.store = FaultyStore(open_store(StoreConfig.from_env(str(root))))
        self.catalog = MemoryTierCatalog()
        self.stream = make_stream()
        self.source = self.catalog.add(self.stream)[0]
        self.replaced: bool | UnavailableError = False
        self.events: list[str] = []
        self.driver = Driver()
        self.claimant = Claimant(
            self._table_of,
            cluster="rig",
            clock=self.clock,
            config=TieringConfig(check_interval_ms=CHECK_MS, backoff_ms_min=40, backoff_ms_max=300),
            observer=self._heard,
            source_of=self.catalog.source,
            is_replaced=self._is_replaced,
            drive=self.driver.drive,
        )
        self.begin()

    def _table_of(self, stream: Stream) -> DeltaStreamTable:
        return Lake(self.store, cluster="rig").table(stream)

    def _heard(self, event: str, _: Mapping[str, object]) -> None:
        self.events.append(event)

    def _is_replaced(self, _partition: PartitionId, _lineage_id: str) -> bool:
        if isinstance(self.replaced, UnavailableError):
            raise self.replaced
        return self.replaced

    @property
    def partition(self) -> PartitionId:
        """The partition."""
        return self.source.partition_id

    def begin(self, lineage: Lineage | None = None) -> bool:
        """Begin to lead."""
        return self.claimant.begin(self.partition, lineage or self.source.lineage)

    def turn(self) -> int | None:
        """Take all due turns; return the milliseconds until the next one is due."""
        for _ in range(10):
            now_ms = self.clock.monotonic_ms()
            due_ms = self.driver.turn(now_ms)
            if due_ms > now_ms:
                return None if due_ms == NEVER_MS else due_ms - now_ms
        raise AssertionError("turns without an end")

    def later(self, ms: int) -> int | None:
        """Let time pass, and take the turns that are due."""
        self.clock.advance(us=ms * 1000)
        return self.turn()

    def copy_leads(self) -> None:
        """Let a copy of this history claim the next epoch."""
        twin = self.source.copied()
        twin.lead_again()
        self.put_claim(twin)

    def put_claim(self, source: MemoryTierSource) -> None:
        """Store the claim of a source's leadership."""
        claim = claim_of(source.lineage, self.partition, cluster="rig", broker="copy", time_us=1)
        self.put_body(source.epoch, claim.encode())

    def put_body(self, epoch: int, body: bytes) -> None:
        """Store an object in the place of a claim."""
        store = self._table_of(self.stream).store
        assert store.put_if_absent(claim_key(0, epoch), body, crc32c=crc32c(body))

    def claims(self) -> list[str]:
        """Return the keys of all claims."""
        store = self._table_of(self.stream).store
        return [one.key for one in store.list("_headwater/lineage")]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A rig whose partition has begun to lead; no turn was taken."""
    return Rig(tmp_path / "lake")


def test_a_leadership_is_admitted_once_its_claim_is_made(rig: Rig) -> None:
    """It is not admitted before, nor while the store does not answer; later checks repeat it."""
    rig.store.faults["put"].append(Fault.REFUSED)
    assert rig.turn() == 40
    assert (rig.source.admitted, rig.events) == ([], ["claim_delayed"])
    assert rig.later(39) == 1
    assert rig.source.admitted == []
    assert rig.later(1) == CHECK_MS
    assert rig.source.admitted == [rig.source.lineage[-1].lineage_id]


def test_a_claim_whose_outcome_is_not_known_is_made_again(rig: Rig) -> None:
    """A copy may have made the claim first, which a check of the next epoch would not show."""
    twin = rig.source.copied()
    rig.source.lead_again()
    rig.begin()
    rig.store.faults["put"].append(Fault.REFUSED)
    rig.turn()
    twin.lead_again()
    rig.put_claim(twin)
    rig.later(40)
    assert isinstance(rig.source.refused, HistoryClaimedError)
    assert rig.source.admitted == []


def test_the_pause_doubles_up_to_its_bound_and_begins_anew_after_a_success(rig: Rig) -> None:
    """The store is away for a while, and once more after it was back."""
    rig.store.down = True
    waits = [rig.turn()]
    for _ in range(4):
        waits.append(rig.later(waits[-1] or 0))
    assert waits == [40, 80, 160, 300, 300]
    rig.store.down = False
    assert rig.later(300) == CHECK_MS
    rig.store.down = True
    rig.source.append(1)
    assert rig.later(CHECK_MS) == 40


def test_a_partition_that_takes_writes_is_looked_at_every_time(rig: Rig) -> None:
    """An idle one is checked at each thirtieth interval, with a listing of all newer claims."""
    rig.turn()
    rig.store.calls.clear()
    for _ in range(29):
        rig.source.append(1)
        rig.later(CHECK_MS)
    assert dict(rig.store.calls) == {"list": 1, "head": 28}  # the first look is a thorough one
    rig.store.calls.clear()
    rig.later(CHECK_MS)
    rig.store.calls.clear()
    for _ in range(60):
        rig.later(CHECK_MS)
    assert dict(rig.store.calls) == {"list": 2}


def test_a_leadership_that_is_lost_stays_lost(rig: Rig) -> None:
    """It is lost to a copy's claim or to a foreign table, and is not admitted again."""
    rig.turn()
    rig.copy_leads()
    rig.source.append(1)
    rig.later(CHECK_MS)
    rig.source.append(1)
    rig.later(CHECK_MS)
    error = rig.claimant.error_of(rig.partition)
    assert isinstance(error, HistoryClaimedError)
    assert rig.source.refused is error
    admitted = len(rig.source.admitted)
    for _ in range(40):
        rig.source.append(1)
        assert rig.later(CHECK_MS) is None
    assert len(rig.source.admitted) == admitted
    assert rig.events.count("leadership_lost") == 1


def test_a_leadership_whose_table_is_foreign_is_lost_unless_it_was_replaced(rig: Rig) -> None:
    """Fresh metadata decides; while it does not answer, nothing is decided."""
    rig.turn()
    foreign = ForeignHistoryError("records of another history")
    for answer in (True, UnavailableError("no majority")):
        rig.replaced = answer
        rig.claimant.lose(rig.partition, foreign)
        assert (rig.claimant.error_of(rig.partition), rig.source.refused) == (None, None)
    rig.replaced = False
    rig.claimant.lose(rig.partition, foreign)
    assert rig.claimant.error_of(rig.partition) is rig.source.refused is foreign
    assert rig.later(10 * CHECK_MS) is None
    assert rig.source.refused is foreign


def test_who_was_replaced_is_not_fenced_by_its_successor_s_claim(rig: Rig) -> None:
    """If the metadata does not answer, nothing is decided and it is asked again."""
    rig.turn()
    rig.copy_leads()
    rig.replaced = UnavailableError("no majority")
    assert rig.later(CHECK_MS) == 40
    rig.replaced = True
    assert rig.later(40) == CHECK_MS
    assert (rig.claimant.error_of(rig.partition), rig.source.refused) == (None, None)


def test_a_leadership_that_has_ended_makes_no_claim(rig: Rig) -> None:
    """A newer leadership of this broker has begun, and is not queued yet."""
    rig.source.lead_again()
    rig.turn()
    assert (rig.source.admitted, rig.claims()) == ([], [])
    rig.begin()
    rig.turn()
    assert rig.source.admitted == [rig.source.lineage[-1].lineage_id]


def test_a_log_that_was_opened_again_is_claimed_for_itself(rig: Rig) -> None:
    """The same leadership with a new source: the new source is admitted."""
    rig.turn()
    again = rig.source.copied()
    rig.catalog._streams[rig.stream.uuid] = (rig.stream, [again])
    rig.source = again
    rig.begin()
    rig.turn()
    assert again.admitted == [again.lineage[-1].lineage_id]


def test_what_is_not_led_any_more_is_dropped(rig: Rig) -> None:
    """A led partition that was not announced is claimed."""
    rig.turn()
    led: dict[PartitionId, tuple[Stream, TierSource]] = {rig.partition: (rig.stream, rig.source)}
    rig.claimant.ensure(led)
    assert rig.later(0) is not None
    rig.claimant.ensure({})
    assert rig.later(10 * CHECK_MS) is None
    rig.claimant.ensure(led)
    rig.turn()
    assert len(rig.source.admitted) == 2


def test_the_wait_for_claims_ends_when_all_are_settled_or_lost(rig: Rig) -> None:
    """It does not wait for a claim that will never be made."""
    rig.copy_leads()
    rig.turn()
    waiter = threading.Thread(target=rig.claimant.wait_settled, args=(600_000,), daemon=True)
    waiter.start()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()
    assert isinstance(rig.claimant.error_of(rig.partition), HistoryClaimedError)


def test_an_unreadable_claim_is_no_lost_leadership(rig: Rig) -> None:
    """An operator has to act; each try logs that, and the partition takes no writes meanwhile."""
    rig.put_body(1, b"{}")
    assert rig.turn() == 40
    assert rig.later(40) == 80
    assert rig.events == ["claim_delayed", "claim_delayed"]
    assert (rig.source.admitted, rig.source.refused) == ([], None)
    assert rig.claimant.error_of(rig.partition) is None


def test_nothing_begins_without_a_lineage_or_after_the_stop(rig: Rig) -> None:
    """A stream without tiering has no source here."""
    assert not rig.claimant.begin(rig.partition, ())
    rig.catalog.remove(rig.stream)
    assert not rig.begin(rig.source.lineage)
    rig.claimant.stop()
    assert rig.turn() is None
