"""Tenants: parts of a cluster that are kept apart. Values of the metadata.

A tenant has the streams and consumer groups whose names begin with the tenant's name and ``-``. The
name of a tenant has no ``-``, so a stream is of one tenant at most. A principal and a subject are
of one tenant at most, too: the metadata refuses patterns that overlap those of another tenant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidRequestError
from broker.model.access import Resource
from broker.model.data_key import KEY_NAME_CHARS_MAX
from broker.model.quota import DEFAULT, LIMITS, Quota, check_limit, check_pattern
from broker.model.subjects import covers, is_pattern, is_shared

TENANTS_MAX: Final = 1_000
PATTERNS_MAX: Final = 16  # of owners, of principals and of subjects of one tenant
COUNTS: Final = ("streams_max", "partitions_max")
SHARES: Final = ("leases_max", "metadata_bytes_max")  # left out while unset: older builds
_NAME_CHARS_MAX: Final = 32
AFTER_NAME: Final = "-"
_QUOTA_MARK: Final = "#"  # no name of a principal has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who belongs to a tenant, and the subjects that are the tenant's.

    ``owners`` and ``principals`` are patterns as those of quotas. Both reach what is the tenant's
    and nothing else. Owners may do there all that the role owner may; other principals may do there
    what was granted.
    """

    name: str
    owners: tuple[str, ...] = ()  # sorted, as the next two
    principals: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()  # NATS patterns; streams of the tenant may attach to these
    # What all its principals together may use of each broker, as in ``Quota``; 0: no limit.
    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    open_calls: int = 0
    # What it may have in the cluster; 0: no limit.
    streams_max: int = 0
    partitions_max: int = 0  # of all its streams together, each counted once
    # What it may have of the cluster's leases and of its metadata; 0: a quarter.
    leases_max: int = 0
    metadata_bytes_max: int = 0
    wrapping_key: str = ""  # the key provider's name of the key that wraps its data keys

    @property
    def quota(self) -> Quota:
        """What its principals together may use of each broker. No principal has the name of it."""
        limits = {name: getattr(self, name) for name in LIMITS}
        return Quota(principal=_QUOTA_MARK + self.name, **limits)

    @property
    def has_shares(self) -> bool:
        """Tell whether a share is set, which needs a build that knows shares."""
        return any(getattr(self, name) for name in SHARES)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; shares that are not set are left out."""
        return without_unset_shares(dataclasses.asdict(self))

    @property
    def prefix(self) -> str:
        """How the names of the tenant's streams and groups begin."""
        return self.name + AFTER_NAME

    def has(self, resource: Resource) -> bool:
        """Tell whether a resource is the tenant's."""
        if resource.kind in ("stream", "group"):
            return resource.name.startswith(self.prefix)
        return resource.kind == "subject" and any(
            covers(one, resource.name) for one in self.subjects
        )


def tenant_of(tenants: Mapping[str, Tenant], name: str) -> Tenant | None:
    """Return the tenant that has a stream or group of this name; None: it is no tenant's."""
    first, mark, _ = name.partition(AFTER_NAME)
    return tenants.get(first) if mark else None


def without_unset_shares(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tenant as builds that know no shares have them, if none is set."""
    return {name: one for name, one in body.items() if one or name not in SHARES}


def check_tenant(tenant: Tenant) -> Tenant:
    """Return the tenant if it is well-formed.

    Raises:
        InvalidRequestError: a name or a pattern is malformed, there are too many patterns, or a
            number is out of its bounds.
    """
    name = tenant.name
    legal = name.isascii() and name.replace("_", "a").isalnum() and not name.startswith("_")
    if not legal or len(name) > _NAME_CHARS_MAX:
        raise InvalidRequestError(
            f"the name of a tenant must be 1 to {_NAME_CHARS_MAX} characters of A-Z a-z 0-9 _, and "
            "must not begin with _",
            field="name",
        )
    for field in ("owners", "principals", "subjects"):
        patterns = getattr(tenant, field)
        if len(patterns) > PATTERNS_MAX or list(patterns) != sorted(set(patterns)):
            raise InvalidRequestError(
                f"{field} must be sorted, each once, and at most {PATTERNS_MAX}", field=field
            )
    for pattern in (*tenant.owners, *tenant.principals):
        if check_pattern(pattern) == DEFAULT:
            raise InvalidRequestError(
                "everybody cannot be of one tenant: name principals, or beginnings of their names",
                field="principals",
            )
    for pattern in tenant.subjects:
        if not is_pattern(pattern):
            raise InvalidRequestError(
                f"{pattern[:256]!r} is not a NATS subject; * and > are allowed as words",
                field="subjects",
            )
        if is_shared(pattern):
            raise InvalidRequestError(
                f"subject {pattern!r} may carry other clients' requests, so it cannot be a "
                "tenant's: begin with a word of the tenant's own",
                field="subjects",
            )
    key = tenant.wrapping_key
    if len(key) > KEY_NAME_CHARS_MAX or not key.isprintable():
        raise InvalidRequestError(
            f"wrapping_key must be at most {KEY_NAME_CHARS_MAX} printable characters",
            field="wrapping_key",
        )
    for limit in (*LIMITS, *COUNTS, *SHARES):
        check_limit(limit, getattr(tenant, limit), low=LIMITS.get(limit, 1))
    return tenant
