"""Decide by a policy that is kept in files, in place of the grants. Pure; decisions are cached.

A policy answers one question: may this subject do this act to this object? A decision asks it in
two languages, and one yes allows. In Headwater's words the object is ``stream:orders`` and the act
``publish``. In Liftbridge's words, which are those of its own policy files, the object is
``orders`` and the act the name of the call in its API, ``Publish``.

The rules that no grant can change (``decision.fixed_rule``) hold here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from broker.core.access.decision import (
    ALLOWED,
    REMEMBERED_MAX,
    Decision,
    Denied,
    fixed_rule,
    may_be_remembered,
)
from broker.core.access.doors import LIFTBRIDGE
from broker.core.access.tenants import TenantTable
from broker.model.access import ANONYMOUS, CLUSTER, Action, Kind, Resource
from broker.model.tenant import Tenant
from broker.ports.access import Policy

# The call of Liftbridge's API that stands for an action, where the call itself is another one.
_LIFTBRIDGE_CALL: Final[dict[tuple[Kind, Action], str]] = {
    ("stream", "publish"): "Publish",
    ("stream", "consume"): "Subscribe",
    ("stream", "create"): "CreateStream",
    ("stream", "delete"): "DeleteStream",
    ("stream", "describe"): "FetchPartitionMetadata",
    ("subject", "publish"): "PublishToSubject",
    ("group", "consume"): "JoinConsumerGroup",
}
_INCLUDE_DESCRIBE: Final[tuple[Action, ...]] = ("consume", "publish")
_EVERY_STREAM: Final = ("*", "FetchMetadata")  # as Liftbridge asks for the list of streams
_ADMINISTERS: Final = (f"cluster:{CLUSTER}", "admin")

Question = tuple[str, str]  # object, act


class PolicyJudge:
    """Decides by one state of a policy. Any thread: two threads may compute the same answer."""

    def __init__(
        self,
        policy: Policy,
        admins: Iterable[str] = (),
        tenants: Iterable[Tenant] = (),
        brokers_subjects: Sequence[str] = (),
    ) -> None:
        """``admins`` are principals that may do everything, whatever the policy says.

        ``brokers_subjects`` are patterns of the subjects that brokers use among themselves.
        """
        self._policy = policy
        self._brokers_subjects = brokers_subjects
        self._tenants = TenantTable(tenants)
        self._admins = frozenset(admins) - {ANONYMOUS}
        self._remembered = lru_cache(REMEMBERED_MAX)(self._decide)

    def decide(
        self, principal: str, action: Action, resource: Resource, call: str = ""
    ) -> Decision:
        """Return whether ``principal`` may do ``action`` to ``resource``, by a call of a door."""
        decide = self._remembered if may_be_remembered(resource) else self._decide
        return decide(principal, action, resource, call)

    def consumes_some(self, principal: str, streams: Iterable[Resource]) -> bool:
        """Tell whether ``principal`` may consume one of the streams, or administers all."""
        if principal in self._admins or self._tenants.is_owner(principal):
            return True
        return any(self.decide(principal, "consume", one) is ALLOWED for one in streams)

    def who_can(self, action: Action, resource: Resource) -> list[str]:
        """Return the principals that may do the action, of those that are named, sorted."""
        known = self._admins | self._policy.principals() | self._tenants.owners
        return sorted(one for one in known if self.decide(one, action, resource) is ALLOWED)

    def _decide(self, principal: str, action: Action, resource: Resource, call: str) -> Decision:
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
        if action == "attach":
            return ALLOWED  # as in Liftbridge, who may create the stream chooses its subject
        if any(self._allows(principal, one) for one in _questions(action, resource, call)):
            return ALLOWED
        return Denied(f"the policy does not let {principal!r} {action} {resource}")

    def _administers(self, principal: str) -> bool:
        return principal in self._admins or self._allows(principal, _ADMINISTERS)

    def _allows(self, principal: str, question: Question) -> bool:
        return self._policy.allows(principal, *question)


def _questions(action: Action, resource: Resource, call: str) -> Iterator[Question]:
    """Yield the questions of which one has to be answered with yes."""
    if action == "describe" and resource.kind == "stream" and not call:  # in a list of streams
        yield _EVERY_STREAM
    own = f"{resource.kind}:{resource.name}"
    yield own, action
    in_liftbridge = _liftbridge_call(action, resource.kind, call)
    if in_liftbridge:
        yield resource.name, in_liftbridge
    if action != "describe" or call in LIFTBRIDGE:
        return
    for other in _INCLUDE_DESCRIBE:
        if (resource.kind, other) in _LIFTBRIDGE_CALL:
            yield own, other
            yield resource.name, _LIFTBRIDGE_CALL[resource.kind, other]


def _liftbridge_call(action: Action, kind: Kind, call: str) -> str | None:
    """Return the act that Liftbridge would ask of this resource; None if it has none."""
    if call == "PublishAsync":
        return "Publish"  # Liftbridge asks so
    row = LIFTBRIDGE.get(call)
    if row is not None and row.asks and row.asks[0].kind == kind:
        return call
    return _LIFTBRIDGE_CALL.get((kind, action))
