"""Control messages: decoding undoes encoding, and other bytes are refused."""

from __future__ import annotations

import random

import pytest

from broker.codec.peer.control_messages import decode, encode
from broker.errors import EnvelopeError
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
from broker.model.ids import PartitionId, PartitionNumber, StreamUuid
from broker.model.offsets import Offset
from broker.model.raft import Floor, NodeId, Standing
from cases import each_of, seeds

P = PartitionId(StreamUuid("6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d10"), PartitionNumber(3))
E, L = BrokerEpoch(1 << 40), LeaderEpoch(7)
MESSAGES: tuple[ControlMessage, ...] = (
    Heartbeat(broker_epoch=E, sent_ms=123_456, applied_index=9),
    HeartbeatAnswer(broker_epoch=E, sent_ms=123_456, granted=True),
    HeartbeatAnswer(broker_epoch=E, sent_ms=0, granted=False),
    LeaderReport(partition_id=P, broker_epoch=E, leader_epoch=L),
    LogEndAsked(partition_id=P, leader_epoch=L),
    LogEndTold(
        partition_id=P, broker_epoch=E, leader_epoch=L, last_epoch=L, log_end=Offset(1 << 62)
    ),
    NewestAsked(partition_id=P, request_id=5),
    NewestTold(partition_id=P, request_id=5),
    NewestTold(
        partition_id=P,
        request_id=5,
        leader_epoch=L,
        log_start=Offset(2),
        high_watermark=Offset(0),
    ),
    NewestTold(
        partition_id=P,
        request_id=5,
        leader_epoch=L,
        log_start=Offset(2),
        high_watermark=Offset(9),
        records_left=0,
    ),
    MemberAsked(request_id=1 << 61),
    MemberTold(request_id=5, life=1 << 62, standing=Standing(fresh=True)),
    MemberTold(request_id=5, life=6, standing=Standing()),
    MemberTold(request_id=5, life=6, standing=Standing(False, True, 8, Floor(7, 3))),
    MemberTold(request_id=5, life=6, standing=Standing(term=8, voters=(NodeId("a"), NodeId("b")))),
    RollCall(number=1 << 62, sums=tuple((1 << 64) - 1 - one for one in range(ROLL_GROUPS))),
    RollAnswer(number=9, equal=tuple(one % 3 == 0 for one in range(ROLL_GROUPS))),
)


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_sent_arrives(message: ControlMessage) -> None:
    """Every field of every kind; a high watermark of 0 is not the same as none."""
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES)
def test_nothing_is_cut_off_or_longer(message: ControlMessage) -> None:
    """Any other length is refused."""
    data = encode(message)
    for size in range(len(data)):
        with pytest.raises(EnvelopeError):
            decode(data[:size])
    with pytest.raises(EnvelopeError):
        decode(data + b"\0")


def test_there_are_no_more_records_than_offsets() -> None:
    """And none is counted where the range is not one."""
    for start, end, left in ((2, 9, 8), (9, 2, 0)):
        told = NewestTold(
            partition_id=P, request_id=5, leader_epoch=L, log_start=Offset(start),
            high_watermark=Offset(end), records_left=left,
        )  # fmt: skip
        with pytest.raises(EnvelopeError, match="more records"):
            decode(encode(told))


def test_a_member_is_not_fresh_and_in_the_know() -> None:
    """A member that says it is fresh may not name a term or a log."""
    for standing in (
        Standing(True, term=1),
        Standing(True, last=Floor(0, 1)),
        Standing(True, True),
    ):
        with pytest.raises(EnvelopeError):
            decode(encode(MemberTold(request_id=5, life=6, standing=standing)))


@each_of(seeds(300))
def test_damaged_bytes_are_a_message_or_one_typed_error(seed: int) -> None:
    """Whatever decodes encodes to the same bytes: there are no two ways to say a thing."""
    chance = random.Random(seed)
    data = bytearray(encode(chance.choice(MESSAGES)))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        message = decode(bytes(data))
    except EnvelopeError:
        return
    assert encode(message) == bytes(data)


def test_a_group_of_a_roll_is_equal_or_not() -> None:
    """Any other byte is refused."""
    data = bytearray(encode(RollAnswer(number=9, equal=(True,) * ROLL_GROUPS)))
    data[-1] = 2
    with pytest.raises(EnvelopeError):
        decode(bytes(data))
