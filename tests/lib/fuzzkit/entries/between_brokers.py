"""Decoders of what brokers send each other: over their own link, and over NATS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from broker.adapters.nats import replica_messages as over_nats
from broker.codec.peer import (
    control_messages,
    forwarded_writes,
    raft_messages,
    replica_answer,
    replica_messages,
)
from broker.codec.peer.frames import FrameAssembler, LaneKind, encode_frame_header
from broker.errors import HeadwaterError, NotLeaderError
from broker.model.control_messages import (
    ROLL_GROUPS,
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
from broker.model.forwarded_writes import WriteAnswered, WriteForwarded
from broker.model.offsets import Offset
from broker.model.raft import EntryKind, Floor, NodeId, Proposal, SnapshotId, Standing
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
from broker.model.records import AckPolicy
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    LogPrefix,
    NewDataNotice,
    ReplicaMessage,
)
from fuzzkit.decoder import Decoder
from simkit.brokers.memory_broker import records
from simkit.brokers.replica_rigs import A, B, address, answer, fetch, stored
from simkit.raft.rig import entries

P: Final = address(3).partition_id
_BROKER, _LEADER = BrokerEpoch(4), LeaderEpoch(7)
_SNAPSHOT: Final = SnapshotId(6, 2, 1000, 0xCAFE)
_ASKED: Final = EpochEndRequest(
    follower=B, broker_epoch=_BROKER, leader_epoch=_LEADER, request_id=1, epoch=LeaderEpoch(5)
)
_TOLD: Final = EpochEndAnswer(
    leader_epoch=_LEADER,
    request_id=1,
    epoch=LeaderEpoch(5),
    known_epoch=LeaderEpoch(3),
    end=Offset(17),
)
_BELOW: Final = FetchAnswer(
    leader_epoch=_LEADER,
    request_id=6,
    start=Offset(100),
    high_watermark=Offset(0),
    log_end=Offset(200),
    refusal="below_start",
    prefix=LogPrefix(epochs=((LeaderEpoch(1), Offset(0)),), producers=b"table"),
)
_ANSWERS: Final = (
    answer(5),
    answer(5, (stored(9, b"x" * 8), stored(10, b"y" * 300)), at=9),
    _BELOW,
)


def _raft() -> list[bytes]:
    messages: Sequence[Message] = (
        PreVote(4, 7, 3, 77), PreVoteReply(4, 3, True), Vote(4, 7, 3, True, 15),
        VoteReply(4, True, 15, 77), Append(4, 6, 2, 5, 8, 3, 99, entries(7, 9, 3)),
        AppendReply(4, False, 6, 5, 2, 8), Chunk(4, _SNAPSHOT, 512, 8, b"abc"),
        ChunkReply(4, _SNAPSHOT, 512, 8), TimeoutNow(4), ReadIndexRequest(4, 7),
        ReadIndexReply(4, 7, 9), Forward(0, Proposal(EntryKind.COMMAND, 17, 3, b"do")), Invite(4),
        Invited(4, 77),
    )  # fmt: skip
    return [raft_messages.encode(one) for one in messages]


def _decode_raft(data: bytes) -> object:
    raft_messages.other_leader(data)
    return raft_messages.decode(data)


def _control() -> list[bytes]:
    voters = (NodeId("b1"), NodeId("b2"))
    messages = (
        Heartbeat(broker_epoch=_BROKER, sent_ms=123, applied_index=9),
        HeartbeatAnswer(broker_epoch=_BROKER, sent_ms=123, granted=True),
        LeaderReport(partition_id=P, broker_epoch=_BROKER, leader_epoch=_LEADER),
        LogEndAsked(partition_id=P, leader_epoch=_LEADER),
        LogEndTold(
            partition_id=P,
            broker_epoch=_BROKER,
            leader_epoch=_LEADER,
            last_epoch=_LEADER,
            log_end=Offset(17),
        ),
        NewestAsked(partition_id=P, request_id=5),
        NewestTold(
            partition_id=P,
            request_id=5,
            leader_epoch=_LEADER,
            log_start=Offset(2),
            high_watermark=Offset(12),
            records_left=7,
        ),
        MemberAsked(request_id=1),
        MemberTold(request_id=1, life=2, standing=Standing(False, True, 3, Floor(2, 6), voters)),
        RollCall(number=1, sums=(1 << 63,) * ROLL_GROUPS),
        RollAnswer(number=1, equal=(True, False) * (ROLL_GROUPS // 2)),
    )
    return [control_messages.encode(message) for message in messages]


def _decode_replica(data: bytes) -> object:
    return replica_messages.decode(
        memoryview(data), sender=A, batch=lambda header, body: (header, bytes(body))
    )


def _replica() -> list[bytes]:
    messages: Sequence[ReplicaMessage] = (
        _ASKED, _TOLD, fetch(2, at=17), NewDataNotice(leader_epoch=_LEADER), *_ANSWERS,
    )  # fmt: skip
    return [b"".join(map(bytes, replica_messages.encode(P, one))) for one in messages]


def _answer_parts() -> list[bytes]:
    found: list[bytes] = []
    for one in _ANSWERS:
        for size in (5000, 400):
            found += replica_answer.encode(P, one, sender=A, payload_bytes_max=size)
    return found


def _decode_answer(data: bytes) -> object:
    part = replica_answer.decode(data)
    collected = replica_answer.AnswerAssembler()
    whole = collected.add(part)
    return whole and replica_answer.assembled(whole, batch=lambda header, body: (header, body))


def _over_nats(data: bytes) -> object:
    """Give a frame to the decoder of each subject; the last refusal counts if all refuse it."""
    refused: HeadwaterError | None = None
    for decode in (
        lambda frame: over_nats.decode_fetch(frame, P),
        lambda frame: over_nats.decode_epoch_request(frame, P),
        over_nats.decode_epoch_answer,
        over_nats.decode_notice,
    ):
        try:
            return decode(data)
        except HeadwaterError as error:
            refused = error
    assert refused is not None
    raise refused


def _writes() -> list[bytes]:
    rows = forwarded_writes.rows_to_bytes(records([b"x" * 30, None], key=[b"k", b"l"]))
    found = (
        WriteForwarded(
            request_id=1, partition_id=P, policy=AckPolicy.ALL, expected_end=Offset(3), rows=rows
        ),
        WriteAnswered(request_id=1, offsets=(Offset(0), Offset(1)), leader_epoch=1),
        WriteAnswered(request_id=1, refused=NotLeaderError("no", leader="b", epoch=4)),
    )
    return [b"".join(forwarded_writes.encode(one)) for one in found]


def _decode_write(data: bytes) -> object:
    found = forwarded_writes.decode(memoryview(data))
    if isinstance(found, WriteForwarded):
        rows = forwarded_writes.rows_from_bytes(found.rows)
        if isinstance(rows, HeadwaterError):
            raise rows
    return found


def _frames(data: bytes) -> object:
    """Read bytes as a link does, in reads of its own sizes."""
    found, at, collected = [], 0, FrameAssembler()
    while at < len(data):
        target = collected.target
        size = min(len(target), len(data) - at, 700)
        target[:size] = data[at : at + size]
        found += [(lane, bytes(message)) for lane, message in collected.received(size)]
        at += size
    return found


def _framed() -> list[bytes]:
    one, other = b"x" * 40, b"y" * 3000
    first = encode_frame_header(LaneKind.CONTROL, len(one), len(one)) + one
    parts = b"".join(
        encode_frame_header(LaneKind.REPLICA, 1500, 3000) + other[at : at + 1500]
        for at in (0, 1500)
    )
    return [first, first + parts, parts + first * 3]


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield Decoder(
        name="peer_frames",
        covers=("broker.codec.peer.frames.FrameAssembler.received",),
        decode=_frames,
        make_seeds=_framed,
    )
    yield Decoder(
        name="raft_messages",
        covers=(
            "broker.codec.peer.raft_messages.decode",
            "broker.codec.peer.raft_messages.other_leader",
        ),
        decode=_decode_raft,
        make_seeds=_raft,
    )
    yield Decoder(
        name="control_messages",
        covers=("broker.codec.peer.control_messages.decode",),
        decode=control_messages.decode,
        make_seeds=_control,
    )
    yield Decoder(
        name="replica_messages",
        covers=(
            "broker.codec.peer.replica_messages.decode",
            "broker.codec.peer.replica_messages.decode_tail",
        ),
        decode=_decode_replica,
        make_seeds=_replica,
    )
    yield Decoder(
        name="forwarded_writes",
        covers=(
            "broker.codec.peer.forwarded_writes.decode",
            "broker.codec.peer.forwarded_writes.rows_from_bytes",
        ),
        decode=_decode_write,
        make_seeds=_writes,
    )
    yield Decoder(
        name="replica_answer",
        covers=("broker.codec.peer.replica_answer.decode",),
        decode=_decode_answer,
        make_seeds=_answer_parts,
    )
    yield Decoder(
        name="replicas_over_nats",
        covers=tuple(
            f"broker.adapters.nats.replica_messages.{name}"
            for name in ("decode_fetch", "decode_epoch_request", "decode_epoch_answer",
                         "decode_notice")
        ),
        decode=_over_nats,
        make_seeds=lambda: [
            over_nats.encode_request(P, _ASKED, to=A),
            over_nats.encode_request(P, fetch(2, at=17), to=A),
            over_nats.encode_epoch_answer(P, _TOLD, sender=A, to=B),
            over_nats.encode_notice("s", P, NewDataNotice(leader_epoch=_LEADER), sender=A, to=B),
        ],
    )  # fmt: skip
