"""The command of the leader of the activity stream, after it has stored events of the outbox."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.ids import StreamUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimActivity:
    """Remove the events up to id ``through``: this incarnation of the activity stream has them.

    The command needs ``FEATURE_LEVEL_STREAMS``.
    """

    stream_uuid: StreamUuid
    through: int
