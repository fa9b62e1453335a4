"""The Flight actions of consumer groups: their fields and the bounds of each.

Part of the table :data:`broker.codec.flight.actions.ACTIONS`, which validates their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from broker.codec.flight.operations import ActionSpec, Check
from broker.codec.flight.protocol import (
    refuse_unknown,
    short_text,
    stream_name,
    stream_uuid,
    true_or_false,
    whole_number,
)
from broker.errors import InvalidRequestError
from broker.model.groups import (
    COMMIT_WRITES_MAX,
    MEMBER_STREAMS_MAX,
    NAME_BYTES_MAX,
    NO_LEADER_EPOCH,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    STORED_NAME_CHARS_MAX,
    PositionCommit,
    PositionReset,
)
from broker.model.offsets import OFFSET_MAX
from broker.model.stream import PARTITIONS_MAX

_One = TypeVar("_One")


def _text(field: str) -> Check:
    return lambda value: short_text(value, field, bytes_max=NAME_BYTES_MAX)


def _stored_group(value: object) -> str:
    """Return the name of a group that exists; older metadata may have names that none may be now.

    An operator has to see such a group, and to delete it.
    """
    if not isinstance(value, str) or not 0 < len(value) <= STORED_NAME_CHARS_MAX:
        raise InvalidRequestError(
            f"group must be a text of 1 to {STORED_NAME_CHARS_MAX} characters", field="group"
        )
    return value


def _number(field: str, high: int, *, low: int = 0) -> Check:
    return lambda value: whole_number(value, field, low=low, high=high)


def _flag(field: str) -> Check:
    return lambda value: true_or_false(value, field)


def _owner(value: object) -> str:
    return "" if value == "" else short_text(value, "owner", bytes_max=NAME_BYTES_MAX)


def _streams(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MEMBER_STREAMS_MAX:
        raise InvalidRequestError(
            f"streams must be a list of 1 to {MEMBER_STREAMS_MAX} names", field="streams"
        )
    return [stream_name(one, "streams") for one in value]


def _offset(value: object) -> int | None:
    return None if value is None else whole_number(value, "offset", low=0, high=OFFSET_MAX)


def _list_of(read: Callable[[Mapping[str, Any]], _One]) -> Callable[[object], list[_One]]:
    def check(value: object) -> list[_One]:
        if not isinstance(value, list) or not 1 <= len(value) <= COMMIT_WRITES_MAX:
            raise InvalidRequestError(
                f"positions must be a list of 1 to {COMMIT_WRITES_MAX} positions",
                field="positions",
            )
        return [read(_object(one)) for one in value]

    return check


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError("positions must be a list of objects", field="positions")
    return value


_COMMIT: Final[Mapping[str, Check]] = {
    "stream_uuid": stream_uuid,
    "partition": _number("partition", PARTITIONS_MAX),
    "epoch": _number("epoch", OFFSET_MAX),
    "number": _number("number", OFFSET_MAX),
    "offset": _offset,
    "leader_epoch": _number("leader_epoch", OFFSET_MAX, low=NO_LEADER_EPOCH),
    "back": _flag("back"),
    "release": _flag("release"),
}
_RESET: Final[Mapping[str, Check]] = {
    "stream_uuid": stream_uuid,
    "partition": _number("partition", PARTITIONS_MAX),
    "offset": _number("offset", OFFSET_MAX),
}


def _checked(values: Mapping[str, Any], fields: Mapping[str, Check]) -> dict[str, Any]:
    refuse_unknown(dict(values), list(fields), what="a position")
    missing = [name for name in fields if name not in values]
    if missing:
        raise InvalidRequestError(f"a position lacks the field {missing[0]!r}", field=missing[0])
    return {name: check(values[name]) for name, check in fields.items()}


def _commit(values: Mapping[str, Any]) -> PositionCommit:
    return PositionCommit(**_checked(values, _COMMIT))


def _reset(values: Mapping[str, Any]) -> PositionReset:
    return PositionReset(**_checked(values, _RESET))


_WHO: Final[Mapping[str, Check]] = {
    "group": _text("group"),
    "member": _text("member"),
    "instance": _text("instance"),
}

GROUP_ACTIONS: Final[Mapping[str, ActionSpec]] = {
    "join_group": ActionSpec(
        "Make a process a member of a consumer group. {group, member, instance, streams, "
        "session_ms, static?, owner?, membership?} -> {coordinator, epoch}; membership counts how "
        "often the process has joined anew.",
        {
            **_WHO,
            "streams": _streams,
            "session_ms": _number("session_ms", SESSION_MS_MAX, low=SESSION_MS_MIN),
            "static": _flag("static"),
            "owner": _owner,
            "membership": _number("membership", OFFSET_MAX),
        },
        {"static": False, "owner": "", "membership": 0},
    ),
    "leave_group": ActionSpec(
        "End a membership, unless the process has begun a later one; its partitions go to others. "
        "{group, member, instance, membership?} -> {}.",
        {**_WHO, "membership": _number("membership", OFFSET_MAX)},
        {"membership": 0},
    ),
    "group_heartbeat": ActionSpec(
        "Show the coordinator that a member lives. {group, member, instance, epoch} -> {epoch, "
        "coordinator, settled, claims}; claims is null if the group is at that epoch still.",
        {**_WHO, "epoch": _number("epoch", OFFSET_MAX)},
        {},
    ),
    "report_coordinator": ActionSpec(
        "Say that the coordinator of a group does not answer. {group, member, instance, "
        "coordinator} -> {coordinator, epoch}, as they are now.",
        {**_WHO, "coordinator": _text("coordinator")},
        {},
    ),
    "commit_positions": ActionSpec(
        "Store positions of a member, and give claims up. {group, member, instance, positions: "
        "[{stream_uuid, partition, epoch, number, offset, leader_epoch, back, release}, ...]} "
        "-> {}.",
        {**_WHO, "positions": _list_of(_commit)},
        {},
    ),
    "list_groups": ActionSpec("List the consumer groups. {} -> {group} each.", {}, {}),
    "describe_group": ActionSpec(
        "Describe a consumer group. {group} -> {group, kind, epoch, coordinator, members, "
        "partitions}.",
        {"group": _stored_group},
        {},
    ),
    "reset_group": ActionSpec(
        "Store positions of a group that an operator chose; no member may read these streams. "
        "{group, positions: [{stream_uuid, partition, offset}, ...]} -> {}.",
        {"group": _text("group"), "positions": _list_of(_reset)},
        {},
    ),
    "delete_group": ActionSpec(
        "Forget the positions of a group without members. {group} -> {}.",
        {"group": _stored_group},
        {},
    ),
}
