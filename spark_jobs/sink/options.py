"""The options of a write: parsed once; unknown options are refused.

Spark turns option names into lower case before we get them, so they are compared without case.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError
from broker.model.ids import StreamUuid, is_stream_name, is_uuid

KNOWN: Final = ("server", "stream", "streamUuid", "idempotenceKey", "deliveryTimeoutMs")
_KEY_CHARACTERS_MAX: Final = 512
_TIMEOUT_MS_DEFAULT: Final = 120_000  # a restart of the broker takes much less
_TIMEOUT_MS: Final = range(1_000, 3_600_001)
# Options that Spark adds itself: for its streaming engine, and for tables of its catalog.
_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "queryname"}
    | {"provider", "owner", "comment", "external", "is_managed_location", "location", "collation"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options of one write."""

    server: str | None  # None: HEADWATER_SERVER, else the client's default
    stream: str
    stream_uuid: StreamUuid | None  # refuse a stream re-created under the same name
    idempotence_key: str | None  # identifies a batch write; a repeat stores nothing twice
    delivery_timeout_ms: int


def parse(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write.

    Raises:
        InvalidRequestError: an option is unknown, missing, malformed, or has no effect here.
    """
    names = {name.lower(): name for name in KNOWN}
    given = {name.lower(): text for name, text in options.items()}
    for name in sorted(given.keys() - names.keys() - _OF_SPARK):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {names[near[0]]}?" if near else "."
        raise InvalidRequestError(
            f"a write has no option {name!r}{hint} The options are {', '.join(KNOWN)}", field=name
        )
    stream = given.get("stream")
    if stream is None or not is_stream_name(stream):
        raise InvalidRequestError(
            f"option stream must be the name of the stream to write to, not {stream!r}",
            field="stream",
        )
    uuid = given.get("streamuuid")
    if uuid is not None and not is_uuid(uuid):
        raise InvalidRequestError(f"option streamUuid {uuid!r} is not a uuid", field="streamUuid")
    return SinkOptions(
        server=given.get("server"),
        stream=stream,
        stream_uuid=None if uuid is None else StreamUuid(uuid),
        idempotence_key=_key(given.get("idempotencekey"), streaming=streaming),
        delivery_timeout_ms=_timeout_ms(given.get("deliverytimeoutms")),
    )


def _key(text: str | None, *, streaming: bool) -> str | None:
    if text is None:
        return None
    if streaming:
        raise InvalidRequestError(
            "option idempotenceKey is only for batch writes: a streaming query is identified by "
            "the id in its checkpoint",
            field="idempotenceKey",
        )
    if not 0 < len(text) <= _KEY_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"option idempotenceKey must have 1 to {_KEY_CHARACTERS_MAX} characters",
            field="idempotenceKey",
        )
    return text


def _timeout_ms(text: str | None) -> int:
    if text is None:
        return _TIMEOUT_MS_DEFAULT
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) not in _TIMEOUT_MS:
        raise InvalidRequestError(
            f"option deliveryTimeoutMs {text[:32]!r} is not a number from {_TIMEOUT_MS.start} to "
            f"{_TIMEOUT_MS.stop - 1}",
            field="deliveryTimeoutMs",
        )
    return int(text)
