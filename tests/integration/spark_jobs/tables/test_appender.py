"""The appender against a real store, table and Flight service; its slices run in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from broker.errors import (
    GapError,
    ObjectMissingError,
    OverlapError,
    SchemaMismatchError,
    StaleWatermarkError,
    StreamRecreatedError,
    TableMismatchError,
    TableRolledBackError,
)
from broker.model.secret import Secret
from simkit.brokers.memory_broker import records
from simkit.servers.motoproc import fresh, moto_location
from simkit.servers.s3_proxy import Break, Rule, s3_proxy
from simkit.tier.append_rig import (
    AppendRig,
    Pausing,
    append_rig,
    data_files,
    opened,
    positions,
    ranges,
    referenced,
    require_exact,
    table_rows,
)
from spark_jobs.tables import Source, Target, Transformed
from tiering.store.location import StoreConfig

pytestmark = pytest.mark.integration

LIB = Path(__file__).parents[3] / "lib"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreConfig]:
    """One moto for the module."""
    with moto_location(tmp_path_factory.mktemp("moto")) as location:
        yield location


@pytest.fixture(params=["local", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A table that does not exist yet, in each kind of store."""
    if request.param == "local":
        return Target.at(str(tmp_path / "tables" / "out"))
    return Target(store=fresh(request.getfixturevalue("moto")).child("out"))


@pytest.fixture
def local(tmp_path: Path) -> Target:
    """A table that does not exist yet, in a directory."""
    return Target.at(str(tmp_path / "tables" / "out"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[AppendRig]:
    """A stream of two partitions with 1000 records each."""
    with append_rig(str(tmp_path / "lake"), partitions=2) as found:
        found.fill(1000)
        yield found


def test_appends_continue_each_other_and_repeats_change_nothing(
    rig: AppendRig, target: Target
) -> None:
    """Overlapping, repeated and empty ranges leave every offset once; a gap is refused."""
    appender = rig.appender(target)
    assert appender.watermarks().version == -1

    first = appender.append(ranges((0, 400), (0, 0)), batch_id="a")
    again = appender.append(ranges((0, 400), (0, 0)), batch_id="a")
    second = appender.append(ranges((200, 1000), (0, 700)), batch_id="b")

    assert (first.rows_count, first.ranges) == (400, {0: ranges((0, 400))[0]})
    assert (again.rows_count, again.ranges, again.version) == (0, {}, first.version)
    assert (second.rows_count, second.records_count) == (1300, 1300)
    require_exact(target, 1000, 700)
    assert dict(appender.watermarks().ends) == {0: 1000, 1: 700}
    with pytest.raises(GapError) as gap:
        appender.append(ranges((1000, 1000), (701, 800)), batch_id="c")
    assert (gap.value.partition, gap.value.start, gap.value.end) == (1, 700, 701)


def test_a_first_append_may_begin_anywhere(rig: AppendRig, local: Target) -> None:
    """The start is stored, and offsets below it are not claimed."""
    rig.appender(local).append(ranges((300, 500)), batch_id="a")

    found = rig.appender(local).watermarks()

    assert (dict(found.starts), dict(found.ends)) == ({0: 300}, {0: 500})
    require_exact(local, 500, start=300)
    assert rig.appender(local).append(ranges((0, 200)), batch_id="b").ranges == {}


def test_nothing_is_written_for_empty_ranges(rig: AppendRig, local: Target) -> None:
    """An empty first append makes the table and no commit; no partition gets a watermark."""
    done = rig.appender(local).append(ranges((5, 5)), batch_id="a")

    assert (done.version, done.ranges) == (0, {})
    assert positions(local) == []


def test_rows_come_over_bit_by_bit(tmp_path: Path, local: Target) -> None:
    """Null keys and values, headers with a repeated name, one huge record."""
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []]
    huge = b"\x00\xff" * (4 * 1024 * 1024)
    with append_rig(str(tmp_path / "lake")) as rig:
        with rig.client.producer("s") as producer:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            producer.send(
                records(
                    [None, huge, b""],
                    key=pa.array([None, b"", b"k"], pa.binary()),
                    headers=pa.array(headers, kind),
                )
            )
        rig.appender(local).append(ranges((0, 3)), batch_id="a")
        with rig.client.fetch("s", 0, 0, 3) as fetched:
            expected = [row for part in fetched for row in part.batch.to_pylist()]

    found = table_rows(local).sort_by("offset").select(list(expected[0])).to_pylist()

    assert found == expected
    assert [row["value"] for row in found] == [None, huge, b""]


def test_a_paused_appender_that_wakes_up_late_loses(rig: AppendRig, target: Target) -> None:
    """Its successor has finished: the late one gets StaleWatermarkError and leaves no file."""
    successor = rig.appender(target)
    late = rig.appender(
        target, run=Pausing(lambda: successor.append(ranges((0, 300)), batch_id="b"))
    )

    with pytest.raises(StaleWatermarkError) as lost:
        late.append(ranges((0, 200)), batch_id="a")

    assert (lost.value.partition, lost.value.found) == (0, 300)
    require_exact(target, 300)
    assert data_files(target) == referenced(target)
    assert rig.appender(target).append(ranges((0, 400)), batch_id="c").rows_count == 100
    require_exact(target, 400)


def test_others_may_commit_in_between(rig: AppendRig, target: Target) -> None:
    """OPTIMIZE, another partition's append and a new column leave the watermarks: it commits."""

    def meanwhile() -> None:
        opened(target).optimize.compact()
        rig.appender(replace(target, app="other")).append(ranges((0, 0), (0, 50)), batch_id="o")

    rig.appender(target).append(ranges((0, 100)), batch_id="a")
    rig.appender(target).append(ranges((0, 200)), batch_id="b")
    appender = rig.appender(target, run=Pausing(meanwhile))

    done = appender.append(ranges((0, 300)), batch_id="c")

    assert done.rows_count == 100
    require_exact(target, 300, 50)


def test_a_lost_answer_is_recognised(tmp_path: Path, moto: StoreConfig) -> None:
    """The store commits and the connection breaks: the commit is found by its id, not repeated."""
    where = fresh(moto)
    assert where.endpoint is not None
    with append_rig(str(tmp_path / "lake")) as rig, s3_proxy(where.endpoint) as proxy:
        rig.fill(100)
        target = Target(store=replace(where, endpoint=proxy.address).child("out"))
        appender = rig.appender(target)
        appender.append(ranges((0, 10)), batch_id="a")
        for number in (2, 3):
            proxy.once(Rule(Break.DROP_AFTER, "PUT", f"{number:020}.json"))
            done = appender.append(ranges((0, number * 30)), batch_id=str(number))
            assert done.version == number
        assert proxy.unmet() == 0
        proxy.watch()
        appender.append(ranges((0, 100)), batch_id="more")
        # A listing that shows our last commit, the file and its read-back, the commit.
        assert len(proxy.served()) == 4, str(proxy.served())
        require_exact(target, 100)


_DIES = """
import os, sys
from simkit.tier.append_rig import Pausing, ranges
from spark_jobs.tables import Appender, Source, Target
source = Source.of("s", sys.argv[1])
Appender(None, Target.at(sys.argv[2]), source, run=Pausing(lambda: os._exit(9))).append(
    ranges((0, 500)), batch_id="a")
"""


def test_killed_between_files_and_commit(rig: AppendRig, local: Target) -> None:
    """The files of the dead stay unreferenced, its successor appends everything once."""
    rig.appender(local).append(ranges((0, 100)), batch_id="0")
    code = f"import sys; sys.path.insert(0, {str(LIB)!r})\n{_DIES}"
    died = subprocess.run(
        [sys.executable, "-c", code, rig.server, local.uri], timeout=240, check=False
    )
    assert died.returncode == 9
    orphans = data_files(local) - referenced(local)
    assert orphans

    rig.appender(local).append(ranges((0, 500)), batch_id="a")

    require_exact(local, 500)
    assert data_files(local) - referenced(local) == orphans, "not surely ours: VACUUM's business"


_RACES = """
import json, random, sys
from broker.errors import StaleWatermarkError
from simkit.tier.append_rig import ranges
from spark_jobs.tables import Appender, Source, Target
from spark_jobs.tables.slice_task import run_here
from tiering.store.location import Credentials, StoreConfig
config, seed, rounds = json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if config["credentials"]:
    config["credentials"] = Credentials(**config["credentials"])
target = Target(store=StoreConfig(**config))
dice = random.Random(seed)
won, lost, met = [], 0, []

def meeting(work, parts):  # both have planned their first append before one commits it
    done = run_here(work, parts)
    if not met:
        met.append(True)
        print("here", flush=True)
        sys.stdin.readline()
    return done

appender = Appender(None, target, Source.of("s", sys.argv[1]), run=meeting)
for number in range(rounds):
    ends = appender.watermarks().ends
    wanted = [(ends.get(p, 0), ends.get(p, 0) + dice.randrange(1, 9)) for p in (0, 1)]
    try:
        done = appender.append(ranges(*wanted), batch_id=f"{seed}-{number}")
        won += [[p, int(r.start), int(r.end)] for p, r in done.ranges.items()]
    except StaleWatermarkError:
        lost += 1
print(json.dumps({"won": won, "lost": lost}))
"""


def test_racing_appenders_double_and_lose_nothing(rig: AppendRig, target: Target) -> None:
    """Two processes append to two partitions of one table at once: what was won tiles it."""
    code = f"import sys; sys.path.insert(0, {str(LIB)!r})\n{_RACES}"
    config = json.dumps(asdict(target.store), default=Secret.reveal)
    rig.appender(target).append(ranges((0, 1), (0, 1)), batch_id="0")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, rig.server, config, str(seed), "20"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in range(2)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "here\n", racer.communicate()[1]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = []
    for racer in racers:
        out, err = racer.communicate(timeout=240)
        assert racer.returncode == 0, err
        answers.append(json.loads(out))

    won = sorted(tuple(one) for answer in answers for one in answer["won"])
    ends = []
    for partition in (0, 1):
        at = 1
        for _, start, end in (one for one in won if one[0] == partition):
            assert start == at, f"partition {partition}: {won}"
            at = end
        ends.append(at)
    require_exact(target, *ends)
    assert sum(answer["lost"] for answer in answers) > 0, "the two appenders never raced"
    assert data_files(target) == referenced(target)


def test_restore_is_found_before_anything_is_built_on_it(rig: AppendRig, target: Target) -> None:
    """The transactions stay where they are, the rows go: refused, also by an appender that ran."""
    appender = rig.appender(target)
    appender.append(ranges((0, 100)), batch_id="a")
    appender.append(ranges((0, 300)), batch_id="b")
    opened(target).restore(1)

    for each in (appender, rig.appender(target)):
        with pytest.raises(TableMismatchError) as refused:
            each.append(ranges((0, 400)), batch_id="c")
        assert (refused.value.expected, refused.value.found) == (300, 100)
    assert len(positions(target)) == 100

    unproved = rig.appender(replace(target, verify=False))
    assert unproved.append(ranges((0, 400)), batch_id="c").rows_count == 100


def test_a_restore_between_files_and_commit_is_found(rig: AppendRig, local: Target) -> None:
    """The commit is made only on a version whose rows were counted."""
    rig.appender(local).append(ranges((0, 100)), batch_id="a")
    rig.appender(local).append(ranges((0, 200)), batch_id="b")
    late = rig.appender(local, run=Pausing(lambda: opened(local).restore(1)))

    with pytest.raises(TableMismatchError):
        late.append(ranges((0, 300)), batch_id="c")

    assert len(positions(local)) == 100


def test_a_log_that_was_cut_is_found(rig: AppendRig, local: Target) -> None:
    """The newest commits vanish: the appender that saw them refuses to write them anew."""
    appender = rig.appender(local)
    appender.append(ranges((0, 100)), batch_id="a")
    appender.append(ranges((0, 200)), batch_id="b")
    (local.store.root / "_delta_log" / f"{2:020}.json").unlink()

    with pytest.raises(TableRolledBackError):
        appender.append(ranges((0, 300)), batch_id="c")


def test_rows_of_others_under_our_offsets_are_refused(rig: AppendRig, local: Target) -> None:
    """A copy of our own rows, appended by other software, is not taken for our work."""
    rig.appender(local).append(ranges((0, 100)), batch_id="a")
    write_deltalake(local.uri, table_rows(local).slice(0, 10), mode="append")

    with pytest.raises(TableMismatchError) as refused:
        rig.appender(local).append(ranges((0, 200)), batch_id="b")

    assert (refused.value.expected, refused.value.found) == (100, 110)


def test_rows_of_others_without_offsets_are_theirs(rig: AppendRig, local: Target) -> None:
    """A user's own appends, in the same table and at the same time, disturb nobody."""
    rig.appender(local).append(ranges((0, 100)), batch_id="a")

    def meanwhile() -> None:
        own = table_rows(local).slice(0, 5)
        for number, name in ((0, "partition"), (1, "offset")):
            own = own.set_column(number, name, pa.nulls(5, own.schema.field(name).type))
        write_deltalake(local.uri, own, mode="append")

    done = rig.appender(local, run=Pausing(meanwhile)).append(ranges((0, 200)), batch_id="b")

    assert done.rows_count == 100
    found = positions_with_nulls(local)
    assert [at for at in found if at is not None] == list(range(200))
    assert len(found) == 205


def positions_with_nulls(target: Target) -> list[int | None]:
    """Return every offset, nulls last."""
    offsets: list[Any] = table_rows(target, ["offset"]).column("offset").to_pylist()
    return sorted(offsets, key=lambda at: (at is None, at))


def test_another_incarnation_of_the_stream_is_refused(rig: AppendRig, local: Target) -> None:
    """The name was deleted and made again: its offsets mean other records."""
    rig.appender(local).append(ranges((0, 100)), batch_id="a")
    rig.client.delete_stream("s")
    rig.client.create_stream("s", partitions=2)
    rig.source = Source.of("s", rig.server)

    with pytest.raises(StreamRecreatedError):
        rig.appender(local).append(ranges((0, 100)), batch_id="b")


def test_an_offset_belongs_to_one_appender(rig: AppendRig, target: Target) -> None:
    """Another name may append other ranges, but not this one, even if it was planned before."""
    other = rig.appender(replace(target, app="other"))
    late = rig.appender(target, run=Pausing(lambda: other.append(ranges((50, 90)), batch_id="o")))

    with pytest.raises(OverlapError) as refused:
        late.append(ranges((0, 60)), batch_id="a")

    assert (refused.value.app, refused.value.start, refused.value.end) == ("other", 50, 60)
    require_exact(target, 90, start=50)
    appender = rig.appender(target)
    with pytest.raises(OverlapError):
        appender.append(ranges((0, 60)), batch_id="a")
    appender.append(ranges((0, 50)), batch_id="a")
    require_exact(target, 90)
    assert appender.watermarks().others == (("other", 0, ranges((50, 90))[0]),)


def test_a_table_that_is_not_there_is_made_only_when_allowed(rig: AppendRig, local: Target) -> None:
    """With ``create=False`` a wrong path is an error, not a new table."""
    with pytest.raises(ObjectMissingError):
        rig.appender(replace(local, create=False)).append(ranges((0, 1)), batch_id="a")


class Halves:
    """Even offsets become rows, odd ones are rejected; every tenth is left out."""

    output_schema = pa.schema([("number", pa.int64())])
    rejected_schema = pa.schema(
        [("partition", pa.int32()), ("offset", pa.int64()), ("reason", pa.string())]
    )
    columns = ("value",)

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        """See the class."""
        offsets = rows.column("offset").to_pylist()
        numbers = [int(value) for value in rows.column("value").to_pylist()]
        kept = [at for at, off in enumerate(offsets) if off % 2 == 0 and off % 10]
        bad = [at for at, off in enumerate(offsets) if off % 2]
        return Transformed(
            rows=pa.RecordBatch.from_pydict(
                {"number": [numbers[at] for at in kept]}, schema=self.output_schema
            ),
            kept=pa.array(kept, pa.int64()),
            rejected=pa.RecordBatch.from_pydict(
                {
                    "partition": [rows.column("partition")[0].as_py()] * len(bad),
                    "offset": [offsets[at] for at in bad],
                    "reason": ["odd"] * len(bad),
                },
                schema=self.rejected_schema,
            ),
            dropped_count=len(offsets) - len(kept) - len(bad),
        )


def test_rejected_rows_go_to_their_own_table(rig: AppendRig, target: Target) -> None:
    """Each record is a row of one table or the other, or was left out and counted."""
    rejects = target.beside("__rejected")
    appender = rig.appender(target, Halves(), rejects=rejects)

    done = appender.append(ranges((0, 100), (0, 20)), batch_id="a")

    assert (done.rows_count, done.rejected_count, done.dropped_count) == (48, 60, 12)
    assert positions(rejects) == [(0, at) for at in range(1, 100, 2)] + [
        (1, at) for at in range(1, 20, 2)
    ]
    rows = table_rows(target).sort_by("offset").to_pylist()
    assert all(row["number"] == row["offset"] for row in rows)
    assert len(rows) == 48
    assert rig.appender(target, Halves(), rejects=rejects).watermarks().ends == {0: 100, 1: 20}


def test_a_death_between_the_two_commits_doubles_no_reject(
    rig: AppendRig, local: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rejects are in, the rows are not: the next append, of a longer range, adds what lacks."""
    rejects = local.beside("__rejected")
    appender = rig.appender(local, Halves(), rejects=rejects)
    monkeypatch.setattr(appender, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        appender.append(ranges((0, 100)), batch_id="a")
    assert len(positions(rejects)) == 50

    done = rig.appender(local, Halves(), rejects=rejects).append(ranges((0, 200)), batch_id="b")

    assert done.rejected_count == 100
    assert positions(rejects) == [(0, at) for at in range(1, 200, 2)]
    assert len(positions(local)) == 80


class Forgetful:
    """A transform that silently loses the last row of every batch."""

    output_schema = pa.schema([("value", pa.binary())])

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See the class."""
        return rows.select(["value"]).slice(0, rows.num_rows - 1)


def test_a_transform_that_loses_rows_is_refused(rig: AppendRig, local: Target) -> None:
    """Each row has to be in one table or counted; otherwise no row and no file stays."""
    with pytest.raises(SchemaMismatchError, match="99 of 100"):
        rig.appender(local, Forgetful()).append(ranges((0, 100)), batch_id="a")

    assert data_files(local) == set()
