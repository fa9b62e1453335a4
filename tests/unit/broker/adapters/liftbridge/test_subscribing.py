"""What a subscription begins with, over a broker in memory."""

from __future__ import annotations

import threading
from typing import Any, cast

from broker.adapters.liftbridge.subscribing import subscribe
from broker.codec.record_batch import prepare
from broker.model.offsets import Offset
from broker.model.stream import StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2
from simkit.brokers.memory_broker import MemoryBroker, numbered

_PREFIX_BYTES = 5


class _Sink:
    """Keeps the messages that it gets."""

    def __init__(self) -> None:
        self.messages: list[message_pb2.Message] = []

    def stopped(self) -> bool:
        """See ``Subscriber.stopped``."""
        return False

    def send(self, messages: bytes) -> None:
        """See ``Subscriber.send``."""
        while messages:
            end = _PREFIX_BYTES + int.from_bytes(messages[1:_PREFIX_BYTES], "big")
            self.messages.append(message_pb2.Message.FromString(messages[_PREFIX_BYTES:end]))
            messages = messages[end:]


def test_earliest_is_the_first_record_that_has_not_expired() -> None:
    """An expired record may still be in the table: its removal follows the decision."""
    broker = MemoryBroker()
    broker.streams.create("s", StreamConfig(subject="s"))
    partition = broker.partitions.handle("s", 0)
    committed = threading.Event()
    partition.submit([prepare(numbered(0, 5), now_us=1)], lambda _: committed.set())
    assert committed.wait(10)
    partition.remote_start = Offset(3)
    sink = _Sink()
    request = api.SubscribeRequest(
        stream="s", startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
    )
    assert subscribe(broker, request, sink, cast("Any", None)) == "Stop offset reached"
    assert [one.offset for one in sink.messages[1:]] == [3, 4]
    broker.close()
