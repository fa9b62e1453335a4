"""Operators' requests to a Raft member: list the controllers, change one of them.

No request waits: the operator's command repeats a change until it is done. `VoterDesk` belongs to
the Raft pump; it also logs the voters at every change of them.
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
    """A request for the list of voters."""

    answered: Callable[[GroupSeen | HeadwaterError], None]


@dataclass(slots=True)
class ChangeAsked:
    """A request to make a member a voter or an observer."""

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
        """Return the event for the core, whose answer goes to :meth:`answered`."""
        self._number += 1
        self._asked[self._number] = asked
        add, remove = (asked.node, None) if asked.votes else (None, asked.node)
        return ChangeVoters(self._number, add, remove)

    def answered(self, answer: VotersChanged | VotersKept) -> None:
        """Answer the request: the change is done when it is committed."""
        asked = self._asked.pop(answer.number, None)
        if asked is None:
            return
        leader = self._core.member.leader
        if isinstance(answer, VotersKept):
            asked.answered(VoterChanged(False, answer.reason.value, leader))
        elif answer.index > self._core.member.commit:
            asked.answered(VoterChanged(False, "the change is not committed yet", leader))
        else:
            asked.answered(VoterChanged(True, "", leader))

    def fail_all(self, error: HeadwaterError) -> None:
        """Answer all open requests with an error."""
        all_asked, self._asked = self._asked, {}
        for asked in all_asked.values():
            asked.answered(error)

    def look(self) -> None:
        """Log the voters if they changed, and if another disk votes under this broker's id."""
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
