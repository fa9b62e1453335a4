"""What makes a JVM of a test cheap, and the archive of classes that all of them map.

    python tests/lib/lean_jvm.py FILE

makes the archive: it runs Spark once, classic and by Spark Connect, and lets the JVM write the
classes that it has loaded, parsed and verified, to FILE. A JVM maps the file instead of doing so
again. ``make test`` and ``make examples`` make the archive when it is missing or no longer fits.

A JVM without the archive, or with one of another class path, only starts more slowly. So a run of
pytest alone needs none. The archive lies in the environment whose classes are in it, because their
absolute paths are a part of it.

Beside the archive is a home of Spark: links to PySpark's own programs and jars, without its
``python/lib/pyspark.zip``. Spark puts that file first on the path of each of its Python processes,
and Python compiles what it imports from a zip anew in every process. Without the zip these
processes import the same modules, with their bytecode, from the environment of their interpreter.

Used by tests/conftest.py and by campaigns. Imports no Spark until it makes the archive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
ARCHIVE: Final = Path(sys.prefix) / "classes.jsa"
HOME: Final = Path(sys.prefix) / "spark-home"
# Every JVM that a test starts runs for seconds: compile quickly rather than well, collect garbage
# on one thread and seldom (by half of a larger first heap for what is new, and no whole collection
# because classes were loaded), map prepared classes where they were (which is a diagnostic option:
# without it the JVM rewrites all addresses in the archive, a second of CPU), and be silent.
# With one compiler a JVM has room for 48 MiB of compiled code; a session of some minutes fills it,
# and then its sweeper throws code away that is compiled again.
_QUICK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
    "-XX:InitialRAMPercentage=4 -XX:NewRatio=1 -XX:MetaspaceSize=512m"
)
OPTIONS: Final = (
    f"{_QUICK} -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={ARCHIVE} "
    "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
)
_MAKE_S: Final = 900.0
_WHOLE: Final = "-XX:ArchiveClassesAtExit="


def environment(home: Path = HOME) -> dict[str, str]:
    """Return what a process needs in its environment, for the JVMs that it starts to be lean."""
    found = {"JAVA_TOOL_OPTIONS": OPTIONS}
    return found | {"SPARK_HOME": str(home)} if home.is_dir() else found


def make_home(home: Path = HOME) -> None:
    """Link to PySpark's programs and jars; links that are there already are made anew."""
    home.mkdir(exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(_pyspark() / name)


def fits(archive: Path) -> bool:
    """Tell whether the archive was made from the jars that are here, where they are."""
    try:
        made_from = json.loads(_receipt(archive).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return archive.is_file() and made_from == sources()


def make(archive: Path) -> None:
    """Make the archive; it appears at once or not at all. Blocks for half a minute or more.

    Raises:
        SystemExit: Spark could not be run; its last words are in the message.
    """
    draft = archive.with_suffix(".draft")
    make_home()
    with tempfile.TemporaryDirectory(prefix="headwater-classes-") as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--run-spark", str(draft)],
            cwd=folder, env=os.environ | environment() | {"JAVA_TOOL_OPTIONS": _QUICK},
            capture_output=True, text=True, timeout=_MAKE_S, check=False,
        )  # fmt: skip
    if done.returncode != 0 or not draft.is_file():
        raise SystemExit(f"no archive of classes for the tests' JVMs: {done.stderr[-2000:]}")
    draft.replace(archive)
    _receipt(archive).unlink(missing_ok=True)  # another environment's, if both are linked copies
    _receipt(archive).write_text(json.dumps(sources()), encoding="utf-8")


def _receipt(archive: Path) -> Path:
    return archive.with_suffix(".json")


def sources() -> list[str]:
    """Return what an archive is made from: where the jars are, and their sizes and times."""
    jars = _pyspark() / "jars"
    found = sorted(jars.glob("*.jar"))
    stats = [(jar.name, jar.stat()) for jar in found]
    listed = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]
    return [str(HOME), str(jars), *listed]


def _pyspark() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _run_spark(draft: Path) -> None:
    """Use what tests use of Spark, so that its classes are loaded; end the JVM politely."""
    sys.path.insert(0, str(ROOT))
    from spark_jobs.connect_server import connect_server
    from spark_jobs.session import LOG4J

    options = f"-Dlog4j2.configurationFile={LOG4J.as_uri()} -Xlog:disable {_WHOLE}{draft}"
    conf = {"spark.driver.extraJavaOptions": options}
    with connect_server("local[2]", port=0, conf=conf) as url:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        assert session is not None
        gateway = session.sparkContext._gateway
        _queries(session)
        subprocess.run([sys.executable, __file__, "--by-connect", url], check=True)
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends by this, and writes its classes
    gateway.proc.wait(_MAKE_S)


def _by_connect(url: str) -> None:
    """Ask the same of Spark Connect."""
    from pyspark.sql import SparkSession

    _queries(SparkSession.builder.remote(url).getOrCreate())


def _queries(session: SparkSession) -> None:
    """Write and read a Delta table and Parquet, join, group, stream, call Python."""
    folder = Path(tempfile.mkdtemp(dir="."))
    numbers = session.range(40).selectExpr("id", "id % 3 as k", "cast(id as string) as word")
    numbers.createOrReplaceTempView("numbers")
    for form in ("delta", "parquet"):
        path = str(folder.absolute() / form)
        for _ in range(2):
            numbers.write.format(form).mode("append").partitionBy("k").save(path)
        rows = session.read.format(form).load(path)
        assert rows.where("word like '1%' and id < 30").groupBy("k").count().collect()
        assert rows.count() == 80
        live = session.readStream.format(form)
        if form == "parquet":
            live = live.schema(rows.schema)
        query = (
            live.load(path)
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{path}-checkpoint")
            .trigger(availableNow=True)
            .start(f"{path}-copy")
        )
        query.awaitTermination()
    statement = (
        "with a as (select k, count(*) n, max_by(id, word) m, "
        "row_number() over (partition by k order by count(*)) r from numbers group by k) "
        "select a.*, get_json_object('{\"x\": 1}', '$.x') from a join numbers b on a.k = b.k "
        "where b.id in (select id from numbers where id > 3) union all select 1, 2, 3, 4, '' "
        "order by 1 limit 7"
    )
    assert session.sql(statement).toArrow().num_rows == 7
    assert session.createDataFrame([(1, b"x"), (2, None)], "a long, b binary").count() == 2
    assert numbers.mapInArrow(lambda batches: batches, "id long, k long, word string").count()


if __name__ == "__main__":
    if sys.argv[1] == "--run-spark":
        _run_spark(Path(sys.argv[2]))
    elif sys.argv[1] == "--by-connect":
        _by_connect(sys.argv[2])
    elif not fits(Path(sys.argv[1])):
        make(Path(sys.argv[1]))
