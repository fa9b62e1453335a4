"""The pump that starts a broker: register, open the logs, give up what is damaged, leftovers, lead.

A process whose logs were found damaged registers twice: what it told leaders under its first broker
epoch is of the logs that were. Each step waits for the answer of the one before; none blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from broker.errors import HeadwaterError, LogFailedError, UnavailableError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import PartitionId
from broker.ports.pumps import NEVER_MS, PumpTurn
from broker.runtime.cluster.membership import Membership
from broker.runtime.hosted_partitions import CLOSE_S, Closing, HostedPartitions

_log = structlog.get_logger(__name__)


class StartedBroker(Protocol):
    """What the steps do to the broker."""

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Open logs as the process of this broker epoch from now on."""

    def reconcile(self, *, patience_s: float) -> None:
        """Open what the metadata says; wait so long for replicas to be what it says."""

    def remove_leftovers(self) -> None:
        """Give back the disk of what is not here any more; the metadata is confirmed."""

    def begin_leading(self) -> None:
        """Give what it leads already a lineage id."""


class BrokerStart:
    """One start of one process. The answer: the broker epoch that it ended with."""

    def __init__(
        self,
        broker: StartedBroker,
        *,
        membership: Membership,
        hosted: HostedPartitions,
        patience_s: float,
        wake: Callable[[], None],
        answered: Callable[[BrokerEpoch], None],
    ) -> None:
        """Nothing is done before the first turn; ``wake`` asks for one."""
        self._broker = broker
        self._membership = membership
        self._hosted = hosted
        self._patience_s = patience_s
        self._wake = wake
        self._answered = answered
        self._broker_epoch: BrokerEpoch | None = None  # of the present registration
        self._given_up: list[PartitionId] | None = None
        self._closing: Closing | None = None
        self._deadline_ms = 0  # of closing
        self._confirmed: list[HeadwaterError | None] = []  # at most one: the answer
        self._step: PumpTurn = self._begin

    def turn(self, now_ms: int) -> int:
        """Take the step that is due, and those that it lets be taken.

        Raises:
            HeadwaterError: this process may not start, or was asked to stop.
        """
        while True:
            step = self._step
            next_ms = step(now_ms)
            if self._step is step:
                return next_ms

    # ------------------------------------------------------------------ registering

    def _begin(self, _: int) -> int:
        self._broker_epoch = None
        self._step = self._membership.registering(self._wake, self._take_epoch).turn
        return NEVER_MS

    def _take_epoch(self, broker_epoch: BrokerEpoch) -> None:
        self._broker_epoch = broker_epoch
        self._step = self._open

    def _open(self, _: int) -> int:
        assert self._broker_epoch is not None, "it is registered"
        self._broker.registered(self._broker_epoch)
        self._open_logs()
        if self._given_up is None:
            damaged = self._hosted.damaged()
            self._step = self._membership.giving_up(damaged, self._wake, self._take_given_up).turn
        else:
            self._step = self._ask
        return NEVER_MS

    def _open_logs(self) -> None:
        """Open what can be opened.

        A full disk must not keep tiering from making room; what waits for room, or for a majority
        that takes the mark of an opened log, is opened by whoever follows the metadata.
        """
        try:
            self._broker.reconcile(patience_s=self._patience_s)
        except LogFailedError:
            raise
        except UnavailableError as error:
            _log.warning("not_all_opened", reason=error.message)

    # ------------------------------------------------------------------ what is damaged

    def _take_given_up(self, given_up: list[PartitionId]) -> None:
        self._given_up = given_up
        self._step = self._close if given_up else self._ask

    def _close(self, now_ms: int) -> int:
        """Close every log; those that were given up are opened again empty."""
        if self._closing is None:
            self._closing = self._hosted.begin_close(self._wake)
            self._deadline_ms = now_ms + int(CLOSE_S * 1000)
        if not self._closing.is_over and now_ms < self._deadline_ms:
            return self._deadline_ms
        assert self._given_up is not None, "it was decided what is to be set aside"
        if self._hosted.set_aside(self._given_up, self._closing):
            self._membership.logs_closed()
        self._step = self._begin
        return NEVER_MS

    # ------------------------------------------------------------------ what is not here any more

    def _ask(self, _: int) -> int:
        """Have everything applied that was committed before: what was made since may be new."""
        self._step = self._clean
        self._membership.confirm_metadata(self._hear)
        return NEVER_MS

    def _hear(self, error: HeadwaterError | None) -> None:
        self._confirmed.append(error)
        self._wake()

    def _clean(self, _: int) -> int:
        if not self._confirmed:
            return NEVER_MS
        error = self._confirmed.pop()
        if error is None:
            self._broker.remove_leftovers()
        else:
            _log.warning("leftovers_kept", reason=error.message)
        self._broker.begin_leading()
        self._open_logs()
        self._step = self._end
        return NEVER_MS

    def _end(self, _: int) -> int:
        if self._broker_epoch is not None:
            broker_epoch, self._broker_epoch = self._broker_epoch, None
            self._answered(broker_epoch)
        return NEVER_MS
