"""Builds Spark sessions that can read Headwater's tables, on a laptop or a cluster.

Rules: secrets never become Spark settings (S3A reads them from the environment or the profile of
the process). Workers run the same Python interpreter. Nothing listens beyond the loopback unless
the user asks for it. Timestamps are UTC. After the first start no network is needed
(:mod:`spark_jobs.jars`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.errors import InvalidConfigError
from spark_jobs import jars, jvm
from spark_jobs.sessions import is_connect
from tiering.store.location import Credentials, StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_MAJOR_MIN: Final = 17  # Spark 4.2 needs it
DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
LOG4J: Final = Path(__file__).parent / "log4j2.properties"
_JAVA_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?\Z")
_GIB: Final = 1024**3

# In this order: the process's environment, its AWS profile, the machine's role.
_CREDENTIALS: Final = (
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
    "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
)
_PROFILE_PROVIDER: Final = _CREDENTIALS[1]


def session(
    app_name: str = "headwater",
    master: str | None = None,
    *,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session that reads streams: classic, or of Spark Connect.

    Without ``master`` and ``remote`` the environment decides: if SPARK_REMOTE names a Connect
    server, that server; under spark-submit, its master and settings; otherwise Spark starts in this
    process.

    Args:
        app_name: the name in Spark's UI and logs.
        master: ``local[4]`` or a cluster's address; see :func:`build_session`.
        remote: a server of Spark Connect, ``sc://host:port``; see spark_jobs/connect_server.py.
        conf: Spark settings that override the defaults; Connect accepts runtime settings only.

    Raises:
        InvalidConfigError: Java is missing or too old, or the session would have no Delta.
        UnavailableError: the jars are not cached yet and cannot be fetched.
    """
    if remote is None and master is None:
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        return connect_session(remote, app_name, conf=conf)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it
        master = "local[*]"
    return build_session(app_name, master, conf=conf)


def build_session(
    app_name: str = "headwater",
    master: str | None = "local[*]",
    *,
    lake: StoreConfig | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with Delta, S3A and the ``headwater`` data source. Blocks some seconds.

    If a session with Delta is active, it is returned with its own settings.

    Args:
        app_name: shown in Spark's UI and logs.
        master: ``local[*]`` or the address of a cluster. None under spark-submit: then its master
            and all settings given to it override ours, and its JVM must have the jars already.
        lake: the lake's location; gives S3A its endpoint, region and credentials. Without it they
            come from the environment, by the same variables as the broker's.
        conf: Spark settings that override everything chosen here.

    Raises:
        InvalidConfigError: Java is missing or too old, or the active session is without Delta.
        UnavailableError: the jars are not cached yet and cannot be fetched.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  (importing this module stays free)

    given = dict(conf or {})
    active = SparkSession.getActiveSession()
    if active is not None and is_connect(active):
        return _checked(active)
    if active is not None and not active.sparkContext._jsc.sc().isStopped():  # noqa: SLF001
        return _equip(_checked(active))
    require_java()
    store = lake or StoreConfig.from_env("s3://unnamed")  # only endpoint and credentials count
    if master is None:
        chosen = _left_open(store)
    else:
        chosen = settings(
            master=master,
            store=store,
            jar_paths=_jar_paths(given),
            extra_jars=given.pop("spark.jars", ""),
        )
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**chosen, **given}.items():
        builder = builder.config(name, value)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if master is not None or name not in os.environ:  # spark-submit's choice is kept
            os.environ[name] = sys.executable  # plain `python3` may be another interpreter
    with _credentials_in_environment(store.credentials):
        return _equip(builder.getOrCreate())


def connect_session(
    remote: str, app_name: str = "headwater", *, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session of Spark Connect; no JVM is started in this process. Blocks.

    spark_jobs/connect_server.py describes the server. A client needs no credentials of the object
    store to run queries, but it needs them to prove its reads (``certificate=``).

    Args:
        remote: ``sc://host:port``.
        app_name: name that the server shows.
        conf: runtime settings of this session.

    Raises:
        InvalidConfigError: the server is without Delta.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  (importing this module stays free)

    found = _checked(SparkSession.builder.remote(remote).appName(app_name).getOrCreate())
    for name, value in {"spark.sql.session.timeZone": "UTC", **(conf or {})}.items():
        found.conf.set(name, value)
    return found


def settings(
    *,
    master: str,
    store: StoreConfig,
    jar_paths: list[Path],
    extra_jars: str = "",
) -> dict[str, str]:
    """Return every Spark setting of a session; pure, so that a test can read it."""
    every_jar = [*map(str, jar_paths), *filter(None, extra_jars.split(","))]
    chosen = {
        "spark.jars": ",".join(every_jar),
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        jvm.CATALOG_SETTING: jvm.CATALOG_CLASS,
        jvm.LOG_STORE_SETTING: jvm.LOG_STORE_CLASS,  # with Delta's own, two drivers lose commits
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Generates one piece of code for the operators above our union and the Parquet scan below
        # it; off by default in 4.2. An aggregate of 8 M rows with 1 % tail took 1.04 times the CPU
        # of the native scan; without this setting 1.21 times.
        "spark.sql.codegen.wholeStage.union.enabled": "true",
        "spark.pyspark.python": sys.executable,
        **_s3a_settings(store),
    }
    cores = _local_cores(master)
    if cores is not None:
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": _driver_memory(),
            # The executor of this JVM beats before it is registered if the start takes longer than
            # the default of 10 s, on a busy machine, and then Spark prints an exception.
            "spark.executor.heartbeatInterval": "60s",
            "spark.sql.shuffle.partitions": str(max(2, cores)),
            # On one machine the default of 50 tasks for a table's state costs only time.
            "spark.databricks.delta.snapshotPartitions": str(max(2, cores)),
            # VACUUM lists a table in so many tasks; the default of 10,000 took 35 s of CPU for a
            # table of four files, where 2 take 3 s.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, cores)),
        }
    return chosen


def require_java() -> int:
    """Return the major version of the Java that Spark will start.

    Raises:
        InvalidConfigError: there is no Java, or it is too old for Spark. Says what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise InvalidConfigError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer, but there is no `java` on PATH. Install "
            "one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    try:
        done = subprocess.run(  # noqa: S603  (the user's own Java)
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise InvalidConfigError(f"cannot run {java} (from JAVA_HOME or PATH): {cause}") from cause
    found = _JAVA_VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        raise InvalidConfigError(f"{java} -version failed: {(done.stderr or done.stdout)[:200]!r}")
    major = int(found.group(1))
    if major < JAVA_MAJOR_MIN:
        raise InvalidConfigError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer, but {java} is Java {major}; set "
            "JAVA_HOME to a newer one"
        )
    return major


def submit_arguments(store: StoreConfig | None = None) -> list[str]:
    """Return spark-submit's arguments that give a job Delta, S3A and the log store.

    They contain no credentials. Blocks if the jars are not cached yet.
    """
    store = store or StoreConfig.from_env("s3://unnamed")
    chosen = settings(master="", store=store, jar_paths=_jar_paths({}))
    words = ["--jars", chosen.pop("spark.jars")]
    for name, value in chosen.items():
        words += ["--conf", f"{name}={value}"]
    return words


def _jar_paths(conf: Mapping[str, str]) -> list[Path]:
    return [*jars.fetch(conf=conf), jvm.spark_jar(jars.default_folder())]


def _left_open(store: StoreConfig) -> dict[str, str]:
    """Return the settings that spark-submit was not given; asks the JVM that it started.

    Raises:
        InvalidConfigError: Delta is not on the class path of that JVM.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001  (connects to spark-submit's JVM)
    had = SparkConf()
    if DELTA_EXTENSION not in (had.get("spark.sql.extensions", "") or ""):
        raise InvalidConfigError(
            "spark-submit was started without Delta; start it as "
            "spark-submit $(headwater job submit-args JOB) …"
        )
    chosen = settings(master=had.get("spark.master", "") or "", store=store, jar_paths=[])
    return {name: value for name, value in chosen.items() if value and not had.contains(name)}


def _s3a_settings(store: StoreConfig) -> dict[str, str]:
    """Return S3A's settings. They have no credentials: the UI and ``ps`` show settings."""
    chosen = {"fs.s3a.aws.credentials.provider": ",".join(_credential_providers())}
    if store.endpoint is not None:
        chosen["fs.s3a.endpoint"] = store.endpoint
        chosen["fs.s3a.connection.ssl.enabled"] = str(store.endpoint.startswith("https")).lower()
    if store.region is not None:
        chosen["fs.s3a.endpoint.region"] = store.region
    if store.path_style:
        chosen["fs.s3a.path.style.access"] = "true"
    return {f"spark.hadoop.{name}": value for name, value in chosen.items()}


def _credential_providers() -> list[str]:
    """Return the providers for S3A; the profile's is left out without a profile file.

    S3A fails if it creates the profile's provider without that file.
    """
    profile = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    has_profile = Path(profile).expanduser().is_file()
    return [one for one in _CREDENTIALS if has_profile or one != _PROFILE_PROVIDER]


@contextmanager
def _credentials_in_environment(credentials: Credentials | None) -> Iterator[None]:
    """Put a key pair into the environment, which the JVM that starts in this block inherits."""
    if credentials is None:
        yield
        return
    handed = {
        "AWS_ACCESS_KEY_ID": credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key.reveal(),
    }
    if credentials.session_token is not None:
        handed["AWS_SESSION_TOKEN"] = credentials.session_token.reveal()
    before = {name: os.environ.get(name) for name in handed}
    os.environ.update(handed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _local_cores(master: str) -> int | None:
    """Return the cores of a local master; None for a cluster."""
    match = _LOCAL_MASTER.match(master)
    if match is None:
        return None
    text = match.group(1)
    return (os.cpu_count() or 1) if text == "*" else int(text or 1)


def _driver_memory() -> str:
    """Return a quarter of the machine's memory, between 1 and 8 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(8, max(1, total // 4 // _GIB))}g"


def _checked(session: SparkSession) -> SparkSession:
    if DELTA_EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise InvalidConfigError(
            "this Spark session is without Delta; stop it (or stop its Connect server), add "
            f"{DELTA_EXTENSION} to its spark.sql.extensions, and start again"
        )
    return session


def _equip(session: SparkSession) -> SparkSession:
    """Register the data source as an importable class, so that workers import it by its name."""
    from spark_jobs.source.source import HeadwaterDataSource  # noqa: PLC0415  (imports pyspark)

    session.dataSource.register(HeadwaterDataSource)
    return session
