"""Commands that stop and allow writes to partitions: paused and read-only.

They need ``FEATURE_LEVEL_STREAMS``: a build that does not know a command would refuse it while the
other brokers apply it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePartitions:
    """Pause partitions: they take no records until they are resumed. Leader and ISR stay.

    With ``resume_all`` the next publish to any partition of the stream resumes all of them. With
    ``leader_epoch`` the leader of the only partition named has found it idle: the command is
    rejected if another leader epoch has begun, and ``resume_all`` of an earlier pause stays.
    """

    stream_uuid: StreamUuid
    partitions: tuple[int, ...] = ()  # none: all
    resume_all: bool = False
    now_us: int
    leader_epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePartitions:
    """Let paused partitions take records again; all of the stream if ``resume_all`` was set."""

    stream_uuid: StreamUuid
    partitions: tuple[int, ...] = ()  # none: all
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReadonly:
    """Make partitions read-only, or let them take records again."""

    stream_uuid: StreamUuid
    partitions: tuple[int, ...] = ()  # none: all
    readonly: bool = True
    now_us: int


PauseCommand = PausePartitions | ResumePartitions | SetReadonly
