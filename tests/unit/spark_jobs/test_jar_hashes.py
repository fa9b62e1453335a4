"""A jar in the cache is used only if it has the bytes of the pinned release."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from spark_jobs import jars
from spark_jobs.jar_hashes import SHA256


def cached(folder: Path, name: str, data: bytes) -> Path:
    """Put one jar and its receipt into a cache."""
    home = folder / jars.set_name()
    (home / "jars").mkdir(parents=True)
    (home / "jars" / name).write_bytes(data)
    (home / "resolved.json").write_text(json.dumps({name: len(data)}))
    return home


@pytest.mark.parametrize(
    ("name", "reason"),
    [(next(iter(SHA256)), "other bytes than its release"), ("stranger.jar", "is not pinned")],
)
def test_a_changed_jar_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """Also one of equal size, as the receipt has it; the error says where, and what to do."""
    home = cached(tmp_path, name, b"exchanged")
    with pytest.raises(InvalidConfigError, match=reason) as refused:
        jars.fetch(tmp_path)
    assert str(home) in str(refused.value)


def test_the_pinned_bytes_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever put them into the cache, their hash decides."""
    data = b"the release"
    monkeypatch.setattr(jars, "SHA256", {"a.jar": hashlib.sha256(data).hexdigest()})
    home = cached(tmp_path, "a.jar", data)
    assert jars.fetch(tmp_path) == [home / "jars" / "a.jar"]
