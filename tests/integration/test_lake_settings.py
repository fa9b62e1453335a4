"""Settings of the lake: a broker with a missing or ambiguous one does not serve fewer records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from crashkit.processes import BrokerProcess
from crashkit.stage import Witness
from headwater.client import Client

pytestmark = pytest.mark.integration


@contextmanager
def running(broker: BrokerProcess) -> Iterator[Client]:
    """Start a broker, and kill it afterwards."""
    broker.start()
    try:
        broker.wait_ready()
        with Client(broker.url) as client:
            yield client
    finally:
        with suppress(AssertionError):
            broker.kill()


def broker_at(folder: Path, name: str, *, lake: str, data: Path) -> BrokerProcess:
    """Return a broker without NATS over a data directory."""
    return BrokerProcess(folder / name, nats_url="", lake=lake, data_dir=data)


def test_a_broker_whose_records_are_in_tables_does_not_start_without_a_lake(
    tmp_path: Path,
) -> None:
    """The error names the streams and the setting; a stream without a table is no reason."""
    data, lake = tmp_path / "data", str(tmp_path / "lake")
    with running(broker_at(tmp_path, "first", lake="", data=data)) as client:
        client.create_stream("kept", subject="kept")
        first = Witness(client, "kept", seed="kept", subject="kept")
        with client.producer("kept") as producer:
            first.put(producer, 50)
    with running(broker_at(tmp_path, "second", lake="", data=data)) as client:
        first.assert_exact(client)
    with running(broker_at(tmp_path, "third", lake=lake, data=data)) as client:
        client.tier_flush("kept", timeout_ms=60_000)
    refused = broker_at(tmp_path, "fourth", lake="", data=data)
    refused.start()
    assert not refused.wait_answering()
    assert refused.exit_code == 64
    assert "records of kept are in tables" in refused.log_tail()
    assert "lake.uri (HEADWATER_LAKE_URI)" in refused.log_tail()
    with running(broker_at(tmp_path, "fifth", lake=lake, data=data)) as client:
        first.assert_exact(client)


def test_a_lake_of_any_name_is_read_where_it_was_written(tmp_path: Path) -> None:
    """The lake is found by its path and by its URI, after a restart, too."""
    lake = tmp_path / "100% la#ke, né"
    with running(broker_at(tmp_path, "first", lake=str(lake), data=tmp_path / "data")) as client:
        client.create_stream("s", subject="s")
        witness = Witness(client, "s", seed="s", subject="s")
        with client.producer("s") as producer:
            witness.put(producer, 30)
        client.tier_flush("s", timeout_ms=60_000)
        witness.assert_exact(client)
    uri = lake.as_uri()
    with running(broker_at(tmp_path, "second", lake=uri, data=tmp_path / "data")) as client:
        witness.assert_exact(client)
        with client.producer("s") as producer:
            witness.put(producer, 30)
        client.tier_flush("s", timeout_ms=60_000)
        witness.assert_exact(client)
    assert (lake / "default" / "s" / "_delta_log").is_dir()


def test_a_lake_of_a_name_that_libraries_read_differently_is_refused(tmp_path: Path) -> None:
    """The log would lie in another folder than the objects."""
    broker = broker_at(tmp_path, "first", lake=str(tmp_path / "a%20b"), data=tmp_path / "data")
    broker.start()
    assert not broker.wait_answering()
    assert broker.exit_code == 64
    assert "choose another place" in broker.log_tail()
