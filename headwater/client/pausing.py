"""Calls that stop and allow writes to a stream; ``Client`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker.model.ids import StreamUuid
from headwater.client.brokers import Brokers


class PausingCalls:
    """The part of a client that pauses streams and makes them read-only.

    ``partitions`` are numbers; none means all of the stream. The broker that is asked has applied
    the change when the call returns; the other brokers apply it as soon as they hear of it, usually
    within milliseconds. The calls may be repeated.
    """

    _brokers: Brokers

    def pause_stream(
        self,
        name: str,
        partitions: Sequence[int] = (),
        *,
        resume_all: bool = False,
        stream_uuid: StreamUuid | None = None,
    ) -> None:
        """Pause partitions: they take no records until somebody publishes by way of a broker.

        A paused partition has no subscription on NATS: what is published there is not recorded.
        What is stored can be read as before. With ``resume_all`` the next publish to any partition
        of the stream resumes all of them.

        Raises:
            FeatureLevelError: a broker of the cluster runs a release that knows no pauses.
            UnknownStreamError, UnknownPartitionError, StreamRecreatedError.
        """
        self._stop("pause_stream", name, partitions, stream_uuid=stream_uuid, resume_all=resume_all)

    def resume_stream(
        self, name: str, partitions: Sequence[int] = (), *, stream_uuid: StreamUuid | None = None
    ) -> None:
        """Let paused partitions take records again; raises as :meth:`pause_stream`."""
        self._stop("resume_stream", name, partitions, stream_uuid=stream_uuid)

    def set_stream_readonly(
        self,
        name: str,
        partitions: Sequence[int] = (),
        *,
        readonly: bool = True,
        stream_uuid: StreamUuid | None = None,
    ) -> None:
        """Make partitions read-only, or with ``readonly=False`` let them take records again.

        Every publish to a read-only partition is refused with PartitionReadonlyError, whatever its
        way. Raises as :meth:`pause_stream`.
        """
        self._stop(
            "set_stream_readonly", name, partitions, stream_uuid=stream_uuid, readonly=readonly
        )

    def _stop(self, action: str, name: str, partitions: Sequence[int], **more: Any) -> None:
        self._brokers.action(action, {"name": name, "partitions": list(partitions), **more})
