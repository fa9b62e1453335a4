"""How a follower writes what it fetched, so that its own torn tail is never taken for rot.

A batch's header says how far its *leader* was synced when it wrote the batch, and recovery takes a
later batch as proof that earlier bytes were durable (docs/decisions/0002, proof b). On a follower
that is true only if it, too, has synced so far before it writes the batch. Near the log's end this
costs nothing: every fetch is synced anyway before the next.
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
    """Yield the batches in runs; the log has to be synced to its end between two of them."""
    first = 0
    for at, header in enumerate(headers):
        if at > first and header.synced_end > synced_end:
            yield headers[first:at]
            first, synced_end = at, header.base_offset
    if first < len(headers):
        yield headers[first:]
