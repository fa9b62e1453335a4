"""The metadata log over Raft, for the threads of a process: one member of the group.

Implements ``MetadataLog``. A proposal may be made on any member. It is answered when that member
has applied it, so its caller sees the change in ``state``. A member alone needs no transport.
``RaftPump`` does the work. An exception in one of its turns ends it: callers get an error, and the
owner is told and ends the process. A full disk does not end it: proposals are refused until there
is room again.
"""

from __future__ import annotations

import contextlib
import random as chance
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final, TypeVar

import structlog

from broker.core.metadata.commands import Command, encode_new
from broker.core.metadata.outcome import CommandReply
from broker.core.metadata.state import MetadataState
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import Known, NewConsensus
from broker.core.raft.core import RaftCore
from broker.core.raft.events import Received, TransferLeadership
from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.raft import PAYLOAD_BYTES_MAX, GroupSeen, NodeId, Standing, VoterChanged
from broker.model.raft_messages import Message
from broker.ports.pumps import Drive
from broker.ports.system import Clock, Files
from broker.runtime.inbox import Mailbox
from broker.runtime.metadata.metadata_log import Answered, Subscriber
from broker.runtime.metadata.raft.applying import Applying
from broker.runtime.metadata.raft.machine import read_reply
from broker.runtime.metadata.raft.pump import INBOX_MAX, Asked, RaftPump, Subscribing
from broker.runtime.metadata.raft.saving import Saving
from broker.runtime.metadata.raft.transport import RaftTransport
from broker.runtime.metadata.raft.voters import ChangeAsked, GroupAsked
from broker.runtime.metadata.raft.waiting import Reader, StandingAsked, Waiter
from broker.runtime.pumps import on_threads
from broker.storage.raft.journal import RaftJournal

_log = structlog.get_logger(__name__)

_JOURNAL_BYTES_MAX: Final = 4 * 1024 * 1024  # above it a snapshot starts a new journal
_GRACE_S: Final = 5.0

_T = TypeVar("_T")


class RaftMetadataLog:
    """One member of the group. Any thread may call the public methods."""

    def __init__(
        self,
        files: Files,
        config: RaftConfig,
        *,
        cluster: str,
        me: NodeId,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        transport: RaftTransport | None = None,
        folder: str = "raft",
        journal_bytes_max: int = _JOURNAL_BYTES_MAX,
        new_core: NewConsensus = RaftCore,
        journal: RaftJournal | None = None,
        drive: Drive | None = None,
        random: Callable[[int, int], int] | None = None,
    ) -> None:
        """Open the journal, unless one is given, and start the pump. Blocks.

        Without ``drive`` the pump gets a thread; ``random(low, high)`` includes both ends.

        Raises:
            MetadataCorruptError: the journal is damaged; this member must not take part.
            DiskFullError, LogFailedError: the disk is full, or failed.
        """
        size = len(config.members) + len(config.observers)
        assert transport is not None or size == 1, "a group needs a transport"
        self._clock = clock
        self._transport = transport
        self._on_crash = on_crash
        random = random or chance.SystemRandom().randint
        journal = journal or RaftJournal(files, folder, cluster=cluster, node=me)
        self._core = new_core(config, me, journal.stored, random=random)
        self._applying = Applying(
            journal_bytes_max=journal_bytes_max, keep_entries=config.keep_entries
        )
        self._mailbox: Mailbox[Asked] = Mailbox(waiting_max=INBOX_MAX, wake=self._wake)
        self._pump = RaftPump(
            self._core,
            config,
            me,
            mailbox=self._mailbox,
            applying=self._applying,
            saving=Saving(files, journal),
            transport=transport,
            random=random,
        )
        drive = drive or on_threads(clock, self._crashed)
        self._driven = drive("raft", self._pump.turn)
        self._driven.start()
        if transport is not None:
            transport.start(self._deliver)

    # ------------------------------------------------------------------ what is known here

    @property
    def state(self) -> MetadataState:
        """The applied metadata of this member; other members may have applied more."""
        return self._applying.state

    @property
    def applied_index(self) -> int:
        """Index of the newest entry applied here."""
        return self._applying.index

    @property
    def office(self) -> int | None:
        """The term that this member leads, or None, as far as it knows. A barrier proves it."""
        return self._pump.office

    @property
    def leader(self) -> NodeId | None:
        """The leader, as far as this member knows. For display, never for decisions."""
        return self._core.member.leader

    @property
    def voters(self) -> tuple[str, ...]:
        """The brokers that vote on the metadata, by this member's log."""
        return tuple(sorted(self._core.member.voters))

    @property
    def known(self) -> Known:
        """This member's own state, for metrics."""
        return self._core.member

    @property
    def failure(self) -> HeadwaterError | None:
        """The error that ended this member; None while it runs."""
        return self._pump.failure

    # ------------------------------------------------------------------ what blocks

    def group(self, *, timeout_ms: int = 1_000) -> GroupSeen:
        """Return voters and observers, and their progress if this member leads."""
        future: Future[GroupSeen] = Future()
        return self._ask(GroupAsked(_into(future)), future, timeout_ms)

    def change_voter(self, node: NodeId, *, votes: bool, timeout_ms: int = 1_000) -> VoterChanged:
        """Take the next step of making a member a voter or an observer; repeat until done."""
        future: Future[VoterChanged] = Future()
        return self._ask(ChangeAsked(node, votes, _into(future)), future, timeout_ms)

    def propose(self, command: Command, *, timeout_ms: int = 10_000) -> CommandReply:
        """See ``MetadataLog.propose``.

        Raises:
            CommitTimeoutError: it may or may not have been, or still be, applied.
            HeadwaterError: the state machine rejected it, or it was not proposed.
        """
        future: Future[bytes] = Future()
        waiter = Waiter(_encoded(command), self._clock.monotonic_ms() + timeout_ms, _into(future))
        return read_reply(self._ask(waiter, future, timeout_ms))

    def barrier(self, *, timeout_ms: int = 10_000) -> int:
        """Wait until ``state`` has every command that was committed before this call.

        Raises:
            UnavailableError: no leader confirmed it in time.
        """
        future: Future[int] = Future()
        reader = Reader(self._clock.monotonic_ms() + timeout_ms, _into(future))
        return self._ask(reader, future, timeout_ms)

    def _ask(self, item: Asked, future: Future[_T], timeout_ms: int) -> _T:
        self._put(item)
        try:
            return future.result(timeout_ms / 1000 + _GRACE_S)
        except FutureTimeoutError as cause:
            raise UnavailableError("the metadata thread does not answer") from cause

    # ------------------------------------------------------------------ what does not block

    def propose_soon(
        self,
        command: Command,
        answered: Answered,
        *,
        timeout_ms: int = 10_000,
        office: int | None = None,
    ) -> None:
        """Propose without waiting; ``answered`` is called in a turn, with None when it is applied.

        With ``office`` the command is proposed only as the leader of that term. A controller's
        decision must not reach its successor, which may have decided the contrary meanwhile.

        Else ``answered`` gets an error of :meth:`propose`. It must be quick and must not raise. If
        the command cannot be queued, it is called at once on this thread.
        """

        def done(found: bytes | HeadwaterError) -> None:
            answered(found if isinstance(found, HeadwaterError) else _refusal_in(found))

        try:
            payload = _encoded(command)
        except InvalidRequestError as error:
            answered(error)
            return
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._ask_soon(Waiter(payload, deadline_ms, done, office=office), done)

    def barrier_soon(self, passed: Answered, *, timeout_ms: int = 1_000) -> None:
        """Begin a barrier; ``passed`` is called like ``answered`` of :meth:`propose_soon`."""

        def done(found: int | HeadwaterError) -> None:
            passed(found if isinstance(found, HeadwaterError) else None)

        self._ask_soon(Reader(self._clock.monotonic_ms() + timeout_ms, done), done)

    def _ask_soon(self, item: Asked, done: Callable[[HeadwaterError], None]) -> None:
        try:
            self._put(item)
        except HeadwaterError as error:
            done(error)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(index, state)`` in a turn after every change; it must be quick.

        Several changes may be reported by one call with the newest state.
        """
        self._put(Subscribing(subscriber))

    def tell_standing(self, asker: NodeId, told: Callable[[Standing], None]) -> None:
        """Call ``told`` in a turn with this member's standing, between two steps.

        ``asker`` is a new process of a member: acknowledgements of its former process are void.

        The question is dropped if the mailbox is full or the pump has ended; the asker repeats it.
        """
        with contextlib.suppress(HeadwaterError):
            self._put(StandingAsked(asker, told))

    def transfer_leadership(self, target: NodeId) -> None:
        """If this member leads, hand the leadership to ``target``."""
        self._put(TransferLeadership(target))

    def close(self) -> None:
        """End the pump and the connections; waiting callers get an error. Blocks."""
        if self._transport is not None:
            self._transport.close()
        self._driven.stop()
        self._pump.end(self._pump.failure or ShuttingDownError("the metadata log is closed"))

    # ------------------------------------------------------------------ to the pump and back

    def _wake(self) -> None:
        self._driven.wake()

    def _put(self, item: Asked) -> None:
        failure = self._pump.failure
        if failure is not None:
            raise failure
        if not self._mailbox.put(item):
            raise self._pump.failure or OverloadedError("the metadata thread has too much to do")

    def _deliver(self, sender: NodeId, message: Message) -> None:
        if not self._mailbox.put(Received(sender, message)) and not self._mailbox.is_closed:
            _log.warning("raft_message_dropped", sender=sender)  # Raft bears lost messages

    def _crashed(self, crash: BaseException) -> None:
        """Handle the end of the pump: tell the owner first, then the waiting callers."""
        failure = self._pump.failure
        assert failure is not None, "a turn that raised has set the failure"
        try:
            self._on_crash(crash)
        finally:
            self._pump.end(failure)


def _encoded(command: Command) -> bytes:
    """Return the encoded command. Raises InvalidRequestError if it is too large."""
    payload = encode_new(command)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidRequestError(
            f"a metadata command of {len(payload)} bytes is too large",
            size_bytes=len(payload),
            limit_bytes=PAYLOAD_BYTES_MAX,
        )
    return payload


def _into(future: Future[_T]) -> Callable[[_T | HeadwaterError], None]:
    """Return a function that puts its argument into a future."""

    def answered(found: _T | HeadwaterError) -> None:
        if isinstance(found, HeadwaterError):
            future.set_exception(found)
        else:
            future.set_result(found)

    return answered


def _refusal_in(reply: bytes) -> HeadwaterError | None:
    try:
        read_reply(reply)
    except HeadwaterError as error:
        return error
    return None
