"""Finding the leader of one partition, and following it, for one producer."""

from __future__ import annotations

from typing import Final, Protocol

from broker.codec.flight.protocol import StreamPath
from broker.errors import HeadwaterError, NoAnswerError, NotLeaderError
from broker.model.epochs import LeaderEpoch
from headwater.client.address import Address
from headwater.client.brokers import Brokers
from headwater.client.flight_connection import Connection
from headwater.client.stall_watch import sever

_HINTS_MAX: Final = 3  # in a row: two brokers that name each other must not keep us busy


class Route(Protocol):
    """Where a producer's next connection goes."""

    @property
    def several(self) -> bool:
        """Whether another broker could lead."""

    def connect(self) -> Connection:
        """Return a new connection to the leader; raises a HeadwaterError if there is none now."""

    def failed(self, error: HeadwaterError) -> None:
        """Hear why the last connection came to nothing."""

    def succeeded(self, leader_epoch: LeaderEpoch) -> None:
        """Hear that the leader of this epoch has stored a batch."""

    def leave(self) -> None:
        """Break the connections to the last leader if another one has been elected. Blocks."""


class LeaderRoute:
    """Asks any broker who leads; follows the hints of those who do not.

    With one known broker nothing is asked before that broker says that it does not lead. One call
    at a time, except :meth:`leave`.
    """

    def __init__(self, brokers: Brokers, path: StreamPath) -> None:
        assert path.partition is not None, "a producer writes to one partition"
        self._brokers = brokers
        self._path = path
        self._partition = path.partition
        self._hint: Address | None = None
        self._hints_count = 0
        self._epoch = LeaderEpoch(0)  # newest that a leader has answered with
        self._at: Address | None = None

    @property
    def several(self) -> bool:
        """See ``Route.several``."""
        return self._brokers.several

    def connect(self) -> Connection:
        """See ``Route.connect``."""
        hint, self._hint = self._hint, None
        self._at = hint or self._find()
        return Connection(self._at)

    def _find(self) -> Address:
        brokers = self._brokers
        if not brokers.several:
            return brokers.known()[0]
        place = brokers.place(self._path.stream, self._partition, self._path.stream_uuid)
        if place.leader is None or place.leader_epoch < self._epoch:
            self._look_elsewhere()
            raise NotLeaderError(
                f"nobody leads {self._path.stream}/{self._partition} now",
                partition=self._partition,
            )
        return place.address or brokers.known()[0]

    def _look_elsewhere(self) -> None:
        """Ask another broker next time: this one may know less than others."""
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
