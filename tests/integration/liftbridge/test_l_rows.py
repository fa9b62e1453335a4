"""A test named after each row of docs/compatibility.md, L01 to L37 and L52 to L57, on one broker.

Written from the specification of Liftbridge: what a row says is what its test asks for. Rows of
several brokers are in test_l_rows_cluster.py, those of other doors where these doors are tested.
The file is not split: it is read beside the table, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from clusterkit.lift_brokers import LiftServer, lift_up
from clusterkit.lift_calls import (
    WAIT_S,
    LiftCalls,
    ack_of,
    in_envelope,
    new_name,
    offsets,
    publish_async,
    until,
    values,
)
from headwater.client import Client
from headwater.client.operations import Operations
from headwater.local.runtime_file import RuntimeFile
from simkit.servers.natsproc import RawNats

pytestmark = pytest.mark.integration

NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftServer]:
    """Run `headwater up`."""
    with lift_up(tmp_path_factory.mktemp("rows") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def calls(up: LiftServer) -> Iterator[LiftCalls]:
    """Give a client."""
    with LiftCalls(up.address) as made:
        yield made


@pytest.fixture
def nats(up: LiftServer) -> Iterator[RawNats]:
    """Give a plain NATS client."""
    with RawNats(int(up.nats.rpartition(":")[2])) as client:
        yield client


def test_l01_a_stream_records_its_subject(calls: LiftCalls, nats: RawNats) -> None:
    """A plain NATS message is stored with its payload as value, without a key, from offset 0."""
    stream = calls.create()
    for number in range(3):
        nats.publish(stream, b"%d" % number)
    found = calls.first(stream, 3)
    assert [(one.offset, one.key, one.value) for one in found] == [
        (0, b"", b"0"), (1, b"", b"1"), (2, b"", b"2"),
    ]  # fmt: skip


def test_l02_nothing_is_stored_without_a_stream(calls: LiftCalls, nats: RawNats) -> None:
    """Messages from before the creation are not there."""
    name = new_name()
    nats.publish(name, b"before")
    nats.flush()
    calls.create(name=name)
    nats.publish(name, b"after")
    assert list(values(calls.first(name, 1))) == [b"after"]


def test_l03_streams_share_a_subject(calls: LiftCalls, nats: RawNats) -> None:
    """Each has its own copy and its own offsets."""
    first, subject = new_name(), new_name()
    calls.create(name=first, subject=subject)
    nats.publish(subject, b"0")
    calls.first(first, 1)
    second = calls.create(subject=subject)
    nats.publish(subject, b"1")
    assert offsets(calls.first(first, 2)) == [0, 1]
    assert [(one.offset, one.value) for one in calls.first(second, 1)] == [(0, b"1")]


def test_l04_wildcards_record_each_subject(calls: LiftCalls, nats: RawNats) -> None:
    """The message tells the concrete subject."""
    name = new_name()
    calls.create(name=name, subject=f"{name}.*")
    for token in ("a", "b"):
        nats.publish(f"{name}.{token}", b"")
    assert [one.subject for one in calls.first(name, 2)] == [f"{name}.a", f"{name}.b"]


def test_l05_a_name_is_unique(calls: LiftCalls) -> None:
    """Another subject does not make another stream of a name."""
    stream = calls.create()
    code = calls.refused("CreateStream", name=stream, subject="other")
    assert code is grpc.StatusCode.ALREADY_EXISTS


def test_l06_partitions_have_subjects_of_their_own(calls: LiftCalls, nats: RawNats) -> None:
    """The subject itself, then subject.1 and subject.2; order is kept within a partition."""
    stream = calls.create(partitions=3)
    for number in range(9):
        suffix = f".{number % 3}" if number % 3 else ""
        nats.publish(stream + suffix, b"%d" % number)
    for partition in range(3):
        found = list(values(calls.first(stream, 3, partition=partition)))
        assert found == [b"%d" % number for number in range(partition, 9, 3)]


def test_l07_partitions_are_added_here(calls: LiftCalls, up: LiftServer) -> None:
    """The command and our client do what no call of Liftbridge's does; its metadata tells."""
    stream = calls.create(partitions=2)
    with Client(RuntimeFile.read(up.data).flight) as client:
        client.alter_stream(stream, partitions=4)

    def count() -> int:
        told = calls.ask("FetchMetadata", streams=[stream]).streamMetadata[0]
        return len(told.partitions)

    until(lambda: count() == 4, "four partitions")
    until(lambda: calls.publish(stream, b"x", partition=2).offset == 0, "its first message")


def test_l11_a_load_balance_group_shares(calls: LiftCalls, nats: RawNats) -> None:
    """Each message lands in one stream of the group; a stream outside of it has all of them."""
    subject, count = new_name(), 30
    shared = [calls.create(subject=subject, group="g") for _ in range(2)]
    every = calls.create(subject=subject)
    for number in range(count):
        nats.publish(subject, b"%02d" % number)
    all_of_them = sorted(values(calls.first(every, count)))

    def stored() -> list[bytes]:
        found = []
        for one in shared:
            end = calls.partition(one).highWatermark + 1
            found += list(values(calls.first(one, end))) if end else []
        return sorted(found)

    until(lambda: len(stored()) >= count, "every message in the group")
    assert stored() == all_of_them == [b"%02d" % number for number in range(count)]


def test_l12_an_envelope_carries_a_message(calls: LiftCalls, nats: RawNats) -> None:
    """Key, headers, inbox, correlation id and policy, inside of a NATS payload."""
    stream = calls.create()
    nats.subscribe("inbox.l12")
    fields = {"key": b"k", "headers": {"h": b"1"}, "ackInbox": "inbox.l12", "correlationId": "c"}
    nats.publish(stream, in_envelope(b"v", ackPolicy=wire.ALL, **fields))
    ack = ack_of(nats.next_message()[1])
    assert (ack.offset, ack.correlationId, ack.ackPolicy) == (0, "c", wire.ALL)
    (found,) = calls.first(stream, 1)
    assert (found.key, found.value, found.headers["h"]) == (b"k", b"v", b"1")


def test_l13_a_bad_envelope_is_a_message(calls: LiftCalls, nats: RawNats) -> None:
    """The magic number and garbage are stored as they are."""
    stream = calls.create()
    payload = b"\xb9\x0e\x43\xb4" + b"\x00\xff\x00\x00garbage"
    nats.publish(stream, payload)
    (found,) = calls.first(stream, 1)
    assert (found.value, found.key) == (payload, b"")


def test_l14_each_stream_acknowledges(calls: LiftCalls, nats: RawNats) -> None:
    """Three streams on a subject: three acknowledgements on the inbox."""
    subject = new_name()
    streams = {calls.create(subject=subject) for _ in range(3)}
    nats.subscribe("inbox.l14")
    nats.publish(subject, in_envelope(b"v", ackInbox="inbox.l14"))
    assert {ack_of(nats.next_message()[1]).stream for _ in range(3)} == streams


def test_l15_acknowledgement_policies(calls: LiftCalls) -> None:
    """LEADER is the default; NONE is not answered."""
    stream = calls.create()
    assert calls.publish(stream).ackPolicy == wire.LEADER
    assert calls.publish(stream, ackPolicy=wire.ALL).offset == 1
    assert not calls.ask("Publish", stream=stream, ackPolicy=wire.NONE).HasField("ack")
    assert calls.publish(stream).offset == 3


def test_l16_the_correlation_id_comes_back(calls: LiftCalls) -> None:
    """In the acknowledgement, and not with the stored message."""
    stream = calls.create()
    assert calls.publish(stream, correlationId="mine").correlationId == "mine"
    assert calls.read(stream)[0].correlationId == ""


def test_l17_a_message_that_is_sent_twice_is_stored_twice(calls: LiftCalls) -> None:
    """Deduplication is another option's; without it a retry is another record."""
    stream = calls.create()
    for _ in range(2):
        calls.publish(stream, b"same", correlationId="same")
    assert list(values(calls.read(stream))) == [b"same", b"same"]


def ten(calls: LiftCalls) -> tuple[str, list[wire.Message]]:
    """Return a stream with offsets 0 to 9, whose times differ, and its messages."""
    stream = calls.create()
    for number in range(10):
        calls.publish(stream, b"%d" % number)
    found = calls.read(stream)
    return stream, found


def test_l19_five_starts(calls: LiftCalls) -> None:
    """Offset, time, earliest, latest, new only."""
    stream, every = ten(calls)
    assert offsets(calls.read(stream, startPosition=api.OFFSET, startOffset=4)) == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    moment = every[4].timestamp
    found = calls.read(stream, startPosition=api.TIMESTAMP, startTimestamp=moment)
    assert [one for one in found if one.timestamp < moment] == []
    assert found == [one for one in every if one.timestamp >= moment]
    assert offsets(calls.read(stream)) == list(range(10))
    assert offsets(calls.read(stream, startPosition=api.LATEST)) == [9]
    fresh = calls.subscribe(stream, startPosition=api.NEW_ONLY)
    calls.publish(stream)
    assert next(fresh).offset == 10
    fresh.cancel()


def test_l20_four_stops(calls: LiftCalls) -> None:
    """At an offset, which is delivered; at the latest; at a time; never."""
    empty = calls.create()
    code = calls.refused("Subscribe", stream=empty, stopPosition=api.STOP_LATEST)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    stream, every = ten(calls)
    stop = {"stopPosition": api.STOP_OFFSET, "stopOffset": 5}
    assert offsets(calls.read(stream, **stop)) == [0, 1, 2, 3, 4, 5]
    moment = every[6].timestamp
    stop = {"stopPosition": api.STOP_TIMESTAMP, "stopTimestamp": moment}
    assert calls.read(stream, **stop) == [one for one in every if one.timestamp <= moment]
    endless = calls.subscribe(stream, startPosition=api.LATEST)
    assert next(endless).offset == 9
    calls.publish(stream)
    assert next(endless).offset == 10
    endless.cancel()


def test_l21_a_subscription_reads_backwards(calls: LiftCalls) -> None:
    """From the latest down to the first, and then it ends."""
    stream, _ = ten(calls)
    found = calls.read(
        stream, startPosition=api.LATEST, stopPosition=api.STOP_ON_CANCEL, reverse=True
    )
    assert offsets(found) == list(range(9, -1, -1))


def test_l23_keys_and_headers(calls: LiftCalls, nats: RawNats) -> None:
    """Opaque bytes; subject and reply are added, and replace a publisher's of these names."""
    stream = calls.create()
    blob = bytes(range(256))
    calls.publish(stream, blob, key=blob, headers={"h": blob, "subject": b"mine", "reply": b"mine"})
    nats.publish(stream, b"plain", reply="back.to.me")
    first, second = calls.first(stream, 2)
    assert (first.key, first.value) == (blob, blob)
    assert dict(first.headers) == {"h": blob, "subject": stream.encode(), "reply": b""}
    assert second.headers["reply"] == b"back.to.me"
    assert second.replySubject == "back.to.me"


@pytest.mark.parametrize(
    ("limit", "records_min"),
    [
        ({"retentionMaxMessages": api.NullableInt64(value=10)}, 10),
        ({"retentionMaxBytes": api.NullableInt64(value=6000)}, 4),  # 1.5 kB at most of each
    ],
)
def test_l24_retention_removes_the_oldest_messages(
    calls: LiftCalls, up: LiftServer, limit: dict[str, api.NullableInt64], records_min: int
) -> None:
    """Whole segments, oldest first, in both tiers; the newest messages stay, without a gap."""
    stream = calls.create(**limit, segmentMaxBytes=api.NullableInt64(value=4096))
    values = Random(24)  # bytes that a file of the table cannot make smaller
    with Client(RuntimeFile.read(up.data).flight) as client:
        for half in range(2):  # of two files at least the first may go
            for number in range(30 * half, 30 * half + 30):
                calls.publish(stream, b"%02d" % number + values.randbytes(500))
            client.tier_flush(stream)

        def is_gone() -> bool:  # a read that has begun would fail when its records go
            return client.describe(stream).partitions[0].start > 0

        until(is_gone, "the oldest messages are gone", 180)
    found = calls.read(stream)
    assert len(found) >= records_min
    assert offsets(found) == list(range(found[0].offset, 60))


def test_l25_a_compacted_stream_keeps_the_last_message_of_each_key(
    calls: LiftCalls, up: LiftServer
) -> None:
    """Without a table this is what a subscriber from earliest gets; a table has every message."""
    with Client(RuntimeFile.read(up.data).flight) as client:
        tiered = calls.create(compactEnabled=api.NullableBool(value=True))
        assert client.stream(tiered).config.compact
        local = new_name()
        client.create_stream(local, compact=True, tiering=False)
        for stream in (tiered, local):
            for number in range(12):
                calls.publish(stream, b"%d" % number, key=b"k%d" % (number % 3))
        client.tier_flush(tiered)
        for stream in (tiered, local):
            (done,) = Operations(client).compact(stream)
            assert (done.state, done.end) == ("compacted", 12)
        assert client.describe(local).records_count == 3
    assert offsets(calls.read(local)) == [9, 10, 11]
    later = calls.read(local, startPosition=api.OFFSET, startOffset=10)
    assert list(values(later)) == [b"10", b"11"]
    assert offsets(calls.read(tiered)) == list(range(12))


def test_l26_a_stream_has_settings_of_its_own(calls: LiftCalls, up: LiftServer) -> None:
    """The options of CreateStream are the stream's, not the server's."""
    number, flag = api.NullableInt64, api.NullableBool
    stream = calls.create(
        retentionMaxBytes=number(value=1 << 20),
        retentionMaxAge=number(value=3_600_000),
        segmentMaxBytes=number(value=65536),
        segmentMaxAge=number(value=60_000),
        minIsr=api.NullableInt32(value=1),
        optimisticConcurrencyControl=flag(value=True),
    )
    with Client(RuntimeFile.read(up.data).flight) as client:
        config = client.stream(stream).config
    assert (config.local_retention_bytes, config.local_retention_ms) == (1 << 20, 3_600_000)
    assert (config.segment_bytes_max, config.segment_age_ms_max) == (65536, 60_000)
    assert (config.min_isr, config.optimistic_concurrency) == (1, True)


def test_l27_segments_roll_by_size(calls: LiftCalls, up: LiftServer) -> None:
    """Two files, the second named by its base offset."""
    stream = calls.create(segmentMaxBytes=api.NullableInt64(value=4096))
    with Client(RuntimeFile.read(up.data).flight) as client:
        uuid = client.stream(stream).uuid
    folder = up.data / "broker/streams" / uuid  # other folders come and go meanwhile
    assert len(_segments(folder)) == 1
    for _ in range(10):
        calls.publish(stream, b"x" * 1000)
    until(lambda: len(_segments(folder)) > 1, "a second segment")
    first, second, *_ = _segments(folder)
    assert (int(first.stem.split("-")[0]), int(second.stem.split("-")[0]) > 0) == (0, True)


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.log"))


def test_l30_a_deleted_stream_is_gone(calls: LiftCalls) -> None:
    """Its subscribers hear of it, its name may be used again, from offset 0."""
    stream = calls.create()
    calls.publish(stream)
    reading = calls.subscribe(stream, startPosition=api.EARLIEST)
    next(reading)
    calls.ask("DeleteStream", name=stream)
    with pytest.raises(grpc.RpcError) as ended:
        next(reading)
    assert ended.value.code() is NOT_FOUND
    assert calls.refused("DeleteStream", name=stream) is NOT_FOUND
    calls.create(name=stream)
    assert calls.publish(stream).offset == 0


def test_l31_metadata_of_brokers_and_streams(calls: LiftCalls, up: LiftServer) -> None:
    """Addresses, partitions with leader, replicas and ISR, load, and the time of the creation."""
    stream = calls.create(partitions=2)
    told = calls.ask("FetchMetadata", streams=[stream, "nobody"])
    (broker,) = told.brokers
    assert f"{broker.host}:{broker.port}" == up.address
    assert broker.partitionCount >= 2
    assert broker.leaderCount >= 2
    found = {one.name: one for one in told.streamMetadata}
    assert found["nobody"].error == api.StreamMetadata.UNKNOWN_STREAM
    assert found[stream].creationTimestamp > 0
    for number in range(2):
        partition = found[stream].partitions[number]
        assert partition.id == number
        assert [partition.leader] == list(partition.replicas) == list(partition.isr) == [broker.id]


def test_l32_metadata_of_a_partition(calls: LiftCalls) -> None:
    """High watermark and newest offset, as the leader has them; -1 while there is none."""
    stream = calls.create()
    asked = {"stream": stream, "partition": 0}
    found = calls.ask("FetchPartitionMetadata", **asked).metadata
    assert (found.highWatermark, found.newestOffset) == (-1, -1)
    calls.publish(stream)
    found = calls.ask("FetchPartitionMetadata", **asked).metadata
    assert (found.highWatermark, found.newestOffset) == (0, 0)
    assert calls.refused("FetchPartitionMetadata", stream=stream, partition=1) is NOT_FOUND


def test_l33_cursors(calls: LiftCalls) -> None:
    """Set and fetched; -1 if unset. A restart: test_doors.py; a leader change: the Go scenario."""
    place = {"stream": calls.create(), "partition": 0, "cursorId": "c"}
    assert calls.ask("FetchCursor", **place).offset == -1
    for offset in (7, 3):
        calls.ask("SetCursor", **place, offset=offset)
        assert calls.ask("FetchCursor", **place).offset == offset


def test_l34_consumer_groups(calls: LiftCalls) -> None:
    """Two members of four partitions have two each; one leaves and the other has four."""
    stream, group = calls.create(partitions=4), new_name()

    def epoch() -> int:
        told = calls.ask("FetchMetadata", groups=[group]).groupMetadata[0]
        return int(told.epoch)

    def assigned(member: str) -> int:
        asked = {"groupId": group, "consumerId": member, "epoch": epoch()}
        told = calls.ask("FetchConsumerGroupAssignments", **asked)
        return sum(len(one.partitions) for one in told.assignments)

    epochs = []
    for member in ("a", "b"):
        calls.ask("JoinConsumerGroup", groupId=group, consumerId=member, streams=[stream])
        epochs.append(epoch())
    assert (assigned("a"), assigned("b")) == (2, 2)
    calls.ask("LeaveConsumerGroup", groupId=group, consumerId="a")
    epochs.append(epoch())
    assert assigned("b") == 4
    assert epochs == sorted(set(epochs)), "each change has a later epoch"


def test_l35_a_reader_of_an_earlier_epoch_is_refused(calls: LiftCalls) -> None:
    """A later epoch takes the partition over; the earlier reader ends in order."""
    stream, group = calls.create(), new_name()
    joined = []
    for member in ("a", "b"):
        calls.ask("JoinConsumerGroup", groupId=group, consumerId=member, streams=[stream])
        joined.append(calls.ask("FetchMetadata", groups=[group]).groupMetadata[0].epoch)

    def consumer(place: int) -> api.Consumer:
        return api.Consumer(groupId=group, groupEpoch=joined[place], consumerId="ab"[place])

    code = calls.refused("Subscribe", stream=stream, consumer=consumer(0))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    first = calls.subscribe(stream, consumer=consumer(1))
    second = calls.subscribe(stream, consumer=consumer(1))
    assert list(first) == []
    second.cancel()


def test_l37_expected_offsets(calls: LiftCalls) -> None:
    """The offset that a message expects has to be the next one; -1 is any."""
    stream = calls.create(optimisticConcurrencyControl=api.NullableBool(value=True))
    assert calls.publish(stream, expectedOffset=0).offset == 0
    wrong = {"stream": stream, "value": b"x", "expectedOffset": 0}
    assert calls.refused("Publish", **wrong) is grpc.StatusCode.FAILED_PRECONDITION
    assert calls.publish(stream, expectedOffset=-1).offset == 1
    (told,) = publish_async(calls, [api.PublishRequest(**wrong)])  # type: ignore[arg-type]
    assert told.asyncError.code == api.PublishAsyncError.INCORRECT_OFFSET


def test_l52_the_health_service(up: LiftServer) -> None:
    """SERVING for the server and for proto.API; another service is not known."""
    with grpc.insecure_channel(up.address) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        for service in (b"", b"\x0a\x09proto.API"):
            assert check(service, timeout=WAIT_S) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            check(b"\x0a\x02no", timeout=WAIT_S)
        assert refused.value.code() is NOT_FOUND


def test_l53_a_message_that_is_too_large(calls: LiftCalls, nats: RawNats, up: LiftServer) -> None:
    """TOO_LARGE on the inbox, BAD_REQUEST in PublishAsync; the stream is not affected."""
    stream = calls.create()
    with Client(RuntimeFile.read(up.data).flight) as client:
        client.alter_stream(stream, record_bytes_max=1000)
    until(
        lambda: calls.refused("Publish", stream=stream, value=b"x" * 1001) is INVALID, "the limit"
    )
    nats.subscribe("inbox.l53")
    nats.publish(stream, in_envelope(b"x" * 1001, ackInbox="inbox.l53"))
    assert ack_of(nats.next_message()[1]).ackError == wire.Ack.TOO_LARGE
    large = api.PublishRequest(stream=stream, value=b"x" * 1001, correlationId="large")
    told = {one.correlationId: one for one in publish_async(calls, [large])}
    assert told["large"].asyncError.code == api.PublishAsyncError.BAD_REQUEST
    calls.publish(stream, b"good")
    assert list(values(calls.read(stream))) == [b"good"]


def test_l54_errors_of_single_messages(calls: LiftCalls) -> None:
    """A bad message in a call is one error with its correlation id; the next ones are stored."""
    stream = calls.create()
    requests = [
        api.PublishRequest(stream="nobody", correlationId="bad"),
        api.PublishRequest(stream=stream, correlationId="good"),
    ]
    told = {one.correlationId: one for one in publish_async(calls, requests)}
    assert told["bad"].asyncError.code == api.PublishAsyncError.NOT_FOUND
    assert told["good"].ack.offset == 0


def test_l57_a_stream_that_was_made_again_keeps_its_data(tmp_path: Path) -> None:
    """Deleted and made again, then a restart: the second one's messages are there, no others."""
    with lift_up(tmp_path / "data") as running, LiftCalls(running.address) as calls:
        stream = calls.create()
        calls.publish(stream, b"first")
        calls.ask("DeleteStream", name=stream)
        calls.create(name=stream)
        calls.publish(stream, b"second")
    with lift_up(tmp_path / "data") as running, LiftCalls(running.address) as calls:
        assert list(values(calls.read(stream))) == [b"second"]
