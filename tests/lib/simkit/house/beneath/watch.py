"""The promises of the Raft beneath a house, checked from outside.

At one index there is one entry and one state, for ever. Who listens in a process has heard of
everything that it has applied. A proposal takes effect at most as often as
it was made. A barrier that passes shows what any member had applied when it began. What was decided
in an office is never handed to its successor. A disk remembers the term that its member has spoken
in; a member with an empty disk takes part above that term, and above what it had acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from broker.core.metadata.state import MetadataState
from broker.core.raft.applier import Outcome
from broker.model.raft import Entry, EntryKind, Stored
from broker.model.raft_messages import Append, AppendReply, Forward, Message, Vote, VoteReply


class RaftWatch:
    """Owner: one simulation."""

    def __init__(self) -> None:
        self.state = MetadataState()  # the newest that any member has applied
        self.index = 0
        self._states = {0: self.state}
        self._entries: dict[int, Entry] = {}
        self._proposed: Counter[bytes] = Counter()
        self._effects: dict[bytes, set[int]] = {}  # of a payload: at which indexes
        self._of_offices: set[bytes] = set()
        self._spoke_in: Counter[str] = Counter()  # the highest term, by member
        self._heeded_in: Counter[str] = Counter()  # the same; another member knows that term
        self._acked: Counter[str] = Counter()  # the highest index, by member
        self._heard: dict[str, int] = {}  # what subscribers in a process were told last

    def proposed(self, payload: bytes, office: int | None) -> None:
        """A process proposes."""
        self._proposed[payload] += 1
        if office is not None:
            self._of_offices.add(payload)

    def applied(self, name: str, entries: Sequence[Entry], outcomes: Sequence[Outcome]) -> None:
        """A member has applied entries."""
        for entry in entries:
            known = self._entries.setdefault(entry.index, entry)
            assert known == entry, f"{name} has applied {entry}, others {known}"
        fresh = {one.index for one in outcomes if one.fresh}
        for entry in entries:
            if entry.kind is EntryKind.COMMAND and entry.index in fresh:
                effects = self._effects.setdefault(entry.payload, set())
                effects.add(entry.index)
                assert len(effects) <= self._proposed[entry.payload], (
                    f"{entry.payload!r} took effect at {sorted(effects)}"
                )

    def learned(self, name: str, index: int, state: MetadataState) -> None:
        """A member publishes a state."""
        known = self._states.setdefault(index, state)
        assert known == state, f"{name} has applied another state than others at {index}"
        if index > self.index:
            self.index, self.state = index, state

    def heard(self, process: str, index: int) -> None:
        """Note that a subscriber in a process got a state."""
        self._heard[process] = index

    def turn_ended(self, process: str, index: int) -> None:
        """Check, at the end of a turn, that the subscribers got everything applied."""
        told = self._heard.get(process, index)  # no subscriber yet
        assert told == index, f"{process} has applied {index}, and who listens knows of {told}"

    def passed(self, name: str, began_index: int, applied_index: int) -> None:
        """Check a barrier that passed at a member, by the highest applied index at its begin."""
        assert applied_index >= began_index, (
            f"a barrier of {name} has passed at {applied_index}; {began_index} was applied before"
        )

    def sent(self, name: str, message: Message) -> None:
        """A member speaks."""
        match message:
            case (
                Append(term=term) | AppendReply(term=term) | Vote(term=term) | VoteReply(term=term)
            ):
                self._spoke_in[name] = max(self._spoke_in[name], term)
                if not isinstance(message, Vote):
                    self._heeded_in[name] = max(self._heeded_in[name], term)
            case Forward(proposal=proposal):
                assert proposal.payload not in self._of_offices, (
                    f"{name} hands to a leader what a controller has decided: {proposal.payload!r}"
                )
        if isinstance(message, AppendReply) and message.ok:
            self._acked[name] = max(self._acked[name], message.index)

    def begins_anew(self, name: str) -> None:
        """An observer lost its disk: no vote and no commit rests on what it has said."""
        for told in (self._spoke_in, self._heeded_in, self._acked):
            del told[name]

    def starts(self, name: str, stored: Stored, *, was_wiped: bool, is_older: bool) -> None:
        """Check that a member may start on its disk, after it has asked the other members.

        The other members tell what its disk has forgotten.
        """
        term = stored.hard.term
        if not was_wiped and not is_older:
            spoke_in = self._spoke_in[name]
            assert term >= spoke_in, f"{name} starts in term {term}, and spoke in term {spoke_in}"
            return
        heeded_in = self._heeded_in[name]
        assert term >= heeded_in + was_wiped, (
            f"{name} starts in term {term}, and was heeded in term {heeded_in}"
        )
        acked = min(self._acked[name], self.index)
        last = stored.log.base_index + len(stored.log.entries)
        knows = max(stored.floor.index, stored.bar.index, last)
        assert knows >= acked, f"{name} starts with {knows}, and has acknowledged {acked}"
