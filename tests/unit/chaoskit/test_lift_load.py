"""What a subscriber of Liftbridge's API saw is judged as what any other consumer saw."""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from broker.codec.schema import ROW_SCHEMA
from chaoskit.actors.lift_load import SeenMessages
from chaoskit.recorder import ChaosRecorder
from checkkit.anomalies import Anomaly
from checkkit.arrow import COLUMNS, columns_by_partition
from checkkit.readings import Reading, of_log
from crashkit.records import RecordMaker
from headwater.liftbridge import Message

HELD = pa.RecordBatch.from_pylist(
    [
        {
            "partition": 0, "offset": offset, "leader_epoch": 1, "timestamp": 1_000 + offset,
            "key": key, "value": value, "headers": headers, "subject": "s",
        }
        for offset, (key, value, headers) in enumerate(
            [(None, b"a", None), (b"", None, []), (b"k", b"c", [{"key": "h", "value": None}])]
        )
    ],
    schema=pa.schema([ROW_SCHEMA.field(name) for name in COLUMNS]),
)  # fmt: skip
SEEN = [
    Message(
        "s", 0, offset, (1_000 + offset) * 1_000, value, key,
        {"subject": b"s", "reply": b"", **headers},
    )
    for offset, (key, value, headers) in enumerate(
        [(None, b"a", {}), (None, b"", {}), (b"k", b"c", {"h": b""})]
    )
]  # fmt: skip


def judged(messages: list[Message]) -> set[Anomaly]:
    """Return what is wrong with a subscription, other than that nobody sent these records."""
    recorder, seen = ChaosRecorder(), SeenMessages("reader", 0)
    for message in messages:
        seen.add(message)
    seen.tell([HELD], recorder)
    rows = columns_by_partition(pa.Table.from_batches([HELD]))[0]
    final = Reading.of("log", time.monotonic_ns(), [of_log(0, rows)])
    return set(recorder.judge([final]).counts) - {Anomaly.FOREIGN}


def test_what_looks_as_the_log_does_is_right() -> None:
    """An empty key, value or header looks as none."""
    assert judged(SEEN) == set()


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([SEEN[0], SEEN[2]], Anomaly.POLL_SKIP),
        ([SEEN[0], SEEN[1], SEEN[1], SEEN[2]], Anomaly.POLL_BACK),
        ([SEEN[0], SEEN[1], replace(SEEN[2], value=b"other")], Anomaly.WITHDRAWN),
        ([SEEN[0], SEEN[1], replace(SEEN[2], headers={})], Anomaly.WITHDRAWN),
    ],
)
def test_what_is_wrong_is_named(messages: list[Message], kind: Anomaly) -> None:
    """Left out, given again, or other than the log has it."""
    assert kind in judged(messages)


def test_liftbridges_records_can_be_told_apart() -> None:
    """Each has a correlation id of its own, and nothing that the API cannot carry."""
    maker = RecordMaker("p", "s", seed="1", large_bytes_max=5_000)
    made = [maker.for_liftbridge() for _ in range(200)]
    assert len({one.fingerprint for one in made}) == 200
    assert all(one.value is not None and one.key != b"" for one in made)
    assert {None} == {one.timestamp_us for one in made}
