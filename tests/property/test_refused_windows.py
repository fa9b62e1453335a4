"""A producer's window and a broker's group commit, refused in any way, in part or as a whole.

The client's half is the product's ``SendWindow``, the broker's ``CommitGroup`` over a log that is a
list. Between them is a connection that breaks. Whatever is refused, the window goes again in order
without a sequence gap ever ending the producer, and each batch is stored once.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pytest

from broker.codec.record_batch import PreparedBatch, prepare
from broker.core.dedup import ProducerTable
from broker.core.message_ids import MessageIdWindow
from broker.errors import (
    DiskFullError,
    HeadwaterError,
    NotEnoughReplicasError,
    OverloadedError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import ProducerId
from broker.model.offsets import Offset
from broker.runtime.partition.groups import Answer, BatchesWrite, CommitGroup
from cases import seeds
from headwater.client.window import SendWindow

WINDOW: Final = 64
BATCH: Final = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})


@dataclass
class Broker:
    """The leader: a queue, groups, a log that refuses."""

    log: list[tuple[int, int]] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    queue: deque[BatchesWrite] = field(default_factory=deque)

    def submit(self, batch: PreparedBatch, answers: list[Any], *, full: bool) -> None:
        """Queue a batch of a connection, or refuse it at once."""
        slot = len(answers)
        answers.append(None)

        def done(outcome: Any) -> None:
            answers[slot] = outcome[0]

        if full:
            done([OverloadedError("full")])
        else:
            self.queue.append(BatchesWrite([batch], done, batch.size))

    def turn(self, take: int, error: HeadwaterError | None, *, before: bool) -> None:
        """Take a group; ``error`` meets it before it is planned, or when it is written."""
        taken = [self.queue.popleft() for _ in range(min(take, len(self.queue)))]
        if error is not None and before:
            for write in taken:
                write.refuse(error)
            return
        group = CommitGroup(
            partitions_count=1,
            producers=self.producers,
            window=MessageIdWindow(window_us=0, ids_max=0),
            start=Offset(len(self.log)),
            leader_epoch=LeaderEpoch(1),
            now_us=1,
            encode=lambda _: prepare(BATCH, now_us=1),
        )
        for write in taken:
            group.add(write)
        failure = error if group.batches else None
        if failure is None:
            self.log += [(one.producer_id, one.base_sequence) for one in group.batches]
            group.written()
        answers: list[Answer] = list(group.answers())
        for answer in answers:
            (answer if failure is None else answer.unwritten(failure)).tell()


ERRORS: Final = (
    None,
    None,
    None,
    DiskFullError("no room"),
    NotEnoughReplicasError("too few"),
    OverloadedError("full"),
)


@pytest.mark.parametrize("seed", seeds(24))
def test_a_window_that_is_refused_goes_again_in_order(seed: int) -> None:
    """No answer of the broker ends the producer, and the log is what was sent, in its order."""
    rng = random.Random(seed)
    broker = Broker()
    window = SendWindow(
        producer_id=ProducerId(7),
        sequence=0,
        batches_max=WINDOW,
        bytes_max=1 << 30,
        new_producer_id=lambda: ProducerId(99),
    )
    total = rng.choice([1, 3, WINDOW, WINDOW + 1, 3 * WINDOW])
    added = 0
    for attempt in range(60):
        healthy = attempt >= 20  # in the end all faults are over
        answers: list[Any] = []
        window.connected()
        heard = 0
        cut = None if healthy else rng.choice([None, None, 1, 5, WINDOW])
        for step in range(30):
            while added < total and window.has_room():
                window.add(BATCH, records_count=1, size_bytes=10)
                added += 1
            full = not healthy and rng.randrange(8) == 0
            while (entry := window.next_to_send()) is not None:
                batch = prepare(
                    BATCH,
                    now_us=1,
                    producer_id=entry.producer_id,
                    base_sequence=entry.base_sequence,
                )
                broker.submit(batch, answers, full=full)
                if not healthy:
                    full = rng.randrange(16) == 0
            error = None if healthy else rng.choice(ERRORS)
            take = WINDOW if healthy else rng.choice([1, 3, WINDOW, 2 * WINDOW])
            broker.turn(take, error, before=bool(step % 2) and error is not None)
            if cut is not None and step >= cut:
                break  # the answers that were under way are lost
            while heard < len(answers) and answers[heard] is not None:
                window.answered(answers[heard])  # raises the error that would end the producer
                heard += 1
            if window.draining and heard == len(answers):
                break
        window.ended()
        if added == total and not window:
            break
    assert not window, f"{len(window)} batches are left of {total}"
    assert broker.log == [(7, sequence) for sequence in range(total)]
