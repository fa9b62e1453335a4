"""Known ways to get Raft wrong, one switch each. The simulation has to catch every one.

A mutant replaces one step of the production code for the length of a `with`. Numbers such as S1
are those of the defects that were found in pysyncobj (docs/decisions/0010-own-raft.md).

The file is not split: it is a list, and each entry can be read alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, Final, cast

from broker.codec.disk.raft_member_file import MemberNote
from broker.core.raft import follower as follower_module
from broker.core.raft import member as member_module
from broker.core.raft import rejoin
from broker.core.raft.applier import Applier
from broker.core.raft.compare import Compare, GoOn
from broker.core.raft.core import RaftCore
from broker.core.raft.election import Election
from broker.core.raft.follower import Follower
from broker.core.raft.leader import Leader
from broker.core.raft.member import Member, Role
from broker.core.raft.rejoin import Rejoin, TakePart
from broker.model.raft import Entry, Floor, HardState, LogImage, NodeId, Snapshot
from broker.model.raft_messages import Append, AppendReply, Chunk, Message, VoteReply
from broker.storage.raft import journal as raft_journal
from broker.storage.raft import journal_file
from broker.storage.raft import journal_scan as raft_journal_scan
from broker.storage.raft.journal import RaftJournal
from broker.storage.raft.meta import MetaFile
from broker.storage.raft.raft_folder import RaftFolder
from simkit.replacing import Mutant, replaced, together


def s1_cut_what_matches() -> Any:
    """Replace everything behind the message, conflict or not."""

    def take(self: Follower, entries: tuple[Entry, ...]) -> None:
        if entries and entries[0].index <= self._m.log.last_index:
            self._m.truncate(entries[0].index)
        if entries:
            self._m.append(entries)

    return replaced(Follower, "_take", take)


def s2_count_acks_of_old_terms() -> Any:
    """Count an answer in whatever term the leader is now."""

    def answer(self: RaftCore, sender: NodeId, message: Message) -> None:
        if isinstance(message, AppendReply):
            self._ask_leader(sender, message)
        original(self, sender, message)

    original = RaftCore._answer_old_term
    return replaced(RaftCore, "_answer_old_term", answer)


def s3_commit_from_chunks() -> Any:
    """Take a snapshot's chunk for a proof that the own log is committed."""

    def on_chunk(self: Follower, leader: NodeId, message: Chunk) -> None:
        original(self, leader, message)
        self._m.commit_to(max(self._m.commit, min(message.snapshot.index, self._m.log.last_index)))

    original = Follower.on_chunk
    return replaced(Follower, "on_chunk", on_chunk)


def s4_snapshot_clears_the_log() -> Any:
    """At start, keep of the log nothing that is not in the snapshot."""

    def reconciled(image: LogImage, snapshot: Snapshot | None, path: str) -> LogImage:
        if snapshot is not None and image.base_index != snapshot.id.index:
            return LogImage(snapshot.id.index, snapshot.id.term, ())
        return original(image, snapshot, path)

    original = raft_journal._reconciled
    return replaced(raft_journal, "_reconciled", reconciled)


def s6_ack_before_sync() -> Any:
    """Send messages before the disk has confirmed the save."""
    return replaced(Member, "is_saved", lambda *_: True)


def s7_apply_again() -> Any:
    """Apply a retried proposal a second time."""

    def command(self: Applier, entry: Entry) -> Any:
        if entry.session in self._sessions:
            self._sessions[entry.session].replies.clear()
            self._sessions[entry.session].floor = 0
        return original(self, entry)

    original = Applier._command
    return replaced(Applier, "_command", command)


def s8_count_votes_not_voters() -> Any:
    """Count each vote that arrives, of any sender and any term."""
    fresh = itertools.count()

    def on_vote_reply(self: Election, sender: NodeId, reply: VoteReply) -> None:
        if reply.granted and self._m.role is Role.CANDIDATE:
            self._votes.add(NodeId(f"{sender}-{next(fresh)}"))

    return replaced(Election, "on_vote_reply", on_vote_reply)


def s9_trust_any_chunk() -> Any:
    """Append a chunk wherever it belongs, and do not check the whole."""

    def on_chunk(self: Follower, leader: NodeId, message: Chunk) -> None:
        offset = len(self._received) if self._incoming == message.snapshot else 0
        moved = Chunk(message.term, message.snapshot, offset, message.round, message.data)
        with replaced(follower_module, "crc32c", lambda *_: message.snapshot.crc):
            original(self, leader, moved)

    original = Follower.on_chunk
    return replaced(Follower, "on_chunk", on_chunk)


def leader_counts_itself_at_once() -> Any:
    """Commit with the leader's own copy before its sync."""

    def commit(self: Leader) -> None:
        durable, self._m.durable = self._m.durable, self._m.log.last_index
        try:
            original(self)
        finally:
            self._m.durable = durable

    original = Leader._commit
    return replaced(Leader, "_commit", commit)


def candidate_counts_itself_at_once() -> Any:
    """Count the own vote before it is durable."""

    def stand(self: Election, *, transfer: bool) -> None:
        original(self, transfer=transfer)
        self._own_vote_save = 0
        for one in self._m.peers:  # and ask the others at once
            self._m.send_now(one, self._vote(transfer=transfer))

    original = Election.stand
    return replaced(Election, "stand", stand)


def commit_entries_of_old_terms() -> Any:
    """Commit by counting copies of an entry that an earlier leader wrote."""

    def commit(self: Leader) -> None:
        m = self._m
        with replaced(type(m.log), "term_at", lambda *_: m.term):
            original(self)

    original = Leader._commit
    return replaced(Leader, "_commit", commit)


def commit_past_what_matches() -> Any:
    """Apply the leader's commit to the whole own log, not only to the checked prefix."""

    def on_append(self: Follower, leader: NodeId, message: Append) -> None:
        original(self, leader, message)
        m = self._m
        if m.log.term_at(message.prev_index) == message.prev_term:
            m.commit_to(max(m.commit, min(message.commit, m.log.last_index)))

    original = Follower.on_append
    return replaced(Follower, "on_append", on_append)


def forget_votes() -> Any:
    """Keep the term on disk, and the vote in memory only."""

    def hard_state(term: int, vote: NodeId | None, commit: int) -> HardState:
        return HardState(term, None, commit)

    return replaced(member_module, "HardState", hard_state)


def vote_for_shorter_logs() -> Any:
    """Vote without comparing logs."""
    return replaced(Election, "_is_complete", lambda *_: True)


def no_pre_vote() -> Any:
    """Stand at once when the time is up."""
    return replaced(Election, "ask_first", lambda self: self.stand(transfer=False))


def no_stickiness() -> Any:
    """Vote for other candidates although a leader is heard."""
    return replaced(Election, "hears_leader", property(lambda self: False))


def no_check_quorum() -> Any:
    """Lead on, whether anybody answers or not."""

    def tick(self: Leader) -> bool:
        for one in self._progress.values():
            one.heard_ms = self._m.now_ms
        return original(self)

    original = Leader.tick
    return replaced(Leader, "tick", tick)


def read_without_asking() -> Any:
    """Answer a barrier from the own commit, without a round."""

    def read(self: Leader, origin: NodeId, number: int) -> None:
        if origin == self._m.me:
            self._m.wait_for(number, self._m.commit)
        else:
            original(self, origin, number)

    original = Leader.read
    return replaced(Leader, "read", read)


def read_answered_by_an_old_round() -> Any:
    """Take any earlier answer of a member for a confirmation."""

    def confirm(self: Leader) -> None:
        if self._waiting_reads and self._m.log.term_at(self._m.commit) == self._m.term:
            for one in self._waiting_reads:
                self._answer(one, self._m.commit)
            self._waiting_reads.clear()

    return replaced(Leader, "_confirm_reads", confirm)


def one_meta_slot() -> Any:
    """Write the two slots in turn, and fall back to the other when the newer is damaged."""

    def write(self: MetaFile, hard: Any, synced: int, sync: Any) -> None:
        turn = self.slot.sequence % 2
        file = self._file

        class _One:
            def write_at(self, position: int, data: Any) -> int:
                return file.write_at(position, data) if (position > 0) == bool(turn) else 0

        self._file = _One()  # type: ignore[assignment]
        try:
            original(self, hard, synced, lambda _: sync(file))
        finally:
            self._file = file

    original = MetaFile.write
    return replaced(MetaFile, "write", write)


def cut_at_first_bad_record() -> Any:
    """Take all damage for a torn tail."""

    def end(self: Any, _head: Any) -> None:
        self._torn = True

    return replaced(raft_journal_scan._JournalReader, "_end", end)


def believe_the_page_cache() -> Any:
    """After a restart, rely on the page cache without writing its records again."""

    def read(*args: Any, **facts: Any) -> Any:
        found = original(*args, **facts)
        return type(found)(found.image, found.last_number, found.end, found.torn, found.end)

    original = raft_journal_scan.read_journal
    return replaced(journal_file, "read_journal", read)


def skip_folder_sync() -> Any:
    """Rename without syncing the folder."""

    def write_whole(self: RaftFolder, name: str, parts: Any) -> None:
        files = self.files

        class _Files:
            def __getattr__(self, what: str) -> Any:
                return (lambda _: None) if what == "sync_folder" else getattr(files, what)

        self.files = cast("Any", _Files())
        try:
            original(self, name, parts)
        finally:
            self.files = files

    original = RaftFolder.write_whole
    return replaced(RaftFolder, "write_whole", write_whole)


def retry_fsync() -> Any:
    """Ask again after a failed sync: the second answer is yes, and the data is gone."""

    def datasync(self: RaftFolder, file: Any) -> None:
        try:
            file.datasync()
        except OSError:
            file.datasync()

    return replaced(RaftFolder, "datasync", datasync)


def install_over_a_longer_log() -> Any:
    """S10: an installed snapshot replaces the log, whatever it holds beyond."""

    def install(self: Member, snapshot: Snapshot) -> None:
        self.log.reset(self.log.base_index, self.log.base_term)
        original(self, snapshot)

    original = Member.install
    return replaced(Member, "install", install)


def rejoin_votes_at_once() -> Any:
    """Take part with an empty disk as if nothing had been there."""

    def judge(self: Rejoin, told: Any) -> TakePart | None:
        found = original(self, told)
        return None if found is None else TakePart(found.term, Floor())

    original = Rejoin._judge
    return replaced(Rejoin, "_judge", judge)


def rejoin_keeps_the_old_term() -> Any:
    """Rejoin in the present term, so that its leader goes on."""

    def judge(self: Rejoin, told: Any) -> TakePart | None:
        found = original(self, told)
        return None if found is None else TakePart(max(0, found.term - 1), found.floor)

    original = Rejoin._judge
    return replaced(Rejoin, "_judge", judge)


def rejoin_asks_a_majority() -> Any:
    """Accept the first answers that know a group, if they are a majority with the asker."""

    def unanswered(self: Rejoin) -> tuple[NodeId, ...]:
        begun = any(told.standing.knows for told in self._told.values())
        if begun and len(self._told) >= self._quorum - 1:
            return ()
        return tuple(one for one in self._others if one not in self._told)

    return together(
        replaced(Rejoin, "unanswered", property(unanswered)),
        replaced(rejoin, "same_moment", lambda before, now: before.keys() == now.keys()),
    )


def rejoin_asks_once() -> Any:
    """Take answers of different moments for one moment's."""

    def told(self: Rejoin, *answer: Any) -> TakePart | None:
        self._before = self._before or {}
        with replaced(rejoin, "same_moment", lambda *_: True):
            return original(self, *answer)

    original = Rejoin.told
    return replaced(Rejoin, "told", told)


def floor_forgotten_by_a_restart() -> Any:
    """Abstain only as long as the process that rejoined lives."""

    def read(self: RaftJournal) -> MemberNote | None:
        found = original(self)
        path, files = self._folder.file("meta"), self._folder.files
        if found is None or not files.exists(path):  # nothing was restarted yet
            return found
        meta = MetaFile(path, files.open(path), self._folder.owner)
        meta.close()
        again = meta.slot.hard.term >= found.term
        return MemberNote(found.term, Floor()) if again else found

    original = RaftJournal._read_membership
    return replaced(RaftJournal, "_read_membership", read)


def count_votes_for_a_former_life() -> Any:
    """Count a vote of this term, whichever process asked for it."""

    def on_vote_reply(self: Election, sender: NodeId, reply: VoteReply) -> None:
        original(self, sender, VoteReply(reply.term, reply.granted, self._candidacy))

    original = Election.on_vote_reply
    return replaced(Election, "on_vote_reply", on_vote_reply)


def member_note_alone_believed() -> Any:
    """Open a folder of which only the member file is left, and go on from what that says."""

    def read(self: RaftJournal) -> MemberNote | None:
        present = self._folder.files.list(self._folder.path)
        return original(self) if "meta" in present else None

    original = RaftJournal._read_membership
    return replaced(RaftJournal, "_read_membership", read)


def restored_disk_votes_at_once() -> Any:
    """Continue from the own disk, whatever the other members answer."""

    def judge(self: Compare, _told: Any) -> GoOn:
        return GoOn(self._hard)

    return replaced(Compare, "_judge", judge)


def restored_disk_ignores_the_bar() -> Any:
    """Take the highest term, with the vote in it spent, and vote for any log as long as the own."""

    def judge(self: Compare, told: Any) -> GoOn:
        return GoOn(original(self, told).hard)

    original = Compare._judge
    return replaced(Compare, "_judge", judge)


def restored_disk_votes_again() -> Any:
    """Take the highest term and the bar, and vote in that term."""

    def judge(self: Compare, told: Any) -> GoOn:
        found = original(self, told)
        term = found.hard.term
        vote = self._hard.vote if term == self._hard.term else None
        return GoOn(HardState(term, vote, found.hard.commit), found.bar)

    original = Compare._judge
    return replaced(Compare, "_judge", judge)


def compare_asks_a_majority() -> Any:
    """Leave out members that have not answered at once."""

    def waited_for(self: Compare) -> tuple[NodeId, ...]:
        if len(self._told) >= len(self._voters) // 2:
            return tuple(one for one in self._others if one in self._told)
        return self._others

    return replaced(Compare, "_waited_for", property(waited_for))


def who_has_answered_is_silent() -> Any:
    """Leave out a member that has answered in a round, because it is not asked again in it."""

    def leave_out(self: Compare) -> None:
        told, self._told = self._told, {}
        request_id = self.request_id
        original(self)
        if self.request_id == request_id:  # the same round goes on
            self._told = told

    original = Compare.leave_out_silent
    return replaced(Compare, "leave_out_silent", leave_out)


def leader_keeps_copies_of_a_former_process() -> Any:
    """Count acknowledgements of a member from before its restart with another disk."""
    return replaced(Leader, "forget_copies", lambda *_: None)


def leader_hears_a_former_process() -> Any:
    """Begin to count anew, and take an answer of the former process for the new one's."""

    def forget(self: Leader, member: NodeId) -> None:
        original(self, member)
        self._progress[member].void_round = -1

    original = Leader.forget_copies
    return replaced(Leader, "forget_copies", forget)


# What makes a mutant's window common: faults, and the size of the group.
HINTS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "s1_cut_what_matches": (("double", "reorder", "power", "cut"), 3),
    "s3_commit_from_chunks": (("cut", "pause", "slow"), 3),
    "candidate_counts_itself_at_once": (("power", "cut"), 3),
    "forget_votes": (("kill", "slow", "power", "cut"), 3),
    "no_check_quorum": (("one-way",), 3),
    "read_without_asking": (("cut", "skew", "pause"), 3),
    "read_answered_by_an_old_round": (("cut", "skew", "pause"), 3),
    "one_meta_slot": (("rot", "kill"), 3),
    "cut_at_first_bad_record": (("rot", "kill"), 3),
    "believe_the_page_cache": (("fsync", "power", "kill"), 3),
    "retry_fsync": (("fsync", "power"), 3),
    "rejoin_votes_at_once": (("wipe", "cut"), 3),
    "rejoin_keeps_the_old_term": (("wipe",), 3),
    "rejoin_asks_a_majority": (("wipe", "cut", "power"), 3),
    "restored_disk_votes_at_once": (("restore", "copy", "cut"), 3),
    "restored_disk_ignores_the_bar": (("restore", "copy", "cut"), 3),
    "compare_asks_a_majority": (("restore", "copy", "cut"), 3),
    "who_has_answered_is_silent": (("restore", "copy", "cut", "leave"), 5),
}

# The first seed that is known to show it, if that is not 0: a hunt begins there.
FIRST_SEEDS: Final[dict[str, int]] = {
    "s1_cut_what_matches": 6,
    "s3_commit_from_chunks": 423,
    "s9_trust_any_chunk": 157,
    "forget_votes": 169,
    "read_without_asking": 1211,
    "read_answered_by_an_old_round": 1291,
    "one_meta_slot": 127,
    "rejoin_asks_a_majority": 133,
    "rejoin_keeps_the_old_term": 17,
    "restored_disk_votes_at_once": 176,
    "restored_disk_ignores_the_bar": 102,
    "compare_asks_a_majority": 144,
    "who_has_answered_is_silent": 20,
    "s4_snapshot_clears_the_log": 9,
    "leader_counts_itself_at_once": 2,
    "vote_for_shorter_logs": 10,
    "no_pre_vote": 5,
    "no_stickiness": 1,
    "no_check_quorum": 1,
    "cut_at_first_bad_record": 17,
    "believe_the_page_cache": 17,
    "skip_folder_sync": 1,
    "retry_fsync": 5,
    "rejoin_votes_at_once": 19,
}

# What a mutant's seed has to say; other seeds count for nothing. Most break a promise of safety.
_PROMISE: Final = r"AssertionError: (?!no progress)"
REASONS: Final[defaultdict[str, str]] = defaultdict(
    lambda: _PROMISE,
    s9_trust_any_chunk="MetadataCorruptError: a Raft snapshot",
    rejoin_keeps_the_old_term="no progress after healing",  # the leader hears no refusal
    who_has_answered_is_silent="no progress after healing",
)

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.__name__: mutant
    for mutant in (
        s1_cut_what_matches,
        s2_count_acks_of_old_terms,
        s3_commit_from_chunks,
        s4_snapshot_clears_the_log,
        s6_ack_before_sync,
        s7_apply_again,
        s8_count_votes_not_voters,
        s9_trust_any_chunk,
        leader_counts_itself_at_once,
        candidate_counts_itself_at_once,
        commit_entries_of_old_terms,
        commit_past_what_matches,
        forget_votes,
        vote_for_shorter_logs,
        no_pre_vote,
        no_stickiness,
        no_check_quorum,
        read_without_asking,
        read_answered_by_an_old_round,
        one_meta_slot,
        cut_at_first_bad_record,
        believe_the_page_cache,
        skip_folder_sync,
        retry_fsync,
        install_over_a_longer_log,
        rejoin_votes_at_once,
        rejoin_keeps_the_old_term,
        rejoin_asks_a_majority,
        rejoin_asks_once,
        floor_forgotten_by_a_restart,
        count_votes_for_a_former_life,
        member_note_alone_believed,
        restored_disk_votes_at_once,
        restored_disk_ignores_the_bar,
        restored_disk_votes_again,
        compare_asks_a_majority,
        who_has_answered_is_silent,
        leader_keeps_copies_of_a_former_process,
        leader_hears_a_former_process,
    )
}
