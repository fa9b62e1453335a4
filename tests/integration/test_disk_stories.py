"""The stories of ``make crash`` about a disk that forgets, each once, with a real ``kill -9``."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashkit.disk_stories import STORIES, tell

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", STORIES)
def test_a_forgetful_disk_is_named(tmp_path: Path, name: str) -> None:
    """Acknowledged records are in the read, or the read says what is lost."""
    assert "named" in tell(name, tmp_path)
