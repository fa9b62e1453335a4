"""Who may do what: principals, actions, resources, grants and tokens. Values of the metadata.

A **principal** is the name of somebody who has proved who they are. A **grant** lets one principal
do some actions on the resources that a pattern names. A pattern is a name, or the beginning of
names followed by ``*``; for a subject it is a NATS pattern. Streams whose names begin with ``__``
are the cluster's own: only a pattern that begins with ``__`` names them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from broker.errors import InvalidRequestError

Action = Literal[
    "describe", "publish", "consume", "create", "alter", "delete", "tier", "erase", "elect",
    "restore", "attach", "admin",
]  # fmt: skip
Kind = Literal["stream", "group", "subject", "cluster"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

# What can be granted on a resource of each kind.
ACTIONS_OF: Final[Mapping[Kind, tuple[Action, ...]]] = {
    "stream": (
        "describe", "publish", "consume", "create", "alter", "delete", "tier", "erase", "elect",
        "restore",
    ),
    "group": ("describe", "consume", "alter", "delete"),
    "subject": ("attach", "publish"),
    "cluster": ("describe", "admin"),
}  # fmt: skip

# Names for what is granted together, by kind of resource.
ROLES: Final[Mapping[str, Mapping[Kind, tuple[Action, ...]]]] = {
    "reader": {"stream": ("describe", "consume"), "group": ("describe", "consume")},
    "writer": {"stream": ("describe", "publish"), "subject": ("publish",)},
    "owner": {
        "stream": (
            "describe", "publish", "consume", "create", "alter", "delete", "tier", "erase",
        ),
        "group": ("describe", "consume", "alter", "delete"),
        "subject": ("attach", "publish"),
    },
    "operator": {"cluster": ("describe",), "stream": ("describe", "alter", "tier", "restore")},
    "admin": {"cluster": ("describe", "admin")},
}  # fmt: skip

AUDIT_STREAM: Final = "__audit"  # written by brokers only
NAME_CHARS_MAX: Final = 256
RESOURCE_CHARS_MAX: Final = 1024  # of a name that a call asks for; beyond it, nobody may
TOLD_BYTES_MAX: Final = 1024
_BEGINNING_CHARS: Final = 64
_ESCAPE_BYTES_MAX: Final = 12  # of one character in JSON
_NAME_MARKS: Final = frozenset("._-@:/=+, ")
CLUSTER: Final = "cluster"  # the name of the one resource of its kind
ANONYMOUS: Final = ""  # the principal of a caller who has proved nothing
EVERYBODY: Final = "*"  # a grant to it is a grant to each principal
OWN_PREFIX: Final = "__"  # names of the cluster's own streams begin so


@dataclass(frozen=True, slots=True)
class Resource:
    """What an action is done to. An empty namespace means: not known, or none."""

    kind: Kind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return "the cluster" if self.kind == "cluster" else f"{self.kind} {told(self.name)!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Lets a principal do actions on what a pattern names, in one namespace or in all (``""``)."""

    principal: str
    kind: Kind
    pattern: str
    actions: tuple[Action, ...]  # sorted
    namespace: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of the grant's row in the metadata: grants with equal keys are one row."""
        return (self.principal, self.kind, self.namespace, self.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """A static token in the metadata, which has the digest of its secret, not the secret."""

    digest: str  # SHA-256 of the secret part, hexadecimal
    principal: str
    created_us: int
    expires_us: int = 0  # 0: never
    created_by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call: the principal, how it was proved, and from where the call comes."""

    principal: str = ANONYMOUS
    via: str = ""  # token, jwt, certificate, owner; "": nothing was proved
    peer: str = ""  # the address, as the door knows it
    token_id: str = ""  # of a static token, which may be revoked
    digest: str = ""  # of that token
    expires_us: int = 0  # when the proof ends; 0: never
    key: str = ""  # that has signed the proof, which is good while the key is


NOBODY: Final = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessState:
    """Grants and tokens, as every broker of the cluster has them."""

    grants: tuple[Grant, ...] = ()  # sorted by their keys, which differ
    tokens: Mapping[str, TokenRow] = field(default_factory=dict)  # by id
    version: int = 0  # grows with every change
    weight: int = 0  # of all of it


def told(text: str, bytes_max: int = TOLD_BYTES_MAX) -> str:
    """Return a text as notes and errors tell it: whole, or its beginning, size and digest.

    The result has at most ``bytes_max`` bytes as JSON, which are 1024 or more.
    """
    if len(text) * _ESCAPE_BYTES_MAX <= bytes_max:
        return text
    if len(text) <= bytes_max and len(json.dumps(text)) - len('""') <= bytes_max:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:_BEGINNING_CHARS]}... ({len(text)} characters, SHA-256 {digest})"


def check_name(name: str, what: str) -> str:
    """Return the name of a principal, or a pattern, if it is well-formed.

    ``what`` names the field in the error.

    Raises:
        InvalidRequestError: it is empty, too long, or has characters that look alike in a log.
    """
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= NAME_CHARS_MAX
        or not all((one.isalnum() and one.isascii()) or one in _NAME_MARKS for one in name)
        or name.strip() != name
    ):
        raise InvalidRequestError(
            f"{what} must be 1 to {NAME_CHARS_MAX} characters of A-Z a-z 0-9 . _ - @ : / = + "
            "and, inside, commas and spaces",
            field=what,
        )
    return name


def check_grant(grant: Grant) -> Grant:
    """Return the grant if it is well-formed.

    Raises:
        InvalidRequestError: a name is malformed, or resources of this kind lack the action.
    """
    if grant.principal != EVERYBODY:
        check_name(grant.principal, "principal")
    _check_pattern(grant)
    if grant.namespace:
        check_name(grant.namespace, "namespace")
    possible = ACTIONS_OF[grant.kind]
    for action in grant.actions:
        if action not in possible:
            raise InvalidRequestError(
                f"a {grant.kind} has no action {action!r}; its actions are {', '.join(possible)}",
                field="actions",
            )
    if not grant.actions or list(grant.actions) != sorted(set(grant.actions)):
        raise InvalidRequestError(
            "a grant must have at least one action, and its actions sorted, each once",
            field="actions",
        )
    return grant


def _check_pattern(grant: Grant) -> None:
    pattern = grant.pattern
    if grant.kind == "cluster":
        if pattern != CLUSTER:
            raise InvalidRequestError(
                f"the pattern of a grant on the cluster must be {CLUSTER!r}", field="pattern"
            )
        return
    if grant.kind == "subject":
        if not pattern or len(pattern) > NAME_CHARS_MAX or not pattern.isprintable():
            raise InvalidRequestError(
                "the pattern of a subject must be a NATS subject; * and > are allowed",
                field="pattern",
            )
        return
    stem = pattern.removesuffix("*")
    if "*" in stem or not pattern:
        raise InvalidRequestError(
            f"{pattern[:NAME_CHARS_MAX]!r} is no pattern: it is a name, or the beginning of names "
            "with * behind it",
            field="pattern",
        )
    if stem:
        check_name(stem, "pattern")


def actions_of_role(role: str, kind: Kind) -> tuple[Action, ...]:
    """Return what a role may do to resources of a kind, sorted; () if nothing.

    Raises:
        InvalidRequestError: there is no such role.
    """
    if role not in ROLES:
        raise InvalidRequestError(
            f"there is no role {role[:64]!r}; the roles are {', '.join(ROLES)}", field="role"
        )
    return tuple(sorted(ROLES[role].get(kind, ())))
