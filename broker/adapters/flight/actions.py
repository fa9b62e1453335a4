"""The actions on streams, leases, cuts and the cold tier: a method for each, with its name.

``broker/codec/flight/actions.py`` has their table and checks the fields, which are the parameters
here. The actions for operators are in ``operations.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.adapters.flight.listing import Listing
from broker.adapters.reading.rows import check_incarnation
from broker.errors import OverloadedError
from broker.model.cut_positions import CutPosition
from broker.model.ids import LeaseId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.model.tiering import TierStatus
from broker.ports.api import BrokerApi
from broker.ports.system import Clock

_READINGS_MAX: Final = 10_000  # a reading takes microseconds; a commit as long as a disk write
_READING_MS_MAX: Final = 10_000
_POSITIONS_READ_MAX: Final = 100_000  # by all readings of a call: about a second of CPU time


class StreamActions:
    """Performs an action and returns its results, as JSON has them. Any thread."""

    def __init__(
        self, api: BrokerApi, clock: Clock, listing: Listing, *, nats_url: str | None
    ) -> None:
        self._api = api
        self._clock = clock
        self._listing = listing
        self._nats_url = nats_url

    def create_stream(self, name: str, config: dict[str, Any]) -> list[dict[str, Any]]:
        """Create a stream; the same settings again give the same stream."""
        return [_stream_dict(self._api.streams.create(name, StreamConfig.from_dict(config)))]

    def describe_stream(self, name: str, positions: bool) -> list[dict[str, Any]]:
        """Return a stream, with the positions of its partitions if they are wanted."""
        # Without positions the tier is not asked, so writers can start while it is unavailable.
        stream = self._api.streams.get(name)
        numbers = range(stream.config.partitions if positions else 0)
        return [
            {
                "cluster": self._api.cluster,
                "stream": _stream_dict(stream),
                "partitions": self._listing.positions(stream, numbers),
                "nats": self._nats_url,
                "placed_by": True,  # a do_put may say by how many partitions keys were placed
            }
        ]

    def brokers(self) -> list[dict[str, Any]]:
        """Return the brokers and their addresses."""
        return [dataclasses.asdict(one) for one in self._api.partitions.brokers()]

    def locate(self, name: str) -> list[dict[str, Any]]:
        """Return who leads each partition of a stream."""
        stream = self._api.streams.get(name)
        addresses = self._listing.addresses()
        return [
            {
                "stream_uuid": stream.uuid,
                "flight": None if place.leader is None else addresses.get(place.leader),
                **dataclasses.asdict(place),
            }
            for place in self._api.partitions.places(name)
        ]

    def list_streams(self) -> list[dict[str, Any]]:
        """Return all streams."""
        return [_stream_dict(stream) for stream in self._api.streams.all()]

    def alter_stream(
        self, name: str, stream_uuid: Any, changes: dict[str, Any], dry_run: bool
    ) -> list[dict[str, Any]]:
        """Change settings of a stream, if it is the one with this uuid."""
        check_incarnation(self._api.streams.get(name), stream_uuid)
        altered = self._api.streams.alter(name, changes, dry_run=dry_run)
        return [{"before": _stream_dict(altered.before), "after": _stream_dict(altered.after)}]

    def rotate_key(self, name: str, version: int) -> list[dict[str, Any]]:
        """Give a stream a new data key, if its newest has this version."""
        return [_stream_dict(self._api.streams.rotate_key(name, version))]

    def purge_partition(  # noqa: PLR0917  # the fields of the action
        self,
        name: str,
        stream_uuid: Any,
        partition: int,
        before: Any,
        before_us: int | None,
        operator: str,
    ) -> list[dict[str, Any]]:
        """Delete a partition's records, if its stream is the one with this uuid."""
        streams = self._api.streams
        check_incarnation(streams.get(name), stream_uuid)
        purged = streams.purge(
            name, partition, before=before, before_us=before_us, operator=operator
        )
        return [dataclasses.asdict(purged)]

    def pause_stream(
        self, name: str, stream_uuid: Any, partitions: Sequence[int], resume_all: bool
    ) -> list[dict[str, Any]]:
        """Pause partitions of a stream, if it is the one with this uuid."""
        check_incarnation(self._api.streams.get(name), stream_uuid)
        self._api.pauses.pause(name, partitions, resume_all=resume_all)
        return [{}]

    def resume_stream(
        self, name: str, stream_uuid: Any, partitions: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Resume partitions of a stream, if it is the one with this uuid."""
        check_incarnation(self._api.streams.get(name), stream_uuid)
        self._api.pauses.resume(name, partitions)
        return [{}]

    def set_stream_readonly(
        self, name: str, stream_uuid: Any, partitions: Sequence[int], readonly: bool
    ) -> list[dict[str, Any]]:
        """Make partitions of a stream read-only or not, if it is the one with this uuid."""
        check_incarnation(self._api.streams.get(name), stream_uuid)
        self._api.pauses.set_readonly(name, partitions, readonly=readonly)
        return [{}]

    def delete_stream(self, name: str, stream_uuid: Any) -> list[dict[str, Any]]:
        """Delete a stream, if it is the one with this uuid."""
        check_incarnation(self._api.streams.get(name), stream_uuid)
        return [_stream_dict(self._api.streams.delete(name))]

    def stream_remains(self, name: str, stream_uuid: StreamUuid) -> list[dict[str, Any]]:
        """Return what this broker knows of a stream that may be deleted."""
        return [dataclasses.asdict(self._api.cold.remains(name, stream_uuid))]

    def take_lease(self, name: str, owner: str, ttl_ms: int) -> list[dict[str, Any]]:
        """Take a lease on the records that a stream has now."""
        return [dataclasses.asdict(self._api.cuts.take_lease(name, owner=owner, ttl_ms=ttl_ms))]

    def renew_lease(self, lease_id: str, ttl_ms: int) -> list[dict[str, Any]]:
        """Renew a lease."""
        return [dataclasses.asdict(self._api.cuts.renew_lease(LeaseId(lease_id), ttl_ms=ttl_ms))]

    def check_cut(
        self,
        name: str,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        believe_forgotten: bool,
    ) -> list[dict[str, Any]]:
        """Check that positions of a saved cut belong to the present history."""
        self._api.cuts.check(
            name,
            stream_uuid=stream_uuid,
            positions=positions,
            believe_forgotten=believe_forgotten,
        )
        return [{}]

    def drop_lease(self, lease_id: str) -> list[dict[str, Any]]:
        """End a lease."""
        self._api.cuts.drop_lease(LeaseId(lease_id))
        return [{}]

    def list_leases(self, name: str) -> list[dict[str, Any]]:
        """Return the leases of a stream that have not expired."""
        return [dataclasses.asdict(lease) for lease in self._api.cuts.live_leases(name)]

    def cut(self, name: str, owner: str, ttl_ms: int) -> list[dict[str, Any]]:
        """Take a cut with its lease."""
        return [self._api.cuts.take(name, owner=owner, ttl_ms=ttl_ms).to_dict()]

    def high_watermarks(self, names: list[str]) -> list[dict[str, Any]]:
        """Return the high watermarks of several streams at one moment."""
        streams = [self._api.streams.get(name) for name in dict.fromkeys(names)]

        def look() -> list[list[CutPosition]]:
            return [
                [
                    self._api.partitions.history_position(stream.name, number)
                    for number in range(stream.config.partitions)
                ]
                for stream in streams
            ]

        told = {
            stream.name: {
                "name": stream.name,
                "stream_uuid": stream.uuid,
                "high_watermarks": [int(one.hot_end) for one in found],
                "lineage_ids": [one.lineage_id for one in found],
            }
            for stream, found in zip(streams, _at_one_moment(look, self._clock), strict=True)
        }
        return [told[name] for name in names]

    def tier_status(self, name: str) -> list[dict[str, Any]]:
        """Return how far each partition is in the table."""
        return [_status_dict(status) for status in self._api.cold.status(name)]

    def tier_flush(
        self, name: str, timeout_ms: int, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[dict[str, Any]]:
        """Ship all committed records, and return the status; end early if nobody waits for it."""
        done = self._api.cold.flush(name, timeout_ms=timeout_ms, is_wanted=is_wanted)
        return [_status_dict(status) for status in done]


def _at_one_moment(
    look: Callable[[], list[list[CutPosition]]], clock: Clock
) -> list[list[CutPosition]]:
    """Return all high watermarks at one moment, by reading them twice.

    High watermarks only grow. So if two readings are equal, all the values were true at the same
    time, between the two readings. Readings of other brokers take longer, so time bounds them too.

    Raises:
        OverloadedError: a commit came between the two readings, every time.
    """
    before: list[list[CutPosition]] = []
    deadline_ms = clock.monotonic_ms() + _READING_MS_MAX
    positions = 0
    for _ in range(_READINGS_MAX):
        found = look()
        positions += sum(map(len, found))
        if found == before or sum(map(len, found)) <= 1:  # a single number needs one reading
            return found
        before = found
        if clock.monotonic_ms() > deadline_ms or positions > _POSITIONS_READ_MAX:
            break
    raise OverloadedError(
        "records were committed between any two readings of the high watermarks: try again later"
    )


def _stream_dict(stream: Stream) -> dict[str, Any]:
    return stream.to_dict()


def _status_dict(status: TierStatus) -> dict[str, Any]:
    values = dataclasses.asdict(status)
    values["cold"] = [status.cold.start, status.cold.end]
    return values
