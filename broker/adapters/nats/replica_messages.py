"""Protobuf of the messages between replicas over NATS, to the model's messages and back.

Only here Liftbridge's inclusive offsets of replication are converted to our half-open offsets.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError, Message

from broker.codec.disk.segment_format import pack_partition_id, unpack_partition_id
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.codec.peer.replica_messages import NUMBER_MAX, REFUSALS
from broker.errors import EnvelopeError
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.ids import BrokerId, PartitionId, is_stream_name
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchRequest,
    NewDataNotice,
    ReplicaMessage,
)
from broker.wire.liftbridge import replication_pb2 as wire

_PARTITIONS_MAX: Final = 1 << 31
Addressed = tuple[BrokerId, BrokerId, ReplicaMessage]  # sender, receiver, message


def encode_request(
    partition: PartitionId, request: FetchRequest | EpochEndRequest, *, to: BrokerId
) -> bytes:
    """Return a request's envelope."""
    kind = EnvelopeKind.REPLICATION_REQUEST
    if isinstance(request, EpochEndRequest):
        kind = EnvelopeKind.EPOCH_OFFSET_REQUEST
    fencing = _fencing(kind, partition, request.follower, to)
    fencing.brokerEpoch = request.broker_epoch
    fencing.leaderEpoch = request.leader_epoch
    fencing.requestId = request.request_id
    if isinstance(request, EpochEndRequest):
        asked = wire.LeaderEpochOffsetRequest(leaderEpoch=request.epoch, fencing=fencing)
        return envelope.encode(kind, asked.SerializeToString())
    fencing.lastEpoch = request.last_epoch
    fencing.syncedEnd = request.synced_end
    fencing.waitMs = request.wait_ms
    fetch = wire.ReplicationRequest(
        replicaID=request.follower,
        offset=request.fetch_from - 1,
        leaderEpoch=request.leader_epoch,
        fencing=fencing,
    )
    return envelope.encode(kind, fetch.SerializeToString())


def decode_fetch(frame: bytes, partition: PartitionId) -> Addressed:
    """Read a fetch of this partition. Raises EnvelopeError for every other input."""
    found = wire.ReplicationRequest()
    _parse(found, frame, EnvelopeKind.REPLICATION_REQUEST)
    fencing = _checked(EnvelopeKind.REPLICATION_REQUEST, found.fencing, partition)
    sound = (
        found.replicaID == fencing.sender
        and found.leaderEpoch == fencing.leaderEpoch
        and -1 <= found.offset < NUMBER_MAX
    )
    if not sound:
        raise EnvelopeError("a fetch between replicas has values that are out of bounds")
    sender = BrokerId(fencing.sender)
    request = FetchRequest(
        follower=sender,
        broker_epoch=BrokerEpoch(fencing.brokerEpoch),
        leader_epoch=LeaderEpoch(fencing.leaderEpoch),
        request_id=fencing.requestId,
        fetch_from=Offset(found.offset + 1),
        last_epoch=LeaderEpoch(fencing.lastEpoch),
        synced_end=Offset(fencing.syncedEnd),
        wait_ms=fencing.waitMs,
    )
    return sender, BrokerId(fencing.receiver), request


def decode_epoch_request(frame: bytes, partition: PartitionId) -> Addressed:
    """Read a request for an epoch's end. Raises EnvelopeError for every other input."""
    found = wire.LeaderEpochOffsetRequest()
    _parse(found, frame, EnvelopeKind.EPOCH_OFFSET_REQUEST)
    fencing = _checked(EnvelopeKind.EPOCH_OFFSET_REQUEST, found.fencing, partition)
    if found.leaderEpoch > NUMBER_MAX:
        raise EnvelopeError("the epoch of an epoch-end request is out of bounds")
    sender = BrokerId(fencing.sender)
    request = EpochEndRequest(
        follower=sender,
        broker_epoch=BrokerEpoch(fencing.brokerEpoch),
        leader_epoch=LeaderEpoch(fencing.leaderEpoch),
        request_id=fencing.requestId,
        epoch=LeaderEpoch(found.leaderEpoch),
    )
    return sender, BrokerId(fencing.receiver), request


def encode_epoch_answer(
    partition: PartitionId, answer: EpochEndAnswer, *, sender: BrokerId, to: BrokerId
) -> bytes:
    """Return the envelope of an epoch's end."""
    fencing = _fencing(EnvelopeKind.EPOCH_OFFSET_RESPONSE, partition, sender, to)
    fencing.leaderEpoch = answer.leader_epoch
    fencing.requestId = answer.request_id
    fencing.epoch = answer.epoch
    fencing.knownEpoch = answer.known_epoch
    fencing.refusal = REFUSALS.index(answer.refusal)
    told = wire.LeaderEpochOffsetResponse(endOffset=answer.end, fencing=fencing)
    return envelope.encode(EnvelopeKind.EPOCH_OFFSET_RESPONSE, told.SerializeToString())


def decode_epoch_answer(frame: bytes) -> tuple[PartitionId, Addressed]:
    """Read an epoch's end. Raises EnvelopeError for every other input."""
    found = wire.LeaderEpochOffsetResponse()
    _parse(found, frame, EnvelopeKind.EPOCH_OFFSET_RESPONSE)
    fencing = _checked(EnvelopeKind.EPOCH_OFFSET_RESPONSE, found.fencing)
    if not 0 <= found.endOffset <= NUMBER_MAX or fencing.refusal >= len(REFUSALS):
        raise EnvelopeError("an epoch-end answer has values that are out of bounds")
    answer = EpochEndAnswer(
        leader_epoch=LeaderEpoch(fencing.leaderEpoch),
        request_id=fencing.requestId,
        epoch=LeaderEpoch(fencing.epoch),
        known_epoch=LeaderEpoch(fencing.knownEpoch),
        end=Offset(found.endOffset),
        refusal=REFUSALS[fencing.refusal],
    )
    partition = unpack_partition_id(fencing.partition, fencing.streamUuid)
    return partition, (BrokerId(fencing.sender), BrokerId(fencing.receiver), answer)


def encode_notice(
    stream: str, partition: PartitionId, notice: NewDataNotice, *, sender: BrokerId, to: BrokerId
) -> bytes:
    """Return the envelope of a notice of new data."""
    fencing = _fencing(EnvelopeKind.PARTITION_NOTIFICATION, partition, sender, to)
    fencing.leaderEpoch = notice.leader_epoch
    told = wire.PartitionNotification(stream=stream, partition=partition.number, fencing=fencing)
    return envelope.encode(EnvelopeKind.PARTITION_NOTIFICATION, told.SerializeToString())


def decode_notice(frame: bytes) -> tuple[PartitionId, Addressed]:
    """Read a notice of new data. Raises EnvelopeError for every other input."""
    found = wire.PartitionNotification()
    _parse(found, frame, EnvelopeKind.PARTITION_NOTIFICATION)
    fencing = _checked(EnvelopeKind.PARTITION_NOTIFICATION, found.fencing)
    if not 0 <= found.partition < _PARTITIONS_MAX:
        raise EnvelopeError(f"the partition number {found.partition} is out of bounds")
    partition = unpack_partition_id(found.partition, fencing.streamUuid)
    notice = NewDataNotice(leader_epoch=LeaderEpoch(fencing.leaderEpoch))
    return partition, (BrokerId(fencing.sender), BrokerId(fencing.receiver), notice)


def _fencing(
    kind: EnvelopeKind, partition: PartitionId, sender: BrokerId, to: BrokerId
) -> wire.Fencing:
    number, uuid_bytes = pack_partition_id(partition)
    return wire.Fencing(
        kind=kind, sender=sender, receiver=to, streamUuid=uuid_bytes, partition=number
    )


def _parse(found: Message, frame: bytes, kind: EnvelopeKind) -> None:
    try:
        found.ParseFromString(envelope.decode(frame, kind))
    except DecodeError as cause:
        raise EnvelopeError(f"the envelope's payload is not a {kind.name}: {cause}") from cause


def _checked(
    kind: EnvelopeKind, fencing: wire.Fencing, partition: PartitionId | None = None
) -> wire.Fencing:
    """Check the fields that all messages have: names, epochs, the stream's identity."""
    numbers = (
        fencing.brokerEpoch, fencing.leaderEpoch, fencing.requestId, fencing.lastEpoch,
        fencing.syncedEnd, fencing.waitMs, fencing.epoch, fencing.knownEpoch,
    )  # fmt: skip
    sound = (
        fencing.kind == kind
        and is_stream_name(fencing.sender)
        and is_stream_name(fencing.receiver)
        and len(fencing.streamUuid) == 16
        and max(numbers) <= NUMBER_MAX
    )
    if not sound:
        raise EnvelopeError(
            "a message between replicas lacks Headwater's fields, or they are out of bounds"
        )
    about = (fencing.partition, fencing.streamUuid)
    if partition is not None and about != pack_partition_id(partition):
        raise EnvelopeError("the request is for another stream with this name")
    return fencing
