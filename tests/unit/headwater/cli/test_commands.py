"""Commands do what their help says, for people and for scripts."""

from __future__ import annotations

import csv
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from broker.errors import LogFailedError
from broker.model.stream import StreamConfig
from headwater.cli.publish_sinks import FlightSink
from simkit.brokers.memory_broker import MemoryBroker

Run = Callable[..., Any]


def _make(run: Run, *options: str) -> None:
    result = run("stream", "create", "orders", *options)
    assert result.exit_code == 0, result.output


def _publish(run: Run, text: str | bytes, *options: str) -> None:
    result = run("publish", "orders", "--via", "flight", *options, stdin=text)
    assert result.exit_code == 0, result.output


def test_create_uses_every_setting(run: Run, broker: MemoryBroker) -> None:
    """Sizes, durations and switches reach the stream's configuration in its units.

    Every setting is given a value that is not its default, so one without an option is noticed.
    """
    _make(
        run, "--subject", "o.in", "--partitions", "3", "--puback",
        "--puback-overlap", "--puback-headers-only", "--optimistic-concurrency",
        "--key-header", "K",
        "--queue-group", "g", "--partitioner", "each_client",
        "--dedup-window", "10m", "--dedup-ids", "500",
        "--record-bytes", "1MiB", "--segment-bytes", "8MiB", "--segment-age", "30s",
        "--index-interval", "4KiB",
        "--flush", "interval", "--flush-interval", "50ms", "--compression", "zstd",
        "--encryption", "xaes-256-gcm", "--table-encryption", "ciphertext",
        "--compact", "--tombstone-delay", "1h", "--compact-dirty-percent", "30",
        "--history", "compact",
        "--replication-factor", "3", "--min-isr", "2",
        "--local-retention", "1GB", "--local-retention-age", "2d", "--unshipped", "64MiB",
        "--local-retention-records", "7", "--remote-retention", "2GB",
        "--remote-retention-age", "30d", "--remote-retention-records", "9",
        "--remote-delete-grace", "1d", "--protect-groups",
        "--auto-pause", "1m", "--auto-pause-unless-subscribed",
    )  # fmt: skip
    config = broker.streams.get("orders").config
    assert config == StreamConfig(
        subject="o.in", partitions=3, puback=True, puback_overlap=True,
        puback_headers_only=True, optimistic_concurrency=True,
        key_header="K", queue_group="g",
        partitioner="each_client",
        dedup_window_ms=600_000, dedup_ids_max=500, record_bytes_max=1 << 20,
        segment_bytes_max=8 << 20, segment_age_ms_max=30_000, index_interval_bytes=4096,
        flush="interval", flush_interval_ms=50, compression="zstd",
        encryption="xaes-256-gcm", table_encryption="ciphertext",
        compact=True, tombstone_delay_ms=3_600_000, compact_dirty_percent=30, history="compact",
        replication_factor=3, min_isr=2,
        local_retention_bytes=10**9, local_retention_ms=172_800_000, unshipped_bytes_max=64 << 20,
        local_retention_records=7, remote_retention_bytes=2 * 10**9,
        remote_retention_ms=2_592_000_000, remote_retention_records=9,
        remote_delete_grace_ms=86_400_000, protect_groups=True,
        auto_pause_ms=60_000, auto_pause_unless_subscribed=True,
    )  # fmt: skip
    defaults = StreamConfig(subject="orders").to_dict()
    same = [name for name, value in config.to_dict().items() if value == defaults[name]]
    assert same == ["tiering"], "a stream without a table has no remote retention"
    assert run("stream", "create", "bare", "--no-tiering").exit_code == 0
    assert not broker.streams.get("bare").config.tiering
    refused = run("stream", "create", "no", "--no-tiering", "--remote-retention-age", "1d")
    assert "has no table whose files could expire" in " ".join(refused.stderr.split())


def test_every_broker_may_be_asked_for(run: Run, broker: MemoryBroker) -> None:
    """A word, because no number would stay right; other words are refused."""
    _make(run, "--replication-factor", "all")
    assert broker.streams.get("orders").config.replication_factor == -1
    for wrong in ("-1", "0", "8", "many", ""):
        refused = run("stream", "create", "other", "--replication-factor", wrong)
        assert refused.exit_code == 2, refused.output


def test_a_command_that_places_keys_is_told_of_more_partitions(
    run: Run, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream grows between its look at the stream and its first record: refused by name."""
    _make(run)
    original = FlightSink.send

    def send(self: FlightSink, records: Any) -> None:
        broker.streams.alter("orders", {"partitions": 2})
        original(self, records)

    monkeypatch.setattr(FlightSink, "send", send)
    result = run("publish", "orders", "--via", "flight", "--key", "k", stdin="v")
    assert result.exit_code != 0
    assert "PartitionsAddedError" in result.stderr
    _publish(run, "w")  # without a key nothing was placed


def test_alter_changes_every_setting_that_may(run: Run, broker: MemoryBroker) -> None:
    """Each fixed setting is refused with its reason; no changeable one lacks an option."""
    _make(run, "--unshipped", "1GiB", "--local-retention-age", "2d", "--remote-retention-age", "2d")
    before = broker.streams.get("orders").config.to_dict()
    result = run(
        "stream", "alter", "orders", "--puback", "--puback-overlap", "--puback-headers-only",
        "--optimistic-concurrency",
        "--key-header", "K", "--dedup-window", "10m", "--dedup-ids", "500",
        "--record-bytes", "1MiB", "--segment-bytes", "8MiB", "--segment-age", "30s",
        "--flush-interval", "50ms", "--compression", "zstd", "--min-isr", "2",
        "--compact", "--tombstone-delay", "1h", "--compact-dirty-percent", "30",
        "--history", "compact",
        "--local-retention", "1GB", "--local-retention-age", "none", "--unshipped", "none",
        "--partitions", "2",
        "--local-retention-records", "7", "--remote-retention", "2GB",
        "--remote-retention-age", "none", "--remote-retention-records", "9",
        "--remote-delete-grace", "1d", "--protect-groups",
        "--auto-pause", "1m", "--auto-pause-unless-subscribed",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "listen to orders.1" in result.stderr
    after = broker.streams.get("orders").config.to_dict()
    fixed = {
        "--subject": "o.in", "--queue-group": "g",
        "--partitioner": "each_client", "--index-interval": "4KiB", "--flush": "interval",
        "--replication-factor": "3", "--encryption": "xaes-256-gcm",
        "--table-encryption": "ciphertext",
    }  # fmt: skip
    for option, value in fixed.items():
        refused = run("stream", "alter", "orders", option, value)
        assert refused.exit_code == 2
        assert "FixedSettingError" in refused.stderr
    without = ("--no-tiering", "--remote-retention", "none", "--remote-retention-records", "none")
    refused = run("stream", "alter", "orders", "--history", "keep", *without)
    assert "its table is part of the history" in " ".join(refused.stderr.split())
    assert broker.streams.get("orders").config.to_dict() == after
    changed = {name for name, value in after.items() if value != before[name]}
    assert len(changed) + len(fixed) + len({"tiering"}) == len(before)


def test_alter_shows_before_and_after(run: Run, broker: MemoryBroker) -> None:
    """People get units and scripts get numbers; a dry run changes nothing."""
    _make(run)
    told = run("stream", "alter", "orders", "--local-retention", "256MiB", "--dry-run")
    assert "local_retention_bytes  1.0 GiB  256.0 MiB" in told.stdout
    assert "--dry-run" in told.stderr
    assert broker.streams.get("orders").config.local_retention_bytes == 1 << 30
    told = run("stream", "alter", "orders", "--local-retention", "256MiB", "--json")
    found = json.loads(told.stdout)
    assert found["changes"] == {"local_retention_bytes": {"before": 1 << 30, "after": 1 << 28}}
    assert (found["stream"]["name"], found["dry_run"]) == ("orders", False)
    again = run("stream", "alter", "orders", "--local-retention", "256MiB")
    assert "already" in again.stderr
    close = run("stream", "alter", "orders", "--local-retention", str((1 << 28) + 1))
    assert f"{1 << 28:,}" in close.stdout, "two sizes that look alike are shown in bytes"
    limit = run("stream", "alter", "orders", "--unshipped", "1GiB")
    assert "no limit 1.0 GiB" in " ".join(limit.stdout.split())


def test_alter_wants_something_to_change(run: Run) -> None:
    """A command without a setting, or with a wrong size, is a usage error."""
    _make(run)
    assert run("stream", "alter", "orders").exit_code == 2
    assert run("stream", "alter", "orders", "--unshipped", "much").exit_code == 2
    unknown = run("stream", "alter", "nothing", "--puback")
    assert (unknown.exit_code, "UnknownStreamError" in unknown.stderr) == (2, True)


def test_tiering_that_begins_says_where_the_table_is(run: Run) -> None:
    """The output also says how to see its progress."""
    _make(run, "--no-tiering")
    begun = run("stream", "alter", "orders", "--tiering")
    assert "tier status orders" in " ".join(begun.stderr.split())


def test_create_again_is_fine_and_otherwise_refused(run: Run) -> None:
    """The same settings change nothing; others are a typed error with a hint."""
    _make(run)
    _make(run)
    result = run("stream", "create", "orders", "--partitions", "2")
    assert result.exit_code == 2
    assert "StreamExistsError" in result.stderr
    assert "describe" in result.stderr


def test_list_and_describe(run: Run) -> None:
    """Both speak JSON for scripts and tables for people."""
    assert "No streams yet" in run("stream", "list").stderr
    _make(run, "--puback")
    listed = run("stream", "list", "--json")
    assert json.loads(listed.stdout)["config"]["puback"] is True
    assert "orders" in run("stream", "list").stdout
    _publish(run, "a\nb\n")
    described = json.loads(run("stream", "describe", "orders", "--json").stdout)
    assert described["partitions"][0]["high_watermark"] == 2
    shown = run("stream", "describe", "orders").stdout
    assert re.search(r"replication_factor +1 *\n", shown)
    assert described["partitions"][0]["leader"] in described["partitions"][0]["isr"]
    assert "128.0 MiB" in run("stream", "describe", "orders").stdout


def test_delete_asks_first(run: Run, broker: MemoryBroker) -> None:
    """No answer, or no, deletes nothing; --yes does not ask."""
    _make(run)
    assert run("stream", "delete", "orders", stdin="n\n").exit_code != 0
    assert [stream.name for stream in broker.streams.all()] == ["orders"]
    assert run("stream", "delete", "orders", "--yes").exit_code == 0
    assert broker.streams.all() == []


def test_publish_lines_and_subscribe(run: Run) -> None:
    """Each line is a record; text shows place, time, key and value."""
    _make(run)
    result = run("publish", "orders", "-k", "k1", "--via", "flight", "--json", stdin="a\nb\nc")
    assert json.loads(result.stdout) | {"seconds": 0} == {
        "sent": 3, "acked": 3, "duplicates": 0, "acks": "all", "skipped": 0,
        "via": "flight", "seconds": 0,
    }  # fmt: skip
    lines = run("subscribe", "orders").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0:0", "0:1", "0:2"]
    assert [line.split()[2:] for line in lines] == [["k1", "a"], ["k1", "b"], ["k1", "c"]]


@pytest.mark.parametrize(("acks", "acked"), [("all", 2), ("leader", 2), ("none", 0)])
def test_publish_says_what_its_counts_mean(
    run: Run, broker: MemoryBroker, acks: str, acked: int
) -> None:
    """The policy reaches the log and is in the report; under none no count is certain."""
    _make(run)
    args = ("publish", "orders", "--via", "flight", "--acks", acks, "--json", "-p", "0")
    result = run(*args, stdin="a\nb\n")
    report = json.loads(result.stdout)
    assert (report["sent"], report["acked"], report["acks"]) == (2, acked, acks)
    assert {policy.value for policy in broker.partitions.handle("orders", 0).policies} == {acks}
    assert broker.partitions.handle("orders", 0).high_watermark == 2


@pytest.mark.parametrize(
    "options",
    [("--acks", "some"), ("--acks", "leader", "--via", "nats"), ("--acks", "all", "--no-ack")],
)
def test_publish_refuses_acks_that_cannot_be(run: Run, options: tuple[str, ...]) -> None:
    """An unknown policy, one without meaning for plain NATS messages, and two policies at once."""
    _make(run)
    result = run("publish", "orders", *options, stdin="a\n")
    assert result.exit_code == 2
    assert "--acks" in result.stderr


def test_subscribe_forms_and_bounds(run: Run) -> None:
    """JSON keeps what text cannot; raw gives the values; offset and count bound the read."""
    _make(run)
    _publish(run, b"\xff\x00\nplain\n", "-H", "Trace: 7")
    records = [
        json.loads(line)
        for line in run("subscribe", "orders", "--format", "json").stdout.splitlines()
    ]
    assert records[0]["value_base64"] == "/wA="
    assert "value" not in records[0]
    assert records[1]["value"] == "plain"
    assert records[1]["headers"] == [{"key": "Trace", "value": "7"}]
    assert run("subscribe", "orders", "--format", "raw").stdout_bytes == b"\xff\x00\nplain\n"
    assert "plain" not in run("subscribe", "orders", "--count", "1").stdout
    assert len(run("subscribe", "orders", "--from", "1").stdout.splitlines()) == 1


def test_follow_ends_with_its_count(run: Run) -> None:
    """Following several partitions interleaves them and ends when it has enough."""
    _make(run, "--partitions", "2")
    _publish(run, "a\nb\nc\nd\n")
    result = run("subscribe", "orders", "--follow", "--count", "4", "--format", "raw")
    assert sorted(result.stdout.split()) == ["a", "b", "c", "d"]


def test_equal_keys_share_a_partition(run: Run, broker: MemoryBroker) -> None:
    """JSON lines are keyed by a field; the partition follows from the key."""
    _make(run, "--partitions", "4")
    lines = "".join(json.dumps({"id": n % 5, "n": n}) + "\n" for n in range(50))
    _publish(run, lines, "--key-field", "id")
    where: dict[str, set[int]] = {}
    for line in run("subscribe", "orders", "--format", "json").stdout.splitlines():
        record = json.loads(line)
        where.setdefault(record["key"], set()).add(record["partition"])
    assert set(where) == {"0", "1", "2", "3", "4"}
    assert all(len(partitions) == 1 for partitions in where.values())


def test_a_wildcard_needs_a_subject(run: Run) -> None:
    """The subject can be made of each record's own fields."""
    _make(run, "--subject", "flights.>")
    refused = run("publish", "orders", "--via", "flight", stdin="x\n")
    assert refused.exit_code == 2
    assert "--subject" in refused.stderr
    _publish(run, '{"origin":"JFK"}\n', "--subject", "flights.{origin}")
    assert (
        json.loads(run("subscribe", "orders", "--format", "json").stdout)["subject"]
        == "flights.JFK"
    )


def test_nats_without_puback_is_refused(run: Run) -> None:
    """The command could not tell whether the records are stored."""
    _make(run)
    result = run("publish", "orders", "--via", "nats", stdin="x\n")
    assert result.exit_code == 2
    assert "--via flight" in result.stderr


def test_raw_keeps_bytes(run: Run, tmp_path: Path) -> None:
    """A whole file is one record, line ends and all."""
    _make(run)
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    result = run("publish", "orders", "picture", "--raw", "--via", "flight")
    assert result.exit_code == 0, result.output
    assert run("subscribe", "orders", "--format", "raw").stdout_bytes == b"\x89PNG\r\n\x1a\n\x00\n"


def test_read_writes_every_format(run: Run, tmp_path: Path) -> None:
    """Parquet, CSV and JSON lines hold the same rows, and stderr says what is proved."""
    _make(run)
    _publish(run, "a\nb\n", "-k", "k")
    result = run("read", "orders", "-o", "out.parquet")
    assert result.exit_code == 0, result.output
    assert "Exact: 2 records" in result.stderr
    assert pq.read_table(tmp_path / "out.parquet").column("value").to_pylist() == [b"a", b"b"]
    assert run("read", "orders", "-o", "out.csv").exit_code == 0
    with (tmp_path / "out.csv").open() as file:
        assert [row["value"] for row in csv.DictReader(file)] == ["a", "b"]
    lines = run("read", "orders", "--columns", "offset,value").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"offset": 0, "value": "a"}, {"offset": 1, "value": "b"},
    ]  # fmt: skip
    assert "value" in run("read", "orders", "--format", "table").stdout


def test_a_failed_read_leaves_no_file(run: Run, tmp_path: Path) -> None:
    """Bytes that CSV cannot hold as text fail the command; the target is not touched."""
    _make(run)
    _publish(run, b"fine\n\xff\n")
    (tmp_path / "out.csv").write_text("from before")
    result = run("read", "orders", "-o", "out.csv")
    assert result.exit_code == 2
    assert "--bytes base64" in result.stderr
    assert (tmp_path / "out.csv").read_text() == "from before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert run("read", "orders", "-o", "out.csv", "--bytes", "base64").exit_code == 0


def test_a_saved_cut_reads_the_same_rows_later(run: Run, tmp_path: Path) -> None:
    """What is published after the cut is not in it."""
    _make(run)
    _publish(run, "a\n")
    (tmp_path / "monday.cut").write_text(run("cut", "orders").stdout)
    _publish(run, "b\n")
    again = run("read", "orders", "--as-of", "@monday.cut", "--columns", "value")
    assert again.exit_code == 0, again.output
    assert [json.loads(line)["value"] for line in again.stdout.splitlines()] == ["a"]
    assert len(run("read", "orders").stdout.splitlines()) == 2
    damaged = run("read", "orders", "--as-of", "hwcut1.0.{}")
    assert (damaged.exit_code, "InvalidCutError" in damaged.stderr) == (2, True)


def test_an_earlier_moment_is_read_by_offset_and_time(run: Run) -> None:
    """--as-of takes offsets and times, too; anything else is refused."""
    _make(run)
    _publish(run, "a\nb\nc\n")

    def values(moment: str) -> list[str]:
        done = run("read", "orders", "--as-of", moment, "--columns", "value")
        assert done.exit_code == 0, done.output
        return [json.loads(line)["value"] for line in done.stdout.splitlines()]

    assert values('{"0": 2}') == ["a", "b"]
    assert values("2020-01-01T00:00:00Z") == []
    wrong = run("read", "orders", "--as-of", '{"0": 4}')
    assert (wrong.exit_code, "OffsetOutOfRangeError" in wrong.stderr) == (2, True)
    wrong = run("read", "orders", "--as-of", "yesterday")
    assert (wrong.exit_code, "InvalidCutError" in wrong.stderr) == (2, True)


def test_latest_is_one_record_per_key(run: Run) -> None:
    """--latest gives each key's newest record, at any moment, under the whole read's proof."""
    _make(run)
    lines = [{"k": key, "n": number} for number, key in enumerate("abcab")]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    sent = run("publish", "orders", "--via", "flight", "--key-field", "k", "--json", stdin=text)
    assert sent.exit_code == 0, sent.output

    def newest(*options: str) -> list[int]:
        done = run("read", "orders", "--latest", "--columns", "value", *options)
        assert done.exit_code == 0, done.output
        assert "Exact: " in done.stderr
        return [json.loads(json.loads(line)["value"])["n"] for line in done.stdout.splitlines()]

    assert newest() == [2, 3, 4]
    assert newest("--as-of", '{"0": 3}') == [0, 1, 2]


def test_limit_certifies_nothing(run: Run) -> None:
    """A read that stops early says so instead of showing a certificate."""
    _make(run)
    _publish(run, "a\nb\nc\n")
    result = run("read", "orders", "--limit", "2")
    assert len(result.stdout.splitlines()) == 2
    assert "first 2 of 3" in result.stderr
    assert "Exact" not in result.stderr


def test_an_error_of_the_broker_is_told(run: Run, broker: MemoryBroker) -> None:
    """Name, message, hint and exit code; no traceback."""
    _make(run)
    broker.partitions.handle("orders", 0).fail_next(LogFailedError("fdatasync failed"))
    result = run("publish", "orders", "--via", "flight", stdin="x\n")
    assert result.exit_code == 3
    assert "LogFailedError: fdatasync failed" in result.stderr
    assert "restart the broker" in result.stderr
    assert "Traceback" not in result.output


def test_unknown_things(run: Run) -> None:
    """A stream, a partition, a position or a column that does not exist is named."""
    assert "stream list" in run("subscribe", "nothing").stderr
    _make(run)
    assert "UnknownPartitionError" in run("subscribe", "orders", "-p", "7").stderr
    assert run("subscribe", "orders", "--from", "whenever").exit_code == 2
    assert "SchemaMismatchError" in run("read", "orders", "--columns", "colour").stderr
    assert "No such file" in run("publish", "orders", "absent.txt", "--via", "flight").stderr


def test_tier_status(run: Run) -> None:
    """Both forms name the cold range."""
    _make(run)
    _publish(run, "a\nb\n")
    found = json.loads(run("tier", "status", "orders", "--json").stdout)
    assert found["high_watermark"] == 2
    assert "orders" in run("tier", "status").stdout
    assert run("tier", "flush", "orders", "--timeout", "5s").exit_code == 0


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_stream_reads_as_nothing(run: Run, tmp_path: Path, rows: int) -> None:
    """No rows is a result like any other: a file with a schema, an exact count of 0."""
    _make(run)
    _publish(run, "x\n" * rows)
    result = run("read", "orders", "-o", "none.parquet")
    assert f"Exact: {('0 records', '1 record')[rows]}, each once" in result.stderr
    table = pq.read_table(tmp_path / "none.parquet")
    assert table.num_rows == rows
    assert table.schema.field("value").type == pa.binary()


def test_a_server_without_operations_says_so(run: Run) -> None:
    """A cluster command against a server without these actions is a wrong request."""
    result = run("cluster", "status")
    assert result.exit_code == 2
    assert "does not offer the action cluster_status" in result.stderr


@pytest.mark.parametrize("command", ["delete", "purge"])
def test_a_question_is_not_followed_by_a_remark_that_the_command_waits(
    command: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may take more than two seconds to answer; the command waits for no server then."""
    _make(run, "--no-tiering")
    timers: list[Callable[[], object]] = []

    class Held:
        def __init__(self, _seconds: float, remark: Callable[[], object]) -> None:
            self.remark = remark

        def start(self) -> None:
            timers.append(self.remark)

        def cancel(self) -> None:
            """Do nothing: the test calls the remarks."""

    def confirm(*_texts: object, **_options: object) -> None:
        for remark in timers:
            remark()
        raise typer.Abort

    monkeypatch.setattr(threading, "Timer", Held)
    monkeypatch.setattr(typer, "confirm", confirm)
    result = run("stream", command, "orders")
    assert timers, "the command has set a timer"
    assert "waiting for" not in result.stderr
