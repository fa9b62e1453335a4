"""Bugs planted in a broker process, for campaigns that have to find them; no product loads this.

Python finds this file at its start while a campaign puts the folder on the path (``--plant NAME``).
Only a process that runs ``-m broker`` is changed.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any


def ack_unwritten() -> None:
    """Each fiftieth group is acknowledged, and not written."""
    from broker.runtime.commit_group import CommitGroup
    from broker.runtime.commits import Commits

    original = Commits.write
    count = itertools.count(1)

    def write(self: Any, writes: Any, log: Any, shell: Any, leader_epoch: Any) -> bool:
        if next(count) % 50:
            return bool(original(self, writes, log, shell, leader_epoch))
        group = CommitGroup(
            producers=self._retries.producers,
            window=self._retries.window,
            start=log.log_end,
            leader_epoch=leader_epoch,
            now_us=self._clock.now_us(),
            encode=self.encode,
        )
        for one in writes:
            group.add(one)
        for answer in group.answers():
            answer.tell(None)
        return False

    Commits.write = write  # type: ignore[method-assign]


def forget_ids() -> None:
    """Message ids are not read from the log at a start: a retry is stored again."""
    from broker.runtime import retry_tables

    vars(retry_tables)["rebuild_window"] = lambda *_: None


def skip_a_batch() -> None:
    """Now and then a read of several batches leaves one of them out."""
    from broker.runtime.partition_driver import PartitionDriver

    original = PartitionDriver.read
    count = itertools.count(1)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if len(found) > 1 and next(count) % 100 == 0:
            del found[len(found) // 2]
        return found

    PartitionDriver.read = read  # type: ignore[method-assign]


PLANTS = {one.__name__: one for one in (ack_unwritten, forget_ids, skip_a_batch)}

if "broker" in sys.orig_argv and os.environ.get("PLANTED_BUG"):
    PLANTS[os.environ["PLANTED_BUG"]]()
