"""The claims that a group member holds, its progress in each, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from broker.model.groups import NO_LEADER_EPOCH, ToldClaim, ToldPosition
from broker.model.offsets import Offset

UNSETTLED_MS: Final = 100  # between heartbeats while partitions move between members


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTerms:
    """The settings of a member."""

    session_ms: int
    commit_ms: int | None  # between two commits; None: only the application commits
    processing_ms_max: int  # an application that asks for nothing for so long loses its partitions

    @property
    def beat_ms(self) -> int:
        """The time between two heartbeats."""
        return max(UNSETTLED_MS, self.session_ms // 5)


@dataclass(slots=True)
class Held:
    """A claim that the member holds, and its progress. Offsets are the next ones."""

    claim: ToldClaim
    given: Offset | None = None  # the application was given everything below it
    given_epoch: int = NO_LEADER_EPOCH
    done: Offset | None = None  # it has processed everything below it
    done_epoch: int = NO_LEADER_EPOCH
    committed: Offset | None = None
    reached: Offset | None = None  # the highest that may be committed; an answer may be missing
    back: bool = False  # the application sought below what is committed, or may be
    stopping: bool = False  # it was told to stop
    given_up: bool = False  # it has stopped
    released: bool = False  # the metadata was told so

    @property
    def is_dirty(self) -> bool:
        """Whether the next commit has something to store for the partition."""
        moved = self.done is not None and self.done != self.committed
        return moved or (self.given_up and not self.released)

    @property
    def is_behind(self) -> bool:
        """Whether the next commit moves the position back, because the application sought back."""
        return self.back and (self.done or 0) < (self.reached or 0)

    def is_back(self, offset: Offset) -> bool:
        """Tell whether an offset is below what is committed, or may be."""
        return self.reached is not None and offset < self.reached

    def sent(self) -> None:
        """Note that a commit of what was processed is under way."""
        if self.done is not None:
            self.reached = max(self.reached or self.done, self.done)

    def stored(self, offset: Offset) -> None:
        """Note the group's position: earlier commits change nothing any more."""
        self.committed = self.reached = offset


def newly_held(claim: ToldClaim) -> Held:
    """Return a claim that begins at the group's position, if there is one."""
    if claim.position is None:
        return Held(claim)
    at, leader_epoch = claim.position.offset, claim.position.leader_epoch
    return Held(
        claim,
        given=at,
        given_epoch=leader_epoch,
        done=at,
        done_epoch=leader_epoch,
        committed=at,
        reached=at,
    )


def resumed(held: Held) -> ToldClaim:
    """Return a claim that begins where the application has stopped."""
    if held.given is None:
        return held.claim
    position = ToldPosition(offset=held.given, leader_epoch=held.given_epoch)
    return replace(held.claim, position=position)
