"""A table that was filled with records which the stream has lost: every appender says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import ForeignHistoryError
from headwater.client import Client
from headwater.local.embedded import free_port
from simkit.brokers.served_broker import served_disk_broker
from simkit.tier.append_rig import ranges, table_rows
from spark_jobs.tables import Appender, Source, Target, Transformed
from spark_jobs.tables.slice_task import run_here

pytestmark = pytest.mark.integration


def publish(server: str, what: str, count: int) -> None:
    """Store so many records, each with its own value."""
    with Client(server) as client, client.producer("s") as producer:
        values = [f"{what} {number}".encode() for number in range(count)]
        producer.send(values).result(120)


def appender(server: str, table: Path, transform: Any = None) -> Appender:
    """Return an appender of a new process."""
    target = Target.at(str(table))
    rejects = None if transform is None else target.beside("__rejected")
    source = Source.of("s", server)
    return Appender(None, target, source, transform, rejects=rejects, run=run_here)


def values(table: Path) -> list[bytes]:
    """Return what a table has, by offset."""
    rows = table_rows(Target.at(str(table))).sort_by("offset")
    found: list[bytes] = rows.column("value").to_pylist()
    return found


@pytest.fixture
def restored(tmp_path: Path) -> tuple[Path, Path, int]:
    """A broker put back to 40 records, and a table that was filled with 60 of the run after it."""
    folder, older, table, port = tmp_path / "b", tmp_path / "older", tmp_path / "t", free_port()
    with served_disk_broker(folder, port=port) as server:
        with Client(server) as client:
            client.create_stream("s")
        publish(server, "kept", 40)
        appender(server, table).append(ranges((0, 30)), batch_id="0")
    shutil.copytree(folder, older)  # of a broker that stopped: a running one replaces files
    with served_disk_broker(folder, port=port) as server:
        publish(server, "lost", 60)
        shutil.copytree(table, tmp_path / "behind")
        appender(server, table).append(ranges((0, 100)), batch_id="1")
    shutil.rmtree(folder)
    older.rename(folder)
    return folder, table, port


def test_a_table_with_records_that_the_stream_lost_is_not_appended_to(
    restored: tuple[Path, Path, int],
) -> None:
    """It is refused while the stream is shorter, and once other records have these offsets."""
    folder, table, port = restored
    with served_disk_broker(folder, port=port) as server:
        before = values(table)
        with pytest.raises(ForeignHistoryError, match="Use another table"):
            appender(server, table).watermarks()
        with pytest.raises(ForeignHistoryError):
            appender(server, table).append(ranges((0, 40)), batch_id="2")
        publish(server, "new", 100)
        with pytest.raises(ForeignHistoryError) as refused:
            appender(server, table).append(ranges((0, 140)), batch_id="3")
        assert refused.value.end == 100
        assert values(table) == before


def test_a_table_that_ends_below_the_loss_goes_on(restored: tuple[Path, Path, int]) -> None:
    """The table and the stream have the same records, also after many starts of the broker."""
    folder, table, port = restored
    table = table.with_name("behind")
    with served_disk_broker(folder, port=port) as server:
        publish(server, "new", 100)
        appender(server, table).append(ranges((0, 140)), batch_id="2")
        kept = [b"kept %d" % number for number in range(40)]
        assert values(table) == kept + [b"new %d" % number for number in range(100)]
    for _ in range(3):
        with served_disk_broker(folder, port=port) as server:
            publish(server, "more", 1)
            appender(server, table).watermarks()
    with served_disk_broker(folder, port=port) as server:
        done = appender(server, table).append(ranges((0, 143)), batch_id="3")
        assert done.records_count == 3


class NotEven:
    """Rejects every odd offset."""

    output_schema = pa.schema([("value", pa.binary())])
    rejected_schema = pa.schema(
        [("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())]
    )
    identity = "not even"

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        """See the class."""
        offsets = rows.column("offset").to_pylist()
        odd = pa.array([at % 2 == 1 for at in offsets])
        kept = pa.array([row for row, at in enumerate(offsets) if at % 2 == 0], pa.int64())
        return Transformed(
            rows=rows.select(["value"]).take(kept),
            kept=kept,
            rejected=pa.RecordBatch.from_arrays(
                [
                    rows.column(each.name).filter(odd).cast(each.type)
                    for each in self.rejected_schema
                ],
                schema=self.rejected_schema,
            ),
        )


def test_rejected_records_that_the_stream_lost_are_not_taken_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append died between its two tables, and the stream was put back below that.

    The decoded table's end is of the stream still. The rejected table has odd records up to 100
    that are lost; new ones have their offsets, and would be in neither table.
    """
    folder, older, table, port = tmp_path / "b", tmp_path / "older", tmp_path / "t", free_port()
    with served_disk_broker(folder, port=port) as server:
        with Client(server) as client:
            client.create_stream("s")
        publish(server, "kept", 40)
        appender(server, table, NotEven()).append(ranges((0, 30)), batch_id="0")
    shutil.copytree(folder, older)
    with served_disk_broker(folder, port=port) as server:
        publish(server, "lost", 60)
        dying = appender(server, table, NotEven())
        monkeypatch.setattr(dying, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dying.append(ranges((0, 100)), batch_id="1")
    rejected = table.with_name("t__rejected")
    assert (len(values(table)), len(values(rejected))) == (15, 50)
    shutil.rmtree(folder)
    older.rename(folder)

    with served_disk_broker(folder, port=port) as server:
        publish(server, "new", 100)
        ours = appender(server, table, NotEven())
        assert ours.watermarks().ends == {0: 30}
        for end in (35, 140):
            with pytest.raises(ForeignHistoryError, match="t__rejected holds records") as refused:
                ours.append(ranges((0, end)), batch_id="2")
            assert refused.value.end == 100

    assert (len(values(table)), len(values(rejected))) == (15, 50)
