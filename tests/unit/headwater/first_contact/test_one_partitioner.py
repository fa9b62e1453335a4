"""Issue 11, item 3: every producer puts a key into the same partition of a stream."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.core.metadata.commands import CreateStream
from broker.core.metadata.state import MetadataState
from broker.core.metadata.stream_apply import apply_stream
from broker.errors import InvalidRequestError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.partitioner import partition_of_key
from broker.model.stream import Stream, StreamConfig
from headwater.client import Client
from projectfiles import ROOT
from simkit.brokers.memory_broker import MemoryBroker
from spark_jobs.sink.columns import targets

Run = Callable[..., Any]


def succeeds(result: Any) -> None:
    """Check an exit code, and show what the command said if it is another one."""
    assert result.exit_code == 0, result.output


KEYS = [f"k{number}" for number in range(40)]
COUNT = 4


def _partitions_of_keys(client: Client, stream: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for partition in range(COUNT):
        with client.fetch(stream, partition, columns=["key"]) as fetch:
            for piece in fetch:
                for key in piece.batch.column("key").to_pylist():
                    found.setdefault(key.decode(), set()).add(partition)
    return found


def test_command_client_and_spark_put_a_key_into_one_partition(run: Run, address: str) -> None:
    """The partition is the CRC-32 (IEEE) of the key, whoever sends the record."""
    succeeds(run("stream", "create", "s", "--partitions", str(COUNT)))
    lines = "".join(json.dumps({"id": key}) + "\n" for key in KEYS)
    sent = run("publish", "s", "--via", "flight", "--key-field", "id", stdin=lines)
    assert sent.exit_code == 0, sent.output
    with Client(address) as client:
        with client.partitioned_producer("s") as producer:
            producer.send([{"key": key, "value": b"v"} for key in KEYS]).result(10)
        found = _partitions_of_keys(client, "s")
    rows = pa.record_batch({"key": pa.array(KEYS), "value": pa.array([b""] * len(KEYS))})
    spark = targets(rows, partitions_count=COUNT, turn=0).tolist()
    assert found == {key: {zlib.crc32(key.encode()) % COUNT} for key in KEYS}
    assert spark == [zlib.crc32(key.encode()) % COUNT for key in KEYS]


def test_records_without_a_key_go_round_by_batch(run: Run, broker: MemoryBroker) -> None:
    """A batch stays together, the next batch goes to the next partition."""
    succeeds(run("stream", "create", "s", "--partitions", "3"))
    with Client() as client, client.partitioned_producer("s") as producer:
        ends = [dict(producer.send([b"1", b"2"]).result(10)) for _ in range(6)]
    assert [list(end) for end in ends] == [[0], [1], [2], [0], [1], [2]]
    parts = [broker.partitions.handle("s", number) for number in range(3)]
    assert [one.high_watermark for one in parts] == [4, 4, 4]
    succeeds(run("publish", "s", "--via", "flight", stdin="a\nb\nc\n"))
    assert [one.high_watermark for one in parts] == [7, 4, 4]


def test_a_producer_of_one_partition_does_not_take_partition_0_unasked(
    run: Run, address: str
) -> None:
    """`producer(stream)` of several partitions names the producer that spreads keys."""
    succeeds(run("stream", "create", "s", "--partitions", "2"))
    succeeds(run("stream", "create", "one"))
    with Client(address) as client:
        with pytest.raises(InvalidRequestError, match="partitioned_producer"):
            client.producer("s")
        with client.producer("one") as producer:
            assert producer.send([b"x"]).result(10).base_offset == 0
        with client.producer("s", 1) as producer:
            assert producer.send([b"x"]).result(10).base_offset == 0


def test_publishing_keys_to_a_chosen_partition_says_what_that_means(run: Run) -> None:
    """The command tells that other producers put these keys elsewhere."""
    run("stream", "create", "s", "--partitions", "2")
    sent = run("publish", "s", "--via", "flight", "-k", "a", "-p", "1", stdin="x\n")
    assert sent.exit_code == 0
    assert "whatever their keys" in sent.stderr


def test_a_stream_without_the_setting_keeps_what_its_producers_did(
    run: Run, broker: MemoryBroker, address: str
) -> None:
    """Metadata of release 0.1 names no partitioner; its streams are each_client."""
    made = broker.streams.create("old", StreamConfig(subject="old", partitions=COUNT))
    values = json.loads(made.to_json())
    del values["config"]["partitioner"]
    old = Stream.from_dict(values)
    assert old.config.partitioner == "each_client"
    broker._streams["old"] = old
    lines = "".join(json.dumps({"id": key}) + "\n" for key in KEYS)
    args = ("publish", "old", "--via", "flight", "--key-field", "id")
    succeeds(run(*args, stdin=lines))
    with Client(address) as client:
        with client.producer("old") as producer:  # partition 0, as in release 0.1
            producer.send([b"x"]).result(10)
        with pytest.raises(InvalidRequestError, match="each_client"):
            client.partitioned_producer("old")
    assert broker.partitions.handle("old", 0).high_watermark > 0
    again = run("stream", "create", "old", "--partitions", str(COUNT), "--partitioner", "crc32")
    assert again.exit_code == 0
    assert "keeps its partitioner, each_client" in again.stderr


def test_metadata_takes_a_second_create_of_an_old_stream_for_the_same() -> None:
    """A script that creates its streams at each start goes on working after an update."""
    config = StreamConfig(subject="s", partitions=2, partitioner="each_client")
    uuid = StreamUuid("00000000-0000-4000-8000-000000000001")
    old = Stream(name="s", uuid=uuid, config=config, created_us=1, table_name="s")
    first, _ = apply_stream(MetadataState(), CreateStream(stream=old, leader=BrokerId("b")))
    wanted = replace(old, config=replace(config, partitioner="crc32"))
    second, answer = apply_stream(first, CreateStream(stream=wanted, leader=BrokerId("b")))
    assert second == first
    assert answer == {"uuid": uuid, "created": False}


def test_the_rule_is_written_down() -> None:
    """CRC-32 IEEE has the check value of its catalogue: 0xCBF43926 for 123456789."""
    assert partition_of_key(b"123456789", 2**32) == 0xCBF43926
    assert "zlib.crc32(key)" in (ROOT / "docs/client.md").read_text(encoding="utf-8")
