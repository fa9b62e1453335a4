"""``headwater broker --check``: whether a broker with this configuration could start, and serve.

Nothing is started and no folder is made. An S3 lake gets the probe object that a broker writes at
its start, because only a write shows that the store keeps two writers apart.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig, FlightConfig, NodeConfig, unguarded_doors
from broker.errors import DiskFullError, HeadwaterError, InvalidConfigError, UnavailableError
from broker.model.member_uri import member_uri
from broker.process.access import check_files, require_guarded
from broker.process.certificates import check_revocations
from headwater.cli import console, failures
from headwater.local.handshake import shown_uris
from headwater.nats_login import NatsLogin, without_login

_EXPIRES_SOON_DAYS: Final = 14
_IDENTITY_BYTES_MAX: Final = 4096
_PROBE_BYTES: Final = 4096
_MESSAGE_ID_BYTES: Final = 55  # of a broker's memory per remembered id, about


@dataclass(frozen=True, slots=True)
class CheckedNeed:
    """One need of a broker, and the result of its check; ``error`` is None if it is met."""

    what: str
    detail: str
    error: HeadwaterError | None = None


def check(config: BrokerConfig, *, java: bool) -> int:
    """Print a line for each thing that a broker needs; return the exit code.

    0: all is well. 2: the configuration cannot work. 3: something cannot be reached now.
    """
    found = []
    with console.working("checking; a server that does not answer takes a few seconds"):
        for one in checked_needs(config, java=java):
            found.append(one)
            mark = "[green]ok[/green]   " if one.error is None else "[bold red]wrong[/bold red]"
            told = one.detail if one.error is None else f"{one.detail}: {one.error.message}"
            console.say(f"{mark}  {one.what:<22} {console.plain(told)}")
    errors = [one.error for one in found if one.error is not None]
    if not errors:
        console.note("A broker with this configuration can start.")
        return 0
    console.note(f"{len(errors)} of {len(found)} checks failed.")
    away = all(isinstance(error, UnavailableError) for error in errors)
    return failures.EXIT_TRY_LATER if away else failures.EXIT_WRONG_REQUEST


def checked_needs(config: BrokerConfig, *, java: bool) -> Iterator[CheckedNeed]:
    """Check folder, memory, ports, certificates, NATS, keys, lake; with ``java`` Spark's needs."""
    yield _checked("data folder", config.node.data_dir, lambda: _ours(config.node))
    yield _checked("descriptors", _descriptors_said(config), lambda: _descriptors_suffice(config))
    yield _checked("message ids", _ids_room(config), lambda: _memory_suffices(config))
    for name, host, port in _ports(config):
        yield _checked(name, f"{host}:{port}", lambda host=host, port=port: _free(host, port))  # type: ignore[misc]
    for section, ca, certificate, key in _certificates(config):
        if certificate is not None or ca is not None:
            files = ", ".join(one for one in (ca, certificate, key) if one)
            yield _checked(
                f"{section} certificates",
                files,
                lambda ca=ca, certificate=certificate, key=key: _usable(ca, certificate, key),  # type: ignore[misc]
            )
    for section, lists, ca in _revocations(config):
        if lists is not None and ca is not None:
            yield _checked(
                f"{section} revoked certificates",
                lists,
                lambda lists=lists, ca=ca: check_revocations(Path(lists), Path(ca)),  # type: ignore[misc]
            )
    yield _checked("doors", _doors_said(config), lambda: require_guarded(config))
    if config.access.enabled:
        proofs = (config.access.owner_token_file, config.access.jwt_keys_file)
        told = ", ".join(one for one in proofs if one) or "grants in the metadata"
        yield _checked("access", told, lambda: check_files(config.access))
    if config.cluster.members():
        yield _checked("this broker's name", config.node.id, lambda: _accepted_by_brokers(config))
    host = _clients_host(config)
    if host and config.flight.tls_cert_file:
        yield _checked("Flight's host", host, lambda: _names_host(config.flight, host))
    if config.nats.url:
        yield _checked("NATS", without_login(config.nats.url), lambda: _nats_answers(config))
    if config.encryption.provider:
        yield _checked("encryption keys", config.encryption.provider, lambda: _wraps(config))
    if config.lake.uri:
        yield _checked("lake", config.lake.uri, lambda: _lake_answers(config))
    if java:
        yield _checked("Java", "for Spark", _java)


def _checked(what: str, detail: str, look: Callable[[], object]) -> CheckedNeed:
    try:
        look()
    except HeadwaterError as error:
        return CheckedNeed(what, detail, error)
    return CheckedNeed(what, detail)


def _ours(node: NodeConfig) -> None:
    """Check that the folder can be written, and that it does not belong to another broker."""
    _writable(node.data_dir)
    path = Path(node.data_dir) / "node.json"
    if not path.exists():
        return
    try:
        owner = json.loads(path.read_bytes()[:_IDENTITY_BYTES_MAX])
        found = {"broker_id": owner["broker_id"], "cluster": owner["cluster"]}
    except (OSError, ValueError, TypeError, KeyError) as cause:
        raise InvalidConfigError(f"{path} is not readable: {cause}") from cause
    for name, wanted in (("broker_id", node.id), ("cluster", node.cluster)):
        if found[name] != wanted:
            raise InvalidConfigError(
                f"it belongs to {name} {found[name]!r}, not {wanted!r}: choose another folder, or "
                "correct node.id and node.cluster"
            )


def _writable(folder: str) -> None:
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    if not path.is_dir():
        raise InvalidConfigError(f"{path} is not a folder")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidConfigError(f"this user may not write in {path}")
    try:
        with tempfile.TemporaryFile(dir=path) as probe:  # without a name, gone when it is closed
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as cause:
        kind = DiskFullError if cause.errno == errno.ENOSPC else InvalidConfigError
        raise kind(f"cannot write in {path}: {cause.strerror}") from cause


def _wraps(config: BrokerConfig) -> None:
    """Wrap and unwrap a key, as the creation of an encrypted stream does."""
    from broker.keys.opening import check_provider, open_provider

    encryption = config.encryption
    provider = open_provider(
        encryption.provider,
        keyring_file=encryption.keyring_file,
        kms_key_id=encryption.kms_key_id,
        environ=os.environ,
    )
    check_provider(provider)


def _ids_room(config: BrokerConfig) -> str:
    bytes_max = config.node.message_ids_bytes_max
    millions = bytes_max / _MESSAGE_ID_BYTES / 1e6
    return f"{bytes_max / 2**20:.0f} MiB of memory for about {millions:.1f} million of them"


def _memory_suffices(config: BrokerConfig) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.node.message_ids_bytes_max > machine // 2:
        raise InvalidConfigError(
            "node.message_ids_bytes_max is more than half of this machine's memory, "
            f"{machine / 2**20:.0f} MiB"
        )


def _descriptors_suffice(config: BrokerConfig) -> None:
    from broker.process.descriptors import DescriptorBudget, limit_here

    DescriptorBudget.of(limit_here(raised=False), config)


def _descriptors_said(config: BrokerConfig) -> str:
    from broker.process.descriptors import DescriptorBudget, limit_here

    limit = limit_here(raised=False)
    try:
        return DescriptorBudget.of(limit, config).said()
    except InvalidConfigError:
        return str(limit)


def _ports(config: BrokerConfig) -> Iterator[tuple[str, str, int]]:
    yield "Flight port", config.flight.host, config.flight.port
    if config.liftbridge.enabled:
        yield "Liftbridge port", config.liftbridge.host, config.liftbridge.port
    yield "HTTP port", config.http.host, config.http.port
    members = config.cluster.members()
    if config.node.id in members and len(members) > 1:
        host, port = members[config.node.id]
        yield "cluster port", config.cluster.listen_host or host, port


def _free(host: str, port: int) -> None:
    if port == 0:
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as cause:
        raise InvalidConfigError(f"cannot listen there: {cause.strerror or cause}") from cause


def _doors_said(config: BrokerConfig) -> str:
    """Return whether the doors are open to strangers, and why."""
    told = unguarded_doors(config)
    if config.access.insecure and told:
        return f"open to strangers, because access.insecure = true: {'; '.join(told)}"
    return "whether a stranger could come in by one of them"


def _certificates(
    config: BrokerConfig,
) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    flight, nats, cluster = config.flight, config.nats, config.cluster
    yield "Flight", flight.tls_client_ca_file, flight.tls_cert_file, flight.tls_key_file
    lift = config.liftbridge
    yield "Liftbridge", lift.tls_client_ca_file, lift.tls_cert_file, lift.tls_key_file
    http = config.http
    yield "HTTP", http.tls_client_ca_file, http.tls_cert_file, http.tls_key_file
    yield "NATS", nats.tls_ca_file, nats.tls_cert_file, nats.tls_key_file
    yield "cluster", cluster.tls_ca_file, cluster.tls_cert_file, cluster.tls_key_file


def _revocations(config: BrokerConfig) -> Iterator[tuple[str, str | None, str | None]]:
    lift, http, cluster = config.liftbridge, config.http, config.cluster
    yield "Liftbridge", lift.tls_client_crl_file, lift.tls_client_ca_file
    yield "HTTP", http.tls_client_crl_file, http.tls_client_ca_file
    yield "cluster", cluster.tls_crl_file, cluster.tls_ca_file


def _usable(ca: str | None, certificate: str | None, key: str | None) -> None:
    """Load the files as a server would, and check the dates."""
    from headwater.local.cluster_certificates import valid_until

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in filter(None, (ca, certificate, key)):
        try:
            Path(path).read_bytes()
        except OSError as cause:
            raise InvalidConfigError(f"cannot read {path}: {cause.strerror}") from cause
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as cause:
        raise InvalidConfigError(f"the certificate and its key cannot be used: {cause}") from cause
    for path in filter(None, (ca, certificate)):
        left = valid_until(Path(path)) - datetime.now(UTC)
        if left.total_seconds() < 0:
            raise InvalidConfigError(f"{path} expired {-left.days} days ago")
        if left.days < _EXPIRES_SOON_DAYS:
            console.note(f"[yellow]{console.plain(path)} expires in {left.days} days.[/yellow]")


def _accepted_by_brokers(config: BrokerConfig) -> None:
    """Check the broker's certificate as another broker of the same authority would."""
    ca, certificate = config.cluster.tls_ca_file, config.cluster.tls_cert_file
    key = config.cluster.tls_key_file
    if not ca or not certificate or not key:
        return
    ours = member_uri(config.node.cluster, config.node.id)
    try:
        named = shown_uris(Path(ca), Path(certificate), Path(key))
    except ssl.SSLCertVerificationError as cause:
        raise InvalidConfigError(
            f"{certificate} is not signed by {ca}: other brokers refuse it ({cause.verify_message})"
        ) from cause
    except (ssl.SSLError, OSError):
        return  # the line above names the file that cannot be used
    if ours not in named:
        raise InvalidConfigError(
            f"{certificate} names {', '.join(named) or 'no broker'}, not {ours}: other brokers "
            "refuse it. `headwater cluster certs` makes the right one"
        )


def _clients_host(config: BrokerConfig) -> str:
    """Return where a broker of a cluster tells clients that it is; empty for a broker alone."""
    member = config.cluster.members().get(config.node.id)
    return "" if member is None else config.cluster.advertised_host or member[0]


def _names_host(flight: FlightConfig, host: str) -> None:
    from headwater.local.cluster_certificates import names_host

    if flight.tls_cert_file is not None and not names_host(Path(flight.tls_cert_file), host):
        raise InvalidConfigError(
            f"{flight.tls_cert_file} does not name this host, at which clients are told to find "
            "the broker: they refuse the certificate"
        )


def _nats_answers(config: BrokerConfig) -> None:
    from headwater.nats_publisher import check_connection

    names = [one.name for one in dataclasses.fields(NatsLogin)]
    login = NatsLogin(**{name: getattr(config.nats, name) for name in names})
    check_connection(config.nats.url, login)


def _lake_answers(config: BrokerConfig) -> None:
    from tiering.store.location import StoreConfig
    from tiering.store.object_store import require_conditional_put
    from tiering.store.opening import open_store

    store = StoreConfig.from_env(config.lake.uri, single_writer=config.lake.single_writer)
    if store.kind == "local":
        _writable(str(store.root))
        return
    quick = dataclasses.replace(store, attempts_max=1, connect_timeout_s=3.0, read_timeout_s=5.0)
    require_conditional_put(open_store(quick))


def _java() -> None:
    from spark_jobs.session import require_java

    require_java()
