"""The certificates of a daemon's doors: made at the start, then taken again when files change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from broker.adapters.clock import SystemClock
from broker.adapters.tls.context import LiveContext, TlsFiles, server_context
from broker.config import BrokerConfig
from broker.model.member_uri import member_uri
from broker.ports.system import Clock
from broker.process.metrics import CertificateSample

if TYPE_CHECKING:
    from broker.adapters.peer.link import PeerLink
    from broker.adapters.tls.door import DoorCertificates

_US: Final = 1_000_000


class _DoorConfig(Protocol):
    """The settings of a door for clients, as far as TLS needs them."""

    @property
    def tls_cert_file(self) -> str | None:
        """The chain."""

    @property
    def tls_key_file(self) -> str | None:
        """Its key."""

    @property
    def tls_client_ca_file(self) -> str | None:
        """The authorities of clients."""


class _RevokingDoorConfig(_DoorConfig, Protocol):
    """The same of a door that can refuse revoked certificates."""

    @property
    def tls_client_crl_file(self) -> str | None:
        """Lists of clients' revoked certificates."""


class Certificates:
    """The certificates of all doors. Doors are added by the start; the rest is for any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._doors: list[DoorCertificates] = []

    def of_door(
        self, door: str, config: _RevokingDoorConfig, *, protocols: Sequence[str] = ()
    ) -> LiveContext | None:
        """Return the context of a door for clients; None if it has no TLS.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        files = _files(config, config.tls_client_crl_file)
        if files is None:
            return None
        context = LiveContext(partial(server_context, files, protocols=protocols))
        self._add(door, files, [context])
        return context

    def of_flight(self, config: _DoorConfig) -> None:
        """Watch the files of Flight, whose server takes no others before a restart.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        files = _files(config)
        if files is not None:
            tried = LiveContext(partial(server_context, files))  # as a restart would
            self._add("flight", files, [tried], replaceable=False)

    def of_peers(self, config: BrokerConfig, link: PeerLink) -> None:
        """Watch the files of the links to other brokers, which must go on naming this broker.

        Raises:
            InvalidConfigError: a file cannot be used.
        """
        uri = member_uri(config.node.cluster, config.node.id)
        self._add(
            "peers", peer_files(config), link.contexts, member=uri, on_revoked=link.end_revoked
        )

    def look(self, *, at_once: bool) -> None:
        """See ``Watched.look``; also tells the log of certificates that expire soon."""
        now_us = self._clock.now_us()
        for one in self._doors:
            one.look(now_us, at_once=at_once)

    def _add(
        self,
        door: str,
        files: TlsFiles,
        contexts: Sequence[LiveContext],
        *,
        replaceable: bool = True,
        member: str | None = None,
        on_revoked: Callable[[frozenset[int]], object] = frozenset,
    ) -> None:
        # Imported late: a broker without TLS, as on one's own machine, starts 60 ms sooner.
        from broker.adapters.tls.door import DoorCertificates  # noqa: PLC0415

        found = DoorCertificates(
            door, files, contexts, replaceable=replaceable, member=member, on_revoked=on_revoked
        )
        found.require_revocations_in_force(self._clock.now_us())
        self._doors.append(found)

    def samples(self) -> list[CertificateSample]:
        """Return a sample for each file of certificates that a door serves."""
        now_us = self._clock.now_us()
        return [
            CertificateSample(
                door=one.door, file=str(path), remaining_seconds=(expiry - now_us) / _US
            )
            for one in self._doors
            for path, expiry in one.expiries_us.items()
        ]


def check_revocations(crl_file: Path, ca_file: Path) -> None:
    """Look at lists of revoked certificates as a start would.

    Raises:
        InvalidConfigError: they cannot be used now.
    """
    # Imported late: as above.
    from broker.adapters.tls.certificates import read_revocations  # noqa: PLC0415

    read_revocations(crl_file, ca_file).require_in_force(crl_file, SystemClock().now_us())


def peer_files(config: BrokerConfig) -> TlsFiles:
    """Return the files of the links to other brokers; the configuration of a cluster has them."""
    names = (config.cluster.tls_cert_file, config.cluster.tls_key_file, config.cluster.tls_ca_file)
    cert_file, key_file, ca_file = (Path(name) for name in names if name is not None)
    return TlsFiles(
        cert_file=cert_file,
        key_file=key_file,
        ca_file=ca_file,
        crl_file=_path(config.cluster.tls_crl_file),
    )


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def _files(config: _DoorConfig, crl_file: str | None = None) -> TlsFiles | None:
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    return TlsFiles(
        cert_file=Path(config.tls_cert_file),
        key_file=Path(config.tls_key_file),
        ca_file=_path(config.tls_client_ca_file),
        crl_file=_path(crl_file),
    )
