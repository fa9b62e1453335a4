"""The job compact meets a foreign change that was made after the job had proved the table.

A RESTORE is the way out of such a change. It needs the files of the version before, and no commit
of ours on top of the change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker.errors import TableMismatchError
from simkit.tier.lab import TierLab, read_table
from spark_jobs.jobs.compact import PARSER, vacuum_proved
from spark_jobs.jobs.job import Report
from spark_jobs.maintenance.table_compaction import commit_bins
from tiering.ship.compaction import only, plan_bins, rewrite


@pytest.fixture
def lab(tmp_path: Path) -> TierLab:
    """A stream of 200 records, all of it cold, in five small files."""
    lab = TierLab(tmp_path / "lake")
    lab.source.fill(5, 40)
    lab.ship_all()
    return lab


def test_nothing_is_committed_on_top_of_a_change_that_was_made_meanwhile(lab: TierLab) -> None:
    """Before the change the same bins may be committed."""
    snapshot = lab.table.snapshot()
    bins = plan_bins(snapshot)
    pairs = [
        (one, rewrite(only(snapshot, one), lab.table.store, one, modified_us=1)) for one in bins
    ]
    changed = DeltaTable(lab.table.uri)
    changed.delete("offset < 40")  # the first file goes, whole
    with pytest.raises(TableMismatchError):
        commit_bins(lab.table, pairs)
    assert DeltaTable(lab.table.uri).version() == snapshot.version + 1
    changed.restore(snapshot.version)
    assert commit_bins(lab.table, pairs) == snapshot.version + 3
    assert read_table(lab.table, 0).equals(lab.source.truth())


def test_nothing_is_deleted_after_a_foreign_change(lab: TierLab) -> None:
    """Else the RESTORE to the version before would miss a file."""
    version = lab.table.snapshot().version
    changed = DeltaTable(lab.table.uri)
    changed.delete("offset < 40")
    arguments = PARSER.parse_args(["--stream", "orders", "--vacuum"])
    report = Report("test", sys.stderr)
    with pytest.raises(TableMismatchError):
        vacuum_proved(lab.table, 0, arguments, report)
    changed.restore(version)
    assert read_table(lab.table, 0).equals(lab.source.truth())
    assert vacuum_proved(lab.table, 0, arguments, report)["objects"] == 0
