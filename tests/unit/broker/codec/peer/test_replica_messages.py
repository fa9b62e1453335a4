"""Messages between replicas, on the link and over NATS: decoding, and refusal of other bytes."""

from __future__ import annotations

import random

import pytest

from broker.codec.peer import replica_answer
from broker.codec.peer.replica_messages import decode, encode
from broker.errors import (
    BatchCorruptError,
    CorruptDataError,
    EnvelopeError,
    RecordTooLargeError,
)
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.offsets import Offset
from broker.model.replica_messages import (
    EpochEndAnswer,
    EpochEndRequest,
    FetchAnswer,
    LogPrefix,
    NewDataNotice,
    ReplicaMessage,
)
from broker.ports.partition import StoredBatch
from cases import each_of, seeds
from simkit.brokers.replica_rigs import A, B, address, answer, fetch, stored

P = address(3).partition_id
EMPTY = answer(4, at=9)
FULL = answer(5, (stored(9, b"x" * 64), stored(10, b"y" * 1000)), at=9)
BELOW = FetchAnswer(
    leader_epoch=LeaderEpoch(7),
    request_id=6,
    start=Offset(100),
    high_watermark=Offset(0),
    log_end=Offset(200),
    refusal="below_start",
    prefix=LogPrefix(
        epochs=((LeaderEpoch(1), Offset(0)), (LeaderEpoch(5), Offset(40))), producers=b"table"
    ),
)
MESSAGES: tuple[ReplicaMessage, ...] = (
    EpochEndRequest(
        follower=B,
        broker_epoch=BrokerEpoch(4),
        leader_epoch=LeaderEpoch(7),
        request_id=1,
        epoch=LeaderEpoch(5),
    ),
    EpochEndAnswer(
        leader_epoch=LeaderEpoch(7),
        request_id=1,
        epoch=LeaderEpoch(5),
        known_epoch=LeaderEpoch(3),
        end=Offset(17),
        refusal="diverged",
    ),
    fetch(2, at=17),
    EMPTY,
    FULL,
    BELOW,
    NewDataNotice(leader_epoch=LeaderEpoch(7)),
)


def _link(message: ReplicaMessage) -> bytes:
    return b"".join(bytes(one) for one in encode(P, message))


def _heard(data: bytes) -> ReplicaMessage:
    partition, message = decode(memoryview(data), sender=B, batch=StoredBatch)
    assert partition == P
    return message


@pytest.mark.parametrize("message", MESSAGES)
def test_what_is_sent_over_the_link_arrives(message: ReplicaMessage) -> None:
    """Every field of every kind, batches with their bytes; a request's follower is its sender."""
    assert _heard(_link(message)) == message


def test_a_request_cannot_name_another_sender() -> None:
    """The follower is the one of the connection's certificate, whatever the message says."""
    found = decode(memoryview(_link(fetch(2, follower=B))), sender=A, batch=StoredBatch)[1]
    assert found == fetch(2, follower=A)


def test_bodies_are_views_of_what_arrived_and_aligned() -> None:
    """No copy is made, and Arrow can read a body where it is."""
    data = _link(FULL)
    message = decode(memoryview(data), sender=B, batch=StoredBatch)[1]
    assert isinstance(message, FetchAnswer)
    at = 0
    for batch in message.batches:
        assert batch.body.obj is data
        at = data.index(bytes(batch.body), at)
        assert at % 8 == 0


@pytest.mark.parametrize("message", MESSAGES)
def test_nothing_is_cut_off_or_longer(message: ReplicaMessage) -> None:
    """Any other length is refused; only the retry table behind a prefix may have any."""
    data = _link(message)
    for size in range(0, len(data) - (5 if message is BELOW else 0), 7):
        with pytest.raises(CorruptDataError):
            _heard(data[:size])
    if message is not BELOW:
        with pytest.raises(CorruptDataError):
            _heard(data + bytes(88))


def test_any_flipped_bit_of_a_batch_is_noticed() -> None:
    """Header and body have checksums, which are checked before a batch is delivered."""
    data = bytearray(_link(FULL))
    begin = 24 + 6 * 8
    for at in range(begin, len(data), 3):
        data[at] ^= 0x10
        with pytest.raises((BatchCorruptError, EnvelopeError)):
            _heard(bytes(data))
        data[at] ^= 0x10


@each_of(seeds(400))
def test_damaged_bytes_are_a_message_or_one_typed_error(seed: int) -> None:
    """Whatever decodes encodes to the same bytes."""
    chance = random.Random(seed)
    data = bytearray(_link(chance.choice(MESSAGES)))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(min(len(data), 120))] = chance.randrange(256)
    try:
        partition, message = decode(memoryview(bytes(data)), sender=B, batch=StoredBatch)
    except CorruptDataError:
        return
    assert b"".join(bytes(one) for one in encode(partition, message)) == bytes(data)


# ---------------------------------------------------------------------------- over NATS


def _messages(message: FetchAnswer, limit: int) -> list[bytes]:
    return list(replica_answer.encode(P, message, sender=A, payload_bytes_max=limit))


@pytest.mark.parametrize("message", [EMPTY, FULL, BELOW])
@pytest.mark.parametrize("limit", [400, 700, 1 << 20])
def test_an_answer_arrives_in_as_many_parts_as_it_takes(message: FetchAnswer, limit: int) -> None:
    """Every part is within the server's limit, and all of them make the same answer."""
    frames = _messages(message, limit)
    assert all(len(frame) <= limit for frame in frames)
    assembler = replica_answer.AnswerAssembler()
    whole = None
    for frame in frames:
        assert whole is None
        whole = assembler.add(replica_answer.decode(frame))
    assert whole is not None
    assert whole[0].sender == A
    assert whole[0].partition_id == P
    assert replica_answer.assembled(whole, StoredBatch) == message


def test_only_whole_batches_go_while_more_than_one_fits() -> None:
    """A follower asks for the rest; a single batch is the only one that is cut."""
    assert replica_answer.fitting(FULL, 1 << 20) is FULL
    assert replica_answer.fitting(FULL, 500).batches == FULL.batches[:1]
    assert replica_answer.fitting(FULL, 300).batches == FULL.batches[:1]


def test_the_seeds_sixteen_bytes_stand_where_they_should() -> None:
    """Leader epoch and inclusive high watermark follow the envelope's header, big-endian."""
    (frame,) = _messages(FULL, 1 << 20)
    header = frame[5]
    assert frame[:4] == b"\xb9\x0e\x43\xb4"
    assert frame[7] == 3
    assert frame[header : header + 16] == (7).to_bytes(8, "big") + (8).to_bytes(8, "big")
    assert frame[header + 16 : header + 20] == b"HWRB"
    (none,) = _messages(answer(1), 1 << 20)
    assert none[none[5] + 8 :] == b"\xff" * 8  # nothing is committed: -1


def test_lost_or_mixed_parts_make_no_answer() -> None:
    """A gap drops the parts before it; the next answer begins anew."""
    frames = [replica_answer.decode(frame) for frame in _messages(FULL, 400)]
    assert len(frames) > 3
    assembler = replica_answer.AnswerAssembler()
    assert [assembler.add(one) for one in (frames[0], *frames[2:])] == [None] * (len(frames) - 1)
    twice = (frames[0], frames[1], frames[1], *frames[3:])  # as many as there should be
    assert [assembler.add(one) for one in twice] == [None] * len(frames)
    other = [replica_answer.decode(one) for one in _messages(answer(99, FULL.batches), 400)]
    assert [assembler.add(one) for one in (frames[0], other[1], *other[2:])] == [None] * len(other)
    assert [assembler.add(one) for one in frames][-1] is not None


def test_a_server_that_takes_next_to_nothing_is_a_typed_refusal() -> None:
    """There is no way to send a batch in parts of a few bytes."""
    with pytest.raises(RecordTooLargeError):
        _messages(FULL, 200)
    with pytest.raises(RecordTooLargeError):
        _messages(answer(1, (stored(0, bytes(1 << 24)),)), 300)


@each_of(seeds(300))
def test_damaged_answers_are_parts_or_one_typed_error(seed: int) -> None:
    """Any bytes from NATS are refused by type, or are an answer like any other."""
    chance = random.Random(seed)
    frames = _messages(chance.choice((EMPTY, FULL, BELOW)), chance.choice((400, 5000)))
    data = bytearray(chance.choice(frames))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(min(len(data), 200))] = chance.randrange(256)
    try:
        part = replica_answer.decode(bytes(data))
        whole = replica_answer.AnswerAssembler().add(part)
        if whole is not None:
            replica_answer.assembled(whole, StoredBatch)
    except CorruptDataError:
        return
