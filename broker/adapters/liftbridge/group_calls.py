"""The calls about cursors and consumer groups.

Cursors and groups are part of the cluster's metadata, so every broker can answer. Liftbridge's
clients ask the leader of a partition of the stream ``__cursors``. So FetchMetadata describes such a
stream, with one partition, although no log belongs to it. Calls block, on threads of the service.
"""

from __future__ import annotations

from typing import Final

from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.liftbridge.stream_calls import decode
from broker.errors import UnknownGroupError
from broker.ports.api import BrokerApi
from broker.wire.liftbridge import api_pb2 as api

_NS_PER_MS: Final = 1_000_000
_NO_OFFSET: Final = -1  # of a cursor that was never set


class GroupCalls:
    """Serves the calls about cursors and groups. Any thread."""

    def __init__(self, api_: BrokerApi) -> None:
        self._api = api_

    def set_cursor(self, payload: bytes) -> bytes:
        """SetCursor: the answer means that a majority of the controllers has the cursor on disk."""
        request = decode(api.SetCursorRequest, payload)
        _require(stream=request.stream, cursorId=request.cursorId)
        self._api.cursors.set(request.cursorId, request.stream, request.partition, request.offset)
        return api.SetCursorResponse().SerializeToString()

    def fetch_cursor(self, payload: bytes) -> bytes:
        """FetchCursor: the newest cursor; -1 if there is none."""
        request = decode(api.FetchCursorRequest, payload)
        _require(stream=request.stream, cursorId=request.cursorId)
        found = self._api.cursors.get(request.cursorId, request.stream, request.partition)
        offset = _NO_OFFSET if found is None else found
        return api.FetchCursorResponse(offset=offset).SerializeToString()

    def join(self, payload: bytes) -> bytes:
        """JoinConsumerGroup."""
        request = decode(api.JoinConsumerGroupRequest, payload)
        _require(groupId=request.groupId, consumerId=request.consumerId)
        if not request.streams:
            raise StatusError(Code.INVALID_ARGUMENT, "No streams provided")
        groups = self._api.groups
        place = groups.join(request.groupId, request.consumerId, list(request.streams))
        return api.JoinConsumerGroupResponse(
            coordinator=place.coordinator,
            epoch=place.epoch,
            consumerTimeout=groups.consumer_ms * _NS_PER_MS,
            coordinatorTimeout=groups.coordinator_ms * _NS_PER_MS,
        ).SerializeToString()

    def leave(self, payload: bytes) -> bytes:
        """LeaveConsumerGroup."""
        request = decode(api.LeaveConsumerGroupRequest, payload)
        _require(groupId=request.groupId, consumerId=request.consumerId)
        self._api.groups.leave(request.groupId, request.consumerId)
        return api.LeaveConsumerGroupResponse().SerializeToString()

    def assignments(self, payload: bytes) -> bytes:
        """FetchConsumerGroupAssignments: from the coordinator; counts as a heartbeat."""
        request = decode(api.FetchConsumerGroupAssignmentsRequest, payload)
        _require(groupId=request.groupId, consumerId=request.consumerId)
        found = self._api.groups.assignments(request.groupId, request.consumerId, request.epoch)
        answer = api.FetchConsumerGroupAssignmentsResponse(epoch=request.epoch)
        for stream, partitions in found.items():
            answer.assignments.add(stream=stream, partitions=partitions)
        return answer.SerializeToString()

    def report(self, payload: bytes) -> bytes:
        """ReportConsumerGroupCoordinator."""
        request = decode(api.ReportConsumerGroupCoordinatorRequest, payload)
        _require(
            groupId=request.groupId,
            consumerId=request.consumerId,
            coordinator=request.coordinator,
        )
        try:
            self._api.groups.report(
                request.groupId, request.consumerId, request.coordinator, request.epoch
            )
        except UnknownGroupError as error:  # the members have left, as if it were another epoch
            raise StatusError(Code.FAILED_PRECONDITION, error.message) from error
        return api.ReportConsumerGroupCoordinatorResponse().SerializeToString()


def _require(**texts: str) -> None:
    for name, text in texts.items():
        if not text:
            raise StatusError(Code.INVALID_ARGUMENT, f"No {name} provided")
