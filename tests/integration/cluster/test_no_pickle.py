"""A cluster in ordinary use and under attack, with every way to load a pickle closed.

The brokers' Python notes and refuses each attempt; see clusterkit/pickle_trap. Groups of Raft
members, with snapshots over the wire, live under the same trap in test_raft_no_pickle.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterkit
from clusterkit.hostile import Pickles, throw_all
from clusterkit.hostile_peers import member_context, members_bytes
from clusterkit.load import publish, stored
from clusterkit.running import Cluster
from crashkit.processes import BrokerProcess
from headwater.client.client import Client
from headwater.client.operations import Operations
from headwater.local.embedded import start_nats
from headwater.nats_publisher import NatsMessage, NatsPublisher

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRAP = Path(clusterkit.__file__).with_name("pickle_trap")


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Path]:
    """Set the trap for every Python process that begins from now on; return where it notes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TRAP))
        patch.setenv("HEADWATER_TEST_UNPICKLED", str(tmp_path / "unpickled"))
        yield tmp_path / "unpickled"


@pytest.fixture
def pickles(tmp_path: Path) -> Pickles:
    """Return pickles whose loading would be seen."""
    return Pickles(tmp_path / "a-pickle-was-loaded")


@pytest.mark.parametrize(
    "way",
    [
        "pickle.loads(data)",
        "pickle.load(io.BytesIO(data))",
        "pickle.Unpickler(io.BytesIO(data)).load()",
        "pickle._Unpickler(io.BytesIO(data)).load()",
        "_pickle.loads(data)",
        "type('Own', (Unpickler,), {})(io.BytesIO(data)).load()",
    ],
)
def test_the_trap_hears_every_way(tried: Path, pickles: Pickles, way: str) -> None:
    """What the next tests rely on: an attempt raises, is noted with a stack, and loads nothing."""
    script = f"""
import io, pickle, _pickle
from pickle import Unpickler
data = {pickles.payloads[-3]!r}
{way}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"UnpickledError" in done.stderr
    assert "ickle" in tried.read_text(encoding="utf-8")
    assert not pickles.mark.exists()


def test_a_cluster_lives_without_loading_a_pickle(
    tmp_path: Path, tried: Path, pickles: Pickles
) -> None:
    """Streams are created, written, shipped, failed over, moved, attacked: no pickle is loaded."""
    with start_nats(tmp_path / "nats") as nats:
        cluster = Cluster(tmp_path, nats)
        try:
            cluster.start_all()
            _live(cluster)
            for number in range(3):
                cluster.kill(number)
            cluster.start_all()  # with journals, logs, producers and tables on their disks
            client = cluster.client()
            cluster.wait_for(cluster.in_sync("kept"), "everybody in sync")
            assert len(stored(client, "kept")) == 701
            chance = random.Random(3)
            number = cluster.leader("kept")
            ports = cluster.plan.ports[cluster.name(number)]
            bare = [[one] for one in pickles.payloads]
            for port in (ports.flight, ports.http, ports.peer):
                throw_all(port, bare)
            member = member_context(cluster, (number + 1) % 3)
            throw_all(ports.peer, members_bytes(chance, pickles, 10), member)
            cluster.publish("kept", *pickles.payloads)  # pickles are ordinary values of records
            cluster.wait_for(cluster.in_sync("kept"), "everybody in sync")
            for at in range(3):
                assert cluster.read_at(at, "kept")[701:] == pickles.payloads
            assert all(cluster.runs(one) for one in range(3))
        finally:
            cluster.close()
    assert not tried.exists(), tried.read_text(encoding="utf-8")


def _live(cluster: Cluster) -> None:
    """Do what a cluster's users and operators do."""
    client = cluster.client()
    client.create_stream(
        "kept", puback=True, segment_bytes_max=8192, local_retention_bytes=0, dedup_window_ms=60_000
    )
    client.create_stream("gone", partitions=3)
    client.delete_stream("gone")
    for first in range(0, 400, 40):
        cluster.publish("kept", *(b"%0100d" % number for number in range(first, first + 40)))
    with NatsPublisher(
        cluster.nats_url, stream=client.stream("kept"), window=64, patience_s=90
    ) as out:
        out.publish([NatsMessage("kept", b"over nats %d" % number) for number in range(300)])
        assert out.finish().acked == 300
    client.tier_flush("kept")
    assert client.tier_status("kept")[0].cold.end > 0
    victim = cluster.leader("kept")
    cluster.kill(victim)
    cluster.publish("kept", b"after the leader died")
    cluster.start(victim)
    cluster.wait_for(cluster.in_sync("kept"), "the killed one in sync")
    Operations(client).transfer_leader("kept", 0, cluster.name(victim))
    client.describe("kept")


def test_pickles_instead_of_files_are_not_loaded(
    tmp_path: Path, tried: Path, pickles: Pickles
) -> None:
    """Each file of a broker in turn becomes a pickle: it refuses to start, or makes it anew."""
    with start_nats(tmp_path / "nats") as nats:
        broker = BrokerProcess(
            tmp_path / "broker", nats_url=nats.address, lake=str(tmp_path / "lake")
        )
        broker.start()
        try:
            broker.wait_ready()
            with Client(broker.url) as client:
                client.create_stream("kept", segment_bytes_max=16384, dedup_window_ms=60_000)
                publish(client, "kept", *(b"x" * 100,) * 100)
            assert broker.stop_within(60)
            whole = tmp_path / "whole"
            shutil.copytree(broker.data_dir, whole)
            files = [one.relative_to(whole) for one in whole.rglob("*") if one.is_file()]
            kinds = {one.suffix or one.name for one in files}
            assert kinds - {".producers-copy"} == {  # a copy is there once a segment was freed
                ".lock", "journal", ".json", ".index", ".log", ".producers", "epochs", "recovery",
                    "member", "meta", "promises",
            }  # fmt: skip
            for number, file in enumerate(files):
                (broker.data_dir / file).write_bytes(pickles.payloads[number])
                broker.start()
                broker.wait_answering()
                broker.kill()
                assert not broker.log_events("broker_crashed"), f"{file}: {broker.log_tail()}"
                shutil.rmtree(broker.data_dir)
                shutil.copytree(whole, broker.data_dir)
        finally:
            broker.kill()
    assert not tried.exists(), tried.read_text(encoding="utf-8")
    assert not pickles.mark.exists()
