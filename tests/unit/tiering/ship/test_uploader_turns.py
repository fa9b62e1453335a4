"""The queue of partitions that are due, turn by turn: no thread, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import HeadwaterError, ObjectCorruptError, RemoteTierUnavailableError
from broker.model.ids import PartitionId, PartitionNumber
from broker.model.offsets import Offset
from broker.model.stream import Stream
from broker.ports.pumps import Drive, Driven, PumpTurn
from simkit.tier.source import make_stream
from tiering.config import TieringConfig
from tiering.ship.shipper import CycleProgress
from tiering.ship.uploader import Uploader

STREAM = make_stream()
AT = PartitionId(STREAM.uuid, PartitionNumber(0))
CONFIG = TieringConfig(check_interval_ms=1_000_000, backoff_ms_min=50, backoff_ms_max=400)


class Clock:
    """A clock that is set by hand; it raises when a loop reads it without end."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.looks_left = 100_000

    def monotonic_ms(self) -> int:
        """Return the time."""
        self.looks_left -= 1
        assert self.looks_left, "a loop reads the clock without end"
        return self.now_ms

    def now_us(self) -> int:
        """Return the time."""
        return self.now_ms * 1000


class Source:
    """The log of a partition: ten records are committed, none is in the table."""

    partition_id = AT
    cold_end = Offset(0)
    reads = SimpleNamespace(high_watermark=Offset(10))

    def seal_active(self) -> None:
        """Seal."""


class Shipper:
    """A shipper whose steps have the results in `steps`."""

    def __init__(self, source: Any, steps: list[CycleProgress | HeadwaterError]) -> None:
        self.source = source
        self.counters = SimpleNamespace(bytes_total=0)
        self.machine = SimpleNamespace(cold_end=Offset(0))
        self._steps = steps
        self.taken = 0

    def take_step(self) -> CycleProgress:
        """Take the next step; when none is left, the cycle is over."""
        self.taken += 1
        step = self._steps.pop(0) if self._steps else CycleProgress.DONE
        if isinstance(step, HeadwaterError):
            raise step
        return step


class Rig:
    """An uploader that is driven by hand, over a catalog of one partition or none."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sources: list[Source] = [Source()]
        self.steps: list[CycleProgress | HeadwaterError] = []
        self.made: list[Shipper] = []
        self._turn: PumpTurn = lambda now_ms: now_ms
        catalog: Any = SimpleNamespace(
            streams=lambda: [STREAM] if self.sources else [],
            sources=lambda _: self.sources,
            on_sealed=lambda _: None,
        )
        drive: Drive = self._drive
        self.uploader = Uploader(
            catalog, self._ship, clock=self.clock, config=CONFIG,
            observer=lambda *_: None, on_scan=lambda _: None, drive=drive,
        )  # fmt: skip

    def _ship(self, _: Stream, source: Any) -> Any:
        self.made.append(Shipper(source, self.steps))
        return self.made[-1]

    def _drive(self, name: str, turn: PumpTurn) -> Driven:
        assert name == "tiering"
        self._turn = turn
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731 - of three names
        driven: Any = SimpleNamespace(start=nothing, wake=nothing, stop=nothing)
        return driven  # type: ignore[no-any-return]

    def turn(self) -> int:
        """Take a turn; return in how many milliseconds the next is due."""
        return self._turn(self.clock.now_ms) - self.clock.now_ms

    def rest(self) -> int:
        """Take turns until nothing is due; return for how long."""
        for _ in range(1_000):
            if due_ms := self.turn():
                return due_ms
        raise AssertionError("a turn is always due at once")

    @property
    def steps_taken(self) -> int:
        """Return the number of steps of all shippers."""
        return sum(one.taken for one in self.made)


@pytest.fixture
def rig() -> Rig:
    """An uploader that has found its partition and shipped what there was."""
    rig = Rig()
    assert rig.rest() == CONFIG.check_interval_ms
    assert rig.steps_taken == 1
    return rig


def test_what_is_sealed_during_a_cycle_is_shipped_after_it(rig: Rig) -> None:
    """It is shipped at once, not at the next check, and only once."""
    rig.steps += [CycleProgress.UNDER_WAY, CycleProgress.DONE]
    rig.uploader.wake(AT)
    rig.turn()
    rig.uploader.wake(AT)
    assert rig.rest() == CONFIG.check_interval_ms
    assert rig.steps_taken == 1 + 2 + 1


def test_a_partition_with_more_to_ship_goes_on_at_once(rig: Rig) -> None:
    """It goes on until its shipper is done."""
    rig.steps += [CycleProgress.MORE_TO_SHIP, CycleProgress.MORE_TO_SHIP, CycleProgress.DONE]
    rig.uploader.wake(AT)
    rig.rest()
    assert rig.steps_taken == 1 + 3


def test_a_partition_that_is_busy_is_given_to_nobody_else(rig: Rig) -> None:
    """No second worker gets it, even if it was woken meanwhile."""
    rig.uploader.wake(AT)
    scan, task, _ = rig.uploader._choose(rig.clock.now_ms)
    assert (scan, task is not None) == (False, True)
    rig.uploader.wake(AT)
    assert rig.uploader._choose(rig.clock.now_ms)[:2] == (False, None)


def test_the_source_that_leads_now_is_shipped(rig: Rig) -> None:
    """A partition that was opened again has another log; one that moved away has none here."""
    rig.sources = [Source()]
    rig.clock.now_ms += CONFIG.check_interval_ms
    rig.rest()
    assert [one.source is rig.sources[0] for one in rig.made] == [False, True]
    rig.sources = []
    rig.clock.now_ms += CONFIG.check_interval_ms
    rig.rest()
    assert rig.uploader.task_of(AT) is None
    rig.sources = [Source()]
    rig.clock.now_ms += CONFIG.check_interval_ms
    rig.rest()
    assert rig.uploader.task_of(AT) is not None


def test_pauses_after_failures_grow_up_to_a_bound(rig: Rig) -> None:
    """The bound lets shipping go on soon after a long outage."""
    pauses: list[int] = []
    for _ in range(40):
        rig.steps.append(RemoteTierUnavailableError("503"))
        if not pauses:
            rig.uploader.wake(AT)
        pauses.append(rig.rest())
        rig.clock.now_ms += pauses[-1]
    assert max(pauses[:3]) <= 200
    assert max(pauses) <= CONFIG.backoff_ms_max
    assert min(pauses[-5:]) >= CONFIG.backoff_ms_max // 2


# ------------------------------------------------------------------------------ flushes


def fail_once(rig: Rig, error: HeadwaterError) -> None:
    """Let a cycle fail; the partition waits then."""
    rig.steps.append(error)
    rig.uploader.wake(AT)
    assert rig.rest() > 0
    task = rig.uploader.task_of(AT)
    assert task is not None
    assert task[1] is error


def test_a_flush_reports_what_its_own_cycle_met(rig: Rig) -> None:
    """An error of an earlier cycle is not reported, because its cause may be repaired."""
    fail_once(rig, ObjectCorruptError("rotten"))
    with pytest.raises(RemoteTierUnavailableError, match="not all records"):
        rig.uploader.flush(STREAM, timeout_ms=0)


def test_a_flush_does_not_wait_out_the_pause_of_a_failure(rig: Rig) -> None:
    """A flush makes the partition due at once."""
    fail_once(rig, RemoteTierUnavailableError("503"))
    with pytest.raises(RemoteTierUnavailableError):
        rig.uploader.flush(STREAM, timeout_ms=0)
    before = rig.steps_taken
    rig.turn()
    assert rig.steps_taken == before + 1


def test_a_stop_ends_a_flush(rig: Rig) -> None:
    """The flush ends at once, whatever its timeout."""
    rig.uploader.stop()
    rig.clock.looks_left = 20
    with pytest.raises(RemoteTierUnavailableError):
        rig.uploader.flush(STREAM, timeout_ms=1 << 40)


def test_a_cycle_of_a_deleted_stream_is_told_until_it_is_over() -> None:
    """Another worker drops the partition while this one is in the middle of an upload."""
    rig = Rig()
    rig.steps = [CycleProgress.UNDER_WAY]
    assert not rig.uploader.is_shipping(AT.stream_uuid)
    while not rig.made or not rig.made[0].taken:
        rig.turn()
    rig.sources.clear()
    rig.uploader._scan()
    assert rig.uploader.task_of(AT) is None
    assert rig.uploader.is_shipping(AT.stream_uuid)
    rig.turn()
    assert not rig.uploader.is_shipping(AT.stream_uuid)
