"""How a member with an empty disk joins its group: the disk is new, or it was wiped.

The member has forgotten its votes and its acknowledgements. So it asks all other members for the
highest term and the longest log. It joins with the next higher term, in which it cannot have voted.
The end of the longest log is its *floor*: below the floor it neither votes nor stands. Why that is
enough:

- A candidate's term is durable before it asks for votes. So no candidate that can still win had
  this member's vote in a higher term than the answers show. One of the answers has a leader's term.
- An entry that this member acknowledged and that is, or will be, committed is in the log of a
  member that answers: of the leader that may still count the acknowledgement, or of a member of the
  majority that has the entry on disks that were not wiped.
- In the new term the present leader steps down, and forgets the acknowledgements of this member.

All answers must describe *one moment*. So the member asks every other member twice. The second
answers count if the same processes gave them as the first: then no disk was lost between the two.

Observers never voted, and their acknowledgements never counted, so the argument does not need them.
They are asked only before a *new* group begins: what an observer has was committed, and a group
that begins beside it has forgotten it. Docs: `docs/decisions/0010-own-raft.md`.

After a change of the voters, a member with an empty disk does not know who "all other members" are.
So if any answer tells of a change, this member is no voter any more: it joins as an observer, its
disk gets a number, and an operator makes it a voter again (`docs/decisions/0023-*.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.core.raft.config import RaftConfig
from broker.errors import ControllersLostError
from broker.model.raft import DISK_MAX, Floor, NodeId, Standing

REQUEST_MAX: Final = 1 << 61  # it and the numbers after it fit into a message


@dataclass(frozen=True, slots=True)
class TakePart:
    """Persist ``term`` with its vote used; do not vote below ``floor``. (0, 0): the group is new.

    With ``disk`` the member joins as an observer whose disk has this number. All of it must be
    durable before the member sends its first message to the group.
    """

    term: int = 0
    floor: Floor = field(default_factory=Floor)
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, and the process that gave it (``life``)."""

    life: int
    standing: Standing


class Rejoin:
    """One start with an empty disk. Owner: one thread, which asks until there is a result."""

    def __init__(
        self,
        config: RaftConfig,
        me: NodeId,
        *,
        random: Callable[[int, int], int],
        has_taken_part: bool = False,
    ) -> None:
        """Start; ``random`` draws request ids that no earlier process has used.

        ``has_taken_part``: something other than the empty disk shows that this member is not new.
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
        self.behind: tuple[NodeId, ...] = ()  # members that must reach their own floors first

    @property
    def unanswered(self) -> tuple[NodeId, ...]:
        """The members to ask, repeatedly until this changes, with :attr:`request_id`."""
        told = self._told
        begun = any(one in told and told[one].standing.knows for one in self._others)
        wanted = self._others if begun else (*self._others, *self._observers)
        return tuple(one for one in wanted if one not in told)

    def told(
        self, sender: NodeId, request_id: int, life: int, standing: Standing
    ) -> TakePart | None:
        """Take an answer; ``life`` is the id of the process that gave it. Return how to join.

        Raises:
            ControllersLostError: more members have lost their disks than the group survives.
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
        """Return the answers of this round; only those of members, if one of them knows a group."""
        members = {one: told for one, told in self._told.items() if one in self._others}
        if any(one.standing.knows for one in members.values()):
            return members
        return self._told

    def _judge(self, told: dict[NodeId, Standing]) -> TakePart | None:
        if not any(one.knows for one in told.values()):
            return self._begin_anew(told)
        if not any(at.knows for one, at in told.items() if one in self._others):
            return self._judge_observers(told)
        fresh = [self._me, *(one for one, at in told.items() if at.fresh)]
        if len(fresh) >= self._quorum:
            raise _lost(fresh)
        self.behind = tuple(sorted(one for one, at in told.items() if at.behind))
        if len(fresh) + len(self.behind) >= self._quorum:
            return None  # a join would depose the leader, and no other member could be elected
        term = max(one.term for one in told.values())
        return TakePart(term + 1, max(one.last for one in told.values()))

    def _begin_anew(self, told: dict[NodeId, Standing]) -> TakePart:
        """No member knows of a group: it is new, unless this member knows that it is not."""
        fresh = [self._me, *(one for one in self._others if told[one].fresh)]
        if self._has_taken_part and len(fresh) >= self._quorum:
            raise _lost(fresh)
        return TakePart()

    def _judge_observers(self, told: dict[NodeId, Standing]) -> TakePart | None:
        """Only observers know of a group: its members are all wiped, or are still starting."""
        if all(told[one].fresh for one in self._others):
            raise _lost([self._me, *self._others])
        return None


def _lost(fresh: list[NodeId]) -> ControllersLostError:
    return ControllersLostError(
        f"the disks of {', '.join(sorted(fresh))} are empty, but their group has been in use: "
        "more than a minority of the controllers is lost, and with them metadata that was "
        "acknowledged. Bring back the data directory of one of them. If none is left, make a new "
        "cluster, with empty data directories on all brokers",
        lost=",".join(sorted(fresh)),
    )


def same_moment(before: dict[NodeId, Told], now: dict[NodeId, Told]) -> bool:
    """Tell whether both rounds describe one moment: no process ended or began in between."""
    known = [any(one.standing.knows for one in told.values()) for told in (before, now)]
    return (
        known[0] == known[1]
        and before.keys() == now.keys()
        and all(
            (before[one].life, before[one].standing.fresh) == (told.life, told.standing.fresh)
            for one, told in now.items()
        )
    )
