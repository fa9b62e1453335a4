"""How much a subscription at an offset that only the table has asks of a bucket."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterkit.lift_calls import until
from crashkit.stage import staged
from headwater.liftbridge import Liftbridge, Since
from headwater.local import embedded

pytestmark = [pytest.mark.integration, pytest.mark.slow]

REQUEST = re.compile(r'"((?:GET|HEAD|PUT|POST|DELETE) \S+) HTTP')
RECORDS = 20_000
TRIES = 5
READS_MAX = 3  # a list of the Delta log, the size of the file, and its rows


def test_the_first_message_takes_three_reads_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of the log says that nothing has changed, and one file has the offset."""
    log = tmp_path / "moto" / "moto.log"
    with embedded.start_moto(tmp_path / "moto", bucket="first") as moto:
        environment = embedded.moto_environment(moto.address)
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        port = embedded.free_port()
        with (
            staged(
                tmp_path,
                lake="s3://first/lake",
                environment=environment,
                settings={"liftbridge": {"enabled": True, "port": port}},
            ) as stage,
            Liftbridge(f"127.0.0.1:{port}") as client,
        ):
            stage.client.create_stream(
                "cold", segment_bytes_max=256 * 1024, local_retention_bytes=1
            )
            with stage.client.producer("cold") as producer:
                for _ in range(RECORDS // 500):
                    producer.send([b"x" * 100] * 500)
            stage.client.tier_flush("cold")

            def log_start() -> int:
                return stage.client.describe("cold").partitions[0].log_start

            until(lambda: log_start() > RECORDS // 2, "the local log to free its begin")
            end = log_start()
            asked = [_asked(log, client, offset) for offset in range(end - TRIES, end)]
    # A leader lists its table and its claims now and then, whoever reads: not in each of the tries.
    assert 0 < min(map(len, asked)) <= READS_MAX, asked


def _asked(log: Path, client: Liftbridge, offset: int) -> list[str]:
    """Return what was asked of the bucket until a subscription had its first message."""
    seen = len(log.read_text())
    subscription = client.subscribe("cold", start=Since.offset(offset))
    assert next(iter(subscription)).offset == offset
    found = REQUEST.findall(log.read_text()[seen:])
    subscription.close()
    return found
