"""Changes valid bytes so that they are nearly valid. Seeded: an equal seed gives equal bytes.

Bytes are flipped, cut, doubled, spliced with another seed, and have numbers in them replaced by
those at which lengths break. Of JSON the values are changed, too: swapped, nested, of another
type, too large. Most changes are small, because what is wrong everywhere is refused at its first
byte.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

# Lengths and counts that were believed too early, in the usual widths and byte orders.
_NUMBERS: Final = tuple(
    number.to_bytes(width, order)
    for width in (1, 2, 4, 8)
    for number in (
        0,
        1,
        0x7F,
        (1 << (8 * width - 1)) - 1,
        1 << (8 * width - 1),
        (1 << 8 * width) - 1,
        (1 << 8 * width) - 8,
    )
    for order in ("little", "big")
)
_VARINTS: Final = (b"\x80\x80\x80\x80\x08", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff\xff\x03")
_TEXTS: Final = (
    b"\r\n", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", "é".encode(), b"[" * 2000, b'{"a":' * 1500,
    b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 5000, b'"', b"\\ud800", b" ", b",", b".", b"/",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, 1e300,
    float("inf"), float("-inf"), float("nan"), "", "x", "\x00", "\ud800", "é", "0", "-1", "../x",
    "x" * 5000, [], [None], [[]], {}, {"": {}}, [0] * 3,
)  # fmt: skip
_BYTES_MAX: Final = 256 * 1024


def mutated(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds, changed; never longer than 256 KiB."""
    data = draw.choice(seeds)
    if data[:1] in (b"{", b"[") and draw.random() < 0.6:
        changed = _changed_json(draw, data)
        if changed is not None:
            return changed[:_BYTES_MAX]
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        _change(draw, found, seeds)
    return bytes(found[:_BYTES_MAX])


def _change(draw: random.Random, found: bytearray, seeds: Sequence[bytes]) -> None:
    at = draw.randrange(len(found) + 1)
    match draw.randrange(10):
        case 0 | 1 if at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        case 2:
            number = draw.choice(_NUMBERS)
            at -= at % len(number) * draw.randrange(2)  # fields are often aligned
            found[at : at + len(number)] = number
        case 3:
            del found[at:]
        case 4:
            del found[at : at + draw.randint(1, 16)]
        case 5:
            found[at:at] = found[at : at + draw.randint(1, 64)] * draw.choice((1, 2, 100))
        case 6:
            other = draw.choice(seeds)
            begin = draw.randrange(len(other) + 1)
            found[at:] = other[begin:]
        case 7:
            found[at:at] = draw.choice(_TEXTS if draw.random() < 0.7 else _VARINTS)
        case 8:
            length = draw.randint(1, 8)
            end = min(len(found), at + length)
            to = draw.randrange(len(found) + 1)
            found[to : to + end - at] = found[at:end]
        case _:
            found[at : at + draw.randint(0, 4)] = draw.randbytes(draw.randint(1, 4))


# ------------------------------------------------------------------------------------------ JSON


def _changed_json(draw: random.Random, data: bytes) -> bytes | None:
    """Return a JSON text with some values changed; None if the bytes are not JSON."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        body = _changed_value(draw, body)
    try:
        return json.dumps(body, separators=(",", ":")).encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return None


def _changed_value(draw: random.Random, body: Any) -> Any:
    """Return the value with one place in it changed; the place is drawn on the way down."""
    if isinstance(body, dict) and body and draw.random() < 0.9:
        name = draw.choice(list(body))
        match draw.randrange(12):
            case 0:
                return {key: value for key, value in body.items() if key != name}
            case 1:
                return {**body, draw.choice(("x", "", "v", "\x00")): draw.choice(_VALUES)}
            case 2:
                other = draw.choice(list(body))
                return {**body, name: body[other], other: body[name]}
            case _:
                return {**body, name: _changed_value(draw, body[name])}
    if isinstance(body, list) and body and draw.random() < 0.9:
        at = draw.randrange(len(body))
        match draw.randrange(8):
            case 0:
                return body[:at]
            case 1:
                return body[:at] + [body[at]] * draw.choice((2, 50))
            case _:
                return [*body[:at], _changed_value(draw, body[at]), *body[at + 1 :]]
    if isinstance(body, str) and body and draw.random() < 0.4:
        at = draw.randrange(len(body))
        return body[:at] + draw.choice(("", "x", "\x00", "/", "é", "9" * 30)) + body[at + 1 :]
    return draw.choice(_VALUES)
