"""pysyncobj with one of our corrections taken away again. The simulation has to catch each.

A mutant puts back what the library does by itself, or leaves out a rule of the code around it.
Numbers such as S1 are those of docs/raft.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from broker.adapters.raft_pysyncobj import corrections as corrections_module
from broker.adapters.raft_pysyncobj import following as following_module
from broker.adapters.raft_pysyncobj.core import PysyncobjCore
from broker.adapters.raft_pysyncobj.corrections import Corrections
from broker.adapters.raft_pysyncobj.following import Following
from broker.adapters.raft_pysyncobj.leading import Leading
from broker.adapters.raft_pysyncobj.library_log import LibraryLog
from broker.adapters.raft_pysyncobj.outbox import Reads
from broker.core.raft.events import Barrier, BarrierPassed, Effect, Propose, Save
from broker.model.raft import EntryKind, Floor, HardState, NodeId, Snapshot, Stored
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    Message,
    PreVoteReply,
    Vote,
    VoteReply,
)
from simkit.raft import node as raft_node
from simkit.raft import sim as raft_sim
from simkit.raft.rig import A, B, C, D, E, MemberRig, append, entries, proposal, snapshot_of
from simkit.replacing import Mutant, replaced, together

GROUP: Final = (A, B, C, D, E)


def in_simulation() -> Any:
    """Let the simulated members be pysyncobj, also where disks are wiped."""
    return together(
        replaced(raft_node, "RaftCore", PysyncobjCore),
        replaced(raft_sim, "RaftCore", PysyncobjCore),
    )


# ---------------------------------------------------------------------------- mutants


def s1_cut_what_follows() -> Any:
    """Give the library each message as it came: it cuts whatever follows."""

    def on_append(self: Any, node: Any, message: Append) -> None:
        self._matched = message.prev_index + len(message.entries)
        raw = {
            "type": "append_entries",
            "term": message.term,
            "commit_index": message.commit,
            "prevLogIdx": message.prev_index,
            "prevLogTerm": message.prev_term,
            "entries": [self._log.row(entry) for entry in message.entries],
        }
        self._SyncObj__onMessageReceived(node, raw)

    return replaced(Following, "_on_append", on_append)


def s2_count_answers_of_old_terms() -> Any:
    """Count an answer in whatever term the leader is now."""

    def answer(self: Any, sender: NodeId, message: Message) -> None:
        if isinstance(message, AppendReply) and self.is_leader():
            self._on_append_reply(self._others[sender], sender, message)
        else:
            original(self, sender, message)

    original = Corrections._answer_old_term
    return replaced(Corrections, "_answer_old_term", answer)


def s3_commit_from_chunks() -> Any:
    """Let a snapshot's piece carry a commit, as it does in the library."""

    def on_chunk(self: Any, node: Any, sender: NodeId, message: Chunk) -> None:
        original(self, node, sender, message)
        heartbeat = {"type": "append_entries", "term": message.term, "serialized": None}
        commit = max(self._log.commit, message.snapshot.index)
        self._SyncObj__onMessageReceived(node, {**heartbeat, "commit_index": commit})

    original = Following._on_chunk
    return replaced(Following, "_on_chunk", on_chunk)


def s3_commit_past_the_message() -> Any:
    """Take the leader's commit for the whole own log."""
    return replaced(following_module, "_shown", lambda message, _: message.commit)


def s6_say_it_before_it_is_saved() -> Any:
    """Let everything of a step be known with its save, not after it."""

    def end_batch(self: Any) -> list[Effect]:
        effects = original(self)
        if self._saving:
            effects = [*self._held, *effects]
            self._held = []
            self._publish()
        return effects

    original = PysyncobjCore._end_batch
    return replaced(PysyncobjCore, "_end_batch", end_batch)


def s6_forget_votes() -> Any:
    """Keep the term on disk, and the vote in memory only."""

    def take_save(self: Any, number: int) -> Save | None:
        save = original(self, number)
        if save is None or save.hard is None:
            return save
        hard = HardState(save.hard.term, None, save.hard.commit)
        return Save(number, hard, save.snapshot, save.image, save.truncate, save.entries)

    original = LibraryLog.take_save
    return replaced(LibraryLog, "take_save", take_save)


def s8_count_votes_not_voters() -> Any:
    """Count each vote that arrives."""

    def on_vote_reply(self: Any, node: Any, sender: NodeId, reply: VoteReply) -> None:
        self._voters.clear()
        original(self, node, sender, reply)

    original = Corrections._on_vote_reply
    return replaced(Corrections, "_on_vote_reply", on_vote_reply)


def s10_snapshot_clears_the_log() -> Any:
    """An installed snapshot replaces the log, whatever it holds beyond."""

    def install(self: Any, snapshot: Snapshot) -> None:
        self.entries.reset(self.entries.base_index, self.entries.base_term)
        original(self, snapshot)

    original = LibraryLog.install
    return replaced(LibraryLog, "install", install)


def l1_step_back_for_each_refusal() -> Any:
    """Go where each refusal says, as the library's own answers say it."""

    def on_append_reply(self: Any, node: Any, sender: NodeId, reply: AppendReply) -> None:
        self._stepped_back.clear()
        original(self, node, sender, reply)
        self._must_send = False  # the library waits for the next heartbeat

    def send_next(self: Any, node: Any, reset: bool = False, nextNodeIdx: Any = None,  # noqa: N803
                  success: bool = False) -> None:  # fmt: skip
        if success:
            original_send(self, node, reset, nextNodeIdx, success)
            return
        hint = self._log.entries.last_index if nextNodeIdx is None else nextNodeIdx - 1
        asked = self._question
        refusal = AppendReply(asked.term, False, asked.prev_index, hint, 0, asked.round)
        self._out.send(NodeId(node.id), refusal)

    original = Leading._on_append_reply
    original_send = Following._SyncObj__sendNextNodeIdx
    return together(
        replaced(Leading, "_on_append_reply", on_append_reply),
        replaced(Following, "_SyncObj__sendNextNodeIdx", send_next),
    )


def l2_no_pre_vote() -> Any:
    """Stand as soon as the time is up."""
    return replaced(Corrections, "_ask_first_if_due", lambda _: None)


def l2_no_stickiness() -> Any:
    """Vote although a leader is heard."""
    return replaced(Corrections, "_hears_leader", lambda _: False)


def l3_no_check_quorum() -> Any:
    """Lead on for half a minute, whether anybody answers or not."""

    def configuration(*arguments: Any) -> Any:
        conf = original(*arguments)
        conf.leaderFallbackTimeout = 30.0
        return conf

    original = vars(corrections_module)["configuration"]
    return replaced(corrections_module, "configuration", configuration)


def bar_for_a_floor() -> Any:
    """Abstain below the bar as below a floor."""

    def begin(self: LibraryLog, stored: Stored, **limits: int) -> None:
        original(self, replace(stored, floor=max(stored.floor, stored.bar)), **limits)

    original = LibraryLog.__init__
    return replaced(LibraryLog, "__init__", begin)


def vote_below_the_bar() -> Any:
    """Vote for any log as long as the own."""

    def own_end(self: LibraryLog) -> Floor:
        return Floor(self.entries.last_term, self.entries.last_index)

    return replaced(LibraryLog, "voting_end", property(own_end))


def bar_for_ever() -> Any:
    """Keep the bar although no member leads."""
    return replaced(Following, "_lapse_bar", lambda _: None)


def vote_below_the_floor() -> Any:
    """After a wiped disk, take part as if nothing had been forgotten."""
    return replaced(LibraryLog, "abstains", property(lambda _: False))


def commit_on_disk_before_its_entries() -> Any:
    """Write the commit with the term although its entries come after it."""

    def take_save(self: Any, number: int) -> Save | None:
        self.durable = self.entries.last_index
        return original(self, number)

    original = LibraryLog.take_save
    return replaced(LibraryLog, "take_save", take_save)


def read_without_a_round() -> Any:
    """Take any earlier answer of a member for a confirmation."""

    def confirm(self: Any) -> None:
        self._answered = dict.fromkeys(self._others, 1 << 60)
        original(self)

    original = Leading._confirm_reads
    return replaced(Leading, "_confirm_reads", confirm)


def read_before_the_first_commit() -> Any:
    """Confirm reads before an entry of the own term is committed."""

    def confirm(self: Any, **facts: Any) -> None:
        original(self, **{**facts, "commit_is_ours": True})

    original = Reads.confirm
    return replaced(Reads, "confirm", confirm)


# ---------------------------------------------------------------------------- scripts


def answer_across_elections() -> None:
    """Two answers to a leader's first term arrive when it leads again, with another log."""
    member = MemberRig(PysyncobjCore, members=GROUP)
    term = member.lead()
    member.get(E, VoteReply(term + 3, granted=False))
    member.lead()
    for peer in (B, C):
        member.get(peer, AppendReply(term, True, member.last_index, 0, 0, 1))
    member.wait(1)
    assert member.member.commit == 0, "answers of an old term were counted"


def commit_behind_the_message() -> None:
    """A heartbeat about entry 1 knows of a commit of 3: what lies behind it here may differ."""
    member = MemberRig(PysyncobjCore)
    member.get(B, append(1, (0, 0), entries(1, 3, 1)))
    member.get(C, append(2, (1, 1), commit=3))
    assert member.member.commit == 1, "a commit went past what the message has shown"


def chunk_for_a_lonely_leader() -> None:
    """A leader that was cut off hears the first piece of a snapshot: its own tail stays open."""
    member = MemberRig(PysyncobjCore, chunk_bytes_max=4)
    term = member.lead()
    for sequence in range(5):
        member.step(Propose(proposal(sequence)))
    theirs = snapshot_of(200, term + 1)
    member.get(B, Chunk(term + 1, theirs.id, 0, 1, theirs.data[:4]))
    member.wait(1)
    assert member.applied == [], "commands of nobody else were applied"


def snapshot_of_a_prefix() -> None:
    """A snapshot arrives that ends before our own log, which agrees with it: the rest stays."""
    member = MemberRig(PysyncobjCore)
    member.get(B, append(1, (0, 0), entries(1, 4, 1)))
    theirs = snapshot_of(2, 1)
    member.get(B, Chunk(1, theirs.id, 0, 1, theirs.data))
    assert (member.member.log.base_index, member.last_index) == (2, 4), "entries were dropped"


def one_voter_twice() -> None:
    """A vote arrives doubled: of five, two are for us."""
    member = MemberRig(PysyncobjCore, members=GROUP)
    member.wait(member.config.election_ms_max + 1)
    for peer in (B, C):
        member.get(peer, PreVoteReply(0, 1, granted=True))
    for _ in range(2):
        member.get(B, VoteReply(1, granted=True))
    assert not member.leads(), "elected by a vote that was counted twice"


def two_messages_each_round() -> None:
    """A follower with another leader's tail hears two messages before its answers are heard."""
    leader = MemberRig(PysyncobjCore, append_bytes_max=200)
    leader.get(C, append(3, (0, 0), (*entries(1, 10, 1), *entries(11, 40, 3))))
    follower = MemberRig(PysyncobjCore, append_bytes_max=200)
    follower.get(C, append(2, (0, 0), (*entries(1, 10, 1), *entries(11, 40, 2))))
    leader.lead()
    leader.said_to(B)
    for number in range(60):
        leader.step(Propose(proposal(number)))
        leader.wait(leader.config.heartbeat_ms + 1)
        for message in leader.said_to(B):
            for answer in follower.get(B, message):
                leader.get(B, answer)
    assert follower.member.log.term_at(11) == 3, "the tail was never repaired"


def read_by_a_leader_alone() -> None:
    """A leader without answers confirms nothing; the answers of a majority confirm."""
    member = MemberRig(PysyncobjCore)
    term = member.lead()
    member.get(B, AppendReply(term, True, 1, 0, 0, 1))
    assert member.member.commit == 1
    member.step(Barrier(5))
    assert _passed(member) == [], "a read without a round"
    member.get(B, AppendReply(term, True, 1, 0, 0, 1))
    assert _passed(member) == [], "a round that began before the read"
    member.get(B, AppendReply(term, True, 1, 0, 0, 1 << 30))
    assert _passed(member) == [5]


def read_by_a_new_leader() -> None:
    """A leader whose own entry is not committed does not know what earlier ones committed."""
    member = MemberRig(PysyncobjCore)
    member.get(B, append(1, (0, 0), entries(1, 3, 1), commit=1))
    term = member.lead()
    member.step(Barrier(5))
    member.get(B, AppendReply(term, True, 3, 0, 0, 1 << 30))
    assert _passed(member) == [], "entries 2 and 3 may be committed"
    member.get(B, AppendReply(term, True, 4, 0, 0, 1 << 30))
    member.get(B, AppendReply(term, True, 4, 0, 0, 1 << 30))
    assert _passed(member) == [5]


def _passed(member: MemberRig) -> list[int]:
    return [one.number for one in member.effects if isinstance(one, BarrierPassed)]


def wiped_and_asked() -> None:
    """A member whose disk was wiped is asked for its vote."""
    member = MemberRig(PysyncobjCore)
    member.journal.take_part(4, Floor(2, 20))
    member.restart(power=True)
    said = member.get(B, Vote(6, 50, 3, transfer=False))
    assert VoteReply(6, granted=True) not in said, "a vote below the floor"


def alone_at_once() -> None:
    """The first save of a member alone has its term, its entry and, in memory, their commit."""
    member = MemberRig(PysyncobjCore, members=(A,))
    for effect in member.effects:
        if isinstance(effect, Save) and effect.hard is not None:
            assert effect.hard.commit == 0, "a commit on disk whose entry is not"
    assert member.member.log.image().entries[0].kind is EntryKind.NOOP


MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        s1_cut_what_follows,
        s2_count_answers_of_old_terms,
        s3_commit_from_chunks,
        s3_commit_past_the_message,
        s6_say_it_before_it_is_saved,
        s6_forget_votes,
        s8_count_votes_not_voters,
        s10_snapshot_clears_the_log,
        l1_step_back_for_each_refusal,
        l2_no_pre_vote,
        l2_no_stickiness,
        l3_no_check_quorum,
        bar_for_a_floor,
        bar_for_ever,
        vote_below_the_bar,
        vote_below_the_floor,
        commit_on_disk_before_its_entries,
        read_without_a_round,
        read_before_the_first_commit,
    )
}

# Windows that chance hardly ever opens, played step by step.
SCRIPTS: Final[dict[str, Callable[[], None]]] = {
    "s2_count_answers_of_old_terms": answer_across_elections,
    "s3_commit_from_chunks": chunk_for_a_lonely_leader,
    "s3_commit_past_the_message": commit_behind_the_message,
    "s8_count_votes_not_voters": one_voter_twice,
    "s10_snapshot_clears_the_log": snapshot_of_a_prefix,
    "l1_step_back_for_each_refusal": two_messages_each_round,
    "commit_on_disk_before_its_entries": alone_at_once,
    "vote_below_the_floor": wiped_and_asked,
    "read_without_a_round": read_by_a_leader_alone,
    "read_before_the_first_commit": read_by_a_new_leader,
}

# What makes a mutant's window common: faults, and the size of the group.
HINTS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "s1_cut_what_follows": (("double", "reorder", "power", "cut"), 3),
    "s6_forget_votes": (("kill", "slow", "power", "cut"), 3),
    "l3_no_check_quorum": (("one-way",), 3),
    "bar_for_a_floor": (("restore", "copy", "wipe", "cut"), 3),
    "bar_for_ever": (("restore", "copy", "wipe", "cut", "power"), 3),
    "vote_below_the_bar": (("restore", "copy", "cut"), 3),
}

# The first seed that is known to show it, if that is not 0: a hunt begins there.
FIRST_SEEDS: Final[dict[str, int]] = {
    "s6_forget_votes": 135,
    "bar_for_a_floor": 13,
    "bar_for_ever": 137,
    "vote_below_the_bar": 101,
    "l3_no_check_quorum": 8,
}

# What a mutant's seed has to say; other seeds count for nothing. Most break a promise of safety.
_PROMISE: Final = r"AssertionError: (?!no progress)"
REASONS: Final[defaultdict[str, str]] = defaultdict(
    lambda: _PROMISE,
    s1_cut_what_follows="LogFailedError: the leader's log lacks",
    bar_for_a_floor="no progress after healing",
    bar_for_ever="no progress after healing",
)
