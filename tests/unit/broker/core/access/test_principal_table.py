"""What belongs to a principal by a pattern."""

from __future__ import annotations

from broker.core.access.principal_table import PrincipalTable


def test_the_longest_pattern_applies() -> None:
    """A name before each beginning of names, and the star for the others."""
    table = PrincipalTable({one: one for one in ("shop", "sh*", "shop-*", "*")})
    found = {one: table.of(one) for one in ("shop", "shop-", "shop-a", "shape", "ann", "")}
    assert found == {
        "shop": "shop", "shop-": "shop-*", "shop-a": "shop-*", "shape": "sh*", "ann": "*", "": "*",
    }  # fmt: skip
    without = PrincipalTable({"shop": 1, "sh*": 2})
    assert [without.of(one) for one in ("shop", "s", "sh", "ann")] == [1, None, 2, None]
