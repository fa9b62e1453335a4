"""What a subscription begins with, over a broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from broker.adapters.liftbridge.group_readers import GroupReaders
from broker.adapters.liftbridge.http2 import Messages
from broker.adapters.liftbridge.statuses import Code, StatusError, status_of
from broker.adapters.liftbridge.subscribing import subscribe
from broker.codec.record_batch import PreparedBatch, prepare
from broker.errors import ExpiredError, NotLeaderError, ShuttingDownError
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2
from simkit.brokers.memory_broker import MemoryBroker, numbered

_PREFIX_BYTES = 5
_EARLIEST = api.SubscribeRequest(
    stream="s", startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
)


class _Sink:
    """Keeps the messages that it gets; acts when it has got as many as ``at`` says."""

    def __init__(self, act: Callable[[], None] = lambda: None, *, at: int = 1) -> None:
        self.messages: list[message_pb2.Message] = []
        self._act, self._at = act, at

    @property
    def offsets(self) -> list[int]:
        """Of the messages behind the first one, which says that the request is accepted."""
        return [one.offset for one in self.messages[1:]]

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return False

    def send(self, messages: Messages) -> None:
        """See ``Subscriber.send``."""
        while messages:
            end = _PREFIX_BYTES + int.from_bytes(messages[1:_PREFIX_BYTES], "big")
            self.messages.append(message_pb2.Message.FromString(bytes(messages[_PREFIX_BYTES:end])))
            messages = messages[end:]
            if len(self.messages) == self._at:
                self._act()


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker whose stream ``s`` has five records."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    for number in range(5):
        _put(broker, number)
    yield broker
    broker.close()


def _put(broker: MemoryBroker, number: int) -> None:
    """Store one record, at a time of its own."""
    _store(broker, prepare(numbered(number, 1), now_us=1_000 + number))


def _store(broker: MemoryBroker, batch: PreparedBatch) -> None:
    stored = threading.Event()
    broker.partitions.handle("s", 0).submit([batch], lambda _: stored.set())
    assert stored.wait(60)


def test_a_batch_of_very_many_small_records_is_sent_in_pieces(broker: MemoryBroker) -> None:
    """Four million empty records fit into a batch; as messages they are gigabytes."""
    count = 40_000
    rows = pa.RecordBatch.from_pydict({"value": pa.nulls(count, pa.binary())})
    _store(broker, prepare(rows, now_us=2_000))
    sizes: list[int] = []

    class Counting(_Sink):
        def send(self, messages: Messages) -> None:
            """Count its bytes, too."""
            sizes.append(len(messages))
            super().send(messages)

    sink = Counting()
    assert subscribe(broker, _EARLIEST, sink, cast("Any", None)) == "Stop offset reached"
    assert sink.offsets == [*range(5 + count)]
    assert max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("is_late", [False, True])
def test_earliest_is_the_first_record_that_has_not_expired(
    broker: MemoryBroker, is_late: bool
) -> None:
    """An expired record may still be in the table; one may expire before anything is read."""
    partition = broker.partitions.handle("s", 0)

    def expire() -> None:
        partition.remote_start = Offset(3)

    if not is_late:
        expire()
    sink = _Sink(expire)  # the first message says that the request is accepted
    assert subscribe(broker, _EARLIEST, sink, cast("Any", None)) == "Stop offset reached"
    assert sink.offsets == [3, 4]


def test_a_subscriber_that_named_an_offset_is_told_that_it_has_expired(
    broker: MemoryBroker,
) -> None:
    """Only who asked for what there is gets what there is."""

    def expire() -> None:
        broker.partitions.handle("s", 0).remote_start = Offset(3)

    request = api.SubscribeRequest(stream="s", startPosition=api.OFFSET, startOffset=1)
    with pytest.raises(ExpiredError):
        subscribe(broker, request, _Sink(expire), cast("Any", None))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_replica_that_knows_only_of_records_that_are_gone_has_none_to_show(
    broker: MemoryBroker, reverse: bool
) -> None:
    """No leader has told it what is committed above them; it does not say that it sent all."""
    broker.partitions.handle("s", 0).remote_start = Offset(9)
    start = api.LATEST if reverse else api.EARLIEST
    request = api.SubscribeRequest(
        stream="s", startPosition=start, stopPosition=api.STOP_LATEST, reverse=reverse
    )
    with pytest.raises(StatusError, match="Stream is empty"):
        subscribe(broker, request, _Sink(), cast("Any", None))


def _subscribe(broker: MemoryBroker, sink: _Sink, **request: Any) -> str | None:
    asked = api.SubscribeRequest(stream="s", **request)
    return subscribe(broker, asked, sink, cast("Any", None))


@pytest.mark.parametrize(
    ("request_", "got"),
    [
        ({"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST}, [0, 1, 2, 3, 4]),
        ({"startPosition": api.LATEST, "stopPosition": api.STOP_LATEST}, [4]),
        ({"startPosition": api.OFFSET, "startOffset": 4, "stopPosition": api.STOP_LATEST}, [4]),
        (
            {
                "startPosition": api.TIMESTAMP,
                "startTimestamp": 1_004_000,
                "stopPosition": api.STOP_LATEST,
            },
            [4],
        ),
        (
            {
                "startPosition": api.EARLIEST,
                "stopPosition": api.STOP_TIMESTAMP,
                "stopTimestamp": 1_003_000,
            },
            [0, 1, 2, 3],
        ),
    ],
)
@pytest.mark.parametrize("committed", [0, 3])
def test_bounds_are_those_of_the_leaders_log_and_delivery_waits_for_the_commit(
    broker: MemoryBroker, committed: int, request_: dict[str, Any], got: list[int]
) -> None:
    """A record that the leader has acknowledged counts, also while a follower is behind."""
    partition = broker.partitions.handle("s", 0)
    partition.know(Offset(committed))
    committed_ones = max(0, committed - got[0])
    sink = _Sink(lambda: partition.know(None), at=1 + committed_ones)
    assert _subscribe(broker, sink, **request_) == "Stop offset reached"
    assert sink.offsets == got


def test_who_wants_new_messages_gets_none_that_was_written_before(broker: MemoryBroker) -> None:
    """The leader has records that are not committed yet: they are not new."""
    partition = broker.partitions.handle("s", 0)
    partition.know(Offset(3))

    def go_on() -> None:
        partition.know(None)
        _put(broker, 5)

    sink = _Sink(go_on)
    wanted = {"startPosition": api.NEW_ONLY, "stopPosition": api.STOP_OFFSET, "stopOffset": 5}
    assert _subscribe(broker, sink, **wanted) == "Stop offset reached"
    assert sink.offsets == [5]


def test_a_subscriber_that_goes_on_at_a_new_leader_gets_nothing_twice(
    broker: MemoryBroker,
) -> None:
    """A new leader does not know what is committed; its log has all that was."""
    partition = broker.partitions.handle("s", 0)
    partition.know(Offset(0))
    partition.told_end = NotLeaderError("not known yet")

    def go_on() -> None:
        partition.know(None)
        _put(broker, 5)

    sink = _Sink(go_on)
    wanted = {"startPosition": api.OFFSET, "startOffset": 5}
    assert (
        _subscribe(broker, sink, **wanted, stopPosition=api.STOP_OFFSET, stopOffset=5)
        == "Stop offset reached"
    )
    assert sink.offsets == [5]


@pytest.mark.parametrize(
    ("request_", "got"),
    [
        ({"startPosition": api.NEW_ONLY, "stopPosition": api.STOP_OFFSET, "stopOffset": 5}, [5]),
        ({"startPosition": api.LATEST, "stopPosition": api.STOP_OFFSET, "stopOffset": 5}, [4, 5]),
        ({"startPosition": api.OFFSET, "startOffset": 3, "stopPosition": api.STOP_LATEST}, [3, 4]),
    ],
)
def test_the_end_of_a_leaders_log_is_known_before_it_knows_what_is_committed(
    broker: MemoryBroker, request_: dict[str, Any], got: list[int]
) -> None:
    """It has every committed record. The others of the ISR may be away for long.

    A subscriber who was refused would begin behind what is acknowledged meanwhile.
    """
    partition = broker.partitions.handle("s", 0)
    partition.know(Offset(0))
    partition.told_end = NotLeaderError("not known yet")

    def go_on() -> None:
        partition.know(None)
        _put(broker, 5)

    sink = _Sink(go_on)
    assert _subscribe(broker, sink, **request_) == "Stop offset reached"
    assert sink.offsets == got


@pytest.mark.parametrize(
    "request_",
    [
        {"startPosition": api.OFFSET, "startOffset": 6},
        {"startPosition": api.LATEST, "reverse": True},
    ],
)
def test_what_was_committed_is_not_guessed(broker: MemoryBroker, request_: dict[str, Any]) -> None:
    """Beyond the end the next committed record is looked for, and backwards only such are sent."""
    partition = broker.partitions.handle("s", 0)
    partition.know(Offset(0))
    partition.told_end = NotLeaderError("not known yet")
    with pytest.raises(StatusError) as refused:
        _subscribe(broker, _Sink(), **request_)
    assert refused.value.status.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "request_",
    [
        {"startPosition": api.NEW_ONLY},
        {"startPosition": api.LATEST},
        {"startPosition": api.LATEST, "reverse": True},
        {"startPosition": api.OFFSET, "startOffset": 6},
        {"startPosition": api.TIMESTAMP, "startTimestamp": 1_004_000},
        {"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST},
        {
            "startPosition": api.EARLIEST,
            "stopPosition": api.STOP_TIMESTAMP,
            "stopTimestamp": 1_003_000,
        },
        {"startPosition": api.OFFSET, "startOffset": 5, "readISRReplica": True},
        {"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST, "readISRReplica": True},
    ],
)
def test_no_bound_is_computed_on_what_an_earlier_leader_may_have_exceeded(
    broker: MemoryBroker, request_: dict[str, Any]
) -> None:
    """The subscriber is told to try again before it is told that it may begin."""
    partition = broker.partitions.handle("s", 0)
    partition.is_fenced = True
    partition.know(Offset(0))
    partition.told_end = NotLeaderError("not known yet")
    sink = _Sink()
    with pytest.raises(StatusError) as refused:
        _subscribe(broker, sink, **request_)
    assert refused.value.status.code is Code.UNAVAILABLE
    assert not sink.messages


@pytest.mark.parametrize(
    ("request_", "got"),
    [
        ({"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST}, [0, 1, 2, 3]),
        ({"startPosition": api.LATEST, "stopPosition": api.STOP_LATEST}, [3]),
        ({"startPosition": api.OFFSET, "startOffset": 3, "stopPosition": api.STOP_LATEST}, [3]),
        (
            {"startPosition": api.NEW_ONLY, "stopPosition": api.STOP_OFFSET, "stopOffset": 4},
            [4],
        ),
    ],
)
def test_bounds_at_a_replica_are_what_its_leader_has_committed(
    broker: MemoryBroker, request_: dict[str, Any], got: list[int]
) -> None:
    """A replica learns late what is committed, and what is not may leave its log again."""
    partition = broker.partitions.handle("s", 0)
    partition.leads = False
    partition.know(Offset(0))
    partition.told_end = Offset(4)
    sink = _Sink(lambda: partition.know(None))
    assert _subscribe(broker, sink, **request_, readISRReplica=True) == "Stop offset reached"
    assert sink.offsets == got


def test_a_subscriber_at_a_replica_that_goes_is_told_to_ask_another_broker(
    broker: MemoryBroker,
) -> None:
    """The partition was moved: nothing comes at this broker any more."""
    partition = broker.partitions.handle("s", 0)
    partition.leads = False
    turns = iter(range(50))

    class Sink(_Sink):
        def stopped(self) -> bool:
            return next(turns, None) is None  # so that the test ends without the error, too

    with pytest.raises(ShuttingDownError) as ended:
        _subscribe(broker, Sink(partition.close), startPosition=api.NEW_ONLY, readISRReplica=True)
    assert status_of(ended.value).code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "bad",
    [
        {"startPosition": api.OFFSET, "startOffset": 3, "stopPosition": api.STOP_OFFSET},
        {"startPosition": 9},
        {"stopPosition": 9},
    ],
)
def test_a_refused_subscription_replaces_no_member_of_its_group(
    broker: MemoryBroker, bad: dict[str, Any]
) -> None:
    """The member that reads goes on; a request that can be served takes its place."""
    readers = GroupReaders(broker.groups)
    present = readers.enter("g", broker.streams.get("s").uuid, 0, 1)
    consumer = api.Consumer(groupId="g", groupEpoch=1, consumerId="c")
    with pytest.raises(StatusError) as refused:
        subscribe(
            broker, api.SubscribeRequest(stream="s", consumer=consumer, **bad), _Sink(), readers
        )
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert not present.replaced
    good = api.SubscribeRequest(
        stream="s",
        consumer=consumer,
        startPosition=api.EARLIEST,
        stopPosition=api.STOP_LATEST,
    )
    assert subscribe(broker, good, _Sink(), readers) == "Stop offset reached"
    assert present.replaced


def test_a_member_of_an_earlier_epoch_is_refused_before_its_request_is_looked_at(
    broker: MemoryBroker,
) -> None:
    """It must learn that it reads no more, whatever it asks for."""
    readers = GroupReaders(broker.groups)
    readers.enter("g", broker.streams.get("s").uuid, 0, 2)
    consumer = api.Consumer(groupId="g", groupEpoch=1, consumerId="c")
    bad: dict[str, Any] = {"stopPosition": 9}
    request = api.SubscribeRequest(stream="s", consumer=consumer, **bad)
    with pytest.raises(StatusError) as refused:
        subscribe(broker, request, _Sink(), readers)
    assert refused.value.status.code is Code.FAILED_PRECONDITION


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("field", ["startPosition", "stopPosition"])
def test_a_position_that_nobody_knows_is_refused(
    broker: MemoryBroker, field: str, reverse: bool
) -> None:
    """A later client's new one must not be taken for one of ours, whatever the direction."""
    request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST, reverse=reverse)
    setattr(request, field, 99)
    sink = _Sink()
    with pytest.raises(StatusError) as refused:
        subscribe(broker, request, sink, cast("Any", None))
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert sink.messages == [], "no sign that the request is accepted"
