"""A table that was filled with records which the stream has lost: every appender says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.errors import ForeignHistoryError
from headwater.client import Client
from headwater.local.embedded import free_port
from simkit.brokers.served_broker import served_disk_broker
from simkit.tier.append_rig import ranges, table_rows
from spark_jobs.tables import Appender, Source, Target
from spark_jobs.tables.slice_task import run_here

pytestmark = pytest.mark.integration


def publish(server: str, what: str, count: int) -> None:
    """Store so many records, each with its own value."""
    with Client(server) as client, client.producer("s") as producer:
        values = [f"{what} {number}".encode() for number in range(count)]
        producer.send(values).result(30)


def appender(server: str, table: Path) -> Appender:
    """Return an appender of a new process."""
    return Appender(None, Target.at(str(table)), Source.of("s", server), run=run_here)


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
