"""Denials by the NATS server: read from its text, kept until asked again, logged within bounds."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.adapters.nats.denials import Denial, DenialLog, DeniedSubjects


@pytest.mark.parametrize(
    ("text", "kind", "subject"),
    [
        ('Permissions Violation for Subscription to "a.b"', "subscription", "a.b"),
        ('Permissions Violation for Subscription to "a" (sid "8")', "subscription", "a"),
        ('Permissions Violation for Subscription to "a" using queue "b"', "subscription", "a"),
        ('permissions violation for publish to "in.x"', "publish", "in.x"),
        ('Permissions Violation for Publish with Reply of "in.x"', "publish", "in.x"),
        (r'Permissions Violation for Publish to "a\"b\\c"', "publish", 'a"b\\c'),
        (r'Permissions Violation for Publish to "é\u200b\x01\t"', "publish", "é\u200b\x01\t"),
        (r'Permissions Violation for Publish to "\U000e0001\ud800"', "publish", "\U000e0001\ufffd"),
    ],
)
def test_the_subject_is_read_as_the_server_quotes_it(text: str, kind: str, subject: str) -> None:
    """A revoked permission, a queue group and Go's escapes do not hide the subject."""
    assert Denial.read(text) == Denial(kind, subject)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Slow Consumer",
        "Permissions Violation",
        'Permissions Violation for Subscription to "a',
        'Permissions Violation for Subscription to "a\\"',
        'Permissions Violation for Subscriptions to "a"',
    ],
)
def test_other_texts_are_no_denial(text: str) -> None:
    """Nothing is guessed from a text without a whole subject."""
    assert Denial.read(text) is None


def test_a_subject_that_is_asked_for_again_is_not_denied() -> None:
    """Its permission may have been granted meanwhile; only a new denial counts."""
    denied = DeniedSubjects()
    denied.add("a")
    denied.add("b")
    denied.ask_again(["a", "c"])
    assert "a" not in denied
    assert "b" in denied
    denied.add("a")
    assert "a" in denied


def test_the_subjects_that_are_kept_are_bounded() -> None:
    """The newest stay: a server may deny what nobody asked for, as often as it likes."""
    denied = DeniedSubjects()
    for number in range(3000):
        denied.add("often")
        denied.add(f"s.{number}")
    assert "s.2999" in denied
    assert "often" in denied
    assert len(denied._subjects) == 1024
    denied.add("x" * 60_000)
    assert "x" * 60_000 not in denied


def test_ten_denials_of_a_kind_are_logged_in_a_minute() -> None:
    """A flood of one kind hides neither the other kind nor how many were left out."""
    now_s = [0.0]
    log = DenialLog("headwater-a", lambda: now_s[0])
    with capture_logs() as lines:
        for number in range(500):
            log.tell(Denial("publish", f"in.{number}"))
        log.tell(Denial("subscription", "s" * 9999))
        now_s[0] = 59.9
        log.tell(Denial("publish", "late"))
        now_s[0] = 60.0
        log.tell(Denial("publish", "later"))
    assert [one["subject"] for one in lines] == [
        *(f"in.{number}" for number in range(10)),
        "s" * 256,
        "later",
    ]
    assert {one["event"] for one in lines} == {"nats_denied"}
    assert {one["connection"] for one in lines} == {"headwater-a"}
    assert [one["left_out"] for one in lines[-2:]] == [0, 491]
