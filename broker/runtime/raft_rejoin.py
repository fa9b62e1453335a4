"""How a controller with an empty disk is let into the group, and how the others help it.

`ControlDesk` stands between the control transport and everybody else who uses it, because these
two messages are said when there is no member, no Raft and no broker epoch yet. `take_part` does
the asking, before Raft starts; what is to be concluded is in `broker/core/raft/rejoin.py`.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from typing import Final

import structlog

from broker.cluster_ports import ControlTransport
from broker.core.raft.config import RaftConfig
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.errors import ShuttingDownError
from broker.model.control_messages import ControlMessage, MemberAsked, MemberTold
from broker.model.ids import BrokerId
from broker.model.raft import NodeId, Standing
from broker.ports import Clock, Files
from broker.storage.raft_journal import RaftJournal

_log = structlog.get_logger(__name__)

_LIFE_MAX: Final = (1 << 62) - 1  # the largest number that a control message takes
_ASK_AGAIN_S: Final = 0.03
_SAY_AFTER_MS: Final = 1_000
_SAY_AGAIN_MS: Final = 10_000

TellStanding = Callable[[Callable[[Standing], None]], None]


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
        """From now on, a member that asks is told what ``tell`` hands over, on any thread."""
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
                self._tell(lambda standing: self._answer(sender, request_id, standing))
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
    folder: str = "raft",
) -> None:
    """Return once Raft may start on the folder; with an empty one, after all members were asked.

    An observer may start at once: it has never promised anything that counts.

    Blocks, for as long as one of them does not answer.

    Raises:
        ControllersLostError: more disks are lost than the group survives.
        ShuttingDownError: ``stopping`` was set meanwhile.
        MetadataCorruptError, DiskFullError, LogFailedError: as opening the journal.
    """
    alone = len(config.members) == 1 and not config.observers
    if alone or me in config.observers or files.exists(f"{folder}/member"):
        return
    journal = RaftJournal(files, folder, cluster=cluster, node=me)
    try:
        if journal.is_fresh:
            desk.answer_with(_tell_fresh)
            found = _Asking(config, me, desk, clock, stopping).run()
            if found.term:
                _log.warning(
                    "raft_rejoins",
                    term=found.term,
                    floor_term=found.floor.term,
                    floor_index=found.floor.index,
                )
        else:
            found = TakePart()  # it has taken part since before there was a note of it
        journal.take_part(found.term, found.floor)
    finally:
        journal.close()


class _Asking:
    """One round after another, until there is an answer. Owner: the thread that starts a broker."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        desk: ControlDesk,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        self._rejoin = Rejoin(config, me, random=random.SystemRandom().randint)
        self._desk = desk
        self._clock = clock
        self._stopping = stopping
        self._say_ms = clock.monotonic_ms() + _SAY_AFTER_MS
        self._said_ms = 0
        self._said: object = None

    def run(self) -> TakePart:
        told = self._desk.told = queue.SimpleQueue()
        asked, ask_ms = 0, 0
        try:
            while not self._stopping.is_set():
                now_ms = self._clock.monotonic_ms()
                if asked != self._rejoin.request_id or now_ms >= ask_ms:
                    asked, ask_ms = self._ask(), now_ms + int(_ASK_AGAIN_S * 1000)
                self._say(now_ms)
                try:
                    sender, message = told.get(timeout=_ASK_AGAIN_S)
                except queue.Empty:
                    continue
                found = self._rejoin.told(
                    NodeId(sender), message.request_id, message.life, message.standing
                )
                if found is not None:
                    return found
        finally:
            self._desk.told = None
        raise ShuttingDownError("stopped while it waited for the other controllers")

    def _ask(self) -> int:
        request_id = self._rejoin.request_id
        for one in self._rejoin.unanswered:
            self._desk.send(BrokerId(one), MemberAsked(request_id=request_id))
        return request_id

    def _say(self, now_ms: int) -> None:
        """Say who is waited for: after a while, when that changes, and now and then."""
        waits_for = (self._rejoin.unanswered, self._rejoin.behind)
        changed = waits_for != self._said and now_ms >= self._said_ms + _SAY_AFTER_MS
        if now_ms >= self._say_ms or (self._said_ms and changed):
            self._say_ms = now_ms + _SAY_AGAIN_MS
            self._said, self._said_ms = waits_for, now_ms
            _log.info(
                "waiting_for_members",
                unanswered=",".join(self._rejoin.unanswered),
                behind=",".join(self._rejoin.behind),
            )


def _tell_nothing(told: Callable[[Standing], None]) -> None:
    """Whether the disk is empty is not known yet: who asked asks again."""


def _tell_fresh(told: Callable[[Standing], None]) -> None:
    told(Standing(fresh=True))
