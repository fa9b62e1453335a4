"""What this machine permits is found out by trying."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from chaoskit.permits import namespaces_refused, refused_needs, small_disks_refused
from chaoskit.stories import Need

pytestmark = pytest.mark.integration


def test_an_answer_is_a_reason_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe says why not, in one line, and leaves no mount behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other workers have mounts, too
    for why in (small_disks_refused(), namespaces_refused()):
        assert "\n" not in why
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_machine_that_refuses_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs everything is refused, by name."""
    monkeypatch.setenv("PATH", "")
    refused = refused_needs()
    assert set(refused) == set(Need)
    assert "mount" in refused[Need.SMALL_DISKS]
    assert "unshare" in namespaces_refused()
