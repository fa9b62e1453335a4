"""Finds the leader of one partition for one producer, again after each change of the leader."""

from __future__ import annotations

from typing import Final, Protocol

from broker.codec.flight.protocol import StreamPath
from broker.errors import HeadwaterError, NoAnswerError, NotLeaderError
from broker.model.epochs import LeaderEpoch
from headwater.client.address import Address
from headwater.client.brokers import Brokers
from headwater.client.flight_connection import Connection
from headwater.client.stall_watch import sever

_HINTS_MAX: Final = 3  # in a row, because two brokers may name each other as the leader


class Route(Protocol):
    """Chooses the broker for a producer's next connection."""

    @property
    def several(self) -> bool:
        """Whether another broker could lead."""

    def connect(self) -> Connection:
        """Return a new connection to the leader; raises a HeadwaterError if there is none now."""

    def failed(self, error: HeadwaterError) -> None:
        """Note why the last connection failed."""

    def succeeded(self, leader_epoch: LeaderEpoch) -> None:
        """Note that the leader of this epoch has stored a batch."""

    def leave(self) -> None:
        """Break the connections to the last leader if another one has been elected. Blocks."""


class LeaderRoute:
    """Asks any broker for the leader, and follows the hints of brokers that do not lead.

    If only one broker is known, the route connects to that broker without asking, until the broker
    answers that it does not lead. One call at a time, except :meth:`leave`.
    """

    def __init__(self, brokers: Brokers, path: StreamPath) -> None:
        assert path.partition is not None, "a producer writes to one partition"
        self._brokers = brokers
        self._path = path
        self._partition = path.partition
        self._hint: Address | None = None
        self._hints_count = 0
        self._epoch = LeaderEpoch(0)  # the newest leader epoch in an answer
        self._at: Address | None = None

    @property
    def several(self) -> bool:
        """See ``Route.several``."""
        return self._brokers.several

    def connect(self) -> Connection:
        """See ``Route.connect``."""
        hint, self._hint = self._hint, None
        self._at = hint or self._find()
        return Connection(self._at, is_alone=lambda: not self._brokers.several)

    def _find(self) -> Address:
        brokers = self._brokers
        if not brokers.several:
            return brokers.known()[0]
        place = brokers.place(self._path.stream, self._partition, self._path.stream_uuid)
        if place.leader is None or place.leader_epoch < self._epoch:
            self._look_elsewhere()
            raise NotLeaderError(
                f"{self._path.stream}/{self._partition} has no leader now",
                partition=self._partition,
            )
        return place.address or brokers.known()[0]

    def _look_elsewhere(self) -> None:
        """Ask another broker next time: the metadata of this broker may be older."""
        self._brokers.avoid(self._brokers.known()[0])

    def failed(self, error: HeadwaterError) -> None:
        """See ``Route.failed``."""
        if isinstance(error, NotLeaderError):
            hint = self._brokers.learn(error.facts.get("address"))
            if hint is not None and hint != self._at and self._hints_count < _HINTS_MAX:
                self._hint = hint
                self._hints_count += 1
                return
        self._hints_count = 0
        if isinstance(error, NoAnswerError) and self._at is not None:
            self._brokers.avoid(self._at)

    def succeeded(self, leader_epoch: LeaderEpoch) -> None:
        """See ``Route.succeeded``."""
        self._epoch = max(self._epoch, leader_epoch)
        self._hints_count = 0

    def leave(self) -> None:
        """See ``Route.leave``."""
        at = self._at
        if not self._brokers.several or at is None:
            return
        try:
            place = self._brokers.place(self._path.stream, self._partition, self._path.stream_uuid)
        except HeadwaterError:
            return
        if place.address not in (None, at) and place.leader_epoch > self._epoch:
            sever(at.host, at.port)
