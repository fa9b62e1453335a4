"""Bytes of the messages between members of the Raft group.

    message | version u8 | kind u8 | fixed fields, by kind | entries or data |
    entry   | term u64 | session u64 | sequence u64 | length u32 | kind u8 | payload ... |

Messages about votes have two kinds: with the number of the sender's disk after the fields, and
without. A voter of the first configuration has no disk number, and sends the kind without.

The version also says which implementation of Raft the sender runs. Members of two implementations
must not count each other's votes: there is no proof that such a group is safe. So a message of the
other implementation is refused.

Little-endian; a flag is one byte, 0 or 1. Indexes of entries follow from `prev_index`. Lengths and
counts are checked against the message's own size before they are used, so that no reader allocates
more memory than the message has bytes. Bytes that are not exactly one message raise EnvelopeError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.codec.disk.raft_voters import decode_voters
from broker.errors import EnvelopeError, MetadataCorruptError
from broker.model.raft import (
    CHUNK_BYTES_MAX,
    DISK_MAX,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Entry,
    EntryKind,
    Proposal,
    RaftName,
    SnapshotId,
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

VERSIONS: Final[Mapping[RaftName, int]] = {"own": 1, "pysyncobj": 129}
_HEAD: Final = struct.Struct("<BB")
_ENTRY: Final = struct.Struct("<QQQIB")
_INDEX_MAX: Final = 1 << 62  # no real index or term is larger

_PRE_VOTE: Final = struct.Struct("<QQQ")
_PRE_VOTE_REPLY: Final = struct.Struct("<QQB")
_VOTE: Final = struct.Struct("<QQQBQ")
_VOTE_REPLY: Final = struct.Struct("<QBQ")
_APPEND: Final = struct.Struct("<QQQQQQQI")
_APPEND_REPLY: Final = struct.Struct("<QBQQQQ")
_CHUNK: Final = struct.Struct("<QQQQIQQI")
_CHUNK_REPLY: Final = struct.Struct("<QQQQIQQ")
_TIMEOUT_NOW: Final = struct.Struct("<Q")
_DISK: Final = struct.Struct("<Q")
_INVITE: Final = struct.Struct("<Q")
_INVITED: Final = struct.Struct("<QQ")
_READ_REQUEST: Final = struct.Struct("<QQ")
_READ_REPLY: Final = struct.Struct("<QQQ")
_FORWARD: Final = struct.Struct("<QBQQI")


def encode(message: Message, *, raft: RaftName = "own") -> bytes:
    """Return the bytes of a message in a group that runs ``raft``."""
    kind = _KINDS[type(message)]
    if isinstance(message, PreVote | Vote | VoteReply) and message.disk:
        kind = _KINDS_WITH_DISK[kind]
    return _HEAD.pack(VERSIONS[raft], kind) + _ENCODERS[kind](message)


def other_leader(data: bytes, *, raft: RaftName = "own") -> RaftName | None:
    """Return the implementation of a sender that leads a group of another one than ``raft``.

    None if the message is not a leader's, or of this implementation.
    """
    if len(data) < _HEAD.size or data[1] not in _LEADER_KINDS:
        return None
    found = [name for name, version in VERSIONS.items() if version == data[0] and name != raft]
    return found[0] if found else None


def decode(data: bytes, *, raft: RaftName = "own") -> Message:
    """Parse one message of a group that runs ``raft``.

    Raises EnvelopeError for everything else, and nothing else.
    """
    if not _HEAD.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise EnvelopeError(
            f"a Raft message has {_HEAD.size} to {MESSAGE_BYTES_MAX} bytes, not {len(data)}"
        )
    version, kind = data[0], data[1]
    if version != VERSIONS[raft] or kind not in _DECODERS:
        raise EnvelopeError(f"not a Raft message of version {VERSIONS[raft]}: {data[:8].hex()}")
    try:
        return _DECODERS[kind](data)
    except struct.error as cause:
        raise EnvelopeError(f"a Raft message of kind {kind} ends early") from cause


# ---------------------------------------------------------------------------- encoding


def _entry(entry: Entry) -> bytes:
    return (
        _ENTRY.pack(entry.term, entry.session, entry.sequence, len(entry.payload), entry.kind)
        + entry.payload
    )


def _encode_append(m: Append) -> bytes:
    fixed = _APPEND.pack(
        m.term, m.prev_index, m.prev_term, m.commit, m.round, m.check_index, m.check_hash,
        len(m.entries),
    )  # fmt: skip
    return fixed + b"".join(map(_entry, m.entries))


def _encode_chunk(m: Chunk) -> bytes:
    s = m.snapshot
    return (
        _CHUNK.pack(m.term, s.index, s.term, s.size, s.crc, m.offset, m.round, len(m.data)) + m.data
    )


def _encode_chunk_reply(m: ChunkReply) -> bytes:
    s = m.snapshot
    return _CHUNK_REPLY.pack(m.term, s.index, s.term, s.size, s.crc, m.offset, m.round)


def _encode_forward(m: Forward) -> bytes:
    p = m.proposal
    return _FORWARD.pack(m.term, p.kind, p.session, p.sequence, len(p.payload)) + p.payload


_KINDS: Final[dict[type[Any], int]] = {
    PreVote: 1,
    PreVoteReply: 2,
    Vote: 3,
    VoteReply: 4,
    Append: 5,
    AppendReply: 6,
    Chunk: 7,
    ChunkReply: 8,
    TimeoutNow: 9,
    ReadIndexRequest: 10,
    ReadIndexReply: 11,
    Forward: 12,
    Invite: 16,
    Invited: 17,
}
_KINDS_WITH_DISK: Final = {1: 13, 3: 14, 4: 15}  # the same with the number of the sender's disk
_LEADER_KINDS: Final = (_KINDS[Append], _KINDS[Chunk])  # only an elected leader sends these
_ENCODERS: Final[dict[int, Callable[[Any], bytes]]] = {
    1: lambda m: _PRE_VOTE.pack(m.term, m.last_index, m.last_term),
    2: lambda m: _PRE_VOTE_REPLY.pack(m.term, m.asked, m.granted),
    3: lambda m: _VOTE.pack(m.term, m.last_index, m.last_term, m.transfer, m.candidacy),
    4: lambda m: _VOTE_REPLY.pack(m.term, m.granted, m.candidacy),
    5: _encode_append,
    6: lambda m: _APPEND_REPLY.pack(m.term, m.ok, m.index, m.hint_index, m.hint_term, m.round),
    7: _encode_chunk,
    8: _encode_chunk_reply,
    9: lambda m: _TIMEOUT_NOW.pack(m.term),
    10: lambda m: _READ_REQUEST.pack(m.term, m.number),
    11: lambda m: _READ_REPLY.pack(m.term, m.number, m.index),
    12: _encode_forward,
    13: lambda m: _PRE_VOTE.pack(m.term, m.last_index, m.last_term) + _DISK.pack(m.disk),
    14: lambda m: (
        _VOTE.pack(m.term, m.last_index, m.last_term, m.transfer, m.candidacy) + _DISK.pack(m.disk)
    ),
    15: lambda m: _VOTE_REPLY.pack(m.term, m.granted, m.candidacy) + _DISK.pack(m.disk),
    16: lambda m: _INVITE.pack(m.term),
    17: lambda m: _INVITED.pack(m.term, m.disk),
}

# ---------------------------------------------------------------------------- decoding


def _fields(layout: struct.Struct, data: bytes, *, tail: bool = False) -> tuple[int, ...]:
    """Unpack the fixed fields; without ``tail`` the message must end after them."""
    fields = layout.unpack_from(data, _HEAD.size)
    if not tail and len(data) != _HEAD.size + layout.size:
        raise EnvelopeError("a Raft message has bytes after its fields")
    return fields


def _check_numbers(*numbers: int) -> None:
    """Refuse terms and indexes that are too large to be real."""
    if any(number > _INDEX_MAX for number in numbers):
        raise EnvelopeError("a Raft message's numbers are out of bounds")


def _flag(value: int) -> bool:
    if value > 1:
        raise EnvelopeError(f"a Raft message's flag is {value}")
    return bool(value)


def _disk(number: int) -> int:
    if not 1 <= number <= DISK_MAX:
        raise EnvelopeError(f"a Raft message's disk {number} is out of bounds")
    return number


def _with_disk(decode_fields: Callable[[bytes], Any], data: bytes) -> Any:
    """Parse a message that has the number of its sender's disk behind its fields."""
    (disk,) = _DISK.unpack_from(data, max(_HEAD.size, len(data) - _DISK.size))
    return replace(decode_fields(data[: -_DISK.size]), disk=_disk(disk))


def _decode_invite(data: bytes) -> Invite:
    (term,) = _fields(_INVITE, data)
    _check_numbers(term)
    return Invite(term)


def _decode_invited(data: bytes) -> Invited:
    term, disk = _fields(_INVITED, data)
    _check_numbers(term)
    return Invited(term, _disk(disk))


def _decode_pre_vote(data: bytes) -> PreVote:
    term, last_index, last_term = _fields(_PRE_VOTE, data)
    _check_numbers(term, last_index, last_term)
    return PreVote(term, last_index, last_term)


def _decode_pre_vote_reply(data: bytes) -> PreVoteReply:
    term, asked, granted = _fields(_PRE_VOTE_REPLY, data)
    _check_numbers(term, asked)
    return PreVoteReply(term, asked, _flag(granted))


def _decode_vote(data: bytes) -> Vote:
    term, last_index, last_term, transfer, candidacy = _fields(_VOTE, data)
    _check_numbers(term, last_index, last_term)
    return Vote(term, last_index, last_term, _flag(transfer), candidacy)


def _decode_vote_reply(data: bytes) -> VoteReply:
    term, granted, candidacy = _fields(_VOTE_REPLY, data)
    _check_numbers(term)
    return VoteReply(term, _flag(granted), candidacy)


def _decode_append(data: bytes) -> Append:
    fields = _fields(_APPEND, data, tail=True)
    term, prev_index, prev_term, commit, round_number, check_index, check_hash, count = fields
    _check_numbers(term, prev_index, prev_term, commit, round_number, check_index)
    at = _HEAD.size + _APPEND.size
    if count * _ENTRY.size > len(data) - at:
        raise EnvelopeError(f"an append of {len(data)} bytes cannot hold {count} entries")
    entries = []
    last_term = prev_term
    for index in range(prev_index + 1, prev_index + 1 + count):
        entry, at = _decode_entry(data, at, index)
        if not last_term <= entry.term <= term:
            raise EnvelopeError("an append's terms are out of order")
        last_term = entry.term
        entries.append(entry)
    if at != len(data) or prev_term > term:
        raise EnvelopeError("an append has bytes after its entries, or follows a later term")
    return Append(
        term, prev_index, prev_term, commit, round_number, check_index, check_hash, tuple(entries)
    )


def _decode_entry(data: bytes, at: int, index: int) -> tuple[Entry, int]:
    term, session, sequence, length, kind = _ENTRY.unpack_from(data, at)
    at += _ENTRY.size
    payload = _payload(data, at, length)
    if kind == EntryKind.VOTERS:
        try:
            decode_voters(payload)
        except MetadataCorruptError as cause:
            raise EnvelopeError(f"an entry of voters: {cause.message}") from cause
    return Entry(index, term, _entry_kind(kind), session, sequence, payload), at + length


def _payload(data: bytes, at: int, length: int) -> bytes:
    if length > PAYLOAD_BYTES_MAX or length > len(data) - at:
        raise EnvelopeError(f"an entry's length of {length} is out of bounds")
    return data[at : at + length]


def _entry_kind(kind: int) -> EntryKind:
    try:
        return EntryKind(kind)
    except ValueError as cause:
        raise EnvelopeError(f"entry kind {kind} is not known") from cause


def _decode_append_reply(data: bytes) -> AppendReply:
    term, ok, index, hint_index, hint_term, round_number = _fields(_APPEND_REPLY, data)
    _check_numbers(term, index, hint_index, hint_term, round_number)
    return AppendReply(term, _flag(ok), index, hint_index, hint_term, round_number)


def _snapshot_id(index: int, term: int, size: int, crc: int) -> SnapshotId:
    if size > SNAPSHOT_BYTES_MAX or index == 0:
        raise EnvelopeError(f"a snapshot of {size} bytes at {index} is out of bounds")
    return SnapshotId(index, term, size, crc)


def _decode_chunk(data: bytes) -> Chunk:
    fields = _fields(_CHUNK, data, tail=True)
    term, index, snapshot_term, size, crc, offset, round_number, length = fields
    _check_numbers(term, index, snapshot_term, round_number)
    body = data[_HEAD.size + _CHUNK.size :]
    if len(body) != length or length > CHUNK_BYTES_MAX or offset + length > size:
        raise EnvelopeError(
            f"a chunk says {length} bytes at {offset} of {size}, and has {len(body)} bytes"
        )
    identity = _snapshot_id(index, snapshot_term, size, crc)
    return Chunk(term, identity, offset, round_number, body)


def _decode_chunk_reply(data: bytes) -> ChunkReply:
    term, index, snapshot_term, size, crc, offset, round_number = _fields(_CHUNK_REPLY, data)
    _check_numbers(term, index, snapshot_term, round_number)
    identity = _snapshot_id(index, snapshot_term, size, crc)
    if offset > size:
        raise EnvelopeError(f"a chunk's answer of {offset} is beyond the snapshot's end")
    return ChunkReply(term, identity, offset, round_number)


def _decode_timeout_now(data: bytes) -> TimeoutNow:
    (term,) = _fields(_TIMEOUT_NOW, data)
    _check_numbers(term)
    return TimeoutNow(term)


def _decode_read_request(data: bytes) -> ReadIndexRequest:
    term, number = _fields(_READ_REQUEST, data)
    _check_numbers(term)
    return ReadIndexRequest(term, number)


def _decode_read_reply(data: bytes) -> ReadIndexReply:
    term, number, index = _fields(_READ_REPLY, data)
    _check_numbers(term, index)
    return ReadIndexReply(term, number, index)


def _decode_forward(data: bytes) -> Forward:
    term, kind, session, sequence, length = _fields(_FORWARD, data, tail=True)
    _check_numbers(term)
    at = _HEAD.size + _FORWARD.size
    payload = _payload(data, at, length)
    if at + length != len(data) or kind in {EntryKind.NOOP, EntryKind.VOTERS}:
        raise EnvelopeError("a forwarded proposal has a wrong length, or a kind for leaders only")
    return Forward(term, Proposal(_entry_kind(kind), session, sequence, payload))


_DECODERS: Final[dict[int, Callable[[bytes], Message]]] = {
    1: _decode_pre_vote,
    2: _decode_pre_vote_reply,
    3: _decode_vote,
    4: _decode_vote_reply,
    5: _decode_append,
    6: _decode_append_reply,
    7: _decode_chunk,
    8: _decode_chunk_reply,
    9: _decode_timeout_now,
    10: _decode_read_request,
    11: _decode_read_reply,
    12: _decode_forward,
    13: lambda data: _with_disk(_decode_pre_vote, data),
    14: lambda data: _with_disk(_decode_vote, data),
    15: lambda data: _with_disk(_decode_vote_reply, data),
    16: _decode_invite,
    17: _decode_invited,
}
