"""The checker with many operations: the records of a half-hour chaos run are judged in seconds."""

from __future__ import annotations

import numpy as np

from checkkit.anomalies import Anomaly
from checkkit.checker import judge
from checkkit.history import History
from checkkit.readings import Reading, RowColumns, Source, of_log

RECORDS = 100_000  # with their acks, polls and three replicas half a million operations


def test_half_a_million_operations_are_judged() -> None:
    """A long run is clean; two losses at its end are found among all the others."""
    history = History()
    contents = [number.to_bytes(16, "big") for number in range(RECORDS)]
    for number, one in enumerate(contents):
        history.publish(one, partition=0, at_ns=2 * number, producer="p", sequence=number)
        history.ok(number, at_ns=2 * number + 1, offset=number, leader_epoch=1, node="broker 1")
    ones = np.ones(RECORDS, np.int64)
    rows = RowColumns(np.arange(RECORDS), contents, ones, ones)
    history.poll("reader", 0, rows, at_ns=2 * RECORDS)
    finals = [
        Reading.of(f"replica {number}", 3 * RECORDS, [of_log(0, rows)], Source.REPLICA)
        for number in range(3)
    ]
    assert judge(history, finals).ok
    end = RECORDS - 2
    short = RowColumns(rows.offsets[:end], contents[:end], ones[:end], ones[:end])
    finals[1] = Reading.of("short", 3 * RECORDS, [of_log(0, short)], Source.REPLICA)
    assert judge(history, finals).counts == {Anomaly.LOST: 2, Anomaly.DIVERGED: 3}
