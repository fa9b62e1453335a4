"""Rejected rows that decode at the second try: each is in one of the two tables, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from broker.errors import StaleWatermarkError, TableMismatchError
from simkit.brokers.memory_broker import records
from simkit.tier.append_rig import AppendRig, append_rig, opened, positions, ranges, table_rows
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform
from spark_jobs.tables import Appender, Source, Target, redecode
from spark_jobs.tables.redecode import Redecoder
from spark_jobs.tables.slice_task import run_here

pytestmark = pytest.mark.integration

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
STRICT = DecodeTransform(
    DecodeSpec(format="json", schema=SCHEMA, bounds=DecodeBounds(record_bytes_max=9))
)
PATIENT = DecodeTransform(DecodeSpec(format="json", schema=SCHEMA))
SHORTER = DecodeTransform(
    DecodeSpec(format="json", schema=SCHEMA, bounds=DecodeBounds(record_bytes_max=8))
)
TOO_LONG = [at for at in range(100) if at >= 50]
POISON = [at for at in range(100) if at % 10 == 3]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """100 records per partition: from 50 on too long for STRICT, some that never decode."""
    with append_rig(str(tmp_path / "lake"), partitions=2) as found:
        for partition in (0, 1):
            with found.client.producer("s", partition) as producer:
                producer.send(
                    records(
                        [
                            b"poison" if at in POISON else b'{"id":%d%s}' % (at, b" " * (at // 50))
                            for at in range(100)
                        ]
                    )
                )
        yield found


@pytest.fixture(params=[(), ("partition",)])
def target(request: pytest.FixtureRequest, tmp_path: Path, rig: AppendRig) -> Target:
    """A table that an ingest with too strict a bound has filled, in two appends."""
    found = Target.at(str(tmp_path / "out"), app="ingest", partition_by=request.param)
    appender = ingest(rig, found)
    appender.append(ranges((0, 60), (0, 100)), batch_id="a")
    appender.append(ranges((0, 100), (0, 100)), batch_id="b")
    assert len(positions(found)) == 2 * 45
    return found


def ingest(rig: AppendRig, target: Target) -> Appender:
    """Return the strict ingest."""
    return rig.appender(target, STRICT, rejects=target.beside("__rejected"))


def redecoder(rig: AppendRig, target: Target, transform: DecodeTransform = PATIENT) -> Redecoder:
    """Return a redecoder, of the patient spec if no other is given."""
    return Redecoder(target, target.beside("__rejected"), rig.source, transform)


def require_once(target: Target) -> None:
    """Check that each record is in one of the two tables."""
    both = positions(target) + positions(target.beside("__rejected"))
    assert sorted(both) == [(partition, at) for partition in (0, 1) for at in range(100)]


def require_moved(target: Target) -> None:
    """Check that each record is in the one table where it belongs."""
    bad = [(partition, at) for partition in (0, 1) for at in POISON]
    every = [(partition, at) for partition in (0, 1) for at in range(100)]
    assert positions(target.beside("__rejected")) == bad
    assert positions(target) == sorted(set(every) - set(bad))
    rows = table_rows(target).to_pylist()
    assert all(row["id"] == row["offset"] for row in rows)


def test_what_decodes_now_moves(rig: AppendRig, target: Target) -> None:
    """Both tables stay provable, the ingest goes on, a second run finds nothing to move."""
    done = redecoder(rig, target).run()

    assert (done.examined_count, done.rows_count, done.rejected_count) == (110, 90, 20)
    require_moved(target)
    again = redecoder(rig, target).run()
    assert (again.examined_count, again.rows_count) == (20, 0)
    rig.fill(10)
    assert ingest(rig, target).append(ranges((0, 110), (0, 100)), batch_id="c").rows_count == 0
    assert rig.appender(target).watermarks().ends == {0: 110, 1: 100}


@pytest.mark.parametrize("second", [PATIENT, STRICT, SHORTER])
def test_a_death_between_the_two_commits_doubles_nothing(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch, second: DecodeTransform
) -> None:
    """The rows are in both tables for a while; the next run only takes them out of one.

    It does so if the rows do not decode in that run, too: its decode may be narrower.
    """
    died = redecoder(rig, target)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(died, "_take_out", dies)
    with pytest.raises(KeyboardInterrupt):
        died.run()

    redecoder(rig, target, second).run()

    require_once(target)
    redecoder(rig, target).run()
    require_moved(target)


def test_two_at_once_move_each_row_once(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One runs in the middle of the other, which then gets a stale error."""
    late = redecoder(rig, target)
    add = late._add

    def after_the_other(*arguments: object) -> None:
        monkeypatch.setattr(late, "_add", add)
        redecoder(rig, target).run()
        add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "_add", after_the_other)
    with pytest.raises(StaleWatermarkError):
        late.run()

    require_moved(target)
    redecoder(rig, target).run()
    require_moved(target)


def test_a_file_that_was_rewritten_meanwhile_is_not_taken_out_twice(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE of the rejected rows in the middle: stale, and the next run finishes."""
    late = redecoder(rig, target)
    take_out = late._take_out

    def after_optimize(*arguments: object) -> None:
        monkeypatch.setattr(late, "_take_out", take_out)
        opened(target.beside("__rejected")).optimize.compact()
        take_out(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "_take_out", after_optimize)
    with pytest.raises(StaleWatermarkError):
        late.run()

    redecoder(rig, target).run()
    require_moved(target)


def test_rows_of_an_append_that_has_not_ended_wait(rig: AppendRig, target: Target) -> None:
    """Rejected rows above the table's watermark are not touched: their append may come again."""
    with rig.client.producer("s", 0) as producer:
        producer.send(records([b'{"id":  100}']))
    appender = ingest(rig, target)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    appender._commit = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        appender.append(ranges((0, 101), (0, 100)), batch_id="c")

    done = redecoder(rig, target).run()

    assert done.waiting_count == 1
    assert ingest(rig, target).append(ranges((0, 101)), batch_id="c").rejected_count == 1
    assert redecoder(rig, target).run().rows_count == 1
    assert positions(target)[-1] == (1, 99)
    assert (0, 100) in positions(target)


def test_two_streams_in_one_table_are_refused(rig: AppendRig, target: Target) -> None:
    """A rejected row names no stream. Before it is read, it is asked whose rows the tables hold."""
    rig.client.create_stream("s2", partitions=2)
    with rig.client.producer("s2", 0) as producer:
        producer.send(records([b'{"id":%d%s}' % (at, b" " * (at // 50)) for at in range(100)]))
    two = replace(target, app="two")
    other = Appender(
        None, two, Source.of("s2", rig.server), STRICT, rejects=two.beside("__rejected"),
        run=run_here,
    )  # fmt: skip
    other.append(ranges((0, 40)), batch_id="decoded only")

    for _ in ("the decoded table", "both tables"):
        before = positions(target), positions(target.beside("__rejected"))
        with pytest.raises(TableMismatchError, match="two streams share a table"):
            redecoder(rig, target).run()
        assert (positions(target), positions(target.beside("__rejected"))) == before
        other.append(ranges((0, 100)), batch_id="rejected, too")


def test_a_rejected_table_that_keeps_all_rows_is_refused_first(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the rows went to the decoded table, and then could not leave the other one."""

    def keep(value: str) -> None:
        opened(target.beside("__rejected")).alter.set_table_properties({"delta.appendOnly": value})

    keep("true")
    with pytest.raises(TableMismatchError, match=r"delta\.appendOnly"):
        redecoder(rig, target).run()
    assert len(positions(target)) == 2 * 45

    keep("false")
    late = redecoder(rig, target)
    take_out = late._take_out

    def after_a_change(*arguments: object) -> None:
        keep("true")
        take_out(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "_take_out", after_a_change)
    with pytest.raises(TableMismatchError, match=r"delta\.appendOnly"):
        late.run()
    keep("false")
    redecoder(rig, target).run()
    require_moved(target)


def test_a_file_is_decoded_in_batches(
    rig: AppendRig, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Arrow array holds at most 2 GiB of values, and a file of rejected rows may hold more."""
    monkeypatch.setattr(redecode, "_BATCH_BYTES_MAX", 500)
    sizes: list[int] = []
    whole = redecode._as_rows

    def noted(stored: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(stored.num_rows)
        return whole(stored)

    monkeypatch.setattr(redecode, "_as_rows", noted)

    assert redecoder(rig, target).run().rows_count == 90

    assert len(sizes) > 10
    assert max(sizes) < 20
    require_moved(target)


def test_files_whose_names_are_escaped_in_the_log_are_found(rig: AppendRig, tmp_path: Path) -> None:
    """OPTIMIZE names the folders of a partitioned table, and Delta escapes these names."""
    schema = (
        '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
    )
    strict = DecodeTransform(
        DecodeSpec(format="json", schema=schema, bounds=DecodeBounds(record_bytes_max=20))
    )
    patient = DecodeTransform(DecodeSpec(format="json", schema=schema))
    rig.client.create_stream("s2", partitions=1)
    with rig.client.producer("s2", 0) as producer:
        producer.send(
            records(
                [b'{"p":"a b/%%2F="%s}' % (b" " * (9 if at % 5 == 3 else 0)) for at in range(40)]
            )
        )
    target = Target.at(str(tmp_path / "spelled"), app="ingest", partition_by=("p",))
    rejects, source = target.beside("__rejected"), Source.of("s2", rig.server)
    appender = Appender(None, target, source, strict, rejects=rejects, run=run_here)
    for end in (20, 40):
        appender.append(ranges((0, end)), batch_id=str(end))
    assert opened(target).optimize.compact()["numFilesRemoved"] == 2

    assert Redecoder(target, rejects, source, patient).run().rows_count == 8

    assert positions(target) == [(0, at) for at in range(40)]
    assert positions(rejects) == []
