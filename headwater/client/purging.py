"""Purges the partitions of a stream one after the other, and returns the outcome of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.errors import (
    FeatureLevelError,
    HeadwaterError,
    PurgeRefusedError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.offsets import Offset
from broker.model.purge import Purged
from headwater.client.brokers import Brokers
from headwater.client.descriptions import StreamDescription

_TIMEOUT_MS: Final = 30_000  # of one partition; it is asked again while its leader changes
_OF_THE_STREAM: Final = (FeatureLevelError, StreamRecreatedError, UnknownStreamError)


def purge(
    brokers: Brokers,
    found: StreamDescription,
    partition: int | None,
    values: Mapping[str, Any],
    ends: Mapping[int, int] | None = None,
) -> list[Purged]:
    """Purge one partition, or all; ``values`` are fields of ``purge_partition`` for each of them.

    Without an end in ``values`` it is that of ``ends``, which names the partitions to purge; with
    None, it is the high watermark in ``found``.

    Raises:
        PurgeRefusedError: of several partitions some were refused, or all.
        HeadwaterError: the refusal of the only partition, or one that is about the stream.
    """
    name = found.stream.name
    asked = [
        one
        for one in found.partitions
        if partition in (None, one.partition) and (ends is None or one.partition in ends)
    ]
    done: list[Purged] = []
    refused: dict[int, HeadwaterError] = {}
    for one in asked:
        body = {"name": name, "partition": one.partition, **values}
        if body["before"] is None and body["before_us"] is None:
            body["before"] = one.high_watermark if ends is None else ends[one.partition]
        try:
            (row,) = brokers.at_leader("purge_partition", name, body, timeout_ms=_TIMEOUT_MS)
        except HeadwaterError as error:
            is_first = not done and not refused
            if len(asked) == 1 or (is_first and isinstance(error, _OF_THE_STREAM)):
                raise
            refused[one.partition] = error
        else:
            done.append(_purged(row))
    if refused:
        raise _refused(name, done, refused)
    return done


def outcome(one: Purged) -> str:
    """Return in words what a purge did to a partition."""
    if one.records_count:
        return "purged"
    if one.purged_end:
        return f"already purged below offset {one.purged_end}"
    return "nothing to purge"


def _purged(row: Mapping[str, Any]) -> Purged:
    return Purged(
        partition=row["partition"],
        start=Offset(row["start"]),
        end=Offset(row["end"]),
        in_table=row["in_table"],
        purged_end=Offset(row.get("purged_end", row["end"])),  # an older broker tells none
    )


def _refused(
    name: str, done: list[Purged], refused: Mapping[int, HeadwaterError]
) -> PurgeRefusedError:
    """Return one error for several partitions, which names each with its outcome."""
    outcomes = {one.partition: _told(one) for one in done}
    outcomes |= {
        number: f"refused, {type(error).__name__}: {error.message}"
        for number, error in refused.items()
    }
    listed = "; ".join(f"partition {number}: {outcomes[number]}" for number in sorted(outcomes))
    numbers = ", ".join(map(str, refused))
    return PurgeRefusedError(
        f"the purge was refused in partition {numbers} of {name}. {listed}",
        purged=done,
        refused=dict(refused),
    )


def _told(one: Purged) -> str:
    return f"purged [{one.start}, {one.end})" if one.records_count else outcome(one)
