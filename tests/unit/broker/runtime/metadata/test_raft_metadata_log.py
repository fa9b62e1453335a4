"""The Raft thread of a member alone, on a disk that fails, with either implementation."""

from __future__ import annotations

import queue
import random
from collections.abc import Iterator

import pytest

from broker.adapters.clock import SystemClock
from broker.codec.disk.raft_state import REPLY_BYTES_MAX
from broker.core.metadata.commands import Command, RegisterBroker, RenewLease, encode
from broker.core.metadata.group_commands import LeaveGroup
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import NewConsensus
from broker.core.raft.events import ChangeRefusal
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.ids import BrokerId, LeaseId
from broker.model.raft import PAYLOAD_BYTES_MAX, NodeId
from broker.runtime.metadata.raft.machine import MetadataMachine, read_reply
from broker.runtime.metadata.raft_metadata_log import RaftMetadataLog
from simkit.disk.disk import ROOMY, SimDisk
from simkit.raft.groups import CORES

REGISTER = RegisterBroker(broker=BrokerId("b1"))


class Rig:
    """A member and its disk."""

    def __init__(self, core: NewConsensus) -> None:
        self._core = core
        self.disk = SimDisk(random.Random(3))
        self.crashes: list[BaseException] = []
        self.start()

    def start(self, *, journal_bytes_max: int = 1 << 22) -> None:
        """Start the member on what the disk holds."""
        self.log = RaftMetadataLog(
            self.disk.files(),
            RaftConfig(members=(NodeId("n0"),), keep_entries=0),
            cluster="test",
            me=NodeId("n0"),
            clock=SystemClock(),
            on_crash=self.crashes.append,
            journal_bytes_max=journal_bytes_max,
            new_core=self._core,
        )

    def register(self) -> int:
        """Propose, return the broker epoch."""
        return int(self.log.propose(REGISTER)["broker_epoch"])

    def register_many(self) -> None:
        """Register until the disk is full, at most ten thousand times."""
        for _ in range(10_000):
            self.register()


@pytest.fixture(params=CORES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Return a running member."""
    found = Rig(CORES[request.param])
    yield found
    found.log.close()


def test_what_was_answered_survives_a_power_cut(rig: Rig) -> None:
    """Also if a snapshot holds most of it."""
    assert rig.register() == 1
    rig.log.close()
    rig.start(journal_bytes_max=3000)
    assert [rig.register() for _ in range(200)] == list(range(2, 202))
    assert "raft/snapshot" in rig.disk.paths()
    rig.disk.lose_power()
    rig.crashes.clear()
    rig.log.close()
    rig.start()
    rig.log.barrier()
    assert rig.register() == 202


def test_a_full_disk_refuses_and_heals_without_a_restart(rig: Rig) -> None:
    """The refusal is definite; reads go on; room brings everything back."""
    assert rig.register() == 1
    rig.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        rig.register_many()
    rig.log.barrier()
    done = rig.log.state.broker_epochs[BrokerId("b1")]
    rig.disk.capacity_bytes = ROOMY
    assert rig.register() == done + 1
    assert rig.crashes == []


def test_a_failed_sync_ends_the_member(rig: Rig) -> None:
    """No further sync is tried; the caller and the owner get the error."""
    rig.register()
    rig.disk.datasync_failures = 1
    with pytest.raises(LogFailedError):
        rig.register()
    with pytest.raises(LogFailedError):
        rig.register()
    assert isinstance(rig.crashes[0], LogFailedError)


def test_a_closed_log_answers_at_once(rig: Rig) -> None:
    """Nobody waits for a thread that has ended."""
    rig.log.close()
    with pytest.raises(ShuttingDownError):
        rig.register()
    with pytest.raises(ShuttingDownError):
        rig.log.barrier()


def test_a_command_that_no_entry_could_hold_is_refused_at_the_door(rig: Rig) -> None:
    """The error names the limit."""
    with pytest.raises(InvalidRequestError) as refused:
        rig.log.propose(RegisterBroker(broker=BrokerId("x" * PAYLOAD_BYTES_MAX)))
    assert refused.value.limit_bytes == PAYLOAD_BYTES_MAX


def test_a_command_that_does_not_parse_is_a_refusal_not_a_crash() -> None:
    """It is in the log of every node: each must refuse it alike, and go on."""
    machine = MetadataMachine()
    with pytest.raises(InvalidRequestError, match="not a metadata command"):
        read_reply(machine.apply(1, b"\x80\x04nonsense"))
    assert read_reply(machine.apply(2, encode(REGISTER)))["broker_epoch"] == 1
    other = MetadataMachine()
    other.restore(machine.snapshot())
    assert (other.state, other.hash()) == (machine.state, machine.hash())


@pytest.mark.parametrize("text", ["\U0001f600", "\u00fc", "\x07", "a", "\ud800"])
@pytest.mark.parametrize("length", [1, 170, 300, 5_000])
def test_no_refusal_is_too_long_to_be_kept(text: str, length: int) -> None:
    """Every broker would end with the entry that it answers, at each start anew."""
    machine = MetadataMachine()
    assert read_reply(machine.apply(1, encode(REGISTER)))["broker_epoch"] == 1
    commands: list[Command] = [
        LeaveGroup(group=text * length, member="m"),
        RenewLease(lease_id=LeaseId(text * length), now_us=1, expires_us=2),
    ]
    for index, command in enumerate(commands, start=2):
        reply = machine.apply(index, encode(command))
        assert len(reply) <= REPLY_BYTES_MAX
        with pytest.raises(HeadwaterError):
            read_reply(reply)


def test_what_was_decided_in_an_office_that_is_over_is_not_proposed(rig: Rig) -> None:
    """It is answered with an error and changes nothing; in the present office it is applied."""
    epoch = rig.register()
    outcomes: queue.SimpleQueue[HeadwaterError | None] = queue.SimpleQueue()
    office = rig.log.office
    assert office is not None
    rig.log.propose_soon(REGISTER, outcomes.put, office=office + 1)
    assert isinstance(outcomes.get(timeout=60), UnavailableError)
    rig.log.propose_soon(REGISTER, outcomes.put, office=office)
    assert outcomes.get(timeout=60) is None
    assert rig.register() == epoch + 2


def test_a_member_alone_tells_who_votes_and_stays_a_voter(rig: Rig) -> None:
    """Both implementations refuse a change with a reason; adding the present voter does nothing."""
    rig.register()
    assert rig.log.voters == ("n0",)
    assert [(one.node, one.votes) for one in rig.log.group(timeout_ms=60_000).members] == [
        ("n0", True)
    ]
    refused = rig.log.change_voter(NodeId("n0"), votes=False, timeout_ms=60_000)
    assert not refused.done
    assert refused.reason in {ChangeRefusal.LAST.value, ChangeRefusal.FIXED.value}
    rig.log.close()
    with pytest.raises(HeadwaterError):
        rig.log.change_voter(NodeId("n0"), votes=False)
