"""The Flight actions: their names, the fields of their JSON bodies, and the bounds of each field.

The table :data:`ACTIONS` has two uses: the server validates bodies with it, and ``list_actions``
returns its help texts. The client builds bodies with the same field names. An action is performed
by the method of the same name in ``broker/adapters/flight/actions.py``, which takes the fields as
keywords; beside it, ``group_actions.py`` performs those of consumer groups, ``access_actions.py``
those of grants and tokens, and ``operations.py`` those of operators. An action must be harmless
when it is done twice, because a client that got no answer asks the next broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.codec.flight.access_actions import ACCESS_ACTIONS
from broker.codec.flight.group_actions import GROUP_ACTIONS
from broker.codec.flight.operations import OPERATIONS, ActionSpec, partition_numbers
from broker.codec.flight.protocol import (
    parse_object,
    refuse_unknown,
    short_text,
    stream_name,
    stream_uuid,
    true_or_false,
    whole_number,
)
from broker.errors import InvalidRequestError
from broker.model.cut_positions import CutPosition
from broker.model.data_key import DATA_KEYS_MAX
from broker.model.offsets import OFFSET_MAX, Offset
from broker.model.stream import PARTITIONS_MAX

BODY_BYTES_MAX: Final = 256 * 1024
LEASE_TTL_MS_MAX: Final = 24 * 3_600_000
FLUSH_TIMEOUT_MS_MAX: Final = 3_600_000
_OWNER_BYTES_MAX: Final = 256
_NAMES_MAX: Final = 1000


def _config(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError("config must be an object of stream settings", field="config")
    return value


def _changes(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise InvalidRequestError(
            "changes must be an object with at least one stream setting", field="changes"
        )
    return value


def _dry_run(value: object) -> bool:
    return true_or_false(value, "dry_run")


def _partition(value: object) -> int:
    return whole_number(value, "partition", low=0, high=PARTITIONS_MAX)


def _resume_all(value: object) -> bool:
    return true_or_false(value, "resume_all")


def _readonly(value: object) -> bool:
    return true_or_false(value, "readonly")


def _before(value: object) -> Offset | None:
    return None if value is None else Offset(whole_number(value, "before", low=0, high=OFFSET_MAX))


def _before_us(value: object) -> int | None:
    return None if value is None else whole_number(value, "before_us", low=0, high=OFFSET_MAX)


def _version(value: object) -> int:
    return whole_number(value, "version", low=0, high=DATA_KEYS_MAX)


def _operator(value: object) -> str:
    return short_text(value, "operator", bytes_max=_OWNER_BYTES_MAX)


def _owner(value: object) -> str:
    return short_text(value, "owner", bytes_max=_OWNER_BYTES_MAX)


def _ttl_ms(value: object) -> int:
    return whole_number(value, "ttl_ms", low=100, high=LEASE_TTL_MS_MAX)


def _timeout_ms(value: object) -> int:
    return whole_number(value, "timeout_ms", low=1, high=FLUSH_TIMEOUT_MS_MAX)


def _with_positions(value: object) -> bool:
    return true_or_false(value, "positions")


def _believe_forgotten(value: object) -> bool:
    return true_or_false(value, "believe_forgotten")


def _lease_id(value: object) -> str:
    return short_text(value, "lease_id", bytes_max=128)


def _name(value: object) -> str:
    return stream_name(value, "name")


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= _NAMES_MAX:
        raise InvalidRequestError(
            f"names must be a list of 1 to {_NAMES_MAX} stream names", field="names"
        )
    return [stream_name(name, "names") for name in value]


def _positions(value: object) -> list[CutPosition]:
    if not isinstance(value, list) or not 1 <= len(value) <= PARTITIONS_MAX:
        raise InvalidRequestError(
            f"positions must be a list of 1 to {PARTITIONS_MAX} pairs [lineage id, hot end]",
            field="positions",
        )
    return [_position(one) for one in value]


def _position(value: object) -> CutPosition:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidRequestError(
            "each of positions must be a pair [lineage id, hot end]", field="positions"
        )
    lineage_id, end = value
    if lineage_id is not None:
        lineage_id = short_text(lineage_id, "positions", bytes_max=64)
    return CutPosition(lineage_id, Offset(whole_number(end, "positions", low=0, high=OFFSET_MAX)))


def _uuid(value: object) -> str:
    return stream_uuid(value)


def _optional_uuid(value: object) -> str | None:
    return None if value is None else stream_uuid(value)


ACTIONS: Final[Mapping[str, ActionSpec]] = {
    "create_stream": ActionSpec(
        "Create a stream, durably. {name, config: {subject, ...}} -> the stream.",
        {"name": _name, "config": _config},
        {},
    ),
    "describe_stream": ActionSpec(
        "Describe a stream and its partitions' positions. {name, positions?} -> "
        "{cluster, stream, partitions, nats}; partitions is empty if positions is false; nats is "
        "the address of the broker's NATS server or null.",
        {"name": _name, "positions": _with_positions},
        {"positions": True},
    ),
    "brokers": ActionSpec(
        "List the cluster's brokers. {} -> {broker, flight, alive} each.",
        {},
        {},
    ),
    "locate": ActionSpec(
        "Tell where a stream's partitions are. {name} -> {stream_uuid, partition, leader, flight, "
        "leader_epoch, replicas, isr} each; flight is the leader's address.",
        {"name": _name},
        {},
    ),
    "list_streams": ActionSpec("List the streams. {} -> one result per stream.", {}, {}),
    "alter_stream": ActionSpec(
        "Change settings of a stream. {name, stream_uuid?, changes: {setting: value, ...}, "
        "dry_run?} -> {before, after}, two streams; with dry_run nothing is changed.",
        {"name": _name, "stream_uuid": _optional_uuid, "changes": _changes, "dry_run": _dry_run},
        {"stream_uuid": None, "dry_run": False},
    ),
    "purge_partition": ActionSpec(
        "Delete a partition's records below an offset, or before a time, at its leader. {name, "
        "stream_uuid?, partition, before?, before_us?, operator} -> {partition, start, end, "
        "in_table, purged_end}; one of before and before_us is needed.",
        {
            "name": _name,
            "stream_uuid": _optional_uuid,
            "partition": _partition,
            "before": _before,
            "before_us": _before_us,
            "operator": _operator,
        },
        {"stream_uuid": None, "before": None, "before_us": None},
    ),
    "rotate_key": ActionSpec(
        "Give an encrypted stream a new data key, if its newest has this version. {name, version} "
        "-> the stream. A repeated call changes nothing.",
        {"name": _name, "version": _version},
        {},
    ),
    "pause_stream": ActionSpec(
        "Pause partitions: they take no records until they are resumed. {name, stream_uuid?, "
        "partitions?, resume_all?} -> {}; no partitions means all; with resume_all the next "
        "publish resumes all.",
        {
            "name": _name,
            "stream_uuid": _optional_uuid,
            "partitions": partition_numbers,
            "resume_all": _resume_all,
        },
        {"stream_uuid": None, "partitions": [], "resume_all": False},
    ),
    "resume_stream": ActionSpec(
        "Let paused partitions take records. {name, stream_uuid?, partitions?} -> {}; no "
        "partitions means all.",
        {"name": _name, "stream_uuid": _optional_uuid, "partitions": partition_numbers},
        {"stream_uuid": None, "partitions": []},
    ),
    "set_stream_readonly": ActionSpec(
        "Make partitions read-only, or not. {name, stream_uuid?, partitions?, readonly} -> {}; no "
        "partitions means all.",
        {
            "name": _name,
            "stream_uuid": _optional_uuid,
            "partitions": partition_numbers,
            "readonly": _readonly,
        },
        {"stream_uuid": None, "partitions": []},
    ),
    "delete_stream": ActionSpec(
        "Delete a stream's log; its table stays. {name, stream_uuid?} -> the stream.",
        {"name": _name, "stream_uuid": _optional_uuid},
        {"stream_uuid": None},
    ),
    "stream_remains": ActionSpec(
        "Ask this broker by itself of a stream that may be deleted; before its table is deleted. "
        "{name, stream_uuid} -> {present, deleted, shipping}.",
        {"name": _name, "stream_uuid": stream_uuid},
        {},
    ),
    "take_lease": ActionSpec(
        "Take a lease: until it expires, nothing of the stream is deleted. {name, owner, ttl_ms} "
        "-> {lease_id, expires_us}.",
        {"name": _name, "owner": _owner, "ttl_ms": _ttl_ms},
        {},
    ),
    "renew_lease": ActionSpec(
        "Extend a lease. {lease_id, ttl_ms} -> {lease_id, expires_us}.",
        {"lease_id": _lease_id, "ttl_ms": _ttl_ms},
        {},
    ),
    "drop_lease": ActionSpec("End a lease. {lease_id} -> {}.", {"lease_id": _lease_id}, {}),
    "list_leases": ActionSpec(
        "List the leases on a stream. {name} -> {lease_id, owner, taken_us, expires_us} each.",
        {"name": _name},
        {},
    ),
    "cut": ActionSpec(
        "Take a cut under a lease of its own. {name, owner, ttl_ms} -> the cut.",
        {"name": _name, "owner": _owner, "ttl_ms": _ttl_ms},
        {},
    ),
    "check_cut": ActionSpec(
        "Confirm that a saved cut belongs to this cluster's history of the stream. {name, "
        "stream_uuid, positions: [[lineage_id, hot_end], ...], believe_forgotten?} -> {}; a "
        "leadership that is too old to be remembered is refused, unless believe_forgotten is true.",
        {
            "name": _name,
            "stream_uuid": _uuid,
            "positions": _positions,
            "believe_forgotten": _believe_forgotten,
        },
        {"believe_forgotten": False},
    ),
    "high_watermarks": ActionSpec(
        "Return the high watermarks of all partitions of some streams at one moment, and the "
        "leaderships that they belong to. {names} -> {name, stream_uuid, high_watermarks, "
        "lineage_ids} per stream.",
        {"names": _names},
        {},
    ),
    "tier_status": ActionSpec(
        "Tell how far tiering is. {name} -> one result per partition.", {"name": _name}, {}
    ),
    "tier_flush": ActionSpec(
        "Ship all committed records into the table now. {name, timeout_ms} -> as tier_status.",
        {"name": _name, "timeout_ms": _timeout_ms},
        {},
    ),
    **ACCESS_ACTIONS,
    **GROUP_ACTIONS,
    **OPERATIONS,
}


def decode_body(action: str, body: bytes) -> dict[str, Any]:
    """Check an action's body, field by field; an absent optional field gets its default.

    Raises:
        InvalidRequestError: unknown action, not JSON, or a field that is missing, unknown or out
            of bounds.
    """
    spec = ACTIONS.get(action)
    if spec is None:
        raise InvalidRequestError(
            f"unknown action {action[:64]!r}; the actions are {', '.join(ACTIONS)}", field="action"
        )
    what = f"the body of {action}"
    values = parse_object(body or b"{}", what=what, bytes_max=BODY_BYTES_MAX)
    refuse_unknown(values, list(spec.fields), what=what)
    missing = [name for name in spec.fields if name not in values and name not in spec.defaults]
    if missing:
        raise InvalidRequestError(f"{what} lacks the field {missing[0]!r}", field=missing[0])
    return {
        name: check(values[name]) if name in values else spec.defaults[name]
        for name, check in spec.fields.items()
    }
