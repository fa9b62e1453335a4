"""How a member takes part again whose disk is empty: new, or wiped.

It has forgotten its votes and its acks, so it learns from all the others what it may have said:
the highest term, and the furthest log. It takes part one term above, where it has not voted, and
below that *floor* it neither votes nor stands. Why that is enough:

- A candidate is durably in a term before it asks for votes. So no candidate that can still win had
  this member's vote in a term above what the others tell, and a leader's term is told by somebody.
- What it acknowledged and is, or will be, committed is in the log of a member that answers: of the
  leader that may still count that ack, or of a majority's disks without the few that are wiped.
- In the new term the present leader steps down, and with it what it believes this member to have.

All of this needs the answers of *one moment*. So everybody is asked twice, each time everybody;
the second answers count if they come from the same processes as the first: then nobody lost a disk
between the two.

Observers never voted and never acknowledged anything that counted, so an argument about votes and
acks leaves them out. They are asked only before a *new* group begins: what they know was committed
once, and a group that begins beside them has forgotten it. Docs: `docs/decisions/0010-own-raft.md`.

Once the voters were changed, "all the others" are not known to a member whose disk is empty. So if
anybody tells of a change, this member is not that voter any more: it takes part as an observer,
with a number for its disk, and an operator makes it a voter anew (`docs/decisions/0023-*.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.core.raft.config import RaftConfig
from broker.errors import ControllersLostError
from broker.model.raft import DISK_MAX, Floor, NodeId, Standing

REQUEST_MAX: Final = 1 << 61  # a request and those after it fit into a message


@dataclass(frozen=True, slots=True)
class TakePart:
    """Be durably in ``term``, with the vote in it spent, and below ``floor`` abstain. (0, 0): new.

    With ``disk`` it takes part as an observer whose disk has this number. To be noted before
    anything is said to the group.
    """

    term: int = 0
    floor: Floor = field(default_factory=Floor)
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, and the process that gave it."""

    life: int
    standing: Standing


class Rejoin:
    """One start with an empty disk. Owner: one thread; ask, listen, until there is an answer."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        *,
        random: Callable[[int, int], int],
        has_taken_part: bool = False,
    ) -> None:
        """Begin; ``random`` makes this process's requests different from an earlier one's.

        With ``has_taken_part`` something beside the empty disk says that this member is not new.
        """
        self._me = me
        self._has_taken_part = has_taken_part
        self._others = tuple(one for one in config.members if one != me)
        self._observers = config.observers
        self._quorum = config.quorum
        self._random = random
        self._told: dict[NodeId, Told] = {}
        self._before: dict[NodeId, Told] | None = None
        self.request_id = random(1, REQUEST_MAX)
        self.behind: tuple[NodeId, ...] = ()  # who must reach its own floor first

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """Whom to ask now, and again until this changes, with :attr:`request_id`."""
        told = self._told
        begun = any(one in told and told[one].standing.knows for one in self._others)
        wanted = self._others if begun else (*self._others, *self._observers)
        return tuple(one for one in wanted if one not in told)

    def told(
        self, sender: NodeId, request_id: int, life: int, standing: Standing
    ) -> TakePart | None:
        """Take an answer; ``life`` names the process that gives it. Return how to take part.

        Raises:
            ControllersLostError: more members lost their disks than the group survives.
        """
        if standing.voters:
            if standing.voters == (self._me,):
                raise _lost([self._me])
            return TakePart(disk=self._random(1, DISK_MAX))
        if request_id != self.request_id or sender not in self.unanswered:
            return None
        self._told[sender] = Told(life, standing)
        if self.unanswered:
            return None
        before, now = self._before, self._counted()
        self._before, self._told = now, {}
        self.request_id += 1
        if before is None or not same_moment(before, now):
            return None
        return self._judge({one: told.standing for one, told in now.items()})

    def _counted(self) -> dict[NodeId, Told]:
        """Return the round's answers; where a member knows of a group, those of members."""
        members = {one: told for one, told in self._told.items() if one in self._others}
        if any(one.standing.knows for one in members.values()):
            return members
        return self._told

    def _judge(self, told: dict[NodeId, Standing]) -> TakePart | None:
        if not any(one.knows for one in told.values()):
            return self._begin_anew(told)
        if not any(at.knows for one, at in told.items() if one in self._others):
            return self._judge_orphans(told)
        fresh = [self._me, *(one for one, at in told.items() if at.fresh)]
        if len(fresh) >= self._quorum:
            raise _lost(fresh)
        self.behind = tuple(sorted(one for one, at in told.items() if at.behind))
        if len(fresh) + len(self.behind) >= self._quorum:
            return None  # stepping in now would end a leader that those who are left cannot replace
        term = max(one.term for one in told.values())
        return TakePart(term + 1, max(one.last for one in told.values()))

    def _begin_anew(self, told: dict[NodeId, Standing]) -> TakePart:
        """Nobody knows of a group: it is new, unless this member knows better."""
        fresh = [self._me, *(one for one in self._others if told[one].fresh)]
        if self._has_taken_part and len(fresh) >= self._quorum:
            raise _lost(fresh)
        return TakePart()

    def _judge_orphans(self, told: dict[NodeId, Standing]) -> TakePart | None:
        """Only observers know of a group: its members are all wiped, or are just beginning."""
        if all(told[one].fresh for one in self._others):
            raise _lost([self._me, *self._others])
        return None


def _lost(fresh: list[NodeId]) -> ControllersLostError:
    return ControllersLostError(
        f"the disks of {', '.join(sorted(fresh))} are empty, and others have been in use: "
        "more than a minority of the controllers is lost, and with it metadata that was "
        "acknowledged. Bring back the data directory of one of them. If none is left, "
        "only a new cluster can be made, of empty data directories everywhere",
        lost=",".join(sorted(fresh)),
    )


def same_moment(before: dict[NodeId, Told], now: dict[NodeId, Told]) -> bool:
    """Tell whether both rounds speak of one moment: no process ended, nobody began in between."""
    known = [any(one.standing.knows for one in told.values()) for told in (before, now)]
    return (
        known[0] == known[1]
        and before.keys() == now.keys()
        and all(
            (before[one].life, before[one].standing.fresh) == (told.life, told.standing.fresh)
            for one, told in now.items()
        )
    )
