"""The archive of classes for the tests' JVMs: when it is made anew and which JVMs use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyspark
import pytest

import lean_jvm


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an archive whose receipt names the present jars."""
    made = tmp_path / "classes.jsa"
    made.write_bytes(b"classes")
    made.with_suffix(".json").write_text(json.dumps(lean_jvm.sources()), "utf-8")
    return made


def test_an_archive_of_the_jars_that_are_here_fits(archive: Path) -> None:
    """Such an archive is not made anew."""
    assert lean_jvm.fits(archive)


def test_without_its_file_or_receipt_it_does_not_fit(archive: Path) -> None:
    """An archive needs its file and a whole receipt."""
    receipt = archive.with_suffix(".json")
    receipt.write_text(receipt.read_text("utf-8")[:-5], "utf-8")
    assert not lean_jvm.fits(archive)
    receipt.write_text(json.dumps(lean_jvm.sources()), "utf-8")
    archive.unlink()
    assert not lean_jvm.fits(archive)


def test_an_archive_of_other_jars_does_not_fit(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jar of another size or another environment: the JVM would refuse to map the archive."""
    package = tmp_path / "pyspark"
    (package / "jars").mkdir(parents=True)
    (package / "jars" / "spark.jar").write_bytes(b"x")
    monkeypatch.setattr(pyspark, "__file__", str(package / "__init__.py"))
    assert not lean_jvm.fits(archive)
    archive.with_suffix(".json").write_text(json.dumps(lean_jvm.sources()), "utf-8")
    assert lean_jvm.fits(archive)
    (package / "jars" / "spark.jar").write_bytes(b"xx")
    assert not lean_jvm.fits(archive)


def test_every_jvm_of_a_test_is_told_of_the_archive() -> None:
    """The setting is in the environment, so a JVM of a test's own program has it, too."""
    assert str(lean_jvm.ARCHIVE) in lean_jvm.OPTIONS
    assert os.environ["JAVA_TOOL_OPTIONS"]


def test_the_home_is_pyspark_without_its_zip(tmp_path: Path) -> None:
    """Its programs and jars are those of the package, also when it is made again."""
    home = tmp_path / "home"
    assert "SPARK_HOME" not in lean_jvm.environment(home)
    for _ in range(2):
        lean_jvm.make_home(home)
    package = Path(pyspark.__file__).parent
    assert lean_jvm.environment(home)["SPARK_HOME"] == str(home)
    assert (home / "jars").resolve() == (package / "jars").resolve()
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert (package / "python" / "lib" / "pyspark.zip").exists(), "else there is nothing to avoid"
    assert not (home / "python").exists()
