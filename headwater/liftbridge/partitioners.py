"""Which partition a message goes to, as Liftbridge's clients choose."""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol


class Partitioner(Protocol):
    """Chooses a partition; any callable of this form will do."""

    def __call__(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:
        """Return a number from 0 to ``partitions - 1``."""


def by_key(stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG001
    """Give equal keys one partition: CRC-32 (IEEE) of the key, as Liftbridge's Go client does."""
    return zlib.crc32(key or b"") % partitions


class RoundRobin:
    """Gives each partition of a stream its turn."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def __call__(self, stream: str, key: bytes | None, value: bytes, partitions: int) -> int:  # noqa: ARG002
        """See ``Partitioner``."""
        return next(self._turns[stream]) % partitions
