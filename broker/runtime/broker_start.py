"""The pump that starts a broker: register, open logs, give up damaged ones, clean up, lead.

A process that finds damaged logs registers twice, because leaders may have answers about the
damaged logs under its first broker epoch. Each step waits for the answer of the step before it; no
step blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog

from broker.errors import HeadwaterError, LogFailedError, UnavailableError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import PartitionId
from broker.ports.pumps import NEVER_MS, PumpTurn
from broker.runtime.cluster.membership import Membership
from broker.runtime.hosted_partitions import CLOSE_S, Closing, HostedPartitions
from broker.storage.no_room import lacks_room

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 1_000  # until a retry, after a full disk


class StartedBroker(Protocol):
    """The broker, as the steps of its start see it."""

    def registered(self, broker_epoch: BrokerEpoch) -> None:
        """Set the broker epoch under which this process opens logs from now on."""

    def reconcile(self, *, patience_s: float) -> None:
        """Open the replicas that the metadata places here; wait ``patience_s`` for slow ones."""

    def remove_leftovers(self) -> None:
        """Delete logs that the confirmed metadata no longer places here."""

    def begin_leading(self) -> None:
        """Give each leadership that has already begun a lineage id."""


class BrokerStart:
    """One start of one process. The answer: the broker epoch of its last registration."""

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
        self._deadline_ms = 0  # for closing the damaged logs
        self._confirmed: list[HeadwaterError | None] = []  # at most one: the answer
        self._step: PumpTurn = self._begin

    def turn(self, now_ms: int) -> int:
        """Take the step that is due, and the steps that it makes due.

        Raises:
            HeadwaterError: this process must not start, or was asked to stop.
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
        """Open the logs that can be opened now.

        Tiering must start even on a full disk, because it frees space. The metadata follower later
        opens logs that wait for space, or for a majority that commits their opened marks.
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
        """Close every log; a replica that was given up is opened again with an empty log."""
        if self._closing is None:
            self._closing = self._hosted.begin_close(self._wake)
            self._deadline_ms = now_ms + int(CLOSE_S * 1000)
        if not self._closing.is_over and now_ms < self._deadline_ms:
            return self._deadline_ms
        assert self._given_up is not None, "it was decided what is to be set aside"
        try:
            closed_whole = self._hosted.set_aside(self._given_up, self._closing)
        except OSError as cause:
            if not lacks_room(cause):
                raise
            _log.warning("not_all_opened", reason=f"a damaged log cannot be set aside: {cause}")
            return now_ms + _AGAIN_MS
        if closed_whole:
            self._membership.logs_closed()
        self._step = self._begin
        return NEVER_MS

    # ------------------------------------------------------------------ what is not here any more

    def _ask(self, _: int) -> int:
        """Wait for all committed metadata, so that a stream made since is not taken for unknown."""
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
