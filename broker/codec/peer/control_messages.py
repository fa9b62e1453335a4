"""Bytes of the control messages between brokers.

     0         1      2      3
    | version | kind | flag | zero | fields, 8 bytes each, by kind ...              little-endian

A message about a partition has the partition's number and its stream's uuid first (4 + 16 bytes).
No field has a variable length. Bytes that are not exactly one message raise EnvelopeError. Since
version 2 a `LogEndTold` names the broker epoch of its sender, and the newest leader epoch that the
sender knows.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.codec.disk.raft_voters import decode_voters, encode_voters
from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.errors import EnvelopeError, MetadataCorruptError
from broker.model.control_messages import (
    ROLL_GROUPS,
    ControlMessage,
    Heartbeat,
    HeartbeatAnswer,
    LeaderReport,
    LogEndAsked,
    LogEndTold,
    MemberAsked,
    MemberTold,
    NewestAsked,
    NewestTold,
    RollAnswer,
    RollCall,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import PartitionId
from broker.model.offsets import Offset
from broker.model.raft import Floor, NodeId, Standing, Voter

VERSION: Final = 2
_HEAD: Final = struct.Struct("<BBBB")
_PARTITION: Final = struct.Struct("<I16s")
_NUMBER_MAX: Final = 1 << 62  # no real epoch, offset or clock is larger

(
    _HEARTBEAT, _HEARTBEAT_ANSWER, _LEADER_REPORT, _LOG_END_ASKED, _LOG_END_TOLD, _NEWEST_ASKED,
    _NEWEST_TOLD, _MEMBER_ASKED, _MEMBER_TOLD, _MEMBER_TOLD_OF_VOTERS, _NEWEST_TOLD_OF_COMPACTED,
    _ROLL_CALL, _ROLL_ANSWER,
) = range(1, 14)  # fmt: skip
_FIELDS: Final = {
    _HEARTBEAT: struct.Struct("<3Q"),
    _HEARTBEAT_ANSWER: struct.Struct("<2Q"),
    _LEADER_REPORT: struct.Struct("<2Q"),
    _LOG_END_ASKED: struct.Struct("<Q"),
    _LOG_END_TOLD: struct.Struct("<4Q"),
    _NEWEST_ASKED: struct.Struct("<Q"),
    _NEWEST_TOLD: struct.Struct("<4Q"),
    _MEMBER_ASKED: struct.Struct("<Q"),
    _MEMBER_TOLD: struct.Struct("<6Q"),
    _MEMBER_TOLD_OF_VOTERS: struct.Struct("<6Q"),  # the voters' names follow the numbers
    _NEWEST_TOLD_OF_COMPACTED: struct.Struct("<5Q"),  # the last one: the records that are left
    _ROLL_CALL: struct.Struct(f"<Q{ROLL_GROUPS}Q"),  # the sums may have all 64 bits
    _ROLL_ANSWER: struct.Struct(f"<Q{ROLL_GROUPS}B"),  # 1: equal
}
_WITHOUT_PARTITION: Final = (
    _HEARTBEAT, _HEARTBEAT_ANSWER, _MEMBER_ASKED, _MEMBER_TOLD, _MEMBER_TOLD_OF_VOTERS,
    _ROLL_CALL, _ROLL_ANSWER,
)  # fmt: skip
_WITH_FLAG: Final = (_HEARTBEAT_ANSWER, _NEWEST_TOLD, _MEMBER_TOLD)


def encode(message: ControlMessage) -> bytes:
    """Return a message's bytes."""
    kind, flag, fields = _fields_of(message)
    head = _HEAD.pack(VERSION, kind, flag, 0)
    if not isinstance(
        message, Heartbeat | HeartbeatAnswer | MemberAsked | MemberTold | RollCall | RollAnswer
    ):
        head += _PARTITION.pack(*pack_partition_id(message.partition_id))
    data = head + _FIELDS[kind].pack(*fields)
    if isinstance(message, MemberTold) and message.standing.voters:
        data += encode_voters(tuple(Voter(one) for one in message.standing.voters))
    return data


def _fields_of(m: ControlMessage) -> tuple[int, bool, tuple[int, ...]]:
    """Return a message's kind, its flag and its numbers."""
    match m:
        case Heartbeat():
            return _HEARTBEAT, False, (m.broker_epoch, m.sent_ms, m.applied_index)
        case HeartbeatAnswer():
            return _HEARTBEAT_ANSWER, m.granted, (m.broker_epoch, m.sent_ms)
        case LeaderReport():
            return _LEADER_REPORT, False, (m.broker_epoch, m.leader_epoch)
        case LogEndAsked():
            return _LOG_END_ASKED, False, (m.leader_epoch,)
        case LogEndTold():
            told = (m.broker_epoch, m.leader_epoch, m.last_epoch, m.log_end)
            return _LOG_END_TOLD, False, told
        case NewestAsked():
            return _NEWEST_ASKED, False, (m.request_id,)
        case NewestTold():
            known = m.high_watermark is not None
            numbers = (m.request_id, m.leader_epoch, m.log_start, m.high_watermark or 0)
            if m.records_left is None:
                return _NEWEST_TOLD, known, numbers
            assert known, "records are counted below the high watermark"
            return _NEWEST_TOLD_OF_COMPACTED, False, (*numbers, m.records_left)
        case MemberAsked():
            return _MEMBER_ASKED, False, (m.request_id,)
        case MemberTold():
            one = m.standing
            ends = (one.behind, one.term, one.last.term, one.last.index)
            kind = _MEMBER_TOLD_OF_VOTERS if one.voters else _MEMBER_TOLD
            return kind, one.fresh, (m.request_id, m.life, *ends)
        case RollCall():
            return _ROLL_CALL, False, (m.number, *m.sums)
        case RollAnswer():
            return _ROLL_ANSWER, False, (m.number, *m.equal)


def decode(data: bytes) -> ControlMessage:
    """Parse one message. Raises EnvelopeError for everything else, and nothing else."""
    if len(data) < _HEAD.size:
        raise EnvelopeError(f"{len(data)} bytes are too few for a control message")
    version, kind, flag, zero = _HEAD.unpack_from(data)
    layout = _FIELDS.get(kind)
    if version != VERSION or zero or flag > (kind in _WITH_FLAG) or layout is None:
        raise EnvelopeError(f"not a control message of version {VERSION}: {data[:4].hex()}")
    at = _HEAD.size + (0 if kind in _WITHOUT_PARTITION else _PARTITION.size)
    end = at + layout.size
    if len(data) < end or (len(data) > end and kind != _MEMBER_TOLD_OF_VOTERS):
        raise EnvelopeError(f"a control message of kind {kind} has {len(data)} bytes, not {end}")
    fields = layout.unpack_from(data, at)
    if max(fields[:1] if kind in (_ROLL_CALL, _ROLL_ANSWER) else fields) > _NUMBER_MAX:
        raise EnvelopeError("a control message's numbers are out of bounds")
    if kind == _HEARTBEAT:
        return Heartbeat(
            broker_epoch=BrokerEpoch(fields[0]), sent_ms=fields[1], applied_index=fields[2]
        )
    if kind == _HEARTBEAT_ANSWER:
        return HeartbeatAnswer(
            broker_epoch=BrokerEpoch(fields[0]), sent_ms=fields[1], granted=bool(flag)
        )
    if kind == _MEMBER_ASKED:
        return MemberAsked(request_id=fields[0])
    if kind == _MEMBER_TOLD:
        return _member_told(fields, (), fresh=bool(flag))
    if kind == _MEMBER_TOLD_OF_VOTERS:
        return _member_told(fields, _voters(data[end:]), fresh=bool(flag))
    if kind == _ROLL_CALL:
        return RollCall(number=fields[0], sums=fields[1:])
    if kind == _ROLL_ANSWER:
        if max(fields[1:]) > 1:
            raise EnvelopeError("a control message's groups are equal or not")
        return RollAnswer(number=fields[0], equal=tuple(map(bool, fields[1:])))
    partition = unpack_partition_id(*_PARTITION.unpack_from(data, _HEAD.size))
    return _about_partition(kind, partition, fields, flag=bool(flag))


def _voters(data: bytes) -> tuple[NodeId, ...]:
    try:
        found = decode_voters(data)
    except MetadataCorruptError as cause:
        raise EnvelopeError(f"a control message's voters: {cause.message}") from cause
    if any(one.disk for one in found):
        raise EnvelopeError("a control message's voters must not have disk numbers")
    return tuple(one.node for one in found)


def _member_told(fields: tuple[int, ...], voters: tuple[NodeId, ...], *, fresh: bool) -> MemberTold:
    request_id, life, behind, term, last_term, last_index = fields
    standing = Standing(fresh, bool(behind), term, Floor(last_term, last_index), voters)
    if behind > 1 or (fresh and standing != Standing(fresh=True)):
        raise EnvelopeError("a control message describes a Raft member that cannot exist")
    return MemberTold(request_id=request_id, life=life, standing=standing)


def _about_partition(
    kind: int, partition: PartitionId, fields: tuple[int, ...], *, flag: bool
) -> ControlMessage:
    if kind == _LEADER_REPORT:
        return LeaderReport(
            partition_id=partition,
            broker_epoch=BrokerEpoch(fields[0]),
            leader_epoch=LeaderEpoch(fields[1]),
        )
    if kind == _LOG_END_ASKED:
        return LogEndAsked(partition_id=partition, leader_epoch=LeaderEpoch(fields[0]))
    if kind == _LOG_END_TOLD:
        return LogEndTold(
            partition_id=partition,
            broker_epoch=BrokerEpoch(fields[0]),
            leader_epoch=LeaderEpoch(fields[1]),
            last_epoch=LeaderEpoch(fields[2]),
            log_end=Offset(fields[3]),
        )
    if kind == _NEWEST_ASKED:
        return NewestAsked(partition_id=partition, request_id=fields[0])
    request_id, leader_epoch, log_start, high_watermark, *left = fields
    if left and (log_start > high_watermark or left[0] > high_watermark - log_start):
        raise EnvelopeError("a control message counts more records than there are offsets")
    flag = flag or bool(left)
    if high_watermark and not flag:
        raise EnvelopeError(
            "a control message has a high watermark, but its flag says that there is none"
        )
    return NewestTold(
        partition_id=partition,
        request_id=request_id,
        leader_epoch=LeaderEpoch(leader_epoch),
        log_start=Offset(log_start),
        high_watermark=Offset(high_watermark) if flag else None,
        records_left=left[0] if left else None,
    )
