"""The budget of file descriptors: what the limit of this process allows, and what each part gets.

The log's files and every door have a share of their own, so that connections never take what the
log needs. The soft limit is raised to the hard limit first, as the operating system permits.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from broker.config import BrokerConfig
from broker.errors import InvalidConfigError

SPARES: Final = 16  # held in reserve for the log; see broker/adapters/disk/files.py
_LIMIT_USED_MAX: Final = 1024 * 1024  # a higher limit is not used up
_LIMIT_MIN: Final = 256
_OWN: Final = 96  # libraries, NATS, the lake, certificates, standard streams
_PER_BROKER: Final = 6  # connections with one other broker, both ways, while they are replaced
_FILES_MAX: Final = 32 * 1024
HTTP_CONNECTIONS_MAX: Final = 32
_LIFTBRIDGE_MAX: Final = 256
_FLIGHT_MAX: Final = 10_000
_FLIGHT_TLS_MAX: Final = 512  # gRPC takes 45 to 113 KB for each with TLS, and 11 KB without


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorBudget:
    """How many descriptors each part of a broker may use; together at most ``limit``."""

    limit: int  # of the process, after it was raised
    files: int  # of the log: open files, the idle ones least recently used closed first
    flight: int  # connections
    liftbridge: int  # connections
    http: int  # connections
    own: int  # everything else

    @classmethod
    def of(cls, limit: int, config: BrokerConfig) -> DescriptorBudget:
        """Share ``limit`` among the parts of a broker with this configuration.

        Raises:
            InvalidConfigError: the limit is too low for a broker.
        """
        own = _OWN + SPARES + _PER_BROKER * len(config.cluster.members())
        http = HTTP_CONNECTIONS_MAX
        rest = limit - own - http
        if limit < _LIMIT_MIN or rest < _LIMIT_MIN // 4:
            raise InvalidConfigError(
                f"this process may open {limit} files, and a broker needs at least "
                f"{max(_LIMIT_MIN, own + http + _LIMIT_MIN // 4)}: raise the limit (ulimit -n, "
                "LimitNOFILE of a systemd unit)"
            )
        liftbridge = min(_LIFTBRIDGE_MAX, rest // 5) if config.liftbridge.enabled else 0
        files = min(_FILES_MAX, (rest - liftbridge) // 2)
        default = _FLIGHT_MAX if config.flight.tls_cert_file is None else _FLIGHT_TLS_MAX
        flight = min(config.flight.connections_max or default, rest - liftbridge - files)
        return cls(
            limit=limit, files=files, flight=flight, liftbridge=liftbridge, http=http, own=own
        )

    def said(self) -> str:
        """Return the budget in words, for ``--check``."""
        return (
            f"{self.limit}: {self.files} for the log, {self.flight} connections of Flight, "
            f"{self.liftbridge} of Liftbridge, {self.http} of HTTP"
        )


def limit_here(*, raised: bool) -> int:
    """Return the limit of this process; ``raised``: raise the soft limit to the hard one first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _LIMIT_USED_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_USED_MAX)
    now = highest if soft == resource.RLIM_INFINITY else min(soft, _LIMIT_USED_MAX)
    if now >= highest:
        return now
    if raised:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        except (OSError, ValueError):  # not permitted here
            return now
    return highest
