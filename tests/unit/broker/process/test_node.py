"""News of leaderships reach NATS late, in order, and only the newest of each stream."""

from __future__ import annotations

import threading

from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.process.node import LateListener
from broker.runtime.led import LedPartitions

FIRST, SECOND = (StreamUuid(f"6f1d1c7e-93a4-4c62-8a52-0c2f4a1b7d1{one}") for one in range(2))


class _Slow:
    """A listener that returns from each call only when the test allows it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.busy, self.go = threading.Event(), threading.Event()

    def led_changed(self, led: LedPartitions) -> None:
        self.busy.set()
        assert self.go.wait(30)
        self.heard.append((led.stream.uuid, led.stream.table_name))


def _led(uuid: StreamUuid, news: str) -> LedPartitions:
    config = StreamConfig(subject="s")
    stream = Stream(name="s", uuid=uuid, config=config, created_us=1, table_name=news)
    return LedPartitions(stream, frozenset())


def test_what_waits_is_one_news_of_each_stream() -> None:
    """However often leaders change while NATS hangs, the queue has one entry a stream."""
    crashes: list[BaseException] = []
    slow = _Slow()
    late = LateListener(slow, crashes.append)
    late.led_changed(_led(FIRST, "at first"))
    assert slow.busy.wait(30)
    for number in range(100):
        late.led_changed(_led(FIRST, f"{number}"))
        late.led_changed(_led(SECOND, f"{number}"))
    slow.go.set()
    late.stop()
    assert slow.heard == [(FIRST, "at first"), (FIRST, "99"), (SECOND, "99")]
    assert not crashes
