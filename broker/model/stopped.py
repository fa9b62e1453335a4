"""The errors of a write to a partition that takes no records because somebody decided so."""

from __future__ import annotations

from broker.errors import HeadwaterError, PartitionPausedError, PartitionReadonlyError


def stopped_error(
    stream: str, partition: int, *, paused: bool, readonly: bool
) -> HeadwaterError | None:
    """Return why a partition takes no records, or None; read-only comes before paused."""
    name = f"{stream}/{partition}"
    if readonly:
        return PartitionReadonlyError(
            f"partition {name} is read-only: an operator has decided that it takes no records",
            stream=stream,
            partition=partition,
        )
    if paused:
        return PartitionPausedError(
            f"partition {name} is paused: it takes no records until it is resumed",
            stream=stream,
            partition=partition,
        )
    return None
