"""A flush that waits for a store that is away says so, once."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import NoAnswerError
from broker.model.offsets import Offset, OffsetRange
from broker.model.tiering import TierStatus
from headwater.cli.tier import _errors_told

HEALTHY = TierStatus(
    partition=0,
    cold=OffsetRange(Offset(0), Offset(0)),
    local_start=Offset(0),
    high_watermark=Offset(3),
    unshipped_bytes=10,
    last_shipped_us=None,
    last_error=None,
)


class Broker:
    """A broker whose answers are a list; the last one is repeated."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = list(answers)
        self.all_given = threading.Event()

    def tier_status(self, _stream: str) -> list[TierStatus]:
        """Return the next answer."""
        answer = self._answers[0]
        if len(self._answers) > 1:
            del self._answers[0]
        else:
            self.all_given.set()
        if isinstance(answer, Exception):
            raise answer
        return [replace(HEALTHY, last_error=answer)]


def test_each_error_is_told_once_while_the_flush_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that does not answer in between changes nothing."""
    broker: Any = Broker(None, "the bucket is gone", NoAnswerError("away"), "the bucket is gone")
    with _errors_told(broker, ["orders"], every_s=0.001):
        assert broker.all_given.wait(60)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("orders/0: the bucket is gone. The broker tries again.") == 1
