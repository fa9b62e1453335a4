"""Known ways to get the shells around Raft wrong; a house with Raft beneath has to notice each.

A mutant replaces one step of the product's shells for the length of a ``with``. Its docstring is
the bug. Mistakes in the core itself are in ``simkit/raft/mutants.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from broker.core.raft.events import BarrierFailed, BarrierPassed, Propose
from broker.core.raft.rejoin import Rejoin
from broker.model.raft import Floor
from broker.runtime.cluster import registration
from broker.runtime.cluster.registration import Registration
from broker.runtime.metadata.raft.applying import Applying
from broker.runtime.metadata.raft.machine import MetadataMachine
from broker.runtime.metadata.raft.pump import RaftPump
from broker.runtime.metadata.raft.rejoin import TakingPart
from broker.runtime.metadata.raft.saving import Saving
from broker.runtime.metadata.raft.waiting import Waiter, Waiting
from broker.storage.raft.journal import RaftJournal
from simkit.replacing import replaced, together

Mutant = Callable[[], Any]  # a context manager


def answered_before_the_sync() -> Any:
    """Tell the core that a save is durable while it is in the page cache."""

    def write_next(self: Any, now_ms: int) -> Any:
        with mock.patch.object(self._journal._folder, "datasync", return_value=None):
            return original(self, now_ms)

    original: Any = Saving.write_next
    return replaced(Saving, "write_next", write_next)


def answered_before_it_is_applied() -> Any:
    """Answer a proposal as soon as the save that holds it is written, applied or not."""

    def step(self: Any, event: Any) -> None:
        original(self, event)
        if isinstance(event, Propose) and self.office is not None:
            waiter = self._waiting.find(event.proposal)
            if waiter is not None and waiter.payload:
                self._waiting._under_way.pop(event.proposal.sequence)
                waiter.answered(b'{"reply":{}}')

    original: Any = RaftPump._step
    return replaced(RaftPump, "_step", step)


def term_and_vote_are_not_saved() -> Any:
    """Save the log of a member, and not the term that it is in."""

    def save(self: Any, **what: Any) -> None:
        original(self, **{**what, "hard": None})

    original: Any = RaftJournal.save
    return replaced(RaftJournal, "save", save)


def newest_save_first() -> Any:
    """Write the newest save before older ones."""

    def write_next(self: Any, now_ms: int) -> Any:
        self._saves = deque(sorted(self._saves, key=lambda one: -one.number))
        return original(self, now_ms)

    original: Any = Saving.write_next
    return replaced(Saving, "write_next", write_next)


def applied_out_of_order() -> Any:
    """Apply entries that were committed together in another order."""

    def apply(self: Any, entries: Any) -> Any:
        swapped = sorted(entries, key=lambda one: -one.index)
        return original(
            self,
            tuple(
                replace(other, index=one.index, term=one.term)
                for one, other in zip(entries, swapped, strict=True)
            ),
        )

    original: Any = Applying.apply
    return replaced(Applying, "apply", apply)


def snapshot_forgets_the_last_entry() -> Any:
    """Write a snapshot of the state before the entry that it is named for."""

    def apply(self: Any, index: int, command: bytes) -> Any:
        self.before = self.state
        return original(self, index, command)

    def snapshot(self: Any) -> Any:
        with mock.patch.object(self, "state", getattr(self, "before", self.state)):
            return encode(self)

    original: Any = MetadataMachine.apply
    encode: Any = MetadataMachine.snapshot
    return together(
        replaced(MetadataMachine, "apply", apply), replaced(MetadataMachine, "snapshot", snapshot)
    )


def barrier_passes_on_its_own_word() -> Any:
    """Let a barrier pass because this member believes that it leads; ask no other member."""

    def try_waiting(self: Any) -> None:
        if self.office is not None:
            readers, self._reading._readers = self._reading._readers, {}
            for reader in readers.values():
                reader.answered(self._applying.index)
        original(self)

    original: Any = RaftPump._try_waiting
    return replaced(RaftPump, "_try_waiting", try_waiting)


def barrier_that_fails_passes() -> Any:
    """Answer a barrier that no leader confirmed with the local applied index."""

    def perform(self: Any, effects: Any) -> None:
        index = self._applying.index
        original(
            self,
            [
                BarrierPassed(one.number, index) if isinstance(one, BarrierFailed) else one
                for one in effects
            ],
        )

    original: Any = RaftPump._perform
    return replaced(RaftPump, "_perform", perform)


def snapshot_is_told_to_nobody() -> Any:
    """Take a snapshot's state, and tell subscribers only with the next entry."""

    def restore(self: Any, snapshot: Any) -> None:
        with mock.patch.object(Applying, "_publish"):
            original(self, snapshot)

    original: Any = Applying.restore
    return replaced(Applying, "restore", restore)


def office_is_not_asked() -> Any:
    """Hand a decision of a controller of an earlier term to the present leader."""

    def add(self: Any, waiter: Waiter) -> None:
        waiter.office = None
        original(self, waiter)

    original: Any = Waiting.add
    return replaced(Waiting, "add", add)


def retry_is_another_proposal() -> Any:
    """Give a proposal that is tried again a new sequence, so that it takes effect again."""

    def due(self: Any, now_ms: int) -> Any:
        for waiter in list(original(self, now_ms)):
            if waiter.taken and waiter.payload:
                self._under_way.pop(waiter.proposal.sequence, None)
                self._sequence += 1
                waiter.proposal = replace(waiter.proposal, sequence=self._sequence)
                self._under_way[self._sequence] = waiter
            yield waiter

    original: Any = Waiting.due
    return replaced(Waiting, "due", due)


def session_is_persisted_late() -> Any:
    """Write the session down durably, once the metadata has taken it."""
    return _session_is_written_late(durably=True)


def session_is_persisted_after_it_registers() -> Any:
    """Write the session down once the metadata has taken it, and do not wait for the disk."""
    return _session_is_written_late(durably=False)


def _session_is_written_late(*, durably: bool) -> Any:
    begin: Any = vars(registration)["begin_session"]
    take: Any = Registration._take

    def begin_session(files: Any) -> Any:
        with mock.patch("broker.runtime.ingest.sessions._write"):
            return begin(files)

    def taken(self: Any, error: Any, now_ms: int) -> None:
        take(self, error, now_ms)
        if self.broker_epoch is not None:
            ours = mock.patch("uuid.uuid4", return_value=mock.Mock(hex=self.session))
            waiting = nullcontext() if durably else mock.patch.object(self._files, "sync_folder")
            with ours, waiting:
                begin(self._files)

    return together(
        replaced(registration, "begin_session", begin_session),
        replaced(Registration, "_take", taken),
    )


def floor_is_forgotten() -> Any:
    """Take part with an empty disk as one that never had another."""

    def note(self: Any, how: Any) -> None:
        original(self, replace(how, term=0, floor=Floor()))

    original: Any = TakingPart._note
    return replaced(TakingPart, "_note", note)


def older_folder_is_not_compared() -> Any:
    """Start on the folder's content, whatever was promised after it was copied."""

    def compare(self: Any, _: int, journal: Any) -> None:
        self._end(journal)

    return replaced(TakingPart, "_compare", compare)


def one_round_is_enough() -> Any:
    """Take part with an empty disk after the first answers, of whatever moments."""

    def told(self: Any, sender: Any, request_id: int, life: int, standing: Any) -> Any:
        found = original(self, sender, request_id, life, standing)
        if found is None and self._before is not None and not self._told:
            found = self._judge({one: at.standing for one, at in self._before.items()})
        return found

    original: Any = Rejoin.told
    return replaced(Rejoin, "told", told)


def save_is_dropped_by_a_full_disk() -> Any:
    """Forget what a full disk refused to save."""

    def write_next(self: Any, now_ms: int) -> Any:
        waited = bool(self._saves) and now_ms >= self._full_until_ms
        number = original(self, now_ms)
        if waited and number is None:
            self._saves.clear()
        return number

    original: Any = Saving.write_next
    return replaced(Saving, "write_next", write_next)


def member_is_not_remembered() -> Any:
    """Start on an empty folder as one that is new, whatever else says that it took part before."""

    def rejoin(self: Any, now_ms: int, then: Any, **_: bool) -> None:
        original(self, now_ms, then, has_taken_part=False)

    original: Any = TakingPart._rejoin
    return replaced(TakingPart, "_rejoin", rejoin)


# No life meets the moment in which these matter. The journal keeps room ahead and refuses what does
# not fit before a save is made; whether a member is remembered matters where all the others are
# new as well, which is one disk more than a life loses at a time; and none of 120 lives changes the
# group between the first answers of its members in such a way that one round misleads. Unit tests
# notice each.
BY_HAND: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        save_is_dropped_by_a_full_disk,
        member_is_not_remembered,
        one_round_is_enough,
    )
}

MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        answered_before_the_sync,
        answered_before_it_is_applied,
        term_and_vote_are_not_saved,
        newest_save_first,
        applied_out_of_order,
        snapshot_forgets_the_last_entry,
        barrier_passes_on_its_own_word,
        barrier_that_fails_passes,
        snapshot_is_told_to_nobody,
        office_is_not_asked,
        retry_is_another_proposal,
        session_is_persisted_after_it_registers,
        session_is_persisted_late,
        floor_is_forgotten,
        older_folder_is_not_compared,
    )
}

BIASED: Final[dict[str, frozenset[str]]] = {
    "answered_before_the_sync": frozenset({"all", "power"}),
    "term_and_vote_are_not_saved": frozenset({"all", "cut", "one-way", "office"}),
    "barrier_passes_on_its_own_word": frozenset({"cut", "one-way"}),
    "barrier_that_fails_passes": frozenset({"cut", "one-way", "ask"}),
    "office_is_not_asked": frozenset({"cut", "one-way", "office"}),
    "session_is_persisted_after_it_registers": frozenset({"all", "power"}),
    "session_is_persisted_late": frozenset({"middle", "kill"}),
    "floor_is_forgotten": frozenset({"wipe", "office", "cut", "one-way"}),
    "older_folder_is_not_compared": frozenset({"older", "office", "cut", "kill"}),
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "term_and_vote_are_not_saved": 4,
    "snapshot_forgets_the_last_entry": 13,
    "barrier_passes_on_its_own_word": 27,
    "snapshot_is_told_to_nobody": 28,
    "office_is_not_asked": 15,
    "retry_is_another_proposal": 64,
    "session_is_persisted_after_it_registers": 2,
    "session_is_persisted_late": 80,
    "floor_is_forgotten": 2,
    "barrier_that_fails_passes": 2,
    "older_folder_is_not_compared": 0,
}
QUICK: Final = (  # in every `make test`; the others are hunted by `make sim` and `make mutants`
    "answered_before_the_sync",
    "answered_before_it_is_applied",
    "applied_out_of_order",
    "barrier_that_fails_passes",
    "snapshot_is_told_to_nobody",
    "snapshot_forgets_the_last_entry",
    "session_is_persisted_after_it_registers",
    "floor_is_forgotten",
)
