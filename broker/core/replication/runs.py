"""Split fetched batches into runs with a sync in between, so that a torn tail never looks like rot.

The header of a batch has the synced end of its *leader* when the leader wrote the batch. Recovery
takes this as proof that earlier bytes were durable (docs/decisions/0002, proof b). On a follower
this proof holds only if the follower has also synced up to that end before it writes the batch.
Near the log's end this costs nothing: each fetch is synced before the next fetch anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from broker.model.offsets import Offset


class _Header(Protocol):
    @property
    def base_offset(self) -> Offset: ...

    @property
    def synced_end(self) -> Offset: ...


_H = TypeVar("_H", bound=_Header)


def append_runs(headers: Sequence[_H], synced_end: Offset) -> Iterator[Sequence[_H]]:
    """Yield the batches in runs; the log must be synced to its end between two runs."""
    first = 0
    for at, header in enumerate(headers):
        if at > first and header.synced_end > synced_end:
            yield headers[first:at]
            first, synced_end = at, header.base_offset
    if first < len(headers):
        yield headers[first:]
