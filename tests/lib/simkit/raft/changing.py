"""One seed of a group whose voters change: added, removed, replaced, the leader among them.

All of `sim.py` goes on: crashes, partitions, disks wiped and put back, restarts. An operator asks
whoever leads, or another by mistake. From outside it is checked that whoever leads was elected by
most of the configuration in force, that commits lie on most of its disks, that configurations
follow each other by one voter, and that a new voter has what was committed when it becomes one.
What is in force is read off a member's log and the committed entries, not asked of the product.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

from broker.codec.disk.raft_member_file import decode_member_file
from broker.codec.disk.raft_voters import decode_voters
from broker.core.raft.events import ChangeVoters, Save, VotersChanged, VotersKept
from broker.core.raft.member import Role
from broker.errors import HeadwaterError
from broker.model.raft import Entry, EntryKind, LogImage, NodeId, Voter, Voters
from broker.storage.raft.journal import has_lost_all
from simkit.raft.node import FOLDER, SimNode
from simkit.raft.sim import RaftSim
from simkit.raft.truth import Promises, Truth
from simkit.raft.world import World

SIZE_MAX: Final = 5
_MEMBER: Final = f"{FOLDER}/member"
# Damage, and machines that leave for good, are other stories: `sim.py` tells them.
FAULTS: Final = (
    "cut", "one-way", "drop", "double", "reorder", "kill", "power", "pause", "skew", "stop",
    "transfer", "slow", "late", "wipe", "restore", "copy", "lose",
)  # fmt: skip


class ChangingTruth(Truth):
    """The promises that must hold while the voters change."""

    def __init__(self, seen: Counter[str], voters: Collection[NodeId]) -> None:
        super().__init__(seen, voters)
        self.first: Voters = tuple(Voter(one) for one in voters)
        self.gone: set[Voter] = set()  # lost their disks for good
        self.nodes: dict[NodeId, ChangingNode] = {}

    # ------------------------------------------------------------------ voters

    def newest(self, index: int) -> Voters:
        """Return the newest configuration among the first ``index`` committed entries."""
        for entry in reversed(self.chosen[:index]):
            if entry.kind is EntryKind.VOTERS:
                return decode_voters(entry.payload)
        return self.first

    def in_force(self, node: NodeId) -> Voters:
        """Return the newest configuration in a member's log."""
        log: LogImage = self.nodes[node].member.log.image()
        for entry in reversed(log.entries):
            if entry.kind is EntryKind.VOTERS:
                return decode_voters(entry.payload)
        return self.newest(log.base_index)

    def has_lost(self, voter: Voter) -> bool:
        """Tell whether a voter may lack entries that it had, so that it may not vote."""
        return voter in self.gone or (
            voter.node in self.lost and self.nodes[voter.node].number == voter.disk
        )

    # ------------------------------------------------------------------ checks

    def led(self, node: NodeId, term: int, terms: dict[int, int], base: int) -> None:
        """Check election safety and leader completeness, and election by a majority of voters."""
        voters = self.in_force(node)
        own = Voter(node, self.nodes[node].number)
        was = self.nodes[node].member.history.former
        assert own in voters or own in was, f"{own} leads term {term} of {voters}, before {was}"
        self.seen["elected to leave"] += own not in voters
        votes = [self.votes.get((term, _name(one))) for one in voters]
        count = sum(one == own or (vote or ("",))[0] == node for one, vote in zip(voters, votes))  # noqa: B905
        assert 2 * count > len(voters), f"{node} leads term {term} by {count} of {voters}"
        self.seen["elected by voters that were added"] += any(one.disk for one in voters)
        everybody, self.voters = self.voters, [node]
        try:
            super().led(node, term, terms, base)
        finally:
            self.voters = everybody

    def voted(self, voter: NodeId, term: int, candidate: NodeId, candidacy: int) -> None:
        """Check that no disk votes twice in a term, and only disks that may be a voter's vote."""
        node, _, disk = voter.partition("#")
        assert disk or any(one.node == node for one in self.first), f"{voter} votes in {term}"
        everybody, self.voters = self.voters, [voter]
        try:
            super().voted(voter, term, candidate, candidacy)
        finally:
            self.voters = everybody

    def committed(self, node: NodeId, term: int, entries: tuple[Entry, ...]) -> None:
        """A commit is durable on most of the voters in force, when it is first said."""
        voters = self.in_force(node)
        for entry in entries:
            if entry.index > len(self.chosen):
                copies = sum(
                    self.has_lost(one) or self.promises[one.node].has(entry.index, entry.term)
                    for one in voters
                )
                assert 2 * copies > len(voters), (
                    f"{node} commits {entry.index}/{entry.term} on {copies} of {voters}"
                )
                if entry.kind is EntryKind.VOTERS:
                    self._follows(self.newest(len(self.chosen)), decode_voters(entry.payload))
            self._one_more(node, term, entry)

    def _one_more(self, node: NodeId, term: int, entry: Entry) -> None:
        quorum, self.quorum = self.quorum, 0  # it was counted here
        try:
            super().committed(node, term, (entry,))
        finally:
            self.quorum = quorum

    def _follows(self, before: Voters, after: Voters) -> None:
        changed = set(before) ^ set(after)
        assert len(changed) == 1, f"{after} does not follow {before}"
        self.seen["voter added" if len(after) > len(before) else "voter removed"] += 1
        self.seen[f"{len(after)} voters"] += 1

    def adds(self, leader: ChangingNode, entry: Entry) -> None:
        """Check that a new voter has every entry that its leader knew to be committed."""
        before = leader.voters_before(entry.index)
        commit = min(leader.member.commit, entry.index - 1)
        for one in set(decode_voters(entry.payload)) - set(before):
            node = self.nodes[one.node]
            if node.number != one.disk or self.has_lost(one):
                continue  # it was wiped, or put back, since it was asked
            term = leader.member.log.term_at(commit)
            assert term is None or self.promises[one.node].has(commit, term), (
                f"{one} becomes a voter at {entry.index} and has not {commit}"
            )


def _name(voter: Voter) -> NodeId:
    return NodeId(f"{voter.node}#{voter.disk}") if voter.disk else voter.node


class ChangingNode(SimNode):
    """A machine that may be made a voter, or none."""

    def __init__(self, world: World, name: NodeId, *, may_rot: bool) -> None:
        super().__init__(world, name, may_rot=may_rot)
        self.number = 0  # of the disk, as the disk says
        self.eras: list[list[Voters]] = []  # what each copy of the disk may believe is in force
        truth = world.truth
        assert isinstance(truth, ChangingTruth)
        self.here = truth
        truth.nodes[name] = self

    @property
    def is_voter_somehow(self) -> bool:
        """Tell whether some configuration may name this disk."""
        return self.number != 0 or self.name in self.world.config.members

    def believed(self) -> list[Voters]:
        """Return what may be in force here, as the process knows it, or knew it last."""
        if not hasattr(self, "core"):
            return [self.here.first]
        return [self.member.history.voters, self.member.history.former]

    def voters_before(self, index: int) -> Voters:
        """Return the configuration in force before the entry at ``index``."""
        log = self.member.log.image()
        for entry in reversed(log.entries):
            if entry.kind is EntryKind.VOTERS and entry.index < index:
                return decode_voters(entry.payload)
        return self.here.newest(log.base_index)

    # ------------------------------------------------------------------ its disk

    def _look_at_number(self) -> None:
        there = _MEMBER in self.disk.paths()
        self.number = decode_member_file(self.disk.peek(_MEMBER))[0].disk if there else 0

    def start(self) -> None:
        """Begin; with a number and nothing else left it is another disk."""
        self._look_at_number()
        if self.number and has_lost_all(self.disk.files(), FOLDER):
            files = self.disk.files()
            files.remove(_MEMBER)
            files.sync_folder(FOLDER)
            self.number = 0
        super().start()

    def _take_part(self, found: Any) -> None:
        before = Voter(self.name, self.number)
        super()._take_part(found)
        self._look_at_number()
        if self.number != before.disk:
            self.here.gone.add(before)
            self.here.lost.discard(self.name)

    def _save(self) -> None:
        before = self.number
        super()._save()
        self._look_at_number()
        if self.number and not before:
            self.here.seen["disk numbered"] += 1

    def _note(self, save: Save) -> None:
        super()._note(save)
        for entry in save.entries:
            leads = self.member.role is Role.LEADER and entry.term == self.member.term
            if entry.kind is EntryKind.VOTERS and leads:
                self.here.adds(self, entry)

    def wipe(self) -> None:
        """Lose the disk: a first voter may come back, one with a number never does."""
        voter, could = Voter(self.name, self.number), self.is_voter_somehow
        lost = self.here.lost
        super().wipe()
        if self.number or not could:
            lost.discard(self.name)
        if self.number:
            self.here.gone.add(voter)
        self.here.wiped[_name(voter)] += 1
        self.number = 0

    def copy_disk(self) -> None:
        """Keep a copy of the disk, and the configuration that a start on it would use."""
        super().copy_disk()
        self.eras.append(self.believed())

    def put_back(self) -> None:
        """Put back a copy; it may be of a time when the disk had no number."""
        voter = Voter(self.name, self.number)
        super().put_back()
        self._look_at_number()
        if self.number != voter.disk:
            if voter.disk or self.name in self.world.config.members:
                self.here.gone.add(voter)
            # What the copy is of may have been a voter, and have forgotten since.
            if not self.is_voter_somehow:
                self.here.lost.discard(self.name)
        self.here.wiped[_name(Voter(self.name, self.number))] += 1

    def lose_files(self) -> None:
        """Lose all but the member file."""
        voter = Voter(self.name, self.number)
        super().lose_files()
        self.here.wiped[_name(voter)] += 1
        if voter.disk:
            self.here.gone.add(voter)
            self.here.lost.discard(self.name)
            self.number = 0


class ChangingSim(RaftSim):
    """Runs one seed."""

    node_type = ChangingNode
    truth_type = ChangingTruth
    changes = True

    def __init__(
        self, seed: int, faults: tuple[str, ...] | None, size: int | None, observers: int | None
    ) -> None:
        dice = self.dice = random.Random(f"voters {seed}")
        drawn = tuple(one for one in FAULTS if dice.random() < 0.3)
        size = size or dice.choice((1, 1, 3, 3, 5))
        observers = observers or dice.choice((1, 2, 3))
        super().__init__(seed, faults or drawn or ("kill",), size, observers)
        self.wipes = True  # disks are looked at before they are believed
        self.compares = True
        self._some_leave = False
        for node in self.nodes.values():
            if not node.observes and not node.disk.paths():
                node.make_member()
        self.gap = dice.choice((5.0, 15.0, 40.0))
        self._asked = 0
        self._wish: ChangeVoters | None = None
        self._tries = 0
        self._at(dice.random() * 60, None, "change", None)

    @property
    def here(self) -> ChangingTruth:
        """The truth."""
        assert isinstance(self.truth, ChangingTruth)
        return self.truth

    def _there(self) -> list[ChangingNode]:
        return [one for one in self.nodes.values() if isinstance(one, ChangingNode)]

    def _happen(self, what: str, argument: Any) -> None:
        if what == "change" and not self._healed:
            self._change()
            self._at(self.dice.random() * 2 * self.gap, None, "change", None)
        else:
            super()._happen(what, argument)

    # ------------------------------------------------------------------ the operator

    def _change(self) -> None:
        """Ask a leader, or by mistake a follower, for a change, until it is done or given up."""
        dice = self.dice
        alive = [one for one in self._there() if one.alive and one.joining is None]
        alive = [one for one in alive if one.paused_until <= self.now]
        leaders = [one for one in alive if one.member.role is Role.LEADER]
        if not alive:
            return
        if self._wish is None or self._tries > 12:
            self._wish, self._tries = self._draw(), 0
        self._tries += 1
        node = dice.choice(leaders if leaders and dice.random() < 0.9 else alive)
        wish = self._wish
        after = _after(node.member.history.voters, wish)
        if not self._is_allowed(after) or self._is_stale(node, wish):
            self._wish = None
            return
        self._asked += 1
        node.step(ChangeVoters(self._asked, wish.add, wish.remove))

    def _is_stale(self, node: ChangingNode, wish: ChangeVoters) -> bool:
        """Tell whether the disk that would be added is gone: that is a loss while it is added."""
        core: Any = node.core
        told = core._leader._change.disks if core._leader is not None else {}
        there = self.nodes.get(wish.add or NodeId(""))
        assert there is None or isinstance(there, ChangingNode)
        return there is not None and told.get(there.name, there.number) != there.number

    def _draw(self) -> ChangeVoters:
        dice = self.dice
        voters = self.here.newest(len(self.here.chosen))
        dead = [one.node for one in voters if one in self.here.gone]
        if dead and dice.random() < 0.7:
            return ChangeVoters(0, remove=dice.choice(dead))
        names = {one.node for one in voters}
        others = [one for one in self.nodes if one not in names]
        grows = len(voters) < 3 or dice.random() < 0.5
        if others and grows and len(voters) < SIZE_MAX:
            return ChangeVoters(0, add=dice.choice(others))
        leaders = [one.name for one in self._there() if one.alive and one.name in names]
        return ChangeVoters(0, remove=dice.choice(leaders or sorted(names)))

    def changed(self, node: SimNode, answer: VotersChanged | VotersKept) -> None:
        """Take the answer to a change; ask again if it was refused."""
        if isinstance(answer, VotersChanged):
            self.seen["change taken"] += 1
            if answer.number == self._asked:
                self._wish = None
        else:
            self.seen[f"not changed: {answer.reason.value}"] += 1

    # ------------------------------------------------------------------ the fault model

    def _relevant(self) -> Iterable[Voters]:
        """Yield every configuration in which a member may still vote."""
        yield self.here.newest(len(self.here.chosen))
        for node in self._there():
            yield from node.believed()

    def _is_allowed(self, voters: Voters, *more: ChangingNode) -> bool:
        """Tell whether fewer than half of a configuration would lack what they promised."""
        names = {Voter(one.name, one.number) for one in more}
        lacking = sum(one in names or self.here.has_lost(one) for one in voters)
        return bool(voters) and 2 * lacking < len(voters)

    def _may_lose(self, node: ChangingNode, eras: Iterable[Voters] = ()) -> bool:
        return not node.is_voter_somehow or all(
            self._is_allowed(one, node) for one in (*self._relevant(), *eras)
        )

    def _wipe(self, node: SimNode) -> None:
        assert isinstance(node, ChangingNode)
        if self._may_lose(node):
            self._crash(node, power=True)
            self.seen["numbered disk wiped"] += node.number > 0
            node.wipe()

    def _forget(self, node: SimNode, kind: str) -> None:
        assert isinstance(node, ChangingNode)
        if not node.is_voter_somehow or node.broken or not self._may_lose(node):
            return
        if kind == "restore":
            fits = [at for at, eras in enumerate(node.eras) if self._may_lose(node, eras)]
            if not fits:
                return
            keep = self.dice.choice(fits)
            node.copies, node.eras = [node.copies[keep]], [node.eras[keep]]
            self._crash(node, power=True)
            node.put_back()
        elif _MEMBER in node.disk.paths():
            self._crash(node, power=True)
            node.lose_files()

    # ------------------------------------------------------------------ the end

    def _last_check(self) -> None:
        nodes = list(self.nodes.values())
        assert not any(one.broken for one in nodes), "damage from nowhere"
        assert len({one.applier.index for one in nodes}) == 1, "not all at the same place"
        assert len({one.machine.hash for one in nodes}) == 1, "the states differ"
        assert len({one.applier.voters for one in nodes}) == 1, "not all know who votes"
        assert len({one.applier.snapshot() for one in nodes}) == 1, "the snapshots differ"
        assert nodes[0].applier.index >= self._complete, "an answered command is lost"
        voters = self.here.newest(nodes[0].applier.index)
        assert all(one.member.history.voters == voters for one in nodes), "who votes is not agreed"
        self.seen["group converged"] += 1


def _after(voters: Voters, wish: ChangeVoters) -> Voters:
    """Return what a configuration would be; a new voter's disk has nothing that it lacks."""
    left = tuple(one for one in voters if one.node != wish.remove)
    new = () if wish.add is None else (Voter(wish.add, -1),)
    return (*left, *new)


def run_changing_seed(
    seed: int,
    *,
    faults: tuple[str, ...] | None = None,
    size: int | None = None,
    observers: int | None = None,
) -> tuple[Counter[str], int]:
    """Run one seed; return its counts and its trace's hash; AssertionError names the seed."""
    try:
        sim = ChangingSim(seed, faults, size, observers)
        sim.run()
    except (AssertionError, HeadwaterError, OSError, LookupError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return sim.seen, sim.trace


__all__ = ["ChangingNode", "ChangingSim", "ChangingTruth", "Promises", "run_changing_seed"]
