"""Key compaction of a running broker's table: what leaves it, and what each reader gets."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headwater
from broker.model.certificate import Hole
from clusterkit.load import stored
from crashkit.stage import staged
from headwater.cli.main import app
from headwater.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SENT = [(b"k%d" % (number % 5), b"%04d" % number * 100) for number in range(100)]


def _run(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--server", url])
    assert result.exit_code == 0, result.output
    return result.stdout


def _until_compacted(client: Client, url: str) -> Hole:
    """Wait until records have left the table, and the local log, which is freed once a second."""
    deadline_s = time.monotonic() + 120
    while True:
        _, proof = headwater.read_table("s", columns=["offset"], server=url)
        holes = proof.partitions[0].holes
        if holes and client.tier_status("s")[0].local_start >= holes[0].end:
            return holes[0]
        assert time.monotonic() < deadline_s, "no record has left the table and the local log"
        time.sleep(0.05)


def _require_left(client: Client, url: str, hole: Hole) -> None:
    """Check that every reader gets what is left, and is told how much is not."""
    values = [value for _, value in SENT]
    left = values[hole.end - 5 :]  # the last one of each of five keys, and all above
    assert stored(client, "s") == left
    with client.fetch("s", start="earliest") as fetched:
        assert sum(one.removed_count for one in fetched) == hole.missing_count
    rows, certificate = headwater.read_table("s", server=url)
    assert rows.column("value").to_pylist() == left
    assert certificate.partitions[0].holes == (hole,)
    newest, _ = headwater.read_table("s", latest=True, server=url)
    assert newest.column("value").to_pylist() == values[-5:]
    while client.tier_status("s")[0].gone_count is None:
        time.sleep(0.02)  # the leader has just begun, and has not read the table yet
    assert f"{len(left)} of {len(SENT)} offsets" in _run(url, "stream", "list")
    counted = json.loads(_run(url, "stream", "list", "--json"))
    assert counted["records_count"] == counted["table_rows_count"] == len(left)
    told = json.loads(_run(url, "verify", "s", "--json"))["certificate"]["partitions"][0]
    assert (told["cold_count"] + told["hot_count"], told["end"]) == (len(left), len(SENT))


def _require_group(url: str, left: list[int]) -> None:
    """Check that a group whose position is in the sparse range gets each record once."""
    _run(url, "group", "reset", "g", "--stream", "s", "--partition", "0", "--to", "1")
    given = [
        json.loads(line)["offset"]
        for more in (("--count", "3"), ())
        for line in _run(
            url, "subscribe", "s", "--group", "g", *more, "--format", "json"
        ).splitlines()
    ]
    assert given == left
    with Client(url) as client, client.consumer("s", group="h", columns=["value"]) as member:
        assert [one.offset for _, one in zip(left, member, strict=False)] == left


def test_superseded_records_leave_the_table_and_every_reader_is_told(tmp_path: Path) -> None:
    """The command sets it; it holds after a kill, and a cut from before reads each record."""
    with staged(tmp_path) as stage:
        client, url = stage.client, stage.broker.url
        client.create_stream(
            "s", segment_bytes_max=4096, dedup_window_ms=0, local_retention_bytes=0
        )
        with client.producer("s") as producer:
            for key, value in SENT:
                producer.send([{"key": key, "value": value}]).result(60)
        client.tier_flush("s")
        cut = client.cut("s", ttl_ms=3_600_000)
        before = cut.save()
        client.drop_lease(cut.lease.lease_id)
        assert stored(client, "s") == [value for _, value in SENT]
        _run(url, "stream", "alter", "s", "--history", "compact")
        hole = _until_compacted(client, url)
        assert (hole.reason, hole.end - hole.start - 5) == ("compaction", hole.missing_count)
        _require_left(client, url, hole)
        _require_group(url, [*range(hole.end - 5, len(SENT))])
        stage.broker.kill()
        stage.broker.start()
        stage.broker.wait_ready()
        _run(url, "stream", "alter", "s", "--history", "keep")
        _require_left(client, url, hole)
        rows, certificate = headwater.read_table("s", as_of=before, server=url)
        assert rows.column("value").to_pylist() == [value for _, value in SENT]
        assert certificate.partitions[0].holes == ()
