"""The metadata log of a cluster: one thread that drives a Raft member and carries out its effects.

Implements ``MetadataLog``. A proposal may be made on any member; it is answered once it is applied
on that very member, so its caller sees it in ``state``. A member alone needs no transport. Whatever
goes wrong inside the thread ends it: callers get an error, and the owner hears of the crash and
ends the process. A full disk does not: proposals are refused until there is room again.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, Final

import structlog

from broker.core.metadata.commands import decode
from broker.core.metadata.state import MetadataState
from broker.core.raft.applier import Applier
from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import Known, NewConsensus
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Apply,
    Barrier,
    BarrierFailed,
    BarrierPassed,
    Diverged,
    Effect,
    FloorReached,
    MemberAsks,
    Propose,
    Received,
    Refusal,
    Refused,
    Restore,
    RoleChanged,
    Save,
    Saved,
    Send,
    SnapshotMade,
    StateHashed,
    Tick,
    TransferLeadership,
    VotersChanged,
    VotersKept,
)
from broker.core.raft.member import Role
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    InvalidRequestError,
    LogFailedError,
    MetadataCorruptError,
    OverloadedError,
    ShuttingDownError,
    UnavailableError,
)
from broker.model.raft import (
    ENTRY_OVERHEAD,
    PAYLOAD_BYTES_MAX,
    U64_MAX,
    Entry,
    GroupSeen,
    NodeId,
    Standing,
    VoterChanged,
)
from broker.model.raft_messages import Forward, Message
from broker.ports.system import Clock, Files
from broker.runtime.metadata.raft_machine import MetadataMachine, read_reply
from broker.runtime.metadata.raft_transport import RaftTransport
from broker.runtime.metadata.raft_voters import ChangeAsked, GroupAsked, VoterDesk
from broker.runtime.metadata.raft_waiting import NEVER, Reader, StandingAsked, Waiter, Waiting
from broker.storage.raft.journal import RaftJournal

_log = structlog.get_logger(__name__)

_INBOX_MAX: Final = 20_000
_BATCH_MAX: Final = 512
_FORWARD_RETRY_MS: Final = 1000
_SOON_MS: Final = 50
_CHECKPOINT_MS: Final = 1000
_HASH_EVERY: Final = 256
_JOURNAL_BYTES_MAX: Final = 4 * 1024 * 1024  # then a snapshot starts a new journal
_JOURNAL_BYTES_LARGE: Final = 64 * 1024 * 1024  # then at once: an opener reads 256 MiB
_SNAPSHOT_AGAIN_MS: Final = 10_000  # after one that a full disk had no room for
_GRACE_S: Final = 5.0

Subscriber = Callable[[int, MetadataState], None]


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
    ) -> None:
        """Open the journal, unless it is handed over, and start the thread. Blocks.

        Raises:
            MetadataCorruptError: the journal is damaged; this member must not take part.
            DiskFullError, LogFailedError: the disk.
        """
        size = len(config.members) + len(config.observers)
        assert transport is not None or size == 1, "a group needs a transport"
        self._clock = clock
        self._config = config
        self._transport = transport
        self._on_crash = on_crash
        self._journal_bytes_max = journal_bytes_max
        self._files = files
        self._journal = journal or RaftJournal(files, folder, cluster=cluster, node=me)
        self._machine = MetadataMachine()
        self._applier = Applier(self._machine)
        dice = random.SystemRandom()
        self._core = new_core(config, me, self._journal.stored, random=dice.randint)
        self._voters = VoterDesk(config, me, self._core)
        self._waiting = Waiting(lambda: dice.randint(1, U64_MAX))
        self._readers: dict[int, Reader] = {}
        self._reader_number = 0
        self._saves: deque[Save] = deque()
        self._full_until_ms = 0
        self._checkpoint_ms = 0
        self._snapshot_index = 0
        self._snapshot_not_before_ms = 0
        self._subscribers: list[Subscriber] = []
        self._failure: HeadwaterError | None = None
        self._office: int | None = None
        self._inbox: queue.Queue[Any] = queue.Queue(_INBOX_MAX)
        self._thread = threading.Thread(target=self._main, name="raft", daemon=True)
        self._thread.start()
        if transport is not None:
            transport.start(self._deliver)

    # ------------------------------------------------------------------ any thread

    @property
    def state(self) -> MetadataState:
        """What is applied on this member; another member, or the next moment, may know more."""
        return self._machine.state

    @property
    def applied_index(self) -> int:
        """Index of the newest entry applied here."""
        return self._applier.index

    @property
    def office(self) -> int | None:
        """The term in which this member leads, as far as it knows; a barrier proves it."""
        return self._office

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this member knows: for operators, never for decisions."""
        return self._core.member.leader

    @property
    def voters(self) -> tuple[str, ...]:
        """Which brokers vote on the metadata, as this member's log has it."""
        return tuple(sorted(self._core.member.voters))

    def group(self, *, timeout_ms: int = 1_000) -> GroupSeen:
        """Return who votes and who watches, and how far they are if this member leads."""
        asked = GroupAsked()
        found: GroupSeen = self._ask(asked, asked.done, timeout_ms)
        return found

    def change_voter(self, node: NodeId, *, votes: bool, timeout_ms: int = 1_000) -> VoterChanged:
        """Go on with making a member vote, or watch only; ask again until it is done."""
        asked = ChangeAsked(node, votes)
        found: VoterChanged = self._ask(asked, asked.done, timeout_ms)
        return found

    @property
    def known(self) -> Known:
        """What this member knows of itself, for metrics."""
        return self._core.member

    @property
    def failure(self) -> HeadwaterError | None:
        """Why this member takes nothing any more, if it has ended."""
        return self._failure

    def propose(self, command: bytes, *, timeout_ms: int = 10_000) -> Mapping[str, Any]:
        """See ``MetadataLog.propose``.

        Raises:
            CommitTimeoutError: it may or may not have been, or still be, applied.
            HeadwaterError: what the state machine rejected, or why nothing was tried.
        """
        if len(command) > PAYLOAD_BYTES_MAX:
            raise InvalidRequestError(
                f"a metadata command of {len(command)} bytes is too large",
                size_bytes=len(command),
                limit_bytes=PAYLOAD_BYTES_MAX,
            )
        decode(command)
        waiter = Waiter(command, self._clock.monotonic_ms() + timeout_ms)
        return read_reply(self._ask(waiter, waiter.done, timeout_ms))

    def propose_soon(
        self,
        command: bytes,
        answered: Callable[[HeadwaterError | None], None],
        *,
        timeout_ms: int = 10_000,
        office: int | None = None,
    ) -> None:
        """Propose without waiting; ``answered`` hears on the Raft thread: None once it is applied.

        With ``office`` only as the leader of that term. What a controller decided must not be
        handed to its successor, who may have promised the contrary meanwhile.

        Errors are those of :meth:`propose`. It must be quick, must not raise, and hears at once,
        on this thread, what could not even be queued.
        """
        waiter = Waiter(command, self._clock.monotonic_ms() + timeout_ms, office=office)

        def done(outcome: Future[bytes]) -> None:
            try:
                read_reply(outcome.result())
            except HeadwaterError as error:
                answered(error)
            else:
                answered(None)

        self._ask_soon(waiter, waiter.done, done)

    def barrier_soon(
        self, passed: Callable[[HeadwaterError | None], None], *, timeout_ms: int = 1_000
    ) -> None:
        """Begin a barrier; ``passed`` hears as in :meth:`propose_soon`."""
        reader = Reader(self._clock.monotonic_ms() + timeout_ms, retry_ms=0)

        def done(outcome: Future[int]) -> None:
            error = outcome.exception()
            assert error is None or isinstance(error, HeadwaterError), "only our own errors are set"
            passed(error)

        self._ask_soon(reader, reader.done, done)

    def _ask_soon(
        self, item: Any, future: Future[Any], done: Callable[[Future[Any]], None]
    ) -> None:
        future.add_done_callback(done)
        try:
            self._put(item)
        except HeadwaterError as error:
            if not future.done():
                future.set_exception(error)

    def barrier(self, *, timeout_ms: int = 10_000) -> int:
        """Return once everything that was committed before this call is in ``state``.

        Raises:
            UnavailableError: no leader could confirm that in time.
        """
        reader = Reader(self._clock.monotonic_ms() + timeout_ms, retry_ms=0)
        index: int = self._ask(reader, reader.done, timeout_ms)
        return index

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber(index, state)`` after every change, on the Raft thread: be quick.

        Changes may be reported together, the newest state once; none is left out for ever.
        """
        self._put(subscriber)

    def tell_standing(self, asker: NodeId, told: Callable[[Standing], None]) -> None:
        """Call ``told`` on the Raft thread with how far this member is, between two steps.

        ``asker`` is a new process of that member: what its former one acknowledged counts no more.

        A question that finds no room in the queue, or no thread, is lost; who asked asks again.
        """
        with contextlib.suppress(HeadwaterError):
            self._put(StandingAsked(asker, told))

    def transfer_leadership(self, target: NodeId) -> None:
        """Ask the leader, if this member is it, to hand over."""
        self._put(TransferLeadership(target))

    def close(self) -> None:
        """End the thread and the connections; waiting callers get an error. Blocks."""
        if self._transport is not None:
            self._transport.close()
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    def _ask(self, item: Any, done: Future[Any], timeout_ms: int) -> Any:
        self._put(item)
        try:
            return done.result(timeout_ms / 1000 + _GRACE_S)
        except FutureTimeoutError as cause:
            raise UnavailableError("the metadata thread does not answer") from cause

    def _put(self, item: Any) -> None:
        self._refuse_if_ended()
        try:
            self._inbox.put_nowait(item)
        except queue.Full as cause:
            raise OverloadedError("the metadata thread has too much to do") from cause
        self._refuse_if_ended()  # it may have ended before it could see this

    def _refuse_if_ended(self) -> None:
        failure = self._failure
        if failure is not None:
            raise failure

    def _deliver(self, sender: NodeId, message: Message) -> None:
        try:
            self._inbox.put_nowait(Received(sender, message))
        except queue.Full:
            _log.warning("raft_message_dropped", sender=sender)  # as a network would

    # ------------------------------------------------------------------ the thread

    def _main(self) -> None:
        try:
            self._run()
            self._failure = ShuttingDownError("the metadata log is closed")
        except BaseException as crash:  # noqa: BLE001 - handed over: the owner ends the process
            self._failure = (
                crash if isinstance(crash, HeadwaterError) else LogFailedError(f"Raft: {crash!r}")
            )
            self._on_crash(crash)
        finally:
            self._journal.close()
            assert self._failure is not None
            self._fail_waiting(self._failure)

    def _fail_waiting(self, error: HeadwaterError) -> None:
        """Answer everybody; also whoever got into the inbox meanwhile."""
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            waits = isinstance(item, Waiter | Reader | GroupAsked | ChangeAsked)
            if waits and not item.done.done():
                item.done.set_exception(error)
        self._voters.fail_all(error)
        self._waiting.fail_all(error)
        for reader in self._readers.values():
            if not reader.done.done():
                reader.done.set_exception(error)

    def _run(self) -> None:
        self._now_ms = self._clock.monotonic_ms()
        self._perform(self._core.start(self._now_ms))
        next_tick_ms = self._now_ms
        while True:
            for item in self._next_items(next_tick_ms):
                if item is None:
                    return
                self._take(item)
            if self._now_ms >= next_tick_ms:
                next_tick_ms = self._now_ms + self._config.heartbeat_ms // 2
                self._step(Tick())
                self._housekeeping()
            self._try_waiting()
            while self._saves and self._now_ms >= self._full_until_ms:
                self._write_save()
                self._try_waiting()

    def _next_items(self, until_ms: int) -> list[Any]:
        """Wait for something to do, until a time at most; note what time it is then."""
        wait_s = max(0, until_ms - self._clock.monotonic_ms()) / 1000
        items = []
        try:
            items.append(self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait())
            while len(items) < _BATCH_MAX:
                items.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        self._now_ms = self._clock.monotonic_ms()
        return items

    def _take(self, item: Any) -> None:
        match item:
            case Waiter():
                self._waiting.add(item)
            case Reader():
                self._reader_number += 1
                self._readers[self._reader_number] = item
            case Received() | TransferLeadership():
                self._step(item)
            case GroupAsked():
                item.done.set_result(self._core.group)
            case ChangeAsked():
                self._step(self._voters.event_of(item))
            case StandingAsked(asker, told):
                self._step(MemberAsks(asker))
                told(self._core.member.standing)
            case _:
                self._subscribers.append(item)
                item(self._applier.index, self._machine.state)

    def _step(self, event: Any) -> None:
        self._perform(self._core.step(self._now_ms, event))

    def _try_waiting(self) -> None:
        now_ms = self._now_ms
        for waiter in list(self._waiting.due(now_ms)):
            proposal = waiter.proposal
            assert proposal is not None
            if waiter.office is not None and waiter.office != self._office:
                self._waiting.settle(waiter, UnavailableError("the office is over"))
                continue
            if not waiter.taken and not self._has_room(waiter):
                continue
            waiter.retry_ms = NEVER
            self._step(Propose(proposal))
        for number, reader in list(self._readers.items()):
            if now_ms >= reader.deadline_ms:
                del self._readers[number]
                reader.done.set_exception(UnavailableError("no leader confirmed the barrier"))
            elif now_ms >= reader.retry_ms:
                reader.retry_ms = NEVER
                self._step(Barrier(number))
        self._waiting.expire(now_ms)

    def _has_room(self, waiter: Waiter) -> bool:
        """Refuse at the door what the disk cannot take: nothing of it is in any log then."""
        try:
            if self._full_until_ms > self._now_ms:
                raise DiskFullError("the disk of the metadata log is full")
            self._journal.reserve(len(waiter.payload) + 2 * ENTRY_OVERHEAD)
        except DiskFullError as error:
            if waiter.deadline_ms == NEVER:  # opening the session waits for room
                waiter.retry_ms = self._now_ms + _SOON_MS
                waiter.refused = error.message
            else:
                self._waiting.settle(waiter, error)
            return False
        return True

    def _housekeeping(self) -> None:
        self._voters.look()
        if self._now_ms >= self._checkpoint_ms and not self._saves:
            self._checkpoint_ms = self._now_ms + _CHECKPOINT_MS
            self._journal.checkpoint(self._core.member.applied)

    # ------------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(target, message):
                    assert self._transport is not None
                    self._transport.send(target, message)
                case Save():
                    self._saves.append(effect)
                case Apply(entries):
                    self._apply(entries)
                case Restore(snapshot):
                    self._applier.restore(snapshot.id.index, snapshot.data)
                    self._snapshot_index = snapshot.id.index
                    self._publish()
                case Refused(proposal, reason):
                    waiter = self._waiting.find(proposal)
                    if waiter is not None:
                        self._refused(waiter, reason)
                case BarrierPassed(number, index):
                    reader = self._readers.pop(number, None)
                    if reader is not None:
                        reader.done.set_result(index)
                case BarrierFailed(number):
                    if number in self._readers:
                        self._readers[number].retry_ms = self._now_ms + _SOON_MS
                case VotersChanged() | VotersKept():
                    self._voters.answered(effect)
                case RoleChanged():
                    self._role_changed(effect)
                case FloorReached():
                    self._drop_floor()
                case Diverged(index, ours, theirs):
                    raise MetadataCorruptError(
                        f"the metadata of this member differs from its leader's at {index}",
                        ours=ours,
                        theirs=theirs,
                    )

    def _role_changed(self, changed: RoleChanged) -> None:
        _log.info("raft_role_changed", role=changed.role, term=changed.term, leader=changed.leader)
        self._office = changed.term if changed.role == Role.LEADER.value else None
        self._waiting.retry_soon(self._now_ms + _SOON_MS)
        for reader in self._readers.values():
            if reader.retry_ms != NEVER:  # a new leader may confirm it
                reader.retry_ms = self._now_ms

    def _drop_floor(self) -> None:
        _log.info("raft_floor_reached", applied_index=self._applier.index)
        try:
            self._journal.drop_floor()
        except DiskFullError as error:  # found again at the next start, and found to be reached
            _log.warning("raft_floor_kept", reason=error.message)

    def _refused(self, waiter: Waiter, reason: Refusal) -> None:
        leader = self._core.member.leader
        waiter.refused = f"refused by this member: {reason.value}"
        waiter.retry_ms = self._now_ms + _SOON_MS
        if reason is Refusal.TOO_LARGE:
            self._waiting.settle(waiter, InvalidRequestError("a metadata command is too large"))
        elif reason is Refusal.OVERLOADED and not waiter.taken and waiter.deadline_ms != NEVER:
            self._waiting.settle(waiter, OverloadedError("too much metadata is not committed yet"))
        elif waiter.office is not None:
            self._waiting.settle(waiter, UnavailableError("the office is over"))
        elif reason is Refusal.NOT_LEADER and leader is not None and self._transport is not None:
            assert waiter.proposal is not None
            waiter.taken = True
            waiter.refused = f"{leader} did not commit it in time"
            waiter.retry_ms = self._now_ms + _FORWARD_RETRY_MS
            self._transport.send(leader, Forward(0, waiter.proposal))

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        outcomes = self._applier.apply(entries)
        self._publish()  # before any answer: whoever has one finds it in `state`
        for outcome in outcomes:
            self._waiting.applied(outcome)
        index = self._applier.index
        if index % _HASH_EVERY == 0 and self._transport is not None:  # else nobody compares it
            self._step(StateHashed(index, self._machine.hash()))
        size = self._journal.size_bytes
        enough = index - self._snapshot_index > self._config.keep_entries
        if size > self._journal_bytes_max and (enough or size > _JOURNAL_BYTES_LARGE):
            self._make_snapshot(index)

    def _make_snapshot(self, index: int) -> None:
        """Shorten the journal; on a full disk later, for the journal holds all of it.

        Whatever is saved behind a snapshot waits for its room, also what would make room.
        """
        if self._now_ms < self._snapshot_not_before_ms:
            return
        data = self._applier.snapshot()
        if self._files.free_bytes() < len(data) + self._journal.size_bytes:
            self._snapshot_not_before_ms = self._now_ms + _SNAPSHOT_AGAIN_MS
            return
        self._snapshot_index = index
        self._step(SnapshotMade(index, data))

    def _publish(self) -> None:
        for subscriber in self._subscribers:
            subscriber(self._applier.index, self._machine.state)

    def _write_save(self) -> None:
        """Make the oldest save durable, and with the same sync the entries right behind it."""
        first = self._saves.popleft()
        entries, number = list(first.entries), first.number
        while self._saves and first.image is None and self._saves[0].adds_only:
            following = self._saves.popleft()
            entries += following.entries
            number = following.number
        try:
            self._journal.save(
                hard=first.hard,
                snapshot=first.snapshot,
                image=first.image,
                truncate=first.truncate,
                entries=entries,
                disk=first.disk,
            )
        except DiskFullError as error:
            _log.warning("raft_disk_full", reason=error.message)
            self._saves.appendleft(replace(first, number=number, entries=tuple(entries)))
            self._full_until_ms = self._now_ms + 2 * _SOON_MS
            return
        self._now_ms = self._clock.monotonic_ms()
        self._step(Saved(number))
