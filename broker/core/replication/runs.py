"""Split fetched batches into runs with a sync in between, so that a torn tail never looks like rot.

The header of a batch has the synced end of its *leader* when the leader wrote the batch. Recovery
takes this as proof that earlier bytes were durable (docs/decisions/0002, proof b). On a follower
this proof holds only if the follower has also synced up to that end before it writes the batch.
Near the log's end this costs nothing: each fetch is synced before the next fetch anyway.

A follower that is far behind gets batches that its leader synced one by one, thousands in a fetch.
It notes durably that its log is being copied, and syncs once a fetch. Recovery then does not use
this proof above the recovery point; what a follower had acknowledged is proved by its promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from broker.model.offsets import Offset


class _Header(Protocol):
    @property
    def base_offset(self) -> Offset: ...

    @property
    def synced_end(self) -> Offset: ...


_H = TypeVar("_H", bound=_Header)

_COPYING_FROM: Final = 8  # runs in a fetch: as many syncs cost more than the mark
_COPYING_ENDS_BELOW: Final = 3


def is_copying(runs: int, *, before: bool) -> bool:
    """Tell whether a fetch of so many runs is copied whole; ``before``: as the last one was."""
    return runs >= (_COPYING_ENDS_BELOW if before else _COPYING_FROM)


def append_runs(headers: Sequence[_H], synced_end: Offset) -> Iterator[Sequence[_H]]:
    """Yield the batches in runs; the log must be synced to its end between two runs."""
    first = 0
    for at, header in enumerate(headers):
        if at > first and header.synced_end > synced_end:
            yield headers[first:at]
            first, synced_end = at, header.base_offset
    if first < len(headers):
        yield headers[first:]
