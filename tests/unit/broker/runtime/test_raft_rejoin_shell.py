"""The way in with an empty disk: what is asked, what is noted, and what is left alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.adapters.clock import SystemClock
from broker.core.raft.config import RaftConfig
from broker.errors import ControllersLostError, ShuttingDownError
from broker.model.control_messages import ControlMessage, Heartbeat
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.raft import Floor, HardState, NodeId, Standing
from broker.runtime.raft_rejoin import ControlDesk, take_part
from broker.storage.raft_journal import RaftJournal
from simkit.disk import SimDisk

NAMES = tuple(NodeId(name) for name in "abc")
A, B, C = NAMES


class Wires:
    """Delivers at once what one desk sends another; what nobody hears is lost."""

    def __init__(self) -> None:
        self.heard: dict[str, Callable[[BrokerId, ControlMessage], None]] = {}
        self.closed: list[str] = []

    def transport(self, me: NodeId) -> Wire:
        """Return a member's end."""
        return Wire(self, BrokerId(me))


class Wire:
    """Implements ``ControlTransport``."""

    def __init__(self, wires: Wires, me: BrokerId) -> None:
        self._wires = wires
        self._me = me

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """Hear."""
        self._wires.heard[self._me] = deliver

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Send, or lose."""
        deliver = self._wires.heard.get(to)
        if deliver is not None:
            deliver(self._me, message)

    def close(self) -> None:
        """Hear no more."""
        self._wires.closed.append(self._me)


def _begin(disk: SimDisk, desk: ControlDesk, me: NodeId, stopping: threading.Event) -> None:
    take_part(
        disk.files(),
        RaftConfig(members=NAMES),
        desk,
        cluster="c",
        me=me,
        clock=SystemClock(),
        stopping=stopping,
    )


def _open(disk: SimDisk, me: NodeId = A) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster="c", node=me)


def test_three_new_members_begin_together_and_ask_only_once() -> None:
    """Each hears from both others; at the next start the note on the disk is enough."""
    wires, never = Wires(), threading.Event()
    disks = {name: SimDisk(random.Random(1)) for name in NAMES}
    desks = {name: ControlDesk(wires.transport(name)) for name in NAMES}
    with ThreadPoolExecutor(3) as pool:
        started = [pool.submit(_begin, disks[one], desks[one], one, never) for one in NAMES]
        for one in started:
            one.result(30)
    for name in NAMES:
        stored = _open(disks[name], name).stored
        assert (stored.hard, stored.floor) == (HardState(), Floor())
    alone = ControlDesk(Wires().transport(A))
    _begin(disks[A], alone, A, never)


def test_a_wiped_member_notes_term_and_floor() -> None:
    """Running members answer with where they are, through whoever keeps that."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    for name, standing in ((B, Standing(term=7, last=Floor(6, 40))), (C, Standing(term=5))):
        desk = ControlDesk(wires.transport(name))
        desk.answer_with(lambda told, standing=standing: told(standing))  # type: ignore[misc]
    _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    disk.lose_power()
    stored = _open(disk).stored
    assert (stored.hard, stored.floor) == (HardState(8, A), Floor(6, 40))


def test_too_many_lost_notes_nothing() -> None:
    """The start fails, and the next one asks again."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    for name, standing in ((B, Standing(fresh=True)), (C, Standing(term=5))):
        desk = ControlDesk(wires.transport(name))
        desk.answer_with(lambda told, standing=standing: told(standing))  # type: ignore[misc]
    with pytest.raises(ControllersLostError):
        _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert _open(disk).is_fresh


def test_whoever_waits_can_be_stopped() -> None:
    """Nobody answers; nothing is noted."""
    disk, stopping = SimDisk(random.Random(1)), threading.Event()
    desk = ControlDesk(Wires().transport(A))
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(_begin, disk, desk, A, stopping)
        stopping.set()
        with pytest.raises(ShuttingDownError):
            started.result(30)
    assert _open(disk).is_fresh


def test_a_disk_in_use_is_not_asked_about() -> None:
    """It was in use before there were notes: it gets one, and goes on where it was."""
    disk = SimDisk(random.Random(1))
    _open(disk).save(hard=HardState(3, B))
    _begin(disk, ControlDesk(Wires().transport(A)), A, threading.Event())
    assert disk.files().exists("raft/member")
    assert _open(disk).stored.hard == HardState(3, B)


def test_the_desk_hands_everything_else_on() -> None:
    """Once somebody hears; before that, such messages are lost, as on a network."""
    wires = Wires()
    desk, other = ControlDesk(wires.transport(A)), ControlDesk(wires.transport(B))
    heartbeat = Heartbeat(broker_epoch=BrokerEpoch(1), sent_ms=2)
    heard: list[tuple[str, ControlMessage]] = []
    other.send(BrokerId(A), heartbeat)
    desk.start(lambda sender, message: heard.append((sender, message)))
    other.send(BrokerId(A), heartbeat)
    assert heard == [(B, heartbeat)]
    desk.close()
    desk.close()
    assert wires.closed == [A]
