"""What Spark says of a damaged table: a sample of the catalogue's lake, read through one JVM.

Only what Spark reads by itself is of interest: objects, Delta log, key snapshot. Each case is
damaged while the broker is stopped, and read in full and as the newest record of each key.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.codec.schema import ROW_SCHEMA
from broker.errors import HeadwaterError, leaves
from damagekit.campaign import Result
from damagekit.catalogue import Case
from damagekit.damages import damage
from damagekit.golden import STREAMS, World, clone
from damagekit.outcomes import Look, Outcome
from damagekit.site import Site, truths_of
from damagekit.spawner import Spawner
from damagekit.truth import Truth
from headwater.client import Client


def run_with_spark(worlds: Path, scratch: Path, cases: Iterable[Case]) -> Iterator[Result]:
    """Run cases one after the other; yield results as they come. Blocks.

    To be called in a process that has a single thread yet: brokers are forked from it.
    """
    spawner = Spawner()
    from spark_jobs.session import build_session

    quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = build_session("damage", "local[2]", conf=quiet)
    try:
        for number, case in enumerate(cases):
            began_s = time.monotonic()
            folder = scratch / f"spark{number}"
            looks = _run(spark, spawner, worlds, folder, case)
            shutil.rmtree(folder, ignore_errors=True)
            yield Result(case, looks, time.monotonic() - began_s)
    finally:
        spark.stop()


def _run(spark: Any, spawner: Spawner, worlds: Path, folder: Path, case: Case) -> list[Look]:
    world = World(worlds / case.retention)
    truths = truths_of(world)
    site = Site(spawner, folder / "data", folder / "lake", truths, lambda _: None)
    folder.mkdir(parents=True)
    for root in ("data", "lake"):
        clone(world.moment("stopped") / root, folder / root)
    damage(folder / case.entry.path, case.damage, worlds / case.source if case.source else None)
    if not site.start("start"):
        return site.looks
    assert site.broker is not None
    with Client(site.broker.url) as client:
        for stream, parts in truths.items():
            owner = case.entry.stream.partition("__latest")[0]
            if owner in STREAMS and owner != stream:
                continue
            for latest in (False, True):
                site.looks.append(
                    _look(stream, latest, lambda s=stream, n=latest, p=parts: (  # type: ignore[misc]
                        _difference(spark, client, s, p, latest=n)
                    ))
                )  # fmt: skip
    site.end("end", politely=False)
    return site.looks


def _difference(
    spark: Any, client: Client, stream: str, parts: dict[int, Truth], *, latest: bool
) -> str:
    from spark_jobs.read import held_reads, unified

    frame = unified.read(spark, stream, latest=latest, server=client)
    try:
        ordered = frame.select(*ROW_SCHEMA.names).orderBy("partition", "offset")
        table = pa.Table.from_batches(ordered.toArrow().cast(ROW_SCHEMA).to_batches(), ROW_SCHEMA)
    finally:
        held_reads.release(frame)
    if latest:
        found = [(row["partition"], row["offset"], row["value"]) for row in table.to_pylist()]
        wanted = _newest(parts)
        if found != wanted:
            return f"{len(found)} newest records, {len(wanted)} are right, or others"
        return ""
    numbers = table.column("partition").to_pylist()
    for number, truth in parts.items():
        some = table.filter(pa.array([one == number for one in numbers]))
        if difference := truth.difference(some.combine_chunks()):
            return f"partition {number}: {difference}"
    return ""


def _newest(parts: dict[int, Truth]) -> list[tuple[int, int, bytes]]:
    found = {}
    for number, truth in parts.items():
        for row in truth.golden.to_pylist():
            if row["key"] is not None:
                found[number, row["key"]] = (number, row["offset"], row["value"])
    return sorted(one for one in found.values() if one[2] is not None)


def _look(stream: str, latest: bool, read: Callable[[], str]) -> Look:
    """Read; what Spark raises counts as named when it carries a name of ours."""
    error, detail, outcome = "", "", Outcome.EXACT
    try:
        detail = read()
        outcome = Outcome.SILENT if detail else Outcome.EXACT
    except HeadwaterError as raised:
        error, detail, outcome = type(raised).__name__, raised.message[:200], Outcome.NAMED
    except Exception as raised:  # noqa: BLE001  # whatever it is, it is what we look for
        text = str(raised)
        named = [name for name in leaves() if name in text]
        error = named[0] if named else type(raised).__name__
        detail, outcome = text[:300], Outcome.NAMED if named else Outcome.UNTYPED
    reader = "spark, latest" if latest else "spark"
    return Look(
        phase="damaged", reader=reader, stream=stream, outcome=outcome, error=error, detail=detail
    )
