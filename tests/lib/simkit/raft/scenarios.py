"""Situations of a Raft group that chance hardly ever brings about, played step by step.

Each is the window of one mutant, which other rules of the code keep nearly closed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from broker.codec.checksum import crc32c
from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.config import RaftConfig
from broker.core.raft.core import RaftCore
from broker.core.raft.events import Effect, Event, MemberAsks, Received, Save, Saved, Send, Tick
from broker.core.raft.member import Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.errors import MetadataCorruptError
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    LogImage,
    NodeId,
    SnapshotId,
    Standing,
    Stored,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    Message,
    PreVoteReply,
    Vote,
    VoteReply,
)
from broker.storage.raft.journal import RaftJournal
from simkit.disk.disk import SimDisk

_NAMES = tuple(NodeId(f"n{number}") for number in range(5))


class _Member:
    """One core whose saves succeed at once."""

    def __init__(self, *terms: int) -> None:
        entries = (Entry(at, term, EntryKind.NOOP, 0, 0, b"") for at, term in enumerate(terms, 1))
        stored = Stored(HardState(max((0, *terms))), None, LogImage(0, 0, tuple(entries)))
        config = RaftConfig(members=_NAMES)
        self.core = RaftCore(config, _NAMES[0], stored, random=lambda low, _: low)
        self.now_ms = 0
        self.core.start(0)

    def step(self, event: Event) -> None:
        for effect in self.core.step(self.now_ms, event):
            if isinstance(effect, Save):
                self.step(Saved(effect.number))

    def hear(self, sender: NodeId, message: Message) -> None:
        self.step(Received(sender, message))

    def lead(self) -> None:
        self.now_ms += 1000
        self.step(Tick())
        term = self.core.member.term + 1
        for peer in _NAMES[1:3]:
            self.hear(peer, PreVoteReply(term - 1, term, True))
        for peer in _NAMES[1:3]:
            self.hear(peer, VoteReply(term, True))
        assert self.core.member.role is Role.LEADER, "the script no longer leads to an election"


def answer_across_elections() -> None:
    """Two answers to a leader's first term arrive when it leads again, with another log."""
    member = _Member()
    member.lead()
    old_term = member.core.member.term
    member.hear(_NAMES[4], VoteReply(old_term + 3, False))  # a newer term: it falls
    member.lead()
    index = member.core.member.log.last_index
    for peer in _NAMES[1:3]:
        member.hear(peer, AppendReply(old_term, True, index, 0, 0, 1))
    assert member.core.member.commit == 0, "answers of an old term were counted"


def copies_of_an_old_entry() -> None:
    """A majority has an entry of an earlier term: it is not committed by that (figure 8)."""
    member = _Member(1, 2)
    member.lead()
    for peer in _NAMES[1:3]:
        member.hear(peer, AppendReply(member.core.member.term, True, 2, 0, 0, 1))
    assert member.core.member.commit == 0, "an entry of an old term was committed by counting"


def commit_behind_the_message() -> None:
    """A heartbeat about entry 1 knows of a commit of 3: what lies behind it here may differ."""
    member = _Member(1, 1, 1)
    member.hear(_NAMES[1], Append(2, 1, 1, 3, 1, 0, 0, ()))
    assert member.core.member.commit == 1, "a commit went past what the message has shown"


def snapshot_of_a_prefix() -> None:
    """A snapshot arrives that ends before our own log, which agrees with it: the rest stays."""
    member = _Member(1, 1, 1, 1)
    data = b"state"
    snapshot = SnapshotId(2, 1, len(data), crc32c(data))
    member.hear(_NAMES[1], Chunk(1, snapshot, 0, 1, data))
    assert member.core.member.log.base_index == 2, "the snapshot was not installed"
    assert member.core.member.log.last_index == 4, "acknowledged entries were dropped"


def one_voter_twice() -> None:
    """A vote arrives doubled, and another one for an older term: of five, two are for us."""
    member = _Member()
    member.now_ms = 1000
    member.step(Tick())
    for peer in _NAMES[1:3]:
        member.hear(peer, PreVoteReply(0, 1, True))
    for peer, term in ((_NAMES[1], 1), (_NAMES[1], 1), (_NAMES[2], 0)):
        member.hear(peer, VoteReply(term, True))
    assert member.core.member.role is Role.CANDIDATE, "elected by a vote that was counted twice"


def votes_for_the_dead() -> None:
    """A vote arrives that was asked for before the candidate's disk was wiped: it is void."""
    member = _Member()
    member.now_ms = 1000
    member.step(Tick())
    for peer in _NAMES[1:3]:
        member.hear(peer, PreVoteReply(0, 1, True))
    for peer, candidacy in ((_NAMES[1], 0), (_NAMES[2], 77)):
        member.hear(peer, VoteReply(1, True, candidacy))
    assert member.core.member.role is Role.CANDIDATE, "elected by a vote for a former life"


def answers_of_two_moments() -> None:
    """Of five, b told how far it was, then took what c sent it, then c was wiped and told nothing.

    What b took was committed with what the asker had on its old disk. Only b, asked again, tells.
    """
    a, b, c, d, e = _NAMES
    joining = Rejoin(RaftConfig(members=_NAMES), a, random=lambda low, _: low)
    empty, behind = Standing(fresh=True), Standing(term=1)
    learned = Standing(term=7, last=Floor(7, 30))
    found = None
    for told in ({b: behind, c: empty}, {b: learned, c: empty}):
        request_id = joining.request_id
        for sender, standing in ({d: behind, e: behind} | told).items():
            found = found or joining.told(sender, request_id, 1, standing)
    assert found == TakePart(8, Floor(7, 30)), f"it takes part as {found}"


def copies_of_a_former_process() -> None:
    """A follower acknowledged, and its disk is put back: of five, two others have the entry.

    Its former process's answer comes once more, late.
    """
    member = _Member()
    member.lead()
    index, term = member.core.member.log.last_index, member.core.member.term
    answer = AppendReply(term, True, index, 0, 0, 0)
    member.hear(_NAMES[1], answer)
    member.step(MemberAsks(_NAMES[1]))
    member.hear(_NAMES[1], answer)
    member.hear(_NAMES[2], answer)
    assert member.core.member.commit == 0, "a copy was counted that is on no disk any more"
    member.hear(_NAMES[1], AppendReply(term, True, index, 0, 0, 1))
    assert member.core.member.commit == index, "the copy of the new process does not count"


def restart_below_the_floor() -> None:
    """Who rejoined dies twice before it has its log back; then one without that asks to lead."""
    disk = SimDisk(random.Random(1))
    _journal(disk).take_part(5, Floor(4, 9))
    disk.kill()
    _journal(disk)
    disk.kill()
    stored = _journal(disk).stored
    said: list[Message] = []

    def take(effects: list[Effect]) -> None:
        for one in effects:
            if isinstance(one, Send):
                said.append(one.message)
            elif isinstance(one, Save):
                take(core.step(0, Saved(one.number)))

    core = RaftCore(RaftConfig(members=_NAMES), _NAMES[0], stored, random=lambda low, _: low)
    take(core.start(0))
    take(core.step(0, Received(_NAMES[1], Vote(9, 3, 3, transfer=True, candidacy=1))))
    assert said == [VoteReply(9, False, 1)], "it voted below its floor"


def only_the_member_file_is_left() -> None:
    """A folder lost all but the note of its node: it must not begin anew with an empty log."""
    disk = SimDisk(random.Random(1))
    _journal(disk).take_part(5, Floor(4, 9))
    disk.kill()
    for name in ("meta", "journal"):
        disk.files().remove(f"raft/{name}")
    try:
        stored = _journal(disk).stored
    except MetadataCorruptError:
        return
    raise AssertionError(f"it begins with {stored}")


def vote_that_a_disk_forgot() -> None:
    """A disk is put back to a copy from before it voted in the present term."""
    a, b, c, d, e = _NAMES
    compare = Compare(RaftConfig(members=_NAMES), a, HardState(7, None), random=lambda low, _: low)
    found = None
    for _ in range(2):
        request_id = compare.request_id
        for one in (b, c, d, e):
            found = found or compare.told(one, request_id, 1, Standing(term=7))
    assert found == GoOn(HardState(7, a)), f"it goes on as {found}"


def _journal(disk: SimDisk) -> RaftJournal:
    return RaftJournal(disk.files(), "raft", cluster="script", node=_NAMES[0])


SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "s2_count_acks_of_old_terms": answer_across_elections,
    "commit_entries_of_old_terms": copies_of_an_old_entry,
    "s8_count_votes_not_voters": one_voter_twice,
    "install_over_a_longer_log": snapshot_of_a_prefix,
    "commit_past_what_matches": commit_behind_the_message,
    "count_votes_for_a_former_life": votes_for_the_dead,
    "floor_forgotten_by_a_restart": restart_below_the_floor,
    "rejoin_asks_once": answers_of_two_moments,
    "member_note_alone_believed": only_the_member_file_is_left,
    "restored_disk_votes_again": vote_that_a_disk_forgot,
    "leader_keeps_copies_of_a_former_process": copies_of_a_former_process,
    "leader_hears_a_former_process": copies_of_a_former_process,
}
