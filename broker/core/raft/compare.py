"""How a member that restarts finds out whether its disk is the one that it had.

A disk that was put back to an earlier moment looks like any other: term, vote and log are whole,
and older than what this member has promised. Nothing on that disk can tell. So every start of a
voter asks all the others, as one with an empty disk does (`rejoin.py`), before it says anything:

- It goes on in the highest term that it was told, with its vote in it spent if it does not know of
  one. A candidate is durably in its term before it asks, so no vote that this member has forgotten
  was given in a later one.
- The furthest log that it was told of is its *bar*: it votes as if its own log ended there, and
  does not stand below it. What it acknowledged and is committed is on the disk of one who answers
  (a majority had it, and fewer than a majority forget), so whoever reaches the bar has it.
- Who leads forgets, before it answers, what the former process acknowledged: from then on it counts
  what the new one confirms (`Leader.forget_copies`). So the leader's term need not end.

All of it needs the answers of one moment, as in `rejoin.py`: everybody is asked twice.

Who stays silent for the grace is left out, if a majority is left: a group of three must go on
without a machine that does not come back. What that leaves open: *that* machine, and it alone with
this one, held something committed, *and* this disk was put back in the same moment. The bar lapses
after the same grace without any leader, for the same reason. Docs: `docs/decisions/0019-*.md`.

Who the others are may have changed since this disk was written. So once a change is known of,
everybody is asked, and those are waited for whom the furthest log names as voters (and, while a
change is not known to be committed, those before it). Docs: `docs/decisions/0023-*.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.core.raft.config import RaftConfig
from broker.core.raft.rejoin import REQUEST_MAX, Told, same_moment
from broker.core.raft.voters import majority
from broker.model.raft import Floor, HardState, NodeId, Standing

_MANY: Final = 3  # of so many voters one may forget, and the others know of a change


@dataclass(frozen=True, slots=True)
class GoOn:
    """Be durably in ``hard``'s term with that vote; below ``bar`` vote as if the log ended there.

    ``silent`` did not answer in time.
    """

    hard: HardState
    bar: Floor = field(default_factory=Floor)
    silent: tuple[NodeId, ...] = ()


class Compare:
    """One restart of a voter. Owner: one thread; ask, listen, until there is an answer."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        hard: HardState,
        *,
        random: Callable[[int, int], int],
        own: Standing | None = None,
    ) -> None:
        """Begin with what the disk says; ``random`` makes this process's requests its own.

        ``own`` is how far the disk is, and whom it names as voters.
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
        """Go by the configuration of the furthest log that is known of."""
        self._changed = self._changed or bool(voters)
        voters = voters or self._config.members
        if voters != self._voters:
            self._voters = voters
            self._others = tuple(one for one in voters if one != self._me)
            self._wanted = self._others
            self._begin_round(None)

    @property
    def _beside(self) -> tuple[NodeId, ...]:
        """Whom to ask beside the voters: a change may be known to others only.

        Not at once while nothing says that there was one and those who vote answer.
        """
        if self._changed or not self._waits_for_all or len(self._voters) < _MANY:
            return tuple(one for one in self._everybody if one not in self._others)
        return ()

    @property
    def _waited_for(self) -> tuple[NodeId, ...]:
        """Without whose answers there is no conclusion."""
        few = len(self._voters) < _MANY
        return (*self._wanted, *(self._beside if few and self._waits_for_all else ()))

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """Whom to ask now, and again until this changes, with :attr:`request_id`."""
        return tuple(one for one in (*self._wanted, *self._beside) if one not in self._told)

    def told(self, sender: NodeId, request_id: int, life: int, standing: Standing) -> GoOn | None:
        """Take an answer; ``life`` names the process that gives it. Return how to go on."""
        if sender in (*self._others, *self._beside) and request_id <= self.request_id:
            self._heard.add(sender)
        if request_id != self.request_id or sender not in self.unanswered:
            return None
        self._told[sender] = Told(life, standing)
        if standing.last > self._furthest and not standing.behind:
            self._furthest = standing.last
            self._take_voters(standing.voters)
        return self._conclude()

    def _conclude(self) -> GoOn | None:
        """End a round when all who are waited for have answered; two alike are one moment's."""
        if any(one not in self._told for one in self._waited_for):
            return None
        before, now = self._before, {one: self._told[one] for one in self._waited_for}
        told = [one.standing for one in self._told.values()]
        self._begin_round(now)
        if before is None or not same_moment(before, now):
            return None
        return self._judge(told)

    def leave_out_silent(self) -> GoOn | None:
        """Ask those only who have answered lately, if they are a majority with us.

        Lately is since the last call; or in this round, for who has answered in it is not asked
        again before it ends, and it cannot end as long as it waits for somebody silent. If nobody
        is left to wait for, this is the answer.
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
            vote = self._me  # it may have voted, and has forgotten: nobody else gets it
        silent = tuple(one for one in self._others if one not in self._wanted)
        bar = max((one.last for one in told), default=Floor())
        return GoOn(HardState(term, vote, hard.commit), bar, silent)
