"""What a streaming query has written, in the order in which it committed it.

Spark's file sink lists the files of each batch in its own log, in the order of the tasks; a Delta
table has one commit per batch. Read in that order, the rows of a partition have to be the stream:
every offset once, ascending, over all batches. Nothing is sorted here, or order could not fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from checkkit.anomalies import Violation
from checkkit.arrow import COLUMNS, columns_by_partition
from checkkit.check_copies import Truths, check_copies
from checkkit.checker import USUAL, check_reading
from checkkit.facts import Facts
from checkkit.history import History
from checkkit.readings import Reading, RowColumns, Source, of_log

Copied = Mapping[int, RowColumns]


def files_of_sink(folder: Path) -> list[Path]:
    """Return the files that Spark's file sink has committed, in order."""
    log = folder / "_spark_metadata"
    whole = sorted(int(one.name.removesuffix(".compact")) for one in log.glob("*.compact"))
    newest = whole[-1] if whole else -1
    names = [f"{newest}.compact"] if whole else []
    later = sorted(int(one.name) for one in log.iterdir() if one.name.isdigit())
    names += [str(number) for number in later if number > newest]
    files = []
    for name in names:
        for line in (log / name).read_text().splitlines()[1:]:  # the first is the format's version
            entry = json.loads(line)
            assert entry["action"] == "add", entry
            files.append(Path(unquote(urlparse(entry["path"]).path)))
    return files


def files_of_table(folder: Path) -> list[Path]:
    """Return the files that a Delta table's commits have added, in order; of a commit by name."""
    files: list[Path] = []
    for commit in sorted((folder / "_delta_log").glob("[0-9]*.json")):
        actions: list[dict[str, Any]] = [
            json.loads(line) for line in commit.read_text().splitlines()
        ]
        names = sorted(unquote(one["add"]["path"]) for one in actions if "add" in one)
        assert not any("remove" in one for one in actions), f"{commit.name} removes files"
        files += [folder / name for name in names]
    return files


def read_copy(files: list[Path]) -> Copied:
    """Return the rows of the files by partition, one file after the other."""
    tables = [pq.ParquetFile(one).read(list(COLUMNS)) for one in files]
    return columns_by_partition(pa.concat_tables(tables)) if tables else {}


def judge_copy(
    history: History,
    copied: Copied,
    ends: Mapping[int, int],
    *,
    began_ns: int,
    stream: Reading | None = None,
) -> Iterator[Violation]:
    """Yield whatever keeps a copy from being the acknowledged sequence, once and in order.

    Args:
        history: what was sent and acknowledged.
        copied: the rows, in the order in which the query committed them.
        ends: up to where each partition was to be copied.
        began_ns: a time before ``ends`` were taken.
        stream: the stream itself, read up to ``ends``. Only that tells whether a time that the
            broker gave is the one that was copied.
    """
    strange = sorted(copied.keys() - ends.keys())
    assert not strange, f"the copy has partitions that the stream has not: {strange}"
    none = RowColumns.of(())
    parts = [of_log(number, copied.get(number, none), end=end) for number, end in ends.items()]
    copy = Reading.of("copy", began_ns, parts, Source.COPY)
    yield from check_reading(history, copy)
    if stream is not None:
        facts = Facts(history, USUAL)
        yield from check_copies(facts, Truths(facts, [stream]), [copy])
