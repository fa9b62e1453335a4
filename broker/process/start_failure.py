"""The last log line of a broker that could not start: the error, and what an operator does next."""

from __future__ import annotations

from typing import Final

import structlog

from broker.errors import (
    ControllersLostError,
    DiskFullError,
    HeadwaterError,
    InvalidConfigError,
    LogFailedError,
    MetadataCorruptError,
)

_log = structlog.get_logger(__name__)

# By the class of the error; the first that fits.
_NEXT_STEPS: Final[tuple[tuple[type[HeadwaterError], str], ...]] = (
    (MetadataCorruptError, "nothing was changed; see docs/operations.md, Bad days"),
    (ControllersLostError, "nothing was changed; see docs/cluster.md, When something fails"),
    (InvalidConfigError, "correct the setting; headwater broker --check tests a configuration"),
    (DiskFullError, "free space on the disk, then start the broker again"),
    (LogFailedError, "look at the disk, then start the broker again"),
)


def say_failed(error: HeadwaterError) -> None:
    """Log why the start failed, with the facts of the error and the next step."""
    told = _log.bind(error=type(error).__name__, reason=error.message, **error.facts)
    steps = (step for kind, step in _NEXT_STEPS if isinstance(error, kind))
    if step := next(steps, None):
        told = told.bind(next_step=step)
    told.error("start_failed")
