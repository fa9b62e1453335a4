"""Reads the partitions of a group member side by side, as they come and go.

Each partition has a thread and a read that follows. Batches wait in one bounded queue. A batch of a
read that was stopped is dropped when it is taken: each start of a read has a number of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from broker.errors import (
    HeadwaterError,
    StreamRecreatedError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from broker.model.groups import NO_LEADER_EPOCH, ToldClaim, ToldPosition
from broker.model.offsets import Offset
from headwater.client.fetch import Fetch, Fetched
from headwater.client.group.records import GroupRecord, records_of

_QUEUE_BATCHES: Final = 8
_AGAIN_S: Final = 0.5
# A stream that is deleted is still claimed for a moment.
_OF_THE_STREAM: Final = (StreamRecreatedError, UnknownStreamError, UnknownPartitionError)

Opened = Callable[[ToldClaim], Fetch]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch of one read, or the error that ended it."""

    claim: ToldClaim
    number: int  # of the read
    fetched: Fetched | None
    error: HeadwaterError | None = None


class InHand:
    """A batch that the application's thread has taken, and how far it was given."""

    def __init__(self, arrived: Arrived) -> None:
        self.arrived = arrived
        self._records: list[tuple[GroupRecord, int]] | None = None  # made for an iteration
        self._given_count = 0

    @property
    def is_begun(self) -> bool:
        """Whether some of its records were given, and not all."""
        return self._given_count > 0

    @property
    def first(self) -> tuple[GroupRecord | None, int]:
        """The first record that was not given, and its leader epoch; None: it has no record."""
        fetched = self._fetched
        if self._records is None:
            self._records = records_of(self.arrived.claim, fetched)
        if self._given_count == len(self._records):
            return None, NO_LEADER_EPOCH
        record, leader_epoch = self._records[self._given_count]
        is_last = self._given_count + 1 == len(self._records)
        return record, int(fetched.leader_epoch) if is_last else leader_epoch

    @property
    def rest(self) -> Fetched:
        """The rows that were not given."""
        fetched = self._fetched
        if not self._given_count:
            return fetched
        assert self._records is not None, "records were given"
        base = Offset(self._records[self._given_count - 1][0].offset + 1)
        return replace(fetched, batch=fetched.batch.slice(self._given_count), base_offset=base)

    def go_on(self) -> bool:
        """Note that the first record was given; tell whether others are left."""
        assert self._records is not None, "a record was given"
        self._given_count += 1
        return self._given_count < len(self._records)

    @property
    def _fetched(self) -> Fetched:
        assert self.arrived.fetched is not None, "a batch"
        return self.arrived.fetched


@dataclass(slots=True)
class _ClaimRead:
    number: int
    claim: ToldClaim  # with the position to go on at
    stopped: threading.Event
    fetch: Fetch | None = None


class GroupReads:
    """The reads that run. One thread at a time, except :meth:`wake`."""

    def __init__(self, opened: Opened) -> None:
        """``opened`` returns a read of a claim, from the claim's position; it may block."""
        self._opened = opened
        self._reads: dict[str, _ClaimRead] = {}
        self._count = 0
        self._arrived: queue.Queue[Arrived | None] = queue.Queue(_QUEUE_BATCHES)

    def start(self, claim: ToldClaim) -> None:
        """Read a claim from its position; an earlier read of the same partition ends."""
        self.stop(claim.key)
        self._count += 1
        read = _ClaimRead(self._count, claim, threading.Event())
        self._reads[claim.key] = read
        name = f"headwater-group-{claim.stream}/{claim.partition}"
        threading.Thread(target=self._run, args=(read,), name=name, daemon=True).start()

    def stop(self, key: str) -> None:
        """End the read of a partition, if there is one; its batches that wait are dropped."""
        read = self._reads.pop(key, None)
        if read is not None:
            read.stopped.set()
            if read.fetch is not None:
                read.fetch.cancel()

    def close(self) -> None:
        """End all reads."""
        for key in list(self._reads):
            self.stop(key)
        with suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()

    def is_current(self, one: Arrived) -> bool:
        """Tell whether a batch is of a read that was not stopped."""
        read = self._reads.get(one.claim.key)
        return read is not None and read.number == one.number

    def take(self, timeout_s: float) -> Arrived | None:
        """Return the next batch or error; None: none came in time, or :meth:`wake` was called."""
        try:
            found = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return found if found is not None and self.is_current(found) else None

    def wake(self) -> None:
        """Let a :meth:`take` that waits return. Any thread."""
        with suppress(queue.Full):
            self._arrived.put_nowait(None)

    def _run(self, read: _ClaimRead) -> None:
        """Read one claim; on a thread of its own."""
        while not read.stopped.is_set():
            try:
                read.fetch = fetch = self._opened(read.claim)
                with fetch:
                    self._pass_on(read, fetch)
            except (UnavailableError, *_OF_THE_STREAM):
                read.stopped.wait(_AGAIN_S)
            except HeadwaterError as error:
                if not error.retriable:
                    self._put(read, Arrived(read.claim, read.number, None, error))
                    return
                read.stopped.wait(_AGAIN_S)

    def _pass_on(self, read: _ClaimRead, fetch: Fetch) -> None:
        """Pass the batches of a read on, and note the position behind each, to go on there."""
        if read.stopped.is_set():
            return
        for fetched in fetch:
            if not self._put(read, Arrived(read.claim, read.number, fetched)):
                return
            position = ToldPosition(offset=fetched.end_offset, leader_epoch=fetched.leader_epoch)
            read.claim = replace(read.claim, position=position)

    def _put(self, read: _ClaimRead, item: Arrived) -> bool:
        """Wait for room in the queue; False once the read is stopped."""
        while not read.stopped.is_set():
            with suppress(queue.Full):
                self._arrived.put(item, timeout=0.1)
                return True
        return False
