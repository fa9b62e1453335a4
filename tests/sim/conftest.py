"""What hunts for mutants and situations takes long; only seeds have a place in `make quick`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow whatever is not marked as running seeds."""
    for item in items:
        if "/tests/sim/" in item.path.as_posix() and item.get_closest_marker("seeds") is None:
            item.add_marker(pytest.mark.slow)
