"""The messages of one call for one partition, in order, until the partition has taken them.

A leader may refuse a message and take the next one, for example when its lease was renewed between
the two. The first one is surely not stored, so the next leader gets it. Messages behind a refused
one must not overtake it. So they wait until it is known what became of all that were submitted, and
then all go to the next leader in their order. ``WriteOrder`` lets the partition refuse those that
were submitted already. A partition that does not look at it gets one run at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.adapters.liftbridge.publish_requests import Published
from broker.adapters.liftbridge.targets import PublishTarget
from broker.errors import HeadwaterError
from broker.model.offsets import Offset
from broker.model.records import AckPolicy
from broker.ports.partition import PartitionWriter, WriteOrder

_BATCH_BYTES: Final = 2048  # of an Arrow message with every column and no data
_ROW_BYTES: Final = 64  # of a row beside its data


@dataclass(slots=True)
class Run:
    """Messages of one partition and one ack policy, in order, which are submitted together."""

    queue: PartitionQueue
    number: int  # counts the runs of the queue
    target: PublishTarget
    policy: AckPolicy
    messages: list[Published]
    expected_end: Offset | None = None
    is_under_way: bool = False  # it was submitted and has no outcome


@dataclass(slots=True)
class PartitionQueue:
    """The messages of one partition that have no outcome. Owner: the event loop.

    In order: ``refused``, which another leader may store, ``runs`` for the present target,
    and ``waiting``, which are in no run yet.
    """

    stream: str
    partition: int
    refused: list[Run] = field(default_factory=list)  # in the order of their refusals
    runs: deque[Run] = field(default_factory=deque)
    waiting: deque[Published] = field(default_factory=deque)
    target: PublishTarget | None = None
    looking: bool = False  # for the partition, or about to look again
    why: HeadwaterError | None = None  # messages wait before the partition is looked up again
    order: WriteOrder = field(default_factory=WriteOrder)  # of the runs under way
    _writer: PartitionWriter | None = None  # that has the runs under way
    _under_way: int = 0  # runs that were submitted and have no outcome
    _runs_count: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether every message has its outcome."""
        return not (self._under_way or self.refused or self.runs or self.waiting)

    def add(
        self,
        target: PublishTarget,
        policy: AckPolicy,
        messages: list[Published],
        expected_end: Offset | None = None,
    ) -> None:
        """Put a run behind the others."""
        self._runs_count += 1
        self.runs.append(Run(self, self._runs_count, target, policy, messages, expected_end))

    def may_submit(self, writer: PartitionWriter) -> bool:
        """Tell whether the next run may be submitted now, beside the runs that are under way."""
        return not self._under_way or (writer is self._writer and writer.keeps_order)

    def submits(self, run: Run) -> None:
        """Note that a run is under way from now on."""
        if not self._under_way and self.order.refusal is not None:
            self.order = WriteOrder()
        self._under_way += 1
        run.is_under_way = True
        self._writer = run.target.writer

    def settled(self, run: Run) -> bool:
        """Note that a run has its outcome; False if it had one before."""
        was_under_way, run.is_under_way = run.is_under_way, False
        self._under_way -= was_under_way
        return was_under_way

    def dissolve_runs(self) -> None:
        """Let the messages of the runs wait again: their target may be another one by now."""
        for run in reversed(self.runs):
            self.waiting.extendleft(reversed(run.messages))
        self.runs.clear()

    def gather(self) -> bool:
        """Let refused messages wait again, in order; False while runs are under way."""
        if self._under_way:
            return False
        self.dissolve_runs()
        for run in sorted(self.refused, key=lambda one: one.number, reverse=True):
            self.waiting.extendleft(reversed(run.messages))
        self.refused.clear()
        return True

    def keep_refused(self, run: Run, still_waits: Callable[[Published], bool]) -> list[Published]:
        """Keep the messages of a refused run that still wait; return the others."""
        gone: list[Published] = []
        run.messages = _kept(run.messages, still_waits, gone)
        if run.messages:
            self.refused.append(run)
        return gone

    def keep(self, still_waits: Callable[[Published], bool]) -> list[Published]:
        """Keep the messages without an outcome that still wait; return the others, in order."""
        self.dissolve_runs()
        gone: list[Published] = []
        self.refused.sort(key=lambda one: one.number)
        for run in self.refused:
            run.messages = _kept(run.messages, still_waits, gone)
        self.refused = [run for run in self.refused if run.messages]
        self.waiting = deque(_kept(self.waiting, still_waits, gone))
        return gone


def _kept(
    messages: Sequence[Published], still_waits: Callable[[Published], bool], gone: list[Published]
) -> list[Published]:
    kept: list[Published] = []
    for one in messages:
        (kept if still_waits(one) else gone).append(one)
    return kept


def parts(messages: Sequence[Published], bytes_max: int) -> Iterator[list[Published]]:
    """Yield messages in order, in parts that fit into a segment, or single ones."""
    part: list[Published] = []
    size = _BATCH_BYTES
    for one in messages:
        more = one.request_bytes + _ROW_BYTES
        if part and size + more > bytes_max:
            yield part
            part, size = [], _BATCH_BYTES
        part.append(one)
        size += more
    if part:
        yield part
