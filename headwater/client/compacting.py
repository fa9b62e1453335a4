"""Compacting the logs of a stream now: each broker is asked for its replicas until all is over.

A request has a ticket. A broker begins one pass for a ticket, however often it hears of it, so a
question whose answer was lost is asked again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from broker.errors import HeadwaterError, UnavailableError, UnknownPartitionError
from broker.model.cluster_status import ClusterStatus, PartitionInfo, ReplicaCompaction
from headwater.client.client import Client

_ASK_TIMEOUT_MS: Final = 5_000
_LOOK_S: Final = 0.2
_MISSES_MAX: Final = 3  # then a broker is given up

Told = Callable[[list[ReplicaCompaction]], None]


@dataclass(slots=True)
class _Asked:
    """What one broker has told of the replicas that it should have."""

    broker: str
    address: str | None
    rows: dict[int, ReplicaCompaction]  # by partition
    misses: int = 0
    error: HeadwaterError | None = field(default=None)

    @property
    def is_over(self) -> bool:
        return all(one.is_final for one in self.rows.values())

    def take(self, rows: Sequence[ReplicaCompaction]) -> None:
        """Note an answer; a replica that is not in it was moved away."""
        self.misses, self.error = 0, None
        self.rows = {one.partition: one for one in rows}

    def miss(self, error: HeadwaterError) -> None:
        """Note that the broker gave no answer; give up after some tries."""
        self.misses += 1
        self.error = error
        if self.misses >= _MISSES_MAX or not isinstance(error, UnavailableError):
            self.rows = {
                number: one if one.is_final else _failed(one, error.message)
                for number, one in self.rows.items()
            }


def compact_logs(
    client: Client,
    status: ClusterStatus,
    name: str,
    partitions: Sequence[int],
    *,
    timeout_ms: int,
    told: Told,
) -> list[ReplicaCompaction]:
    """See ``Operations.compact``."""
    asked = _brokers_to_ask(status, client, name, partitions)
    body = {"name": name, "partitions": list(partitions), "ticket": uuid.uuid4().hex}
    deadline_s = time.monotonic() + timeout_ms / 1000
    with ThreadPoolExecutor(len(asked)) as pool:
        while True:
            waiting = [one for one in asked if not one.is_over]
            list(pool.map(lambda one: _ask(client, one, body), waiting))
            _raise_if_all_refuse(asked)
            rows = sorted(
                (row for one in asked for row in one.rows.values()),
                key=lambda row: (row.partition, row.broker),
            )
            told(rows)
            if all(one.is_over for one in asked) or time.monotonic() >= deadline_s:
                return rows
            time.sleep(_LOOK_S)


def _brokers_to_ask(
    status: ClusterStatus, client: Client, name: str, partitions: Sequence[int]
) -> list[_Asked]:
    places = [one for one in status.partitions if one.stream == name]
    if not places:
        client.stream(name)  # raises UnknownStreamError, or the status was older than the stream
        raise UnavailableError(f"stream {name!r} has just been created: try again")
    unknown = set(partitions) - {one.partition for one in places}
    if unknown:
        raise UnknownPartitionError.of(name, min(unknown), len(places))
    chosen = [one for one in places if one.partition in partitions or not partitions]
    brokers = dict.fromkeys(broker for one in chosen for broker in one.replicas)
    found = []
    for broker in brokers:
        rows = {one.partition: _waiting(one, broker) for one in chosen if broker in one.replicas}
        known = status.broker(broker)
        address = None if known is None or status.alone else known.addresses.get("flight")
        asked = _Asked(broker, address, rows)
        if known is not None and known.fenced and not status.alone:
            asked.rows = {
                number: _failed(row, f"broker {broker} is fenced: it does not answer")
                for number, row in rows.items()
            }
        found.append(asked)
    return found


def _ask(client: Client, one: _Asked, body: Mapping[str, object]) -> None:
    try:
        if one.address is None:
            answer = client.call("compact_replicas", body, timeout_ms=_ASK_TIMEOUT_MS)
        else:
            with Client(one.address) as other:
                answer = other.call("compact_replicas", body, timeout_ms=_ASK_TIMEOUT_MS)
        one.take([ReplicaCompaction.from_dict(row) for row in answer])
    except HeadwaterError as error:
        one.miss(error)


def _raise_if_all_refuse(asked: Sequence[_Asked]) -> None:
    """Raise the refusal of a request that no broker accepts."""
    errors = [one.error for one in asked]
    first = errors[0]
    if first is None or isinstance(first, UnavailableError):
        return
    if all(type(one) is type(first) for one in errors):
        raise first


def _waiting(place: PartitionInfo, broker: str) -> ReplicaCompaction:
    return ReplicaCompaction(
        broker=broker, stream=place.stream, partition=place.partition, state="waiting"
    )


def _failed(row: ReplicaCompaction, reason: str) -> ReplicaCompaction:
    return ReplicaCompaction(
        broker=row.broker,
        stream=row.stream,
        partition=row.partition,
        state="failed",
        reason=reason,
    )
