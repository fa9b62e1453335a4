"""How many cases a test tries, and hundreds of small cases as one test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from hypothesis import settings

Case = TypeVar("Case")

# What `make quick` asks for; None: nobody asks, and a property has the number that it names.
ASKED: Final = int(os.environ.get("HEADWATER_TEST_EXAMPLES") or 0) or None
_USUAL: Final = 100  # Hypothesis's number of examples


def examples(count: int) -> settings:
    """Return settings for ``count`` examples, or for fewer where fewer are asked for."""
    return settings(max_examples=count if ASKED is None else min(count, ASKED))


def seeds(count: int) -> range:
    """Return so many seeds of random input, or as many fewer as properties have fewer examples."""
    return range(count if ASKED is None else max(1, min(count, count * ASKED // _USUAL)))


def each_of(cases: Iterable[Case]) -> Callable[[Callable[[Case], None]], Callable[[], None]]:
    """Make one test of a function of a case; the error of the first that fails names the case.

    pytest's own work for a test takes longer than a case of a millisecond. A table of named cases,
    or a case that takes a while, is better off as tests of its own.
    """

    def as_one_test(test: Callable[[Case], None]) -> Callable[[], None]:
        def every_case() -> None:
            for case in cases:
                try:
                    test(case)
                except BaseException as error:
                    error.add_note(f"case: {case!r}")
                    raise

        every_case.__name__, every_case.__doc__ = test.__name__, test.__doc__
        every_case.__qualname__, every_case.__module__ = test.__qualname__, test.__module__
        return every_case

    return as_one_test
