"""Settings of tiering that the daemon chooses. The lake's location is in store/location.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.errors import InvalidConfigError

_MIB = 1024 * 1024

Observer = Callable[[str, Mapping[str, object]], None]  # gets each event: its name and its facts


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringConfig:
    """How often segments are shipped, and how long a partition waits after a failed attempt."""

    check_interval_ms: int = 1_000  # between two checks of all partitions
    upload_timeout_ms: int = 120_000  # one upload or table operation, with all its attempts
    object_bytes_max: int = (
        128 * _MIB
    )  # log bytes joined into one object; a single larger segment becomes a larger object
    workers_count: int = 1  # partitions shipped at the same time; each holds an object in memory
    backoff_ms_min: int = 500  # wait after the first failure; doubled each time, with jitter
    backoff_ms_max: int = 30_000
    expiry_interval_ms: int = 60_000  # between two looks for records that expire
    sweep_interval_ms: int = 600_000  # between two looks for objects that may be deleted
    checkpoint_interval_commits: int = 20  # table versions between two Delta checkpoints
    stop_timeout_ms: int = 10_000  # how long a stop waits for the work in progress
    broker: str = ""  # this broker's name in its claims, for people to read

    def __post_init__(self) -> None:
        positive = (
            "check_interval_ms", "upload_timeout_ms", "object_bytes_max", "workers_count",
            "backoff_ms_min", "checkpoint_interval_commits", "expiry_interval_ms",
            "sweep_interval_ms",
        )  # fmt: skip
        for name in positive:
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"tiering: {name} must be at least 1")
        if self.backoff_ms_max < self.backoff_ms_min:
            raise InvalidConfigError("tiering: backoff_ms_max must not be below backoff_ms_min")
