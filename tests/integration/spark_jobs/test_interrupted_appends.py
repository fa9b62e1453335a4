"""A job dies between the commits of its two tables, and the next run would decode otherwise.

Each record has to be in exactly one of the two tables. The batches here are so small that the
appender writes them in this process: no JVM is needed. The file is not split: every test lets one
rig die in the same way.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.errors import (
    HeadwaterError,
    InvalidRequestError,
    MetadataCorruptError,
    SchemaMismatchError,
)
from broker.model.offsets import Offset, OffsetRange
from simkit.brokers.memory_broker import records
from simkit.tier.append_rig import AppendRig, append_rig, positions, ranges
from spark_jobs.decode import ddl, types
from spark_jobs.decode.bounds import DecodeBounds
from spark_jobs.decode.pins import Pin, Pins
from spark_jobs.decode.spec import DecodeSpec
from spark_jobs.decode.transform import DecodeTransform
from spark_jobs.jobs import backfill, begun
from spark_jobs.jobs.ingest_batches import Batches
from spark_jobs.jobs.job import Report
from spark_jobs.tables import Appender, Target, plan
from spark_jobs.tables.committing import CommittingTable
from tiering.store.opening import open_store

pytestmark = pytest.mark.integration

# Only its settings and its number of cores are read; no job runs in it.
SPARK: Any = SimpleNamespace(conf={}, sparkContext=SimpleNamespace(defaultParallelism=8))
VALUES = [b'{"n":0,"x":7}', b"poison", b'{"n":2,"x":[]}', b'{"n":3,"x":[]}', b'{"n":4,"x":5}']


class Died(Exception):  # noqa: N818  (it stands for the process's end)
    """The error with which a test ends an append."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """A stream with one partition that holds VALUES."""
    with append_rig(str(tmp_path / "lake"), tiering=False) as found:
        with found.client.producer("s", 0) as producer:
            producer.send(records(VALUES))
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """A table that does not exist yet."""
    return Target.at(str(tmp_path / "tables" / "out"), app="backfill")


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The plan of the next commits of decoded tables: True dies before it; an empty plan lives."""
    planned: list[bool] = []
    whole = Appender._commit

    def commit(self: Appender, *rest: Any, **named: Any) -> int:
        if planned and planned.pop(0):
            raise Died
        return whole(self, *rest, **named)

    monkeypatch.setattr(Appender, "_commit", commit)
    yield planned
    assert planned == [], "the test's death never came"


def run(rig: AppendRig, target: Target, *words: str) -> Mapping[str, Any]:
    """Run the backfill as its command line would."""
    args = backfill.PARSER.parse_args(
        ["--server", rig.server, "--stream", "s", "--table", target.uri, *words]
    )
    return backfill.run(SPARK, args, Report("backfill", io.StringIO()))


def both(target: Target) -> list[int]:
    """Return the offsets of all rows of the two tables, sorted."""
    return sorted(
        at for table in (target, target.beside("__rejected")) for _, at in positions(table)
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--schema", "n bigint"), ("--schema", "n bigint, x bigint")),
        (("--schema", "n bigint"), ("--schema", "n bigint", "--record-bytes-max", "10")),
        (
            ("--schema", "n bigint", "--record-bytes-max", "10"),
            ("--schema", "n bigint", "--record-bytes-max", "99"),
        ),
    ],
)
def test_another_set_up_does_not_judge_what_was_begun(
    rig: AppendRig, target: Target, dying: list[bool], first: Any, second: Any
) -> None:
    """The first run's pin counts as used once it has rejected records; the user can go on."""
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, *first, "--to", '{"0": 4}')
    assert positions(target) == []
    assert 1 in both(target)

    with pytest.raises(SchemaMismatchError, match="differ from the table's pin"):
        run(rig, target, *second)

    assert both(target) == [0, 1, 2, 3], "what was begun is finished as it began"
    assert run(rig, target)["remaining"] == 0
    assert both(target) == [0, 1, 2, 3, 4]


def test_new_columns_wait_until_what_was_begun_is_finished(
    rig: AppendRig, target: Target, dying: list[bool]
) -> None:
    """A table with rows, a death in the next chunk, then --evolve add: new records get the column.

    The result counts the records that were finished, too.
    """
    run(rig, target, "--schema", "n bigint", "--to", '{"0": 1}')
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--to", '{"0": 4}')

    done = run(rig, target, "--schema", "n bigint, x bigint", "--evolve", "add")

    assert (done["records"], done["rejected"], done["remaining"]) == (4, 1, 0)
    assert both(target) == [0, 1, 2, 3, 4]
    assert [at for _, at in positions(target)] == [0, 2, 3, 4]


def test_a_claim_of_the_release_before_is_finished_by_the_newest_pin(
    rig: AppendRig, target: Target, dying: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims do not say what rejected the records."""
    dying.append(True)
    with monkeypatch.context() as old:
        old.setattr(plan, "transform_number", lambda _: None)
        with pytest.raises(Died):
            run(rig, target, "--schema", "n bigint", "--to", '{"0": 4}')

    with pytest.raises(SchemaMismatchError):
        run(rig, target, "--schema", "n bigint, x bigint")

    assert both(target) == [0, 1, 2, 3]


@pytest.mark.parametrize("back", [False, True])
def test_a_run_that_meets_another_pins_live_append_shares_the_work(
    rig: AppendRig,
    target: Target,
    dying: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    back: bool,
) -> None:
    """The other run has committed only the rejected records of the chunk that both append.

    The run that added a column meets the older run's, and the older run meets the newer one's.
    """
    monkeypatch.setattr(backfill, "_BACKOFF_S", 0.0)
    run(rig, target, "--schema", "n bigint", "--to", '{"0": 1}')
    old = Pins(open_store(target.store), target.app).newest()
    assert old is not None
    grown = old.spec.with_fields(ddl.parse("x bigint"))
    whole = CommittingTable.commit
    met: list[CommittingTable] = []

    def commit(self: CommittingTable, *rest: Any, **named: Any) -> int:
        if self.target.uri.endswith("__rejected") and not met:
            met.append(self)
            if back:
                assert Pins(open_store(target.store), target.app).put(replace(old, spec=grown))
            spec = grown if back else old.spec
            other = rig.appender(
                replace(target, evolve="add"),
                DecodeTransform(spec),
                rejects=target.beside("__rejected"),
            )
            dying.append(True)
            with pytest.raises(Died):
                other.append(ranges((1, 4)), batch_id="other")
        return whole(self, *rest, **named)

    monkeypatch.setattr(CommittingTable, "commit", commit)
    words = () if back else ("--schema", "n bigint, x bigint", "--evolve", "add")

    done = run(rig, target, *words)

    assert len(met) == 1
    assert (done["records"], done["remaining"]) == (4, 0)
    assert both(target) == [0, 1, 2, 3, 4]
    assert [at for _, at in positions(target)] == ([0, 4] if back else [0, 2, 3, 4])


def test_what_no_pin_can_finish_is_refused_at_once(
    rig: AppendRig, target: Target, dying: list[bool]
) -> None:
    """Without the pins nothing knows how the rejected records were decoded; the same decode does.

    A decoded table with rows is refused by its missing pin.
    """
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--schema", "n bigint", "--to", '{"0": 4}')
    shutil.rmtree(target.store.root / "_headwater")

    with pytest.raises(SchemaMismatchError, match="Finish that append"):
        run(rig, target, "--schema", "n bigint", "--record-bytes-max", "10")

    assert both(target) == [1]
    shutil.rmtree(target.store.root / "_headwater")
    run(rig, target, "--schema", "n bigint")
    assert both(target) == [0, 1, 2, 3, 4]
    shutil.rmtree(target.store.root / "_headwater")
    with pytest.raises(MetadataCorruptError, match="pin under _headwater/ is missing"):
        run(rig, target, "--schema", "n bigint")


@pytest.mark.parametrize(("purged", "left"), [(2, [1, 2, 3, 4]), (4, [1, 4]), (5, [1])])
def test_a_first_append_goes_on_where_its_stream_begins_now(
    rig: AppendRig, target: Target, dying: list[bool], purged: int, left: list[int]
) -> None:
    """The records that were not appended yet have left the stream."""
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--schema", "n bigint", "--to", '{"0": 4}')
    rig.client.purge_stream("s", 0, before=purged)

    assert run(rig, target)["remaining"] == 0

    assert both(target) == left


def test_an_ingests_first_append_goes_on_where_its_stream_begins_now(
    rig: AppendRig, target: Target, dying: list[bool], spec: DecodeSpec
) -> None:
    """As for a backfill."""
    began(rig, target, spec, dying)
    rig.client.purge_stream("s", 0, before=2)
    report = Report("ingest", io.StringIO())

    begun.finish(SPARK, target, rig.source, report, firsts={0: Offset(2)})

    assert both(target) == [1, 2, 3]


def emptied(rig: AppendRig, target: Target) -> None:
    """Fill a table whose first rejected records are not its first records, then lose it."""
    run(rig, target, "--schema", "n bigint", "--to", '{"0": 1}')
    run(rig, target, "--to", '{"0": 4}')
    shutil.rmtree(target.store.root / "_delta_log")


def test_a_backfill_of_an_emptied_table_begins_at_its_beginning(
    rig: AppendRig, target: Target
) -> None:
    """Its rejected table is ahead, but no append of that range had begun the decoded table."""
    emptied(rig, target)

    run(rig, target)

    assert both(target) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("words", [(), ("--schema", "n bigint, x bigint")])
def test_a_beginning_that_nobody_knows_is_asked_for(
    rig: AppendRig, target: Target, dying: list[bool], words: tuple[str, ...]
) -> None:
    """An emptied table was created again and has no records: it looks like a first append.

    Either the run that created it died, or the run itself is to decode in another way.
    """
    emptied(rig, target)
    if not words:
        dying.append(True)
        with pytest.raises(Died):
            run(rig, target)

    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r'--from \'\{"0": 1\}\''):
            run(rig, target, *words)
    assert positions(target) == []

    shutil.rmtree(target.beside("__rejected").store.root)
    run(rig, target, *words)
    assert both(target) == [0, 1, 2, 3, 4]


def test_a_first_append_that_began_later_is_finished_when_its_beginning_is_given(
    rig: AppendRig, target: Target, dying: list[bool]
) -> None:
    """Nothing tells this table from an emptied one but the beginning that the user gives."""
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--schema", "n bigint", "--from", '{"0": 1}', "--to", '{"0": 4}')
    with pytest.raises(InvalidRequestError):
        run(rig, target, "--from", '{"0": 0}')

    run(rig, target, "--from", '{"0": 1}')

    assert both(target) == [1, 2, 3, 4]


STRICT_N = ("--schema", "n bigint", "--record-bytes-max", "13")


@pytest.mark.parametrize("words", [(), ("--schema", "n bigint"), STRICT_N])
def test_a_job_of_another_name_finishes_what_was_begun(
    rig: AppendRig, target: Target, dying: list[bool], words: tuple[str, ...]
) -> None:
    """By the name and the pin of the dead job; then each goes on with its own records."""
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--app", "ingest", *STRICT_N, "--to", '{"0": 3}')

    done = run(rig, target, *words, "--records-per-chunk", "1")

    assert (done["remaining"], done["records"]) == (0, 0), "it ends where the other one began"
    assert both(target) == [0, 1, 2]
    assert positions(target) == [(0, 0)], "decoded as it was begun"
    assert run(rig, target, "--app", "ingest")["records"] == 2
    assert both(target) == [0, 1, 2, 3, 4]
    assert run(rig, target)["records"] == 0


def test_a_job_goes_on_after_the_middle_of_its_range_has_gone_to_another(
    rig: AppendRig, target: Target, dying: list[bool]
) -> None:
    """Two jobs that decode alike overlapped, and one of them died between its two commits.

    A claim has no holes. What lies above the other's records becomes the other's, decoded as begun.
    """
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--app", "ingest", "--schema", "n bigint", "--to", '{"0": 4}')
    pin = Pins(open_store(target.store), "ingest").newest()
    assert pin is not None
    table = replace(target, app="other")
    other = rig.appender(table, DecodeTransform(pin.spec), rejects=table.beside("__rejected"))
    middle = {0: OffsetRange(Offset(2), Offset(3))}
    with pytest.MonkeyPatch.context() as late:  # it planned before the rejected rows were there
        late.setattr(plan, "covered", lambda *_: {})
        other.append(middle, batch_id="middle")

    run(rig, target)

    assert both(target) == [0, 1, 2, 3]
    assert other.watermarks().ends == {0: 4}


def test_what_another_job_has_begun_is_refused_if_its_pins_are_lost(
    rig: AppendRig, target: Target, dying: list[bool]
) -> None:
    """The error names the job that has to run again."""
    dying.append(True)
    with pytest.raises(Died):
        run(rig, target, "--app", "ingest", *STRICT_N, "--to", '{"0": 4}')
    shutil.rmtree(target.store.root / "_headwater")

    with pytest.raises(SchemaMismatchError, match="Run the job of 'ingest' again") as refused:
        run(rig, target, "--schema", "n bigint")

    assert (refused.value.app, refused.value.begun) == ("ingest", True)
    assert positions(target) == []
    run(rig, target, "--app", "ingest", *STRICT_N)
    assert both(target) == [0, 1, 2, 3, 4]


def batch(start: int, end: int, uuid: str) -> Any:
    """Return what Spark hands over for one slice of partition 0."""
    row = {"stream_uuid": uuid, "partition": 0, "start": start, "end": end}
    return SimpleNamespace(collect=lambda: [row])


@pytest.fixture
def spec() -> DecodeSpec:
    """One column."""
    return DecodeSpec(format="json", schema=types.to_json(ddl.parse("n bigint")))


def batches(rig: AppendRig, target: Target, pins: Pins) -> Batches:
    """Return the batches of an ingest with --evolve add."""
    pin = pins.newest()
    assert pin is not None
    return Batches(
        SPARK, target, rig.source, pins=pins, pin=pin, grow=True, firsts={0: Offset(0)},
        report=Report("ingest", io.StringIO()), behind=lambda _: 0,
    )  # fmt: skip


def began(rig: AppendRig, target: Target, spec: DecodeSpec, dying: list[bool]) -> Pins:
    """Pin a spec, and die between the two commits of [0, 4)."""
    pins = Pins(open_store(target.store), target.app)
    source = rig.source
    assert pins.put(Pin(stream="s", stream_uuid=source.stream_uuid, starts={}, spec=spec))
    dying.append(True)
    appender = rig.appender(target, DecodeTransform(spec), rejects=target.beside("__rejected"))
    with pytest.raises(Died):
        appender.append(ranges((0, 4)), batch_id="0")
    return pins


def test_a_smaller_batch_that_grows_finishes_all_that_was_begun(
    rig: AppendRig, target: Target, dying: list[bool], spec: DecodeSpec
) -> None:
    """The records above the batch that shows a new field are not judged by the grown pin."""
    ours = batches(rig, target, began(rig, target, spec, dying))

    for start in (0, 3):
        ours(batch(start, min(start + 3, 5), rig.source.stream_uuid), start)

    assert both(target) == [0, 1, 2, 3, 4]
    assert [at for _, at in positions(target)] == [0, 2, 3, 4]
    assert (ours.pin.number, ours.totals.records_count) == (2, 5)


def test_columns_that_another_run_pinned_do_not_judge_what_was_begun(
    rig: AppendRig, target: Target, dying: list[bool], spec: DecodeSpec
) -> None:
    """A run that goes on meets the half of an append of an older pin, and finishes it by that."""
    pins = began(rig, target, spec, dying)
    ours = batches(rig, target, pins)
    pin = pins.newest()
    assert pin is not None
    assert pins.put(replace(pin, spec=spec.with_fields(ddl.parse("x bigint"))))

    ours(batch(0, 5, rig.source.stream_uuid), 0)

    assert both(target) == [0, 1, 2, 3, 4]
    assert [at for _, at in positions(target)] == [0, 2, 3, 4]


def test_a_decode_that_no_pin_has_is_refused(
    rig: AppendRig, target: Target, dying: list[bool], spec: DecodeSpec
) -> None:
    """The error says what to do; with the earlier decode the append is finished."""
    other = replace(spec, bounds=DecodeBounds(record_bytes_max=10))
    began(rig, target, spec, dying)
    rejects = target.beside("__rejected")

    with pytest.raises(HeadwaterError, match="Finish that append") as refused:
        rig.appender(target, DecodeTransform(other), rejects=rejects).append(
            ranges((0, 5)), batch_id="1"
        )

    assert (refused.value.partition, refused.value.start, refused.value.end) == (0, 0, 4)
    assert refused.value.begun
    assert both(target) == [1]
    rig.appender(target, DecodeTransform(spec), rejects=rejects).append(
        ranges((0, 4)), batch_id="2"
    )
    assert both(target) == [0, 1, 2, 3]


class Unnamed(DecodeTransform):
    """A transform without an identity, as a user's own."""

    identity = None  # type: ignore[assignment]


@pytest.mark.parametrize("kinds", [(DecodeTransform, Unnamed), (Unnamed, DecodeTransform)])
def test_without_an_identity_the_earlier_transform_is_not_checked(
    rig: AppendRig, target: Target, dying: list[bool], spec: DecodeSpec, kinds: tuple[Any, Any]
) -> None:
    """Neither if the append that died had one, nor if the next append has."""
    rejects = target.beside("__rejected")
    first, second = (rig.appender(target, kind(spec), rejects=rejects) for kind in kinds)
    dying.append(True)
    with pytest.raises(Died):
        first.append(ranges((0, 4)), batch_id="0")

    second.append(ranges((0, 5)), batch_id="1")

    assert both(target) == [0, 1, 2, 3, 4]


def test_a_table_that_was_emptied_begins_at_its_beginning(
    rig: AppendRig, target: Target, spec: DecodeSpec
) -> None:
    """Its rejected table is ahead, but no append of that range had begun the decoded table."""
    pins = Pins(open_store(target.store), target.app)
    assert pins.put(Pin(stream="s", stream_uuid=rig.source.stream_uuid, starts={}, spec=spec))
    rejects = target.beside("__rejected")
    appender = rig.appender(target, DecodeTransform(spec), rejects=rejects)
    for end in (1, 4):
        appender.append(ranges((0, end)), batch_id=str(end))
    shutil.rmtree(target.store.root / "_delta_log")

    report = Report("ingest", io.StringIO())
    finished = begun.finish(SPARK, target, rig.source, report, firsts={0: Offset(0)})

    assert finished == []
    rig.appender(target, DecodeTransform(spec), rejects=rejects).append(
        ranges((0, 5)), batch_id="5"
    )
    assert both(target) == [0, 1, 2, 3, 4]
