"""The streams of a read: ``subscribe``, ``subscribePattern``, ``assign``, or a cut. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.errors import InvalidRequestError
from broker.model.ids import is_stream_name
from spark_jobs.source.positions import parse_json

SELECTORS: Final = ("stream", "subscribe", "subscribePattern", "assign", "cut")
_PATTERN_MAX: Final = 1000
_STREAMS_MAX: Final = 1000
_PARTITION_MAX: Final = 1023


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The streams of a read by name, or by a pattern that is matched at each planning."""

    names: tuple[str, ...] = ()
    pattern: str | None = None  # matches whole names; ``names`` is empty then
    assigned: Mapping[str, frozenset[int]] | None = None  # only these partitions of each stream

    @property
    def single(self) -> str | None:
        """The stream's name if the read always has exactly one stream, else None."""
        return self.names[0] if len(self.names) == 1 else None

    def matching(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Return those of the existing streams that match the pattern; only with a pattern."""
        assert self.pattern is not None, "names need no matching"
        wanted = re.compile(self.pattern)
        return tuple(sorted(name for name in existing if wanted.fullmatch(name)))

    def takes(self, stream: str, partition: int) -> bool:
        """Tell whether a partition belongs to the read."""
        return self.assigned is None or partition in self.assigned.get(stream, ())


def parse_selection(given: Mapping[str, str], cut_stream: str | None) -> Selection:
    """Return the selection from the options; ``given`` has lower-case names.

    Args:
        given: the options.
        cut_stream: the stream of option ``cut``; other options may name the same stream.

    Raises:
        InvalidRequestError: no option selects, or several do, or a name is not a stream name.
    """
    chosen = [name for name in SELECTORS if name.lower() in given]
    if cut_stream is not None:
        beside = [name for name in chosen if name != "cut"]
        named = given.get("stream", given.get("subscribe"))
        if [name for name in beside if name not in {"stream", "subscribe"}] or (
            beside and named != cut_stream
        ):
            raise InvalidRequestError(
                f"the cut belongs to stream {cut_stream!r}, so the read can have no other stream"
            )
        return Selection(names=(cut_stream,))
    if not chosen:
        raise InvalidRequestError('name the stream with .option("stream", "...")')
    if len(chosen) > 1:
        raise InvalidRequestError(f"give one of {', '.join(SELECTORS)}, not {' and '.join(chosen)}")
    match chosen[0]:
        case "stream":
            return Selection(names=(_name(given["stream"], "stream"),))
        case "subscribe":
            return Selection(names=_names(given["subscribe"]))
        case "subscribePattern":
            return Selection(pattern=_pattern(given["subscribepattern"]))
        case _:
            assigned = _assigned(given["assign"])
            return Selection(names=tuple(sorted(assigned)), assigned=assigned)


def _name(text: str, option: str) -> str:
    name = text.strip()
    if not is_stream_name(name):
        raise InvalidRequestError(
            f'{option} {text!r} is not a stream name; give one with .option("stream", "...")'
        )
    return name


def _names(text: str) -> tuple[str, ...]:
    names = [_name(part, "subscribe") for part in text.split(",", _STREAMS_MAX)]
    if len(set(names)) != len(names):
        raise InvalidRequestError(f"subscribe names a stream twice: {text[:200]}")
    return tuple(sorted(names))


def _pattern(text: str) -> str:
    if not text or len(text) > _PATTERN_MAX:
        raise InvalidRequestError(f"subscribePattern must have 1 to {_PATTERN_MAX} characters")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as cause:
        raise InvalidRequestError(f"subscribePattern {text!r}: {cause}") from cause
    return text


def _assigned(text: str) -> dict[str, frozenset[int]]:
    shape = 'assign must be JSON like {"flights": [0, 1]}'
    found = {}
    for stream, numbers in parse_json(text, shape).items():
        good = isinstance(numbers, list) and all(
            type(number) is int and 0 <= number <= _PARTITION_MAX for number in numbers
        )
        if not good or not numbers or len(set(numbers)) != len(numbers):
            raise InvalidRequestError(f"{shape}: {stream[:100]!r} has {str(numbers)[:100]}")
        found[_name(stream, "assign: stream")] = frozenset(numbers)
    return found
