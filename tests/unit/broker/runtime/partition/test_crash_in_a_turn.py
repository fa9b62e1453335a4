"""A bug at every place of a turn: none of its work is persisted, and no answer is wrong.

The same turn is taken again and again, and each time another line of the broker raises. Then comes
what a polite stop would do, a new process, and the retries that its clients owe.
"""

from __future__ import annotations

import linecache
import random
import sys
import threading
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any, Final, Self

import pytest

from broker.errors import HeadwaterError, LogFailedError
from broker.model.records import AppendResult
from broker.ports.partition import RecordsOutcome
from broker.runtime.partition.commit_scheduler import CommitScheduler
from simkit.brokers.driver_rig import DriverRig
from simkit.disk.disk import SimDisk

P, Q = 7, 8
EACH_LINE: Final = ("runtime/", "core/dedup", "core/replication/acks", "driver_rig")
SLICES: Final = 16  # the smaller sample is quick enough for each run of the tests
BEFORE: Final = ("with ", "work = Work()", "try:")


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


class Bomb:
    """Raises at the n-th traced place of the broker in this thread; without n it only counts."""

    def __init__(self, at: int | None) -> None:
        self._at = at
        self.places = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call":
            ours = "/broker/" in name and "/tests/" not in name
            if (not ours and "driver_rig" not in name) or "poison" in function:
                return None
            if function != "run_turn":  # a turn cannot begin without memory for this record
                self._step()
            return self._trace if any(one in name for one in EACH_LINE) else None
        # Python is at a `with` again to leave it: raised there, a lock would stay taken.
        if event == "line" and not _source(name, frame.f_lineno).startswith(BEFORE):
            self._step()
        return self._trace

    def _step(self) -> None:
        if self.places == self._at:
            self.places += 1
            raise MemoryError("planted")
        self.places += 1


class Story:
    """A stream with earlier records, one turn that may crash, and the results."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.rig = self._open(1)
        self.sent: dict[tuple[int, int] | str, bytes] = {}
        self.acked: dict[tuple[int, int] | str, int] = {}
        self._batch(P, 0)
        self.rig.turns.run()
        assert self.acked == {(P, 0): 0}

    def _open(self, epoch: int) -> DriverRig:
        return DriverRig(self.disk.files(), epoch=epoch, segment_bytes_max=4096)

    def _batch(self, producer: int, sequence: int) -> None:
        value = b"%d.%d." % (producer, sequence) + random.Random(sequence).randbytes(1500)
        key = (producer, sequence)
        self.sent[key] = value
        with suppress(HeadwaterError):  # refused: the client sends it again
            self.rig.put(
                value, producer=producer, sequence=sequence, done=lambda one: self._told(key, one)
            )

    def _told(self, key: tuple[int, int], answer: Any) -> None:
        if isinstance(answer, AppendResult):
            assert self.acked.setdefault(key, answer.base_offset) == answer.base_offset

    def _records(self) -> None:
        self.sent["id"] = b"with an id"
        try:
            answers = self.rig.put_ids([self.sent["id"]], ["id"])
        except HeadwaterError:
            return
        self.rig.turns.run()
        if answers and isinstance(answers[0], RecordsOutcome):
            self.acked.setdefault("id", answers[0].offsets[0])

    def crash(self, at: int | None) -> int:
        """Take a turn of three batches, which rolls the segment, and the records of a publisher."""
        for sequence in (1, 2, 3):
            self._batch(P, sequence)
        self.rig.turns.around = bomb = Bomb(at)
        self.rig.turns.run()
        self._records()
        self.rig.turns.around = nullcontext()
        return bomb.places

    def stop_and_start(self) -> None:
        """Stop politely, if that is possible; start a new process."""
        crashed = bool(self.rig.turns.crashes)
        before = self._files()
        self.rig.close()
        if crashed:
            assert self._files() == before, "a partition that crashed has written something"
        self.rig = self._open(2)

    def _files(self) -> dict[str, bytes]:
        return {path: self.disk.peek(path) for path in self.disk.paths()}

    def retry(self) -> None:
        """Publish something else first; then send everything again, and look at all of it."""
        acked = dict(self.acked)
        self._batch(Q, 0)
        self.rig.turns.run()
        for sequence in range(4):
            self._batch(P, sequence)
        self._records()
        self.rig.turns.run()
        assert self.acked.keys() == self.sent.keys(), "all of it is acknowledged in the end"
        assert {key: self.acked[key] for key in acked} == acked, "where it was acknowledged before"
        values = self.rig.values()
        assert {key: values[at] for key, at in self.acked.items()} == self.sent
        assert sorted(values) == sorted(self.sent.values()), "each of them once"
        self.rig.close()


PLACES: Final = Story().crash(None)


def test_the_turn_has_many_places() -> None:
    """With few places the other tests of this file would prove little."""
    assert PLACES > 300


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, SLICES))]
)
def test_wherever_a_turn_crashes_a_retry_is_answered_rightly(part: int) -> None:
    """A planned record that was not written does not make its retry a duplicate."""
    for at in range(part, PLACES, SLICES):
        story = Story()
        story.crash(at)
        assert story.rig.turns.crashes, f"place {at} was not reached"
        story.stop_and_start()
        story.retry()


def test_calls_of_a_crashed_turn_are_told_and_later_ones_refused() -> None:
    """No caller waits for ever, and none gets a wrong result."""
    rig = DriverRig(SimDisk(random.Random(1)).files())

    def bug() -> None:
        raise AssertionError("planted")

    first = rig.driver._queue.begin(bug)
    second = rig.driver._queue.begin(lambda: 5)
    rig.turns.run()
    assert [type(one) for one in rig.turns.crashes] == [AssertionError]
    for call in (first, second, rig.driver._queue.begin(lambda: 5)):
        with pytest.raises(LogFailedError, match="a bug stopped"):
            rig.driver._queue.result_of(call)
    with pytest.raises(LogFailedError, match="a bug stopped"):
        rig.put(b"x")
    rig.driver.maintenance.tick()
    assert rig.driver.frees.now(lambda: pytest.fail("nothing is to be freed")) == 0
    rig.close()


def test_a_partition_closes_when_every_commit_thread_met_a_bug() -> None:
    """The threads go on: others want to be closed in order, until the process ends."""
    crashes: list[BaseException] = []
    heard = threading.Semaphore(0)

    def on_crash(crash: BaseException) -> None:
        crashes.append(crash)
        heard.release()

    class Bug:
        def run_turn(self) -> None:
            raise MemoryError

    class Fine:
        def __init__(self) -> None:
            self.done = threading.Event()

        def run_turn(self) -> None:
            self.done.set()

    scheduler = CommitScheduler(2, on_crash)
    scheduler.start()
    for _ in range(4):
        scheduler.schedule(Bug())
    for _ in range(4):
        assert heard.acquire(timeout=60)
    fine = Fine()
    scheduler.schedule(fine)
    assert fine.done.wait(60)
    assert scheduler.stop()


def test_stopping_does_not_wait_for_a_thread_that_hangs() -> None:
    """The stop logs the thread's name and goes on; the process's end ends the thread."""
    gate = threading.Event()

    class Hangs:
        def run_turn(self) -> None:
            gate.wait(60)

    scheduler = CommitScheduler(1, lambda _: None)
    scheduler.start()
    scheduler.schedule(Hangs())
    assert not scheduler.stop(timeout_s=0.05)
    gate.set()
    assert scheduler.stop()
