"""One seed of a Raft group's life: network, disks, processes and clocks fail; promises are checked.

A seed draws its own group, sizes, delays and subset of faults, so that rare windows are common in
some seed. After the faults everything heals, but for machines that in some seeds leave for good,
and the group has to come back: one leader, equal states, every answered command there once.
`run_seed` is a whole story: equal seeds, equal traces.

The file is not split: it is the story of a seed in the order in which it happens.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.codec.checksum import crc32c
from broker.codec.peer.raft_messages import decode, encode
from broker.core.raft.applier import Outcome
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import TransferLeadership, VotersChanged, VotersKept
from broker.core.raft.member import Role
from broker.errors import HeadwaterError
from broker.model.raft import EntryKind, NodeId, Proposal
from broker.model.raft_messages import AppendReply, Message
from simkit.disk.disk import ROOMY
from simkit.raft import node as raft_node
from simkit.raft.node import SimNode, is_unknown
from simkit.raft.truth import KEYS, Truth, command

HEARTBEAT_MS: Final = 10
HEAL_MS: Final = 6000
HEALED_GRACE_MS: Final = 1500
SLOW_MS: Final = 400
LEAVE_MS: Final = 300
FAULTS: Final = (
    "cut", "one-way", "drop", "double", "reorder", "kill", "power", "pause", "skew", "full",
    "fsync", "rot", "stop", "transfer", "slow", "late",
)  # fmt: skip


@dataclass(slots=True)
class Caller:
    """A client that proposes commands and reads states, one at a time."""

    number: int
    session: int
    sequence: int = 0
    opened: bool = False
    proposal: Proposal | None = None
    barrier: int = 0
    floor: int = 0  # the highest complete index before the present operation began
    tries: int = 0
    asked: float = 0.0
    left: int = 3  # operations to do once everything has healed


class RaftSim:
    """Runs one seed; :attr:`seen` counts the situations that it reached.

    The class is not split: what a seed draws, does and checks shares one clock, one network and one
    set of promises.
    """

    node_type = SimNode
    truth_type = Truth
    changes = False  # the voters; `changing.py` lets them

    def __init__(
        self, seed: int, faults: tuple[str, ...] | None, size: int | None, observers: int | None
    ) -> None:
        self.rng = rng = random.Random(seed)
        size = size or rng.choice((1, 3, 3, 3, 5))
        names = tuple(NodeId(f"n{number}") for number in range(size))
        # Another implementation of a member than ours cannot rejoin, and has no observers; its
        # seeds stay as they are.
        own = getattr(raft_node, "RaftCore") is RaftCore  # noqa: B009
        few = random.Random(f"observers {seed}")
        if observers is None:
            drawn = own and faults is None and few.random() < 0.25
            observers = few.choice((1, 1, 2)) if drawn else 0
        watching = tuple(NodeId(f"o{number}") for number in range(observers))
        self.config = RaftConfig(
            members=names,
            observers=watching,
            heartbeat_ms=HEARTBEAT_MS,
            election_ms_min=5 * HEARTBEAT_MS,
            election_ms_max=10 * HEARTBEAT_MS,
            append_bytes_max=rng.choice((1, 120, 1000)),
            chunk_bytes_max=rng.choice((16, 200, 5000)),
            inflight_bytes_max=rng.choice((60, 500, 5000)),
            inflight_messages_max=rng.choice((1, 3, 16)),
            uncommitted_bytes_max=rng.choice((200, 100_000)),
            keep_entries=rng.choice((0, 3, 20)),
            restart_grace_ms=1 << 40,  # a bar that lapses beside faults is a fault too many
        )
        self.seen: Counter[str] = Counter()
        self.truth = self.truth_type(self.seen, names)
        self.snapshot_entries = rng.choice((6, 15, 1000))
        self.faults = set(faults or (one for one in FAULTS if rng.random() < 0.3))
        dice = random.Random(f"wipe {seed}")
        self._draw_lost_disks(seed, dice, may_draw=own and faults is None)
        self.stop_chance = rng.choice((0.01, 0.05)) if "stop" in self.faults else 0.0
        self.hang_chance = 0.05
        self.now = 0.0
        self.trace = 0
        self.duration = rng.choice((200, 400, 800))
        self.delay = rng.choice((1.0, 4.0, 15.0))
        self.drop_chance = rng.choice((0.05, 0.2)) if "drop" in self.faults else 0.0
        self.double_chance = rng.choice((0.05, 0.4)) if "double" in self.faults else 0.0
        self.late_chance = 0.3 if "late" in self.faults else 0.0  # for answers to appends
        self.slow_chance = rng.choice((0.02, 0.1)) if "slow" in self.faults else 0.0
        self.fault_gap = rng.choice((10.0, 25.0, 60.0))
        self._heap: list[tuple[float, int, SimNode | None, int, str, Any]] = []
        self._count = 0
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._last_on_link: dict[tuple[NodeId, NodeId], float] = {}
        self._complete = 0  # highest index that any finished operation has seen
        self._barriers = 0
        self._healed = False
        victims = rng.sample(names, (size - 1) // 2) if "rot" in self.faults else []
        boots = self.wipes and not self.compares and dice.random() < 0.3
        if boots:  # unstarted and damaged members together would be too many
            victims = []
        if "rot" in self.faults:  # as many observers as like may be damaged
            victims += [one for one in watching if few.random() < 0.5]
        self.nodes = {
            one: self.node_type(self, one, may_rot=one in victims) for one in (*names, *watching)
        }
        self.truth.can_win = self._can_win
        if boots:
            self.truth.lost.update(names if size > 1 else ())
        elif self.wipes:
            for node in self._voters():
                node.make_member()
        self._last = -1 if watching and few.random() < 0.5 else 0  # has the lasting fault
        self.callers = [Caller(number, 1000 + number) for number in range(3)]

    def _draw_lost_disks(self, seed: int, dice: random.Random, *, may_draw: bool) -> None:
        """Draw whether disks are wiped, put back to earlier moments, and partly lost."""
        if may_draw and dice.random() < 0.3:
            self.faults.add("wipe")
        forgets = random.Random(f"forget {seed}")
        if may_draw and forgets.random() < 0.3:
            self.faults |= {"restore", "copy", "lose"}
        self.compares = bool(self.faults & {"restore", "lose"})
        self.wipes = "wipe" in self.faults or self.compares
        self.grace = forgets.choice((30.0, 150.0))
        self._leaves = random.Random(f"leave {seed}")
        leave_chance = 0.5 if self.compares else 0.15  # comparing waits for silent members
        self._some_leave = may_draw and self._leaves.random() < leave_chance
        if "leave" in self.faults:
            self.faults.discard("leave")
            self._some_leave = True

    # ------------------------------------------------------------------ the story

    def run(self) -> None:
        """Live with faults, heal, converge."""
        for node in self.nodes.values():
            if "skew" in self.faults:
                node.rate = self.rng.uniform(0.8, 1.25)
            self._start(node)
        for caller in self.callers:
            self._at(self.rng.random() * 100, None, "call", caller)
        if self.faults:
            self._at(self.rng.random() * self.fault_gap, None, "fault", None)
        self._advance(self.duration)
        self._heal()
        if self.faults & {"slow", "late"}:
            self._advance(self.now + SLOW_MS)  # messages still on their way may end a leader's term
        deadline = self.now + HEAL_MS
        while not self._converged():
            assert self.now < deadline, f"no progress after healing: {self._picture()}"
            self._advance(self.now + 5 * HEARTBEAT_MS)
        self._last_check()
        if self.config.quorum > 1 and not self.changes:
            self.rng.choice((self._deaf_leader, self._deaf_follower, self._lonely_follower))()

    def _advance(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, number, node, life, what, argument = heapq.heappop(heap)
            if node is None:
                self._happen(what, argument)
            elif node.alive and node.life == life:
                if node.paused_until > self.now:
                    self._push(node.paused_until, node, life, what, argument)
                    continue
                node.happen(what, argument)
            self.trace = crc32c(what.encode(), self.trace ^ number)
        self.now = until

    def _happen(self, what: str, argument: Any) -> None:
        if what == "call":
            self._call(argument)
        elif what == "fault":
            if not self._healed:
                self._fault()
                self._at(self.rng.random() * 2 * self.fault_gap, None, "fault", None)
        elif what == "start":
            if not argument.alive and not argument.gone:
                self._start(argument)
        elif what == "leave":
            self._leave()
        elif what == "mend" and not self._healed:
            self._cut -= argument

    def _push(self, at: float, node: SimNode | None, life: int, what: str, argument: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, node, life, what, argument))

    def _at(self, delay: float, node: SimNode | None, what: str, argument: Any) -> None:
        self._push(self.now + delay, node, node.life if node is not None else 0, what, argument)

    def _start(self, node: SimNode) -> None:
        node.start()
        if node.broken and self.wipes and self._healed:
            self._wipe(node)
        elif not node.alive and not node.broken:
            self._at(50.0, None, "start", node)

    # ------------------------------------------------------------------ what nodes ask (World)

    def later(self, node: SimNode, delay: float, what: str, argument: Any) -> None:
        """See ``World.later``."""
        self._at(delay, node, what, argument)

    def send(self, sender: SimNode, target: NodeId, message: Message) -> None:
        """Lose, double, delay and reorder, as the seed allows; links are in order otherwise."""
        late = self.late_chance if isinstance(message, AppendReply) else self.slow_chance
        self._carry(sender, target, "message", (sender.name, message), late)

    def tell(self, sender: SimNode, target: NodeId, what: str, argument: Any) -> None:
        """See ``World.tell``."""
        self._carry(sender, target, what, argument, self.slow_chance)

    def _carry(
        self, sender: SimNode, target: NodeId, what: str, argument: Any, late: float
    ) -> None:
        rng = self.rng
        link = (sender.name, target)
        if link in self._cut:
            return
        copies = 1
        if not self._healed:
            if rng.random() < self.drop_chance:
                return
            if rng.random() < self.double_chance:
                copies = 2
        if what == "message" and rng.random() < 0.05:
            argument = (sender.name, decode(encode(argument[1])))
        node = self.nodes[target]
        for _ in range(copies):
            at = self.now + rng.random() * self.delay
            if not self._healed and rng.random() < max(late, self.slow_chance):
                at += rng.random() * SLOW_MS
            if "reorder" not in self.faults or self._healed:
                at = max(at, self._last_on_link.get(link, 0.0))
                self._last_on_link[link] = at
            self._push(at, node, node.life, what, argument)

    def changed(self, node: SimNode, answer: VotersChanged | VotersKept) -> None:
        """See ``World.changed``."""
        raise AssertionError(f"nobody asked {node.name} for {answer}")

    def died(self, node: SimNode) -> None:
        """Start the member again after a while; one with a damaged disk stays down."""
        if not node.broken:
            self._at(self.rng.random() * 200, None, "start", node)
        elif self.wipes and self._healed:
            self._wipe(node)

    # ------------------------------------------------------------------ callers

    def _call(self, caller: Caller) -> None:
        """Begin an operation, or retry the unanswered one."""
        self._at(15.0 + self.rng.random() * 15, None, "call", caller)
        alive = [one for one in self.nodes.values() if one.alive and one.paused_until <= self.now]
        if not alive:
            return
        node = self.rng.choice(alive)
        if caller.proposal is not None:
            if self.now - caller.asked < 30:
                return
            caller.tries += 1
            if caller.tries > 8 and caller.opened and not self._healed:
                self.seen["outcome unknown"] += 1
                caller.proposal = None
                return
            caller.asked = self.now
            node.propose(caller.proposal)
            return
        if caller.barrier:
            if self.now - caller.asked < 300:
                return
            caller.barrier = 0
        if self._healed:
            caller.left -= 1
            if caller.left < 0:
                return
        caller.floor, caller.tries, caller.asked = self._complete, 0, self.now
        if caller.opened and self.rng.random() < 0.25:
            self._barriers += 1
            caller.barrier = self._barriers
            node.barrier(caller.barrier)
            return
        caller.sequence += 1
        kind = EntryKind.COMMAND if caller.opened else EntryKind.OPEN_SESSION
        key, value = self.rng.randrange(KEYS), self.rng.randrange(1, 1 << 30)
        expected = node.machine.values[key] if self.rng.random() < 0.8 else 7
        payload = command(key, expected, value) if caller.opened else b""
        caller.proposal = Proposal(kind, caller.session, caller.sequence, payload)
        node.propose(caller.proposal)

    def answered(self, node: SimNode, outcome: Outcome) -> None:
        """Check an answer against the order of the log, which has to respect real time."""
        for caller in self.callers:
            mine = caller.proposal
            if mine is None or (mine.session, mine.sequence) != (outcome.session, outcome.sequence):
                continue
            caller.proposal = None
            if mine.kind is EntryKind.OPEN_SESSION:
                caller.opened = True
                return
            if is_unknown(outcome):
                self.seen["session forgotten"] += 1
                return
            first, reply = self.truth.replies[outcome.session, outcome.sequence]
            assert outcome.reply == reply, "an answer that the log does not give"
            assert first > caller.floor, "a command took effect before it was asked for"
            self.seen["command answered"] += 1
            self.seen["retry answered"] += not outcome.fresh
            self._complete = max(self._complete, first)

    def read(self, node: SimNode, number: int, index: int | None) -> None:
        """A barrier shows everything that was complete before it was asked for."""
        for caller in self.callers:
            if caller.barrier != number:
                continue
            caller.barrier = 0
            if index is None:
                self.seen["barrier failed"] += 1
                return
            at = node.applier.index
            assert at >= index >= caller.floor, (
                f"a stale read at {at} of {node.name}, {caller.floor} was complete"
            )
            self.seen["barrier passed"] += 1
            self.seen["barrier passed on a follower"] += node.member.role is not Role.LEADER
            self._complete = max(self._complete, at)

    # ------------------------------------------------------------------ faults

    def _fault(self) -> None:
        rng = self.rng
        kind = rng.choice(sorted(self.faults))
        node = rng.choice(list(self.nodes.values()))
        if rng.random() < 0.5:  # the leader is where it hurts
            leaders = [
                one for one in self.nodes.values() if one.alive and one.member.role is Role.LEADER
            ]
            node = rng.choice(leaders) if leaders else node
        others = [one for one in self.nodes if one != node.name]
        if kind in {"cut", "one-way"}:
            self._cut_off(node.name, others, both=kind == "cut")
        elif kind in {"kill", "power", "rot"} and node.alive:
            if kind == "power" and rng.random() < 0.2:
                for one in self.nodes.values():
                    self._crash(one, power=True)
                self.seen["power lost everywhere"] += 1
            else:
                self._crash(node, power=kind == "power")
                if kind == "rot" and node.may_rot:
                    node.flip()
        elif kind == "wipe":
            self._wipe(node)
        elif kind == "copy":
            node.copy_disk()
        elif kind in {"restore", "lose"}:
            self._forget(node, kind)
        elif kind == "pause" and node.alive:
            node.paused_until = max(node.paused_until, self.now + rng.random() * 300)
            self.seen["paused"] += 1
        elif kind == "full" and node.alive:
            room = rng.choice((0, 300, 3000))
            node.disk.capacity_bytes = node.disk.used_bytes() + room
            self.seen["disk filled"] += 1
        elif kind == "fsync" and node.alive:
            node.disk.datasync_failures = 1
        elif kind == "transfer" and node.alive and others:
            node.step(TransferLeadership(rng.choice(others)))
            self.seen["transfer asked"] += 1
        if rng.random() < 0.5:
            node.disk.capacity_bytes = ROOMY

    def _crash(self, node: SimNode, *, power: bool) -> None:
        if node.alive:
            node.crash(power=power)
            self._at(self.rng.random() * 200, None, "start", node)

    def _wipe(self, node: SimNode) -> None:
        """End a member and empty its disk, unless too many have none, or a bad one, already."""
        free = node.observes or node.name in self.truth.lost
        if free or len(self._lacking() | {node.name}) < self.config.quorum:
            self._crash(node, power=True)
            was_broken = node.broken
            node.wipe()
            if was_broken:
                self._at(self.rng.random() * 200, None, "start", node)

    def _forget(self, node: SimNode, kind: str) -> None:
        """End a member and put back or lose its disk, unless too many have forgotten already."""
        few = len(self._lacking() | {node.name}) < self.config.quorum
        if node.observes or node.broken or not few or (kind == "restore" and not node.copies):
            return
        self._crash(node, power=True)
        if kind == "restore":
            node.put_back()
        elif "member" in node.disk.files().list(raft_node.FOLDER):
            node.lose_files()

    def _lacking(self) -> set[NodeId]:
        """Return the voters that lack promised entries, or may lack them if their disk rots."""
        return self.truth.lost | {one.name for one in self._voters() if one.may_rot}

    def _can_win(self, candidate: NodeId, candidacy: int) -> bool:
        node = self.nodes[candidate]
        return node.alive and node.candidacy == candidacy

    def _cut_off(self, name: NodeId, others: list[NodeId], *, both: bool) -> None:
        rng = self.rng
        some = others if rng.random() < 0.6 else rng.sample(others, rng.randint(0, len(others)))
        links = {(name, one) for one in some}
        if both:
            links |= {(one, name) for one in some}
        elif rng.random() < 0.5:
            links = {(one, name) for one in some}
        self._cut |= links
        self._at(rng.random() * 400, None, "mend", links)
        self.seen["cut" if both else "cut one way"] += bool(links)

    def _heal(self) -> None:
        self._healed = True
        self._cut.clear()
        for node in self.nodes.values():
            node.disk.capacity_bytes = ROOMY
            node.disk.datasync_failures = 0
        self.stop_chance = self.hang_chance = 0.0
        # The member with the furthest log may have lost its unsynced end: bars lapse.
        self.config = replace(self.config, restart_grace_ms=HEALED_GRACE_MS)
        for node in self.nodes.values():
            if node.alive:
                node.renew_bar()
        if self.wipes:  # an operator's part: a member stopped by damage gets an empty disk
            for node in self.nodes.values():
                if node.broken:
                    self._wipe(node)
        if self._some_leave:  # one story: no power anywhere, and not all members come back
            for node in self.nodes.values():
                self._crash(node, power=True)
            self._at(self._leaves.random() * LEAVE_MS, None, "leave", None)
        self._advance(max(self.now, *(node.paused_until for node in self.nodes.values())))

    def _leave(self) -> None:
        """Remove for good as many machines as the group survives beside its lost disks."""
        self._some_leave = False
        lacking = self._lacking() | {one.name for one in self._voters() if one.broken}
        there = [one for one in self._voters() if one.name not in lacking]
        count = self._leaves.randint(0, max(0, self.config.quorum - 1 - len(lacking)))
        for node in self._leaves.sample(there, count):
            node.gone = True
            if node.alive:
                node.crash(power=True)
            self.seen["left for good"] += 1

    # ------------------------------------------------------------------ the end

    def _converged(self) -> bool:
        """Tell whether every machine that can live is up, and all of them are at the same place."""
        nodes = self._present()
        if any(not one.alive for one in nodes) or any(
            one.proposal or one.left > 0 for one in self.callers
        ):
            return False
        if self._some_leave:
            return False
        leaders = [one for one in nodes if one.member.role is Role.LEADER]
        if len(leaders) != 1:
            return False
        last = leaders[0].member.log.last_index
        return all(one.applier.index == last for one in nodes)

    def _last_check(self) -> None:
        nodes = self._present()
        voters = [one for one in nodes if not one.observes]
        assert len(voters) >= self.config.quorum, "more than a minority broke"
        if self.wipes:
            assert not any(one.broken for one in self.nodes.values()), "an empty disk did not help"
        assert len({one.applier.index for one in nodes}) == 1, "not all at the same place"
        assert len({one.machine.hash for one in nodes}) == 1, "the states differ"
        assert nodes[0].applier.index >= self._complete, "an answered command is lost"
        if self.config.quorum > 1:
            self.seen["group converged"] += 1
        if len(nodes) > len(voters):
            self.seen["observers converged"] += 1

    # ------------------------------------------------------------------ one lasting fault

    def _deaf_leader(self) -> None:
        """A leader that receives no message gives way, although all members receive its own."""
        leader, others = self._roles()
        if sum(not one.observes for one in others) < self.config.quorum:
            return  # too many are broken
        self._cut = {(one.name, leader.name) for one in others}
        for _ in range(24):  # two that are left split their votes now and then
            self._advance(self.now + self.config.election_ms_max + self.delay)
            if any(one.member.role is Role.LEADER for one in others):
                break
        assert any(one.member.role is Role.LEADER for one in others), "a deaf leader blocks all"
        self.seen["deaf leader replaced"] += 1

    def _deaf_follower(self) -> None:
        """A follower that does not hear the leader does not disturb the others."""
        leader, others = self._roles()
        self._cut = {(leader.name, others[self._last].name)}
        self._undisturbed(leader, "deaf follower did no harm")

    def _lonely_follower(self) -> None:
        """A follower that was cut off for long comes back without an election."""
        leader, others = self._roles()
        name = others[self._last].name
        self._cut = {(name, one) for one in self.nodes} | {(one, name) for one in self.nodes}
        self._undisturbed(leader, "lonely follower came back")

    def _undisturbed(self, leader: SimNode, what: str) -> None:
        term = leader.member.term
        alive = sum(not one.observes for one in self._present())
        if alive - 1 < self.config.quorum:
            return  # the one that is cut off is needed
        self._advance(self.now + 8 * self.config.election_ms_max)
        self._cut.clear()
        self._advance(self.now + 4 * self.config.election_ms_max)
        assert leader.member.role is Role.LEADER, f"{what}: the leader fell"
        assert leader.member.term == term, f"{what}: a new term began"
        self.seen[what] += 1

    def _voters(self) -> list[SimNode]:
        return [one for one in self.nodes.values() if not one.observes]

    def _present(self) -> list[SimNode]:
        """Return the members that take part: not damaged, not gone, not waiting for a gone one.

        A member that lacks promised entries waits for all others, by decisions 0010 and 0019.
        """
        gone = {one.name for one in self.nodes.values() if one.gone}
        found = []
        for node in self.nodes.values():
            asked = node.joining.unanswered if node.joining is not None else ()
            if node.name in self.truth.lost and gone & set(asked):
                self.seen["waits for who is gone"] += 1
            elif not (node.broken or node.gone):
                found.append(node)
        return found

    def _roles(self) -> tuple[SimNode, list[SimNode]]:
        nodes = self._present()
        leader = next(one for one in nodes if one.member.role is Role.LEADER)
        return leader, [one for one in nodes if one is not leader]

    def _picture(self) -> str:
        return "; ".join(
            f"{one.name} "
            + (
                f"{one.member.role.value} t{one.member.term} log {one.member.log.last_index} "
                f"commit {one.member.commit} durable {one.member.durable}"
                if one.alive
                else f"down broken={one.broken} gone={one.gone}"
            )
            for one in self.nodes.values()
        )


def run_seed(
    seed: int,
    *,
    faults: tuple[str, ...] | None = None,
    size: int | None = None,
    observers: int | None = None,
) -> tuple[Counter[str], int]:
    """Run one seed; return its counts and its trace's hash; AssertionError names the seed."""
    try:
        sim = RaftSim(seed, faults, size, observers)
        sim.run()
    except (AssertionError, HeadwaterError, OSError, LookupError) as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return sim.seen, sim.trace
