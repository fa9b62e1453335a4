"""One member of a simulated Raft group: the production core, journal and applier on a failing disk.

It carries out effects as the real shell does, with delays that the simulation draws, and dies as
processes and machines do.

The file is not split: it stands for one shell, which is one file in the product, too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from copy import deepcopy
from typing import Any, Final

from broker.core.raft.applier import Applier, Outcome, Verdict
from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.core import RaftCore
from broker.core.raft.events import (
    Apply,
    Barrier,
    BarrierFailed,
    BarrierPassed,
    Diverged,
    Effect,
    Event,
    FloorReached,
    MemberAsks,
    Propose,
    Received,
    Refusal,
    Refused,
    Restore,
    RoleChanged,
    Save,
    Saved,
    Send,
    SnapshotMade,
    StateHashed,
    Tick,
    VotersChanged,
    VotersKept,
)
from broker.core.raft.member import Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.core.raft.voters import standing_on_disk
from broker.errors import DiskFullError, LogFailedError, MetadataCorruptError
from broker.model.raft import (
    Floor,
    HardState,
    LogImage,
    NodeId,
    Proposal,
    SnapshotId,
    Standing,
    Stored,
)
from broker.model.raft_messages import Forward, Message, PreVote, Vote, VoteReply
from broker.storage.raft.journal import RaftJournal, has_lost_all
from simkit.disk.disk import ROOMY, PowerLostError, SimDisk
from simkit.raft.truth import Promises, Registers
from simkit.raft.world import World

FOLDER: Final = "raft"
ASK_AGAIN: Final = 20.0
_NOTHING: Final = Stored(HardState(), None, LogImage(0, 0, ()))


class SimNode:
    """A machine with a disk, on which the process comes and goes.

    The class is not split: it has a method for each effect of the core, and for each way in which
    a member dies and comes back.
    """

    def __init__(self, world: World, name: NodeId, *, may_rot: bool) -> None:
        self.world = world
        self.name = name
        self.may_rot = may_rot
        self.disk = SimDisk(world.rng)
        self.disk.seen = world.truth.seen
        self.promises = Promises()
        world.truth.promises[name] = self.promises
        self.life = 0  # counts restarts: messages for a dead process are dropped
        self.alive = False
        self.broken = False  # refused to start; stays down
        self.rotten = False
        self.gone = False  # a machine that never comes back
        self.paused_until = 0.0
        self.rate = 1.0
        self.waiting: dict[tuple[int, int], Proposal] = {}
        self.joining: Rejoin | Compare | None = None
        # Of the disk, made while it was in use, and whether bits of it had rotted.
        self.copies: list[tuple[SimDisk, Promises, bool]] = []
        self._saves: deque[Save] = deque()

    @property
    def observes(self) -> bool:
        """Tell whether it may not vote."""
        return self.name in self.world.config.observers

    # ------------------------------------------------------------------ life and death

    def start(self) -> None:
        """Open the disk and begin; the power may go, the disk may fail, on the way."""
        world = self.world
        is_first, many = self.name in world.config.members, len(world.nodes) > 1
        self.remakes = world.wipes and many and has_lost_all(self.disk.files(), FOLDER)
        stored = _NOTHING
        if not self.remakes:
            journal = self._open()
            if journal is None:
                return
            self.journal = journal
            stored = journal.stored
        self.life += 1
        self.alive = True
        self.identity = world.rng.getrandbits(60) if world.wipes else 0
        self._take_up(stored)
        self.joining = None
        random = world.rng.randint
        if world.wipes and is_first and many and (self.remakes or self.journal.is_fresh):
            self.joining = Rejoin(
                world.config, self.name, random=random, has_taken_part=self.remakes
            )
        elif world.compares and self._must_compare(stored):
            own = standing_on_disk(world.config.members, stored)
            self.joining = Compare(world.config, self.name, stored.hard, random=random, own=own)
            world.later(self, world.grace, "grace", None)
        if self.joining is None:
            self._begin()
        else:
            world.later(self, 0.0, "ask", None)

    def _must_compare(self, stored: Stored) -> bool:
        """Tell whether its disk may be one that has forgotten votes."""
        first = self.world.config.members
        if self.world.changes:
            return stored.disk != 0 or self.name in first
        return self.name in first and len(first) > 1

    def _open(self) -> RaftJournal | None:
        """Open the files; say why that cannot be done."""
        seen = self.world.truth.seen
        try:
            journal = RaftJournal(
                self.disk.files(), FOLDER, cluster="sim", node=self.name, preallocate_bytes=2048
            )
        except MetadataCorruptError:
            assert self.rotten or seen["sector torn"], "damage from nowhere"
            seen["damaged node stays down"] += 1
            self.broken = True
            return None
        except DiskFullError:
            seen["cannot start, disk full"] += 1
            return None
        except LogFailedError:
            seen["cannot start, disk failed"] += 1
            return None
        seen["torn journal cut"] += journal.was_torn
        seen["meta slot damaged"] += journal.damaged_slots > 0
        self.promises.check(journal.stored)
        # What was found is durable from now on, whether it had been promised or not.
        stored = journal.stored
        self.promises.saved(stored.hard, (stored.log.base_index, stored.log.entries), None, ())
        return journal

    def _take_up(self, stored: Stored) -> None:
        """Load the process's memory from its disk."""
        self.machine = Registers()
        self.applier = Applier(self.machine)
        self.core = RaftCore(self.world.config, self.name, stored, random=self.world.rng.randint)
        self.member = self.core.member
        self.waiting.clear()
        self._saves.clear()
        self._commit = 0
        self._last_snapshot = stored.snapshot.id.index if stored.snapshot else 0

    def _begin(self) -> None:
        self._look_at_bar()
        self._perform(self.core.start(self._clock()))
        self.world.later(self, 0.0, "tick", None)

    def _look_at_bar(self) -> None:
        """Count this member as complete when its log has reached its promises."""
        member = self.member
        if self.name in self.world.truth.lost and not member.standing.behind:
            term = member.log.term_at(member.durable)
            if term is not None and Floor(term, member.durable) >= self.journal.stored.bar:
                self.world.truth.lost.discard(self.name)

    def renew_bar(self) -> None:
        """Take the world's new grace, and begin it."""
        core: Any = self.core
        if hasattr(core, "_library"):  # pysyncobj's
            core._library._config = self.world.config
            core._library.renew_bar()
        else:
            core.member.config = self.world.config
            core.member.renew_bar()

    def make_member(self) -> None:
        """Let it have taken part already, with nothing done."""
        journal = self._open()
        assert journal is not None, "the disk is new"
        journal.take_part(0, Floor())
        journal.close()

    def wipe(self) -> None:
        """Replace the disk by an empty one; the process has ended."""
        truth = self.world.truth
        truth.seen["disk wiped"] += 1
        truth.seen["damaged disk replaced"] += self.broken
        if self.observes:
            truth.seen["observer wiped"] += 1
        else:
            truth.lost.add(self.name)
        truth.wiped[self.name] += 1
        self.promises = truth.promises[self.name] = Promises()
        capacity_bytes = self.disk.capacity_bytes
        self.disk = SimDisk(self.world.rng)
        self.disk.seen = truth.seen
        self.disk.capacity_bytes = capacity_bytes
        self.broken = self.rotten = False

    def copy_disk(self) -> None:
        """Keep a copy of the disk as it is now, as a backup tool would."""
        shared = {id(one): one for one in (self.disk.rng, self.disk.seen)}
        self.copies.append((deepcopy(self.disk, shared), deepcopy(self.promises), self.rotten))

    def put_back(self) -> None:
        """Put back a copy of the disk; the process has ended."""
        truth = self.world.truth
        truth.seen["disk put back"] += 1
        disk, promises, self.rotten = self.world.rng.choice(self.copies)
        shared = {id(one): one for one in (disk.rng, disk.seen)}
        self.disk, self.promises = deepcopy(disk, shared), deepcopy(promises)
        self.disk.kill()
        self.disk.capacity_bytes = ROOMY
        self._forgets()

    def lose_files(self) -> None:
        """Lose all of the folder but the note that this node has taken part."""
        self.world.truth.seen["files lost"] += 1
        files = self.disk.files()
        for name in files.list(FOLDER):
            if name != "member":
                files.remove(f"{FOLDER}/{name}")
        files.sync_folder(FOLDER)
        self.promises = Promises()
        self._forgets()

    def _forgets(self) -> None:
        truth = self.world.truth
        truth.promises[self.name] = self.promises
        truth.lost.add(self.name)
        truth.wiped[self.name] += 1

    # ------------------------------------------------------------------ an empty disk

    def _ask(self) -> None:
        """Ask the members that have not answered, repeatedly."""
        if self.joining is not None:
            for one in self.joining.unanswered:
                self.world.tell(self, one, "asked", (self.name, self.joining.request_id))
            self.world.later(self, ASK_AGAIN, "ask", None)

    def _grace(self) -> None:
        """Stop waiting for silent members; a further forgetful one is outside the fault model."""
        if isinstance(self.joining, Compare):
            if self.name not in self.world.truth.lost:
                found = self.joining.leave_out_silent()
                if found is not None:
                    self._take_part(found)
                    return
            self.world.later(self, 2 * ASK_AGAIN, "grace", None)

    def _answer(self, asker: NodeId, request_id: int) -> None:
        if isinstance(self.joining, Rejoin):
            standing = Standing(fresh=True)
        elif self.joining is not None:
            standing = standing_on_disk(self.world.config.members, self.journal.stored)
        else:
            if self.world.compares:
                self.step(MemberAsks(asker))
            standing = self.member.standing
        self.world.tell(self, asker, "told", (self.name, request_id, self.identity, standing))

    def _told(self, told: tuple[NodeId, int, int, Standing]) -> None:
        if self.joining is None:
            return
        found = self.joining.told(*told)
        if found is not None:
            self._take_part(found)

    def _take_part(self, found: TakePart | GoOn) -> None:
        """Note it on the disk, and begin; the disk may fail, or the power go."""
        seen = self.world.truth.seen
        what = "went on"
        if isinstance(found, TakePart):
            what = "rejoined" if found.term else "began as a new group"
            what = "began as an observer" if found.disk else what
        if self.world.rng.random() < self.world.stop_chance:
            self.disk.stop_after = self.world.rng.randrange(8)
        try:
            if isinstance(found, GoOn):
                self.journal.go_on(found.hard, found.bar)
                seen["went on without some"] += bool(found.silent)
            else:
                self._note_rejoin(found)
            journal = self.journal
            stored = journal.stored
            self.promises.saved(stored.hard, (stored.log.base_index, stored.log.entries), None, ())
        except MetadataCorruptError:
            assert self.rotten, "damage from nowhere"
            seen["damaged node stays down"] += 1
            self.broken, self.alive = True, False
            self.world.died(self)
            return
        except (PowerLostError, DiskFullError, LogFailedError):
            journal = None
        finally:
            self.disk.stop_after = None
        if journal is None:
            self.crash(power=True)
            self.world.died(self)
            return
        seen[what] += 1
        self.joining = None
        self._take_up(journal.stored)
        self._begin()

    def _note_rejoin(self, found: TakePart) -> None:
        if self.remakes:
            files = self.disk.files()
            self.journal = RaftJournal.remade(
                files, FOLDER, cluster="sim", node=self.name, term=found.term, floor=found.floor,
                disk=found.disk,
            )  # fmt: skip
        else:
            self.journal.take_part(found.term, found.floor, found.disk)

    def crash(self, *, power: bool) -> None:
        """End the process, or the machine."""
        self.alive = False
        if power:
            self.disk.tear_sectors = self.may_rot
            self.disk.lose_power()
        else:
            self.disk.kill()
        self.world.truth.seen["power lost" if power else "killed"] += 1

    def flip(self) -> None:
        """Let one bit of its files rot while it is down."""
        paths = [path for path in self.disk.paths() if self.disk.peek(path)]
        if paths:
            path = self.world.rng.choice(paths)
            data = self.disk.peek(path)
            written = [at for at, byte in enumerate(data) if byte] or [0]
            position = self.world.rng.choice(written)
            self.disk.flip_bit(path, position, self.world.rng.randrange(8))
            self.rotten = True

    # ------------------------------------------------------------------ what happens to it

    def happen(self, what: str, argument: Any) -> None:
        """Take one event of the simulation."""
        if what == "ask":
            self._ask()
        elif what == "grace":
            self._grace()
        elif what == "asked":
            self._answer(*argument)
        elif what == "told":
            self._told(argument)
        elif what == "tick":
            self.step(Tick())
            if self.alive:
                self.world.later(self, self.world.config.heartbeat_ms / 2, "tick", None)
        elif what == "save":
            self._save()
        elif what == "message":
            self.step(Received(*argument))

    def step(self, event: Event) -> None:
        """Feed the core, if it runs."""
        if self.joining is None:
            self._perform(self.core.step(self._clock(), event))

    def propose(self, proposal: Proposal) -> None:
        """Propose here, for a caller who waits until it is applied here."""
        self.waiting[proposal.session, proposal.sequence] = proposal
        self.step(Propose(proposal))

    def barrier(self, number: int) -> None:
        """Ask for a barrier."""
        self.step(Barrier(number))

    def _clock(self) -> int:
        return int(self.world.now * self.rate)

    # ------------------------------------------------------------------ effects

    def _perform(self, effects: list[Effect]) -> None:
        todo: list[Event] = []
        self._check_commit()
        for effect in effects:
            match effect:
                case Send(target, message):
                    self._sent(target, message)
                    self.world.send(self, target, message)
                case Save():
                    self._note(effect)
                    self._saves.append(effect)
                    if len(self._saves) == 1:
                        self._plan_save()
                case Apply(entries):
                    for outcome in self.applier.apply(entries):
                        if self.waiting.pop((outcome.session, outcome.sequence), None) is not None:
                            self.world.answered(self, outcome)
                    self.world.truth.applied(self.name, self.applier.index, self.machine.hash)
                    todo += self._after_apply()
                case Restore(snapshot):
                    one = snapshot.id
                    self.world.truth.restored(self.name, (one.index, one.size, one.crc))
                    self.applier.restore(one.index, snapshot.data)
                    self.world.truth.applied(self.name, one.index, self.machine.hash)
                    self._after_restore(one)
                case BarrierPassed() | BarrierFailed():
                    at = effect.index if isinstance(effect, BarrierPassed) else None
                    self.world.read(self, effect.number, at)
                case VotersChanged() | VotersKept():
                    self.world.changed(self, effect)
                case Refused(proposal, reason):
                    self._refused(proposal, reason)
                case RoleChanged():
                    self._role_changed()
                case FloorReached():
                    self._floor_reached()
                case Diverged(index):
                    raise AssertionError(f"{self.name} says that it diverged at {index}")
        for event in todo:
            self.step(event)

    def _sent(self, target: NodeId, message: Message) -> None:
        promised = self.promises.term
        if not isinstance(message, PreVote):
            assert message.term <= promised, f"a {message} of a term that is not durable"
        if isinstance(message, Vote):  # it votes for itself, durably before it asks
            self.world.truth.voted(self.voter, message.term, self.name, message.candidacy)
        if isinstance(message, VoteReply) and message.granted:
            self.world.truth.voted(self.voter, message.term, target, message.candidacy)
            assert promised >= message.term, "a vote that is not durable"

    def _refused(self, proposal: Proposal, reason: Refusal) -> None:
        self.world.truth.seen[f"refused: {reason.value}"] += 1
        leader = self.member.leader
        if reason is Refusal.NOT_LEADER and leader is not None:
            self.world.send(self, leader, Forward(0, proposal))

    def _role_changed(self) -> None:
        if self.member.role is Role.LEADER:
            self.world.truth.seen["leader elected"] += 1
            image = self.member.log.image()
            terms = {one.index: one.term for one in image.entries}
            self.world.truth.led(self.name, self.member.term, terms, image.base_index)
            self.world.truth.voted(self.voter, self.member.term, self.name, self.candidacy)

    @property
    def voter(self) -> NodeId:
        """This member as a voter, with the number of its disk if it has one."""
        disk = getattr(self.member, "disk", 0)
        return NodeId(f"{self.name}#{disk}") if disk else self.name

    @property
    def candidacy(self) -> int:
        """Which candidate this process is."""
        core: Any = self.core
        owner = getattr(core, "_election", None) or core._library  # each implementation's own
        return int(owner._candidacy)

    def _floor_reached(self) -> None:
        truth = self.world.truth
        truth.lost.discard(self.name)
        truth.seen["floor reached"] += 1
        with contextlib.suppress(DiskFullError):  # it is found again, and found to be reached
            self.journal.drop_floor()

    def _after_apply(self) -> list[Event]:
        index = self.applier.index
        events: list[Event] = []
        if index % 8 == 0:
            events.append(StateHashed(index, self.machine.hash))
        if index - self._last_snapshot >= self.world.snapshot_entries:
            self._last_snapshot = index
            data = self.applier.snapshot()
            events.append(SnapshotMade(index, data))
            self.world.truth.seen["snapshot made"] += 1
        return events

    def _after_restore(self, one: SnapshotId) -> None:
        if one.index > self._last_snapshot:
            self.world.truth.seen["snapshot installed"] += 1
        self._last_snapshot = max(self._last_snapshot, one.index)

    def _check_commit(self) -> None:
        commit, log = self.member.commit, self.member.log
        if commit > self._commit:
            start = max(self._commit, log.base_index) + 1
            if start <= commit:
                entries = log.slice(start, commit + 1, 1 << 62)
                self.world.truth.committed(self.name, self.member.term, entries)
            assert commit <= len(self.world.truth.chosen), "a commit that nobody knows"
            self._commit = commit

    # ------------------------------------------------------------------ the disk

    def _note(self, save: Save) -> None:
        """Check a save against the saves of all other members."""
        truth = self.world.truth
        if save.image is not None:
            truth.wrote(save.image.entries, save.image.base_term)
            return
        if save.truncate is not None:
            truth.seen["conflict cut"] += 1
        if save.entries:
            before = self.member.log.term_at(save.entries[0].index - 1)
            if before is not None:
                truth.wrote(save.entries, before)

    def _plan_save(self) -> None:
        rng = self.world.rng
        hangs = rng.random() < self.world.hang_chance
        delay = rng.random() * (60 if hangs else 2)
        self.world.later(self, delay, "save", None)

    def _save(self) -> None:
        """Write the oldest save; the power may go in the middle."""
        save = self._saves[0]
        if self.world.rng.random() < self.world.stop_chance:
            self.disk.stop_after = self.world.rng.randrange(12)
        image = (save.image.base_index, save.image.entries) if save.image is not None else None
        self.promises.attempted(image, save.truncate)
        try:
            self.journal.save(
                hard=save.hard,
                snapshot=save.snapshot,
                image=save.image,
                truncate=save.truncate,
                entries=save.entries,
                disk=save.disk,
            )
        except PowerLostError:
            self.crash(power=True)
            self.world.died(self)
            return
        except DiskFullError:
            self.world.truth.seen["save waits for room"] += 1
            self.world.later(self, 20.0, "save", None)
            return
        except LogFailedError:
            self.world.truth.seen["stopped by a failed sync"] += 1
            self.crash(power=self.world.rng.random() < 0.5)
            self.world.died(self)
            return
        finally:
            self.disk.stop_after = None
        self._saves.popleft()
        self.promises.saved(save.hard, image, save.truncate, save.entries)
        if self._saves:
            self._plan_save()
        elif self.world.rng.random() < 0.1:
            self._checkpoint()
            if not self.alive:
                return
        self.step(Saved(save.number))
        self._look_at_bar()

    def _checkpoint(self) -> None:
        try:
            self.journal.checkpoint(self.member.applied)
        except LogFailedError:
            self.crash(power=False)
            self.world.died(self)


def is_unknown(outcome: Outcome) -> bool:
    """Tell whether the group has forgotten what became of a proposal."""
    return outcome.verdict is not Verdict.APPLIED
