"""Two clusters share a NATS server and a lake, and do not see each other."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.adapters.nats.replicas import NatsReplicaTransport
from broker.config import NatsConfig
from broker.model.epochs import LeaderEpoch
from broker.model.replica_messages import NewDataNotice
from clusterkit import forked_brokers
from headwater.client import Client
from headwater.local.embedded import (
    LOOPBACK,
    EmbeddedServer,
    free_port,
    http_status,
    start_nats,
    wait_ready,
)
from headwater.nats_publisher import NatsMessage, NatsPublisher
from headwater.reads.history import History
from simkit.brokers.replica_rigs import BROKERS, A, B, address, answer, fetch
from simkit.servers.natsproc import NatsProcess

pytestmark = pytest.mark.integration

WAIT_S = 90.0
NOTICE = NewDataNotice(leader_epoch=LeaderEpoch(7))


def test_replicas_of_two_clusters_do_not_hear_each_other(tmp_path: Path) -> None:
    """Same brokers, same stream, same partition: only the name of the cluster differs."""
    crashes: list[BaseException] = []
    with ExitStack() as stack:
        nats = stack.enter_context(NatsProcess(tmp_path))
        config = NatsConfig(url=f"nats://{LOOPBACK}:{nats.port}")
        heard: dict[tuple[str, str], queue.Queue[Any]] = {}
        transports: dict[tuple[str, str], NatsReplicaTransport] = {}
        for cluster in ("red", "blue"):
            for name in (A, B):
                at = (cluster, name)
                heard[at] = queue.Queue()
                transports[at] = NatsReplicaTransport(
                    config, cluster=cluster, me=name, brokers=BROKERS, on_crash=crashes.append
                )
                stack.callback(transports[at].close)
                transports[at].start(lambda *told, at=at: heard[at].put(told))
            transports[cluster, A].serve(address())
        for cluster in ("red", "blue"):  # NATS keeps nothing for subscriptions that begin later
            _until_answered(
                transports[cluster, B], heard[cluster, A], transports[cluster, A], heard[cluster, B]
            )
        for cluster, number in (("red", 1), ("blue", 2), ("red", 3), ("blue", 4)):
            sent = fetch(number)
            transports[cluster, B].send(A, address(), sent)
            assert _heard(heard[cluster, A]) == sent
            transports[cluster, A].send(B, address(), answer(number))
            assert _heard(heard[cluster, B]) == answer(number)
            transports[cluster, A].send(B, address(), NOTICE)
            assert _heard(heard[cluster, B]) == NewDataNotice(leader_epoch=LeaderEpoch(7))
        assert all(one.empty() for one in heard.values())
    assert crashes == []


def _until_answered(
    follower: NatsReplicaTransport,
    asked: queue.Queue[Any],
    leader: NatsReplicaTransport,
    answered: queue.Queue[Any],
) -> None:
    """Ask again and again, as replicas do, until there is an answer: a request has one only."""
    for _ in range(60):
        follower.send(A, address(), fetch(0))
        with suppress(queue.Empty):
            asked.get(timeout=0.5)
            leader.send(B, address(), answer(0))
            answered.get(timeout=0.5)
            return
    raise AssertionError("the follower heard no answer")


def _heard(inbox: queue.Queue[Any]) -> Any:
    """Return the next message that is no repeat of the first one."""
    while True:
        found = inbox.get(timeout=WAIT_S)[2]
        if found not in (fetch(0), answer(0)):
            return found


@contextmanager
def lone(folder: Path, *, cluster: str, namespace: str, nats: str, lake: str) -> Iterator[str]:
    """Run a broker that is a cluster by itself; give its Flight address."""
    folder.mkdir()
    flight, http = free_port(), free_port()
    sections: dict[str, dict[str, Any]] = {
        "node": {
            "id": "broker-0",
            "cluster": cluster,
            "namespace": namespace,
            "data_dir": str(folder / "data"),
        },
        "nats": {"url": nats},
        "flight": {"host": LOOPBACK, "port": flight},
        "http": {"host": LOOPBACK, "port": http},
        "lake": {"uri": lake},
    }
    lines: list[str] = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(one)}" for key, one in values.items())]
    config = folder / "broker.toml"
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "broker", "--config", str(config)]
    log = folder / "broker.log"
    server = EmbeddedServer(
        name=cluster,
        address=f"grpc://{LOOPBACK}:{flight}",
        port=flight,
        log_path=log,
        process=forked_brokers.spawn(command, log),
    )
    try:
        wait_ready(server, lambda: http_status(http, "GET", "/readyz") == 200)
        yield server.address
    finally:
        server.stop()


def values(client: Client) -> list[bytes]:
    """Return the values of stream ``orders``."""
    history = History(client, client.cut("orders"))
    return [value for batch in history.batches(["value"]) for value in batch[0].to_pylist()]


@pytest.mark.parametrize("namespaces", [("red", "blue"), ("default", "default")])
def test_names_subjects_tables_and_groups_are_apart(
    tmp_path: Path, namespaces: tuple[str, str]
) -> None:
    """Both have a stream ``orders``; each publisher is answered once, by its own cluster."""
    lake = str(tmp_path / "lake")
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(tmp_path / "nats"))
        clients = [
            stack.enter_context(
                Client(
                    stack.enter_context(
                        lone(
                            tmp_path / cluster,
                            cluster=cluster,
                            namespace=namespace,
                            nats=nats.address,
                            lake=lake,
                        )
                    )
                )
            )
            for cluster, namespace in zip(("red", "blue"), namespaces, strict=True)
        ]
        for cluster, client in zip(("red", "blue"), clients, strict=True):
            client.create_stream("orders", subject=f"{cluster}.orders", puback=True)
            stream = client.stream("orders")
            with NatsPublisher(nats.address, stream=stream, patience_s=WAIT_S) as out:
                out.publish([NatsMessage(f"{cluster}.orders", cluster.encode())] * 3)
                assert out.finish().acked == 3
            client.tier_flush("orders", timeout_ms=90_000)
        tables = set()
        for cluster, client in zip(("red", "blue"), clients, strict=True):
            assert [one.name for one in client.streams()] == ["orders"]
            assert values(client) == [cluster.encode()] * 3
            cut = client.cut("orders")
            assert cut.cluster == cluster
            tables.add(cut.table_uri)
        assert len(tables) == 2
