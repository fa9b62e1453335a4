"""Decide whether a principal may do an action to a resource. Pure; decisions are cached.

The rules, in this order. An action that no rule allows is denied.

1. A caller without an identity may do nothing, and nobody may do anything to what has a longer
   name than any resource has.
2. Nobody may publish to the audit stream: only brokers write it.
3. An administrator of the cluster, by a grant or by the broker's configuration, may do everything.
4. A subject that carries other clients' requests (``>``, ``$…``, ``_INBOX``), or the brokers' own
   messages, needs rule 3.
5. A principal of a tenant may do nothing to what is not the tenant's, whatever is granted.
6. An owner of a tenant may do what the role owner may to what is the tenant's.
7. A grant on the resource allows its principal the grant's actions, and to describe the resource.

A judge uses one state of the grants and of the tenants. The owner of the judge makes another one
when the state changes, so a revocation is in force from the next decision on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker.core.access.tenants import TenantTable
from broker.model.access import (
    ANONYMOUS,
    AUDIT_STREAM,
    EVERYBODY,
    NAME_CHARS_MAX,
    OWN_PREFIX,
    RESOURCE_CHARS_MAX,
    AccessState,
    Action,
    Grant,
    Resource,
    actions_of_role,
)
from broker.model.subjects import covers, is_shared, overlap
from broker.model.tenant import Tenant

REMEMBERED_MAX: Final = 65_536  # decisions of one judge


@dataclass(frozen=True, slots=True)
class Allowed:
    """The principal may do the action."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The principal may not do the action; the caller and the audit get the reason."""

    reason: str


Decision = Allowed | Denied
ALLOWED: Final = Allowed()
_NOBODY: Final = Denied("the call has no identity")


class Judge:
    """Decides by one state of the grants. Any thread: two threads may compute the same answer."""

    def __init__(
        self,
        state: AccessState | None,
        admins: Iterable[str] = (),
        tenants: Iterable[Tenant] = (),
        brokers_subjects: Sequence[str] = (),
    ) -> None:
        """``admins`` are principals that may do everything, whatever is granted.

        ``brokers_subjects`` are patterns of the subjects that brokers use among themselves.
        """
        self._tenants = TenantTable(tenants)
        self._brokers_subjects = brokers_subjects
        granted = () if state is None else state.grants
        self._admins = (frozenset(admins) - {ANONYMOUS}) | {
            one.principal for one in granted if one.kind == "cluster" and "admin" in one.actions
        }
        self._grants: dict[str, list[Grant]] = {}
        for one in granted:
            self._grants.setdefault(one.principal, []).append(one)
        self._remembered = lru_cache(REMEMBERED_MAX)(self._decide)

    def decide(
        self,
        principal: str,
        action: Action,
        resource: Resource,
        call: str = "",  # noqa: ARG002 - grants do not tell calls apart; a policy does
    ) -> Decision:
        """Return whether ``principal`` may do ``action`` to ``resource``, by whatever call."""
        decide = self._remembered if may_be_remembered(resource) else self._decide
        return decide(principal, action, resource)

    def consumes_some(
        self,
        principal: str,
        streams: Iterable[Resource],  # noqa: ARG002 - grants tell; a policy has to be asked of each
    ) -> bool:
        """Tell whether ``principal`` may consume any stream, which need not exist."""
        if self._administers(principal) or self._tenants.is_owner(principal):
            return True
        granted = self._of(principal)
        return any(one.kind == "stream" and "consume" in one.actions for one in granted)

    def who_can(self, action: Action, resource: Resource) -> list[str]:
        """Return the principals that may do the action, sorted; ``*`` stands for everybody."""
        known = self._admins | self._grants.keys() | self._tenants.owners
        return sorted(one for one in known if self.decide(one, action, resource) is ALLOWED)

    def _decide(self, principal: str, action: Action, resource: Resource) -> Decision:
        fixed = fixed_rule(
            principal,
            action,
            resource,
            administers=self._administers,
            tenants=self._tenants,
            brokers_subjects=self._brokers_subjects,
        )
        if fixed is not None:
            return fixed
        for grant in self._of(principal):
            if (action in grant.actions or action == "describe") and reaches(grant, resource):
                return ALLOWED
        return Denied(f"no grant lets {principal!r} {action} {resource}")

    def _administers(self, principal: str) -> bool:
        return principal in self._admins or EVERYBODY in self._admins

    def _of(self, principal: str) -> list[Grant]:
        own, shared = self._grants.get(principal, []), self._grants.get(EVERYBODY, [])
        return own + shared if principal != EVERYBODY else own


def fixed_rule(
    principal: str,
    action: Action,
    resource: Resource,
    *,
    administers: Callable[[str], bool],
    tenants: TenantTable,
    brokers_subjects: Sequence[str],
) -> Decision | None:
    """Return the decision of rules 1 to 6; None if they leave it to grants or a policy."""
    if principal == ANONYMOUS:
        return _NOBODY
    if len(resource.name) > RESOURCE_CHARS_MAX:  # before patterns are compared with its words
        return Denied(
            f"{resource} has {len(resource.name)} characters: no name has more than "
            f"{RESOURCE_CHARS_MAX}, so nobody may do anything to it"
        )
    if action == "publish" and resource.kind == "stream" and resource.name == AUDIT_STREAM:
        return Denied("only brokers write to the audit stream")
    if administers(principal):
        return ALLOWED
    if resource.kind == "subject" and is_shared(resource.name):
        return Denied(
            f"{resource} may carry other clients' requests, so only administrators may use it"
        )
    if resource.kind == "subject" and any(overlap(one, resource.name) for one in brokers_subjects):
        return Denied(f"{resource} may carry the brokers' own messages, so only administrators may")
    tenant = tenants.of(principal)
    if tenant is None:
        return None
    if not tenant.has(resource):
        return Denied(
            f"{principal!r} is of tenant {tenant.name!r}, and {resource} is not: no grant reaches "
            "beyond a tenant"
        )
    if tenants.is_owner(principal) and action in actions_of_role("owner", resource.kind):
        return ALLOWED
    return None


def may_be_remembered(resource: Resource) -> bool:
    """Tell whether a judge may keep a decision: callers choose the names, and thousands fit."""
    return len(resource.name) <= NAME_CHARS_MAX and resource.name.isascii()


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
