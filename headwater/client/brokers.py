"""The brokers of one cluster that a client knows: the order to ask them in, and the leaders.

The client starts with the configured addresses and adds the addresses that brokers report. A call
goes to the broker that answered last; if that broker does not answer, to the next. So an action may
run twice, and that is safe: creating a stream again returns the same stream, and a second lease
expires by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import (
    CommitTimeoutError,
    HeadwaterError,
    NoAnswerError,
    NotLeaderError,
    ShuttingDownError,
    StaleLeaderEpochError,
    StreamRecreatedError,
    UnavailableError,
    UnknownPartitionError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from headwater.client.address import Address, Addresses
from headwater.client.flight_connection import CALL_TIMEOUT_MS, Connection

_ONE_BROKER_MS: Final = 10_000  # timeout of one broker if there are others to ask
_LOCATE_MS: Final = 1_000
_PING_MS: Final = 2_000
_ASK_AGAIN_S: Final = 0.1
_KNOWN_MAX: Final = 64  # addresses; brokers that come and go must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPlace:
    """Leader and replicas of one partition, as one broker reports them."""

    stream_uuid: StreamUuid
    partition: int
    leader: str | None  # a broker's id
    leader_epoch: LeaderEpoch
    address: Address | None  # the leader's; None: the answer had none
    replicas: tuple[str, ...]
    isr: tuple[str, ...]


class Brokers:
    """Thread-safe. Connections are made when they are needed and live until :meth:`close`."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._lock = threading.RLock()  # a signal handler may close the client
        self._known = list(addresses.brokers)  # the one to ask first
        self._connections: dict[str, Connection] = {}
        self._ended = threading.Event()
        self._discovered = False
        self._by_id: dict[str, Address] = {}

    def close(self) -> None:
        """Close every connection when the calls that have begun have ended."""
        with self._lock:
            self._ended.set()
            connections = list(self._connections.values())
            self._connections.clear()
        for one in connections:
            one.close()

    # ------------------------------------------------------------------ known brokers

    @property
    def several(self) -> bool:
        """Whether more than one broker is known."""
        return len(self._known) > 1

    def known(self) -> list[Address]:
        """Return the addresses in the order to ask them."""
        with self._lock:
            return list(self._known)

    def learn(self, url: str | None) -> Address | None:
        """Return an address that a broker reported, and remember it; None: it cannot be used."""
        told = None if url is None else self.addresses.learn(url)
        if told is not None:
            with self._lock:
                if told not in self._known and len(self._known) < _KNOWN_MAX:
                    self._known.append(told)
        return told

    def address_of(self, broker: str) -> Address | None:
        """Return the address of a broker by its id, if it is known."""
        return self._by_id.get(broker)

    def avoid(self, address: Address) -> None:
        """Move an address to the end of the order."""
        with self._lock:
            if address in self._known:
                self._known.remove(address)
                self._known.append(address)

    def connection(self, address: Address) -> Connection:
        """Return the shared connection to a broker."""
        with self._lock:
            found = self._connections.get(address.url)
            if found is None:
                found = Connection(address, is_alone=lambda: not self.several)
                if not self._ended.is_set():
                    self._connections[address.url] = found
            return found

    # ------------------------------------------------------------------ calls

    def action(
        self, name: str, values: Mapping[str, Any], *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> list[dict[str, Any]]:
        """Run an action at the first broker that answers.

        Raises:
            HeadwaterError: the error that a broker answered.
            NoAnswerError: no broker answers.
        """
        patience_ms = timeout_ms
        if self.several and timeout_ms <= CALL_TIMEOUT_MS:
            patience_ms = min(timeout_ms, _ONE_BROKER_MS)
        failure: HeadwaterError | None = None
        asked = self.known()
        for address in asked:
            connection = self.connection(address)
            try:
                if self.several and patience_ms > _ONE_BROKER_MS:  # check whether the broker runs
                    connection.action("brokers", {}, timeout_ms=_PING_MS)
                return connection.action(name, values, timeout_ms=patience_ms)
            except (UnavailableError, NotLeaderError) as error:
                if not _is_about_the_broker(error):
                    raise
                failure = failure or error
                self.avoid(address)
        assert failure is not None, "there is at least one broker"
        if len(asked) > 1 and isinstance(failure, NoAnswerError):
            urls = ", ".join(one.url for one in asked)
            raise NoAnswerError(
                f"none of the brokers answers: {urls}. Of the first: {failure.message}",
                **failure.facts,
            ) from failure
        raise failure

    def at_leaders(
        self, name: str, stream: str, values: Mapping[str, Any], *, timeout_ms: int
    ) -> list[dict[str, Any]]:
        """Run an action at every leader of a stream; each leader answers for its partitions.

        Returns one result per partition, by number; asks again while leaders change.

        Raises:
            HeadwaterError: the last error that a broker answered, after the timeout.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            failure: HeadwaterError = NotLeaderError(
                f"not every partition of {stream} has a leader now"
            )
            places = self.locate(stream)
            leaders = {one.address or self.known()[0] for one in places}
            found: dict[int, dict[str, Any]] = {}
            with ThreadPoolExecutor(len(leaders)) as pool:
                asked = [
                    pool.submit(self.connection(one).action, name, values, timeout_ms=timeout_ms)
                    for one in leaders
                ]
            for one in asked:
                try:
                    found |= {row["partition"]: row for row in one.result()}
                except HeadwaterError as error:
                    failure = error
            if len(found) == len(places):
                return [found[number] for number in sorted(found)]
            if not failure.retriable or time.monotonic() > deadline_s:
                raise failure
            if self._ended.wait(_ASK_AGAIN_S):
                raise failure  # the client was closed

    def at_leader(
        self, name: str, stream: str, values: Mapping[str, Any], *, timeout_ms: int
    ) -> list[dict[str, Any]]:
        """Run an action at the leader of ``values["partition"]``; asks again while leaders change.

        Raises:
            HeadwaterError: the error that the leader answered.
            NotLeaderError: the partition had no leader until the timeout.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                place = self.place(stream, values["partition"], None)
                if place.leader is None:
                    raise NotLeaderError(f"{stream}/{values['partition']} has no leader now")
                at = place.address or self.known()[0]
                return self.connection(at).action(name, values, timeout_ms=timeout_ms)
            except (NotLeaderError, StaleLeaderEpochError, NoAnswerError):
                if time.monotonic() > deadline_s or self._ended.wait(_ASK_AGAIN_S):
                    raise

    def locate(self, stream: str) -> list[ToldPlace]:
        """Return leaders and replicas of a stream's partitions, by number.

        Raises:
            UnknownStreamError; NoAnswerError: no broker answers.
        """
        rows = self.action("locate", {"name": stream}, timeout_ms=_LOCATE_MS)
        if any(one not in self._by_id for row in rows for one in row["replicas"]):
            self.discover(again=True)  # a broker has joined the cluster
        return [
            ToldPlace(
                stream_uuid=StreamUuid(row["stream_uuid"]),
                partition=row["partition"],
                leader=row["leader"],
                leader_epoch=LeaderEpoch(row["leader_epoch"]),
                address=self.learn(row["flight"]),
                replicas=tuple(row["replicas"]),
                isr=tuple(row["isr"]),
            )
            for row in rows
        ]

    def place(self, stream: str, partition: int, stream_uuid: StreamUuid | None) -> ToldPlace:
        """Return leader and replicas of one partition.

        Raises:
            UnknownStreamError, UnknownPartitionError, StreamRecreatedError, NoAnswerError.
        """
        places = self.locate(stream)
        if not 0 <= partition < len(places):
            raise UnknownPartitionError.of(stream, partition, len(places))
        place = places[partition]
        if stream_uuid is not None and place.stream_uuid != stream_uuid:
            raise StreamRecreatedError(
                f"stream {stream!r} is now {place.stream_uuid}, not {stream_uuid}",
                stream=stream,
                expected=stream_uuid,
                found=place.stream_uuid,
            )
        return place

    def discover(self, *, again: bool = False) -> None:
        """Ask a broker for the addresses of the others, until it succeeded once; ignores errors.

        With ``again`` ask even then: a broker may have joined the cluster.
        """
        if self._discovered and not again:
            return
        with suppress(HeadwaterError):
            for one in self.action("brokers", {}, timeout_ms=_LOCATE_MS):
                address = self.learn(one["flight"])
                if address is not None:
                    self._by_id[one["broker"]] = address
            self._discovered = True


def _is_about_the_broker(error: HeadwaterError) -> bool:
    """Tell whether to ask another broker: this one is gone, or has lost contact to the others."""
    cut_off = type(error) is UnavailableError or isinstance(error, CommitTimeoutError)
    return cut_off or isinstance(error, NoAnswerError | ShuttingDownError | NotLeaderError)
