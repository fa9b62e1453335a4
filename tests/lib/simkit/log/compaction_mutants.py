"""Known ways to get key compaction wrong, one switch each. The simulation has to catch each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from broker.codec.key_map import KeyMap
from broker.core import key_compaction
from broker.model.offsets import OFFSET_MAX, Offset
from broker.storage.key_compaction import rewriter
from broker.storage.key_compaction.compaction_pass import CompactionPass
from broker.storage.key_compaction.rewriter import SegmentRewriter
from simkit.log import compaction_sim
from simkit.replacing import Mutant, replaced


def compact_above_the_line() -> Any:
    """Take every sealed segment, also what is not committed."""
    return replaced(compaction_sim, "compaction_line", lambda **_: Offset(OFFSET_MAX))


def drop_the_last_of_a_key() -> Any:
    """Let a record go for itself: keep only those that are newer than the last one."""

    def last_of(self: KeyMap, hashes: Any) -> Any:
        found = original(self, hashes)
        return np.where(found % 7 == 3, -1, found)

    original = KeyMap.last_of
    return replaced(KeyMap, "last_of", last_of)


def drop_tombstones_at_once() -> Any:
    """Do not wait for readers that are behind."""
    return replaced(key_compaction, "_may_drop_tombstones", lambda *_: True)


class _Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def datasync(self) -> None:
        """Do nothing."""


def exchange_unsynced() -> Any:
    """Rename the new file before its bytes are on the disk."""

    def finish(self: SegmentRewriter) -> Any:
        self._file = _Unsynced(self._file)
        return original(self)

    original = SegmentRewriter.finish
    return replaced(SegmentRewriter, "finish", finish)


def newest_segment_first() -> Any:
    """Let a tombstone go before what it superseded."""

    def steps(self: CompactionPass) -> Iterator[Any]:
        self._chosen = list(reversed(self._chosen))
        return original(self)

    original = CompactionPass.steps
    return replaced(CompactionPass, "steps", steps)


def join_across_epochs() -> Any:
    """Join batches of two leaders."""

    def takes(self: Any, header: Any) -> bool:
        return bool(header.codec == self.like.codec)

    return replaced(rewriter._Pending, "takes", takes)


def forget_who_may_send_again() -> Any:
    """Join also the batches that a producer may send again."""
    return replaced(SegmentRewriter, "is_alone", lambda *_: False)


_MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    compact_above_the_line,
    drop_the_last_of_a_key,
    drop_tombstones_at_once,
    exchange_unsynced,
    newest_segment_first,
    join_across_epochs,
    forget_who_may_send_again,
)
MUTANTS: Final[dict[str, Mutant]] = {mutant.__name__: mutant for mutant in _MUTANTS}

# The first seed that is known to show each: a hunt begins there.
FIRST_SEEDS: Final[dict[str, int]] = {
    "compact_above_the_line": 1,
    "drop_the_last_of_a_key": 0,
    "drop_tombstones_at_once": 0,
    "exchange_unsynced": 0,
    "newest_segment_first": 18,
    "join_across_epochs": 4,
    "forget_who_may_send_again": 0,
}
