"""Texts of the command line become values; the error about a wrong text shows a right one."""

from __future__ import annotations

import pytest

from headwater.cli.parsing import (
    StartAt,
    counted,
    expand_subject,
    format_age,
    format_bytes,
    format_duration_ms,
    format_time_us,
    parse_duration_ms,
    parse_header,
    parse_size,
    parse_start,
)

NOW_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("64KiB", 65536), ("8MiB", 8 << 20), ("1.5 GiB", 3 << 29),
     ("8MB", 8_000_000), ("1tib", 1 << 40), ("7b", 7)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    """1024s and 1000s have their own units; without a unit a number is bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "8 apples", "-1", "1e3", "8MiB8"])
def test_not_sizes(text: str) -> None:
    """Anything else is refused, with examples."""
    with pytest.raises(ValueError, match="64KiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("5 min", 300_000), ("2h", 7_200_000),
     ("1d", 86_400_000), ("1.5s", 1500)],
)  # fmt: skip
def test_durations(text: str, duration_ms: int) -> None:
    """A duration has a unit."""
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["5", "", "m", "5 weeks", "-5m"])
def test_not_durations(text: str) -> None:
    """A number without a unit is refused, because its unit is unknown."""
    with pytest.raises(ValueError, match="5m"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", StartAt("earliest")),
        (" Latest ", StartAt("latest")),
        ("1200", StartAt("offset", 1200)),
        ("5m ago", StartAt("time", NOW_US - 300_000_000)),
        ("2026-01-01T00:00:00Z", StartAt("time", NOW_US)),
        ("2026-01-01T01:00:00+01:00", StartAt("time", NOW_US)),
        ("2026-01-01 00:00:00.000001", StartAt("time", NOW_US + 1)),
        ("2026-01-01", StartAt("time", NOW_US)),
        ("999999d ago", StartAt("time", 0)),
    ],
)
def test_starts(text: str, start: StartAt) -> None:
    """A position is a word, an offset, a time (UTC unless it says otherwise) or an age."""
    assert parse_start(text, now_us=NOW_US) == start


@pytest.mark.parametrize("text", ["", "first", "-5", "5 ago", "2026-13-01"])
def test_not_starts(text: str) -> None:
    """Anything else is refused, with examples."""
    with pytest.raises(ValueError, match=r"250ms|earliest"):
        parse_start(text, now_us=NOW_US)


def test_headers() -> None:
    """Name and value stand on the two sides of the first colon or equals sign."""
    assert parse_header("Trace-Id: a:b") == ("Trace-Id", "a:b")
    assert parse_header("Trace-Id=7") == ("Trace-Id", "7")
    for bad in ("no-separator", ": value", "two words: x", "Name: a\r\nEvil: b"):
        with pytest.raises(ValueError, match="not a header"):
            parse_header(bad)


def test_subject_from_fields() -> None:
    """Places are filled from the record; nothing can smuggle a token or a wildcard in."""
    fields: dict[str, object] = {"origin": "JFK", "n": 7, "bad": "a.b", "star": "*", "empty": ""}
    assert expand_subject("flights.{origin}.{n}", fields) == "flights.JFK.7"
    for template in ("x.{missing}", "x.{bad}", "x.{star}", "x.{empty}"):
        with pytest.raises(ValueError, match="subject"):
            expand_subject(template, fields)


def test_times_are_exact() -> None:
    """Microseconds survive, also where a float would lose them."""
    assert format_time_us(NOW_US + 1) == "2026-01-01T00:00:00.000001Z"
    assert format_time_us(253_402_300_799_999_999) == "9999-12-31T23:59:59.999999Z"


def test_one_is_singular() -> None:
    """What a newcomer sees first is not `1 records sent`."""
    assert [counted(n, "record") for n in (0, 1, 2_000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]


def test_durations_for_people_are_exact() -> None:
    """A setting of 30 days is not shown as 2,592,000,000 ms."""
    shown = {0: "0 ms", 200: "200 ms", 1_500: "1,500 ms", 90_000: "90 s", 120_000: "2 min"}
    shown |= {7_200_000: "2 h", 604_800_000: "7 d", 2_592_000_000: "30 d"}
    assert {ms: format_duration_ms(ms) for ms in shown} == shown


def test_sizes_and_ages_for_people() -> None:
    """The unit grows with the number."""
    assert [format_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB",
    ]  # fmt: skip
    assert [format_age(us) for us in (-5, 4_000, 1_500_000, 600_000_000)] == [
        "0 ms", "4 ms", "1.5 s", "10 min",
    ]  # fmt: skip
