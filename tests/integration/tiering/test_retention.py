"""Remote retention of a running broker: what goes, what stays, and what each reader is told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
from broker.errors import ExpiredError
from broker.model.certificate import Hole
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from clusterkit.load import stored
from crashkit.stage import Stage, staged
from headwater.cli.main import app
from headwater.client import Client
from simkit.servers.motoproc import fresh, moto_location
from simkit.tier.lab import TierLab, certify, forget_proofs
from tiering.read.verify import verify_table

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SENT = [b"%04d" % number * 100 for number in range(200)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A broker with a lake, and a stream ``s`` whose records are in the table."""
    with staged(tmp_path) as found:
        found.client.create_stream("s", segment_bytes_max=4096, dedup_window_ms=0)
        _put(found.client, SENT)
        found.client.tier_flush("s")
        yield found


def _put(client: Client, values: list[bytes]) -> None:
    with client.producer("s") as producer:
        for value in values:
            producer.send([value]).result(60)


def _run(server: str, *arguments: str, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--server", server])
    assert result.exit_code == exit_code, result.output
    return result


def _table_start(url: str) -> int:
    cut = headwater.read_table("s", server=url)[1]
    return int(cut.partitions[0].start)


def _until_expired(url: str) -> int:
    deadline_s = time.monotonic() + 120
    while not (start := _table_start(url)):
        assert time.monotonic() < deadline_s, "nothing has expired"
    return start


def test_old_records_expire_in_every_tier_and_every_reader_is_told(stage: Stage) -> None:
    """The command sets it; table, log and certificate begin at one offset, also after a kill."""
    client, url = stage.client, stage.broker.url
    held = client.cut("s", ttl_ms=3_600_000)
    before = held.save()
    _run(url, "stream", "alter", "s", "--remote-retention-records", "50")
    start = _until_expired(url)
    assert 100 < start <= 150
    [part] = client.describe("s").partitions
    assert (part.start, part.remote_start) == (start, start), "without a restart"
    assert part.log_start >= start
    assert stored(client, "s") == SENT[start:]
    stage.broker.kill()
    stage.broker.start()
    stage.broker.wait_ready()
    _put(client, [b"more"])
    [part] = client.describe("s").partitions
    assert (part.start, part.remote_start) == (start, start)
    assert part.log_start >= start
    assert stored(client, "s") == [*SENT[start:], b"more"]
    with pytest.raises(ExpiredError) as caught:
        list(client.fetch("s", start=start - 1))
    assert caught.value.start == start
    rows, certificate = headwater.read_table("s", server=url)
    assert rows.column("value").to_pylist() == [*SENT[start:], b"more"]
    assert certificate.partitions[0].holes == (Hole(Offset(0), Offset(start), "retention"),)
    told = json.loads(_run(url, "verify", "s", "--json").stdout)
    assert told["certificate"]["partitions"][0]["start"] == start
    rows, _ = headwater.read_table("s", server=url, as_of=before)
    assert rows.column("value").to_pylist() == SENT
    client.tier_flush("s")
    assert client.describe("s").partitions[0].high_watermark == len(SENT) + 1


def test_files_and_then_objects_leave_a_bucket(tmp_path: Path) -> None:
    """On S3 as in a folder: an expiry, an old version that is still exact, the deletion."""
    with moto_location(tmp_path) as location:
        lab = TierLab(fresh(location))
        lab.source.fill(4, 20)
        before = lab.ship_all()
        config = StreamConfig(subject="orders", remote_retention_records=40)
        lab.source.starts.config = config
        lab.ship_all()
        assert lab.table.snapshot().ranges[0] == OffsetRange(Offset(40), Offset(80))
        forget_proofs()
        assert certify(lab, before.version) == [80]
        assert certify(lab) == [40]
        [proof] = verify_table(lab.table.snapshot(), lab.table.store)
        assert (proof.start, proof.end) == (40, 80)
        assert len(list(lab.table.store.list("partition=0/"))) == 4
        lab.source.starts.config = replace(config, remote_delete_grace_ms=0)
        lab.ship_all()
        assert len(list(lab.table.store.list("partition=0/"))) == 2
        forget_proofs()
        assert certify(lab) == [40]
        with pytest.raises(ExpiredError):
            certify(lab, before.version)
