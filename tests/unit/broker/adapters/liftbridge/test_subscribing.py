"""What a subscription begins with, over a broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from broker.adapters.liftbridge.statuses import StatusError
from broker.adapters.liftbridge.subscribing import subscribe
from broker.codec.record_batch import prepare
from broker.errors import ExpiredError
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
    """Keeps the messages that it gets; calls ``at_first`` with the first."""

    def __init__(self, at_first: Callable[[], None] = lambda: None) -> None:
        self.messages: list[message_pb2.Message] = []
        self._at_first = at_first

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return False

    def send(self, messages: bytes) -> None:
        """See ``Subscriber.send``."""
        while messages:
            end = _PREFIX_BYTES + int.from_bytes(messages[1:_PREFIX_BYTES], "big")
            self.messages.append(message_pb2.Message.FromString(messages[_PREFIX_BYTES:end]))
            messages = messages[end:]
            if len(self.messages) == 1:
                self._at_first()


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker whose stream ``s`` has five records."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    committed = threading.Event()
    batch = prepare(numbered(0, 5), now_us=1)
    broker.partitions.handle("s", 0).submit([batch], lambda _: committed.set())
    assert committed.wait(10)
    yield broker
    broker.close()


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
    assert [one.offset for one in sink.messages[1:]] == [3, 4]


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
