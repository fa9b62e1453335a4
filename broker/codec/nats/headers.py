"""NATS header blocks: ``NATS/1.0[ status[ description]]`` CRLF, ``name: value`` lines, CRLF.

Nothing is lost or merged: the order is kept, a name may occur more than once, values are bytes.
Spaces and tabs before a value are not part of the value, as in every NATS client. A block that
breaks the rules raises one typed error and is never read in part. Source: NATS ADR-4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker.errors import MalformedMessageError
from broker.model.records import Headers

_VERSION: Final = b"NATS/1.0"
_KNOWN_NAME_BYTES_MAX: Final = 64
_NO_STATUS: Final = _VERSION + b"\r\n"
_END: Final = b"\r\n\r\n"
STATUS_HEADER: Final = "Status"  # how NATS clients show a status line to their users
DESCRIPTION_HEADER: Final = "Description"


@dataclass(frozen=True, slots=True)
class HeaderBlock:
    """A parsed block. ``status`` is 0 if the block has no status; published messages have none."""

    headers: Headers
    status: int = 0
    description: str = ""


def parse(block: bytes) -> HeaderBlock:
    """Parse a whole block, including the empty line at its end.

    Raises:
        MalformedMessageError: for every malformed block, and nothing else.
    """
    if not block.startswith(_VERSION) or not block.endswith(_END):
        raise _malformed("it does not begin with NATS/1.0 or does not end with an empty line")
    lines = block[: -len(_END)].split(b"\r\n")
    line_ends = len(lines) + 1
    if block.count(b"\n") != line_ends or block.count(b"\r") != line_ends:
        raise _malformed("it has a bare line feed or carriage return")
    status, description = _status(lines[0]) if len(lines[0]) > len(_VERSION) else (0, "")
    del lines[0]
    return HeaderBlock(tuple([_header(line) for line in lines]), status, description)


def read(block: bytes) -> Headers:
    """Return a block's headers as the log stores them; a status becomes two headers before them.

    Raises:
        MalformedMessageError: for every malformed block, and nothing else.
    """
    line_ends = block.count(b"\r\n")
    if (
        not block.startswith(_NO_STATUS)
        or not block.endswith(_END)
        or block.count(b"\n") != line_ends
        or block.count(b"\r") != line_ends
        or line_ends < 3
    ):
        return _with_status(parse(block))  # a status, no header, or a mistake: parse() raises
    return tuple([_header(line) for line in block[len(_NO_STATUS) : -len(_END)].split(b"\r\n")])


def _with_status(block: HeaderBlock) -> Headers:
    if not block.status:
        return block.headers
    status: Headers = ((STATUS_HEADER, str(block.status).encode()),)
    if block.description:
        status += ((DESCRIPTION_HEADER, block.description.encode()),)
    return status + block.headers


def _header(line: bytes) -> tuple[str, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name:
        raise _malformed(f"the line {line[:64]!r} has no name before a colon")
    known = _known_name if len(name) <= _KNOWN_NAME_BYTES_MAX else _name
    return known(name), value.lstrip(b" \t")


def _name(name: bytes) -> str:
    try:
        text = name.decode("ascii")
    except UnicodeDecodeError:
        raise _malformed(f"the name {name[:64]!r} is not ASCII") from None
    if not text.isprintable() or " " in text:
        raise _malformed(f"the name {name[:64]!r} has a blank or a control character")
    return text


# Publishers use the same few names again and again. Long names are not kept: a name may have 1 MiB.
_known_name: Final = lru_cache(maxsize=4096)(_name)


def _status(line: bytes) -> tuple[int, str]:
    rest = line[len(_VERSION) :]
    code, _, description = rest.lstrip(b" \t").partition(b" ")
    if rest[:1] not in {b" ", b"\t"} or not (len(code) == 3 and code.isdigit()):
        raise _malformed(f"the first line {line[:64]!r} is neither NATS/1.0 nor a status")
    return int(code), description.strip(b" \t").decode("utf-8", "replace")


def encode(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the block of these headers, in their order.

    Raises:
        MalformedMessageError: a name or value that :func:`parse` would not return unchanged.
    """
    lines = [_VERSION]
    for name, value in headers:
        legal = name.isascii() and name.isprintable() and name and not set(name) & {" ", ":"}
        if not legal or b"\r" in value or b"\n" in value or value[:1] in {b" ", b"\t"}:
            raise _malformed(
                f"{name[:64]!r} has a blank, a colon or a control character, or its value has a "
                "line end or begins with a blank"
            )
        lines.append(name.encode() + b": " + value)
    return b"\r\n".join(lines) + _END


def _malformed(why: str) -> MalformedMessageError:
    return MalformedMessageError(f"the header block cannot be read: {why}", part="headers")
