"""The recorder of a chaos run: publishers, consumers and leaders become a judged history."""

from __future__ import annotations

import time

from chaoskit.recorder import ChaosRecorder
from checkkit.anomalies import Anomaly
from checkkit.readings import Reading, Row, Source, of_log
from crashkit.records import RecordMaker, TestRecord


def _sent(recorder: ChaosRecorder, count: int) -> list[TestRecord]:
    maker = RecordMaker("p", "s", seed="1", large_bytes_max=5000)
    records = [maker.for_flight() for _ in range(count)]
    recorder.send("p", 0, records)
    return records


def _ack(recorder: ChaosRecorder, record: TestRecord, offset: int, epoch: int, node: str) -> None:
    recorder.ack(
        record.name, partition=0, offset=offset, leader_epoch=epoch, duplicate=False, node=node
    )


def _replicas(rows: list[Row]) -> list[Reading]:
    part = of_log(0, rows, end=len(rows))
    now_ns = time.monotonic_ns()
    return [Reading.of(name, now_ns, [part], Source.REPLICA) for name in "ab"]


def _row(offset: int, record: TestRecord, epoch: int = 1) -> Row:
    given_us = 1_000 + offset if record.timestamp_us is None else record.timestamp_us
    return Row(offset, record.fingerprint, epoch, given_us)


def test_a_run_that_went_well_is_clean() -> None:
    """Every record is sent, acked and followed to the end, and the judge finds nothing."""
    recorder = ChaosRecorder()
    records = _sent(recorder, 3)
    rows = [_row(place, one) for place, one in enumerate(records)]
    for offset, record in enumerate(records):
        _ack(recorder, record, offset, 1, "a/1")
    recorder.seek("reader", 0, 0)
    recorder.polled("reader", 0, rows, began_ns=1, high_watermark=3, node="a/1", leader_epoch=1)
    recorder.follow_to_the_end("reader", 0)
    assert recorder.acked_count == recorder.sent_count == 3
    verdict = recorder.judge(_replicas(rows))
    assert verdict.ok, str(verdict)
    assert set(recorder.judge(_replicas(rows[:2])).counts) == {Anomaly.LOST, Anomaly.WITHDRAWN}


def test_what_consumers_and_operators_say_is_kept() -> None:
    """Truncations, leaders and accepted losses reach the judge."""
    recorder = ChaosRecorder()
    records = _sent(recorder, 3)
    rows = [_row(place, one) for place, one in enumerate(records[:2])]
    for offset, record in enumerate(records[:2]):
        _ack(recorder, record, offset, 1, "a/1")
    recorder.polled("eager", 0, rows, began_ns=1, committed=False)
    recorder.forgive(0, 1)
    recorder.truncated("eager", 0, 1)
    _ack(recorder, records[2], 1, 2, "b/1")
    rows[1] = _row(1, records[2], 2)
    recorder.polled("eager", 0, rows[1:], began_ns=1, committed=False)
    verdict = recorder.judge(_replicas(rows))
    assert verdict.ok, str(verdict)
    recorder.leads(0, 2, "a/1")
    assert recorder.judge(_replicas(rows)).counts == {Anomaly.TWO_LEADERS: 1}


def test_a_consumer_that_is_led_past_a_record_is_noticed() -> None:
    """A follower that asked for 0 and got 1 has been skipped over."""
    recorder = ChaosRecorder()
    records = _sent(recorder, 2)
    rows = [_row(place, one) for place, one in enumerate(records)]
    recorder.seek("reader", 0, 0)
    recorder.polled("reader", 0, rows[1:], began_ns=1)
    assert recorder.judge(_replicas(rows)).counts == {Anomaly.POLL_SKIP: 1}
