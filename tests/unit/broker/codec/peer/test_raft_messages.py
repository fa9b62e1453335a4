"""Messages of the Raft group: decoding undoes encoding, and other bytes are refused."""

from __future__ import annotations

import random

import pytest

from broker.codec.disk.raft_voters import encode_voters
from broker.codec.peer.raft_messages import decode, encode, other_leader
from broker.errors import EnvelopeError
from broker.model.raft import (
    DISK_MAX,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    U64_MAX,
    Entry,
    EntryKind,
    NodeId,
    Proposal,
    SnapshotId,
    Voter,
)
from broker.model.raft_messages import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Forward,
    Invite,
    Invited,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndexReply,
    ReadIndexRequest,
    TimeoutNow,
    Vote,
    VoteReply,
)

_SNAPSHOT = SnapshotId(9, 3, 4000, 0xDEADBEEF)
_VOTERS = (Voter(NodeId("b1")), Voter(NodeId("b2"), 7))
_ENTRIES = (
    Entry(5, 2, EntryKind.NOOP, 0, 0, b""),
    Entry(6, 3, EntryKind.OPEN_SESSION, U64_MAX, 1, b""),
    Entry(7, 4, EntryKind.COMMAND, 17, 2, b"payload"),
    Entry(8, 4, EntryKind.VOTERS, 0, 0, encode_voters(_VOTERS)),
)
MESSAGES: tuple[Message, ...] = (
    PreVote(7, 12, 6),
    PreVoteReply(6, 7, True),
    Vote(7, 12, 6, False, U64_MAX),
    VoteReply(7, True, 17),
    Append(4, 4, 2, 3, 99, 3, U64_MAX, _ENTRIES),
    Append(4, 4, 2, 3, 99, 0, 0, ()),
    AppendReply(4, False, 10, 8, 2, 99),
    Chunk(4, _SNAPSHOT, 1000, 5, b"x" * 300),
    ChunkReply(4, _SNAPSHOT, 1300, 5),
    TimeoutNow(4),
    ReadIndexRequest(4, U64_MAX),
    ReadIndexReply(4, 1 << 50, 77),
    Forward(0, Proposal(EntryKind.COMMAND, 17, 3, b"do it")),
    PreVote(7, 12, 6, DISK_MAX),
    Vote(7, 12, 6, False, U64_MAX, 5),
    VoteReply(7, True, 17, 5),
    Invite(4),
    Invited(4, 9),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Encoding and decoding is the identity."""
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_any_part_or_extension_is_refused(message: Message) -> None:
    """A message that is cut anywhere, or continued, is none."""
    data = encode(message)
    for end in range(len(data)):
        with pytest.raises(EnvelopeError):
            decode(data[:end])
    with pytest.raises(EnvelopeError):
        decode(data + b"\0")


def test_hostile_bytes_give_the_one_error() -> None:
    """Random bytes and random changes decode to a message or raise EnvelopeError, nothing else."""
    rng = random.Random(5)
    for _ in range(20_000):
        data = bytearray(encode(rng.choice(MESSAGES)))
        if rng.random() < 0.2:
            data = bytearray(b"\x01" + rng.randbytes(rng.randrange(80)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            message = decode(bytes(data))
        except EnvelopeError:
            continue
        assert decode(encode(message)) == message


def test_lengths_are_bounded_before_they_are_believed() -> None:
    """A count or length that the message cannot hold, or that is too large, is refused."""
    append = bytearray(encode(MESSAGES[5]))
    append[-4:] = b"\xff\xff\xff\xff"  # four billion entries
    with pytest.raises(EnvelopeError, match="cannot hold"):
        decode(bytes(append))
    large = Proposal(EntryKind.COMMAND, 1, 1, b"x" * (PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(EnvelopeError, match="out of bounds"):
        decode(encode(Forward(0, large)))
    with pytest.raises(EnvelopeError, match="a Raft message has 2 to"):
        decode(b"\x01\x05" + bytes(MESSAGE_BYTES_MAX))
    with pytest.raises(EnvelopeError, match="out of bounds"):
        decode(encode(ChunkReply(1, SnapshotId(1, 1, 1 << 40, 0), 0, 0)))


def test_a_newer_version_is_refused() -> None:
    """A version that this release does not know is never guessed at."""
    data = encode(TimeoutNow(1))
    with pytest.raises(EnvelopeError, match="version 1"):
        decode(b"\x02" + data[1:])


def test_terms_never_fall_within_an_append() -> None:
    """Entries of falling terms, or newer than their leader, cannot come from a leader."""
    falling = (Entry(5, 3, EntryKind.NOOP, 0, 0, b""), Entry(6, 2, EntryKind.NOOP, 0, 0, b""))
    newer = (Entry(5, 9, EntryKind.NOOP, 0, 0, b""),)
    for entries in (falling, newer):
        with pytest.raises(EnvelopeError, match="out of order"):
            decode(encode(Append(4, 4, 2, 3, 1, 0, 0, entries)))


def test_the_other_raft_is_not_understood() -> None:
    """The votes of two implementations never count together; a leader of the other is noticed."""
    told = Append(4, 4, 2, 5, 8, 3, 99, _ENTRIES)
    of_library = encode(told, raft="pysyncobj")
    assert decode(of_library, raft="pysyncobj") == told
    with pytest.raises(EnvelopeError):
        decode(of_library)
    with pytest.raises(EnvelopeError):
        decode(encode(told), raft="pysyncobj")
    assert other_leader(of_library) == "pysyncobj"
    assert other_leader(encode(told), raft="pysyncobj") == "own"
    assert other_leader(encode(told)) is None
    assert other_leader(encode(PreVote(1, 1, 1), raft="pysyncobj")) is None, "anybody may ask"
    assert other_leader(b"") is None
