"""The daemon's configuration: a TOML file, overridden by ``HEADWATER_<SECTION>_<KEY>``.

The settings are parsed once, at the start, into frozen dataclasses. Unknown keys are errors. Each
class checks its values and how they depend on each other. Secrets come from the environment or from
files, never from the command line. S3 credentials follow the AWS conventions (docs/operations.md).
The file is not split: each section of the TOML file is a class here.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from broker.errors import InvalidConfigError, InvalidRequestError
from broker.model.access import check_name
from broker.model.ids import is_stream_name
from broker.model.raft import RaftName
from broker.model.secret import Secret

_ARROW_BYTES_BEYOND: Final = 1024**3
_PREFIX: Final = "HEADWATER_"
# Environment names of other parts of Headwater, so that a misspelt broker key is still refused.
_FOREIGN_PREFIXES: Final = ("HEADWATER_S3_", "HEADWATER_SIM_", "HEADWATER_TEST_")
_FOREIGN: Final = frozenset(
    {
        "HEADWATER_SERVER", "HEADWATER_IVY_DIR", "HEADWATER_CONFIG", "HEADWATER_DATA",
        "HEADWATER_AIRFLOW_CONFIG", "HEADWATER_TLS_CA_FILE", "HEADWATER_TLS_CERT_FILE",
        "HEADWATER_TLS_KEY_FILE", "HEADWATER_ENCRYPTION_KEY", "HEADWATER_TOKEN",
        "HEADWATER_TOKEN_FILE",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this broker is and where it keeps its log."""

    id: str = "broker-0"
    cluster: str = "headwater"
    namespace: str = "default"  # the folder of the lake with this cluster's tables
    data_dir: str = "headwater-data/broker"
    commit_threads: int = 4  # partitions that may sync at the same time
    message_ids_bytes_max: int = 64 * 1024 * 1024  # of memory, for the ids of all partitions
    arrow_bytes_max: int = 0  # of memory; 0: 1 GiB if Flight is beyond the loopback, else no bound
    activity_stream: bool = False  # make __activity, the stream of what happens to streams

    def __post_init__(self) -> None:
        for name in ("id", "cluster", "namespace"):
            if not is_stream_name(getattr(self, name)):
                raise InvalidConfigError(
                    f"node.{name} must be 1 to 128 characters of A-Z a-z 0-9 _ -"
                )
        if not 1 <= self.commit_threads <= 64:
            raise InvalidConfigError("node.commit_threads must be 1 to 64")
        if not 1024 * 1024 <= self.message_ids_bytes_max <= 64 * 1024**3:
            raise InvalidConfigError("node.message_ids_bytes_max must be 1 MiB to 64 GiB")
        if self.arrow_bytes_max and not 256 * 1024**2 <= self.arrow_bytes_max <= 1024**4:
            raise InvalidConfigError("node.arrow_bytes_max must be 0, or 256 MiB to 1 TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """The NATS server that publishers use. An empty url runs without NATS.

    A login in ``url`` becomes ``user`` and ``password``, or ``token``: after that ``url`` holds
    addresses only, and may be shown.

    Raises:
        InvalidConfigError: ``url`` names two different logins.
    """

    url: str = "nats://127.0.0.1:4222"
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    creds_file: str | None = None
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    connect_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        url, login = _without_login(self.url)
        object.__setattr__(self, "url", url)
        if login is None or any((self.user, self.token, self.creds_file, self.nkey_seed_file)):
            return  # an explicit setting is used, as nats-py does
        user, separator, password = login.reveal().partition(":")
        if separator:
            object.__setattr__(self, "user", user)
            object.__setattr__(self, "password", Secret(password))
        else:
            object.__setattr__(self, "token", Secret(user))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightConfig:
    """The Arrow Flight data plane."""

    host: str = "127.0.0.1"
    port: int = 7410  # 0 takes a free port
    # Beyond it, or the budget of descriptors, idle ones are broken; 0: see process/descriptors.py.
    connections_max: int = 0
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_client_ca_file: str | None = None  # set: clients must present a certificate of this CA

    def __post_init__(self) -> None:
        _check_port("flight", self.port)
        if self.connections_max and not 16 <= self.connections_max <= 100_000:
            raise InvalidConfigError("flight.connections_max must be 16 to 100000, or 0")
        _check_tls("flight", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeConfig:
    """Liftbridge's client API. It is off unless it is asked for."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 9292  # 0 takes a free port
    advertised: str = ""  # host:port in the metadata for clients; default: host and port
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_client_ca_file: str | None = None  # set: clients must present a certificate of this CA
    tls_client_crl_file: str | None = None  # set: and none that a list here revokes

    def __post_init__(self) -> None:
        _check_port("liftbridge", self.port)
        _check_tls("liftbridge", self)
        if self.advertised:
            host, _, port = self.advertised.rpartition(":")
            if not host or not port.isdecimal():
                raise InvalidConfigError(
                    f"liftbridge.advertised must be host:port, not {self.advertised!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Metrics and health."""

    host: str = "127.0.0.1"
    port: int = 7411
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_client_ca_file: str | None = None  # set: clients must present a certificate of this CA
    tls_client_crl_file: str | None = None  # set: and none that a list here revokes

    def __post_init__(self) -> None:
        _check_port("http", self.port)
        _check_tls("http", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """Where the tables are. An empty uri runs without tiering."""

    uri: str = "headwater-data/lake"  # a folder, file:///..., or s3://bucket/prefix
    single_writer: bool = False  # accept a store without conditional PUT; you promise one writer
    check_interval_ms: int = 1_000  # how often tiering looks for work if nothing wakes it
    expiry_interval_ms: int = 60_000  # how often remote retention is looked at
    upload_timeout_ms: int = 120_000
    claim_timeout_ms: int = 2_000  # how long a leader's first write waits for its claim at most
    reader_role_arn: str = ""  # readers get sessions of this role, bound to their stream's tables
    reader_ttl_s: int = 3_600  # how long such a session lasts; AWS takes 900 to 43200
    reader_sts_url: str = ""  # who opens them; default: STS, as AWS's tools find it

    def __post_init__(self) -> None:
        if not 0 <= self.claim_timeout_ms <= 60_000:
            raise InvalidConfigError("lake.claim_timeout_ms must be 0 to 60000")
        if not 10 <= self.check_interval_ms <= 3_600_000:
            raise InvalidConfigError("lake.check_interval_ms must be 10 to 3600000")
        if not 10 <= self.expiry_interval_ms <= 3_600_000:
            raise InvalidConfigError("lake.expiry_interval_ms must be 10 to 3600000")
        if self.upload_timeout_ms < 1_000:
            raise InvalidConfigError("lake.upload_timeout_ms must be at least 1000")
        if not 900 <= self.reader_ttl_s <= 43_200:
            raise InvalidConfigError("lake.reader_ttl_s must be 900 to 43200")
        if self.reader_role_arn and not self.uri.startswith("s3://"):
            raise InvalidConfigError("lake.reader_role_arn needs a lake.uri that begins with s3://")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The brokers of the cluster. Without ``brokers`` this one is alone, and uses only ``raft``."""

    brokers: str = ""  # id=host:port of every broker's cluster port, with commas; this broker's too
    controllers: str = ""  # ids of the brokers that vote on the metadata; default: all, if 1, 3, 5
    tls_ca_file: str | None = None  # the three files that `headwater cluster certs` makes
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_crl_file: str | None = None  # set: links with certificates that a list here revokes end
    listen_host: str = ""  # where to listen; default: the host that brokers names
    advertised_host: str = ""  # where clients find this broker; default: the same
    raft: str = "own"  # or pysyncobj: the library behind the metadata's replicated log
    replica_transport: str = "peer"  # or nats: replication over the NATS server, as Liftbridge does
    replication_factor: int = 3  # of streams that do not set it
    min_isr: int = 2  # of streams that do not set it
    session_ms: int = 1_500  # a broker that is silent for this long leads no partition any more
    restart_grace_ms: int = 5_000  # how long a restarting controller waits for silent controllers

    def __post_init__(self) -> None:
        members = self.members()
        self.voters()
        if members and None in (self.tls_ca_file, self.tls_cert_file, self.tls_key_file):
            raise InvalidConfigError(
                "a cluster needs tls_ca_file, tls_cert_file and tls_key_file; "
                "`headwater cluster certs` makes them"
            )
        if self.replica_transport not in ("peer", "nats"):
            raise InvalidConfigError("cluster.replica_transport must be peer or nats")
        if self.raft not in get_args(RaftName):
            raise InvalidConfigError("cluster.raft must be own or pysyncobj")
        if self.raft == "pysyncobj" and set(self.voters()) != set(members):
            raise InvalidConfigError(
                "with cluster.raft = pysyncobj every broker must vote on the metadata: name all "
                "brokers in cluster.controllers"
            )
        if not 1 <= self.min_isr <= self.replication_factor <= 7:
            raise InvalidConfigError(
                "cluster.replication_factor must be 1 to 7, and cluster.min_isr 1 to that factor"
            )
        if not 300 <= self.session_ms <= 600_000:
            raise InvalidConfigError("cluster.session_ms must be 300 to 600000")
        if not 0 <= self.restart_grace_ms <= 600_000:
            raise InvalidConfigError("cluster.restart_grace_ms must be 0 to 600000")

    def voters(self) -> tuple[str, ...]:
        """Return the ids of the brokers that vote on the metadata, sorted; () without a cluster.

        Raises:
            InvalidConfigError: ``controllers`` is needed and empty, or its value is not possible.
        """
        members = self.members()
        found = [one.strip() for one in self.controllers.split(",") if one.strip()]
        if not found and len(members) in (0, 1, 3, 5):
            return tuple(sorted(members))
        if not found:
            few = ",".join(list(members)[: 3 if len(members) > 3 else 1])
            raise InvalidConfigError(
                f"cluster.brokers names {len(members)} brokers: say which 1, 3 or 5 of them vote "
                f'on the metadata, for example cluster.controllers = "{few}"; the others follow'
            )
        unknown = [one for one in found if one not in members]
        if unknown:
            raise InvalidConfigError(
                f"cluster.controllers names {', '.join(unknown)}, which cluster.brokers does not"
            )
        if len(set(found)) != len(found) or len(found) not in (1, 3, 5):
            raise InvalidConfigError(
                f"cluster.controllers must name 1, 3 or 5 of the brokers, each once; not {found}"
            )
        return tuple(sorted(found))

    def members(self) -> dict[str, tuple[str, int]]:
        """Return each broker's host and cluster port, by id.

        Raises:
            InvalidConfigError: ``brokers`` is not a list of id=host:port.
        """
        found: dict[str, tuple[str, int]] = {}
        for one in filter(None, (part.strip() for part in self.brokers.split(","))):
            name, _, address = one.partition("=")
            host, _, port = address.rpartition(":")
            is_port = port.isdecimal() and len(port) <= 5
            if not is_stream_name(name) or not host or not is_port or name in found:
                raise InvalidConfigError(
                    f"cluster.brokers holds id=host:port, each id once; not {one!r}"
                )
            _check_port("cluster.brokers", int(port))
            found[name] = (host.strip("[]"), int(port))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionConfig:
    """Where the keys are that wrap the data keys of encrypted streams. Secrets are never here."""

    provider: str = ""  # file, environment or aws-kms; empty: no stream can be encrypted
    keyring_file: str = ""  # of the provider file; only its owner may read it
    kms_key_id: str = ""  # of the provider aws-kms: an id, an ARN or an alias

    def __post_init__(self) -> None:
        if self.provider not in ("", "file", "environment", "aws-kms"):
            raise InvalidConfigError("encryption.provider must be file, environment or aws-kms")
        for provider, setting in (("file", "keyring_file"), ("aws-kms", "kms_key_id")):
            if (self.provider == provider) != bool(getattr(self, setting)):
                raise InvalidConfigError(
                    f'encryption.provider = "{provider}" and encryption.{setting} need each other'
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Whether clients are asked who they are and what they may do. Equal on all brokers."""

    enabled: bool = False
    insecure: bool = False  # listen beyond the loopback all the same, without TLS or identity
    admins: str = ""  # principals that may do everything, with commas
    owner_token_file: str = ""  # who can read it may do everything; made if it is not there
    certificates: bool = True  # a client certificate that TLS has verified names a principal
    jwt_keys_file: str = ""  # a JWKS, or a public key in PEM; it is read again when it changes
    jwt_issuer: str = ""  # of accepted tokens; needed with jwt_keys_file
    jwt_audience: str = ""  # the same
    jwt_principal_claim: str = "sub"
    casbin_model_file: str = ""  # with a policy: it decides in place of the grants
    casbin_policy_file: str = ""  # both are read again when they change
    audit_stream: bool = True  # keep what happened in __audit; the log has it in any case

    def __post_init__(self) -> None:
        for name in self.admin_names():
            try:
                check_name(name, "access.admins")
            except InvalidRequestError as cause:
                raise InvalidConfigError(cause.message) from cause
        if self.jwt_keys_file and not (self.jwt_issuer and self.jwt_audience):
            raise InvalidConfigError(
                "access.jwt_keys_file needs jwt_issuer and jwt_audience: without them a token that "
                "was made for another service would be taken"
            )
        if bool(self.casbin_model_file) != bool(self.casbin_policy_file):
            raise InvalidConfigError(
                "access.casbin_model_file and casbin_policy_file need each other"
            )
        files = (self.owner_token_file, self.jwt_keys_file, self.casbin_policy_file)
        if not self.enabled and (self.admins or any(files)):
            raise InvalidConfigError(
                "access.admins, owner_token_file, jwt_keys_file and casbin_policy_file have no "
                "effect before access.enabled = true"
            )

    def admin_names(self) -> tuple[str, ...]:
        """Return the administrators of the configuration."""
        return tuple(one.strip() for one in self.admins.split(",") if one.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """The daemon's log: its level and its form."""

    level: str = "info"
    format: str = "auto"  # auto: console on a terminal, else json

    def __post_init__(self) -> None:
        if self.level not in ("debug", "info", "warning", "error"):
            raise InvalidConfigError("log.level must be debug, info, warning or error")
        if self.format not in ("auto", "console", "json"):
            raise InvalidConfigError("log.format must be auto, console or json")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything the daemon needs to know.

    Raises:
        InvalidConfigError: sections that contradict each other.
    """

    node: NodeConfig = field(default_factory=NodeConfig)
    nats: NatsConfig = field(default_factory=NatsConfig)
    flight: FlightConfig = field(default_factory=FlightConfig)
    liftbridge: LiftbridgeConfig = field(default_factory=LiftbridgeConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    lake: LakeConfig = field(default_factory=LakeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    encryption: EncryptionConfig = field(default_factory=EncryptionConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    log: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        if self.lake.reader_role_arn:
            self._require_safe_vending()
        members = self.cluster.members()
        if not members:
            return
        if self.node.id not in members:
            raise InvalidConfigError(
                f"cluster.brokers does not name this broker, {self.node.id!r} (node.id)"
            )
        if self.flight.port == 0:
            raise InvalidConfigError(
                "in a cluster flight.port must not be 0: brokers tell clients this port"
            )
        if self.liftbridge.enabled and self.liftbridge.port == 0:
            raise InvalidConfigError(
                "in a cluster liftbridge.port must not be 0: brokers tell clients this port"
            )
        if self.cluster.replica_transport == "nats" and not self.nats.url:
            raise InvalidConfigError("cluster.replica_transport nats needs nats.url")

    def _require_safe_vending(self) -> None:
        if not self.access.enabled:
            raise InvalidConfigError(
                "lake.reader_role_arn needs access.enabled = true: everybody would get credentials"
            )
        if self.flight.tls_cert_file is None and not is_loopback(self.flight.host):
            raise InvalidConfigError(
                "lake.reader_role_arn needs flight.tls_cert_file: without TLS the credentials of "
                f"readers would leave {self.flight.host} in plain text"
            )


def insecure(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration with the word for unguarded doors (``--insecure``)."""
    access = dataclasses.replace(config.access, insecure=True)
    return dataclasses.replace(config, access=access)


def unguarded_doors(config: BrokerConfig) -> list[str]:
    """Return a sentence for each door beyond the loopback that strangers may walk through."""
    told: list[str] = []
    doors: list[tuple[str, FlightConfig | LiftbridgeConfig]] = [("flight", config.flight)]
    if config.liftbridge.enabled:
        doors.append(("liftbridge", config.liftbridge))
    for name, door in doors:
        if is_loopback(door.host):
            continue
        if door.tls_cert_file is None:
            told.append(f"{name} on {door.host} has no TLS ({name}.tls_cert_file)")
        if not config.access.enabled and door.tls_client_ca_file is None:
            told.append(f"{name} on {door.host} asks nobody who they are (access.enabled)")
    http = config.http
    if is_loopback(http.host):
        return told
    if not config.access.enabled:
        told.append(f"http on {http.host} shows /metrics to everybody (access.enabled)")
    elif http.tls_cert_file is None:
        told.append(f"http on {http.host} takes tokens without TLS (http.tls_cert_file)")
    return told


def watches_files(config: BrokerConfig) -> bool:
    """Tell whether there are files that the daemon takes again when they have changed."""
    doors = (config.flight, config.liftbridge, config.http, config.cluster)
    certificates = any(one.tls_cert_file is not None for one in doors)
    return certificates or bool(config.access.casbin_policy_file)


def arrow_bytes_max(config: BrokerConfig) -> int:
    """Return the bound of Arrow's memory in bytes; 0: none.

    On the loopback everybody is a user of this machine, and the unbounded allocator is quicker.
    """
    if config.node.arrow_bytes_max:
        return config.node.arrow_bytes_max
    return 0 if is_loopback(config.flight.host) else _ARROW_BYTES_BEYOND


def is_loopback(host: str) -> bool:
    """Tell whether only processes of this machine reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def load(path: Path | None, environ: Mapping[str, str]) -> BrokerConfig:
    """Read the file, apply the environment, check everything.

    Raises:
        InvalidConfigError: unreadable file, unknown key, wrong type, value out of bounds.
    """
    values: dict[str, dict[str, Any]] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as cause:  # tomllib has no base class
            raise InvalidConfigError(f"cannot read {path}: {cause}") from cause
    sections = {one.name: one for one in dataclasses.fields(BrokerConfig)}
    for name, value in values.items():
        if name not in sections or not isinstance(value, dict):
            raise InvalidConfigError(
                f"unknown section [{name}] in {path}; there are {', '.join(sections)}"
            )
    _apply_environment(values, environ)
    hints = get_type_hints(BrokerConfig)
    built = {name: _section(name, hints[name], values.get(name, {})) for name in sections}
    return BrokerConfig(**built)


def _apply_environment(values: dict[str, dict[str, Any]], environ: Mapping[str, str]) -> None:
    hints = get_type_hints(BrokerConfig)
    known = {
        f"{_PREFIX}{section}_{one.name}".upper(): (section, one.name)
        for section, kind in hints.items()
        for one in dataclasses.fields(kind)
    }
    for name, text in environ.items():
        if not name.startswith(_PREFIX) or name in _FOREIGN or name.startswith(_FOREIGN_PREFIXES):
            continue
        if name not in known:
            raise InvalidConfigError(f"unknown environment variable {name}")
        section, key = known[name]
        values.setdefault(section, {})[key] = _from_text(name, hints[section], key, text)


def _from_text(variable: str, section: type[Any], key: str, text: str) -> Any:
    hint = str(get_type_hints(section)[key])
    if "int" in hint:
        try:
            return int(text)
        except ValueError as cause:
            raise InvalidConfigError(f"{variable} must be a whole number, not {text!r}") from cause
    if "bool" in hint:
        if text.lower() not in ("true", "false", "1", "0"):
            raise InvalidConfigError(f"{variable} must be true or false, not {text!r}")
        return text.lower() in ("true", "1")
    return Secret(text) if "Secret" in hint else text


def _section(name: str, kind: type[Any], values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            raise InvalidConfigError(f"unknown key {name}.{key}; there are {', '.join(hints)}")
        hint = str(hints[key])
        expected: type = int if "int" in hint else bool if "bool" in hint else str
        secret = "Secret" in hint
        if type(value) is not expected and not isinstance(value, Secret):
            shown = f"a {type(value).__name__}" if secret else repr(value)
            raise InvalidConfigError(
                f"{name}.{key} must be of type {expected.__name__}, not {shown}"
            )
    return kind(
        **{
            key: Secret.of(one) if "Secret" in str(hints[key]) else one
            for key, one in values.items()
        }
    )


def _without_login(urls: str) -> tuple[str, Secret | None]:
    """Return the addresses of NATS servers without their login, and the login."""
    shown: list[str] = []
    logins: set[Secret] = set()
    for url in filter(None, (one.strip() for one in urls.split(","))):
        scheme, separator, rest = url.rpartition("://")
        login, at, address = rest.rpartition("@")
        if at:
            logins.add(Secret(login))
        shown.append(f"{scheme}{separator}{address}")
    if len(logins) > 1:
        raise InvalidConfigError(
            "nats.url names different logins; give one, with nats.user and nats.password or "
            "nats.token"
        )
    return ",".join(shown), next(iter(logins), None)


def _check_tls(section: str, door: FlightConfig | LiftbridgeConfig | HttpConfig) -> None:
    if (door.tls_cert_file is None) != (door.tls_key_file is None):
        raise InvalidConfigError(f"{section} needs both tls_cert_file and tls_key_file, or neither")
    if door.tls_client_ca_file is not None and door.tls_cert_file is None:
        raise InvalidConfigError(
            f"{section}.tls_client_ca_file needs tls_cert_file and tls_key_file"
        )
    revoking = not isinstance(door, FlightConfig) and door.tls_client_crl_file is not None
    if revoking and door.tls_client_ca_file is None:
        raise InvalidConfigError(f"{section}.tls_client_crl_file needs tls_client_ca_file")


def _check_port(section: str, port: int) -> None:
    if not 0 <= port <= 65_535:
        raise InvalidConfigError(f"{section}.port must be 0 to 65535")
