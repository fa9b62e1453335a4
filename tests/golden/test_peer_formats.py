"""Frozen bytes of what brokers say to each other: a change here is a change of format."""

from __future__ import annotations

from broker.adapters.nats.replica_messages import (
    encode_epoch_answer,
    encode_notice,
    encode_request,
)
from broker.codec.peer import control_messages, replica_answer, replica_messages
from broker.codec.peer.frames import LaneKind, encode_frame_header
from broker.model.control_messages import (
    ROLL_GROUPS,
    Heartbeat,
    HeartbeatAnswer,
    LeaderReport,
    LogEndAsked,
    LogEndTold,
    NewestAsked,
    NewestTold,
    RollAnswer,
    RollCall,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.member_uri import member_uri
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    LogPrefix,
    NewDataNotice,
    ReplicaMessage,
)
from simkit.brokers.replica_rigs import A, B, address, answer, fetch, stored

P = address(3).partition_id
BROKER, LEADER = BrokerEpoch(4), LeaderEpoch(7)
EPOCH_ASKED = EpochEndRequest(
    follower=B, broker_epoch=BROKER, leader_epoch=LEADER, request_id=1, epoch=LeaderEpoch(5)
)
EPOCH_TOLD = EpochEndAnswer(
    leader_epoch=LEADER,
    request_id=1,
    epoch=LeaderEpoch(5),
    known_epoch=LeaderEpoch(3),
    end=Offset(17),
)
FULL = answer(5, (stored(9, b"x" * 8),), at=9)
BELOW = FetchAnswer(
    leader_epoch=LEADER,
    request_id=6,
    start=Offset(100),
    high_watermark=Offset(0),
    log_end=Offset(200),
    refusal="below_start",
    prefix=LogPrefix(epochs=((LeaderEpoch(1), Offset(0)),), producers=b"table"),
)


def _link(message: ReplicaMessage) -> str:
    return b"".join(bytes(one) for one in replica_messages.encode(P, message)).hex()


def test_frames_and_names() -> None:
    """What stands before every message, and what certificates say."""
    assert encode_frame_header(LaneKind.REPLICA, 5, 300_000).hex() == FRAME
    assert [int(lane) for lane in LaneKind] == [0, 1, 2, 3]
    assert member_uri("prod", "b/1") == "headwater://prod/broker/b%2F1"


def test_messages_between_replicas_on_the_link() -> None:
    """One of each kind."""
    notice = NewDataNotice(leader_epoch=LEADER)
    messages = (EPOCH_ASKED, EPOCH_TOLD, fetch(2, at=17), FULL, BELOW, notice)
    assert [_link(message) for message in messages] == LINK


def test_messages_between_replicas_over_nats() -> None:
    """One of each kind; an answer's batches are as on disk."""
    found = [
        encode_request(P, EPOCH_ASKED, to=A),
        encode_request(P, fetch(2, at=17), to=A),
        encode_epoch_answer(P, EPOCH_TOLD, sender=A, to=B),
        encode_notice("s", P, NewDataNotice(leader_epoch=LEADER), sender=A, to=B),
        *replica_answer.encode(P, FULL, sender=A, payload_bytes_max=5000),
    ]
    assert [frame.hex() for frame in found] == NATS


def test_control_messages() -> None:
    """One of each kind."""
    messages = (
        Heartbeat(broker_epoch=BROKER, sent_ms=123, applied_index=9),
        HeartbeatAnswer(broker_epoch=BROKER, sent_ms=123, granted=True),
        LeaderReport(partition_id=P, broker_epoch=BROKER, leader_epoch=LEADER),
        LogEndAsked(partition_id=P, leader_epoch=LEADER),
        LogEndTold(
            partition_id=P,
            broker_epoch=BROKER,
            leader_epoch=LEADER,
            last_epoch=LEADER,
            log_end=Offset(17),
        ),
        NewestAsked(partition_id=P, request_id=5),
        NewestTold(
            partition_id=P,
            request_id=5,
            leader_epoch=LEADER,
            log_start=Offset(2),
            high_watermark=Offset(12),
        ),
        NewestTold(
            partition_id=P,
            request_id=5,
            leader_epoch=LEADER,
            log_start=Offset(2),
            high_watermark=Offset(12),
            records_left=7,
        ),
    )
    assert [control_messages.encode(message).hex() for message in messages] == CONTROL


def test_roll_calls() -> None:
    """The call and its answer: 128 groups, sums of 64 bits."""
    sums = tuple((1 << 64) - 1 - group for group in range(ROLL_GROUPS))
    call = control_messages.encode(RollCall(number=0x400000001, sums=sums)).hex()
    ends = b"".join(one.to_bytes(8, "little") for one in sums).hex()
    assert call == "020c00000100000004000000" + ends
    equal = tuple(group < 2 for group in range(ROLL_GROUPS))
    answer = control_messages.encode(RollAnswer(number=0x400000001, equal=equal)).hex()
    assert answer == "020d00000100000004000000" + "0101" + "00" * 126


FRAME = "05000000e093040001020000"
LINK = [
    (
        "01010000030000006f1d1c7e93a44c628a520c2f4a1b7d1004000000000000000700000000000000"
        "01000000000000000500000000000000"
    ),
    (
        "01020000030000006f1d1c7e93a44c628a520c2f4a1b7d1007000000000000000100000000000000"
        "050000000000000003000000000000001100000000000000"
    ),
    (
        "01030000030000006f1d1c7e93a44c628a520c2f4a1b7d1004000000000000000700000000000000"
        "02000000000000001100000000000000030000000000000011000000000000000000000000000000"
    ),
    (
        "01040000030000006f1d1c7e93a44c628a520c2f4a1b7d1007000000000000000500000000000000"
        "090000000000000009000000000000000a0000000000000001000000000000004857524201580000"
        "09000000000000000700000000000000090000000000000001000000000000000100000000000000"
        "ffffffffffffffffffffffffffffffff01000000010000000800000049f8c45100000000673478bd"
        "7878787878787878"
    ),
    (
        "01040600030000006f1d1c7e93a44c628a520c2f4a1b7d1007000000000000000600000000000000"
        "64000000000000000000000000000000c80000000000000000000000000000000100000001000000"
        "0000000000000000000000007461626c65"
    ),
    "01050000030000006f1d1c7e93a44c628a520c2f4a1b7d100700000000000000",
]
NATS = [
    (
        "b90e43b4000800060805a206220a01621201611a106f1d1c7e93a44c628a520c2f4a1b7d10200428"
        "07300168037006"
    ),
    (
        "b90e43b4000800020a016210101807a206260a01621201611a106f1d1c7e93a44c628a520c2f4a1b"
        "7d102004280730023803401168037002"
    ),
    (
        "b90e43b4000800070811a206240a01611201621a106f1d1c7e93a44c628a520c2f4a1b7d10280730"
        "015005580368037007"
    ),
    (
        "b90e43b40008000e0a01731003a2061e0a01611201621a106f1d1c7e93a44c628a520c2f4a1b7d10"
        "28076803700e"
    ),
    (
        "b90e43b400430003010000010000000000016f1d1c7e93a44c628a520c2f4a1b7d10000000030000"
        "0000000000050000000000000009000000000000000a000000606100000000000000070000000000"
        "00000848575242015800000900000000000000070000000000000009000000000000000100000000"
        "0000000100000000000000ffffffffffffffffffffffffffffffff01000000010000000800000049"
        "f8c45100000000673478bd7878787878787878"
    ),
]
CONTROL = [
    "0201000004000000000000007b000000000000000900000000000000",
    "0202010004000000000000007b00000000000000",
    "02030000030000006f1d1c7e93a44c628a520c2f4a1b7d1004000000000000000700000000000000",
    "02040000030000006f1d1c7e93a44c628a520c2f4a1b7d100700000000000000",
    (
        "02050000030000006f1d1c7e93a44c628a520c2f4a1b7d1004000000000000000700000000000000"
        "07000000000000001100000000000000"
    ),
    "02060000030000006f1d1c7e93a44c628a520c2f4a1b7d100500000000000000",
    (
        "02070100030000006f1d1c7e93a44c628a520c2f4a1b7d1005000000000000000700000000000000"
        "02000000000000000c00000000000000"
    ),
    (
        "020b0000030000006f1d1c7e93a44c628a520c2f4a1b7d1005000000000000000700000000000000"
        "02000000000000000c000000000000000700000000000000"
    ),
]
