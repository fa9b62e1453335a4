"""Parses texts that people type: sizes, durations, start positions, headers. Pure.

Every function raises ValueError with a sentence that names the accepted forms; the caller adds the
name of the option.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)\Z")
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)\Z")
_DURATION_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_AGO: Final = re.compile(r"(.+?)\s+ago\Z")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class StartAt:
    """A reader's start position. ``value`` is an offset or UTC microseconds, by ``kind``."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0


def parse_size(text: str) -> int:
    """Return bytes: ``8388608``, ``8MiB`` (powers of 1024) or ``8MB`` (powers of 1000)."""
    match = _SIZE.match(text.strip())
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size; write 8388608, 64KiB, 8MiB, 2GiB or 8MB")
    return _whole(match.group(1), unit, text)


def parse_duration_ms(text: str) -> int:
    """Return milliseconds: ``250ms``, ``30s``, ``5m``, ``2h``, ``1d``."""
    match = _DURATION.match(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 250ms, 30s, 5m, 2h or 1d")
    return _whole(match.group(1), _DURATION_UNITS_MS[match.group(2)], text)


def _whole(number: str, unit: int, text: str) -> int:
    """Return so many units; raises ValueError if there is no such number."""
    try:
        return int(float(number) * unit)
    except OverflowError:
        raise ValueError(f"{text[:80]!r} is too large") from None


def parse_start(text: str, *, now_us: int) -> StartAt:
    """Return a start position: earliest, latest, an offset, an ISO time or ``5m ago``.

    A time without a zone is UTC, as all times in Headwater are.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return StartAt(word)  # type: ignore[arg-type]  # narrowed by the line above
    if word.isdecimal():
        return StartAt("offset", int(word))
    ago = _AGO.match(word)
    if ago:
        return StartAt("time", max(0, now_us - parse_duration_ms(ago.group(1)) * 1000))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position; write earliest, latest, an offset such as 1200, a time "
            'such as 2026-01-31T08:00:00Z, or "5m ago"'
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return StartAt("time", round(moment.timestamp() * 1_000_000))


def parse_header(text: str) -> tuple[str, str]:
    """Return name and value of ``Name: value`` (or ``Name=value``), as NATS headers allow them."""
    name, found, value = text.partition(":")
    if not found:
        name, found, value = text.partition("=")
    name, value = name.strip(), value.strip()
    legal = found and name.isascii() and name.isprintable() and name and " " not in name
    if not legal or "\r" in value or "\n" in value:
        raise ValueError(f"{text!r} is not a header; write 'Name: value'")
    return name, value


def expand_subject(template: str, fields: dict[str, object]) -> str:
    """Replace each ``{field}`` in a subject by that field of a JSON record.

    Raises:
        ValueError: a field is missing or null, or its text is not one token of a subject.
    """

    def token(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in fields:
            raise ValueError(f"the record has no field {name!r} for the subject {template!r}")
        found = fields[name]
        if isinstance(found, bool | list | dict) or found is None:
            told = json.dumps(found)[:80]
            raise ValueError(f"{name} is {told}, and a part of a subject is a text or a number")
        text = str(found)
        if not text or any(character in text for character in " .*>\t\r\n"):
            raise ValueError(f"{name} = {text!r} cannot be a part of a subject")
        return text

    return _FIELD.sub(token, template)


def format_bytes(size: int) -> str:
    """Return a size for people, in powers of 1024."""
    if size < 1024:
        return f"{size} B"
    value, units = float(size), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = ""
    while value >= 1024:
        value /= 1024
        unit = next(units)
    return f"{value:.1f} {unit}"


def counted(count: int, what: str) -> str:
    """Return a count with its noun: ``1 record``, ``1,010 records``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def format_duration_ms(duration_ms: int) -> str:
    """Return a duration exactly, in the largest unit of which it is a whole number."""
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % length_ms == 0:
            return f"{duration_ms // length_ms:,} {unit}"
    return f"{duration_ms:,} ms"


def format_time_us(timestamp_us: int) -> str:
    """Return UTC microseconds as ISO text with the zone, exact to the microsecond."""
    whole = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_us % 1_000_000:06d}Z"


def format_age(age_us: int) -> str:
    """Return an age for people."""
    seconds = max(0, age_us) / 1_000_000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
