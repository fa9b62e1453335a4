"""When a broker that failed is started again."""

from __future__ import annotations

from headwater.cli.up_cluster import _Life


def test_who_fails_again_and_again_waits_longer_each_time() -> None:
    """Two seconds, doubled up to thirty; after a minute of running the delay is two again."""
    life = _Life(started_s=0.0)
    assert [life.failed(1.0) for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert life.again_s == 31.0
    life.started_s = 100.0
    assert life.failed(160.0) == 2.0
    life.started_s = 162.0
    assert life.failed(163.0) == 4.0
