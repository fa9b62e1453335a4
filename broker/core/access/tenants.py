"""Which tenant a principal is of, and whether two tenants can be told apart. Pure.

The rule that keeps tenants apart is in ``decision.fixed_rule``.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.access.principal_table import PrincipalTable
from broker.model.quota import DEFAULT
from broker.model.subjects import any_overlap
from broker.model.tenant import Tenant


class TenantTable:
    """Finds the tenant of a principal. Any thread."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        rows = tuple(tenants)
        owned = {one: row for row in rows for one in row.owners}
        self.owners = frozenset(owned)  # patterns of principals
        self._owned = PrincipalTable(owned)
        self._of = PrincipalTable({one: row for row in rows for one in _patterns(row)})

    def of(self, principal: str) -> Tenant | None:
        """Return the tenant of a principal; None: the principal is of no tenant."""
        return self._of.of(principal)

    def is_owner(self, principal: str) -> bool:
        """Tell whether a principal owns what its tenant has."""
        return self._owned.of(principal) is not None


def shared_with(wanted: Tenant, others: Iterable[Tenant]) -> tuple[Tenant, str] | None:
    """Return another tenant that has a principal or a subject of ``wanted``, and a pattern of it.

    None if there is none. A stream with several partitions listens below its subject, too, so what
    is one word below a tenant's subject counts as the tenant's.
    """
    subjects = _with_partitions(wanted.subjects)
    first_words = {one.partition(".")[0] for one in subjects}
    for other in others:
        for pattern in _patterns(other):
            if any(_same_principals(pattern, one) for one in _patterns(wanted)):
                return other, pattern
        for pattern in other.subjects:
            if pattern.partition(".")[0] in first_words and any_overlap(
                subjects, _with_partitions((pattern,))
            ):
                return other, pattern
    return None


def _patterns(tenant: Tenant) -> tuple[str, ...]:
    return tenant.owners + tenant.principals


def _same_principals(first: str, second: str) -> bool:
    """Tell whether some principal has both patterns."""
    one, other = first.removesuffix(DEFAULT), second.removesuffix(DEFAULT)
    return (
        one == other
        or (first != one and other.startswith(one))
        or (second != other and one.startswith(other))
    )


def _with_partitions(subjects: Iterable[str]) -> list[str]:
    found = []
    for one in subjects:
        found.append(one)
        if not one.endswith(">"):
            found.append(f"{one}.*")
    return found
