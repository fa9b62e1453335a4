"""The publisher through NATS sends nothing again that the broker would not know any more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import CommitTimeoutError
from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from headwater import nats_publisher
from headwater.nats_publisher import NatsMessage, NatsPublisher, _Unanswered

NOW_S = 1_000.0


class Sent:
    """Stands in for a connection to NATS."""

    def __init__(self) -> None:
        self.count = 0

    async def publish(self, subject: str, value: bytes, **given: Any) -> None:
        """Count."""
        self.count += 1


@pytest.mark.parametrize(
    ("window_ms", "age_s", "no_listener", "is_sent"),
    [
        (1_000, 5.1, False, False),
        (20_000, 9.9, False, True),
        (20_000, 10.1, False, False),
        (120_000, 59.0, False, True),
        (120_000, 61.0, False, False),
        (0, 59.0, False, True),
        (1_000, 5.1, True, True),
    ],
)
def test_nothing_is_sent_again_near_the_end_of_the_dedup_window(
    window_ms: int,
    age_s: float,
    *,
    no_listener: bool,
    is_sent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could be stored twice. What nobody has heard is not stored; with 0 ids are off."""
    monkeypatch.setattr(nats_publisher, "time", SimpleNamespace(monotonic=lambda: NOW_S))
    config = StreamConfig(subject="s", puback=True, dedup_window_ms=window_ms)
    uuid = StreamUuid("00000000-0000-4000-8000-000000000001")
    stream = Stream(name="s", uuid=uuid, config=config, created_us=1, table_name="s")
    publisher = NatsPublisher("nats://127.0.0.1:1", stream=stream)
    connection: Any = Sent()
    publisher._connection = connection
    sent_s = NOW_S - age_s
    waiting = _Unanswered(NatsMessage("s", b"v"), 0, {}, sent_s, sent_s, sent_s)
    publisher._unanswered["0"] = waiting
    if no_listener:
        publisher._acked = 1
        publisher._on_no_listener("0", waiting)
    try:
        if is_sent:
            asyncio.run(publisher._resend_overdue())
        else:
            with pytest.raises(CommitTimeoutError, match="whether it is stored is not known"):
                asyncio.run(publisher._resend_overdue())
    finally:
        publisher._loop.close()
    assert connection.count == is_sent
