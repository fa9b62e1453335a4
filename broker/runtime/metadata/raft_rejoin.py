"""How a controller that starts is let into the group, and how the others help it.

`ControlDesk` stands between the control transport and everybody else who uses it, because these
two messages are said when there is no member, no Raft and no broker epoch yet. `take_part` does
the asking, before Raft starts; what is to be concluded is in `broker/core/raft/rejoin.py` for an
empty disk, and in `compare.py` beside it for one that may have been put back to an earlier moment.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import structlog

from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.config import RaftConfig
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.core.raft.voters import standing_on_disk
from broker.errors import MetadataCorruptError, ShuttingDownError
from broker.model.control_messages import ControlMessage, MemberAsked, MemberTold
from broker.model.ids import BrokerId
from broker.model.raft import DISK_MAX, Floor, NodeId, Standing
from broker.ports.cluster import ControlTransport
from broker.ports.system import Clock, Files
from broker.storage.promises.promises import Promises
from broker.storage.raft.journal import RaftJournal, has_lost_all
from broker.storage.raft.member_note import noted_disk

_log = structlog.get_logger(__name__)

_LIFE_MAX: Final = (1 << 62) - 1  # the largest number that a control message takes
_ASK_AGAIN_S: Final = 0.03
_SAY_AFTER_MS: Final = 1_000
_SAY_AGAIN_MS: Final = 10_000
_LEAVE_OUT_AGAIN_MS: Final = 1_000
_ANOTHER_DISK: Final = "the controllers were changed, and this broker's vote is lost with its disk"
_REPLACE: Final = "headwater cluster controllers replace ID ID, if the old id is to vote again"

TellStanding = Callable[[NodeId, Callable[[Standing], None]], None]


class ControlDesk:
    """Implements ``ControlTransport`` over another one, and answers members itself. Any thread."""

    def __init__(self, transport: ControlTransport) -> None:
        """Begin to hear at once; until :meth:`answer_with`, a question is lost."""
        self._transport = transport
        self._life = random.SystemRandom().randint(1, _LIFE_MAX)
        self._deliver: Callable[[BrokerId, ControlMessage], None] | None = None
        self._tell: TellStanding = _tell_nothing
        self._closed = threading.Lock()
        self.told: queue.SimpleQueue[tuple[BrokerId, MemberTold]] | None = None
        transport.start(self._heard)

    def answer_with(self, tell: TellStanding) -> None:
        """From now on, a member that asks is told what ``tell`` hands over, on any thread.

        ``tell`` gets the asker, whose former process has ended, and what to call.
        """
        self._tell = tell

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """See ``ControlTransport.start``; until then everything but members' questions is lost."""
        self._deliver = deliver

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """See ``ControlTransport.send``."""
        self._transport.send(to, message)

    def close(self) -> None:
        """See ``ControlTransport.close``; more than once is once."""
        if self._closed.acquire(blocking=False):
            self._transport.close()

    def _heard(self, sender: BrokerId, message: ControlMessage) -> None:
        match message:
            case MemberAsked(request_id=request_id):
                self._tell(
                    NodeId(sender), lambda standing: self._answer(sender, request_id, standing)
                )
            case MemberTold():
                told = self.told
                if told is not None:
                    told.put((sender, message))
            case _:
                deliver = self._deliver
                if deliver is not None:
                    deliver(sender, message)

    def _answer(self, asker: BrokerId, request_id: int, standing: Standing) -> None:
        told = MemberTold(request_id=request_id, life=self._life, standing=standing)
        self._transport.send(asker, told)


def take_part(
    files: Files,
    config: RaftConfig,
    desk: ControlDesk,
    *,
    cluster: str,
    me: NodeId,
    clock: Clock,
    stopping: threading.Event,
    has_taken_part: bool = False,
    promises: Promises | None = None,
    folder: str = "raft",
) -> RaftJournal:
    """Return the opened journal once Raft may start on it: after the other voters were asked.

    ``has_taken_part``: something outside of the folder says that this member is not new, as
    ``promises`` may, which also say that the folder is of an earlier moment. With an
    empty folder it blocks for as long as one of the others does not answer; else for
    ``config.restart_grace_ms`` at most, and as long as there is no majority. An observer that was
    never asked for its disk has promised nothing that counts and asks nobody, nor does one alone.

    Raises:
        ControllersLostError: more disks are lost than the group survives.
        ShuttingDownError: ``stopping`` was set meanwhile.
        MetadataCorruptError: as opening the journal; or it is empty, and a member alone has nobody
            to ask what was in it.
        DiskFullError, LogFailedError: as opening the journal.
    """
    start = _Start(
        files,
        config,
        desk,
        cluster=cluster,
        me=me,
        clock=clock,
        stopping=stopping,
        folder=folder,
        promises=promises,
    )
    has_taken_part |= RaftJournal.is_noted(promises)
    is_first, others = me in config.members, len(config.members) + len(config.observers) > 1
    if others and has_lost_all(files, folder):
        if noted_disk(files, folder):
            return start.remake_as_another()
        if is_first:
            return start.remake()
    journal = RaftJournal(files, folder, cluster=cluster, node=me, promises=promises)
    try:
        votes = is_first or journal.stored.disk != 0
        voters = standing_on_disk(config.members, journal.stored).voters or config.members
        if votes and journal.has_forgotten and voters == (me,):
            raise _forgotten(folder)
        if is_first and journal.is_fresh:
            if has_taken_part and not others:
                raise MetadataCorruptError(
                    f"the folder {folder} holds nothing, and this broker has been in use: what it "
                    "held is lost. Nothing was changed. Bring it back from a copy of the whole "
                    "data directory",
                    path=folder,
                )
            if others:
                start.begin(journal, has_taken_part=has_taken_part)
        elif votes:
            start.go_on(journal)
    except BaseException:
        journal.close()
        raise
    return journal


def _forgotten(folder: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        f"the folder {folder} is of an earlier moment than what this broker has promised "
        "since, and no other controller knows what that was. Nothing was changed. Bring "
        "back the folder that was there, or a copy of the whole data directory",
        path=folder,
    )


class _Start:
    """How one member gets from its folder to a journal that Raft may start on."""

    def __init__(
        self,
        files: Files,
        config: RaftConfig,
        desk: ControlDesk,
        *,
        cluster: str,
        me: NodeId,
        clock: Clock,
        stopping: threading.Event,
        folder: str,
        promises: Promises | None,
    ) -> None:
        self._promises = promises
        self._files = files
        self._config = config
        self._desk = desk
        self._cluster = cluster
        self._me = me
        self._clock = clock
        self._stopping = stopping
        self._folder = folder

    def remake(self) -> RaftJournal:
        """Take part again: the folder's note says that this member has, and the rest is gone."""
        _log.error("raft_files_lost", folder=self._folder)
        found = self._rejoin(has_taken_part=True)
        return RaftJournal.remade(
            self._files,
            self._folder,
            cluster=self._cluster,
            node=self._me,
            term=found.term,
            floor=found.floor,
            disk=found.disk,
            promises=self._promises,
        )

    def remake_as_another(self) -> RaftJournal:
        """Begin anew as an observer: whoever votes under this id does so with a disk that is lost.

        It gets another number, by which an operator can make it a voter again.
        """
        _log.error("raft_files_lost", folder=self._folder)
        return RaftJournal.remade(
            self._files,
            self._folder,
            cluster=self._cluster,
            node=self._me,
            term=0,
            floor=Floor(),
            disk=random.SystemRandom().randint(1, DISK_MAX),
            promises=self._promises,
        )

    def begin(self, journal: RaftJournal, *, has_taken_part: bool) -> None:
        """Take part with an empty folder: new, or wiped."""
        found = self._rejoin(has_taken_part=has_taken_part)
        journal.take_part(found.term, found.floor, found.disk)

    def _rejoin(self, *, has_taken_part: bool) -> TakePart:
        self._desk.answer_with(_tell_fresh)
        rejoin = Rejoin(
            self._config,
            self._me,
            random=random.SystemRandom().randint,
            has_taken_part=has_taken_part,
        )
        asking: _Asking[TakePart] = _Asking(rejoin, self._desk, self._clock, self._stopping)
        found = asking.run(rejoin.told)
        if found.disk:
            _log.error("raft_begins_as_observer", reason=_ANOTHER_DISK, remedy=_REPLACE)
        if found.term:
            _log.warning(
                "raft_rejoins",
                term=found.term,
                floor_term=found.floor.term,
                floor_index=found.floor.index,
            )
        return found

    def go_on(self, journal: RaftJournal) -> None:
        """Take part with what is in the folder, which may be older than what was promised."""
        if not journal.has_member_file:  # it has taken part since before there was a note of it
            journal.take_part(0, Floor())
        if len(self._config.members) + len(self._config.observers) == 1:
            return
        stored = journal.stored
        standing = standing_on_disk(self._config.members, stored)
        self._desk.answer_with(lambda _asker, told: told(standing))
        dice = random.SystemRandom().randint
        compare = Compare(self._config, self._me, stored.hard, random=dice, own=standing)
        asking: _Asking[GoOn] = _Asking(compare, self._desk, self._clock, self._stopping)
        if journal.has_forgotten:  # known, so everybody has to answer
            _log.error("raft_folder_is_older", folder=self._folder)
        else:
            asking.leave_out_after(self._config.restart_grace_ms, compare.leave_out_silent)
        found = asking.run(compare.told)
        if found.silent:
            _log.warning(
                "raft_goes_on_without",
                silent=",".join(found.silent),
                waited_ms=self._config.restart_grace_ms,
                reason="what only they and this disk had is safe unless this disk was replaced",
            )
        if found.bar > standing.last or found.hard.term > stored.hard.term:
            _log.info(
                "raft_was_behind",
                term=found.hard.term,
                bar_term=found.bar.term,
                bar_index=found.bar.index,
            )
        journal.go_on(found.hard, found.bar)


class _Question(Protocol):
    """What is to be asked now; answers go where the asking was begun."""

    request_id: int
    behind: tuple[NodeId, ...]

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """Whom to ask."""


_Answer = TypeVar("_Answer")


class _Asking(Generic[_Answer]):
    """One round after another, until there is an answer. Owner: the thread that starts a broker."""

    def __init__(
        self, question: _Question, desk: ControlDesk, clock: Clock, stopping: threading.Event
    ) -> None:
        self._question = question
        self._desk = desk
        self._clock = clock
        self._stopping = stopping
        self._leave_out: Callable[[], _Answer | None] | None = None
        self._leave_out_ms = 0
        self._say_ms = clock.monotonic_ms() + _SAY_AFTER_MS
        self._said_ms = 0
        self._said: object = None

    def leave_out_after(self, grace_ms: int, leave_out: Callable[[], _Answer | None]) -> None:
        """Call ``leave_out`` after a while, and again and again, until it is the answer."""
        self._leave_out = leave_out
        self._leave_out_ms = self._clock.monotonic_ms() + grace_ms

    def run(self, take: Callable[[NodeId, int, int, Standing], _Answer | None]) -> _Answer:
        told = self._desk.told = queue.SimpleQueue()
        asked, ask_ms = 0, 0
        try:
            while not self._stopping.is_set():
                now_ms = self._clock.monotonic_ms()
                if self._leave_out is not None and now_ms >= self._leave_out_ms:
                    self._leave_out_ms = now_ms + _LEAVE_OUT_AGAIN_MS
                    found = self._leave_out()
                    if found is not None:
                        return found
                if asked != self._question.request_id or now_ms >= ask_ms:
                    asked, ask_ms = self._ask(), now_ms + int(_ASK_AGAIN_S * 1000)
                self._say(now_ms)
                try:
                    sender, message = told.get(timeout=_ASK_AGAIN_S)
                except queue.Empty:
                    continue
                found = take(NodeId(sender), message.request_id, message.life, message.standing)
                if found is not None:
                    return found
        finally:
            self._desk.told = None
        raise ShuttingDownError("stopped while it waited for the other controllers")

    def _ask(self) -> int:
        request_id = self._question.request_id
        for one in self._question.unanswered:
            self._desk.send(BrokerId(one), MemberAsked(request_id=request_id))
        return request_id

    def _say(self, now_ms: int) -> None:
        """Say who is waited for: after a while, when that changes, and now and then."""
        waits_for = (self._question.unanswered, self._question.behind)
        changed = waits_for != self._said and now_ms >= self._said_ms + _SAY_AFTER_MS
        if now_ms >= self._say_ms or (self._said_ms and changed):
            self._say_ms = now_ms + _SAY_AGAIN_MS
            self._said, self._said_ms = waits_for, now_ms
            _log.info(
                "waiting_for_members",
                unanswered=",".join(self._question.unanswered),
                behind=",".join(self._question.behind),
            )


def _tell_nothing(_asker: NodeId, told: Callable[[Standing], None]) -> None:
    """Whether the disk is empty is not known yet: who asked asks again."""


def _tell_fresh(_asker: NodeId, told: Callable[[Standing], None]) -> None:
    told(Standing(fresh=True))
