"""Decoders of what a member of the metadata's group finds on its disk."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from broker.codec.checksum import crc32c
from broker.codec.disk import (
    raft_log_format,
    raft_member_file,
    raft_state,
    raft_voters,
)
from broker.model.raft import Entry, EntryKind, Floor, HardState, NodeId, SnapshotId, Voter
from broker.storage.raft.journal_scan import read_journal
from fuzzkit.decoder import Decoder
from fuzzkit.entries.in_logs import sealed

_OWNER: Final = bytes(range(16))
_VOTERS: Final = (Voter(NodeId("b2"), 77), Voter(NodeId("b1")))
_DISK: Final = "broker.codec.disk"
_U32: Final = struct.Struct("<I")


def _journal_resealed(data: bytes) -> bytes:
    found = bytearray(sealed(raft_log_format.JOURNAL_HEADER_SIZE - _U32.size)(data))
    at = found.find(b"HWRE")
    while 0 <= at <= len(found) - raft_log_format.RECORD_HEAD_SIZE:
        (length,) = _U32.unpack_from(found, at + 4)
        begin = at + raft_log_format.RECORD_HEAD_SIZE
        if begin + length <= len(found):
            found[at + 8 : at + 12] = _U32.pack(crc32c(bytes(found[begin : begin + length])))
        found[begin - 4 : begin] = _U32.pack(crc32c(bytes(found[at : begin - 4])))
        at = found.find(b"HWRE", at + 4)
    return bytes(found)


def _journal() -> bytes:
    entry = Entry(12, 2, EntryKind.COMMAND, 7, 1, b"payload")
    following = Entry(13, 3, EntryKind.VOTERS, 0, 0, raft_voters.encode_voters(_VOTERS))
    return b"".join(
        (
            raft_log_format.encode_journal_header(
                raft_log_format.JournalHeader(11, 2, 5, 4, _OWNER)
            ),
            raft_log_format.encode_record(raft_log_format.RecordKind.ENTRY, 5, 4, entry),
            raft_log_format.encode_record(raft_log_format.RecordKind.ENTRY, 6, 5, following),
            raft_log_format.encode_record(raft_log_format.RecordKind.CUT, 7, 6, following),
            bytes(64),
        )
    )


def _records(data: bytes) -> object:
    head = raft_log_format.decode_record_head(data)
    return head and raft_log_format.decode_record_body(
        head, data[raft_log_format.RECORD_HEAD_SIZE :]
    )


def _raft_state() -> list[bytes]:
    sessions = [
        raft_state.SessionState(9, 6, 0, {2: b"two", 1: b"one"}),
        raft_state.SessionState(4, 5, 1, {}),
    ]
    return [
        raft_state.encode_state(6, sessions, b"machine"),
        raft_state.encode_state(6, sessions, b"machine", _VOTERS),
    ]


def _decode_raft_state(data: bytes) -> object:
    return raft_state.voters_of(data), raft_state.decode_state(6, data)


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield Decoder(
        name="raft_journal",
        covers=(
            f"{_DISK}.raft_log_format.decode_journal_header",
            "broker.storage.raft.journal_scan.read_journal",
        ),
        decode=lambda data: read_journal("journal", data, owner=_OWNER, synced=0),
        make_seeds=lambda: [_journal()],
        reseal=_journal_resealed,
    )
    record = raft_log_format.encode_record(
        raft_log_format.RecordKind.ENTRY, 5, 4, Entry(12, 2, EntryKind.COMMAND, 7, 1, b"payload")
    )
    yield Decoder(
        name="raft_record",
        covers=(
            f"{_DISK}.raft_log_format.decode_record_head",
            f"{_DISK}.raft_log_format.decode_record_body",
        ),
        decode=_records,
        make_seeds=lambda: [record],
        reseal=sealed(raft_log_format.RECORD_HEAD_SIZE - 4),
    )
    slot = raft_log_format.MetaSlot(5, HardState(3, NodeId("node-1"), 6), 11, _OWNER)
    yield Decoder(
        name="raft_meta",
        covers=(f"{_DISK}.raft_log_format.decode_meta",),
        decode=raft_log_format.decode_meta,
        make_seeds=lambda: [raft_log_format.encode_meta(slot)],
        reseal=sealed(raft_log_format.META_SLOT_SIZE - 4),
    )
    identity = SnapshotId(6, 2, 1000, 0xCAFE)
    yield Decoder(
        name="raft_snapshot_header",
        covers=(f"{_DISK}.raft_log_format.decode_snapshot_header",),
        decode=raft_log_format.decode_snapshot_header,
        make_seeds=lambda: [raft_log_format.encode_snapshot_header(identity, _OWNER)],
        reseal=sealed(raft_log_format.SNAPSHOT_HEADER_SIZE - 4),
    )
    notes = (
        raft_member_file.MemberNote(3, Floor(2, 6)),
        raft_member_file.MemberNote(3, Floor(2, 6), 77),
    )
    yield Decoder(
        name="raft_member",
        covers=(f"{_DISK}.raft_member_file.decode_member_file",),
        decode=raft_member_file.decode_member_file,
        make_seeds=lambda: [raft_member_file.encode_member_file(one, _OWNER) for one in notes],
        reseal=sealed(-4),
    )
    yield Decoder(
        name="raft_state",
        covers=(f"{_DISK}.raft_state.decode_state", f"{_DISK}.raft_state.voters_of"),
        decode=_decode_raft_state,
        make_seeds=_raft_state,
    )
    yield Decoder(
        name="raft_voters",
        covers=(f"{_DISK}.raft_voters.decode_voters",),
        decode=raft_voters.decode_voters,
        make_seeds=lambda: [raft_voters.encode_voters(_VOTERS)],
    )
