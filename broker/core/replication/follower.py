"""A follower in one leader epoch: it aligns its log once, then fetches. Events in, effects out.

    asking ──▶ truncating ──▶ asking (walk back) … ──▶ fetching ──▶ appending ──▶ fetching …
                                                          └──▶ idle ──▶ fetching | standing

Each new leader epoch gets a new follower. A follower does not fetch before its log is a prefix of
the leader's log. To align, it asks where its newest epoch ends in the leader's log, truncates its
own log there, and goes back epoch by epoch until both logs have the same epoch (KIP-101, 279, 320).
The high watermark never decides a truncation. One request is open at a time. It is repeated until
an answer comes, and the first answer to any of its copies counts: if only the last copy could be
answered, a leader that always answers after the next copy was sent would never be heard. A late
answer is as good: the copies ask for the same, as this log does not change while a request is open,
and the leader's log only grows in a leader epoch (decision 0063). An answer to an earlier request
is dropped.

A follower that has nothing to fetch lets its fetch stand (``standing.py``): it sends nothing more
until the leader answers, or until roll calls no longer confirm the fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.core.events import TickElapsed
from broker.core.replication.effects import (
    NO_PREFIX,
    AdvanceHighWatermark,
    AppendStored,
    Effect,
    LogFacts,
    ReportLeader,
    ReportLostRecords,
    ResetLog,
    SendToReplica,
    TruncateLog,
)
from broker.core.replication.events import (
    AppendRefused,
    FollowerEvent,
    LogSynced,
    LogTruncated,
    MessageCame,
)
from broker.core.replication.standing import StandingFetch
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    STANDING_MS_MIN,
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    FetchRequest,
    NewDataNotice,
)

_PATIENCE_DOUBLED_MAX: Final = 3
_STAND_AGAIN_MS: Final = 10_000  # after a standing fetch that no roll call ever confirmed

Phase = Literal["asking", "truncating", "fetching", "appending", "idle", "standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerTiming:
    """When a follower repeats a request, and when it reports its leader."""

    request_ms: int = 500  # a request without an answer is sent again after this
    retry_ms: int = 50  # a refused request is sent again after this
    idle_ms: int = 500  # a caught-up follower fetches at least this often, to show that it lives
    wait_ms: int = 0  # the leader may keep a fetch this long; 0: it sends a notice instead
    leader_ms: int = 1_500  # a leader that is silent for this long is reported, repeatedly
    stand_ms: int = 0  # a fetch may stand this long without records; 0: fetches do not stand
    call_ms: int = 400  # between two roll calls of the standing fetches

    @property
    def kept_ms(self) -> int:
        """How long a standing fetch is kept without a roll call that confirms it: two calls."""
        return self.call_ms * 7 // 4

    def __post_init__(self) -> None:
        assert 0 < self.request_ms <= self.leader_ms, "request_ms must not exceed leader_ms"
        assert self.wait_ms <= self.idle_ms < self.leader_ms, "needs wait <= idle < leader"
        if self.stand_ms:
            assert self.wait_ms < STANDING_MS_MIN <= self.stand_ms, "needs wait < minimum <= stand"
            assert 0 < self.kept_ms < self.leader_ms, "needs 7/4 of call_ms < leader_ms"


_DEFAULT: Final = FollowerTiming()


class PartitionFollower:
    """Follows one leader in one epoch."""

    def __init__(
        self,
        *,
        me: BrokerId,
        broker_epoch: BrokerEpoch,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        facts: Callable[[], LogFacts],
        high_watermark: Offset,
        now_ms: int,
        timing: FollowerTiming = _DEFAULT,
        mute_leaders: int = 0,
        first_request_id: int = 1,
    ) -> None:
        """Follow ``leader``; call :meth:`start` for the first effects. ``facts`` reads the log.

        ``mute_leaders`` is the number of leaders in a row that never sent a message. The more there
        were, the longer this leader may take for its first message. A new leader may need longer
        than ``leader_ms`` to take over; without this rule replicas would report and elect each
        other for ever. ``first_request_id`` must be above every request id that this process has
        used for the partition.
        """
        self._me = me
        self._broker_epoch = broker_epoch
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._read_facts = facts
        self._facts = facts()
        # Below, if the cut of an earlier follower was interrupted: see _go_on_after_truncation.
        self.high_watermark = min(high_watermark, self._facts.log_end)
        self._timing = timing
        self._first_word_ms = timing.leader_ms << min(mute_leaders, _PATIENCE_DOUBLED_MAX)
        self.phase: Phase = "asking"
        self.next_request_id = first_request_id
        self._first_id = first_request_id  # of the open request; its repeats have higher ids
        self._sent_ms = self._heard_ms = self._reported_ms = now_ms
        self.has_heard = False  # whether this leader has sent any message
        self._ask_epoch = self._facts.epochs.latest
        self._fetch_after_truncation = False
        self._leader_high_watermark = Offset(0)  # from the answer that is being appended
        self._standing: StandingFetch | None = None  # the newest one
        self._stand_from_ms = now_ms  # no fetch may stand before
        self.walked_back = False  # the leader did not know the newest epoch of this log
        self.dropped_count = 0  # answers of another epoch, request or offset
        self._diverged_at: Offset | None = None  # the log end that the leader called diverged

    # ------------------------------------------------------------------ events

    def start(self, now_ms: int) -> list[Effect]:
        """Begin to align; an empty log needs no alignment, it is a prefix of every log."""
        if self._facts.log_end == 0 and self._facts.epochs.latest == 0:
            return self._fetch(now_ms)
        return self._ask(now_ms)

    def step(self, event: FollowerEvent) -> list[Effect]:
        """Take one event; return the effects, which the shell performs in this order."""
        match event:
            case MessageCame(message, now_ms):
                return self._take_message(message, now_ms)
            case LogSynced(_, now_ms):
                return self._go_on_after_sync(now_ms)
            case TickElapsed(now_ms):
                return self._tick(now_ms)
            case LogTruncated(now_ms):
                return self._go_on_after_truncation(now_ms)
            case AppendRefused(now_ms):
                return self._wait_for_room(now_ms)

    def _tick(self, now_ms: int) -> list[Effect]:
        """Repeat a request without an answer, fetch while idle, report a silent leader."""
        effects: list[Effect] = []
        timing = self._timing
        if (standing := self.standing) is not None:
            self._heard_ms = max(self._heard_ms, standing.known_ms)
            if now_ms - standing.known_ms < timing.kept_ms:
                return effects
            if standing.known_ms == self._sent_ms:  # perhaps the leader knows no roll calls
                self._stand_from_ms = now_ms + _STAND_AGAIN_MS
        silent_ms = now_ms - max(self._heard_ms, self._reported_ms)
        if silent_ms >= self._patience_ms:
            self._reported_ms = now_ms
            effects.append(ReportLeader(self.leader, self.leader_epoch))
        waited_ms = now_ms - self._sent_ms
        if self.phase == "idle" and waited_ms >= timing.idle_ms:
            return [*effects, *self._fetch(now_ms, stands=self._may_stand(now_ms))]
        if standing is not None:
            return [*effects, *self._fetch(now_ms)]
        if waited_ms >= timing.request_ms + timing.wait_ms:
            if self.phase == "asking":
                effects += self._ask(now_ms, again=True)
            elif self.phase == "fetching":
                effects += self._fetch(now_ms, again=True)
        return effects

    @property
    def due_ms(self) -> int:
        """When the next tick has work to do, unless another event comes before."""
        timing = self._timing
        if (standing := self.standing) is not None:
            return standing.known_ms + timing.kept_ms
        due_ms = max(self._heard_ms, self._reported_ms) + self._patience_ms
        if self.phase == "idle":
            return min(due_ms, self._sent_ms + timing.idle_ms)
        if self.phase in ("asking", "fetching"):
            return min(due_ms, self._sent_ms + timing.request_ms + timing.wait_ms)
        return due_ms

    def _take_message(self, message: Any, now_ms: int) -> list[Effect]:
        """Take an answer or a notice of the leader."""
        if self.phase == "asking":
            self._facts = self._read_facts()  # retention may have moved the log start
        if message.leader_epoch != self.leader_epoch:
            self.dropped_count += 1  # from another leader, or from an earlier process of this one
            return []
        match message:
            case NewDataNotice():
                self._hear(now_ms)
                return self._fetch(now_ms) if self.phase in ("idle", "standing") else []
            case EpochEndAnswer() if self._is_expected(message.request_id, "asking"):
                return list(self._align(message, now_ms))
            case FetchAnswer() if self._is_expected(message.request_id, "fetching", "standing"):
                self.phase = "fetching"  # it stands no longer
                return list(self._take(message, now_ms))
            case _:
                self.dropped_count += 1
                return []

    def _go_on_after_truncation(self, now_ms: int) -> list[Effect]:
        if self.phase != "truncating":
            return []  # the truncation of an earlier follower
        self._facts = self._read_facts()
        # The cut may have gone lower, to the start of a batch that key compaction had joined.
        self.high_watermark = min(self.high_watermark, self._facts.log_end)
        return self._fetch(now_ms) if self._fetch_after_truncation else self._ask(now_ms)

    def _go_on_after_sync(self, now_ms: int) -> list[Effect]:
        """The fetched batches are durable: the next fetch tells the leader."""
        self._facts = self._read_facts()
        if self.phase != "appending":
            return []  # an earlier follower's sync
        return [*self._advance(self._leader_high_watermark), *self._fetch(now_ms)]

    def _wait_for_room(self, now_ms: int) -> list[Effect]:
        """A full disk refused the batches: fetch again after ``idle_ms``."""
        if self.phase != "appending":
            return []
        self._facts = self._read_facts()
        self.phase, self._sent_ms = "idle", now_ms
        return []

    def _hear(self, now_ms: int) -> None:
        self._heard_ms, self.has_heard = now_ms, True

    @property
    def misses_leader(self) -> bool:
        """Whether the leader was reported, and has sent no word since."""
        return self._reported_ms > self._heard_ms

    @property
    def _patience_ms(self) -> int:
        return self._timing.leader_ms if self.has_heard else self._first_word_ms

    # ------------------------------------------------------------------ aligning

    def _ask(self, now_ms: int, *, again: bool = False) -> list[Effect]:
        self.phase = "asking"
        request = EpochEndRequest(
            follower=self._me,
            broker_epoch=self._broker_epoch,
            leader_epoch=self.leader_epoch,
            request_id=self._new_id(now_ms, again=again),
            epoch=self._ask_epoch,
        )
        return [SendToReplica(self.leader, request)]

    def _align(self, answer: EpochEndAnswer, now_ms: int) -> Iterator[Effect]:
        """Truncate the records that the leader's log cannot contain; source: KIP-279."""
        if answer.refusal is not None:
            self._ask_again_soon(now_ms)
            return
        self._hear(now_ms)
        facts = self._facts
        own_epoch, own_end = facts.epochs.end_of(answer.known_epoch, facts.log_end)
        if own_epoch == answer.known_epoch:
            # Both logs have this epoch, which one leader wrote: both agree up to the shorter end.
            cut, self._fetch_after_truncation = min(own_end, answer.end), True
        else:
            cut, self._fetch_after_truncation = own_end, False
            self._ask_epoch = own_epoch
            self.walked_back = True
        if cut >= facts.log_end and facts.epochs.latest <= answer.known_epoch:
            yield from self._fetch(now_ms)
            return
        kept_end = max(cut, facts.log_start)  # freed records below are in the table: committed
        if kept_end < self.high_watermark:
            yield ReportLostRecords(kept_end, self.high_watermark)
            self.high_watermark = kept_end
        self.phase = "truncating"
        if cut >= facts.log_start:
            yield TruncateLog(cut)
            return
        # No record of this log is in the leader's log, and not all freed records were. An empty log
        # at the present log start would be refused for ever: the leader lacks records below it.
        self._fetch_after_truncation = True
        yield ResetLog(Offset(0), NO_PREFIX)

    # ------------------------------------------------------------------ fetching

    @property
    def standing(self) -> StandingFetch | None:
        """The fetch that stands at the leader, if there is one."""
        return self._standing if self.phase == "standing" else None

    def _may_stand(self, now_ms: int) -> bool:
        """Tell whether the next fetch may stand: there is nothing to fetch, nor to be told.

        Readers here have to see the last record: it is committed, as far as this replica knows.
        """
        facts = self._facts
        whole = facts.synced_end == facts.log_end == self.high_watermark
        return whole and bool(self._timing.stand_ms) and now_ms >= self._stand_from_ms

    def _fetch(self, now_ms: int, *, stands: bool = False, again: bool = False) -> list[Effect]:
        self.phase = "standing" if stands else "fetching"
        facts = self._facts
        at = facts.log_end
        last = facts.epochs.epoch_of(Offset(at - 1)) if at > 0 else LeaderEpoch(0)
        request = FetchRequest(
            follower=self._me,
            broker_epoch=self._broker_epoch,
            leader_epoch=self.leader_epoch,
            request_id=self._new_id(now_ms, again=again),
            fetch_from=at,
            last_epoch=last,
            synced_end=facts.synced_end,
            wait_ms=self._timing.stand_ms if stands else self._timing.wait_ms,
        )
        if stands:
            self._standing = StandingFetch(
                peer=self.leader,
                is_own=True,
                leader_epoch=self.leader_epoch,
                request_id=request.request_id,
                known_ms=now_ms,
            )
        return [SendToReplica(self.leader, request)]

    def _take(self, answer: FetchAnswer, now_ms: int) -> Iterator[Effect]:
        if answer.refusal == "diverged":
            # This should not happen, because a follower aligns before it fetches. Align again, and
            # only once for a log end: a leader that refuses it again would be asked without end.
            if self._diverged_at == self._facts.log_end:
                self._ask_again_soon(now_ms)
                return
            self._diverged_at = self._facts.log_end
            self._ask_epoch = self._facts.epochs.latest
            yield from self._ask(now_ms)
            return
        if answer.refusal == "below_start" and answer.prefix is not None:
            if answer.start > self._facts.log_end or answer.start == 0 < self._facts.log_end:
                self._hear(now_ms)
                self.high_watermark = min(self.high_watermark, answer.start)
                self.phase, self._fetch_after_truncation = "truncating", True
                yield ResetLog(answer.start, answer.prefix)
            return
        if answer.refusal is not None:
            self._ask_again_soon(now_ms)
            return
        self._hear(now_ms)
        if answer.start != self._facts.log_end or not self._continues(answer.batches):
            self.dropped_count += 1  # a gap or an overlap is never written
            return
        self._leader_high_watermark = answer.high_watermark
        if answer.batches:
            self.phase = "appending"
            yield AppendStored(answer.batches)
            return
        if answer.request_id == self.next_request_id - 1:  # else the leader still has a copy
            self.phase = "idle"
        yield from self._advance(answer.high_watermark)

    def _continues(self, batches: Sequence[Any]) -> bool:
        """Tell whether the batches extend this log without a gap, an overlap or a wrong epoch."""
        at = self._facts.log_end
        epoch = self._facts.epochs.latest
        for batch in batches:
            header = batch.header
            if header.base_offset != at or not epoch <= header.leader_epoch <= self.leader_epoch:
                return False
            at, epoch = header.end_offset, header.leader_epoch
        return True

    def _advance(self, leader_high_watermark: Offset) -> Iterator[Effect]:
        """Raise the high watermark to the leader's, but not above this log's synced end."""
        known = min(leader_high_watermark, self._facts.synced_end)
        if known > self.high_watermark:
            self.high_watermark = known
            yield AdvanceHighWatermark(known)

    # ------------------------------------------------------------------ requests

    def _new_id(self, now_ms: int, *, again: bool) -> int:
        request_id = self.next_request_id
        if not again:
            self._first_id = request_id
        self.next_request_id += 1
        self._sent_ms = now_ms
        return request_id

    def _ask_again_soon(self, now_ms: int) -> None:
        """Ask again soon after a refusal: usually one side does not know the newest epoch yet.

        A refusal does not count as a message of the leader: a leader that refuses for ever is
        reported like a silent leader.
        """
        timing = self._timing
        self._sent_ms = now_ms - timing.request_ms - timing.wait_ms + timing.retry_ms

    def _is_expected(self, request_id: int, *phases: Phase) -> bool:
        return self.phase in phases and self._first_id <= request_id < self.next_request_id
