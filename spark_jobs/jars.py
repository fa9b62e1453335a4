"""The JVM jars that Spark needs for Delta on S3: pinned, fetched once, then used offline.

The set is small on purpose. Delta's dependencies bring Hadoop, Parquet, Jackson and slf4j in other
versions than PySpark has, and hadoop-aws brings an SDK bundle of 600 MB. Both are excluded. The
rest was tested with reads and writes against moto in exactly these versions. After a change of any
line, run the s3a smoke test.

:func:`fetch` resolves the jars with Spark's own Ivy into a folder that is named after the set, and
writes a receipt there: a file with the names and sizes of the jars. While these jars are present,
no resolver runs, so no network is needed. Each session's start compares every jar with its pinned
hash, because the jars run with the bucket's credentials and a cache may have been changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from broker.errors import InvalidConfigError, JarsMissingError, UnavailableError
from spark_jobs.jar_hashes import SHA256

DELTA_VERSION: Final = "4.4.0"  # the wheel delta-spark has the same pin; 4.4.1 has no JVM artifact
HADOOP_VERSION: Final = "3.5.0"  # must equal the hadoop-client inside PySpark 4.2.0
AWS_SDK_VERSION: Final = "2.35.4"  # named by the 3.5.0 project POM of Hadoop

PACKAGES: Final = (
    f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}",
    f"org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}",
    *(
        f"software.amazon.awssdk:{module}:{AWS_SDK_VERSION}"
        for module in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
    ),
)
EXCLUDES: Final = (
    "software.amazon.awssdk:bundle",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.wildfly.openssl:wildfly-openssl",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.parquet:parquet-column",
    "org.apache.parquet:parquet-common",
    "org.apache.parquet:parquet-encoding",
    "org.apache.parquet:parquet-format-structures",
    "org.apache.parquet:parquet-jackson",
    "org.slf4j:slf4j-api",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.xerial.snappy:snappy-java",
    "com.github.luben:zstd-jni",
    "io.airlift:aircompressor",
    "org.roaringbitmap:RoaringBitmap",
    "org.roaringbitmap:shims",
    "commons-logging:commons-logging",
    "commons-pool:commons-pool",
    "com.google.code.findbugs:jsr305",
    "javax.annotation:javax.annotation-api",
)

# Settings by which a user names an internal mirror; passed to the resolver unchanged.
_RESOLVER_CONF: Final = ("spark.jars.ivySettings", "spark.jars.repositories")
_RESOLVE_SECONDS_MAX: Final = 900
_REASON_CHARACTERS_MAX: Final = 500
_RECEIPT: Final = "resolved.json"


def default_folder() -> Path:
    """Return the jar cache: ``$HEADWATER_IVY_DIR``, else ``~/.cache/headwater/ivy``."""
    chosen = os.environ.get("HEADWATER_IVY_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "headwater" / "ivy"


def set_name() -> str:
    """Return the folder name of this set: it changes with every version and every exclude."""
    text = "\n".join((*PACKAGES, "-", *EXCLUDES))
    return f"spark-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def fetch(folder: Path | None = None, *, conf: Mapping[str, str] | None = None) -> list[Path]:
    """Return the jars; resolve them only if the cache does not hold them. Blocks.

    Processes that start at the same time wait for one resolver, by a lock file in the folder.

    Args:
        folder: the cache, by default :func:`default_folder`.
        conf: Spark settings; ``spark.jars.ivySettings`` and ``spark.jars.repositories`` are used.

    Raises:
        JarsMissingError: the resolver failed; the message has the resolver's reason.
        UnavailableError: it took too long, or brought no jars.
        InvalidConfigError: a jar is not the pinned one.
    """
    home = (folder or default_folder()) / set_name()
    known = _from_receipt(home)
    if known is not None:
        return _checked(known)
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        known = _from_receipt(home)
        if known is None:
            _resolve(home, conf or {})
            known = _write_receipt(home)
    return _checked(known)


def _checked(jars: list[Path]) -> list[Path]:
    """Return the jars; refuse one whose bytes are not those that are pinned.

    Raises:
        InvalidConfigError: it names the jar.
    """
    for jar in jars:
        try:
            with jar.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as cause:
            raise InvalidConfigError(f"{jar} cannot be read: {cause.strerror}") from cause
        if found != SHA256.get(jar.name):
            known = "has other bytes than its release" if jar.name in SHA256 else "is not pinned"
            raise InvalidConfigError(
                f"{jar} {known}: it may have been exchanged. Remove {jar.parent.parent} and run "
                "the command again; if the jars come from a mirror, check the mirror",
                path=str(jar),
            )
    return jars


def _from_receipt(home: Path) -> list[Path] | None:
    """Return the jars that the receipt names; None if one is missing or has another size."""
    try:
        receipt = json.loads((home / _RECEIPT).read_text())
        jars = [home / "jars" / Path(name).name for name in receipt]
        sizes = [int(receipt[jar.name]) for jar in jars]
        if [jar.stat().st_size for jar in jars] != sizes:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return jars or None


def _write_receipt(home: Path) -> list[Path]:
    jars = sorted((home / "jars").glob("*.jar"))
    if not any(jar.name.startswith("io.delta_delta-spark") for jar in jars):
        raise UnavailableError(
            f"Spark's resolver ended without an error, but {home / 'jars'} has no Delta jar; "
            f"delete {home} and try again"
        )
    draft = home / f"{_RECEIPT}.{os.getpid()}"
    draft.write_text(json.dumps({jar.name: jar.stat().st_size for jar in jars}, indent=1))
    draft.replace(home / _RECEIPT)
    return jars


def _resolve(home: Path, conf: Mapping[str, str]) -> None:
    """Run spark-submit with an empty program, because it resolves the packages first."""
    import pyspark  # noqa: PLC0415  (some importers need only the list of packages)

    program = home / "nothing.py"
    program.write_text('"""Resolving jars needs a program to submit; this one does nothing."""\n')
    settings = {"spark.jars.ivy": str(home)}
    settings |= {name: conf[name] for name in _RESOLVER_CONF if name in conf}
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--packages", ",".join(PACKAGES), "--exclude-packages", ",".join(EXCLUDES)]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    try:
        done = subprocess.run(  # noqa: S603  (our own command line)
            [*command, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_RESOLVE_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as cause:
        raise UnavailableError(
            f"fetching Spark's jars took more than {_RESOLVE_SECONDS_MAX} s; check the network, "
            "or set spark.jars.ivySettings or spark.jars.repositories to a mirror"
        ) from cause
    except OSError as cause:
        raise InvalidConfigError(f"cannot run spark-submit: {cause}") from cause
    if done.returncode != 0:
        raise JarsMissingError(
            "Spark's jars could not be fetched (this is needed once; afterwards Headwater works "
            f"offline). The resolver says: {_reason(done.stdout + done.stderr)}"
        )


def _reason(output: str) -> str:
    """Return the last line of the resolver that says something, without the JVM's trace."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = [line.strip() for line in lines if not line.startswith(("\tat ", "        at ", "::"))]
    if not said:
        return "nothing"
    last = said[-1].removeprefix('Exception in thread "main" ')
    return last.removeprefix("java.lang.RuntimeException: ")[:_REASON_CHARACTERS_MAX]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock; the file is kept, so that all processes lock the same file."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
