"""Apply the commands about grants and tokens. Pure.

Grants with equal principal, kind, namespace and pattern are one row. The rows are sorted, so that
equal logs give equal text. Each change makes a new ``AccessState`` with a higher version. So a
cache of decisions is valid as long as the state is the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from broker.core.access.static_tokens import is_digest, is_token_id
from broker.core.metadata.access_commands import (
    AccessCommand,
    CreateToken,
    GrantAccess,
    RevokeAccess,
    RevokeToken,
)
from broker.core.metadata.outcome import Applied, Rejected, refused_level
from broker.core.metadata.size import refused_growth, weight_of_access
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, MetadataState
from broker.errors import HeadwaterError, InvalidRequestError, MetadataFullError
from broker.model.access import AccessState, Grant, TokenRow, check_grant, check_name

GRANTS_MAX: Final = 10_000
GRANTS_OF_PRINCIPAL_MAX: Final = 256
TOKENS_MAX: Final = 10_000
NOTE_CHARS_MAX: Final = 256

_Key = tuple[str, str, str, str]


def apply_access(state: MetadataState, command: AccessCommand) -> Applied:
    """Return the next state and the reply of a command about grants or tokens."""
    low = refused_level(state, FEATURE_LEVEL_ACCESS, "a grant or a token")
    if low is not None:
        return state, Rejected(low)
    access = state.access or AccessState()
    try:
        after = _changed(access, command)
    except HeadwaterError as refused:
        return state, Rejected(refused)
    if after is access:
        return state, {"changed": False}
    weight = weight_of_access(after)
    total = state.weight + weight - access.weight
    if isinstance(command, GrantAccess | CreateToken):
        full = refused_growth(total, command.weight_max)
        if full is not None:
            return state, Rejected(full)
    after = replace(after, version=access.version + 1, weight=weight)
    return replace(state, access=after, weight=total), {"changed": True}


def _changed(access: AccessState, command: AccessCommand) -> AccessState:
    match command:
        case GrantAccess():
            return _granted(access, command)
        case RevokeAccess():
            return _revoked(access, command)
        case CreateToken():
            return _with_token(access, command)
        case RevokeToken():
            return _without_token(access, command)


def _granted(access: AccessState, command: GrantAccess) -> AccessState:
    rows: dict[_Key, Grant] = {one.key: one for one in access.grants}
    before = dict(rows)
    for wanted in command.grants:
        check_grant(wanted)
        present = rows.get(wanted.key)
        actions = set(wanted.actions) | set(() if present is None else present.actions)
        rows[wanted.key] = replace(wanted, actions=tuple(sorted(actions)))
    if rows == before:
        return access
    if len(rows) > GRANTS_MAX:
        raise MetadataFullError(
            f"a cluster has at most {GRANTS_MAX} grants: revoke some, or use patterns with *",
            limit=GRANTS_MAX,
        )
    for principal in {one.principal for one in command.grants}:
        if sum(one.principal == principal for one in rows.values()) > GRANTS_OF_PRINCIPAL_MAX:
            raise MetadataFullError(
                f"a principal has at most {GRANTS_OF_PRINCIPAL_MAX} grants; {principal!r} would "
                "have more: revoke some, or use patterns with *",
                limit=GRANTS_OF_PRINCIPAL_MAX,
            )
    return _with_rows(access, rows)


def _revoked(access: AccessState, command: RevokeAccess) -> AccessState:
    rows: dict[_Key, Grant] = {one.key: one for one in access.grants}
    before = dict(rows)
    for unwanted in command.grants:
        present = rows.get(unwanted.key)
        if present is None:
            continue
        left = tuple(one for one in present.actions if one not in unwanted.actions)
        if left:
            rows[unwanted.key] = replace(present, actions=left)
        else:
            del rows[unwanted.key]
    return access if rows == before else _with_rows(access, rows)


def _with_rows(access: AccessState, rows: Mapping[_Key, Grant]) -> AccessState:
    return replace(access, grants=tuple(rows[key] for key in sorted(rows)))


def _with_token(access: AccessState, command: CreateToken) -> AccessState:
    if not is_token_id(command.token_id) or not is_digest(command.digest):
        raise InvalidRequestError(
            "token_id or digest does not have the form of a token's id or digest", field="token_id"
        )
    check_name(command.principal, "principal")
    for text in (command.note, command.created_by):
        if len(text) > NOTE_CHARS_MAX or (text and not text.isprintable()):
            raise InvalidRequestError(
                f"note and created_by must have at most {NOTE_CHARS_MAX} printable characters",
                field="note",
            )
    if command.expires_us < 0 or command.created_us < 0:
        raise InvalidRequestError(
            "expires_us and created_us must not be negative", field="expires_us"
        )
    present = access.tokens.get(command.token_id)
    if present is not None:
        if (present.digest, present.principal) == (command.digest, command.principal):
            return access
        raise InvalidRequestError(
            f"another token has the id {command.token_id}: create a token with another id",
            field="token_id",
        )
    if len(access.tokens) >= TOKENS_MAX:
        raise MetadataFullError(
            f"a cluster has at most {TOKENS_MAX} tokens: revoke some", limit=TOKENS_MAX
        )
    row = TokenRow(
        digest=command.digest,
        principal=command.principal,
        created_us=command.created_us,
        expires_us=command.expires_us,
        created_by=command.created_by,
        note=command.note,
    )
    return replace(access, tokens={**access.tokens, command.token_id: row})


def _without_token(access: AccessState, command: RevokeToken) -> AccessState:
    if command.token_id not in access.tokens:
        return access
    left = {key: one for key, one in access.tokens.items() if key != command.token_id}
    return replace(access, tokens=left)
