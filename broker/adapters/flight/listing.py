"""Flight infos: the streams, their partitions and where each of them is led."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyarrow import flight

from broker.adapters.reading.starts import earliest
from broker.codec.flight.protocol import ReadRequest, StreamPath
from broker.codec.schema import ROW_SCHEMA
from broker.model.stream import Stream
from broker.ports.api import BrokerApi


class Listing:
    """Makes flight infos and positions of the streams that the broker knows. Any thread."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api

    def addresses(self) -> dict[str, str | None]:
        """Return the Flight address of each broker by its name."""
        return {str(one.broker): one.flight for one in self._api.partitions.brokers()}

    def info(self, stream: Stream, partition: int | None) -> Any:
        """Return the flight info of a stream, or of one partition of it."""
        numbers = range(stream.config.partitions) if partition is None else [partition]
        positions = self.positions(stream, numbers)
        path = StreamPath(stream=stream.name, partition=partition)
        endpoints = [
            flight.FlightEndpoint(_ticket_of(stream, position), [], app_metadata=to_json(position))
            for position in positions
        ]
        about = (
            positions[0]
            if partition is not None
            else {
                "stream_uuid": stream.uuid,
                "subject": stream.config.subject,
                "partitions": positions,
            }
        )
        return flight.FlightInfo(
            ROW_SCHEMA,
            flight.FlightDescriptor.for_path(*path.to_path()),
            endpoints,
            total_records=sum(
                position["high_watermark"] - position["start"]
                if position["records_left"] is None
                else position["records_left"]
                for position in positions
            ),
            app_metadata=to_json(about),
        )

    def positions(self, stream: Stream, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return the positions of these partitions, and the addresses of their leaders."""
        places = self._api.partitions.places(stream.name)
        addresses = self.addresses()
        found: list[dict[str, Any]] = []
        for number in numbers:
            standing = self._api.partitions.standing(stream.name, number)
            leader = places[number].leader
            found.append(
                {
                    "stream_uuid": stream.uuid,
                    "partition": number,
                    "subject": stream.config.partition_subject(number),
                    "start": earliest(self._api, stream, number, standing.log_start),
                    "log_start": standing.log_start,
                    "purged_end": places[number].purged_end,
                    "remote_start": places[number].remote_start,
                    "paused": places[number].paused,
                    "readonly": places[number].readonly,
                    "high_watermark": standing.high_watermark,
                    "records_left": standing.records_left,
                    "leader_epoch": standing.leader_epoch,
                    "leader": leader,
                    "flight": None if leader is None else addresses.get(leader),
                }
            )
        return found


def to_json(value: Any) -> bytes:
    """Return the bytes of a value in Flight's metadata and results."""
    return json.dumps(value, separators=(",", ":")).encode()


def _ticket_of(stream: Stream, position: dict[str, Any]) -> Any:
    request = ReadRequest(
        stream=stream.name,
        stream_uuid=stream.uuid,
        partition=position["partition"],
        start=position["start"],
        end=position["high_watermark"],
    )
    return flight.Ticket(request.to_ticket())
