"""The message ids that count after a restart are those that counted before it.

Only NATS ingest looks at ids. A header ``Nats-Msg-Id`` of a record that came another way is data: a
message that is answered as a repeat of such a record would be lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from broker.codec.record_batch import prepare
from broker.model.ids import NO_SEQUENCE, ProducerId
from broker.runtime.partition import groups
from simkit.brokers.driver_rig import HEADERS, DriverRig
from simkit.disk.disk import SimDisk
from simkit.replacing import replaced

YEAR_9999_US: Final = 253_370_764_800_000_000

Put = Callable[[DriverRig], list[Any]]


def _copied(stamp_us: int | None = None) -> pa.RecordBatch:
    """Return a record whose header looks like a message id, as a copy of a NATS record has it."""
    columns = {
        "value": pa.array([b"copy"], pa.binary()),
        "headers": pa.array([[{"key": "Nats-Msg-Id", "value": b"id"}]], HEADERS),
    }
    if stamp_us is not None:
        columns["timestamp"] = pa.array([stamp_us], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def _flight(rig: DriverRig, *, producer: int = -1, stamp_us: int | None = None) -> list[Any]:
    answers: list[Any] = []
    batch = prepare(
        _copied(stamp_us),
        now_us=rig.clock.now_us(),
        producer_id=ProducerId(producer),
        base_sequence=NO_SEQUENCE if producer < 0 else 0,
    )
    rig.driver.writes.submit([batch], answers.extend)
    return answers


def _liftbridge(rig: DriverRig) -> list[Any]:
    answers: list[Any] = []
    rig.driver.writes.submit_records(_copied(), None, answers.append)
    return answers


def _restarted(put: Put, **settings: Any) -> DriverRig:
    """Return a leader whose log has what ``put`` stored."""
    disk = SimDisk(random.Random(1))
    before = DriverRig(disk.files(), **settings)
    answers = put(before)
    before.turns.run()
    assert len(answers) == 1
    before.close()
    return DriverRig(disk.files(), epoch=2, clock=before.clock, **settings)


def _by_an_older_build(put: Put, **settings: Any) -> DriverRig:
    """Do the same with a log whose batches do not say whether their ids count."""
    with (
        replaced(groups, "IDS_COUNT", NO_SEQUENCE),
        replaced(groups, "IDS_DO_NOT_COUNT", NO_SEQUENCE),
    ):
        return _restarted(put, **settings)


def _is_repeat(rig: DriverRig) -> bool:
    """Publish over NATS with the id, and tell whether it was taken for a repeat."""
    answers = rig.put_ids([b"nats"], ["id"])
    rig.turns.run()
    is_repeat: bool = answers[0].duplicates == {0}
    assert rig.values()[-1] == (b"copy" if is_repeat else b"nats")
    rig.close()
    return is_repeat


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(_flight, id="flight"),
        pytest.param(lambda rig: _flight(rig, producer=7), id="a producer"),
        pytest.param(lambda rig: _flight(rig, stamp_us=YEAR_9999_US), id="a time to come"),
        pytest.param(_liftbridge, id="liftbridge"),
    ],
)
def test_a_header_that_came_another_way_counts_neither_before_nor_after(put: Put) -> None:
    """A message with that id is stored: no message was stored with it before."""
    rig = _restarted(put)
    assert len(rig.driver._local.retries.window) == 0
    assert not _is_repeat(rig)


def test_an_id_of_nats_ingest_counts_after_the_restart() -> None:
    """It does alone, and beside a repeat that was left out."""

    def put(rig: DriverRig) -> list[Any]:
        return rig.put_ids([b"first", b"first", b"copy"], ["other", "other", "id"])

    assert _is_repeat(_restarted(put))


def test_an_older_builds_id_counts_unless_its_batch_has_a_producer() -> None:
    """NATS ingest wrote no batch with a producer; of other batches nobody knows it."""
    assert _is_repeat(_by_an_older_build(lambda rig: rig.put_ids([b"copy"], ["id"])))
    assert not _is_repeat(_by_an_older_build(lambda rig: _flight(rig, producer=7)))


def test_a_time_that_no_broker_stamped_counts_for_no_id() -> None:
    """An id of the year 9999 would be in the window of each leader to come."""
    assert not _is_repeat(_by_an_older_build(lambda rig: _flight(rig, stamp_us=YEAR_9999_US)))


def test_an_id_of_a_clock_that_was_ahead_leaves_the_window() -> None:
    """It counts as one that came just now, and holds its segment no longer than a window."""
    disk = SimDisk(random.Random(1))
    before = DriverRig(disk.files())
    before.clock.advance(us=3_600_000_000)
    before.put_ids([b"copy"], ["id"])
    before.turns.run()
    before.close()
    rig = DriverRig(disk.files(), epoch=2)
    window, window_us = rig.driver._local.retries.window, rig.driver.config.dedup_window_ms * 1000
    assert len(window) == 1
    window.expire(rig.clock.now_us() + window_us + 1)
    assert (len(window), window.oldest_offset()) == (0, None)
    rig.close()
