"""Fixtures of the tests of proofs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simkit.tier.lab import forget_proofs


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Empty the proofs in memory before and after each test."""
    forget_proofs()
    yield
    forget_proofs()
