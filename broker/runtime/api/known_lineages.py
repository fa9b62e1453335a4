"""The lineage of each partition's records, as far as the local metadata has it.

The local metadata may be behind. So before a request is refused, this waits once for the newest
metadata and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.errors import StreamRecreatedError
from broker.model.cut_positions import CutPosition, refusal
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from broker.model.lineage import Lineage
from broker.model.stream import Stream
from broker.runtime.metadata.metadata_log import WaitingMetadata


class KnownLineages:
    """Looks lineages up. Any thread; blocks while it waits for the newest metadata."""

    def __init__(self, metadata: WaitingMetadata, *, confirm_ms: int) -> None:
        """Wait at most ``confirm_ms`` for the newest metadata."""
        self._metadata = metadata
        self._confirm_ms = confirm_ms

    def require(
        self,
        stream: Stream,
        stream_uuid: StreamUuid,
        positions: Sequence[CutPosition],
        *,
        believe_forgotten: bool,
    ) -> None:
        """See ``CutsApi.check``."""
        if stream.uuid != stream_uuid:
            raise StreamRecreatedError(
                f"stream {stream.name!r} is now {stream.uuid}, the cut is of {stream_uuid}",
                stream=stream.name,
                expected=stream_uuid,
                found=stream.uuid,
            )
        for looked_before in (False, True):
            known = self._of(stream)
            refused = refusal(
                stream.name,
                known,
                positions,
                believe_forgotten=believe_forgotten,
                partitions_min=stream.grown_from,
            )
            if refused is None:
                return
            if looked_before:
                raise refused
            self._metadata.barrier(timeout_ms=self._confirm_ms)

    def id_of(self, stream: Stream, number: int, leader_epoch: LeaderEpoch) -> str | None:
        """Return the id of a leadership; waits for newer metadata if it is not known here yet."""
        for looked_before in (False, True):
            known = self._of(stream)
            for one in reversed(known[number] if number < len(known) else ()):
                if one.leader_epoch == leader_epoch:
                    return one.lineage_id
            if not looked_before:
                self._metadata.barrier(timeout_ms=self._confirm_ms)
        return None

    def _of(self, stream: Stream) -> list[Lineage]:
        return [one.lineage for one in self._metadata.state.partitions.get(stream.uuid, ())]
