"""How a starting controller joins its Raft group, and how the other controllers answer it.

`ControlDesk` wraps the control transport and handles two messages itself, because they are sent
when there is no member, no Raft and no broker epoch yet. `TakingPart` is the pump that asks before
Raft starts. The decisions are in `broker/core/raft/rejoin.py` for an empty disk, and in
`compare.py` beside it for a disk that may be an older copy. `take_part` runs that pump on its
caller's thread.
"""

from __future__ import annotations

import random as chance
import threading
from collections import deque
from collections.abc import Callable, Sequence
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
from broker.ports.pumps import NEVER_MS, PumpTurn
from broker.ports.system import Clock, Files
from broker.runtime.pumps import wait_for_answer
from broker.storage.promises.promises import PROMISES_NAME, Promises
from broker.storage.raft.journal import RaftJournal, has_lost_all
from broker.storage.raft.member_note import noted_disk

_log = structlog.get_logger(__name__)

_LIFE_MAX: Final = (1 << 62) - 1  # the largest number that a control message takes
_ASK_AGAIN_MS: Final = 30
_SAY_AFTER_MS: Final = 1_000
_SAY_AGAIN_MS: Final = 10_000
_LEAVE_OUT_AGAIN_MS: Final = 1_000
_ANOTHER_DISK: Final = "the controllers were changed, and this broker's vote is lost with its disk"
_REPLACE: Final = "headwater cluster controllers replace ID ID, if the old id is to vote again"

TellStanding = Callable[[NodeId, Callable[[Standing], None]], None]
Random = Callable[[int, int], int]  # (low, high), both ends included


class ControlDesk:
    """Wraps a ``ControlTransport``, and answers the questions of starting members. Any thread."""

    def __init__(
        self,
        transport: ControlTransport,
        *,
        random: Random | None = None,
        on_waiting: Callable[[Sequence[NodeId]], None] = lambda _silent: None,
    ) -> None:
        """Begin to receive at once; questions are dropped until :meth:`answer_with`.

        ``on_waiting`` is told now and then which voters this member's own question waits for; none
        when it is answered.
        """
        self._transport = transport
        self.on_waiting = on_waiting
        self._life = (random or _system_random())(1, _LIFE_MAX)
        self._deliver: Callable[[BrokerId, ControlMessage], None] | None = None
        self._tell: TellStanding = _tell_nothing
        self._closed = threading.Lock()
        # Takes the answers to this member's own question, on any thread.
        self.told: Callable[[BrokerId, MemberTold], None] | None = None
        transport.start(self._heard)

    def answer_with(self, tell: TellStanding) -> None:
        """Answer starting members by ``tell`` from now on, on any thread.

        ``tell`` gets the asker, whose former process has ended, and a function that takes the
        answer.
        """
        self._tell = tell

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """See ``ControlTransport.start``; before it, all but members' messages are dropped."""
        self._deliver = deliver

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """See ``ControlTransport.send``."""
        self._transport.send(to, message)

    def close(self) -> None:
        """See ``ControlTransport.close``; a second call does nothing."""
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
                    told(sender, message)
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
    """Ask the other voters, then return the opened journal on which Raft may start.

    See :class:`TakingPart`. Blocks; ``stopping`` ends it with ShuttingDownError.
    """

    def begin(wake: Callable[[], None], answered: Callable[[RaftJournal], None]) -> PumpTurn:
        return TakingPart(
            files,
            config,
            desk,
            cluster=cluster,
            me=me,
            stop_asked=stopping.is_set,
            wake=wake,
            answered=answered,
            has_taken_part=has_taken_part,
            promises=promises,
            folder=folder,
        ).turn

    return wait_for_answer(clock, begin)


class TakingPart:
    """The pump that turns one member's folder into a journal on which Raft may start.

    With an empty folder it waits until every other voter answers. Else it waits until a majority
    answers, and for the other voters ``config.restart_grace_ms`` at most. A member alone asks
    no voter, and neither does an observer without a disk number: none of its promises count.
    """

    def __init__(
        self,
        files: Files,
        config: RaftConfig,
        desk: ControlDesk,
        *,
        cluster: str,
        me: NodeId,
        stop_asked: Callable[[], bool],
        wake: Callable[[], None],
        answered: Callable[[RaftJournal], None],
        has_taken_part: bool = False,
        promises: Promises | None = None,
        folder: str = "raft",
        random: Random | None = None,
    ) -> None:
        """Prepare; ``wake`` is called when a turn is due.

        ``has_taken_part``: something outside of the folder, such as ``promises``, shows that this
        member is not new. ``promises`` also show if the folder is an older copy.
        """
        self._files = files
        self._config = config
        self._desk = desk
        self._cluster = cluster
        self._me = me
        self._stop_asked = stop_asked
        self._wake = wake
        self._answered = answered
        self._has_taken_part = has_taken_part or RaftJournal.is_noted(promises)
        self._promises = promises
        self._folder = folder
        self._random = random or _system_random()
        self._journal: RaftJournal | None = None
        self._asks: PumpTurn | None = None
        self._is_begun = False

    def turn(self, now_ms: int) -> int:
        """Begin, or continue to ask; return when the next turn is due.

        Raises:
            ControllersLostError: more disks were lost than the group can survive.
            ShuttingDownError: it was asked to stop while it waited for answers.
            MetadataCorruptError: the journal is damaged; or it is empty, and a member alone cannot
                ask another voter for its content.
            DiskFullError, LogFailedError: the disk is full, or failed.
        """
        try:
            if not self._is_begun:
                self._is_begun = True
                self._begin(now_ms)
            if self._asks is None:
                return NEVER_MS
            if self._stop_asked():
                raise ShuttingDownError("stopped while it waited for the other controllers")
            return self._asks(now_ms)
        except BaseException:
            self._desk.told = None
            if self._journal is not None:
                self._journal.close()
            raise

    def _begin(self, now_ms: int) -> None:
        config, me, folder = self._config, self._me, self._folder
        is_first, others = me in config.members, len(config.members) + len(config.observers) > 1
        if others and has_lost_all(self._files, folder):
            if noted_disk(self._files, folder):
                self._remake_as_another()
                return
            if is_first:
                _log.error("raft_files_lost", folder=folder)
                self._rejoin(now_ms, self._remake, has_taken_part=True)
                return
        self._journal = journal = RaftJournal(
            self._files, folder, cluster=self._cluster, node=me, promises=self._promises
        )
        votes = is_first or journal.stored.disk != 0
        voters = standing_on_disk(config.members, journal.stored).voters or config.members
        if votes and journal.has_forgotten and voters == (me,):
            raise _forgotten(folder)
        if is_first and journal.is_fresh:
            if self._has_taken_part and not others:
                raise _empty(folder)
            if others:
                self._rejoin(now_ms, self._note, has_taken_part=self._has_taken_part)
                return
        elif votes:
            self._compare(now_ms, journal)
            return
        self._end(journal)

    def _end(self, journal: RaftJournal) -> None:
        self._asks = None
        self._desk.told = None
        self._desk.on_waiting(())
        self._answered(journal)

    # ------------------------------------------------------------------ with an empty disk

    def _rejoin(
        self, now_ms: int, then: Callable[[TakePart], None], *, has_taken_part: bool
    ) -> None:
        """Ask all other voters, and decide by their answers how to join."""
        self._desk.answer_with(_tell_fresh)
        rejoin = Rejoin(self._config, self._me, random=self._random, has_taken_part=has_taken_part)

        def found(how: TakePart) -> None:
            if how.disk:
                _log.error("raft_begins_as_observer", reason=_ANOTHER_DISK, remedy=_REPLACE)
            if how.term:
                _log.warning(
                    "raft_rejoins",
                    term=how.term,
                    floor_term=how.floor.term,
                    floor_index=how.floor.index,
                )
            then(how)

        asking = _Asking(
            rejoin, self._desk, rejoin.told, wake=self._wake, found=found, now_ms=now_ms
        )
        self._asks = asking.turn

    def _note(self, how: TakePart) -> None:
        """Join with an empty folder, as a new or a wiped member."""
        assert self._journal is not None, "opened before the question was sent"
        self._journal.take_part(how.term, how.floor, how.disk)
        self._end(self._journal)

    def _remake(self, how: TakePart) -> None:
        """Join again: the folder has the note of a member, and its other files are lost."""
        self._end(self._remade(how))

    def _remake_as_another(self) -> None:
        """Begin as an observer: the disk that votes under this id is lost.

        The new disk gets another number, with which an operator can make it a voter again.
        """
        _log.error("raft_files_lost", folder=self._folder)
        self._end(self._remade(TakePart(disk=self._random(1, DISK_MAX))))

    def _remade(self, how: TakePart) -> RaftJournal:
        return RaftJournal.remade(
            self._files,
            self._folder,
            cluster=self._cluster,
            node=self._me,
            term=how.term,
            floor=how.floor,
            disk=how.disk,
            promises=self._promises,
        )

    # ------------------------------------------------------------------ with a disk in use

    def _compare(self, now_ms: int, journal: RaftJournal) -> None:
        """Join with the content of the folder, which may be an older copy."""
        if not journal.has_member_file:  # it joined under a release without the member file
            journal.take_part(0, Floor())
        if len(self._config.members) + len(self._config.observers) == 1:
            self._end(journal)
            return
        stored = journal.stored
        standing = standing_on_disk(self._config.members, stored)
        self._desk.answer_with(lambda _asker, told: told(standing))
        compare = Compare(self._config, self._me, stored.hard, random=self._random, own=standing)

        def found(how: GoOn) -> None:
            if how.silent:
                _log.warning(
                    "raft_goes_on_without",
                    silent=",".join(how.silent),
                    waited_ms=self._config.restart_grace_ms,
                    reason="what only they and this disk had is safe unless this disk was replaced",
                )
            if how.bar > standing.last or how.hard.term > stored.hard.term:
                _log.info(
                    "raft_was_behind",
                    term=how.hard.term,
                    bar_term=how.bar.term,
                    bar_index=how.bar.index,
                )
            journal.go_on(how.hard, how.bar)
            self._end(journal)

        asking = _Asking(
            compare, self._desk, compare.told, wake=self._wake, found=found, now_ms=now_ms
        )
        if journal.has_forgotten:  # a known loss, so every voter has to answer
            _log.error("raft_folder_is_older", folder=self._folder)
        else:
            asking.leave_out_at(now_ms + self._config.restart_grace_ms, compare.leave_out_silent)
        self._asks = asking.turn


def _forgotten(folder: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        f"the metadata in {folder} is older than the file {PROMISES_NAME} says, and there is no "
        "other controller that has the rest: an older copy was put back. Nothing was changed. "
        "Put the newest copy of the folder back, or restore a copy of the whole data directory",
        path=folder,
    )


def _empty(folder: str) -> MetadataCorruptError:
    return MetadataCorruptError(
        f"the metadata folder {folder} is empty, and this data directory was in use: the metadata "
        "is lost. Nothing was changed. Restore a copy of the whole data directory",
        path=folder,
    )


class _Question(Protocol):
    """A question to the other voters, and the answers so far."""

    request_id: int
    behind: tuple[NodeId, ...]

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """The voters to ask."""


_Answer = TypeVar("_Answer")


class _Asking(Generic[_Answer]):
    """Asks round after round until there is a result. Owner: the pump; any thread answers."""

    def __init__(
        self,
        question: _Question,
        desk: ControlDesk,
        take: Callable[[NodeId, int, int, Standing], _Answer | None],
        *,
        wake: Callable[[], None],
        found: Callable[[_Answer], None],
        now_ms: int,
    ) -> None:
        self._question = question
        self._desk = desk
        self._take = take
        self._wake = wake
        self._found = found
        self._told: deque[tuple[BrokerId, MemberTold]] = deque()
        self._asked, self._ask_ms = 0, now_ms
        self._leave_out: Callable[[], _Answer | None] | None = None
        self._leave_out_ms = NEVER_MS
        self._say_ms = now_ms + _SAY_AFTER_MS
        self._said_ms = 0
        self._said: object = None
        desk.told = self._hear

    def leave_out_at(self, at_ms: int, leave_out: Callable[[], _Answer | None]) -> None:
        """Call ``leave_out`` at that time, and repeatedly after it, until it returns a result."""
        self._leave_out = leave_out
        self._leave_out_ms = at_ms

    def _hear(self, sender: BrokerId, message: MemberTold) -> None:
        self._told.append((sender, message))
        self._wake()

    def turn(self, now_ms: int) -> int:
        """Take the received answers; ask the voters that have not answered."""
        found = self._answer(now_ms)
        if found is not None:
            self._found(found)
            return NEVER_MS
        if self._asked != self._question.request_id or now_ms >= self._ask_ms:
            self._asked, self._ask_ms = self._ask(), now_ms + _ASK_AGAIN_MS
        self._say(now_ms)
        return min(self._ask_ms, self._leave_out_ms)

    def _answer(self, now_ms: int) -> _Answer | None:
        if self._leave_out is not None and now_ms >= self._leave_out_ms:
            self._leave_out_ms = now_ms + _LEAVE_OUT_AGAIN_MS
            found = self._leave_out()
            if found is not None:
                return found
        while self._told:
            sender, message = self._told.popleft()
            found = self._take(NodeId(sender), message.request_id, message.life, message.standing)
            if found is not None:
                return found
        return None

    def _ask(self) -> int:
        request_id = self._question.request_id
        for one in self._question.unanswered:
            self._desk.send(BrokerId(one), MemberAsked(request_id=request_id))
        return request_id

    def _say(self, now_ms: int) -> None:
        """Log the silent voters: after a while, when they change, and at intervals."""
        waits_for = (self._question.unanswered, self._question.behind)
        changed = waits_for != self._said and now_ms >= self._said_ms + _SAY_AFTER_MS
        if now_ms >= self._say_ms or (self._said_ms and changed):
            self._say_ms = now_ms + _SAY_AGAIN_MS
            self._said, self._said_ms = waits_for, now_ms
            self._desk.on_waiting((*self._question.unanswered, *self._question.behind))
            _log.info(
                "waiting_for_members",
                unanswered=",".join(self._question.unanswered),
                behind=",".join(self._question.behind),
            )


def _tell_nothing(_asker: NodeId, told: Callable[[Standing], None]) -> None:
    """Send no answer: this disk's state is not known yet, and the asker repeats."""


def _tell_fresh(_asker: NodeId, told: Callable[[Standing], None]) -> None:
    told(Standing(fresh=True))


def _system_random() -> Random:
    return chance.SystemRandom().randint
