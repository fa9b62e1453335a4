"""Why a log takes no records: errors that say what is wrong, where, and what to do."""

from __future__ import annotations

from broker.errors import DiskFullError, LogFailedError, StaleLeaderEpochError
from broker.model.epochs import LeaderEpoch
from broker.storage.segments.damage import DamagedRange


def takes_no_writes(path: str, damage: DamagedRange) -> LogFailedError:
    """Return the error of a log that is damaged."""
    cause = damage.error()
    return LogFailedError(
        f"{path} takes no writes because it is damaged: {cause.message}", **cause.facts
    )


def stale_epoch(path: str, newest: LeaderEpoch, got: LeaderEpoch) -> StaleLeaderEpochError:
    """Return the error of a write under an epoch that is older than the log's ``newest``."""
    return StaleLeaderEpochError(
        f"{path} was written under leader epoch {newest}, but the metadata says {got}. Either "
        "another broker leads by now, or an older copy of this broker's metadata was put back: put "
        "the newest metadata back",
        got=got,
        current=newest,
    )


def waits_for_room(path: str, size: int) -> DiskFullError:
    """Return the error of a log that waits for room for ``size`` bytes."""
    return DiskFullError(
        f"the broker's disk is full: {path} waits for {size} bytes; free space", path=path
    )
