"""Tests of the audit of a query's copy: any harm to one record has to be named."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.schema import ROW_SCHEMA
from checkkit.anomalies import Anomaly, Verdict
from checkkit.arrow import COLUMNS
from checkkit.content import fingerprint
from checkkit.history import History
from checkkit.readings import NO_TIME, Reading, of_log
from crashkit import copies

Rows = list[dict[str, object]]
_FILE_ROWS = 4


def record(partition: int, offset: int) -> dict[str, object]:
    """Return one row whose content is its own."""
    return {
        "partition": partition,
        "offset": offset,
        "key": None,
        "value": b"%d-%d" % (partition, offset),
        "headers": None,
        "subject": "s",
        "leader_epoch": 1,
        "timestamp": 1_700_000_000_000_000 + offset,
        "reply_subject": None,
        "correlation_id": f"c{offset}",
    }


def told(rows: Rows) -> History:
    """Return the history in which exactly these records were sent and acknowledged."""
    history = History()
    for at, row in enumerate(rows):
        value, correlation_id = bytes(row["value"]), str(row["correlation_id"])  # type: ignore[call-overload]
        content = fingerprint(
            key=None, value=value, headers=None, subject="s", correlation_id=correlation_id
        )
        partition, offset = int(str(row["partition"])), int(str(row["offset"]))
        number = history.publish(
            content, partition=partition, at_ns=2 * at, producer=f"p{partition}", sequence=offset,
            timestamp_us=int(str(row["timestamp"])),
        )  # fmt: skip
        history.ok(
            number, at_ns=2 * at + 1, offset=offset, leader_epoch=1, partition=partition,
            duplicate=False,
        )  # fmt: skip
    return history


def whole() -> Rows:
    """Return two partitions of twelve records, as the batches of an honest query bring them."""
    return [record(number, offset) for offset in range(12) for number in (0, 1)]


def write_sink(folder: Path, rows: Rows) -> list[Path]:
    """Write rows as Spark's file sink does: a log entry for each batch, here of two files."""
    (folder / "_spark_metadata").mkdir(parents=True)
    chunks = [rows[at : at + _FILE_ROWS] for at in range(0, len(rows), _FILE_ROWS)]
    for batch, at in enumerate(range(0, len(chunks), 2)):
        lines = ["v1"]
        for task, chunk in enumerate(chunks[at : at + 2]):
            # The names have no order: only the log's order counts.
            path = folder / f"part-{task:05}-{(97 * batch) % 13:02}.parquet"
            pq.write_table(table_of(chunk), path)
            lines.append(json.dumps({"path": path.as_uri(), "action": "add"}))
        (folder / "_spark_metadata" / str(batch)).write_text("\n".join(lines))
    return copies.files_of_sink(folder)


def write_delta(folder: Path, rows: Rows) -> list[Path]:
    """Write rows as a Delta sink does: one commit for each batch."""
    (folder / "_delta_log").mkdir(parents=True)
    for batch, at in enumerate(range(0, len(rows), _FILE_ROWS)):
        name = f"part-00000-{(97 * batch) % 13:02}.parquet"
        pq.write_table(table_of(rows[at : at + _FILE_ROWS]), folder / name)
        actions = [{"txn": {"appId": "q", "version": batch}}, {"add": {"path": name}}]
        text = "\n".join(map(json.dumps, actions))
        (folder / "_delta_log" / f"{batch:020}.json").write_text(text)
    return copies.files_of_table(folder)


def table_of(rows: Rows) -> pa.Table:
    """Return rows with the columns that a copy has."""
    fields = [ROW_SCHEMA.field(name) for name in COLUMNS]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def judged(files: list[Path]) -> Verdict:
    """Judge a copy by the history of the whole."""
    found = copies.judge_copy(
        told(whole()), copies.read_copy(files), {0: 12, 1: 12}, began_ns=1_000_000
    )
    return Verdict.of(found)


@pytest.mark.parametrize("write", [write_sink, write_delta])
def test_an_honest_copy_passes(tmp_path: Path, write: Callable[[Path, Rows], list[Path]]) -> None:
    """Batches and files in the log's order are the stream."""
    verdict = judged(write(tmp_path, whole()))
    assert verdict.ok, str(verdict)


def dropped(rows: Rows) -> Rows:
    """One record in the middle is missing."""
    return [row for row in rows if (row["partition"], row["offset"]) != (1, 6)]


def dropped_at_the_end(rows: Rows) -> Rows:
    """The last record is missing: nothing after it shows a gap."""
    return rows[:-1]


def doubled_in_a_later_batch(rows: Rows) -> Rows:
    """A batch was repeated under another number, for one record of it."""
    return [*rows, rows[3]]


def doubled_in_place(rows: Rows) -> Rows:
    """A task wrote one record twice."""
    return [*rows[:6], rows[6], *rows[6:]]


def swapped_in_a_file(rows: Rows) -> Rows:
    """Two records of one partition stand the other way round in one file."""
    return [rows[2], rows[1], rows[0], *rows[3:]]


def swapped_over_batches(rows: Rows) -> Rows:
    """A record was committed one batch too late; every file for itself is in order."""
    return [*rows[:4], *rows[5:17], rows[4], *rows[17:]]


def changed(rows: Rows) -> Rows:
    """One byte of one record differs."""
    return [*rows[:5], {**rows[5], "value": b"1-2!"}, *rows[6:]]


def of_another_time(rows: Rows) -> Rows:
    """One record was copied with another time."""
    return [*rows[:5], {**rows[5], "timestamp": 7}, *rows[6:]]


def without_its_correlation_id(rows: Rows) -> Rows:
    """One record lost its correlation id."""
    return [*rows[:5], {**rows[5], "correlation_id": None}, *rows[6:]]


def in_the_other_partition(rows: Rows) -> Rows:
    """A record names the other partition."""
    return [*rows[:5], {**rows[5], "partition": 0}, *rows[6:]]


@pytest.mark.parametrize("write", [write_sink, write_delta])
@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (dropped, Anomaly.LOST),
        (dropped_at_the_end, Anomaly.LOST),
        (doubled_in_a_later_batch, Anomaly.OVERLAP),
        (doubled_in_place, Anomaly.OVERLAP),
        (swapped_in_a_file, Anomaly.UNSORTED),
        (swapped_over_batches, Anomaly.UNSORTED),
        (changed, Anomaly.DAMAGED),
        (of_another_time, Anomaly.OTHER_TIME),
        (without_its_correlation_id, Anomaly.DAMAGED),
        (in_the_other_partition, Anomaly.MOVED),
    ],
)
def test_harm_to_one_record_is_named(
    tmp_path: Path,
    write: Callable[[Path, Rows], list[Path]],
    harm: Callable[[Rows], Rows],
    expected: Anomaly,
) -> None:
    """One record lost, doubled, out of order or changed: the audit says so by name."""
    verdict = judged(write(tmp_path, harm(whole())))
    assert expected in verdict.counts, str(verdict)


def test_files_that_no_commit_names_do_not_count(tmp_path: Path) -> None:
    """A task that died leaves files behind; they are not the copy."""
    files = write_sink(tmp_path, whole())
    pq.write_table(table_of([record(0, 3)]), tmp_path / "part-00000-dead.parquet")
    assert copies.files_of_sink(tmp_path) == files


def test_a_compacted_sink_log_keeps_its_order(tmp_path: Path) -> None:
    """Spark joins its log's entries now and then: the joined file stands for all before it."""
    files = write_sink(tmp_path, whole())
    log = tmp_path / "_spark_metadata"
    first = [line for number in (0, 1) for line in (log / str(number)).read_text().split("\n")[1:]]
    (log / "1.compact").write_text("\n".join(["v1", *first]))
    (log / "1").unlink()
    assert copies.files_of_sink(tmp_path) == files


def test_a_time_that_the_broker_gave_is_compared_with_the_stream(tmp_path: Path) -> None:
    """Nobody sent it: only another reading of the stream knows it."""
    rows = whole()
    history = told(rows)
    history.records["timestamp_us"][:] = array("q", [NO_TIME] * len(rows))
    stream = Reading.of(
        "flight",
        1_000_000,
        [of_log(n, one) for n, one in copies.read_copy(write_sink(tmp_path / "a", rows)).items()],
    )
    copied = copies.read_copy(write_sink(tmp_path / "b", of_another_time(rows)))
    ends = {0: 12, 1: 12}
    found = copies.judge_copy(history, copied, ends, began_ns=1_000_000)
    assert Verdict.of(found).ok
    found = copies.judge_copy(history, copied, ends, began_ns=1_000_000, stream=stream)
    assert Verdict.of(found).counts == {Anomaly.UNIFIED_DIFFERS: 1}
