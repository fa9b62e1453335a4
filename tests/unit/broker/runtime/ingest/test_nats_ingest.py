"""Ingest over a connection and logs of the test's own: order, back-pressure, answers.

The file is not split: its tests share one scene.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.adapters.nats.liftbridge_messages import decode_publish, encode_ack
from broker.codec.nats import envelope
from broker.codec.nats.envelope import EnvelopeKind
from broker.codec.nats.stream import MessageBatch
from broker.errors import (
    ConditionFailedError,
    DiskFullError,
    EncryptionKeyError,
    HeadwaterError,
    InvalidStreamError,
    LogFailedError,
    OverloadedError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.model.stream import Stream, StreamConfig
from broker.ports.partition import RecordsOutcome
from broker.runtime.ingest.nats_ingest import IngestLimits, NatsIngest
from broker.wire.liftbridge import message_pb2 as wire
from simkit.brokers.memory_broker import FakeClock

Done = Callable[[RecordsOutcome | HeadwaterError], None]


class FakeLink:
    """A connection that records its calls."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.subjects: dict[int, str] = {}
        self.error: HeadwaterError | None = None
        self.at_subscribe: Callable[[], None] | None = None
        self.closed = False

    async def start(self, *, must_connect: bool = True) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Remember."""
        self.closed = True

    async def subscribe(self, subjects: Mapping[int, str], queue_group: str | None) -> None:
        """Remember, or fail as the test wants."""
        self.subjects.update(subjects)
        if self.at_subscribe is not None:
            self.at_subscribe()
        if self.error is not None:
            raise self.error

    async def unsubscribe(self, sids: Sequence[int]) -> None:
        """Forget."""
        for sid in sids:
            self.subjects.pop(sid, None)

    async def flush(self) -> bool:
        """Claim a round trip."""
        return True

    def send(self, data: bytes, messages_count: int) -> bool:
        """Remember."""
        assert data.count(b"PUB ") == messages_count
        self.sent.append(data)
        return True

    def answers(self) -> dict[str, dict[str, Any]]:
        """Return every JSON answer by subject."""
        found = {}
        for data in self.sent:
            for line in data.split(b"PUB ")[1:]:
                head, body = line.split(b"\r\n", 1)
                found[head.split()[0].decode()] = json.loads(body.split(b"\r\n")[0])
        return found


class FakeLog:
    """A partition that takes, refuses and completes as the test says."""

    def __init__(self) -> None:
        self.refusals: list[HeadwaterError] = []  # one is used up by each submission
        self.full = False
        self.rows_max = 1_000_000
        self.taken: list[list[bytes]] = []
        self.policies: list[AckPolicy] = []  # the policies of the stored batches
        self.waiting: list[Done] = []

    def submit_records(
        self,
        batch: pa.RecordBatch,
        message_ids: Sequence[str | None] | None,
        done: Done,
        *,
        policy: AckPolicy = AckPolicy.ALL,
        expected_end: Offset | None = None,
    ) -> None:
        """Take a batch, or raise."""
        assert expected_end is None, "no test here sends a condition"
        if self.full:
            raise OverloadedError("full")
        if self.refusals:
            raise self.refusals.pop(0)
        if batch.num_rows > self.rows_max:
            raise RecordTooLargeError("too many")
        self.taken.append(batch.column("value").to_pylist())
        self.policies.append(policy)
        self.waiting.append(done)

    def complete(self, outcome: HeadwaterError | None = None) -> None:
        """Finish the oldest submission."""
        index = len(self.taken) - len(self.waiting)
        base = sum(len(values) for values in self.taken[:index])
        rows = len(self.taken[index])
        stored = RecordsOutcome(
            [Offset(base + row) for row in range(rows)], frozenset(), LeaderEpoch(1)
        )
        self.waiting.pop(0)(stored if outcome is None else outcome)

    @property
    def values(self) -> list[bytes]:
        """Every value taken, in order."""
        return [value for values in self.taken for value in values]


class Scene:
    """One ingest with streams ``a``, ``b`` ... each on a log of its own."""

    def __init__(self, names: str = "a", **limits: int) -> None:
        self.clock = FakeClock()
        self.link = FakeLink()
        self.ingest = NatsIngest(
            clock=self.clock,
            decode_publish=decode_publish,
            encode_ack=encode_ack,
            limits=IngestLimits(**limits),
        )
        self.ingest.attach(self.link)
        self.logs = {name: FakeLog() for name in names}

    async def start(self) -> None:
        """Start and add every stream."""
        await self.ingest.start()
        for number, name in enumerate(self.logs):
            await self.ingest.serve(self.stream(name, number), {0: self.logs[name]})  # type: ignore[dict-item]

    @staticmethod
    def stream(name: str, number: int = 0) -> Stream:
        """Return a stream on the subject of its name, with PubAcks."""
        return Stream(
            name=name,
            uuid=StreamUuid(f"00000000-0000-4000-8000-{number:012d}"),
            config=StreamConfig(subject=name, puback=True),
            created_us=0,
            table_name=name,
        )

    def batch(self, name: str, *values: str) -> MessageBatch:
        """Return messages for a stream; each wants its answer on ``in.<value>``."""
        sid = next(sid for sid, subject in self.link.subjects.items() if subject == name)
        return MessageBatch(
            sid,
            [value.encode() for value in values],
            [(0, name.encode())],
            {row: f"in.{value}".encode() for row, value in enumerate(values)},
        )

    def dropped(self, name: str = "a") -> int:
        """Return how many messages of a stream were dropped."""
        return next(one.dropped_messages_total for one in self.ingest.stats() if one.stream == name)


def plain(batch: MessageBatch) -> MessageBatch:
    """Return the same messages, whose publishers want no answer."""
    return replace(batch, replies={})


def play(story: Coroutine[Any, Any, None]) -> None:
    """Run a test's story to its end, a minute at most."""
    asyncio.run(asyncio.wait_for(story, 60))


async def soon(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds."""
    while not condition():  # noqa: ASYNC110 - what is awaited is a turn of this very loop
        await asyncio.sleep(0)


def test_answers_go_out_once_durable_and_together() -> None:
    """Nothing is answered before its commit; two commits are one write."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        assert scene.ingest.received([scene.batch("a", "1", "2")]) is None
        assert scene.ingest.received([scene.batch("a", "3")]) is None
        await asyncio.sleep(0)
        assert scene.link.sent == []
        scene.logs["a"].complete()
        scene.logs["a"].complete()
        await soon(lambda: bool(scene.link.sent))
        assert len(scene.link.sent) == 1
        assert {one: body["seq"] for one, body in scene.link.answers().items()} == {
            "in.1": 1,
            "in.2": 2,
            "in.3": 3,
        }

    play(story())


def test_order_is_kept_while_a_log_has_no_room() -> None:
    """Batches wait behind the first overload, in order, and all are taken when there is room."""

    async def story() -> None:
        scene = Scene("ab")
        await scene.start()
        scene.logs["a"].full = True
        room = scene.ingest.received([scene.batch("a", "1"), scene.batch("b", "x")])
        assert room is not None
        # The connection ended and the next one reads: waiting messages must not be overtaken.
        assert scene.ingest.received([scene.batch("a", "2")]) is room
        assert (scene.logs["a"].values, scene.logs["b"].values) == ([], [])
        scene.logs["a"].full = False
        await room
        assert (scene.logs["a"].values, scene.logs["b"].values) == ([b"1", b"2"], [b"x"])
        assert scene.dropped() == 0

    play(story())


def test_a_log_without_room_for_too_long_drops_at_once_from_then_on() -> None:
    """After the stall the batch is dropped and refused; the next overload costs no waiting."""

    async def story() -> None:
        scene = Scene("ab", stall_ms_max=1000)
        await scene.start()
        scene.logs["a"].full = True
        room = scene.ingest.received([scene.batch("a", "1"), scene.batch("b", "x")])
        assert room is not None
        scene.clock.advance(us=999_000)
        await asyncio.sleep(0.05)
        assert scene.dropped() == 0
        scene.clock.advance(us=1_000)
        await room
        assert scene.dropped() == 1
        assert scene.logs["b"].values == [b"x"]
        assert scene.ingest.received([scene.batch("a", "2")]) is None
        assert scene.dropped() == 2
        assert {body["error"]["err_code"] for body in scene.link.answers().values()} == {10023}
        scene.logs["a"].full = False
        assert scene.ingest.received([scene.batch("a", "3")]) is None
        assert scene.logs["a"].values == [b"3"]
        scene.logs["a"].full = True  # the log has room again: the next overload waits again
        assert scene.ingest.received([scene.batch("a", "4")]) is not None

    play(story())


def test_bytes_in_flight_are_bounded() -> None:
    """What the logs have not made durable counts against one limit; completions make room."""

    async def story() -> None:
        scene = Scene(pending_bytes_max=6000)
        await scene.start()
        assert scene.ingest.received([scene.batch("a", "1", "2")]) is None
        assert scene.ingest.received([scene.batch("a", "3", "4")]) is None
        room = scene.ingest.received([scene.batch("a", "5" * 3000)])
        assert room is not None
        scene.logs["a"].complete()
        scene.logs["a"].complete()
        await room
        assert len(scene.logs["a"].taken) == 3
        scene.logs["a"].complete()
        await soon(lambda: scene.ingest.stats()[0].pending_bytes == 0)

    play(story())


def test_a_partition_that_cannot_commit_leaves_room_for_the_others() -> None:
    """It holds its share; beyond it its messages are lost and told, but not those of the others."""

    async def story() -> None:
        scene = Scene("ab", pending_bytes_max=24_000, partition_bytes_max=10_000, stall_ms_max=0)
        await scene.start()
        one = "1" * 2500
        for _ in range(3):  # more than both limits, with and without a wish for an answer
            scene.ingest.received([scene.batch("a", one), plain(scene.batch("a", one))])
        taken = scene.logs["a"].values
        assert len(taken) == 2
        assert scene.dropped("a") == 4
        errors = [body["error"]["err_code"] for body in scene.link.answers().values()]
        assert errors == [10023]
        assert scene.ingest.received([scene.batch("b", "2" * 2500)]) is None
        assert len(scene.logs["b"].values) == 1
        scene.logs["b"].complete()
        await soon(lambda: "in." + "2" * 2500 in scene.link.answers())
        assert scene.dropped("b") == 0
        scene.logs["a"].complete()
        scene.logs["a"].complete()
        await soon(lambda: scene.ingest.stats()[0].stored_messages_total == 2)
        assert scene.ingest.received([scene.batch("a", "3")]) is None
        assert scene.logs["a"].values == [*taken, b"3"]

    play(story())


@pytest.mark.parametrize("limit", ["pending_bytes_max", "partition_bytes_max"])
def test_a_batch_larger_than_all_limits_is_still_tried(limit: str) -> None:
    """One batch may exceed the limit on its own, else it could never be stored."""

    async def story() -> None:
        scene = Scene("ab", **{limit: 1})
        await scene.start()
        assert scene.ingest.received([scene.batch("a", "1", "2")]) is None
        assert scene.logs["a"].values == [b"1", b"2"]

    play(story())


def test_what_is_too_large_together_is_tried_in_halves_in_order() -> None:
    """A batch that the log refuses is split; the refusal of a single row is answered."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        scene.logs["a"].rows_max = 2
        values = [str(number) for number in range(7)]
        assert scene.ingest.received([scene.batch("a", *values)]) is None
        assert scene.logs["a"].values == [value.encode() for value in values]
        scene.logs["a"].rows_max = 0
        assert scene.ingest.received([scene.batch("a", "big")]) is None
        assert scene.link.answers()["in.big"]["error"]["err_code"] == 10054

    play(story())


@pytest.mark.parametrize("error", [DiskFullError("no room"), LogFailedError("fsync")])
@pytest.mark.parametrize("late", [False, True], ids=["refused", "failed"])
def test_errors_are_told_without_waiting(error: HeadwaterError, late: bool) -> None:
    """A refusal at once and a failed commit sound the same to the publisher."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        if not late:
            scene.logs["a"].refusals = [error]
        assert scene.ingest.received([scene.batch("a", "1")]) is None
        if late:
            scene.logs["a"].complete(error)
        await soon(lambda: bool(scene.link.sent))
        assert scene.link.answers()["in.1"]["headwater"]["type"] == type(error).__name__
        stats = scene.ingest.stats()[0]
        assert (stats.refused_messages_total, stats.dropped_messages_total) == (1, 0)
        assert stats.errors_total == {type(error).__name__: 1}
        assert stats.pending_bytes == 0

    play(story())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EncryptionKeyError("the newest key cannot be used"), wire.Ack.ENCRYPTION),
        (RecordTooLargeError("too large"), wire.Ack.TOO_LARGE),
        (ConditionFailedError("another offset"), wire.Ack.INCORRECT_OFFSET),
        (DiskFullError("no room"), wire.Ack.UNKNOWN),
    ],
)
def test_an_ack_inbox_is_told_liftbridges_code(error: HeadwaterError, code: wire.Ack.Error) -> None:
    """Of a message in an envelope, whose publisher waits there."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        scene.logs["a"].refusals = [error]
        message = wire.Message(value=b"x", ackInbox="in.ack", offset=-1)
        value = envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString())
        (sid,) = scene.link.subjects
        assert scene.ingest.received([MessageBatch(sid, [value], [(0, b"a")], {})]) is None
        await soon(lambda: bool(scene.link.sent))
        head, body = scene.link.sent[0].split(b"\r\n", 1)
        assert head.split()[1] == b"in.ack"
        told = envelope.decode(body.removesuffix(b"\r\n"), EnvelopeKind.ACK)
        assert wire.Ack.FromString(told).ackError == code

    play(story())


def test_an_answer_that_the_server_would_not_take_is_not_sent() -> None:
    """It repeats a publisher's text; the server closes the connection for it, with all streams."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        scene.logs["a"].refusals = [ConditionFailedError("Nats-Expected-" + "A" * 600_000)]
        long = wire.Message(value=b"x", ackInbox="in.long", correlationId="c" * 600_000, offset=-1)
        short = wire.Message(value=b"x", ackInbox="in.short", correlationId="c", offset=-1)
        values = [
            envelope.encode(EnvelopeKind.PUBLISH, one.SerializeToString()) for one in (long, short)
        ]
        (sid,) = scene.link.subjects
        scene.ingest.received([MessageBatch(sid, [b"y"], [(0, b"a")], {0: b"in.error"})])
        scene.ingest.received([MessageBatch(sid, values, [(0, b"a")], {})])
        scene.logs["a"].complete()
        await soon(lambda: bool(scene.link.sent))
        assert [one.split()[1] for one in scene.link.sent] == [b"in.short"]
        assert scene.ingest.stats()[0].errors_total["OversizedAnswer"] == 2

    play(story())


def test_a_new_partition_that_is_denied_leaves_the_others_as_they_are() -> None:
    """The stream grew, and the broker may not listen on the subject of the new partition."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        grown = replace(scene.stream("a"), config=StreamConfig(subject="a", partitions=2))
        scene.link.error = InvalidStreamError("denied")
        logs = {0: scene.logs["a"], 1: FakeLog()}
        with pytest.raises(InvalidStreamError):
            await scene.ingest.serve(grown, logs)  # type: ignore[arg-type]
        assert list(scene.link.subjects.values()) == ["a"]
        assert [one.partition for one in scene.ingest.stats()] == [0]
        scene.ingest.received([scene.batch("a", "1")])
        assert scene.logs["a"].values == [b"1"]

    play(story())


@pytest.mark.parametrize("refused", [None, DiskFullError("no room")])
def test_addresses_of_others_get_no_answer(refused: HeadwaterError | None) -> None:
    """Neither a PubAck nor an ack of an envelope, of a stored or of a refused message."""

    async def story() -> None:
        scene = Scene()
        scene.ingest._takes_answers = lambda stream, address: (stream.name, address) == ("a", b"ok")
        await scene.start()
        (sid,) = scene.link.subjects
        message = wire.Message(value=b"x", ackInbox="not.mine", offset=-1, ackPolicy=wire.ALL)
        value = envelope.encode(EnvelopeKind.PUBLISH, message.SerializeToString())
        replies = {1: b"not.mine", 2: b"ok", 3: b"_INBOX.x"}
        if refused is not None:
            scene.logs["a"].refusals = [refused]
        batch = MessageBatch(sid, [value, b"1", b"2", b"3"], [(0, b"a")], replies)
        assert scene.ingest.received([batch]) is None
        if refused is None:
            scene.logs["a"].complete()
        await soon(lambda: bool(scene.link.sent))
        assert set(scene.link.answers()) == {"ok", "_INBOX.x"}
        errors = scene.ingest.stats()[0].errors_total
        assert errors["RefusedReplyAddress"] == 2

    play(story())


def test_a_message_that_comes_with_the_subscriptions_confirmation_is_stored() -> None:
    """The partition is known before the server is asked."""

    async def story() -> None:
        scene = Scene()

        def at_subscribe() -> None:
            scene.ingest.received([scene.batch("a", "early")])

        scene.link.at_subscribe = at_subscribe
        await scene.start()
        assert scene.logs["a"].values == [b"early"]

    play(story())


def test_a_denied_subject_leaves_nothing_behind_a_late_one_stays() -> None:
    """InvalidStreamError takes the stream away again, UnavailableError keeps it for later."""

    async def story() -> None:
        scene = Scene()
        scene.link.error = InvalidStreamError("denied")
        with pytest.raises(InvalidStreamError):
            await scene.start()
        assert scene.ingest.stats() == []
        assert scene.link.subjects == {}
        scene.link.error = UnavailableError("away")
        with pytest.raises(UnavailableError):
            await scene.start()
        assert [one.stream for one in scene.ingest.stats()] == ["a"]

    play(story())


def test_draining_waits_for_the_last_answer() -> None:
    """stop(drain) returns after everything taken is answered, then closes."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        scene.ingest.received([scene.batch("a", "1")])
        stop = asyncio.create_task(scene.ingest.stop(drain=True))
        await asyncio.sleep(0.05)
        assert not stop.done()
        assert scene.link.subjects == {}
        scene.logs["a"].complete()
        await stop
        assert "in.1" in scene.link.answers()
        assert scene.link.closed

    play(story())


def test_stopping_without_drain_refuses_what_waits() -> None:
    """A batch that waits for room is answered with the reason, not left hanging."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        scene.logs["a"].full = True
        room = scene.ingest.received([scene.batch("a", "1")])
        assert room is not None
        await scene.ingest.stop(drain=False)
        await room
        assert scene.link.answers()["in.1"]["headwater"]["type"] == "ShuttingDownError"

    play(story())


def test_changed_settings_hold_for_the_next_message() -> None:
    """The subscription goes on: nothing is lost, and nothing comes twice."""

    async def story() -> None:
        scene = Scene()
        await scene.start()
        subscribed = dict(scene.link.subjects)
        stream = scene.stream("a")
        smaller = replace(stream, config=replace(stream.config, record_bytes_max=3))
        scene.ingest.received([scene.batch("a", "1234")])
        await scene.ingest.serve(smaller, {0: scene.logs["a"]})  # type: ignore[dict-item]
        assert scene.link.subjects == subscribed
        scene.ingest.received([scene.batch("a", "5678", "9")])
        assert scene.logs["a"].values == [b"1234", b"9"]
        (answer,) = scene.link.answers().values()
        assert "error" in answer
        silent = replace(stream, config=replace(stream.config, puback=False))
        await scene.ingest.serve(silent, {0: scene.logs["a"]})  # type: ignore[dict-item]
        scene.logs["a"].complete()
        await soon(lambda: scene.ingest.stats()[0].stored_messages_total == 1)
        assert len(scene.link.answers()) == 1, "who publishes to it is not answered any more"

    play(story())
