"""The Flight actions about grants, tokens, quotas and tenants: their fields and bounds.

Part of the table :data:`broker.codec.flight.actions.ACTIONS`, which validates their bodies. The
secret of a token is never sent: the client makes it, and sends its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.codec.flight.operations import ActionSpec, Check
from broker.codec.flight.protocol import refuse_unknown, short_text, whole_number
from broker.codec.flight.tenant_actions import TENANT_ACTIONS
from broker.errors import InvalidRequestError
from broker.model.access import ACTIONS, KINDS, Action, Grant, Kind, check_grant
from broker.model.quota import LIMITS, RATE_MAX

GRANTS_OF_CALL_MAX: Final = 64
_TEXT_BYTES_MAX: Final = 256
_TIME_MAX: Final = (1 << 63) - 1


def _text(field: str) -> Check:
    return lambda value: short_text(value, field, bytes_max=_TEXT_BYTES_MAX)


def _optional_text(field: str) -> Check:
    return lambda value: "" if value == "" else short_text(value, field, bytes_max=_TEXT_BYTES_MAX)


def _kind(value: object) -> Kind:
    if value not in KINDS:
        raise InvalidRequestError(f"kind must be one of {', '.join(KINDS)}", field="kind")
    return value


def _action(value: object) -> Action:
    if value not in ACTIONS:
        raise InvalidRequestError(f"action must be one of {', '.join(ACTIONS)}", field="action")
    return value


def _actions(value: object) -> tuple[Action, ...]:
    if not isinstance(value, list) or len(value) > len(ACTIONS):
        raise InvalidRequestError(
            f"actions must be a list of {', '.join(ACTIONS)}", field="actions"
        )
    return tuple(sorted({_action(one) for one in value}))


_GRANT: Final[Mapping[str, Check]] = {
    "principal": _text("principal"),
    "kind": _kind,
    "pattern": _text("pattern"),
    "actions": _actions,
    "namespace": _optional_text("namespace"),
}


def _grants(value: object) -> list[Grant]:
    if not isinstance(value, list) or not 1 <= len(value) <= GRANTS_OF_CALL_MAX:
        raise InvalidRequestError(
            f"grants must be a list of 1 to {GRANTS_OF_CALL_MAX} grants", field="grants"
        )
    return [_grant(one) for one in value]


def _grant(value: object) -> Grant:
    if not isinstance(value, dict):
        raise InvalidRequestError("each of grants must be an object", field="grants")
    refuse_unknown(value, list(_GRANT), what="a grant")
    values: dict[str, Any] = {"namespace": "", **value}
    for name in _GRANT:
        if name not in values:
            raise InvalidRequestError(f"a grant lacks the field {name!r}", field=name)
    return check_grant(Grant(**{name: check(values[name]) for name, check in _GRANT.items()}))


def _time(field: str) -> Check:
    return lambda value: whole_number(value, field, low=0, high=_TIME_MAX)


def _limit(field: str) -> Check:
    return lambda value: whole_number(value, field, low=0, high=RATE_MAX)


ACCESS_ACTIONS: Final[Mapping[str, ActionSpec]] = {
    "whoami": ActionSpec(
        "Tell who the caller is. {} -> {enabled, principal, via}; '' is no identity.",
        {},
        {},
    ),
    "table_credentials": ActionSpec(
        "Give temporary credentials that read the tables of a stream and nothing else. {name} -> "
        "{tables, access_key_id, secret_access_key, session_token, expires_us, endpoint, region, "
        "path_style}.",
        {"name": _text("name")},
        {},
    ),
    "grant_access": ActionSpec(
        "Add grants. {grants: [{principal, kind, pattern, actions, namespace?}, ...]} -> "
        "{changed}.",
        {"grants": _grants},
        {},
    ),
    "revoke_access": ActionSpec(
        "Remove actions from grants. {grants} as grant_access -> {changed}.",
        {"grants": _grants},
        {},
    ),
    "list_access": ActionSpec("List the grants. {} -> one result per grant.", {}, {}),
    "who_can": ActionSpec(
        "List the principals that may do an action; * means every one. {action, kind, name} -> "
        "{principal} each.",
        {"action": _action, "kind": _kind, "name": _text("name")},
        {},
    ),
    "create_token": ActionSpec(
        "Store a token, whose holder acts as principal. {token_id, digest, principal, expires_us?, "
        "note?} -> {changed}; digest is the SHA-256 of the token's secret.",
        {
            "token_id": _text("token_id"),
            "digest": _text("digest"),
            "principal": _text("principal"),
            "expires_us": _time("expires_us"),
            "note": _optional_text("note"),
        },
        {"expires_us": 0, "note": ""},
    ),
    "revoke_token": ActionSpec(
        "Delete a token. {token_id} -> {changed}.", {"token_id": _text("token_id")}, {}
    ),
    "list_tokens": ActionSpec(
        "List the tokens, without their digests. {} -> {token_id, principal, "
        "created_us, expires_us, created_by, note} each.",
        {},
        {},
    ),
    "set_quota": ActionSpec(
        "Give the principals of a pattern a quota, in place of the one that it has. {principal, "
        f"{'?, '.join(LIMITS)}?}} -> {{changed}}; 0 is no limit.",
        {"principal": _text("principal"), **{name: _limit(name) for name in LIMITS}},
        dict.fromkeys(LIMITS, 0),
    ),
    "remove_quota": ActionSpec(
        "Take the quota of a pattern away. {principal} -> {changed}.",
        {"principal": _text("principal")},
        {},
    ),
    "list_quotas": ActionSpec("List the quotas. {} -> one result per quota.", {}, {}),
    **TENANT_ACTIONS,
}
