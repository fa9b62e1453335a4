"""Tenants are kept apart: what their principals reach, and which tenants cannot be told apart."""

from __future__ import annotations

import pytest

from broker.core.access.decision import ALLOWED, Denied, Judge
from broker.core.access.policy import PolicyJudge
from broker.core.access.tenants import shared_with
from broker.model.access import (
    ACTIONS_OF,
    CLUSTER,
    EVERYBODY,
    AccessState,
    Action,
    Grant,
    Kind,
    Resource,
    actions_of_role,
)
from broker.model.tenant import Tenant

SHOP = Tenant(name="shop", owners=("ann",), principals=("shop-*",), subjects=("shop.>",))
HR = Tenant(name="hr", owners=("hugo",), subjects=("hr.>",))
TENANTS = (SHOP, HR)
# What is the shop's, what is another tenant's, and what is of no tenant, by kind.
OWN: dict[Kind, str] = {"stream": "shop-in", "group": "shop-g", "subject": "shop.in"}
FOREIGN: list[Resource] = [
    Resource("stream", "hr-pay"),
    Resource("stream", "orders"),
    Resource("stream", "__audit"),
    Resource("group", "hr-g"),
    Resource("subject", "hr.pay"),
    Resource("subject", "orders"),
    Resource("cluster", CLUSTER),
]


def everything(principal: str) -> list[Grant]:
    """Return grants of everything that can be granted, but for the administration."""
    granted: list[tuple[Kind, str, tuple[Action, ...]]] = [
        ("stream", "*", ACTIONS_OF["stream"]),
        ("stream", "__*", ACTIONS_OF["stream"]),
        ("group", "*", ACTIONS_OF["group"]),
        ("subject", ">", ACTIONS_OF["subject"]),
        ("cluster", CLUSTER, ("describe",)),
    ]
    return [
        Grant(principal=principal, kind=kind, pattern=pattern, actions=actions)
        for kind, pattern, actions in granted
    ]


def judge(*grants: Grant, admins: tuple[str, ...] = ()) -> Judge:
    """Return a judge of both tenants."""
    return Judge(AccessState(grants=grants), admins, TENANTS)


@pytest.mark.parametrize("who", ["ann", "shop-reader"])
@pytest.mark.parametrize("resource", FOREIGN, ids=str)
def test_no_grant_leads_out_of_a_tenant(who: str, resource: Resource) -> None:
    """Not one to the principal, and not one to everybody."""
    wide = judge(*everything(who), *everything(EVERYBODY))
    for action in ACTIONS_OF[resource.kind]:
        assert isinstance(wide.decide(who, action, resource), Denied)
        if action != "admin" and (action, resource.name) != ("publish", "__audit"):
            assert wide.decide("of-no-tenant", action, resource) is ALLOWED


@pytest.mark.parametrize("kind", OWN)
def test_an_owner_needs_no_grant_and_others_do(kind: Kind) -> None:
    """The owner has the role owner in the tenant; others what was granted there."""
    one, mine = judge(), Resource(kind, OWN[kind])
    for action in ACTIONS_OF[kind]:
        expected = action in actions_of_role("owner", kind)
        assert (one.decide("ann", action, mine) is ALLOWED) is expected
        assert isinstance(one.decide("shop-reader", action, mine), Denied)
        granted = Grant(principal="shop-reader", kind=kind, pattern=OWN[kind], actions=(action,))
        assert judge(granted).decide("shop-reader", action, mine) is ALLOWED
        assert isinstance(judge(granted).decide("hugo", action, mine), Denied)


def test_a_refusal_names_the_callers_own_tenant_only() -> None:
    """Whether the other stream is there, and whose it is, the caller does not learn."""
    found = judge().decide("ann", "consume", Resource("stream", "hr-pay"))
    assert found == Denied(
        "'ann' is of tenant 'shop', and stream 'hr-pay' is not: no grant reaches beyond a tenant"
    )


def test_an_administrator_is_above_tenants() -> None:
    """By the configuration or a grant, though a pattern of the tenant names the principal."""
    one = judge(
        Grant(principal="shop-root", kind="cluster", pattern=CLUSTER, actions=("admin",)),
        admins=("ann",),
    )
    for who in ("ann", "shop-root"):
        assert one.decide(who, "delete", Resource("stream", "hr-pay")) is ALLOWED


def test_who_can_names_the_owners() -> None:
    """Beside those of grants that lead there."""
    reader = Grant(principal="shop-r", kind="stream", pattern="shop-in", actions=("consume",))
    outside = Grant(principal="hugo", kind="stream", pattern="*", actions=("consume",))
    one = judge(reader, outside, admins=("root",))
    assert one.who_can("consume", Resource("stream", "shop-in")) == ["ann", "root", "shop-r"]


class _AllowsAll:
    """A policy without bounds, except that nobody administers."""

    def allows(self, principal: str, resource: str, act: str) -> bool:
        del principal, resource
        return act != "admin"

    def principals(self) -> frozenset[str]:
        return frozenset({"hugo"})


def test_a_policy_in_files_does_not_lead_out_of_a_tenant_either() -> None:
    """Though a policy does not look at subjects, a tenant's owner attaches to its own only."""
    one = PolicyJudge(_AllowsAll(), tenants=TENANTS)
    asked: list[tuple[str, Action, Resource, bool]] = [
        ("ann", "attach", Resource("subject", "shop.in"), True),
        ("ann", "attach", Resource("subject", "hr.pay"), False),
        ("ann", "consume", Resource("stream", "shop-in"), True),
        ("hugo", "consume", Resource("stream", "shop-in"), False),
        ("of-no-tenant", "consume", Resource("stream", "shop-in"), True),
    ]
    for who, action, resource, allowed in asked:
        assert (one.decide(who, action, resource) is ALLOWED) is allowed, (who, resource)
    assert one.who_can("consume", Resource("stream", "shop-in")) == ["ann"]


@pytest.mark.parametrize(
    ("wanted", "shared"),
    [
        (Tenant(name="x", owners=("ann",)), "ann"),
        (Tenant(name="x", owners=("an*",)), "ann"),
        (Tenant(name="x", principals=("shop-a",)), "shop-*"),
        (Tenant(name="x", principals=("sh*",)), "shop-*"),
        (Tenant(name="x", principals=("shop-a*",)), "shop-*"),
        (Tenant(name="x", principals=("shop",), subjects=("shops",)), None),
        (Tenant(name="x", owners=("annie",)), None),
        (Tenant(name="x", subjects=("shop.in",)), "shop.>"),
        (Tenant(name="x", subjects=("shop.*",)), "shop.>"),
        (Tenant(name="x", subjects=("shop",)), "shop.>"),  # a second partition is on shop.1
        (Tenant(name="x", subjects=("other.>",)), None),
    ],
)
def test_a_principal_and_a_subject_are_of_one_tenant(wanted: Tenant, shared: str | None) -> None:
    """The patterns of two tenants do not meet."""
    found = shared_with(wanted, TENANTS)
    assert found == (None if shared is None else (SHOP, shared))


def test_subjects_of_partitions_are_of_one_tenant() -> None:
    """A stream on pay with two partitions listens on pay.1, too."""
    wide, narrow = Tenant(name="a", subjects=("pay",)), Tenant(name="b", subjects=("pay.1",))
    assert shared_with(wide, [narrow]) == (narrow, "pay.1")
    assert shared_with(narrow, [wide]) == (wide, "pay")
