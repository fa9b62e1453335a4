"""The job `backfill`: bounded, resumable, safe beside a second run and beside an ingest.

Its chunks here are so small that the appender writes them in this process: no JVM is needed.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import InvalidRequestError, OverlapError
from broker.model.offsets import Offset
from simkit.brokers.memory_broker import records
from simkit.servers.s3_proxy import s3_proxy
from simkit.tier.append_rig import (
    AppendRig,
    append_rig,
    positions,
    ranges,
    require_exact,
    table_rows,
)
from spark_jobs.decode import ddl, types
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform
from spark_jobs.jobs import backfill
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Appender, Target
from tiering.store.opening import open_store

pytestmark = pytest.mark.integration

# Only its settings and its number of cores are read; no job runs in it.
SPARK: Any = SimpleNamespace(conf={}, sparkContext=SimpleNamespace(defaultParallelism=8))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """A stream of two partitions with 1000 records each."""
    with append_rig(str(tmp_path / "lake"), partitions=2) as found:
        found.fill(1000)
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A table that does not exist yet."""
    return Target.at(str(tmp_path / "tables" / "out"), app="backfill")


def run(
    rig: AppendRig, target: Target, *words: str, report: Report | None = None
) -> Mapping[str, Any]:
    """Run the job as its command line would."""
    args = backfill.PARSER.parse_args(
        ["--server", rig.server, "--stream", "s", "--table", target.uri, *words]
    )
    return backfill.run(SPARK, args, report or Report("backfill", io.StringIO()))


def test_the_whole_job_asks_s3_few_times(
    rig: AppendRig, moto_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run creates the table; what is known is not asked for again."""
    with s3_proxy(moto_env["AWS_ENDPOINT_URL"]) as proxy:
        for name, text in (moto_env | {"AWS_ENDPOINT_URL": proxy.address}).items():
            monkeypatch.setenv(name, text)
        target = Target.at("s3://headwater-tests/backfill", app="backfill")
        # Three listings for pins; five of the log, of which one is after the creation; the
        # creation; of each partition a file and its read-back; the commit.
        for end, expected in ((500, 3 + 5 + 1 + 4 + 1), (900, 3 + 2 + 2 + 4 + 1)):
            proxy.watch()
            found = run(rig, target, "--to", json.dumps({"0": end, "1": end}))
            assert (found["chunks"], found["remaining"]) == (1, 0)
            assert len(proxy.served()) == expected, str(proxy.served())
        require_exact(target, 900, 900)


class StopsAfter(io.StringIO):
    """A report that asks the job to end once it has told of one chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.report: Report | None = None

    def write(self, text: str) -> int:
        """Take a line."""
        if text.startswith("backfill: appended") and self.report is not None:
            self.report.stop.event.set()
        return super().write(text)


def test_a_range_is_appended_in_chunks_and_gone_on_with(rig: AppendRig, target: Target) -> None:
    """Stopped after a chunk, run again to the end, run once more for nothing, then for more."""
    out = StopsAfter()
    out.report = Report("backfill", out)
    first = run(rig, target, "--records-per-chunk", "500", report=out.report)
    assert (first["records"], first["chunks"], first["remaining"]) == (500, 1, 1500)

    second = run(rig, target, "--records-per-chunk", "500")
    third = run(rig, target)

    assert (second["records"], second["chunks"], second["remaining"]) == (1500, 3, 0)
    assert (third["records"], third["ends"]) == (0, {"0": 1000, "1": 1000})
    assert third["stream_uuid"] == rig.source.stream_uuid
    require_exact(target, 1000, 1000)
    rig.fill(100)
    assert run(rig, target)["records"] == 200
    require_exact(target, 1100, 1100)


def test_bounds_by_offset_and_by_time(rig: AppendRig, target: Target) -> None:
    """A range that was begun keeps its start; an earlier one needs another name."""
    with rig.client.fetch("s", 0, 0, 1000, columns=["timestamp"]) as fetched:
        last = max(max(part.batch.column("timestamp").to_pylist()) for part in fetched)
    now = datetime.now(UTC).isoformat()
    done = run(rig, target, "--from", '{"0": 200, "1": 500}', "--to", '{"0": 400, "1": "latest"}')
    assert done["ends"] == {"0": 400, "1": 1000}
    assert len(positions(target)) == 700

    with pytest.raises(InvalidRequestError, match="another --app"):
        run(rig, target, "--from", "earliest")
    assert run(rig, target, "--to-timestamp", now)["records"] == 600
    assert run(rig, target, "--app", "front", "--to-timestamp", "0")["records"] == 0
    early = last.replace(year=2020).isoformat()
    done = run(rig, target, "--app", "front", "--from-timestamp", early)
    assert done["records"] == 700
    require_exact(target, 1000, 1000)


def test_two_runs_at_once_share_the_work(rig: AppendRig, target: Target) -> None:
    """Each chunk is won by one of them, both end well, nothing is doubled."""
    results: list[Mapping[str, Any]] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(run(rig, target, "--records-per-chunk", "100"))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 2
    assert sum(result["records"] for result in results) == 2000
    assert all(result["remaining"] == 0 for result in results)
    require_exact(target, 1000, 1000)


def test_it_ends_where_an_ingest_of_the_table_began(rig: AppendRig, target: Target) -> None:
    """The ingest took the newest records first; the history before them is added, no row twice."""
    ingest = Appender(SPARK, Target(store=target.store, app="ingest"), rig.source)
    ingest.append(ranges((700, 800), (0, 50)), batch_id="i")
    with pytest.raises(OverlapError):
        run(rig, target, "--from", '{"0": 0}', "--to", '{"0": 701}')

    done = run(rig, target)
    ingest.append(ranges((800, 1000), (50, 1000)), batch_id="j")

    assert done["records"] == 700
    require_exact(target, 1000, 1000)
    assert run(rig, target)["remaining"] == 0


def test_an_ingest_that_has_appended_nothing_yet_is_not_blocked(
    rig: AppendRig, target: Target
) -> None:
    """The ingest is set up to begin at the latest records; the backfill comes before its first."""
    spec = DecodeSpec(format="json", schema=types.to_json(ddl.parse("id bigint")))
    starts = {0: Offset(1000), 1: Offset(1000)}
    pin = Pin(stream="s", stream_uuid=rig.source.stream_uuid, starts=starts, spec=spec)
    assert Pins(open_store(target.store), "ingest").put(pin)
    rig.fill(100)

    done = run(rig, target)

    assert (done["ends"], done["remaining"]) == ({"0": 1000, "1": 1000}, 0)
    assert done["left_to"] == {"ingest": {"0": 1000, "1": 1000}}
    with pytest.raises(OverlapError, match="--instead-of"):  # the ingest may never come
        run(rig, target)
    ingest = Appender(
        SPARK,
        Target(store=target.store, app="ingest"),
        rig.source,
        DecodeTransform(spec),
        rejects=Target(store=target.store, app="ingest").beside("__rejected"),
    )
    assert ingest.append(ranges((1000, 1100), (1000, 1100)), batch_id="i").records_count == 200
    assert run(rig, target)["left_to"] == {}


def test_an_ingest_that_never_came_is_replaced(rig: AppendRig, target: Target) -> None:
    """A pin of a dead ingest is no success of a backfill; asked so, the backfill appends all."""
    spec = DecodeSpec(format="json", schema=types.to_json(ddl.parse("id bigint")))
    pin = Pin(stream="s", stream_uuid=rig.source.stream_uuid, starts={}, spec=spec)
    assert Pins(open_store(target.store), "ingest").put(pin)
    with pytest.raises(OverlapError, match="--instead-of ingest"):
        run(rig, target)

    assert run(rig, target, "--instead-of", "ingest")["records"] == 2000
    rig.fill(100)
    assert run(rig, target)["records"] == 200, "that ingest is out of the way"


def test_payloads_are_decoded_as_asked_and_poison_is_kept(rig: AppendRig, target: Target) -> None:
    """Rejected rows are kept whole beside the table; what decodes by a wider bound moves over."""
    with rig.client.producer("s", 0) as producer:
        producer.send(records([b'{"id": 1}', b"not json", b'{"id":   2}']))
    bounds = ("--from", '{"0": 1000}', "--to", '{"0": 1003}')
    json = ("--format", "json", "--schema", "id bigint", "--record-bytes-max", "9")

    done = run(rig, target, *bounds, *json)

    assert (done["rows"], done["rejected"], done["records"]) == (1, 2, 3)
    assert run(rig, target, *bounds)["records"] == 0
    done = run(rig, target, "--redecode", "--record-bytes-max", "99")
    assert (done["records"], done["rows"], done["rejected"]) == (2, 1, 1)
    assert sorted(table_rows(target).column("id").to_pylist()) == [1, 2]
    (bad,) = table_rows(target.beside("__rejected")).to_pylist()
    assert (bad["offset"], bad["value"]) == (1001, b"not json")


def test_what_is_decoded_again_keeps_the_columns_that_came_later(
    rig: AppendRig, target: Target
) -> None:
    """The backfill's own pin is older than the ingest's; the only whole copy loses no field."""
    with rig.client.producer("s", 0) as producer:
        producer.send(records([b'{"id": 1}', b'{"id": 2, "late": "x", "more": true}']))
    bounds = ("--from", '{"0": 1000}', "--to", '{"0": 1002}')
    run(rig, target, *bounds, "--schema", "id bigint", "--record-bytes-max", "9")
    spec = DecodeSpec(format="json", schema=types.to_json(ddl.parse("id bigint, late string")))
    pin = Pin(stream="s", stream_uuid=rig.source.stream_uuid, starts={}, spec=spec)
    assert Pins(open_store(target.store), "ingest").put(pin)

    done = run(rig, target, "--redecode", "--record-bytes-max", "99", "--evolve", "add")

    assert (done["records"], done["rows"], done["rejected"]) == (1, 1, 0)
    (row,) = (row for row in table_rows(target).to_pylist() if row["id"] == 2)
    assert (row["late"], row["more"]) == ("x", True)


def test_new_fields_become_columns_if_asked(rig: AppendRig, target: Target) -> None:
    """With --evolve add a field that a later chunk has is a new column; the rest is null there."""
    with rig.client.producer("s", 0) as producer:
        producer.send(records([b'{"id": 1}', b'{"id": 2}', b'{"id": 3, "late": "x"}']))
    bounds = ("--from", '{"0": 1000}', "--to", '{"0": 1003}')
    words = ("--schema", "id bigint", "--records-per-chunk", "1", "--evolve", "add")

    done = run(rig, target, *bounds, *words)

    assert (done["rows"], done["remaining"]) == (3, 0)
    found = {row["id"]: row["late"] for row in table_rows(target).to_pylist()}
    assert found == {1: None, 2: None, 3: "x"}
    assert run(rig, target, *bounds)["records"] == 0


def test_a_run_that_is_stopped_says_what_remains(rig: AppendRig, target: Target) -> None:
    """A stop between chunks leaves records; the job's exit status asks for another run."""
    report = Report("backfill", io.StringIO())
    report.stop.event.set()
    assert run(rig, target, report=report)["remaining"] == 2000
    assert run(rig, target)["remaining"] == 0
