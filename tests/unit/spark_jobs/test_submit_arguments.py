"""The arguments of spark-submit: enough for Delta and S3A, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs import session
from tiering.store.location import StoreConfig


def test_submit_arguments_have_jars_and_settings_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jars and Delta's settings are there; the master, and any credential, are not."""
    monkeypatch.setattr(session, "_jar_paths", lambda _: [Path("/jars/delta.jar"), Path("/b.jar")])
    lake = StoreConfig.from_env(
        "s3://lake",
        {
            "AWS_ACCESS_KEY_ID": "AKIA-NOT-TO-BE-SEEN",
            "AWS_SECRET_ACCESS_KEY": "secret-not-to-be-seen",
            "HEADWATER_S3_ENDPOINT": "http://127.0.0.1:9000",
        },
    )
    words = session.submit_arguments(lake)
    settings = dict(word.split("=", 1) for word in words[3::2])
    assert words[:2] == ["--jars", "/jars/delta.jar,/b.jar"]
    assert set(words[2::2]) == {"--conf"}
    assert settings["spark.sql.extensions"] == session.DELTA_EXTENSION
    assert settings["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert "spark.master" not in settings
    assert "spark.driver.host" not in settings
    assert "not-to-be-seen" not in " ".join(words).lower()
