"""Run docs/notebook.py, unchanged, in classic Spark, Spark Connect and on a two-worker cluster.

    python tests/notebook/run.py --mode classic|connect|cluster|pipeline|all

Mode ``pipeline`` runs the declarative pipeline beside this file, twice, with records in between.

A broker, an S3 (moto) and whatever Spark needs are started here and ended here. On the cluster
neither the driver nor the executors find this tree: their Python knows our code from the wheel
only, and executors have it from Spark's --py-files alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

from headwater.local import embedded  # noqa: E402  (the path comes first)
from headwater.local.runtime_file import RuntimeFile  # noqa: E402
from simkit.children import ended, wait_for_line  # noqa: E402
from simkit.servers.spark_cluster import HOME, spark_cluster  # noqa: E402

NOTEBOOK: Final = ROOT / "docs" / "notebook.py"
PIPELINE: Final = Path(__file__).parent / "pipeline"
_SECONDS_MAX: Final = 1200
_SECRET: Final = "AWS_SECRET_ACCESS_KEY"

Environment = dict[str, str]


def classic(folder: Path, environment: Environment) -> None:
    """Spark in the script's own process."""
    _run([sys.executable, str(NOTEBOOK)], folder, environment)


def connect(folder: Path, environment: Environment) -> None:
    """A Connect server in a process of its own; the script has no JVM."""
    with connect_server(folder, environment) as url:
        without_java = {**environment, "SPARK_REMOTE": url, "JAVA_HOME": str(folder / "no-java")}
        _run([sys.executable, str(NOTEBOOK)], folder, without_java)


def pipeline(folder: Path, environment: Environment) -> None:
    """spark-pipelines twice over the same streams; SQL in it names a stream like a table."""
    import headwater

    project = Path(shutil.copytree(PIPELINE, folder / "pipeline"))
    spec = project / "spark-pipeline.yml"
    text = spec.read_text("utf-8")
    spec.write_text(text.replace("file:///tmp/headwater-pipeline", (folder / "state").as_uri()))
    client = headwater.Client(environment["HEADWATER_SERVER"])
    client.create_stream("flights")
    expected = 0
    with connect_server(folder, environment) as url:
        for count in (300, 45):
            with client.producer("flights") as producer:
                producer.send([{"key": b"N%d" % (n % 5), "value": b"x"} for n in range(count)])
            expected += count
            _run(
                [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)],
                folder,
                {**environment, "SPARK_REMOTE": url},
            )
            client.tier_flush("flights")  # the next run finds these rows in the table
            spark = headwater.session(remote=url)  # a session remembers the files of a table
            (row,) = spark.sql(
                "SELECT sum(records) AS n, count(*) AS keys, max(newest) AS newest "
                "FROM flights_by_key"
            ).collect()
            assert (row.n, row.keys, row.newest) == (expected, 5, expected - 1), row
            (row,) = spark.sql(
                "SELECT count(*) AS n, count(DISTINCT offset) AS d FROM flights_log"
            ).collect()
            assert (row.n, row.d) == (expected, expected), row
            spark.stop()


@contextmanager
def connect_server(folder: Path, environment: Environment) -> Iterator[str]:
    """Run the command of docs/spark.md on a free port; yield its address."""
    log = folder / "connect.log"
    command = [sys.executable, "-m", "spark_jobs.connect_server", "--port", "0"]
    command += ["--master", "local[2]"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    with ended(server):
        yield wait_for_line(server, log, "sc://", 300).strip()


def cluster(folder: Path, environment: Environment) -> None:
    """spark-submit to two workers; our code comes from the wheel alone."""
    package = build_wheel(folder / "dist")
    python = lonely_python(folder / "python")
    environment = {
        **environment,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    alone = subprocess.run(
        [str(python), "-c", "import spark_jobs"], env=environment, capture_output=True, check=False,
        cwd=folder,
    )  # fmt: skip
    assert b"No module named 'spark_jobs'" in alone.stderr, (
        "the cluster's Python finds this tree without the wheel"
    )
    with spark_cluster(folder / "cluster", environment=environment) as url:
        # Spark hands --py-files to executors and to the script, but not to the process that plans a
        # streaming source: where the driver runs, the package has to be on Python's path.
        path = os.pathsep.join([str(package), environment["PYTHONPATH"]])
        command = [*submit(url, package, folder, python), str(NOTEBOOK)]
        _run(command, folder, {**environment, "PYTHONPATH": path})


def submit(url: str, package: Path, folder: Path, python: Path) -> list[str]:
    """Return the spark-submit command of docs/spark.md, with this cluster's master."""
    from spark_jobs.session import submit_arguments

    words = [str(HOME / "bin" / "spark-submit"), "--master", url, *submit_arguments()]
    secret = os.environ.get(_SECRET)
    assert not (secret and any(secret in word for word in words)), "a secret in argv"
    words += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.memory=1g"]
    words += ["--conf", "spark.executor.memory=768m", "--conf", "spark.sql.shuffle.partitions=4"]
    words += ["--conf", "spark.databricks.delta.snapshotPartitions=2"]
    words += ["--conf", f"spark.pyspark.python={python}"]
    words += ["--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}"]
    return [*words, "--py-files", str(package)]


def build_wheel(folder: Path) -> Path:
    """Build the wheel; return it under the name that Spark puts on Python's path: ``.zip``."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder),
         str(ROOT)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return Path(shutil.copy(wheel, folder / "headwater.zip"))


def lonely_python(path: Path) -> Path:
    """Write an interpreter that has our dependencies, but not this tree."""
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no .pth files
    path.chmod(0o755)
    return path


def _run(command: list[str], folder: Path, environment: Environment) -> None:
    done = subprocess.run(command, env=environment, cwd=folder, check=False, timeout=_SECONDS_MAX)
    assert done.returncode == 0, f"{Path(command[0]).name} ended with {done.returncode}"


MODES: Final[dict[str, Callable[[Path, Environment], None]]] = {
    "classic": classic,
    "connect": connect,
    "cluster": cluster,
    "pipeline": pipeline,
}


def run(mode: str) -> None:
    """Run the notebook in one mode, beside a broker and a lake of its own."""
    with tempfile.TemporaryDirectory(prefix=f"headwater-{mode}-") as scratch:
        folder = Path(scratch)
        options = ("--nats-port", "0", "--flight-port", "0", "--http-port", "0")
        with embedded.start_up(folder / "data", *options):
            found = RuntimeFile.read(folder / "data")
            environment = {**os.environ, "HEADWATER_SERVER": found.flight}
            environment["HEADWATER_SCRATCH"] = str(folder)
            if found.moto is not None:
                environment |= embedded.moto_environment(found.moto)
                os.environ |= embedded.moto_environment(found.moto)
            began = time.monotonic()
            MODES[mode](folder, environment)
            print(f"{mode}: the notebook ran, {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Run the modes that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    mode = parser.parse_args().mode
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended, too
    for one in MODES if mode == "all" else (mode,):
        run(one)
    return 0


if __name__ == "__main__":
    sys.exit(main())
