"""A leader's writes wait for its claim in the lake, a bounded time; a lost claim fences by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.core.replication.view import PartitionView
from broker.errors import HistoryClaimedError, ShuttingDownError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.lineage import Leadership, Lineage, first_lineage_id
from broker.model.offsets import Offset
from broker.model.records import AppendResult
from broker.runtime.partition.leadership_gate import SETTLE_MS, SLEPT_MS, Claims
from simkit.brokers.driver_rig import ME, DriverRig, alone_view

ID = "1" * 32
NEXT = "2" * 32
LOST = HistoryClaimedError("another process leads a copy")


class ClaimedRig(DriverRig):
    """A driver whose claims a test settles."""

    def __init__(self, files: DiskFiles) -> None:
        self.asked: list[str] = []
        super().__init__(files, claims=Claims(self._ask))

    def _ask(self, _partition: PartitionId, lineage: Lineage) -> bool:
        self.asked.append(lineage[-1].lineage_id)
        return True

    def view_of(self, lineage_id: str, epoch: int) -> PartitionView:
        """Return the view of a leadership."""
        begun = Leadership(leader_epoch=LeaderEpoch(epoch), lineage_id=lineage_id, start=Offset(0))
        here = {ME: BrokerEpoch(1)}
        return replace(alone_view(leader_epoch=epoch), lineage=(begun,), broker_epochs=here)

    def lead(self, lineage_id: str, epoch: int = 1) -> None:
        """Begin a leadership."""
        self.view(self.view_of(lineage_id, epoch))

    def admit(self, lineage_id: str) -> None:
        """Settle its claim."""
        self.driver.tier.admit(lineage_id)
        self.turns.run()

    def refuse(self, lineage_id: str) -> None:
        """Lose its claim."""
        self.driver.tier.refuse_writes(lineage_id, LOST)
        self.turns.run()

    def write(self, value: bytes) -> list[object]:
        """Send one record; take the turns that it needs."""
        answers = self.put(value)
        self.turns.run()
        return answers

    def pass_ms(self, ms: int) -> None:
        """Let time pass for a process that is awake."""
        while ms > 0:
            self.clock.advance(us=min(ms, 500) * 1000)
            ms -= 500
            self.driver.replication.tick()
            self.turns.run()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ClaimedRig]:
    """A driver that leads, its claim not settled yet."""
    files = DiskFiles(tmp_path)
    rig = ClaimedRig(files)
    rig.lead(ID)
    yield rig
    files.close()


def test_the_first_write_waits_for_the_claim(rig: ClaimedRig) -> None:
    """It is stored and answered once the claim is settled; other work of the turns goes on."""
    answers = rig.write(b"a")
    rig.driver.maintenance.tick()
    rig.turns.run()
    assert (answers, rig.log.log_end, rig.asked) == ([], 0, [ID])
    rig.admit(NEXT)
    assert answers == []
    rig.admit(ID)
    assert isinstance(answers[0], AppendResult)
    assert rig.values() == [b"a"]
    assert isinstance(rig.write(b"b")[0], AppendResult)


def test_a_write_in_the_turn_in_which_a_leadership_begins_waits_for_its_claim(
    rig: ClaimedRig,
) -> None:
    """It was queued for the leadership before, whose claim says nothing of this one."""
    rig.admit(ID)
    rig.driver.replication.take_view(rig.view_of(NEXT, epoch=2))
    answers = rig.write(b"a")
    assert (answers, rig.log.log_end, rig.asked) == ([], 0, [ID, NEXT])
    rig.admit(NEXT)
    assert isinstance(answers[0], AppendResult)
    assert rig.values() == [b"a"]


def test_a_lake_out_of_reach_is_waited_for_so_long(rig: ClaimedRig) -> None:
    """After a bounded time writes go on; a claim that is lost later fences the leader."""
    answers = rig.write(b"a")
    rig.pass_ms(SETTLE_MS - 500)
    assert answers == []
    rig.pass_ms(1_000)
    assert isinstance(answers[0], AppendResult)
    rig.refuse(ID)
    assert rig.write(b"b") == [LOST]
    assert rig.driver.refusal is LOST
    assert rig.values() == [b"a"]


def test_a_lost_claim_stores_nothing(rig: ClaimedRig) -> None:
    """Waiting writes get the typed error, and nothing is written."""
    answers = rig.write(b"a")
    rig.refuse(ID)
    assert answers == [LOST]
    assert rig.log.log_end == 0


def test_a_new_leadership_is_another_claim(rig: ClaimedRig) -> None:
    """A refusal of the leadership before, known or late, does not affect the new one."""
    rig.refuse(ID)
    rig.lead(NEXT, epoch=2)
    assert rig.asked == [ID, NEXT]
    answers = rig.write(b"a")
    rig.admit(ID)
    rig.refuse(ID)
    assert answers == []
    rig.admit(NEXT)
    assert isinstance(answers[0], AppendResult)


def test_a_new_partition_waits_for_nothing(tmp_path: Path) -> None:
    """No copy of it can exist, so writes go on while it is claimed."""
    files = DiskFiles(tmp_path)
    rig = ClaimedRig(files)
    first = first_lineage_id(rig.driver.partition_id.stream_uuid, 0)
    rig.lead(first)
    assert rig.asked == [first]
    assert isinstance(rig.write(b"a")[0], AppendResult)
    files.close()


def test_a_process_that_slept_looks_before_it_answers(rig: ClaimedRig) -> None:
    """Its first write after the sleep waits for a new check of the claim, which may be lost."""
    rig.admit(ID)
    assert isinstance(rig.write(b"a")[0], AppendResult)
    rig.pass_ms(60_000)
    assert rig.asked == [ID]
    rig.clock.advance(us=(SLEPT_MS + 1) * 1000)
    answers = rig.write(b"b")
    assert (answers, rig.asked) == ([], [ID, ID])
    rig.refuse(ID)
    assert answers == [LOST]
    assert rig.values() == [b"a"]


def test_a_ticker_that_wakes_first_does_not_hide_the_sleep(rig: ClaimedRig) -> None:
    """The sleep is noticed whichever thread reads the clock first."""
    rig.admit(ID)
    rig.clock.advance(us=(SLEPT_MS + 1) * 1000)
    rig.driver.replication.tick()
    rig.turns.run()
    answers = rig.write(b"b")
    assert answers == []
    rig.admit(ID)
    assert isinstance(answers[0], AppendResult)


def test_a_driver_that_closes_refuses_what_waited(rig: ClaimedRig) -> None:
    """The writes are neither stored without a claim nor kept waiting."""
    answers = rig.write(b"a")
    rig.close()
    assert isinstance(answers[0], ShuttingDownError)
    assert rig.asked == [ID]


def test_a_stream_that_is_tiered_from_now_on_claims_its_leadership(rig: ClaimedRig) -> None:
    """Its writes do not wait for that: they were taken before without a claim."""
    rig.admit(ID)
    stream = rig.driver.stream
    for tiering, asked in ((False, 1), (True, 2)):
        config = replace(stream.config, tiering=tiering)
        rig.driver.configure(replace(stream, config=config))
        rig.turns.run()
        assert rig.asked == [ID] * asked
    assert rig.write(b"at once")
