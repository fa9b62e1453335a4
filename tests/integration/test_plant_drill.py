"""One planted bug in every test run: a campaign that finds nothing proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from plantkit.drills import DRILLS, run

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_record_that_is_acked_and_not_written_is_missed(tmp_path: Path) -> None:
    """The crash campaign ends with the word for it."""
    (drill,) = (one for one in DRILLS if (one.campaign, one.plant) == ("crash", "ack_unwritten"))
    result = run(drill, tmp_path)
    assert result.outcome == "found", str(result)
