"""The command of the leader of the activity stream, which stores what the outbox holds."""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.ids import StreamUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimActivity:
    """Forget the events up to an id: this incarnation of the activity stream has them.

    The command needs ``FEATURE_LEVEL_STREAMS``.
    """

    stream_uuid: StreamUuid
    through: int
