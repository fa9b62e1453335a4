"""How a member that restarts protects the group from a disk that was restored to an earlier state.

Such a disk looks healthy: term, vote and log are whole, but older than what this member has
promised. Nothing on the disk shows that. So at every start a voter asks all other members before it
sends anything else, as a member with an empty disk does (`rejoin.py`):

- It continues in the highest term of the answers. If it does not know its vote in that term, the
  vote counts as used. A candidate's term is durable before it asks for votes, so this member has
  forgotten no vote of a later term.
- The end of the longest log of the answers is its *bar*: the member votes as if its own log ended
  there, and does not stand below it. A committed entry that this member acknowledged is on the disk
  of a member that answers, because a majority had it and fewer than a majority forget. So every log
  that reaches the bar has the entry.
- Before a leader answers, it forgets what the former process acknowledged, and from then on counts
  what the new process confirms (`Leader.forget_copies`). So the leader's term need not end.

All answers must describe one moment, as in `rejoin.py`: every member is asked twice.

A member that is silent for the grace period is left out, if a majority is left: a group of three
must continue without a machine that does not return. One case stays open: only that machine and
this one had a committed entry, *and* this disk was restored at the same moment. For the same reason
the bar ends after a grace period without a leader. Docs: `docs/decisions/0019-*.md`.

The voters may have changed since this disk was written. So as soon as a change is known,
everybody is asked. The member waits for the voters that the longest log names (and for the voters
before an uncommitted change). Docs: `docs/decisions/0023-*.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.core.raft.config import RaftConfig
from broker.core.raft.rejoin import REQUEST_MAX, Told, same_moment
from broker.core.raft.voters import majority
from broker.model.raft import Floor, HardState, NodeId, Standing

_MANY: Final = 3  # from this many voters on, another voter knows of a change that a disk forgot


@dataclass(frozen=True, slots=True)
class GoOn:
    """Persist the term and vote of ``hard``; vote as if the log ended at least at ``bar``.

    ``silent``: the members that did not answer in time.
    """

    hard: HardState
    bar: Floor = field(default_factory=Floor)
    silent: tuple[NodeId, ...] = ()


class Compare:
    """One restart of a voter. Owner: one thread, which asks until there is a result."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        hard: HardState,
        *,
        random: Callable[[int, int], int],
        own: Standing | None = None,
    ) -> None:
        """Start with the disk's content; ``random`` draws request ids that no other process uses.

        ``own`` has the end of the log on the disk, and the voters that the log names.
        """
        own = own or Standing()
        self._me = me
        self._hard = hard
        self._config = config
        self._everybody = tuple(one for one in (*config.members, *config.observers) if one != me)
        self._heard: set[NodeId] = set()
        self._told: dict[NodeId, Told] = {}
        self._before: dict[NodeId, Told] | None = None
        self._waits_for_all = True
        self._voters: tuple[NodeId, ...] = ()
        self._changed = False
        self._furthest = own.last
        self.request_id = random(1, REQUEST_MAX)
        self.behind: tuple[NodeId, ...] = ()
        self._take_voters(own.voters)

    def _take_voters(self, voters: tuple[NodeId, ...]) -> None:
        """Use the configuration of the longest log that is known."""
        self._changed = self._changed or bool(voters)
        voters = voters or self._config.members
        if voters != self._voters:
            self._voters = voters
            self._others = tuple(one for one in voters if one != self._me)
            self._wanted = self._others
            self._begin_round(None)

    @property
    def _also_asked(self) -> tuple[NodeId, ...]:
        """The members to ask in addition to the voters: perhaps only they know of a change.

        Empty while nothing shows that there was a change, and the voters answer.
        """
        if self._changed or not self._waits_for_all or len(self._voters) < _MANY:
            return tuple(one for one in self._everybody if one not in self._others)
        return ()

    @property
    def _waited_for(self) -> tuple[NodeId, ...]:
        """The members whose answers are needed for a result."""
        few = len(self._voters) < _MANY
        return (*self._wanted, *(self._also_asked if few and self._waits_for_all else ()))

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """The members to ask, repeatedly until this changes, with :attr:`request_id`."""
        return tuple(one for one in (*self._wanted, *self._also_asked) if one not in self._told)

    def told(self, sender: NodeId, request_id: int, life: int, standing: Standing) -> GoOn | None:
        """Take an answer; ``life`` is the id of its process. Return the result, if any."""
        if sender in (*self._others, *self._also_asked) and request_id <= self.request_id:
            self._heard.add(sender)
        if request_id != self.request_id or sender not in self.unanswered:
            return None
        self._told[sender] = Told(life, standing)
        if standing.last > self._furthest and not standing.behind:
            self._furthest = standing.last
            self._take_voters(standing.voters)
        return self._conclude()

    def _conclude(self) -> GoOn | None:
        """End a round when all needed answers are there; two equal rounds describe one moment."""
        if any(one not in self._told for one in self._waited_for):
            return None
        before, now = self._before, {one: self._told[one] for one in self._waited_for}
        told = [one.standing for one in self._told.values()]
        self._begin_round(now)
        if before is None or not same_moment(before, now):
            return None
        return self._judge(told)

    def leave_out_silent(self) -> GoOn | None:
        """Wait only for members that answered since the last call, or in this round.

        A member that answered in this round is not asked again before the round ends, and the round
        cannot end while it waits for a silent member. The members that are left and this one must
        be a majority; else no member is left out. Return the result if no member is left to wait
        for.
        """
        self._waits_for_all = False
        lately = self._heard | self._told.keys()
        answered = tuple(one for one in self._others if one in lately)
        self._heard.clear()
        own = int(self._me in self._voters)
        wanted = answered if len(answered) + own >= majority(len(self._voters)) else self._others
        if wanted != self._wanted:
            self._wanted = wanted
            self._begin_round(None)
        if not self._waited_for:
            return self._judge([one.standing for one in self._told.values()])
        return None

    def _begin_round(self, before: dict[NodeId, Told] | None) -> None:
        self._before, self._told = before, {}
        self.request_id += 1

    def _judge(self, told: list[Standing]) -> GoOn:
        hard = self._hard
        term = max((hard.term, *(one.term for one in told)))
        vote = hard.vote if term == hard.term else None
        if term and vote is None:
            vote = self._me  # it may have voted and forgotten it: so the vote counts as used
        silent = tuple(one for one in self._others if one not in self._wanted)
        bar = max((one.last for one in told), default=Floor())
        return GoOn(HardState(term, vote, hard.commit), bar, silent)
