"""The replacements of nats-py's parser and socket, and the check that they fit the release.

nats-py hands every socket read to ``client._ps.parse`` and does every write through
``client._transport``. Both names are private, so :func:`check_hooks` refuses to start with a
release whose attributes or methods look different from the one that the lock pins.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import ssl
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, Final
from urllib.parse import ParseResult, urlparse

import nats.errors
from nats.aio.client import Client
from nats.aio.transport import Transport
from nats.protocol.parser import Parser

from broker.adapters.nats.denials import Denial, DenialLog, DeniedSubjects
from broker.adapters.nats.socket import NatsSocket
from broker.codec.nats.stream import MessageBatch, NatsStream
from broker.config import NatsConfig
from broker.errors import InvalidConfigError

_RELEASE: Final = "2.16."
_PING_INTERVAL_S: Final = 20
_PINGS_OUTSTANDING_MAX: Final = 3
_STALL_S: Final = 1.0  # if the sink takes longer, the server may call us a slow consumer
_INFOS_MAX: Final = 32  # a second; a server sends one when its cluster changes
_STALL_MEMORY_S: Final = 30.0
_LAST_CHARS_MAX: Final = 256
_SCHEMES: Final = ("nats", "tls")
_TRANSPORT_METHODS: Final = frozenset(
    {
        "__bool__", "at_eof", "close", "connect", "connect_tls", "drain", "read", "readline",
        "wait_closed", "write", "writelines",
    }
)  # fmt: skip


class ServerErrors:
    """The errors that the server has sent on one connection."""

    def __init__(self, counts: dict[str, int], log: DenialLog) -> None:
        """Count errors in ``counts``, which is kept after the connection ends, as ``log`` is."""
        self.last: str | None = None
        self.slow_consumer = False
        self.denied_subjects = DeniedSubjects()
        self._counts = counts
        self._log = log

    def add(self, line: bytes) -> None:
        """Take an ``-ERR`` line."""
        text = line[4:].strip().strip(b"'").decode("utf-8", "replace")
        self.last = text[:_LAST_CHARS_MAX]
        denial = Denial.read(text)
        kind = _error_kind(self.last.lower()) if denial is None else f"denied_{denial.kind}"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if kind == "slow_consumer":
            self.slow_consumer = True
        if denial is not None:
            self._log.tell(denial)
            if denial.kind == "subscription":
                self.denied_subjects.add(denial.subject)

    def denied(self, subject: str) -> bool:
        """Tell whether the server has refused the newest subscription to this subject."""
        return subject in self.denied_subjects


def _error_kind(text: str) -> str:
    for word, kind in (
        ("slow consumer", "slow_consumer"),
        ("permissions violation", "permissions"),
        ("authorization", "authorization"),
        ("authentication", "authorization"),
        ("stale connection", "stale_connection"),
        ("maximum payload", "payload_too_large"),
    ):
        if word in text:
            return kind
    return "other"


class BatchParser:
    """Replaces nats-py's parser: passes batches to the sink, the rest to the original parser."""

    def __init__(
        self,
        client: Client,
        stream: NatsStream,
        received: Callable[[list[MessageBatch]], asyncio.Future[None] | None],
        errors: ServerErrors,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Parse for one client; ``stream`` may have been used for an earlier client."""
        self._inner = Parser(client)
        self._stream = stream
        self._received = received
        self._errors = errors
        self._on_crash = on_crash
        self._stalled_until = -_STALL_MEMORY_S
        self._infos, self._infos_since = 0, float("-inf")
        self._waiting_since: float | None = None

    def stalled_lately(self) -> bool:
        """Tell whether the sink has recently kept the socket unread for more than a second."""
        now = asyncio.get_running_loop().time()
        if self._waiting_since is not None and now - self._waiting_since > _STALL_S:
            return True
        return now - self._stalled_until < _STALL_MEMORY_S

    def reset(self) -> None:
        """Forget incomplete items; nats-py calls this when a connection ends."""
        self._inner.reset()
        self._stream.reset()

    async def parse(self, data: bytes = b"") -> None:
        """Parse the bytes of one socket read. Runs in nats-py's reading task.

        Raises:
            nats.errors.ProtocolError: nats-py then closes the connection.
        """
        parsed = self._stream.feed(data)
        try:
            if parsed.batches:
                await self._hand_over(parsed.batches)
        except Exception as bug:
            # nats-py would only log this and never read again, so ``on_crash`` must end the broker.
            self._on_crash(bug)
            raise
        for item in parsed.others:
            if item.startswith(b"-ERR"):
                # nats-py would close for ever. If the error is fatal, the server closes anyway.
                self._errors.add(item)
            else:
                await self._parse_other(item)
        if parsed.error is not None:
            self._errors.last = parsed.error
            raise nats.errors.ProtocolError

    def _is_flood(self) -> bool:
        """Count one INFO; tell whether there are too many: each makes nats-py read its servers."""
        now = asyncio.get_running_loop().time()
        if now - self._infos_since > 1.0:
            self._infos_since, self._infos = now, 0
        self._infos += 1
        return self._infos > _INFOS_MAX

    async def _hand_over(self, batches: list[MessageBatch]) -> None:
        room = self._received(batches)
        if room is None:
            return
        clock = asyncio.get_running_loop().time
        self._waiting_since = began = clock()
        try:
            # The connection may end meanwhile; the sink still stores these messages.
            await asyncio.shield(room)
        finally:
            self._waiting_since = None
            now = clock()
            if now - began > _STALL_S:
                self._stalled_until = now

    async def _parse_other(self, item: bytes) -> None:
        if item[:4].upper() == b"INFO" and self._is_flood():
            self._errors.last = f"the server sent more than {_INFOS_MAX} INFO within a second"
            raise nats.errors.ProtocolError
        try:
            await self._inner.parse(item)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            self._errors.last = f"the server sent a malformed protocol item: {item[:64]!r}"
            raise nats.errors.ProtocolError from cause
        if self._inner.buf:  # the item is whole, but nats-py's parser waits for more
            self._errors.last = f"the server sent an unknown protocol item: {item[:64]!r}"
            raise nats.errors.ProtocolError


def check_hooks() -> None:
    """Refuse a release of nats-py whose parser and transport differ from the expected ones.

    Raises:
        InvalidConfigError: this is another release, or it has other attributes.
    """
    release = metadata.version("nats-py")
    probe = Client()
    parser = getattr(probe, "_ps", None)
    fits = (
        release.startswith(_RELEASE)
        and type(parser) is Parser
        and inspect.iscoroutinefunction(Parser.parse)
        and list(inspect.signature(Parser.parse).parameters) == ["self", "data"]
        and callable(getattr(parser, "reset", None))
        and getattr(probe, "_transport", probe) is None
        and Transport.__abstractmethods__ == _TRANSPORT_METHODS
    )
    if not fits:
        raise InvalidConfigError(
            f"this broker does not work with nats-py {release}: install the release of "
            f"requirements.lock ({_RELEASE}x)",
            release=release,
        )


def replace_hooks(client: Client, parser: BatchParser, transport: NatsSocket) -> None:
    """Replace parser and transport of a new client; :func:`check_hooks` has checked both names."""
    vars(client).update(_ps=parser, _transport=transport)


def server_urls(config: NatsConfig, discovered: Iterable[ParseResult] = ()) -> tuple[str, ...]:
    """Return the configured servers, then the servers that NATS has announced.

    Raises:
        InvalidConfigError: an address is not ``nats://`` or ``tls://`` with a host.
    """
    urls: list[str] = []
    for text in config.url.split(","):
        url = text.strip() if "://" in text else f"nats://{text.strip()}"
        try:
            parts = urlparse(url)
            legal = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or 4222) > 0
        except ValueError:
            legal = False
        if not legal:
            raise InvalidConfigError(
                f"nats.url: {text!r} must be nats://host:port or tls://host:port"
            )
        urls.append(url)
    for server in discovered:
        url = f"{server.scheme}://{server.netloc.rpartition('@')[2]}"
        if url not in urls:
            urls.append(url)
    return tuple(urls)


def connect_options(config: NatsConfig, client_name: str) -> dict[str, Any]:
    """Translate the configuration to the options of nats-py.

    Raises:
        InvalidConfigError: a TLS file or a credentials file cannot be used.
    """
    options: dict[str, Any] = {
        "name": client_name,
        "no_echo": True,  # our own answer on a subject of a stream must not become a record
        "allow_reconnect": False,  # the transport's loop connects again, with a new client
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.1,
        "connect_timeout": max(1, config.connect_timeout_ms // 1000),
        "ping_interval": _PING_INTERVAL_S,
        "max_outstanding_pings": _PINGS_OUTSTANDING_MAX,
        "user": config.user,
        "password": None if config.password is None else config.password.reveal(),
        "token": None if config.token is None else config.token.reveal(),
    }
    if config.creds_file is not None:
        _require_nkeys()
        options["user_credentials"] = config.creds_file
    if config.nkey_seed_file is not None:
        _require_nkeys()
        options["nkeys_seed"] = config.nkey_seed_file
    context = _tls_context(config)
    if context is not None:
        options["tls"] = context
    return options


def _require_nkeys() -> None:
    if importlib.util.find_spec("nkeys") is None:
        raise InvalidConfigError(
            "NATS credentials and nkeys need the nkeys package: install nats-py[nkeys]"
        )


def _tls_context(config: NatsConfig) -> ssl.SSLContext | None:
    files = (config.tls_ca_file, config.tls_cert_file, config.tls_key_file)
    addresses = [one.strip() for one in config.url.split(",")]
    if not any(files) and not any(one.startswith("tls://") for one in addresses):
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls_ca_file)
        if config.tls_cert_file is not None:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    except (OSError, ssl.SSLError) as cause:
        raise InvalidConfigError(f"the TLS files for NATS cannot be used: {cause}") from cause
    return context
