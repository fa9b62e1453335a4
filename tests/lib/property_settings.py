"""How many examples a property is tried with that needs more or fewer of them than the others."""

from __future__ import annotations

import os

from hypothesis import settings

# What `make quick` asks for; None: nobody asks, and a property has the number that it names.
ASKED = int(os.environ.get("HEADWATER_TEST_EXAMPLES") or 0) or None


def examples(count: int) -> settings:
    """Return settings for ``count`` examples, or for fewer where fewer are asked for."""
    return settings(max_examples=count if ASKED is None else min(count, ASKED))
