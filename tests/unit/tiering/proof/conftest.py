"""What tests of proofs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simkit.tier.lab import forget_proofs


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Begin and end as a process that has proved nothing."""
    forget_proofs()
    yield
    forget_proofs()
