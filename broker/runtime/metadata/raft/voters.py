"""What operators ask a Raft member about the controllers: who they are, and changes of one.

Nothing waits here: a change is asked for again until it is so. `VoterDesk` belongs to the Raft
pump; it also says in the log who votes, whenever that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from broker.core.raft.config import RaftConfig
from broker.core.raft.consensus import Consensus
from broker.core.raft.events import ChangeVoters, VotersChanged, VotersKept
from broker.errors import HeadwaterError
from broker.model.raft import GroupSeen, NodeId, VoterChanged

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class GroupAsked:
    """Somebody wants to know who votes."""

    answered: Callable[[GroupSeen | HeadwaterError], None]


@dataclass(slots=True)
class ChangeAsked:
    """Somebody wants a member to vote, or to watch only."""

    node: NodeId
    votes: bool
    answered: Callable[[VoterChanged | HeadwaterError], None]


class VoterDesk:
    """Owner: the Raft pump."""

    def __init__(self, config: RaftConfig, me: NodeId, core: Consensus) -> None:
        self._me = me
        self._core = core
        self._said: frozenset[NodeId] = frozenset(config.members)
        self._was_told_off = False
        self._number = 0
        self._asked: dict[int, ChangeAsked] = {}

    def event_of(self, asked: ChangeAsked) -> ChangeVoters:
        """Return what to feed the core, whose answer goes to :meth:`answered`."""
        self._number += 1
        self._asked[self._number] = asked
        add, remove = (asked.node, None) if asked.votes else (None, asked.node)
        return ChangeVoters(self._number, add, remove)

    def answered(self, answer: VotersChanged | VotersKept) -> None:
        """Tell who asked: done once it is committed."""
        asked = self._asked.pop(answer.number, None)
        if asked is None:
            return
        leader = self._core.member.leader
        if isinstance(answer, VotersKept):
            asked.answered(VoterChanged(False, answer.reason.value, leader))
        elif answer.index > self._core.member.commit:
            asked.answered(VoterChanged(False, "it is not committed yet", leader))
        else:
            asked.answered(VoterChanged(True, "", leader))

    def fail_all(self, error: HeadwaterError) -> None:
        """Answer everybody with an error."""
        all_asked, self._asked = self._asked, {}
        for asked in all_asked.values():
            asked.answered(error)

    def look(self) -> None:
        """Say who votes, if that has changed; and that this disk does not, where it matters."""
        member = self._core.member
        voters = frozenset(member.voters)
        if voters != self._said:
            self._said = voters
            _log.info("raft_voters_changed", voters=",".join(sorted(voters)))
        is_told_off = self._me in voters and not member.is_voter
        if is_told_off and not self._was_told_off:
            _log.error(
                "controller_has_another_disk",
                reason="the disk that voted under this id is lost, and its vote with it",
                remedy=f"headwater cluster controllers replace {self._me} {self._me}",
            )
        self._was_told_off = is_told_off
