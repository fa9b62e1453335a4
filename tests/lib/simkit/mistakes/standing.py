"""Mistakes of fetches that stand, and of the roll calls that confirm them."""

from __future__ import annotations

from typing import Any, Final

from broker.core.replication import standing
from broker.core.replication.follower import PartitionFollower
from broker.core.replication.leader import PartitionLeader
from broker.core.replication.standing import Roll
from broker.model.epochs import LeaderEpoch
from broker.runtime.cluster.roll_calls import RollCalls
from simkit.replacing import Mutant, replaced


def records_wake_no_standing_fetch() -> Any:
    """Leave a standing fetch where it is when records come."""
    original: Any = PartitionLeader._appended

    def appended(self: Any, log_end: Any) -> Any:
        kept = {one: self._parked.pop(one) for one in [*self._parked] if one in self.standing}
        yield from original(self, log_end)
        self._parked.update(kept)

    return replaced(PartitionLeader, "_appended", appended)


def unequal_groups_confirm() -> Any:
    """Take every answer to a roll call for a confirmation, whatever the sums were."""
    original: Any = Roll.confirm

    def confirm(self: Any, number: int, equal: Any, now_ms: int) -> None:
        original(self, number, [True] * len(equal), now_ms)

    return replaced(Roll, "confirm", confirm)


def former_fetches_confirm() -> Any:
    """Leave leader epoch and request out of the roll: an earlier life's fetch is as good."""
    original: Any = vars(standing)["_key"]

    def key(partition_id: Any, fetch: Any) -> Any:
        one = standing.StandingFetch(
            peer=fetch.peer,
            is_own=fetch.is_own,
            leader_epoch=LeaderEpoch(0),
            request_id=0,
            known_ms=0,
        )
        return original(partition_id, one)

    return replaced(standing, "_key", key)


def new_fetches_are_confirmed_by_earlier_calls() -> Any:
    """Confirm what stands now, not what stood when the roll was called."""

    def confirm(self: Any, _number: int, equal: Any, now_ms: int) -> None:
        for entry in self._entries.values():
            if equal[entry.key % len(equal)]:
                entry.fetch.known_ms = now_ms

    return replaced(Roll, "confirm", confirm)


def silent_followers_stand_for_ever() -> Any:
    """Keep the fetch of a follower whose broker calls no roll any more."""
    return replaced(PartitionLeader, "_is_unconfirmed", lambda *_: False)


def silent_leaders_are_believed() -> Any:
    """Let a fetch stand although no roll call confirms it."""
    original: Any = PartitionFollower._tick

    def tick(self: Any, now_ms: int) -> Any:
        return [] if self.standing is not None else original(self, now_ms)

    return replaced(PartitionFollower, "_tick", tick)


def stands_before_all_is_committed() -> Any:
    """Let a fetch stand before the follower has heard that its last record is committed."""

    def may_stand(self: Any, _now_ms: int) -> Any:
        return self._facts.synced_end == self._facts.log_end

    return replaced(PartitionFollower, "_may_stand", may_stand)


def outsiders_stand() -> Any:
    """Keep the fetch of a follower that has yet to join the ISR, or to be proved."""
    return replaced(PartitionLeader, "_may_stand", lambda *_: True)


def hung_replicas_are_confirmed() -> Any:
    """Call the fetch of a replica whose turn does not end."""
    original: Any = Roll.call

    def call(self: Any, number: int) -> Any:
        for entry in self._entries.values():
            entry.turn = None
        return original(self, number)

    return replaced(Roll, "call", call)


def late_answers_confirm() -> Any:
    """Take an answer to any roll call, and answer a second copy of one."""
    original: Any = RollCalls.called

    def called(self: Any, sender: Any, message: Any) -> None:
        self._heard.clear()
        original(self, sender, message)

    return replaced(RollCalls, "called", called)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        records_wake_no_standing_fetch,
        unequal_groups_confirm,
        silent_leaders_are_believed,
        stands_before_all_is_committed,
    )
}
# Met in no life: a broker that has died is soon back, and asks for other fetches than before.
BY_HAND: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        former_fetches_confirm,
        new_fetches_are_confirmed_by_earlier_calls,
        silent_followers_stand_for_ever,
        outsiders_stand,
        hung_replicas_are_confirmed,
        late_answers_confirm,
    )
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final[dict[str, int]] = {
    "unequal_groups_confirm": 31,
    "silent_leaders_are_believed": 4,
    "stands_before_all_is_committed": 1,
}
