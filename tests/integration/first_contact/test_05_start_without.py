"""Issue 11, item 5: a broker starts without NATS and without its lake, and finds them later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.errors import RemoteTierUnavailableError
from broker.model.offsets import Offset
from crashkit.processes import BrokerProcess
from headwater.client import Client
from headwater.client.operations import Operations
from headwater.local import embedded
from headwater.nats_publisher import NatsMessage, NatsPublisher
from simkit.servers.s3_proxy import Break, Rule, S3Proxy, s3_proxy
from simkit.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_S = 60.0
AWAY = [Rule(Break.DROP, method) for method in ("PUT", "GET", "HEAD")]


@dataclass(slots=True)
class Scene:
    """A stopped broker whose lake is behind a proxy, and the place of its NATS server."""

    broker: BrokerProcess
    proxy: S3Proxy
    folder: Path
    nats_port: int

    def nats(self) -> embedded.EmbeddedServer:
        """Start the NATS server."""
        return embedded.start_nats(self.folder / "nats", port=self.nats_port)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Run moto and its proxy; the broker is not started."""
    with (
        embedded.start_moto(tmp_path / "moto", bucket="bad") as moto,
        s3_proxy(moto.address) as proxy,
    ):
        environment = embedded.moto_environment(proxy.address)
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        port = embedded.free_port()
        broker = BrokerProcess(
            tmp_path / "broker",
            nats_url=f"nats://127.0.0.1:{port}",
            lake="s3://bad/lake",
            environment=environment,
            settings={
                "lake": {"upload_timeout_ms": 2_000, "claim_timeout_ms": 500},
                "nats": {"connect_timeout_ms": 1_000},
            },
        )
        try:
            yield Scene(broker, proxy, tmp_path, port)
        finally:
            if broker.exit_code is None:
                broker.kill()


def _values(client: Client) -> list[bytes]:
    return [value for one in client.fetch("s") for value in one.batch["value"].to_pylist()]


def test_a_broker_starts_without_nats_and_lake_and_finds_them(scene: Scene) -> None:
    """Local records are served at once, the missing parts are named, and no restart is needed."""
    broker = scene.broker
    with scene.nats():
        broker.start()
        broker.wait_ready_saying()
        with Client(broker.url) as client:
            stream = client.create_stream("s", puback=True)
            with client.producer("s") as producer:
                producer.send([b"1"])
        wait_until(lambda: broker.log_events("leadership_claimed"), "the claim of the first start")
        assert broker.stop_within(WAIT_S)
    scene.proxy.always(*AWAY)

    broker.start()
    missing = ("the lake at s3://bad/lake", "NATS at nats://127.0.0.1")
    broker.wait_ready_saying(*missing)
    with Client(broker.url) as client:
        assert _values(client) == [b"1"]
        with client.producer("s") as producer:
            assert producer.send([b"2"]).result(WAIT_S).base_offset == Offset(1)
        status = Operations(client).status()
        for told, begins in zip(status.missing, missing, strict=True):
            assert told.startswith(begins)
        with pytest.raises(RemoteTierUnavailableError):
            client.tier_flush("s", timeout_ms=1_000)
    assert broker.log_events("nats_unreachable")
    assert broker.log_events("lake_unreachable")
    assert len(broker.log_events("leadership_claimed")) == 1, "of the first start"

    with scene.nats() as nats:
        scene.proxy.always()
        broker.wait_ready_saying()
        with Client(broker.url) as client:
            with NatsPublisher(nats.address, stream=stream) as out:
                out.publish([NatsMessage("s", b"3")])
                assert out.finish().acked == 1
            client.tier_flush("s", timeout_ms=60_000)
            assert client.tier_status("s")[0].cold.end == Offset(3)
            wait_until(lambda: not Operations(client).status().missing, "nothing is missing")
            assert _values(client) == [b"1", b"2", b"3"]
        wait_until(lambda: len(broker.log_events("leadership_claimed")) == 2, "the second claim")


def test_a_first_start_without_lake_writes_nothing_before_the_store_is_known(
    scene: Scene,
) -> None:
    """A store without conditional PUT is found late; before that no claim or object is written."""
    with scene.nats():
        scene.proxy.always(*AWAY)
        scene.broker.start()
        scene.broker.wait_ready_saying("the lake at s3://bad/lake")
        scene.proxy.always(Rule(Break.UNCONDITIONAL, "PUT"))
        with Client(scene.broker.url) as client:
            client.create_stream("s")
            with client.producer("s") as producer:
                assert producer.send([b"1"]).result(WAIT_S).base_offset == Offset(0)
            told = scene.broker.wait_ready_saying("conditional PUT")
            with pytest.raises(RemoteTierUnavailableError, match="conditional PUT"):
                client.tier_flush("s", timeout_ms=5_000)
        assert "single_writer" in told
        assert scene.broker.log_events("leadership_claimed") == []
