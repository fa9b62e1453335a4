"""The rules by which one commit of a table's log is ours, or changes nothing; no table is made.

Commits are written by hand, action by action. What whole tables and other engines do is in
test_provenance.py.

The file is not split: it is a list of commits by hand, each refused or let through.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import TableMismatchError
from broker.model.offsets import Offset, OffsetRange
from simkit.tier.hand_log import (
    CREATED,
    PROPERTIES,
    STREAM,
    Actions,
    add,
    body,
    described,
    entry,
    expired,
    moved,
    ours,
    remove,
    shipped,
    stats,
)
from tiering.proof.provenance import (
    ProvedFile,
    Provenance,
    Walk,
    require_listed,
)
from tiering.table.commit_files import account_of, claims_in, file_in
from tiering.table.ledger import LedgerEntry
from tiering.table.table import (
    EXPIRED,
    FILES,
    KIND_PROPERTY,
    RANGES,
    NewFile,
    TableSnapshot,
)
from tiering.table.transactions import TransactionNames

A, B, C = entry(0, 10), entry(10, 20), entry(20, 30)


def walked(*commits: Actions, base: Provenance | None = None) -> Provenance:
    """Check commits one after another; return the state behind them."""
    walk = Walk(base or Provenance(), "t")
    first = 0 if base is None else base.version + 1
    for version, actions in enumerate(commits, first):
        walk.step(version, body(actions))
    return walk.end()


def reason(*commits: Actions) -> str:
    """Return why the last of these commits is not ours."""
    with pytest.raises(TableMismatchError) as caught:
        walked(*commits)
    assert caught.value.version == len(commits) - 1
    return str(caught.value.reason)


def column(**metadata: Any) -> dict[str, Any]:
    """Return a metaData action that gives the table's column metadata of its own."""
    fields = [{"name": "offset", "type": "long", "nullable": False, "metadata": metadata}]
    return described(schemaString=json.dumps({"type": "struct", "fields": fields}))


def span(start: int, end: int) -> OffsetRange:
    """Return a range of offsets."""
    return OffsetRange(Offset(start), Offset(end))


# ------------------------------------------------------------------------------ what we ship


def test_what_the_uploader_commits_is_ours() -> None:
    """Ranges that go on, files with their checksums, the ends of two partitions."""
    other = entry(0, 5, partition=1)
    state = walked(CREATED, shipped(A), shipped(B, other), shipped(C))
    assert state.ranges == {0: span(0, 30), 1: span(0, 5)}
    assert set(state.files) == {one.path for one in (A, B, C, other)}
    assert state.files[A.path] == ProvedFile(file_in(add(A)["add"]), 7, "e")


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (shipped(C), "does not begin at the cold end"),
        (shipped(entry(5, 15)), "does not begin at the cold end"),
        (shipped(entry(2, 5, partition=7)), "does not begin at the cold end"),
        ([*shipped(B), remove(A)], "ships ranges and removes files"),
        ([*shipped(B)[:-1], *moved(21)], "its transactions give the ends"),
        ([*shipped(B), *moved(5, partition=1)], "its transactions give the ends"),
        ([*shipped(B), *moved(20, start=1)], "its transactions give the ends"),
        (shipped(B)[:-1], "its transactions give the ends"),
        ([*shipped(B), add(B)], "other files than its ranges"),
        ([*shipped(B), add(C)], "other files than its ranges"),
        ([one for one in shipped(B) if "add" not in one], "other files than its ranges"),
        ([shipped(B)[0], add(B, changes=False), *moved(20)], "it describes a file as"),
        ([shipped(B)[0], add(B, changes=None), *moved(20)], "it describes a file as"),
        ([shipped(B)[0], add(B, size=8), *moved(20)], "it describes a file as"),
        ([shipped(B)[0], add(B, stats=stats(B, numRecords=9)), *moved(20)], "describes a file as"),
        (
            [shipped(B)[0], add(B, stats=stats(B, minValues__offset=11)), *moved(20)],
            "it describes a file as",
        ),
        (
            [shipped(B)[0], add(B, stats=stats(B, minValues__key="a")), *moved(20)],
            "statistics of a file that its account does not have",
        ),
        (
            [shipped(B)[0], add(B, stats=stats(B, nullCount__offset=1)), *moved(20)],
            "statistics of a file that its account does not have",
        ),
        ([ours(**{RANGES: "{"}), add(B), *moved(20)], "its account cannot be read"),
        ([*shipped(B), {"other": {}}], "actions that this build does not know"),
        (
            [shipped(B)[0], *moved(20), {"txn": {"appId": moved(1)[0]["txn"]["appId"]}}],
            "no version",
        ),
    ],
)
def test_a_commit_with_our_id_that_does_not_fit_its_ranges_is_foreign(
    commit: Actions, words: str
) -> None:
    """A copied commit id does not help: every part is compared with the commit's account."""
    assert words in reason(CREATED, shipped(A), commit)


# ------------------------------------------------------------------------------ what we replace


def account(*files: LedgerEntry) -> str:
    """Return the account of the files that a commit of ours adds in place of others."""
    return json.dumps(
        [
            account_of(
                NewFile(
                    path=one.path,
                    size_bytes=one.size_bytes,
                    partition=one.partition,
                    modified_us=1,
                    stats_json=stats(one),
                    crc32c=11,
                )
            )
            for one in files
        ]
    )


JOINED = replace(entry(0, 20), path="partition=0/joined.parquet")


def test_a_compaction_of_ours_keeps_the_rows() -> None:
    """Two files become one; its checksum is that of the account."""
    commit = [
        ours(**{FILES: account(JOINED)}),
        add(JOINED, changes=False),
        remove(A, changes=False),
        remove(B, changes=False),
    ]
    state = walked(CREATED, shipped(A), shipped(B), commit, shipped(C))
    assert set(state.files) == {JOINED.path, C.path}
    assert (state.files[JOINED.path].crc32c, state.files[JOINED.path].ours) == (11, True)


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        ([ours(**{FILES: account(JOINED)}), add(B, changes=False)], "than its account has"),
        (
            [ours(**{FILES: account(JOINED)}), *[add(JOINED, changes=False)] * 2,
             remove(A, changes=False), remove(B, changes=False)],
            "than its account has",
        ),
        (
            [ours(**{FILES: account(JOINED)}), add(JOINED, changes=False, stats="{}"),
             remove(A, changes=False), remove(B, changes=False)],
            "than its account has",
        ),
        (
            [ours(**{FILES: account(JOINED)}), add(JOINED, changes=False),
             remove(A, changes=False)],
            "claims to change no data",
        ),
        ([ours(**{FILES: account()}), remove(A), *moved(20, start=10)], "has no account"),
        ([ours(**{FILES: account()}), remove(A)], "has no account"),
        ([ours(**{FILES: account(C)}), add(C), *moved(30)], "has no account"),
        ([ours(), add(C)], "has no account"),
        ([ours(**{FILES: account()}), *moved(20, start=1)], "has no account"),
    ],
)  # fmt: skip
def test_a_replacement_that_loses_or_adds_rows_is_foreign(commit: Actions, words: str) -> None:
    """Even with our commit id: a compaction keeps rows, an expiry removes only old ones."""
    assert words in reason(CREATED, shipped(A), shipped(B), commit)


def test_an_expiry_removes_what_ends_at_the_new_start() -> None:
    """Files that end exactly there are removed, and no file above."""
    state = walked(CREATED, shipped(A), shipped(B), expired(A))
    assert (state.ranges[0], set(state.files)) == (span(10, 20), {B.path})
    state = walked(CREATED, shipped(A), shipped(B), expired(A), expired(B, start=10))
    assert (state.ranges[0], set(state.files)) == (span(20, 20), set())


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        (expired(B, start=10), "does not begin at the start"),
        (expired(A, B, end=21), "does not begin at the start"),
        (expired(A, end=9), "on both sides of 9"),
        (expired(A, B, end=10), "other files than those below 10"),
        (expired(A, end=20), "other files than those below 20"),
        ([*expired(A)[:-2], remove(B), expired(A)[-1]], "other files than those below 10"),
        ([*expired(A), remove(B)], "other files than those below 10"),
        ([*expired(A), remove(A)], "removes a file twice"),
        ([*expired(A)[:-2], remove(A, changes=False), expired(A)[-1]], "changes no data"),
        ([*expired(A), add(C)], "something else as well"),
        (expired(A)[:-1], "its transactions move {}"),
        ([*expired(A), *moved(30)], "its expiry ends at 10"),
        ([*expired(A)[:-1], *moved(20, start=9)[1:]], "its expiry ends at 10"),
        ([ours(**{EXPIRED: "{"}), remove(A), *moved(20, start=10)[1:]], "cannot be read"),
        ([ours(**{EXPIRED: "{}"}), remove(A), *moved(20, start=10)[1:]], "is not an expiry"),
        ([{"commitInfo": {}}, *expired(A)[1:]], "has no commit id of ours"),
    ],
)
def test_what_is_not_exactly_an_expiry_is_foreign(commit: Actions, words: str) -> None:
    """It removes the first files of a partition, all of them up to its end, and nothing else."""
    assert words in reason(CREATED, shipped(A), shipped(B), commit)


def test_a_key_snapshot_has_no_expiry() -> None:
    """Its rows are the newest of each key, whatever expired."""
    kind = [described(configuration={**PROPERTIES, KIND_PROPERTY: "latest"})]
    words = reason(kind, [ours(**{FILES: account(A)}), add(A)], expired(A))
    assert "something else as well" in words


def test_an_advance_of_a_key_snapshot_may_add_rows() -> None:
    """A key snapshot's rows are results of a job; a history's rows are copies of the log's."""
    kind = [described(configuration={**PROPERTIES, KIND_PROPERTY: "latest"})]
    assert A.path in walked(kind, [ours(**{FILES: account(A)}), add(A)]).files
    nowhere = entry(0, 10, partition=7)
    commit = [ours(**{FILES: account(nowhere)}), add(nowhere)]
    assert "belongs to no partition" in reason(kind, commit)


# ------------------------------------------------------------------------------ others' commits


@pytest.mark.parametrize(
    ("commit", "words"),
    [
        ([remove(A)], "changes data and has no commit id"),
        ([remove(A, changes=None)], "changes data and has no commit id"),
        ([add(C, changes=None)], "changes data and has no commit id"),
        ([remove(C, changes=False)], "which was not there"),
        ([remove(A, changes=False)], "claims to change no data"),
        ([add(C, changes=False)], "claims to change no data"),
        ([add(A, changes=False), remove(A, changes=False)], "adds and removes"),
        (moved(10), "moves our transactions"),
        (
            [add(replace(JOINED, partition=1), changes=False), remove(A, changes=False),
             remove(B, changes=False)],
            "claims to change no data",
        ),
        ([add(A, changes=False, size=8)], "changes the statistics"),
        ([add(A, changes=False, stats=stats(A, numRecords=9))], "changes the statistics"),
        (
            [add(A, changes=False,
                 stats=stats(A, maxValues__timestamp="1970-01-01T00:00:06.500Z"))],
            "changes the statistics",
        ),
        ([described(id="other")], "changes the table's id"),
        ([described(configuration={**PROPERTIES, "headwater.stream": "x"})], "our properties"),
        ([described(partitionColumns=[])], "columns"),
        ([column(__COLLATIONS={"offset": "spark.UTF8_LCASE"})], "columns"),
        ([column(__CHAR_VARCHAR_TYPE_STRING="char(5)", comment="of flights")], "columns"),
        ([{"cdc": {}}, {"unknown": {}}], "does not know"),
        ([add(replace(A, partition=7), changes=False)], ""),
    ],
)  # fmt: skip
def test_a_commit_of_others_that_changes_something_is_foreign(commit: Actions, words: str) -> None:
    """It changes rows, bounds, statistics, our transactions or the table's properties."""
    assert words in reason(CREATED, shipped(A), shipped(B), commit)


def test_a_file_without_statistics_of_no_partition_is_foreign() -> None:
    """Counts cannot show it, because its partition is not one of the stream."""
    nowhere = replace(JOINED, partition=7)
    commit = [add(nowhere, changes=False, stats="{}")]
    assert reason(CREATED, shipped(A), commit)


@pytest.mark.parametrize("metadata", [{}, {"comment": "first, last"}, {"comment": ""}])
def test_a_comment_of_a_column_is_housekeeping(metadata: dict[str, str]) -> None:
    """It changes no answer of any engine; the proved columns are those of before."""
    state = walked(CREATED, shipped(A), [column(**metadata)])
    assert state.columns == walked(CREATED, shipped(A)).columns


@pytest.mark.parametrize("metadata", ["x", [], 5])
def test_a_column_whose_metadata_is_no_object_is_foreign(metadata: object) -> None:
    """Nothing says what engines make of it."""
    fields = [{"name": "offset", "type": "long", "nullable": False, "metadata": metadata}]
    text = json.dumps({"type": "struct", "fields": fields})
    assert "cannot be read" in reason(CREATED, [described(schemaString=text)])


def test_a_collation_is_undone_by_the_columns_of_before() -> None:
    """As every other change of columns is."""
    lower = column(__COLLATIONS={"offset": "spark.UTF8_LCASE"})
    assert walked(CREATED, shipped(A), [lower], [described()]).files.keys() == {A.path}


OPTIMIZE = [add(JOINED, changes=False), remove(A, changes=False), remove(B, changes=False)]


def test_rows_that_others_rewrote_are_to_be_compared() -> None:
    """Before that they are foreign. A file that is only described again keeps its checksums."""
    state = walked(CREATED, shipped(A), shipped(B), OPTIMIZE, shipped(C))
    assert state.files[JOINED.path] == ProvedFile(file_in(add(JOINED)["add"]), ours=False)
    state = walked(CREATED, shipped(A), shipped(B), shipped(C), [add(C, changes=False)])
    assert (state.files[C.path].crc32c, state.files[C.path].ours) == (7, True)


@pytest.mark.parametrize(
    "times",
    [
        {"maxValues__timestamp": "1970-01-01T00:00:05.999Z"},
        {"maxValues__timestamp": "1970-01-01T00:00:06.001Z"},
        {"minValues__timestamp": "1970-01-01T00:00:05.001Z"},
        {"minValues__timestamp": "1970-01-01T00:00:05.000999Z"},
    ],
)
def test_times_that_others_state_differently_are_to_be_compared(times: dict[str, str]) -> None:
    """An engine may round a time, and many commits of one millisecond add up to any time."""
    again = [add(C, changes=False, stats=stats(C, **times))]
    state = walked(CREATED, shipped(A), shipped(B), shipped(C), again)
    assert (state.files[C.path].crc32c, state.files[C.path].ours) == (7, False)
    state = walked(CREATED, shipped(A), shipped(B), shipped(C), again, again)
    assert not state.files[C.path].ours


def test_statistics_that_others_add_to_our_file_are_to_be_compared() -> None:
    """Readers skip files by statistics, so wrong ones would hide rows."""
    again = add(C, changes=False, stats=stats(C, minValues__key="a"))
    state = walked(CREATED, shipped(A), shipped(B), shipped(C), [again])
    assert (state.files[C.path].crc32c, state.files[C.path].ours) == (7, False)
    assert state.files[C.path].claims is not None
    back = walked(CREATED, shipped(A), shipped(B), shipped(C), [again], [add(C, changes=False)])
    assert not back.files[C.path].ours


@pytest.mark.parametrize(
    ("foreign", "undone"),
    [
        ([remove(A)], [add(A)]),
        ([add(C)], [remove(C)]),
        ([described(configuration={**PROPERTIES, "headwater.stream": "x"})], [described()]),
        (moved(11), moved(20)),
    ],
)
def test_a_foreign_change_is_an_error_until_everything_is_as_before(
    foreign: Actions, undone: Actions
) -> None:
    """Files, properties and ranges have to be as before; then the checksums count again."""
    before = (CREATED, shipped(A), shipped(B))
    stories: list[tuple[Actions, ...]]
    stories = [(foreign,), (foreign, [{"commitInfo": {}}]), (foreign, shipped(C))]
    for later in stories:
        with pytest.raises(TableMismatchError) as caught:
            walked(*before, *later)
        assert caught.value.version == 3
    state = walked(*before, foreign, undone)
    assert state.files == walked(*before).files
    assert walked(*before, foreign, undone, shipped(C)).ranges[0] == span(0, 30)


@pytest.mark.parametrize(
    "false",
    [
        {"stats": stats(A, nullCount__offset=10)},
        {"stats": stats(A, minValues__key="z")},
        {"stats": stats(A, minValues__timestamp="1970-01-01T00:00:05.000999Z")},
    ],
)
def test_an_undoing_brings_its_own_further_statistics(false: dict[str, Any]) -> None:
    """They are compared with the rows, as those of a file that is only described again."""
    before = (CREATED, shipped(A), shipped(B))
    state = walked(*before, [remove(A)], [add(A, **false)])
    again = state.files[A.path]
    assert (again.crc32c, again.etag, again.ours) == (7, "e", False)
    assert again.claims == claims_in(add(A, **false)["add"])
    assert state.files[B.path] == walked(*before).files[B.path]


def test_an_undoing_without_the_further_statistics_of_before_is_to_be_compared() -> None:
    """What the proved version stated is not what this version states."""
    described_again = [add(A, changes=False, stats=stats(A, minValues__key="a"))]
    state = walked(CREATED, shipped(A), described_again, [remove(A)], [add(A)])
    assert (state.files[A.path].claims, state.files[A.path].ours) == (None, False)


@pytest.mark.parametrize(
    "stories",
    [
        ([add(A, changes=False), remove(A, changes=False)], [{"commitInfo": {}}]),
        ([remove(A)], [add(A), remove(A)]),
    ],
    ids=["the change", "the undoing"],
)
def test_a_file_that_is_added_and_removed_at_once_undoes_nothing(
    stories: tuple[Actions, Actions],
) -> None:
    """Delta-rs lists such a file, Spark does not. A plain add of it is an undoing."""
    before = (CREATED, shipped(A), shipped(B))
    with pytest.raises(TableMismatchError):
        walked(*before, *stories)
    assert walked(*before, *stories, [add(A)]).files == walked(*before).files


# ------------------------------------------------------------------------------ what is listed


def snapshot(state: Provenance) -> TableSnapshot:
    """Return the version as a Delta library reads it."""
    return TableSnapshot(
        uri="t", version=state.version, stream_uuid=STREAM.uuid, cluster="c",
        properties={**state.properties, "delta.other": "1"}, table_id=state.table_id,
        files=tuple(one.file for one in state.files.values()), ranges=state.ranges,
    )  # fmt: skip


def _first_file(found: TableSnapshot, **values: Any) -> TableSnapshot:
    return replace(found, files=(replace(found.files[0], **values), *found.files[1:]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: replace(one, properties={**one.properties, "headwater.stream": "x"}),
         "other properties"),
        (lambda one: replace(one, properties={"delta.other": "1"}), "other properties"),
        (lambda one: replace(one, ranges={**one.ranges, 0: span(0, 19)}), "has the ranges"),
        (lambda one: replace(one, ranges={**one.ranges, 0: span(1, 20)}), "has the ranges"),
        (lambda one: replace(one, files=one.files[1:]), "does not list"),
        (lambda one: replace(one, files=(*one.files, replace(one.files[0], path="x"))),
         "which no proved commit added"),
        (lambda one: _first_file(one, size_bytes=8), "describes a file as"),
        (lambda one: _first_file(one, min_offset=Offset(1)), "describes a file as"),
        (lambda one: _first_file(one, max_timestamp_us=6_001_000), "describes a file as"),
    ],
)  # fmt: skip
def test_a_version_that_is_listed_differently_is_refused(
    change: Callable[[TableSnapshot], TableSnapshot], words: str
) -> None:
    """A checkpoint or a commit was edited after it was written."""
    state = walked(CREATED, shipped(A), shipped(B))
    listed = snapshot(state)
    require_listed(state, listed)
    with pytest.raises(TableMismatchError, match=words):
        require_listed(state, change(listed))


# ---------------------------------------------------------------------------- added partitions


def test_a_commit_of_ours_makes_an_added_partition_known() -> None:
    """The table's properties have two partitions; the third begins with its own transaction."""
    third = entry(0, 10, partition=2)
    state = walked(CREATED, shipped(A), shipped(third))
    assert {n: len(held) for n, held in state.ranges.items()} == {0: 10, 1: 0, 2: 10}
    assert state.files[third.path].ours
    again = walked(shipped(entry(10, 20, partition=2)), base=state)
    assert again.ranges[2] == OffsetRange(Offset(0), Offset(20))


def test_an_added_partition_begins_at_its_first_record() -> None:
    """As every partition does: a later beginning would be a gap."""
    with pytest.raises(TableMismatchError, match="does not begin at the cold end"):
        walked(CREATED, shipped(entry(5, 10, partition=2)))


def test_a_stranger_does_not_add_a_partition() -> None:
    """Neither its transaction nor a file of it."""
    third = entry(0, 10, partition=2)
    with pytest.raises(TableMismatchError, match="moves our transactions"):
        walked(CREATED, moved(10, partition=2))
    without_bound = [one for one in shipped(third) if "txn" not in one]
    with pytest.raises(TableMismatchError, match="its transactions give the ends"):
        walked(CREATED, without_bound)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (0, "end")),
        ("/start", (0, "start")),
        ("/latest", None),
        ("/latest/start", None),
        ("/start/start", None),
    ],
)
@pytest.mark.parametrize("number", ["0", "00", "1023", "1024", "-1", "x", "\u0661", ""])
def test_the_partition_of_a_transaction_is_a_plain_number(
    text: str, found: tuple[int, str] | None, number: str
) -> None:
    """Anything else is a stranger's, and means nothing."""
    names = TransactionNames("c", STREAM.uuid, "history")
    parsed = names.parsed(f"headwater/c/{STREAM.uuid}/{number}{text}")
    legal = number in {"0", "1023"} and found is not None
    assert parsed == ((int(number), found[1]) if legal and found else None)
    assert names.parsed(f"headwater/d/{STREAM.uuid}/0") is None
    assert names.parsed(None) is None
