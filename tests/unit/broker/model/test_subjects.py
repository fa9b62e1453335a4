"""Subjects and patterns, as NATS matches them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.model.subjects import is_shared, matches, overlap

_WORDS = st.sampled_from(["a", "b", "*"])
_PATTERNS = st.tuples(st.lists(_WORDS, min_size=1, max_size=3), st.sampled_from([[], [">"]])).map(
    lambda parts: ".".join([*parts[0], *parts[1]])
)
_SUBJECTS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("pay.in", "pay.in", True), ("pay.in", "pay.>", True), ("pay", "pay.>", False),
        ("pay.*", "pay.in", True), ("pay.*", "pay.in.eu", False), ("*.in", "pay.*", True),
        (">", "pay", True), ("*.*", ">", True), ("a.>", "b.>", False), ("a.*.c", "a.>", True),
        ("a.*", "*.b.>", False), ("pay", "paid", False),
    ],
)  # fmt: skip
def test_two_patterns_overlap_if_a_subject_reaches_both(
    first: str, second: str, both: bool
) -> None:
    """The order of the two does not matter."""
    assert overlap(first, second) is both
    assert overlap(second, first) is both


@given(_PATTERNS, _PATTERNS, _SUBJECTS)
def test_a_subject_that_reaches_both_is_an_overlap(first: str, second: str, subject: str) -> None:
    """No shared subject is overlooked."""
    if matches(first, subject) and matches(second, subject):
        assert overlap(first, second)


@pytest.mark.parametrize("subject", [">", "*", "*.a", "_INBOX.>", "$SRV.PING", "$JS.>"])
def test_a_pattern_that_reaches_everybodys_requests_is_shared(subject: str) -> None:
    """No user chose these subjects for a stream."""
    assert is_shared(subject)


@pytest.mark.parametrize("subject", ["orders", "orders.>", "orders.*", "_INBOXES"])
def test_a_pattern_below_a_name_is_the_streams_own(subject: str) -> None:
    """The creator of the stream has named the subjects."""
    assert not is_shared(subject)
