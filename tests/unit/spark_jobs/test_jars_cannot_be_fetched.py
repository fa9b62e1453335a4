"""Issue 11, second tour: without a network, and without the jars, one line says what to do."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from broker.errors import JarsMissingError
from headwater.cli.failures import EXIT_TRY_LATER, explain
from spark_jobs import jars

_RESOLVER = """#!/bin/sh
cat >&2 <<'OUTPUT'
:: resolving dependencies ::
\t\tmodule not found: io.delta#delta-spark_4.2_2.13;4.4.0
:: USE VERBOSE OR DEBUG MESSAGE LEVEL FOR MORE DETAILS
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
OUTPUT
exit 1
"""


def test_no_jars_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a trace of the JVM, and the question whether the server was running."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(_RESOLVER)
    program.chmod(0o755)
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(JarsMissingError) as raised:
        jars.fetch(tmp_path / "cache")
    assert len(raised.value.message.splitlines()) == 1
    assert "unresolved dependency: io.delta#delta-spark" in raised.value.message
    for noise in ("\tat ", "SparkSubmit", "VERBOSE", "java.lang"):
        assert noise not in raised.value.message
    told = explain(raised.value)
    assert told is not None
    assert told.exit_code == EXIT_TRY_LATER
    assert told.hint is not None
    assert "network" in told.hint
    assert "server" not in told.hint
