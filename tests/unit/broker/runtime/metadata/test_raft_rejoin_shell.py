"""A member's way into its group, with any disk: its questions, its notes, its answers."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.adapters.clock import SystemClock
from broker.core.raft.config import RaftConfig
from broker.errors import ControllersLostError, MetadataCorruptError, ShuttingDownError
from broker.model.control_messages import ControlMessage, Heartbeat
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.raft import Entry, EntryKind, Floor, HardState, NodeId, Standing
from broker.runtime.metadata.raft.rejoin import ControlDesk, TakingPart, take_part
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import RaftJournal, has_lost_all
from broker.storage.whole_file import write_whole
from simkit.disk.disk import PowerLostError, SimDisk

NAMES = tuple(NodeId(name) for name in "abc")
A, B, C = NAMES


class Wires:
    """Delivers messages between desks at once; a message without a listener is lost."""

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
        """Begin to receive."""
        self._wires.heard[self._me] = deliver

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """Send, or lose."""
        deliver = self._wires.heard.get(to)
        if deliver is not None:
            deliver(self._me, message)

    def close(self) -> None:
        """Stop receiving."""
        self._wires.closed.append(self._me)


def _begin(
    disk: SimDisk,
    desk: ControlDesk,
    me: NodeId,
    stopping: threading.Event,
    *,
    grace_ms: int = 60_000,
    has_taken_part: bool = False,
    keeps_promises: bool = False,
) -> RaftJournal:
    files = disk.files()
    return take_part(
        files,
        RaftConfig(members=NAMES, restart_grace_ms=grace_ms),
        desk,
        cluster="c",
        me=me,
        clock=SystemClock(),
        stopping=stopping,
        has_taken_part=has_taken_part,
        promises=Promises(files) if keeps_promises else None,
    )


def _open(disk: SimDisk, me: NodeId = A) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster="c", node=me)


def test_three_new_members_begin_together() -> None:
    """Each hears from both others; at the next start none of them is new."""
    wires, never = Wires(), threading.Event()
    disks = {name: SimDisk(random.Random(1)) for name in NAMES}
    desks = {name: ControlDesk(wires.transport(name)) for name in NAMES}
    with ThreadPoolExecutor(3) as pool:
        started = [pool.submit(_begin, disks[one], desks[one], one, never) for one in NAMES]
        for one in started:
            one.result(60)
    for name in NAMES:
        stored = _open(disks[name], name).stored
        assert (stored.hard, stored.floor) == (HardState(), Floor())
        assert not _open(disks[name], name).is_fresh


def test_who_is_waited_for_is_told_by_name() -> None:
    """First both others, then the one that is still silent, and nobody once all have answered."""
    wires = Wires()
    told: list[Sequence[NodeId]] = []
    desk = ControlDesk(wires.transport(A), on_waiting=told.append)
    start = TakingPart(
        SimDisk(random.Random(1)).files(),
        RaftConfig(members=NAMES),
        desk,
        cluster="c",
        me=A,
        stop_asked=lambda: False,
        wake=lambda: None,
        answered=lambda _journal: None,
    )
    for now_ms in (0, 500, 2_000):
        start.turn(now_ms)
    ControlDesk(wires.transport(B)).answer_with(lambda _asker, tell: tell(Standing(term=7)))
    for now_ms in (5_000, 15_000):
        start.turn(now_ms)
    ControlDesk(wires.transport(C)).answer_with(lambda _asker, tell: tell(Standing(term=7)))
    for now_ms in range(20_000, 30_000, 1_000):
        start.turn(now_ms)
    assert told[:2] == [(B, C), (C,)]
    assert told[-1] == ()


def test_a_wiped_member_notes_term_and_floor() -> None:
    """Running members answer with their standing."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    for name, standing in ((B, Standing(term=7, last=Floor(6, 40))), (C, Standing(term=5))):
        desk = ControlDesk(wires.transport(name))
        desk.answer_with(lambda _, told, standing=standing: told(standing))  # type: ignore[misc]
    _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    disk.lose_power()
    stored = _open(disk).stored
    assert (stored.hard, stored.floor) == (HardState(8, A), Floor(6, 40))


def test_too_many_lost_notes_nothing() -> None:
    """The start fails, and the next one asks again."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    for name, standing in ((B, Standing(fresh=True)), (C, Standing(term=5))):
        desk = ControlDesk(wires.transport(name))
        desk.answer_with(lambda _, told, standing=standing: told(standing))  # type: ignore[misc]
    with pytest.raises(ControllersLostError):
        _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert _open(disk).is_fresh


def test_whoever_waits_can_be_stopped() -> None:
    """No member answers; the stop ends the wait, and nothing is noted."""
    disk, stopping = SimDisk(random.Random(1)), threading.Event()
    desk = ControlDesk(Wires().transport(A))
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(_begin, disk, desk, A, stopping)
        stopping.set()
        with pytest.raises(ShuttingDownError):
            started.result(60)
    assert _open(disk).is_fresh


def test_a_disk_in_use_without_a_note_gets_one() -> None:
    """It was in use before there were notes, and goes on where it was."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _open(disk).save(hard=HardState(3, B))
    _others_tell(wires, Standing(term=3), B, C)
    _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert disk.files().exists("raft/member")
    assert _open(disk).stored.hard == HardState(3, B)


def test_the_desk_hands_everything_else_on() -> None:
    """Other messages are handed on after the start; before it they are lost, as on a network."""
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


def _in_use(disk: SimDisk, hard: HardState, *terms: int) -> None:
    journal = _open(disk)
    journal.take_part(0, Floor())
    entries = [Entry(at, term, EntryKind.NOOP, 0, 0, b"") for at, term in enumerate(terms, 1)]
    journal.save(hard=hard, entries=entries)
    disk.kill()


def _others_tell(wires: Wires, standing: Standing, *names: NodeId) -> list[NodeId]:
    asked: list[NodeId] = []

    def tell(asker: NodeId, told: Callable[[Standing], None]) -> None:
        asked.append(asker)
        told(standing)

    for name in names:
        ControlDesk(wires.transport(name)).answer_with(tell)
    return asked


def test_a_disk_in_use_is_compared_with_the_others() -> None:
    """The disk may be an earlier copy, so the member continues from the answers of the others."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _in_use(disk, HardState(3, B), 1, 3)
    asked = _others_tell(wires, Standing(term=7, last=Floor(6, 40)), B, C)
    journal = _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert (journal.stored.hard, journal.stored.bar) == (HardState(7, A), Floor(6, 40))
    assert asked[:2] == [A, A], "the asked members have to know who asks"
    disk.lose_power()
    assert _open(disk).stored.hard == HardState(7, A)


def test_members_that_all_restart_tell_each_other_what_their_disks_have() -> None:
    """The one with the furthest log may stand; the others vote for it only."""
    wires, never = Wires(), threading.Event()
    disks = {name: SimDisk(random.Random(1)) for name in NAMES}
    for at, name in enumerate(NAMES):
        journal = _open(disks[name], name)
        journal.take_part(0, Floor())
        entries = [Entry(1 + one, 2, EntryKind.NOOP, 0, 0, b"") for one in range(at + 1)]
        journal.save(hard=HardState(2, C), entries=entries)
        disks[name].kill()
    desks = {name: ControlDesk(wires.transport(name)) for name in NAMES}
    with ThreadPoolExecutor(3) as pool:
        started = [pool.submit(_begin, disks[one], desks[one], one, never) for one in NAMES]
        bars = [one.result(60).stored.bar for one in started]
    assert max(bars) == Floor(2, 3)
    assert bars[0] == bars[1] == Floor(2, 3)


def test_a_majority_is_enough_after_the_grace() -> None:
    """A machine that does not come back must not keep the others down."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _in_use(disk, HardState(3, B), 3)
    _others_tell(wires, Standing(term=3, last=Floor(3, 2)), B)
    desk = ControlDesk(wires.transport(A))
    journal = _begin(disk, desk, A, threading.Event(), grace_ms=60)
    assert journal.stored.bar == Floor(3, 2)


def test_without_a_majority_it_waits_on() -> None:
    """Waiting costs nothing, because without a majority nothing could be decided."""
    disk, stopping = SimDisk(random.Random(1)), threading.Event()
    _in_use(disk, HardState(3, B), 3)
    with ThreadPoolExecutor(1) as pool:
        desk = ControlDesk(Wires().transport(A))
        started = pool.submit(_begin, disk, desk, A, stopping, grace_ms=0)
        with pytest.raises(TimeoutError):
            started.result(0.2)
        stopping.set()
        with pytest.raises(ShuttingDownError):
            started.result(60)


def test_a_folder_that_lost_all_but_the_note_rejoins() -> None:
    """Meta and journal are gone, the note is there: it asks all others, as one that was wiped."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _in_use(disk, HardState(3, B), 1, 3)
    for name in ("meta", "journal"):
        disk.files().remove(f"raft/{name}")
    _others_tell(wires, Standing(term=7, last=Floor(6, 40)), B, C)
    journal = _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert (journal.stored.hard, journal.stored.floor) == (HardState(8, A), Floor(6, 40))
    disk.lose_power()
    stored = _open(disk).stored
    assert (stored.hard, stored.floor) == (HardState(8, A), Floor(6, 40))


def test_making_the_files_anew_may_be_killed_anywhere() -> None:
    """After each kill the member either still counts as wiped, or takes part with its notes."""
    for operation in range(24):
        disk = SimDisk(random.Random(operation))
        _in_use(disk, HardState(3, B), 1, 3)
        for name in ("meta", "journal"):
            disk.files().remove(f"raft/{name}")
        disk.files().sync_folder("raft")
        disk.stop_after = operation
        with contextlib.suppress(PowerLostError):
            RaftJournal.remade(
                disk.files(), "raft", cluster="c", node=A, term=8, floor=Floor(6, 40)
            )
        disk.stop_after = None
        disk.lose_power()
        if not has_lost_all(disk.files(), "raft"):
            stored = _open(disk).stored
            assert (stored.hard, stored.floor) == (HardState(8, A), Floor(6, 40)), operation


def test_a_member_alone_whose_folder_is_gone_is_refused() -> None:
    """The controllers' note says that the folder was in use, so its content was lost."""
    disk = SimDisk(random.Random(1))
    with pytest.raises(MetadataCorruptError, match="was in use"):
        take_part(
            disk.files(),
            RaftConfig(members=(A,)),
            ControlDesk(Wires().transport(A)),
            cluster="c",
            me=A,
            clock=SystemClock(),
            stopping=threading.Event(),
            has_taken_part=True,
        )


def test_a_group_does_not_begin_anew_beside_a_note_of_it() -> None:
    """The folders of two of three are empty, and one of them says that it has taken part."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _others_tell(wires, Standing(fresh=True), B)
    _others_tell(wires, Standing(), C)
    desk = ControlDesk(wires.transport(A))
    with pytest.raises(ControllersLostError):
        _begin(disk, desk, A, threading.Event(), has_taken_part=True)


def _older_folder(disk: SimDisk) -> None:
    """Save something, make a copy, save more, and put the copy of the journal and meta back."""
    files = disk.files()
    promises = Promises(files)
    journal = RaftJournal(files, "raft", cluster="c", node=A, promises=promises)
    journal.take_part(0, Floor())
    journal.save(hard=HardState(1, A), entries=[Entry(1, 1, EntryKind.NOOP, 0, 0, b"")])
    copies = {name: disk.peek(f"raft/{name}") for name in ("meta", "journal")}
    journal.save(entries=[Entry(2, 1, EntryKind.NOOP, 0, 0, b"")])
    journal.close()
    for name, data in copies.items():
        write_whole(files, f"raft/{name}", [data])


def test_a_member_alone_whose_folder_is_of_an_earlier_moment_is_refused() -> None:
    """The promises beside the folder name an entry that the folder lacks."""
    disk = SimDisk(random.Random(1))
    _older_folder(disk)
    for _ in range(2):
        files = disk.files()
        with pytest.raises(MetadataCorruptError, match="older than the file promises"):
            take_part(
                files,
                RaftConfig(members=(A,)),
                ControlDesk(Wires().transport(A)),
                cluster="c",
                me=A,
                clock=SystemClock(),
                stopping=threading.Event(),
                promises=Promises(files),
            )


def test_a_folder_known_to_be_older_waits_for_all_others() -> None:
    """The grace does not apply, because entries are certainly lost. Afterwards it is noted anew."""
    wires, disk, stopping = Wires(), SimDisk(random.Random(1)), threading.Event()
    _older_folder(disk)
    standing = Standing(term=1, last=Floor(1, 2))
    _others_tell(wires, standing, B)
    desk = ControlDesk(wires.transport(A))
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(_begin, disk, desk, A, stopping, grace_ms=0, keeps_promises=True)
        with pytest.raises(TimeoutError):
            started.result(0.2)
        _others_tell(wires, standing, C)
        journal = started.result(60)
    assert journal.stored.bar == Floor(1, 2)
    journal.close()
    files = disk.files()
    again = RaftJournal(files, "raft", cluster="c", node=A, promises=Promises(files))
    assert not again.has_forgotten


def test_whatever_is_saved_is_noted_first() -> None:
    """Terms, entries and cuts: after a kill a folder with all noted values has lost nothing."""
    disk = SimDisk(random.Random(1))
    files = disk.files()
    promises = Promises(files)
    journal = RaftJournal(files, "raft", cluster="c", node=A, promises=promises)
    journal.take_part(0, Floor())
    journal.save(hard=HardState(3, B), entries=[Entry(1, 3, EntryKind.NOOP, 0, 0, b"")])
    journal.save(truncate=1, entries=[Entry(1, 4, EntryKind.NOOP, 0, 0, b"")])
    assert promises.noted("raft") == (3, 3)
    disk.kill()
    files = disk.files()
    found = RaftJournal(files, "raft", cluster="c", node=A, promises=Promises(files))
    assert not found.has_forgotten


def test_a_wiped_controller_of_a_changed_group_begins_as_an_observer() -> None:
    """Its disk gets a new number, with which an operator can make it a voter again."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    _others_tell(wires, Standing(term=7, last=Floor(6, 40), voters=(B, C)), B, C)
    journal = _begin(disk, ControlDesk(wires.transport(A)), A, threading.Event())
    assert journal.stored.hard == HardState()
    number = journal.stored.disk
    assert number > 0
    journal.close()
    disk.lose_power()
    assert _open(disk).stored.disk == number


def test_a_disk_with_a_number_that_lost_its_files_gets_another_number() -> None:
    """The voter with the old disk number is lost with that disk; no member has to be asked."""
    disk = SimDisk(random.Random(1))
    _open(disk).take_part(5, Floor(), 77)
    files = disk.files()
    for name in ("meta", "journal"):
        files.remove(f"raft/{name}")
    journal = _begin(disk, ControlDesk(Wires().transport(A)), A, threading.Event())
    assert journal.stored.disk not in (0, 77)
    assert journal.stored.hard.term == 5


def test_a_broker_beside_the_first_controllers_asks_once_its_disk_has_a_number() -> None:
    """A disk with a number may vote, and may be an old copy; one without a number asks nothing."""
    wires, disk = Wires(), SimDisk(random.Random(1))
    config = RaftConfig(members=(B, C, NodeId("d")), observers=(A,), restart_grace_ms=60_000)
    desk, never = ControlDesk(wires.transport(A)), threading.Event()

    def begin() -> RaftJournal:
        return take_part(
            disk.files(), config, desk, cluster="c", me=A, clock=SystemClock(), stopping=never
        )

    begin().save(disk=9)
    _others_tell(wires, Standing(term=7, last=Floor(6, 40)), B, C, NodeId("d"))
    journal = begin()
    assert (journal.stored.hard.term, journal.stored.bar) == (7, Floor(6, 40))
