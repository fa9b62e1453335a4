"""Issue 11, item 8: streams can be changed and purged while in use; a refusal says why."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
from broker.errors import (
    FencedError,
    HeldByLeaseError,
    NotShippedError,
    PurgedError,
    PurgeRefusedError,
    RecordTooLargeError,
    UnavailableError,
)
from broker.model.certificate import Hole
from broker.model.offsets import Offset
from clusterkit.load import check, load, stored
from clusterkit.running import Cluster
from crashkit.stage import Stage, staged
from headwater.cli.main import app
from headwater.client import Client
from headwater.local.embedded import start_nats

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def _run(server: str, *arguments: str, exit_code: int = 0) -> Any:
    """Run ``headwater stream …`` as a person would."""
    result = CliRunner().invoke(app, ["stream", *arguments, "--server", server])
    assert result.exit_code == exit_code, result.output
    return result


def _put(client: Client, stream: str, *values: bytes) -> None:
    with client.producer(stream) as producer:
        for value in values:
            producer.send([value]).result(60)


def _whole(url: str, stream: str) -> list[bytes]:
    """Read table and tail, certified."""
    rows, certificate = headwater.read_table(stream, server=url)
    assert certificate.records_count == rows.num_rows
    values: list[bytes] = rows.column("value").to_pylist()
    return values


# ---------------------------------------------------------------------------- one broker


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A broker with a lake."""
    with staged(tmp_path) as found:
        yield found


def test_a_change_holds_at_once_and_after_a_kill(stage: Stage) -> None:
    """The change holds for a connected producer, too; the command shows both settings."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s")

    def send_around_the_change() -> None:
        with client.producer("s") as producer:
            producer.send([b"x" * 5000]).result(60)
            told = json.loads(_run(url, "alter", "s", "--record-bytes", "4KiB", "--json").stdout)
            assert told["changes"] == {"record_bytes_max": {"before": 8 << 20, "after": 4096}}
            producer.send([b"x" * 5000]).result(60)

    with pytest.raises(RecordTooLargeError):
        send_around_the_change()
    _put(client, "s", b"small")
    stage.broker.kill()
    stage.broker.start()
    stage.broker.wait_ready()
    with pytest.raises(RecordTooLargeError), client.producer("s") as producer:
        producer.send([b"x" * 5000]).result(60)
    assert stored(client, "s") == [b"x" * 5000, b"small"]


def test_less_retention_frees_what_is_in_the_table_and_no_more(stage: Stage) -> None:
    """Certified reads before, between and after have the same records."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
    sent = [b"%04d" % number * 100 for number in range(200)]
    _put(client, "s", *sent)
    client.tier_flush("s")
    assert client.describe("s").partitions[0].log_start == 0
    _run(url, "alter", "s", "--local-retention", "0")
    for number in range(3_000):  # until the next look at the log
        if client.describe("s").partitions[0].log_start > 0:
            break
        sent.append(b"more %d" % number)
        _put(client, "s", sent[-1])
    (freed,) = client.describe("s").partitions
    assert 0 < freed.log_start <= client.tier_status("s")[0].cold.end
    assert freed.start == 0
    assert stored(client, "s") == sent
    assert _whole(url, "s") == sent


def test_a_stream_without_a_table_gets_one_with_all_its_records(stage: Stage) -> None:
    """The table begins at the first record, also with a restart between the records."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", tiering=False, segment_bytes_max=4096)
    sent = [b"%04d" % number * 100 for number in range(100)]
    _put(client, "s", *sent)
    begun = _run(url, "alter", "s", "--tiering")
    assert "default/s" in begun.output
    _put(client, "s", b"after")
    client.tier_flush("s")
    stage.broker.kill()
    stage.broker.start()
    stage.broker.wait_ready()
    (status,) = client.tier_status("s")
    assert (status.cold.start, status.cold.end) == (0, 101)
    assert _whole(url, "s") == [*sent, b"after"]
    refused = _run(url, "alter", "s", "--no-tiering", exit_code=2)
    assert "FixedSettingError" in refused.output


# ---------------------------------------------------------------------------- three brokers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, in sync."""
    with start_nats(tmp_path / "nats") as nats:
        found = Cluster(tmp_path, nats)
        try:
            found.start_all()
            yield found
        finally:
            found.close()


def test_leaders_followers_and_their_successors_obey(cluster: Cluster) -> None:
    """The change comes under load and loses no record; a broker that was down obeys it later."""
    client = cluster.client()
    client.create_stream("s", replication_factor=3, min_isr=2)
    leader = cluster.leader("s")
    away = (leader + 1) % 3
    with load(client, "s") as running:
        running.wait_acked(20)
        cluster.kill(away)
        _run(cluster.url, "alter", "s", "--segment-bytes", "4KiB", "--record-bytes", "1000")
        running.wait_acked(200)
        cluster.start(away)
        cluster.wait_for(cluster.in_sync("s"), "every replica in sync")
        running.wait_acked(50)
        cluster.kill(leader)
        running.wait_acked(50)
    cluster.wait_for(lambda: cluster.leader("s") != leader, "a broker that knows the successor")
    successor = cluster.client(cluster.url_of(cluster.leader("s")))
    assert successor.stream("s").config.segment_bytes_max == 4096
    with pytest.raises(RecordTooLargeError), successor.producer("s") as producer:
        producer.send([b"x" * 1001]).result(60)
    cluster.start(leader)
    cluster.wait_for(cluster.in_sync("s"), "every replica in sync")
    check(client, "s", running)


def test_the_minimum_of_in_sync_replicas_goes_up_and_down(cluster: Cluster) -> None:
    """With the minimum up, a record waits for all three; with it down, one broker may be away."""
    client = cluster.client()
    client.create_stream("s", replication_factor=3, min_isr=1)
    _put(client, "s", b"0")
    _run(cluster.url, "alter", "s", "--min-isr", "3")
    _put(client, "s", b"1")
    leader = cluster.leader("s")
    cluster.kill((leader + 1) % 3)
    isr = 'headwater_replica_isr{partition="0",stream="s"}'  # as the leader itself knows it
    cluster.wait_for(lambda: cluster.metrics(leader).get(isr) == 2, "the ISR without the dead one")
    with pytest.raises(UnavailableError), client.producer("s", retry_ms_max=500) as producer:
        producer.send([b"too few"]).result(60)
    refused = _run(cluster.url, "alter", "s", "--min-isr", "4", exit_code=2)
    assert "InvalidStreamError" in refused.output
    _run(cluster.url, "alter", "s", "--min-isr", "2")
    _put(client, "s", b"2")
    assert stored(client, "s") == [b"0", b"1", b"2"]


# ---------------------------------------------------------------------------- purged

VALUES = [b"%04d" % number * 100 for number in range(100)]


def _purge(server: str, *arguments: str) -> Any:
    """Run ``headwater stream purge …`` as a person would; return its output."""
    return json.loads(_run(server, "purge", *arguments, "--yes", "--json").stdout)


def _read_from(client: Client, offset: int) -> list[bytes]:
    parts = client.fetch("s", start=offset)
    return [value for part in parts for value in part.batch["value"].to_pylist()]


def test_what_is_purged_stays_purged_and_is_said_to_be(stage: Stage) -> None:
    """It survives a kill; a read below it is a typed error, and a certificate names the hole."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", tiering=False, segment_bytes_max=4096)
    _put(client, "s", *VALUES)
    assert _purge(url, "s", "--before", "60")["end"] == 60
    for _ in range(2):
        assert _read_from(client, 60) == stored(client, "s") == VALUES[60:]
        with pytest.raises(PurgedError):
            _read_from(client, 59)
        rows, certificate = headwater.read_table("s", server=url)
        assert rows.column("value").to_pylist() == VALUES[60:]
        (part,) = certificate.partitions
        assert (part.start, part.end, part.records_count) == (60, 100, 40)
        assert part.holes == (Hole(Offset(0), Offset(60), "purge"),)
        assert client.describe("s").partitions[0].purged_end == 60
        stage.broker.kill()
        stage.broker.start()
        stage.broker.wait_ready()
    _put(client, "s", b"next")
    assert _read_from(client, 100) == [b"next"]


def test_a_reader_keeps_what_it_was_promised(stage: Stage) -> None:
    """A purge waits for its lease; a new reader begins above."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", tiering=False)
    _put(client, "s", *VALUES)
    cut = client.cut("s", owner="report")
    with pytest.raises(HeldByLeaseError) as caught:
        client.purge_stream("s")
    assert caught.value.owners == ["report"]
    rows, _ = headwater.read_table("s", as_of=cut, server=url)
    assert rows.column("value").to_pylist() == VALUES
    client.drop_lease(cut.lease.lease_id)
    (done,) = client.purge_stream("s")
    assert (done.start, done.end) == (0, 100)
    assert stored(client, "s") == []


@pytest.mark.parametrize("saved", [False, True])
def test_a_cut_whose_lease_has_ended_is_refused_below_a_purge(stage: Stage, saved: bool) -> None:
    """The typed error has the first available offset; the read is neither short nor a gap."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", tiering=False, segment_bytes_max=4096)
    _put(client, "s", *VALUES)
    cut = client.cut("s", owner="report")
    client.drop_lease(cut.lease.lease_id)
    client.purge_stream("s", before=60)
    with pytest.raises(PurgedError) as caught:
        headwater.read_table("s", as_of=cut.save() if saved else cut, server=url)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (0, 60, 100)
    rows, _ = headwater.read_table("s", as_of={0: 80}, server=url)
    assert rows.column("value").to_pylist() == VALUES[60:80], "a new cut begins where they do"


def test_a_kill_amid_purges_and_changes_takes_nothing_back(stage: Stage) -> None:
    """Processes end by SIGKILL while both are asked for; what was answered stands at each start."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", tiering=False, segment_bytes_max=64 << 10, flush="interval")
    over, answered = threading.Event(), threading.Semaphore(0)
    told = {"purged": 0, "changed": 0, "asked": 0}

    def ask() -> None:
        with Client(url) as mine:
            while not over.is_set():
                told["asked"] += 1
                with suppress(UnavailableError, FencedError):
                    _put(mine, "s", *VALUES[:3])
                    (done,) = mine.purge_stream("s")
                    assert done.purged_end >= told["purged"]
                    told["purged"] = done.purged_end
                    mine.alter_stream("s", record_bytes_max=(1 << 20) + told["asked"])
                    told["changed"] = told["asked"]
                    answered.release()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(3):
            for _ in range(3):
                assert answered.acquire(timeout=60)
            stage.broker.kill()
            stage.broker.start()
            stage.broker.wait_ready()
            purged, changed = told["purged"], told["changed"]
            found = client.describe("s")
            assert found.partitions[0].purged_end >= purged
            assert found.stream.config.record_bytes_max >= (1 << 20) + changed
    finally:
        over.set()
        asking.join(60)
    assert not asking.is_alive()
    end = client.describe("s").partitions[0].high_watermark
    (done,) = client.purge_stream("s")
    assert (done.purged_end, stored(client, "s")) == (end, [])


def test_each_partition_is_purged_and_said_to_be(stage: Stage) -> None:
    """The first partition refuses; the others are purged, and the error names each outcome."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", partitions=3)
    for number in (1, 2):
        with client.producer("s", number) as producer:
            producer.send([b"x"] * 5).result(60)
    client.tier_flush("s")
    with client.producer("s", 0) as producer:
        producer.send([b"hot"]).result(60)
    with pytest.raises(PurgeRefusedError) as caught:
        client.purge_stream("s")
    assert [(one.partition, one.purged_end) for one in caught.value.purged] == [(1, 5), (2, 5)]
    assert isinstance(caught.value.refused[0], NotShippedError)
    told = _run(url, "purge", "s", "--yes", exit_code=3)
    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert lines[1].startswith("0 - - refused: NotShippedError: ")
    assert lines[2:] == [f"{number} - 0 already purged below offset 5" for number in (1, 2)]


def test_the_table_of_a_tiered_stream_keeps_its_rows(stage: Stage) -> None:
    """Only records in the table are freed on the disk; a read stays complete and certified."""
    client, url = stage.client, stage.broker.url
    client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
    _put(client, "s", *VALUES)
    client.tier_flush("s")
    _put(client, "s", b"hot")
    with pytest.raises(NotShippedError):
        client.purge_stream("s")
    (status,) = client.tier_status("s")
    done = _purge(url, "s", "--before", str(status.cold.end))
    assert done["in_table"] is True
    (position,) = client.describe("s").partitions
    assert (position.start, position.log_start) == (0, status.cold.end)
    assert stored(client, "s") == [*VALUES, b"hot"]
    rows, certificate = headwater.read_table("s", server=url)
    assert rows.column("value").to_pylist() == [*VALUES, b"hot"]
    assert certificate.partitions[0].holes == ()


def test_no_replica_and_no_new_leader_brings_records_back(cluster: Cluster) -> None:
    """Purged under load, with one broker down; then its leader goes, and the third one leads."""
    client = cluster.client()
    client.create_stream(
        "s", replication_factor=3, min_isr=2, tiering=False, segment_bytes_max=4096
    )
    leader = cluster.leader("s")
    away = (leader + 1) % 3
    with load(client, "s") as running:
        running.wait_acked(100)
        cluster.kill(away)
        running.wait_acked(100)
        assert _purge(cluster.url, "s", "--before", "150")["end"] == 150
        running.wait_acked(20)
        cluster.start(away)
        cluster.wait_for(cluster.in_sync("s"), "every replica in sync")
        cluster.kill(leader)
        running.wait_acked(50)
    found = stored(client, "s")
    assert found == running.sent[150:]
    assert all(found[at - 150] == value for at, value in running.acked if at >= 150)
    with pytest.raises(PurgedError):
        _read_from(client, 149)
    cluster.start(leader)
    cluster.wait_for(cluster.in_sync("s"), "every replica in sync")
    for number in range(3):
        cluster.wait_for(
            lambda number=number: cluster.read_at(number, "s") == found,  # type: ignore[misc]
            f"broker {number} with the same records",
        )
