"""Superseded records leave the table: what is left, its proofs, and any stop in between."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.codec import key_map
from broker.codec.key_hash import Hashes
from broker.codec.key_map import KeyMap, KeyMapFullError, Offsets
from broker.codec.schema import ROW_SCHEMA
from broker.errors import CompactedRangeError, ObjectCorruptError
from broker.model.certificate import Hole
from broker.model.offsets import Offset, OffsetRange
from broker.model.stream import StreamConfig
from cases import seeds
from simkit.tier.lab import DiedError, TierLab, certify, cut_of, forget_proofs
from simkit.tier.source import make_stream
from tiering.proof.proofs import prove
from tiering.read.certify import certify_counts
from tiering.read.reader import read_rows
from tiering.read.verify import verify_table
from tiering.ship.compaction import plan_bins
from tiering.ship.shipper import PartitionShipper
from tiering.table.key_compactions import KeyCompactions, compaction_key
from tiering.table.table import TableSnapshot

COMPACT = StreamConfig(subject="orders", history="compact", tombstone_delay_ms=10**9)
Row = dict[str, Any]


def a_lab(root: Path, *, segments: int = 4, config: StreamConfig = COMPACT) -> TierLab:
    """Return a lab with segments of 20 records that are shipped; their keys are few."""
    lab = TierLab(root, stream=replace(make_stream(), config=config))
    lab.source.fill(segments, 20)
    return lab


def left(lab: TierLab, wanted: OffsetRange | None = None) -> list[Row]:
    """Return the rows of the newest version, as a reader gets them that takes what is left."""
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    held = wanted if wanted is not None else snapshot.ranges[0]
    batches = read_rows(snapshot, table.store, 0, held, sparse=True)
    rows: list[Row] = pa.Table.from_batches(batches, ROW_SCHEMA).to_pylist()
    return rows


def require_left(lab: TierLab) -> list[Row]:
    """Check the table against every record that there ever was, and its proofs; return its rows.

    What is left of the sparse range: each record without a key, and the last one of each key, which
    may be missing if it is a tombstone. Above it: each record.
    """
    forget_proofs()
    table = lab.lake.table(lab.stream)
    snapshot = table.snapshot()
    rows, held, whole = left(lab), snapshot.ranges[0], snapshot.whole_start(0)
    truth = lab.source.truth().to_pylist()[held.start : held.end]
    last = {one["key"]: one["offset"] for one in truth if one["offset"] < whole}
    must = [
        one
        for one in truth
        if one["offset"] >= whole or one["key"] is None or last[one["key"]] == one["offset"]
    ]
    assert [one for one in rows if one["key"] is None or one["value"] is not None] == [
        one for one in must if one["key"] is None or one["value"] is not None
    ], "the last record of each key, in order of offset, exactly"
    assert [one for one in must if one in rows] == rows, "nothing else, except tombstones"
    prove(snapshot, table.store)
    [proof] = verify_table(snapshot, table.store)
    assert proof.records_count == len(rows)
    [cheap], _, _ = certify_counts(snapshot, cut_of(snapshot, lab.stream), table.store, sparse=True)
    assert cheap.records_count == len(rows)
    missing = held.end - held.start - len(rows)
    found = [one for one in cheap.holes if one.reason == "compaction"]
    assert found == ([Hole(held.start, whole, "compaction", missing)] if missing else [])
    return rows


def run(lab: TierLab, shipper: PartitionShipper | None = None) -> TableSnapshot:
    """Run cycles until nothing is left to do; return the table."""
    return lab.ship_all(shipper)


def test_the_last_record_of_each_key_is_left(tmp_path: Path) -> None:
    """The newest file stays whole; certificate, account and every digest agree."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()
    snapshot = run(lab, shipper)
    assert snapshot.whole_start(0) == 60
    rows = require_left(lab)
    assert len(rows) < 80
    assert shipper.key_compactor is not None
    assert shipper.key_compactor.counters.records_total == 80 - len(rows)
    [end] = KeyCompactions(lab.table.store).ends(0)
    entry = KeyCompactions(lab.table.store).get(0, end)
    assert (entry.range, entry.version) == (OffsetRange(Offset(0), Offset(60)), snapshot.version)
    assert entry.lineage_id == lab.source.lineage[-1].lineage_id
    run(lab)
    assert lab.table.snapshot().version == snapshot.version, "there is nothing more to do"


def test_history_is_kept_unless_the_stream_says_otherwise(tmp_path: Path) -> None:
    """The default is the promise: each record, for ever."""
    lab = a_lab(tmp_path, config=StreamConfig(subject="orders", compact=True))
    assert run(lab).whole_start(0) == 0
    assert certify(lab) == [80]


def test_a_reader_of_each_record_is_refused(tmp_path: Path) -> None:
    """Who does not ask for what is left gets an error; above the sparse range all is as ever."""
    lab = a_lab(tmp_path)
    snapshot = run(lab)
    with pytest.raises(CompactedRangeError, match="begin at 60"):
        list(read_rows(snapshot, lab.table.store, 0, OffsetRange(Offset(59), Offset(70))))
    with pytest.raises(CompactedRangeError):
        certify(lab)
    above = read_rows(snapshot, lab.table.store, 0, OffsetRange(Offset(60), Offset(80)))
    assert pa.Table.from_batches(above, ROW_SCHEMA).equals(lab.source.truth(60))


def test_a_version_from_before_stays_whole(tmp_path: Path) -> None:
    """A cut from before names a version of its own; its files are there until VACUUM."""
    lab = a_lab(tmp_path)
    snapshot = run(lab)
    assert certify(lab, snapshot.version - 1) == [80]
    before = lab.table.snapshot(snapshot.version - 1)
    rows = read_rows(before, lab.table.store, 0, before.ranges[0])
    assert pa.Table.from_batches(rows, ROW_SCHEMA).equals(lab.source.truth())


def test_it_goes_on_as_records_come(tmp_path: Path) -> None:
    """A pass takes what was left before together with what came since."""
    lab = a_lab(tmp_path)
    shipper = lab.shipper()
    run(lab, shipper)
    lab.source.fill(6, 20)
    assert run(lab, shipper).whole_start(0) == 180
    require_left(lab)
    assert KeyCompactions(lab.table.store).ends(0) == [60, 180]
    assert all(one.min_offset is None or one.min_offset >= 180 or one.records_count != 20
               for one in lab.table.snapshot().files)  # fmt: skip


def test_it_waits_until_enough_is_new(tmp_path: Path) -> None:
    """Below the percentage of new bytes the files stay as they are."""
    lab = a_lab(tmp_path, config=replace(COMPACT, compact_dirty_percent=100))
    run(lab)
    lab.source.fill(3, 20)
    assert run(lab).whole_start(0) == 60


def test_keys_that_do_not_fit_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is the same, however few keys the table of keys may hold."""
    parts = set()

    class NarrowMap(KeyMap):
        def add(self, hashes: tuple[Hashes, Hashes], offsets: Offsets) -> None:
            if self._mask < 3:
                raise KeyMapFullError
            parts.add((int(self._part), int(self._mask)))
            super().add(hashes, offsets)

    monkeypatch.setattr(key_map, "KeyMap", NarrowMap)
    lab = a_lab(tmp_path)
    assert run(lab).whole_start(0) == 60
    assert parts == {(part, 3) for part in range(4)}
    require_left(lab)


def test_nothing_goes_above_what_readers_hold(tmp_path: Path) -> None:
    """A lease or a protected position holds its records, and the file that has them."""
    lab = a_lab(tmp_path)
    lab.source.starts.held_at = 59
    assert run(lab).whole_start(0) == 40
    require_left(lab)


def test_a_tombstone_stays_for_its_delay_and_until_the_key_snapshot_has_it(tmp_path: Path) -> None:
    """The delay counts from the first pass over it, by the broker's clock."""
    lab = a_lab(tmp_path, config=replace(COMPACT, tombstone_delay_ms=0))
    shipper = lab.shipper()
    run(lab, shipper)
    lab.source.fill(3, 20)
    run(lab, shipper)
    compactor = shipper.key_compactor
    assert compactor is not None
    later = compactor._clock.now_us()
    assert KeyCompactions(lab.table.store).ends(0) == [60, 120]
    assert compactor._tombstones_end(later) == 120
    assert compactor._tombstones_end(0) == 0, "no pass is that old"
    compactor._key_snapshot_end = lambda: Offset(70)
    assert compactor._tombstones_end(later) == 70
    lab.source.starts.config = replace(COMPACT, tombstone_delay_ms=10**9)
    assert compactor._tombstones_end(later) == 0
    require_left(lab)


def test_expiry_goes_on_in_a_sparse_range(tmp_path: Path) -> None:
    """Retention removes whole files of what is left; then the prefix has that many rows fewer."""
    lab = a_lab(tmp_path, segments=8)
    run(lab)
    before = require_left(lab)
    keep = len(before) - 10
    lab.source.starts.config = replace(COMPACT, remote_retention_records=keep)
    snapshot = run(lab)
    assert 0 < snapshot.ranges[0].start < snapshot.whole_start(0) == 140
    assert keep <= len(require_left(lab)) < len(before)
    lab.source.starts.config = replace(COMPACT, remote_retention_records=20)
    snapshot = run(lab)
    assert snapshot.ranges[0].start == snapshot.whole_start(0) == 140
    require_left(lab)


def test_a_stop_between_commit_and_account_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next leader notes the account, readers take it from the commit."""
    lab = a_lab(tmp_path)

    def die(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(KeyCompactions, "put", die)
        with pytest.raises(DiedError):
            run(lab)
    assert KeyCompactions(lab.table.store).ends(0) == []
    require_left(lab)
    run(lab)
    assert KeyCompactions(lab.table.store).ends(0) == [60]
    require_left(lab)


def test_a_pass_that_loses_a_race_commits_nothing(tmp_path: Path) -> None:
    """Two leaders compact at once: the files of one are used, and the other finds them."""
    lab = a_lab(tmp_path)
    lab.source.starts.config = replace(COMPACT, history="keep")
    run(lab)
    lab.source.starts.config = COMPACT
    one, other = lab.shipper(), lab.shipper()
    assert one.key_compactor is not None
    assert other.key_compactor is not None
    known = lab.table.snapshot()
    assert one.key_compactor.begin_if_due(known)
    work = one.key_compactor._work
    assert work is not None
    for _ in range(2):
        next(work)
    run(lab, other)
    while one.key_compactor.take_turn():
        pass
    assert one.key_compactor.counters.passes_total == 0
    assert other.key_compactor.counters.passes_total == 1
    require_left(lab)


def test_what_a_reader_holds_since_the_pass_began_stays(tmp_path: Path) -> None:
    """A group's position may be set back while a pass reads: then the pass commits nothing."""
    lab = a_lab(tmp_path)
    lab.source.starts.config = replace(COMPACT, history="keep")
    run(lab)
    lab.source.starts.config = COMPACT
    one = lab.shipper()
    assert one.key_compactor is not None
    assert one.key_compactor.begin_if_due(lab.table.snapshot())
    work = one.key_compactor._work
    assert work is not None
    next(work)
    lab.source.starts.held_at = 20
    while one.key_compactor.take_turn():
        pass
    assert lab.table.snapshot().whole_start(0) == 0
    assert run(lab, lab.shipper()).whole_start(0) == 20


def test_damage_is_never_compacted(tmp_path: Path) -> None:
    """Rows that differ from their digests stop the pass, and shipping goes on."""
    lab = a_lab(tmp_path)
    lab.source.starts.config = replace(COMPACT, history="keep")
    run(lab)
    first = min(lab.table.snapshot().files, key=lambda one: one.min_offset or 0)
    path = tmp_path / "default" / lab.stream.table_name / first.path
    body = bytearray(path.read_bytes())
    body[40] ^= 1
    path.write_bytes(bytes(body))
    forget_proofs()
    lab.source.starts.config = COMPACT
    lab.source.fill(1, 20)
    shipper = lab.shipper()
    assert run(lab, shipper).whole_start(0) == 0
    assert lab.source.cold_end == 100
    assert shipper.key_compactor is not None
    assert shipper.key_compactor.counters.failures_total > 0


@pytest.mark.parametrize("field", ["records_count", "digest"])
def test_a_false_account_is_refused(tmp_path: Path, field: str) -> None:
    """The account beside the table is compared with the version, and the rows with the account."""
    lab = a_lab(tmp_path)
    run(lab)
    entry = KeyCompactions(lab.table.store).get(0, Offset(60))
    first, *others = entry.files
    wrong: Any = {"records_count": first.records_count - 1, "digest": "0" * 64}[field]
    path = tmp_path / "default" / lab.stream.table_name / compaction_key(0, 60)
    path.write_text(replace(entry, files=(replace(first, **{field: wrong}), *others)).to_text())
    snapshot = lab.table.snapshot()
    with pytest.raises(ObjectCorruptError):
        verify_table(snapshot, lab.table.store)


def test_compaction_of_small_files_leaves_the_sparse_range_alone(tmp_path: Path) -> None:
    """Only whole files are joined by `headwater job compact`."""
    lab = a_lab(tmp_path)
    lab.source.fill(2, 20)
    lab.source.starts.held_at = 60
    run(lab)
    assert [one.range for one in plan_bins(lab.table.snapshot())] == [
        OffsetRange(Offset(60), Offset(120))
    ]


@pytest.mark.parametrize("seed", seeds(3))
def test_random_histories_against_a_model(tmp_path: Path, seed: int) -> None:
    """Publishing, shipping, passes, retention, other leaders: at each moment the model holds."""
    rng = random.Random(seed)
    delay = rng.choice([0, 10**9])
    config = replace(COMPACT, tombstone_delay_ms=delay, compact_dirty_percent=rng.randint(1, 60))
    lab = TierLab(tmp_path, stream=replace(make_stream(), config=config))
    shipper = lab.shipper()
    for _ in range(5):
        lab.source.fill(rng.randint(1, 3), rng.randint(1, 25))
        if rng.random() < 0.3:
            lab.source.lead_again()
            shipper = lab.shipper()
        bound = rng.choice([None, None, rng.randint(1, 150)])
        lab.source.starts.config = replace(config, remote_retention_records=bound)
        lab.source.starts.held_at = rng.choice([None, rng.randint(0, int(lab.source.log_end))])
        run(lab, shipper)
        require_left(lab)
