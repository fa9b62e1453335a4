"""May this principal do this to that resource? Pure, and quick: answers are remembered.

The rules, in their order. Nothing else lets anybody do anything:

1. A caller who has proved nothing may do nothing.
2. Nobody publishes on the audit: brokers write it.
3. Who may administer the cluster, by a grant or by the broker's configuration, may do everything.
4. A subject that other people's requests use (``>``, ``$…``, ``_INBOX``) is for rule 3 only.
5. A grant on the resource lets its principal do the grant's actions. Any of them includes to
   describe.

A judge judges by one state of the grants. Whoever holds it takes another judge when the state
changes, so a revocation is in force with the next question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.model.access import (
    ANONYMOUS,
    AUDIT_STREAM,
    EVERYBODY,
    OWN_PREFIX,
    AccessState,
    Action,
    Grant,
    Resource,
)
from broker.model.subjects import covers, is_shared

_REMEMBERED_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Allowed:
    """The principal may do it."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The principal may not do it; the reason is a sentence for the caller and for the audit."""

    reason: str


Decision = Allowed | Denied
ALLOWED: Final = Allowed()
_NOBODY: Final = Denied("the call has no identity")


class Judge:
    """Decides by one state of the grants. Any thread: two threads may compute the same answer."""

    def __init__(self, state: AccessState | None, admins: Iterable[str] = ()) -> None:
        """``admins`` are principals that may do everything, whatever is granted."""
        granted = () if state is None else state.grants
        self._admins = (frozenset(admins) - {ANONYMOUS}) | {
            one.principal for one in granted if one.kind == "cluster" and "admin" in one.actions
        }
        self._grants: dict[str, list[Grant]] = {}
        for one in granted:
            self._grants.setdefault(one.principal, []).append(one)
        self._remembered: dict[tuple[str, Action, Resource], Decision] = {}

    def decide(self, principal: str, action: Action, resource: Resource) -> Decision:
        """Return whether ``principal`` may do ``action`` to ``resource``."""
        key = (principal, action, resource)
        found = self._remembered.get(key)
        if found is None:
            found = self._decide(principal, action, resource)
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[key] = found
        return found

    def who_can(self, action: Action, resource: Resource) -> list[str]:
        """Return the principals that may do it, sorted; ``*`` for every principal."""
        known = self._admins | self._grants.keys()
        return sorted(one for one in known if self.decide(one, action, resource) is ALLOWED)

    def _decide(self, principal: str, action: Action, resource: Resource) -> Decision:
        if principal == ANONYMOUS:
            return _NOBODY
        if action == "publish" and resource.kind == "stream" and resource.name == AUDIT_STREAM:
            return Denied("only brokers write the audit")
        if self._administers(principal):
            return ALLOWED
        if resource.kind == "subject" and is_shared(resource.name):
            return Denied(
                f"{resource} may carry other people's requests, so it is for administrators only"
            )
        for grant in self._of(principal):
            if (action in grant.actions or action == "describe") and reaches(grant, resource):
                return ALLOWED
        return Denied(f"no grant lets {principal!r} {action} {resource}")

    def _administers(self, principal: str) -> bool:
        return principal in self._admins or EVERYBODY in self._admins

    def _of(self, principal: str) -> list[Grant]:
        own, shared = self._grants.get(principal, []), self._grants.get(EVERYBODY, [])
        return own + shared if principal != EVERYBODY else own


def reaches(grant: Grant, resource: Resource) -> bool:
    """Tell whether a grant is about a resource."""
    if grant.kind != resource.kind or grant.namespace not in ("", resource.namespace):
        return False
    if grant.kind == "subject":
        return covers(grant.pattern, resource.name)
    if not grant.pattern.endswith("*"):
        return grant.pattern == resource.name
    if resource.name.startswith(OWN_PREFIX) and not grant.pattern.startswith(OWN_PREFIX):
        return False
    return resource.name.startswith(grant.pattern[:-1])
