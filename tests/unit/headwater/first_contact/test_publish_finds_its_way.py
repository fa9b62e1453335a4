"""Issue 11, item 10: `headwater publish` asks the broker where NATS is, or goes by Flight."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.config import NatsConfig
from broker.model.secret import Secret
from headwater.cli.discovery import Server
from headwater.cli.main import app
from headwater.cli.publish import _hint_at_flight
from headwater.cli.publish_way import nats_of
from headwater.client import Client
from headwater.local.embedded import free_port
from simkit.brokers.memory_broker import FakeClock, MemoryBroker

Publish = Callable[..., Any]


@pytest.fixture
def nats_url(request: pytest.FixtureRequest) -> str | None:
    """Return the NATS address that the broker reports: a closed port, unless set otherwise."""
    told: str | None = getattr(request, "param", f"nats://127.0.0.1:{free_port()}")
    return told


@pytest.fixture
def publish(
    broker: MemoryBroker, nats_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Publish]:
    """Return a function that publishes three records with HEADWATER_SERVER set."""
    config = FlightServiceConfig(host="127.0.0.1", port=0, nats_url=nats_url)
    service = FlightService(broker, FakeClock(), config)
    service.start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_SERVER", f"127.0.0.1:{service.port}")
    monkeypatch.delenv("HEADWATER_NATS_URL", raising=False)

    def run(stream: str, *options: str) -> Any:
        args = ["publish", stream, "--json", *options]
        return CliRunner().invoke(app, args, input="a\nb\nc\n")

    with Client(f"127.0.0.1:{service.port}") as client:
        client.create_stream("answered", puback=True)
        client.create_stream("quiet")
        yield run
    service.close()


def test_what_nats_cannot_reach_goes_by_flight(publish: Publish) -> None:
    """The broker's NATS is away: the records are stored by Flight, and a note says so."""
    result = publish("answered")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["via"] == "flight"
    assert json.loads(result.stdout)["acked"] == 3
    assert "publishing by Flight" in result.stderr


@pytest.mark.parametrize("nats_url", [None], indirect=True)
def test_a_broker_without_nats_is_published_to_by_flight(publish: Publish) -> None:
    """Before, the command looked for NATS on port 4222 of this machine."""
    result = publish("answered")
    assert (result.exit_code, json.loads(result.stdout)["via"]) == (0, "flight")
    assert publish("answered", "--via", "nats").exit_code == 3


def test_a_stream_that_does_not_answer_is_published_to_by_flight(publish: Publish) -> None:
    """Without PubAck it is unknown what is stored, so NATS asked for by name is refused."""
    assert json.loads(publish("quiet").stdout)["acked"] == 3
    refused = publish("quiet", "--via", "nats")
    assert refused.exit_code == 2
    assert "--via flight" in refused.stderr


def test_whoever_names_nats_gets_nats_or_an_error(publish: Publish, nats_url: str) -> None:
    """`--nats` and `--via nats` are never replaced."""
    assert publish("answered", "--via", "nats").exit_code == 3
    named = publish("answered", "--nats", nats_url)
    assert named.exit_code == 3
    assert nats_url in named.stderr


@pytest.mark.parametrize("nats_url", ["nats://127.0.0.1:4222", "nats://n1:4222"], indirect=True)
def test_the_loopback_of_another_machine_is_not_ours(
    publish: Publish, broker: MemoryBroker, nats_url: str
) -> None:
    """A broker that is not on this machine and tells 127.0.0.1 means its own."""
    stream = broker.streams.get("answered")
    with Client() as client:
        near = Server(flight="grpc://127.0.0.1:7410", nats=None, source="--server")
        far = Server(flight="grpc://b1:7410,grpc://b2:7410", nats=None, source="--server")
        assert nats_of(client, near, stream) == nats_url
        assert nats_of(client, far, stream) == (None if "127" in nats_url else nats_url)


def test_the_broker_tells_no_password() -> None:
    """The address goes to every client that may ask."""
    urls = "nats://me:secret@n1:4222, tls://me:secret@n2:4222,n3:4222"
    config = NatsConfig(url=urls)
    assert config.url == "nats://n1:4222,tls://n2:4222,n3:4222"
    assert (config.user, config.password) == ("me", Secret("secret"))


@pytest.mark.parametrize(
    ("sent", "seconds", "chosen", "is_told"),
    [
        (20_000, 3.0, None, True),
        (19_999, 3.0, None, False),
        (20_000, 1.0, None, False),
        (20_000, 3.0, "nats", False),
    ],
)
def test_a_long_publish_by_nats_names_the_quicker_way(
    sent: int, seconds: float, chosen: str | None, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short one does not, nor one whose way was chosen by name."""
    _hint_at_flight(sent, seconds, chosen=chosen, via="nats")
    assert ("--via flight" in capsys.readouterr().err) == is_told
