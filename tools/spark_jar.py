"""Compile our Java classes into their jar, or check that the committed jar is what javac makes.

The jar is committed, because neither an install nor a cluster has a compiler. It is reproducible:
``javac --release 17`` without debug paths, entries in order, one fixed time. Its manifest carries
the digest of the source, so a stale jar is also found on a machine without javac.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pyspark

from spark_jobs import jars, jvm

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "spark_jobs" / "jvm" / "java"
JAR: Final = ROOT / "spark_jobs" / "jvm" / jvm.SPARK_JAR
RELEASE: Final = "17"
_WHEN: Final = (2026, 1, 1, 0, 0, 0)  # a zip has a time for every entry: always this one
_IN_SPARK: Final = tuple(
    f"{name}-*.jar"
    for name in ("hadoop-client-api", "spark", "scala-library", "jackson-databind", "kryo-shaded")
)
_MANIFEST: Final = "META-INF/MANIFEST.MF"


def source_digest() -> str:
    """Return the digest of every Java source with its path."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.java")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def manifest() -> bytes:
    """Return the manifest; its lines stay below the 72 bytes that the format allows."""
    digest = source_digest()
    halves = (f"Source-Digest-1: {digest[:32]}", f"Source-Digest-2: {digest[32:]}")
    return "\r\n".join(("Manifest-Version: 1.0", *halves, "", "")).encode()


def entries(jar: Path) -> dict[str, bytes]:
    """Return what a jar holds, by name."""
    with zipfile.ZipFile(jar) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def build(jar: Path) -> None:
    """Compile the sources into ``jar``.

    Raises:
        SystemExit: there is no javac, or it refuses the sources.
    """
    javac = shutil.which("javac")
    if javac is None:
        raise SystemExit("no javac on PATH (Debian: apt-get install openjdk-17-jdk-headless)")
    libraries = [path for path in jars.fetch() if "delta-storage" in path.name]
    in_spark = Path(pyspark.__file__).parent / "jars"
    libraries += [path for name in _IN_SPARK for path in sorted(in_spark.glob(name))]
    with tempfile.TemporaryDirectory() as scratch:
        command = [javac, "--release", RELEASE, "-Xlint:all", "-Werror", "-g:source,lines"]
        command += ["-encoding", "UTF-8", "-proc:none", "-d", scratch]
        command += ["-classpath", ":".join(map(str, libraries))]
        done = subprocess.run(
            [*command, *map(str, sorted(SOURCES.rglob("*.java")))],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"javac refused the sources:\n{done.stdout}{done.stderr}")
        classes = {
            path.relative_to(scratch).as_posix(): path.read_bytes()
            for path in sorted(Path(scratch).rglob("*.class"))
        }
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as opened:
        for name, data in {_MANIFEST: manifest(), **classes}.items():
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, data)


def drift() -> list[str]:
    """Compare the committed jar with a fresh one; return one sentence for each difference."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh_jar = Path(scratch) / JAR.name
        build(fresh_jar)
        fresh, committed = entries(fresh_jar), entries(JAR)
    return [
        f"{name} in the committed jar differs from a fresh build"
        for name in sorted(fresh.keys() | committed.keys())
        if fresh.get(name) != committed.get(name)
    ]


def main() -> int:
    """Build, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    if not parser.parse_args().check:
        build(JAR)
        return 0
    found = drift()
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
