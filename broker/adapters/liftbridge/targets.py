"""Finds the partitions that messages are published to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from broker.errors import HeadwaterError, OverloadedError, UnknownPartitionError
from broker.model.stream import Stream
from broker.ports.api import BrokerApi
from broker.ports.partition import PartitionWriter

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """A partition to publish to."""

    stream: Stream
    partition: int
    writer: PartitionWriter

    @property
    def subject(self) -> str:
        """NATS subject of the partition."""
        return self.stream.config.partition_subject(self.partition)


class PublishTargets(Protocol):
    """The partitions that one caller may publish to. Any thread."""

    def known(self, stream: str, partition: int) -> PublishTarget | None:
        """Return a partition that this broker leads and that is awake, else None. Quick.

        Raises:
            AccessError: the caller may not publish to the stream.
        """

    def find(self, stream: str, partition: int) -> PublishTarget:
        """Return a partition, resumed if it was paused. Blocks; raises HeadwaterError."""

    def rests(self, stream: str, partition: int) -> bool:
        """Tell whether a partition has to be looked up again, so that it is resumed. Quick."""


class BrokerTargets:
    """Implements ``PublishTargets`` for a caller who may publish to every stream."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    def known(self, stream: str, partition: int) -> PublishTarget | None:
        """See ``PublishTargets.known``."""
        led = self._api.partitions.led_here(stream, partition)
        if led is None or self.rests(stream, partition):
            return None
        return PublishTarget(led[0], partition, led[1])

    def find(self, stream: str, partition: int) -> PublishTarget:
        """See ``PublishTargets.find``."""
        found = self._api.streams.get(stream)
        if not 0 <= partition < found.config.partitions:
            raise UnknownPartitionError.of(stream, partition, found.config.partitions)
        self._api.pauses.wake(stream, partition)
        return PublishTarget(found, partition, self._api.partitions.writer(stream, partition))

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PublishTargets.rests``."""
        return self._api.pauses.rests(stream, partition)


Found = Callable[[PublishTarget | HeadwaterError], None]
"""Gets the partition, or why a message cannot be published to it. Called on the event loop."""


class LookUps:
    """Finds partitions for one call: at once if this broker leads them, else on another thread."""

    def __init__(
        self,
        targets: PublishTargets,
        run: Callable[[Callable[[], object], Callable[[object], None]], bool],
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``run`` is ``Workers.run``, and ``call_soon`` is ``Workers.call_soon``."""
        self._targets = targets
        self._run = run
        self._call_soon = call_soon
        self.rests = targets.rests

    def look_up(self, stream: str, partition: int, found: Found) -> None:
        """Call ``found`` now or later."""
        try:
            known = self._targets.known(stream, partition)
        except HeadwaterError as refused:
            found(refused)
            return
        if known is not None:
            found(known)
            return

        def done(result: object) -> None:
            if not isinstance(result, PublishTarget | HeadwaterError):
                _log.error("liftbridge_call_crashed", exc_info=result)
                result = HeadwaterError("internal error: see the broker's log")
            found(result)

        if not self._run(lambda: self._targets.find(stream, partition), done):
            busy = OverloadedError("too many calls wait: try again later")
            self._call_soon(lambda: found(busy))

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Run on the event loop after a time."""
        asyncio.get_running_loop().call_later(delay_s, work)
