"""What the daemon may choose about tiering; where the lake is stands in store/location.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.errors import InvalidConfigError

_MIB = 1024 * 1024

Observer = Callable[[str, Mapping[str, object]], None]  # hears what happens, as events


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringConfig:
    """How eagerly segments are shipped, and how failures are waited out."""

    check_interval_ms: int = 1_000  # how often every partition is looked at, besides being woken
    upload_timeout_ms: int = 120_000  # whole upload or table operation, all attempts
    object_bytes_max: int = (
        128 * _MIB
    )  # log bytes joined into one object; one segment may exceed it
    workers_count: int = 1  # partitions shipped at the same time; each holds an object in memory
    backoff_ms_min: int = 500  # after a failure; doubled each time, with jitter
    backoff_ms_max: int = 30_000
    checkpoint_interval_commits: int = 20  # a Delta checkpoint after so many versions
    stop_timeout_ms: int = 10_000  # how long stopping waits for what is under way
    broker: str = ""  # who claims, for people to read

    def __post_init__(self) -> None:
        positive = (
            "check_interval_ms", "upload_timeout_ms", "object_bytes_max", "workers_count",
            "backoff_ms_min", "checkpoint_interval_commits",
        )  # fmt: skip
        for name in positive:
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"tiering: {name} must be at least 1")
        if self.backoff_ms_max < self.backoff_ms_min:
            raise InvalidConfigError("tiering: backoff_ms_max must not be below backoff_ms_min")
