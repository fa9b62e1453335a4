"""The leader's rules for a change of the voters: one at a time, never more than one under way.

- A change may begin only after an entry of the leader's own term is committed (Ongaro's mail of
  2015), and only while no other change is uncommitted. So the majorities of two configurations that
  follow each other have a member in common.
- A member may be added if it is an observer, has everything that the leader knows to be committed,
  and has told the number of its disk (`Invite`). The configuration names the member and the number.
- The added member gets the entry that adds it only when a majority of the previous configuration
  has it. So no candidate can use a configuration that only it and a lost disk know.
- A leader that is removed leads until the change is committed, does not count itself, and then
  hands over.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.raft.events import ChangeRefusal, ChangeVoters, VotersChanged, VotersKept
from broker.core.raft.member import Member
from broker.core.raft.progress import Progress
from broker.core.raft.voters import change_to, majority
from broker.model.raft import VOTERS_MAX, NodeId, Proposal, Voter, Voters
from broker.model.raft_messages import Invite


class VoterChange:
    """The changes of voters in one leader's term. Owner: one `Leader`."""

    def __init__(self, member: Member, progress: Mapping[NodeId, Progress]) -> None:
        self._m = member
        self._progress = progress
        self.disks: dict[NodeId, int] = {}  # as the members told them in this term

    @property
    def is_under_way(self) -> bool:
        """Tell whether the newest configuration is not committed."""
        return self._m.history.index > self._m.commit

    def is_over_for_me(self) -> bool:
        """Tell whether this leader was removed, and that is committed."""
        return not self._m.is_voter and not self.is_under_way

    def end_for(self, peer: NodeId) -> int:
        """Return the last index that may be sent to a peer."""
        m = self._m
        last = m.log.last_index
        if not self.is_under_way or peer not in m.voters:
            return last
        former = m.history.former
        if any(one.node == peer for one in former):
            return last
        at = m.history.index
        copies = sum(self._has(one.node, at) for one in former)
        return last if copies >= majority(len(former)) else at - 1

    def _has(self, node: NodeId, index: int) -> bool:
        if node == self._m.me:
            return self._m.durable >= index
        one = self._progress.get(node)
        return one is not None and one.match >= index

    # ------------------------------------------------------------------ being asked

    def ask(self, wanted: ChangeVoters, *, is_handing_over: bool) -> Proposal | None:
        """Return the entry to add now; without one, report a refusal or that the change is made."""
        found = self._next(wanted, is_handing_over=is_handing_over)
        if isinstance(found, ChangeRefusal):
            self._m.emit(VotersKept(wanted.number, found))
            return None
        if found is None:
            self.tell_done(wanted)
            return None
        return change_to(found)

    def tell_done(self, wanted: ChangeVoters) -> None:
        """Report that the log has the wanted change."""
        self._m.emit(VotersChanged(wanted.number, self._m.history.index))

    def _next(
        self, wanted: ChangeVoters, *, is_handing_over: bool
    ) -> Voters | ChangeRefusal | None:
        """Return the next configuration, or a refusal; None if the voters are as wanted."""
        m = self._m
        voters = m.history.voters
        is_there = (wanted.add or wanted.remove) in m.voters
        if is_there == (wanted.add is not None):
            return None
        if is_handing_over:
            return ChangeRefusal.TRANSFERRING
        waits = self._waits()
        if waits is not None:
            return waits
        if wanted.add is not None:
            found: Voters | ChangeRefusal = self._added(wanted.add)
        elif len(voters) == 1:
            found = ChangeRefusal.LAST
        else:
            found = tuple(one for one in voters if one.node != wanted.remove)
        if not isinstance(found, ChangeRefusal) and not self._is_alive(found):
            return ChangeRefusal.TOO_FEW
        return found

    def _is_alive(self, voters: Voters) -> bool:
        """Tell whether a majority of a configuration answers: a silent member may be dead."""
        heard = sum(one.node == self._m.me or self._is_heard(one.node) for one in voters)
        return heard >= majority(len(voters))

    def _is_heard(self, node: NodeId) -> bool:
        m, one = self._m, self._progress.get(node)
        return one is not None and m.now_ms - one.heard_ms < m.config.election_ms_min

    def _waits(self) -> ChangeRefusal | None:
        """Tell why no change may begin now."""
        m = self._m
        if m.log.term_at(m.commit) != m.term:
            return ChangeRefusal.TERM_BEGINS
        return ChangeRefusal.CHANGE_UNDER_WAY if self.is_under_way else None

    def _added(self, node: NodeId) -> Voters | ChangeRefusal:
        m = self._m
        if len(m.voters) >= VOTERS_MAX:
            return ChangeRefusal.TOO_MANY
        if node not in self._progress:  # this leader, if it was removed: it hands over
            return ChangeRefusal.TRANSFERRING if node == m.me else ChangeRefusal.UNKNOWN
        lags = self._lags(node)
        if lags is not None:
            return lags
        if node not in self.disks:
            m.send_now(node, Invite(m.term))
            return ChangeRefusal.INVITED
        return (*m.history.voters, Voter(node, self.disks[node]))

    def _lags(self, node: NodeId) -> ChangeRefusal | None:
        """Tell why an observer may not vote yet."""
        if not self._is_heard(node):
            return ChangeRefusal.SILENT
        behind = self._progress[node].match < self._m.commit
        return ChangeRefusal.CATCHING_UP if behind else None
