"""The Flight actions about tenants: their fields and the bounds of each.

Part of :data:`broker.codec.flight.access_actions.ACCESS_ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.codec.flight.operations import ActionSpec, Check
from broker.codec.flight.protocol import refuse_unknown, short_text, whole_number
from broker.errors import InvalidRequestError
from broker.model.data_key import KEY_NAME_CHARS_MAX
from broker.model.quota import LIMITS, RATE_MAX
from broker.model.tenant import COUNTS, PATTERNS_MAX, SHARES

_TEXT_BYTES_MAX: Final = 256


def _name(value: object) -> str:
    return short_text(value, "name", bytes_max=_TEXT_BYTES_MAX)


def _patterns(field: str) -> Check:
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > PATTERNS_MAX:
            raise InvalidRequestError(
                f"{field} must be a list of at most {PATTERNS_MAX} patterns", field=field
            )
        found = {short_text(one, field, bytes_max=_TEXT_BYTES_MAX) for one in value}
        return tuple(sorted(found))

    return check


def _limit(field: str) -> Check:
    return lambda value: whole_number(value, field, low=0, high=RATE_MAX)


def _wrapping_key(value: object) -> str:
    if value == "":
        return ""
    return short_text(value, "wrapping_key", bytes_max=KEY_NAME_CHARS_MAX)


_LISTS: Final = ("owners", "principals", "subjects")
_NUMBERS: Final = (*LIMITS, *COUNTS, *SHARES)
_FIELDS: Final[Mapping[str, Check]] = {
    **{name: _patterns(name) for name in _LISTS},
    **{name: _limit(name) for name in _NUMBERS},
    "wrapping_key": _wrapping_key,
}


def _changes(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise InvalidRequestError(
            f"changes must be an object with at least one of {', '.join(_FIELDS)}", field="changes"
        )
    refuse_unknown(value, list(_FIELDS), what="a change of a tenant")
    return {name: _FIELDS[name](one) for name, one in value.items()}


TENANT_ACTIONS: Final[Mapping[str, ActionSpec]] = {
    "create_tenant": ActionSpec(
        f"Create a tenant. {{name, {'?, '.join(_FIELDS)}?}} -> {{changed}}; the streams and groups "
        "whose names begin with NAME- are the tenant's.",
        {"name": _name, **_FIELDS},
        {**dict.fromkeys(_LISTS, ()), **dict.fromkeys(_NUMBERS, 0), "wrapping_key": ""},
    ),
    "alter_tenant": ActionSpec(
        f"Change a tenant. {{name, changes: {{{'?, '.join(_FIELDS)}?}}}} -> {{changed}}.",
        {"name": _name, "changes": _changes},
        {},
    ),
    "delete_tenant": ActionSpec(
        "Delete a tenant without streams and groups. {name} -> {changed}.", {"name": _name}, {}
    ),
    "list_tenants": ActionSpec(
        "List the tenants: all to administrators, their own to others. {} -> one result per "
        "tenant.",
        {},
        {},
    ),
}
