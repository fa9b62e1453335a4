"""Frozen bytes of what Raft members store and say: a change here is a change of format."""

from __future__ import annotations

from broker.codec.disk.raft_log_format import (
    JournalHeader,
    MetaSlot,
    RecordKind,
    encode_journal_header,
    encode_meta,
    encode_record,
    encode_snapshot_header,
)
from broker.codec.disk.raft_member_file import MemberNote, encode_member_file
from broker.codec.disk.raft_state import SessionState, encode_state
from broker.codec.disk.raft_voters import encode_voters
from broker.codec.peer.raft_messages import encode
from broker.model.raft import (
    Entry,
    EntryKind,
    Floor,
    HardState,
    NodeId,
    Proposal,
    SnapshotId,
    Voter,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    Forward,
    Invite,
    Invited,
    PreVote,
    Vote,
    VoteReply,
)

OWNER = bytes(range(16))
ENTRY = Entry(7, 3, EntryKind.COMMAND, 0x1122334455667788, 9, b"payload")


def test_the_journal() -> None:
    """Header, record, meta slot and snapshot header."""
    assert encode_journal_header(JournalHeader(6, 2, 11, 12, OWNER)).hex() == HEADER
    assert encode_record(RecordKind.ENTRY, 12, 11, ENTRY).hex() == RECORD
    meta = encode_meta(MetaSlot(5, HardState(3, NodeId("node-1"), 6), 11, OWNER))
    assert meta.hex() == META
    assert encode_snapshot_header(SnapshotId(6, 2, 1000, 0xCAFE), OWNER).hex() == SNAPSHOT


def test_the_messages() -> None:
    """One of each shape."""
    identity = SnapshotId(6, 2, 1000, 0xCAFE)
    assert encode(Vote(4, 7, 3, True, 15)).hex() == VOTE
    assert encode(Append(4, 6, 2, 5, 8, 3, 99, (ENTRY,))).hex() == APPEND
    assert encode(AppendReply(4, False, 6, 5, 2, 8)).hex() == APPEND_REPLY
    assert encode(Chunk(4, identity, 512, 8, b"abc")).hex() == CHUNK
    proposal = Proposal(EntryKind.COMMAND, 17, 3, b"do")
    assert encode(Forward(0, proposal)).hex() == FORWARD
    assert encode(Forward(0, proposal), raft="pysyncobj").hex() == "81" + FORWARD[2:]


def test_the_snapshot() -> None:
    """Sessions in order, then the machine's own bytes."""
    sessions = [SessionState(9, 6, 0, {2: b"two", 1: b"one"}), SessionState(4, 5, 1, {})]
    assert encode_state(6, sessions, b"machine").hex() == STATE


def test_the_voters() -> None:
    """A configuration, and each format that has to do with one beside what it was before."""
    assert encode_voters(VOTERS).hex() == VOTERS_BYTES
    assert encode_state(6, [], b"m", VOTERS).hex() == STATE_WITH_VOTERS
    assert encode_member_file(MemberNote(3, Floor(2, 6)), OWNER).hex() == MEMBER
    assert encode_member_file(MemberNote(3, Floor(2, 6), 77), OWNER).hex() == MEMBER_WITH_DISK
    said = (PreVote(4, 7, 3, 77), Vote(4, 7, 3, True, 15, 77), VoteReply(4, True, 15, 77))
    assert [encode(one).hex() for one in (*said, Invite(4), Invited(4, 77))] == NUMBERED


VOTERS = (Voter(NodeId("b2"), 77), Voter(NodeId("b1")))

HEADER = (
    "4857524a01400000060000000000000002000000000000000b000000000000000c00000000000000"
    "000102030405060708090a0b0c0d0e0f0000000059055e1b"
)
RECORD = (
    "48575245070000007069e3f4010100000c000000000000000b000000000000000700000000000000"
    "030000000000000088776655443322110900000000000000000000000d78da977061796c6f616400"
)
META = (
    "4857524d017c06000500000000000000030000000000000006000000000000000b00000000000000"
    "000102030405060708090a0b0c0d0e0f6e6f64652d31000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00af3928"
)
SNAPSHOT = (
    "485752530138000006000000000000000200000000000000e803000000000000feca000000010203"
    "0405060708090a0b0c0d0e0fdba68fbf"
)
VOTE = "0103040000000000000007000000000000000300000000000000010f00000000000000"
APPEND = (
    "01050400000000000000060000000000000002000000000000000500000000000000080000000000"
    "00000300000000000000630000000000000001000000030000000000000088776655443322110900"
    "00000000000007000000017061796c6f6164"
)
APPEND_REPLY = (
    "01060400000000000000000600000000000000050000000000000002000000000000000800000000000000"
)
CHUNK = (
    "0107040000000000000006000000000000000200000000000000e803000000000000feca00000002"
    "000000000000080000000000000003000000616263"
)
FORWARD = "010c0000000000000000011100000000000000030000000000000002000000646f"
STATE = (
    "48575253010002000600000000000000070000000400000000000000050000000000000001000000"
    "00000000000009000000000000000600000000000000000000000000000002000100000000000000"
    "03006f6e650200000000000000030074776f6d616368696e65"
)
VOTERS_BYTES = "010200000000000000000262314d00000000000000026232"
STATE_WITH_VOTERS = (
    "48575253020000000600000000000000010000001800010200000000000000000262314d000000000000000262326d"
)
MEMBER = (
    "48575246013000000300000000000000020000000000000006000000000000000001020304050607"
    "08090a0b0c0d0e0f702e9653"
)
MEMBER_WITH_DISK = (
    "48575246023800000300000000000000020000000000000006000000000000000001020304050607"
    "08090a0b0c0d0e0f4d0000000000000083a51b49"
)
NUMBERED = [
    "010d0400000000000000070000000000000003000000000000004d00000000000000",
    "010e040000000000000007000000000000000300000000000000010f000000000000004d00000000000000",
    "010f0400000000000000010f000000000000004d00000000000000",
    "01100400000000000000",
    "011104000000000000004d00000000000000",
]
