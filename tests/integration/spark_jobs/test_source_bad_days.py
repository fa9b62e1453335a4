"""A streaming query and a real broker that die at random moments, with tiering going on.

Spark is replaced by its contract: offsets are written before a batch, the batch is repeated until
it is committed, the initial offset is asked for again by every new process. So hundreds of deaths
cost seconds. Real Spark runs the same reader in test_source_stream.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable

from broker.errors import StreamRecreatedError
from crashkit.stage import Stage, staged
from headwater.client import Client
from headwater.reads.lease_keeper import KEEPER
from simkit.brokers.memory_broker import numbered
from spark_jobs.failures import typed
from spark_jobs.source.options import parse_stream
from spark_jobs.source.stream_reader import HeadwaterStreamReader

pytestmark = pytest.mark.integration

COLUMNS = ("partition", "offset", "value")
SMALL: dict[str, Any] = {
    "segment_bytes_max": 16_384,
    "segment_age_ms_max": 100,
    "local_retention_bytes": 0,
}


class DiedError(Exception):
    """The query's process is gone; its checkpoint and what the sink took are not."""


@dataclass
class Checkpoint:
    """What outlives a process, as Spark keeps it, and an idempotent sink."""

    offsets: list[str] = field(default_factory=list)
    committed_count: int = 0
    batches: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def rows(self) -> list[tuple[int, int, int]]:
        """All rows by batch, in the order in which tasks gave them."""
        return [row for number in sorted(self.batches) for row in self.batches[number]]


class Query:
    """One process of a query."""

    def __init__(self, checkpoint: Checkpoint, options: dict[str, str]) -> None:
        self._checkpoint = checkpoint
        self._options = parse_stream(options)
        self._reader = HeadwaterStreamReader(self._options, COLUMNS)

    def step(self, may_die: Callable[[], None]) -> bool:
        """Run one batch, or repeat an unfinished one; tell whether there was one."""
        kept = self._checkpoint
        number = kept.committed_count
        start = json.loads(kept.offsets[number - 1]) if number else self._reader.initialOffset()
        if len(kept.offsets) == number:
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if json.dumps(end) == json.dumps(start):
                return False
            may_die()
            kept.offsets.append(json.dumps(end))
        may_die()
        end = json.loads(kept.offsets[number])
        kept.batches[number] = list(self._rows(start, end, may_die))
        may_die()
        kept.committed_count += 1
        self._reader.commit(end)
        return True

    def _rows(
        self, start: dict[str, Any], end: dict[str, Any], may_die: Callable[[], None]
    ) -> Iterator[tuple[int, int, int]]:
        for part in self._reader.partitions(start, end):
            worker = HeadwaterStreamReader(self._options, COLUMNS)  # executors have a copy
            for batch in worker.read(part):
                may_die()
                values = [int(value) for value in batch.column("value").to_pylist()]
                columns = (batch.column("partition"), batch.column("offset"))
                yield from zip(*(column.to_pylist() for column in columns), values, strict=True)


def publish(client: Client, partition: int, start: int, count: int) -> None:
    """Store records whose values are their offsets, each batch acknowledged."""
    with client.producer("s", partition) as producer:
        for at in range(start, start + count, 50):
            producer.send(numbered(at, min(50, start + count - at))).result(timeout=60)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A real broker that ships small segments at once and frees them."""
    with staged(tmp_path) as found:
        yield found
        KEEPER.release_all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_deaths_at_random_moments_change_no_row(stage: Stage, tmp_path: Path, seed: int) -> None:
    """Query and broker die; segments are shipped, freed, compacted: each record once."""
    dice = random.Random(seed)
    stream = stage.client.create_stream("s", partitions=2, **SMALL)
    table = tmp_path / "lake" / stream.namespace / stream.table_name
    options = {
        "server": stage.broker.url,
        "subscribe": "s",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400",
        "minPartitions": "3",
    }
    checkpoint, written, deaths = Checkpoint(), [0, 0], 0

    def may_die() -> None:
        if dice.random() < 0.15:
            raise DiedError

    for round_number in range(40):
        partition, count = dice.randrange(2), dice.randrange(300)
        stage.broker.wait_ready()
        publish(stage.client, partition, written[partition], count)
        written[partition] += count
        if round_number % 13 == 5:
            stage.client.tier_flush("s")
            DeltaTable(str(table)).optimize.compact()
        if round_number % 13 == 9:
            stage.broker.kill()
            stage.broker.start()  # comes back while the query asks
        try:
            query = Query(checkpoint, options)
            for _ in range(dice.randrange(4)):
                query.step(may_die)
        except DiedError:
            deaths += 1
    stage.broker.wait_ready()
    query = Query(checkpoint, options)
    while query.step(lambda: None):
        pass

    rows = checkpoint.rows()
    for partition in range(2):
        own = [row[1:] for row in rows if row[0] == partition]
        assert sorted(own) == [(offset, offset) for offset in range(written[partition])]
    for number, batch in checkpoint.batches.items():
        assert len(batch) <= 400, f"batch {number} is over the limit"
    assert deaths > 5
    assert any(status.cold.end > 0 for status in stage.client.tier_status("s"))


def test_latest_survives_a_death_in_the_first_batch(stage: Stage) -> None:
    """A repeated first batch begins where it began, though "latest" is elsewhere by then."""
    stage.client.create_stream("s")
    publish(stage.client, 0, 0, 10)
    options = {"server": stage.broker.url, "subscribe": "s", "startingOffsets": "latest"}
    checkpoint = Checkpoint()
    query = Query(checkpoint, options)
    assert query.step(lambda: None)
    publish(stage.client, 0, 10, 5)
    deaths = iter([None, DiedError()])

    def second_time() -> None:
        death = next(deaths, None)
        if death is not None:
            raise death

    with pytest.raises(DiedError):
        query.step(second_time)
    publish(stage.client, 0, 15, 5)
    query = Query(checkpoint, options)
    while query.step(lambda: None):
        pass

    assert [row[1] for row in checkpoint.rows()] == list(range(10, 20))


def test_a_query_without_batches_begins_where_its_first_batch_says(stage: Stage) -> None:
    """The first batch has records, its process dies before the end, and more records come."""
    stage.client.create_stream("s")
    publish(stage.client, 0, 0, 10)
    options = {"server": stage.broker.url, "subscribe": "s", "startingOffsets": "latest"}
    checkpoint = Checkpoint()
    reader = HeadwaterStreamReader(parse_stream(options), COLUMNS)
    start = reader.initialOffset()
    publish(stage.client, 0, 10, 5)
    checkpoint.offsets.append(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    reader.stop()
    publish(stage.client, 0, 15, 5)

    query = Query(checkpoint, options)
    while query.step(lambda: None):
        pass

    assert [row[1] for row in checkpoint.rows()] == list(range(10, 20))


def test_a_stream_created_again_under_a_running_query_is_refused(stage: Stage) -> None:
    """Neither a new batch nor an unfinished one takes a row of the other stream."""
    stage.client.create_stream("s")
    publish(stage.client, 0, 0, 10)
    options = {"server": stage.broker.url, "subscribe": "s", "startingOffsets": "earliest"}
    checkpoint = Checkpoint()
    query = Query(checkpoint, options)
    end = query._reader.latestOffset(query._reader.initialOffset(), ReadAllAvailable())
    checkpoint.offsets.append(json.dumps(end))
    stage.client.delete_stream("s")
    stage.client.create_stream("s")
    publish(stage.client, 0, 0, 20)

    for life in (query, Query(checkpoint, options)):
        with pytest.raises(StreamRecreatedError) as caught:
            life.step(lambda: None)
        assert typed(caught.value) is caught.value
    assert checkpoint.batches == {}
