"""Names and patterns of tenants, and what is a tenant's."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import InvalidRequestError
from broker.model.access import CLUSTER, Resource
from broker.model.tenant import PATTERNS_MAX, Tenant, check_tenant, tenant_of

SHOP = Tenant(name="shop", owners=("ann",), principals=("shop-*",), subjects=("pay.in", "shop.>"))


@pytest.mark.parametrize(
    ("resource", "has"),
    [
        (Resource("stream", "shop-in"), True),
        (Resource("stream", "shop-"), True),
        (Resource("stream", "shop"), False),
        (Resource("stream", "shops-in"), False),
        (Resource("stream", "__audit"), False),
        (Resource("group", "shop-g"), True),
        (Resource("group", "g"), False),
        (Resource("subject", "shop.in"), True),
        (Resource("subject", "shop.*"), True),
        (Resource("subject", "shop"), False),
        (Resource("subject", "pay.in"), True),
        (Resource("subject", "pay.*"), False),
        (Resource("subject", ">"), False),
        (Resource("cluster", CLUSTER), False),
    ],
)
def test_what_is_a_tenants(resource: Resource, has: bool) -> None:
    """Streams and groups by their names, subjects by its patterns, the cluster never."""
    assert check_tenant(SHOP).has(resource) is has


def test_a_name_is_of_one_tenant() -> None:
    """The text before the first dash decides, so no tenant is inside of another one."""
    tenants = {one: Tenant(name=one) for one in ("shop", "sh")}
    names = ("shop-in", "sh-op-in", "shop", "hr-in", "")
    found = [tenant_of(tenants, one) for one in names]
    assert found == [tenants["shop"], tenants["sh"], None, None, None]


@pytest.mark.parametrize("name", ["", "_a", "a-b", "a b", "a.b", "ä", "a" * 33, "__audit", "-"])
def test_a_bad_name_is_refused(name: str) -> None:
    """A dash would put one tenant's streams among those of another."""
    with pytest.raises(InvalidRequestError, match="name of a tenant"):
        check_tenant(Tenant(name=name))


@pytest.mark.parametrize(
    "fields",
    [
        {"owners": ("*",)},
        {"principals": ("*",)},
        {"principals": ("a*b",)},
        {"owners": ("",)},
        {"owners": ("b", "a")},
        {"owners": ("a", "a")},
        {"subjects": tuple(f"s{n:02}" for n in range(PATTERNS_MAX + 1))},
        {"subjects": ("a..b",)},
        {"subjects": ("a.>.b",)},
        {"subjects": ("",)},
        {"subjects": (">",)},
        {"subjects": ("*.in",)},
        {"subjects": ("_INBOX.x",)},
        {"subjects": ("$SYS.>",)},
        {"wrapping_key": "a\nb"},
        {"wrapping_key": "a" * 2049},
    ],
)
def test_a_bad_pattern_is_refused(fields: dict[str, Any]) -> None:
    """Everybody is not of one tenant, and other clients' requests are nobody's."""
    with pytest.raises(InvalidRequestError):
        check_tenant(Tenant(name="shop", **fields))
