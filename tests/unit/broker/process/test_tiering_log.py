"""Who reads a broker's warnings hears that a table does not follow, and hears it once."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.process.daemon import log_tiering


@pytest.mark.parametrize(
    ("event", "facts", "level"),
    [
        ("tier_failed", {"failures": 1, "reason": "the bucket is gone"}, "warning"),
        ("tier_failed", {"failures": 2, "reason": "the bucket is gone"}, "info"),
        ("object_put_again", {"key": "partition=0/a.parquet"}, "warning"),
        ("tier_crashed", {"exc_info": ValueError("a bug")}, "error"),
        ("claim_crashed", {"exc_info": ValueError("a bug")}, "error"),
        ("segments_shipped", {"cold_end": 7}, "info"),
    ],
)
def test_what_keeps_a_table_back_is_no_info(event: str, facts: dict[str, Any], level: str) -> None:
    """The name and every fact are kept."""
    with capture_logs() as logs:
        log_tiering(event, facts)
    assert logs == [{"event": event, "log_level": level, **facts}]
