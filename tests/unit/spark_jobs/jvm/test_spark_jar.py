"""The committed jar against its source, with and without a compiler."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from projectfiles import ROOT
from spark_jobs import jvm
from spark_jobs.session import settings
from tiering.store.location import StoreConfig


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/spark_jar.py, which is no package."""
    spec = importlib.util.spec_from_file_location("spark_jar", ROOT / "tools" / "spark_jar.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_jar_was_built_from_this_source(tool: ModuleType) -> None:
    """A change of the Java source without a rebuild shows, also where there is no javac."""
    held = tool.entries(tool.JAR)
    assert held["META-INF/MANIFEST.MF"] == tool.manifest()
    for name in (jvm.LOG_STORE_CLASS, jvm.CATALOG_CLASS, jvm.SOURCE_CLASS):
        assert f"{name.replace('.', '/')}.class" in held


@pytest.mark.slow
def test_javac_makes_the_same_jar_again(tool: ModuleType, tmp_path: Path) -> None:
    """The new jar has the same bytes: order of entries, times and classes."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac here: a Java runtime is enough to use the jar")
    version = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    if not (version.stdout + version.stderr).startswith("javac 17."):
        pytest.skip("another javac writes other bytes for the same source: the jar is of 17")
    tool.build(tmp_path / "again.jar")
    assert (tmp_path / "again.jar").read_bytes() == tool.JAR.read_bytes()


def test_a_changed_source_would_be_noticed(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is of the text and of the path."""
    shutil.copytree(tool.SOURCES, tmp_path / "java")
    monkeypatch.setattr(tool, "SOURCES", tmp_path / "java")
    before = tool.source_digest()
    source = next((tmp_path / "java").rglob("*.java"))
    source.write_text(source.read_text() + "\n")
    assert tool.source_digest() != before


def test_out_of_a_zip_the_jar_becomes_a_file(tmp_path: Path) -> None:
    """On a cluster the package may come as a zip by --py-files; Spark needs a path."""
    zipped = tmp_path / "headwater.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("spark_jobs/__init__.py", "")
        for path in (ROOT / "spark_jobs" / "jvm").glob("*.*"):
            archive.write(path, f"spark_jobs/jvm/{path.name}")
    program = (
        "from pathlib import Path; from spark_jobs import jvm; "
        f"print(jvm.spark_jar(Path({str(tmp_path / 'cache')!r})))"
    )
    environment = {"PYTHONPATH": str(zipped)}
    command = [sys.executable, "-c", program]
    said = [
        subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert Path(said[0]).parent == tmp_path / "cache"
    assert Path(said[0]).read_bytes() == jvm.spark_jar(tmp_path).read_bytes()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_every_session_of_ours_uses_it() -> None:
    """Sessions without S3 settings use it, too, because tables may be anywhere."""
    chosen = settings(master="local", store=StoreConfig.from_env("s3://b", {}), jar_paths=[])
    assert chosen["spark.delta.logStore.s3a.impl"] == jvm.LOG_STORE_CLASS
    assert chosen["spark.sql.catalog.headwater"] == jvm.CATALOG_CLASS
