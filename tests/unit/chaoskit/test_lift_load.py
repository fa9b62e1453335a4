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


def judged(messages: list[Message], *, given_up: tuple[int, int] | None = None) -> set[Anomaly]:
    """Return what is wrong with a subscription, other than that nobody sent these records.

    An operator gives up what is at an end and above, after so many messages.
    """
    recorder, seen = ChaosRecorder(), SeenMessages("reader", 0)
    for count, message in enumerate(messages, 1):
        seen.add(message)
        if given_up is not None and given_up[1] == count:
            recorder.forgive(0, given_up[0])
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


OTHER = replace(SEEN[1], value=b"other")


def test_what_an_operator_gave_up_is_not_in_the_log() -> None:
    """It was shown before that; afterwards, or below the end, it is judged."""
    assert judged([SEEN[0], OTHER, SEEN[2]], given_up=(1, 2)) == set()
    assert judged([SEEN[0], OTHER, SEEN[2]], given_up=(2, 2)) == {Anomaly.WITHDRAWN}
    assert judged([SEEN[0], OTHER, SEEN[2]], given_up=(1, 1)) == {Anomaly.WITHDRAWN}


def test_nobody_sent_it_unless_it_was_given_up() -> None:
    """An API without epochs cannot say which record it showed before an unclean election."""
    for forgiven, kinds in ((True, set()), (False, {Anomaly.FOREIGN, Anomaly.WITHDRAWN})):
        recorder, seen = ChaosRecorder(), SeenMessages("reader", 0)
        seen.add(replace(SEEN[0], value=b"other"))
        if forgiven:
            recorder.forgive(0, 0)
        seen.tell([HELD], recorder)
        rows = columns_by_partition(pa.Table.from_batches([HELD]))[0]
        final = Reading.of("log", time.monotonic_ns(), [of_log(0, rows)])
        found = [one for one in recorder.judge([final]).examples if "reader" in str(one)]
        assert {one.kind for one in found} == kinds


def test_liftbridges_records_can_be_told_apart() -> None:
    """Each has a correlation id of its own, and nothing that the API cannot carry."""
    maker = RecordMaker("p", "s", seed="1", large_bytes_max=5_000)
    made = [maker.for_liftbridge() for _ in range(200)]
    assert len({one.fingerprint for one in made}) == 200
    assert all(one.value is not None and one.key != b"" for one in made)
    assert {None} == {one.timestamp_us for one in made}
