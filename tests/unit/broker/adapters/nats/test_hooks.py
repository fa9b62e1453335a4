"""The private hooks into nats-py: refusals at start, and errors in the parser."""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse

import pytest
from nats.aio.client import Client, Srv
from nats.errors import ProtocolError
from nats.protocol.parser import Parser
from structlog.testing import capture_logs

from broker.adapters.nats.denials import DenialLog
from broker.adapters.nats.hooks import (
    BatchParser,
    ServerErrors,
    check_hooks,
    connect_options,
    server_urls,
)
from broker.codec.nats.stream import MessageBatch, NatsStream
from broker.config import NatsConfig
from broker.errors import InvalidConfigError


def test_the_installed_release_fits() -> None:
    """The nats-py of the lock passes."""
    check_hooks()


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new minor release has to be reviewed before it may run."""
    monkeypatch.setattr(metadata, "version", lambda _: "2.17.0")
    with pytest.raises(InvalidConfigError, match=r"2\.17\.0"):
        check_hooks()


def test_a_parser_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parse method that takes other arguments would not be called as we expect."""

    async def parse(self: Parser, data: bytes, more: int) -> None:
        """Take one argument too many."""

    monkeypatch.setattr(Parser, "parse", parse)
    with pytest.raises(InvalidConfigError):
        check_hooks()


def test_a_client_without_the_attributes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nats-py renames what we replace, nothing would be replaced."""
    before = Client.__init__

    def renamed(self: Client) -> None:
        before(self)
        vars(self)["_parser"] = vars(self).pop("_ps")

    monkeypatch.setattr(Client, "__init__", renamed)
    with pytest.raises(InvalidConfigError):
        check_hooks()


def test_urls_may_be_several_and_discovered_ones_are_added_with_the_login() -> None:
    """A bare host gets the scheme; a server that the cluster told of gets the same login."""
    config = NatsConfig(url="nats://u:p@a:1, b:2,tls://c:3")
    assert server_urls(config) == ("nats://a:1", "nats://b:2", "tls://c:3")
    seen = [urlparse("nats://d:4"), urlparse("nats://d:4")]
    assert server_urls(config, seen)[3:] == ("nats://d:4",)
    login = connect_options(config, "x")
    assert (login["user"], login["password"]) == ("u", "p")


@pytest.mark.parametrize(
    "config", [NatsConfig(creds_file="/nowhere"), NatsConfig(nkey_seed_file="/nowhere")]
)
def test_keys_need_their_package(config: NatsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the nkeys package the configuration fails at start and says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidConfigError, match="nkeys"):
        connect_options(config, "x")


def test_bad_tls_files_are_refused_at_start(tmp_path: Path) -> None:
    """A missing or damaged certificate is a configuration error, not a reconnect loop."""
    damaged = tmp_path / "ca.pem"
    damaged.write_text("not a certificate")
    for path in (damaged, tmp_path / "missing.pem"):
        with pytest.raises(InvalidConfigError, match="TLS"):
            connect_options(NatsConfig(tls_ca_file=str(path)), "x")


def test_a_tls_address_verifies_the_server() -> None:
    """tls:// alone means the system's authorities and a checked host name."""
    context = connect_options(NatsConfig(url="tls://x:1"), "x")["tls"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"-ERR 'Slow Consumer'\r\n", "slow_consumer"),
        (b"-ERR 'Stale Connection'\r\n", "stale_connection"),
        (b"-ERR 'User Authentication Expired'\r\n", "authorization"),
        (b"-ERR 'Authorization Violation'\r\n", "authorization"),
        (b"-ERR 'Maximum Payload Violation'\r\n", "payload_too_large"),
        (b"-ERR 'Permissions Violation for Subscription to \"a.b\"'\r\n", "denied_subscription"),
        (b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\n", "denied_publish"),
        (b"-ERR 'Permissions Violation'\r\n", "permissions"),
        (b"-ERR \xff\r\n", "other"),
        (b"-ERR\r\n", "other"),
    ],
)
def test_server_errors_are_counted_by_kind(line: bytes, kind: str) -> None:
    """Every -ERR is remembered and counted; none closes our side for good."""
    counts: dict[str, int] = {}
    errors = ServerErrors(counts, DenialLog("test"))
    with capture_logs() as lines:
        errors.add(line)
    assert counts == {kind: 1}
    assert [f"denied_{one['kind']}" for one in lines] == [kind] * kind.startswith("denied_")
    assert errors.slow_consumer == (kind == "slow_consumer")
    assert errors.denied("a.b") == (kind == "denied_subscription")
    assert not errors.denied("a")


def test_a_denial_of_a_long_subject_is_found_by_the_whole_subject() -> None:
    """The text that is kept for people is cut; the comparison is not."""
    errors = _errors()
    subject = "a" * 255
    errors.add(f"-ERR 'Permissions Violation for Subscription to \"{subject}.7\"'\r\n".encode())
    assert errors.denied(f"{subject}.7")
    assert not errors.denied(subject)
    assert len(str(errors.last)) <= 256


class Sink:
    """Takes batches, or raises as a bug would."""

    def __init__(self) -> None:
        self.batches: list[MessageBatch] = []
        self.bug: Exception | None = None

    def received(self, batches: list[MessageBatch]) -> asyncio.Future[None] | None:
        """Remember, or raise."""
        if self.bug is not None:
            raise self.bug
        self.batches += batches
        return None


def _errors() -> ServerErrors:
    return ServerErrors({}, DenialLog("test"))


def make_parser(sink: Sink, crashes: list[BaseException]) -> BatchParser:
    """Return a parser with subscription 1 hot."""
    stream = NatsStream()
    stream.add_hot(1)
    return BatchParser(Client(), stream, sink.received, _errors(), crashes.append)


def test_good_messages_before_a_protocol_error_are_delivered() -> None:
    """The sink gets the complete messages, then nats-py is told that the stream is broken."""
    sink = Sink()
    parser = make_parser(sink, [])
    with pytest.raises(ProtocolError):
        asyncio.run(parser.parse(b"MSG a 1 1\r\nx\r\nnonsense\r\n"))
    assert [one.payloads for one in sink.batches] == [[b"x"]]


@pytest.mark.parametrize(
    "item",
    [
        b"INFO {not json}\r\n",
        b"INFO\r\n",
        b"PING " + b"x" * 5000 + b"\r\n",
        b"INFO " + b"[" * 60_000 + b"\r\n",
        b'INFO {"a":' + b"[" * 50_000 + b"]" * 10_000 + b"}\r\n",
    ],
    ids=len,
)
def test_what_nats_py_cannot_read_is_a_protocol_error(item: bytes) -> None:
    """nats-py's reading task would otherwise end silently on the exception it did not expect."""
    with pytest.raises(ProtocolError):
        asyncio.run(make_parser(Sink(), []).parse(item))


def test_a_flood_of_infos_ends_the_connection() -> None:
    """Each makes nats-py read a list of servers; a server sends one when its cluster changes."""
    parser = make_parser(Sink(), [])
    parser._inner.nc._current_server = Srv(uri=urlparse("nats://a:1"))  # as after connecting

    async def flood() -> None:
        await parser.parse(b'INFO {"server_id":"a"}\r\n' * 20)
        await parser.parse(b'INFO {"server_id":"a"}\r\n' * 1000)

    with pytest.raises(ProtocolError):
        asyncio.run(flood())
    assert "INFO" in str(parser._errors.last)


def test_a_bug_in_the_sink_is_handed_over() -> None:
    """nats-py would log it and never read again, so the process's owner is told."""
    sink = Sink()
    sink.bug = AssertionError("a bug")
    crashes: list[BaseException] = []
    with pytest.raises(AssertionError):
        asyncio.run(make_parser(sink, crashes).parse(b"MSG a 1 1\r\nx\r\n"))
    assert crashes == [sink.bug]
