"""How much a principal may use of each broker: values of the metadata.

A quota belongs to a pattern of principals: a name, the beginning of names followed by ``*``, or
``*`` alone, which is the default. Each principal that it applies to has all of it on each broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from broker.errors import InvalidRequestError
from broker.model.access import NAME_CHARS_MAX, check_name

# What passes at a rate. Open calls are counted, and have no rate.
Flow = Literal["publish", "read", "requests"]
FLOWS: Final[tuple[Flow, ...]] = get_args(Flow)

DEFAULT: Final = "*"  # the pattern of every principal without another quota
BYTES_PER_S_MIN: Final = 1024  # a rate in bytes; less would hold one record back for hours
RATE_MAX: Final = 1 << 50
# The numbers of a quota: the least that each may be.
LIMITS: Final[Mapping[str, int]] = {
    "publish_bytes_per_s": BYTES_PER_S_MIN,
    "read_bytes_per_s": BYTES_PER_S_MIN,
    "requests_per_s": 1,
    "open_calls": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What each principal of a pattern may use of one broker. 0: as much as it likes."""

    principal: str  # a pattern
    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    open_calls: int = 0  # reads and writes that are open at the same time

    def rate(self, flow: Flow) -> int:
        """Return how much may pass in a second: bytes or requests."""
        match flow:
            case "publish":
                return self.publish_bytes_per_s
            case "read":
                return self.read_bytes_per_s
            case "requests":
                return self.requests_per_s


def check_quota(quota: Quota) -> Quota:
    """Return the quota if it is well-formed.

    Raises:
        InvalidRequestError: the pattern is malformed, a number is out of its bounds, or there is
            no number.
    """
    check_pattern(quota.principal)
    for name in LIMITS:
        check_limit(name, getattr(quota, name), low=LIMITS[name])
    if quota == Quota(principal=quota.principal):
        raise InvalidRequestError(
            "a quota must limit something: to take the limits away, remove the quota",
            field="principal",
        )
    return quota


def check_limit(name: str, value: int, *, low: int = 1) -> None:
    """Return if a limit is 0, which is none, or in its bounds; else raise InvalidRequestError."""
    if value and not low <= value <= RATE_MAX:
        raise InvalidRequestError(
            f"{name} must be {low} to {RATE_MAX}, or 0 for no limit", field=name
        )


def check_pattern(pattern: str) -> str:
    """Return a pattern of principals if it is well-formed.

    Raises:
        InvalidRequestError: it is neither a name nor the beginning of names and ``*``.
    """
    stem = pattern.removesuffix("*")
    if not pattern or "*" in stem or len(pattern) > NAME_CHARS_MAX:
        raise InvalidRequestError(
            "principal must be a name, or the beginning of names with * behind it",
            field="principal",
        )
    if stem:
        check_name(stem, "principal")
    return pattern
