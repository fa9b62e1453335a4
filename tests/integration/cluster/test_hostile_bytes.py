"""Hostile bytes at every port and subject of a broker: it serves, stays small, loads no pickle.

The operating system says which ports there are, the NATS server which subjects, so that a new one
is not forgotten here.
"""

from __future__ import annotations

import contextlib
import json
import random
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pytest
from pyarrow import flight

from broker.codec.flight.actions import ACTIONS
from clusterkit.hostile import (
    LOOPBACK,
    Pickles,
    Recorder,
    listening,
    load,
    strangers_bytes,
    throw_all,
)
from clusterkit.hostile_peers import (
    header_blocks,
    member_context,
    members_bytes,
    stranger_context,
    subjects_bytes,
)
from clusterkit.load import publish, stored
from clusterkit.running import Cluster
from crashkit.processes import BrokerProcess
from headwater.client.client import Client
from headwater.local.embedded import NATS_PAYLOAD_BYTES_MAX, free_port
from simkit.servers.natsproc import NatsProcess, RawNats
from simkit.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GROWTH_BYTES_MAX: Final = 200 * 1024 * 1024  # the most that a broker's resident memory may reach
OURS: Final = b"ours-"
FLIGHT_ERRORS: Final = (flight.FlightError, pa.ArrowException, OSError)


class WatchedNats(NatsProcess):
    """A NATS server that lists the subscriptions of its connections."""

    def __init__(self, folder: Path) -> None:
        self._monitor = free_port()
        limits = f"max_payload: {NATS_PAYLOAD_BYTES_MAX}"
        super().__init__(folder, settings=f'http: "{LOOPBACK}:{self._monitor}"\n{limits}')

    def subjects(self) -> set[str]:
        """Return the subjects of every connection, wildcards filled in."""
        url = f"http://{LOOPBACK}:{self._monitor}/connz?subs=1"
        with urllib.request.urlopen(url, timeout=10) as answer:
            connections = json.load(answer)["connections"]
        found = {name for one in connections for name in one.get("subscriptions_list", [])}
        return {name.replace("*", "1").replace(">", "1") for name in found}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[WatchedNats]:
    """Run a NATS server for one test."""
    server = WatchedNats(tmp_path)
    with server:
        yield server


@pytest.fixture
def pickles(tmp_path: Path) -> Pickles:
    """Return pickles whose loading would be seen."""
    return Pickles(tmp_path / "a-pickle-was-loaded")


# ---------------------------------------------------------------------------- what is thrown


def _honest_traffic(flight_port: int) -> list[bytes]:
    """Return what an honest client sends to create, publish and read, a connection each."""
    recorder = Recorder(flight_port)
    with Client(f"grpc://{LOOPBACK}:{recorder.port}") as client:
        client.create_stream("scratch")
    for _ in range(2):  # a client with several addresses would avoid the recorder
        with flight.FlightClient(f"grpc://{LOOPBACK}:{recorder.port}") as raw:
            _call_with(raw, b"{}")
    recorder.close()
    found = [bytes(one) for one in recorder.sent if one]
    assert sum(map(len, found)) > 2000, "nothing was recorded"
    return [*found, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"]


def _call_with(raw: flight.FlightClient, data: bytes) -> None:
    """Make each Flight call with these bytes in each field of bytes."""
    options = flight.FlightCallOptions(timeout=20, headers=[(b"x-pickle-bin", data)])
    hidden = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": data,
    }
    schema = pa.schema(
        [pa.field("value", pa.binary(), metadata=hidden)], metadata={b"pandas": data}
    )
    rows = pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=schema)
    descriptors = [
        flight.FlightDescriptor.for_path("scratch", "0"),
        flight.FlightDescriptor.for_command(data),
        flight.FlightDescriptor.for_path(data),
    ]
    with contextlib.suppress(*FLIGHT_ERRORS):
        raw.do_get(flight.Ticket(data), options).read_all()
    for descriptor in descriptors:
        with contextlib.suppress(*FLIGHT_ERRORS):
            raw.get_flight_info(descriptor, options)
        with contextlib.suppress(*FLIGHT_ERRORS):
            writer, reader = raw.do_put(descriptor, rows.schema, options)
            writer.write_with_metadata(rows, data)
            writer.done_writing()
            reader.read()
            writer.close()
    for action in (*ACTIONS, "pickle"):
        with contextlib.suppress(*FLIGHT_ERRORS):
            list(raw.do_action(flight.Action(action, data), options))
    with contextlib.suppress(*FLIGHT_ERRORS):
        list(raw.list_flights(data, options))


def _throw_at_flight(port: int, pickles: Pickles) -> None:
    with flight.FlightClient(f"grpc://{LOOPBACK}:{port}") as raw:
        for one in pickles.payloads[::3]:
            _call_with(raw, one)


def _throw_at_subjects(
    nats: NatsProcess, subjects: Iterable[str], chance: random.Random, pickles: Pickles
) -> None:
    payloads = subjects_bytes(chance, pickles, 30)
    with RawNats(nats.port) as raw:
        for subject in subjects:
            for number, payload in enumerate(payloads):
                reply = ("", "_INBOX.nobody", subject, "scratch", "x" * 300)[number % 5]
                raw.publish(subject, payload, reply=reply)
            for block in header_blocks(chance, pickles):
                raw.publish(subject, payloads[5], reply="_INBOX.nobody", headers=block)
            raw.flush()


# ---------------------------------------------------------------------------- what holds


def _ours(client: Client) -> list[bytes]:
    return [one for one in stored(client, "kept") if one.startswith(OURS)]


def _resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


@pytest.mark.parametrize("transport", ["peer", "nats"])
def test_no_bytes_harm_a_broker_of_a_cluster(
    tmp_path: Path, nats: WatchedNats, pickles: Pickles, transport: str
) -> None:
    """The bytes go to each of its ports and to each subject of the brokers, which go on."""
    chance = random.Random(11)
    cluster = Cluster(tmp_path, nats.url, settings={"cluster": {"replica_transport": transport}})
    try:
        cluster.start_all()
        client = cluster.client()
        client.create_stream("kept", puback=True)
        cluster.publish("kept", OURS + b"before")
        number = cluster.leader("kept")
        name, ports = cluster.name(number), cluster.plan.ports[cluster.name(number)]
        pid = cluster.servers[name].process.pid
        found = listening(pid)
        assert found == {ports.flight, ports.http, ports.peer}
        expected = {"kept"}  # a leader subscribes some time after it takes records
        if transport == "nats":
            expected.add(f"{cluster.plan.name}.kept.0.replicate")
        cluster.wait_for(lambda: expected <= nats.subjects(), "the leader's subscriptions")
        subjects = nats.subjects()
        assert (transport == "nats") == any(one.endswith("kept.0.replicate") for one in subjects)
        honest = _honest_traffic(ports.flight)
        before = _resident(pid)
        for port in found:
            throw_all(port, strangers_bytes(chance, honest, pickles))
        noise = [[chance.randbytes(500)] for _ in range(10)]
        throw_all(ports.peer, noise, stranger_context())
        member = member_context(cluster, (number + 1) % 3)
        throw_all(ports.peer, members_bytes(chance, pickles, 40), member)
        _throw_at_flight(ports.flight, pickles)
        _throw_at_subjects(nats, subjects | nats.subjects(), chance, pickles)
        assert all(cluster.runs(one) for one in range(3)), "a broker ended"
        assert listening(pid) == found
        cluster.wait_for(cluster.in_sync("kept"), "every replica of it in sync")
        cluster.publish("kept", OURS + b"after")
        assert _ours(client) == [OURS + b"before", OURS + b"after"]
        assert _resident(pid) < before + GROWTH_BYTES_MAX
        assert cluster.said(number, "peer_refused"), (
            "no hostile bytes reached the decoder of frames"
        )
        assert not pickles.mark.exists(), "somebody loaded a pickle"
    finally:
        cluster.close()


def test_no_bytes_harm_a_broker_that_is_alone(
    tmp_path: Path, nats: WatchedNats, pickles: Pickles
) -> None:
    """It listens on two ports, and hears its streams' subjects."""
    chance = random.Random(12)
    broker = BrokerProcess(tmp_path / "broker", nats_url=nats.url, lake=str(tmp_path / "lake"))
    broker.start()
    try:
        broker.wait_ready()
        with Client(broker.url) as client:
            client.create_stream("kept", puback=True)
            publish(client, "kept", OURS + b"before")
            found = listening(broker.pid)
            assert found == {broker.flight_port, broker.http_port}
            wait_until(lambda: "kept" in nats.subjects(), "the broker subscribes")
            honest = _honest_traffic(broker.flight_port)
            before = broker.resident_bytes()
            for port in found:
                throw_all(port, strangers_bytes(chance, honest, pickles))
            _throw_at_flight(broker.flight_port, pickles)
            _throw_at_subjects(nats, nats.subjects(), chance, pickles)
            assert broker.exit_code is None
            broker.wait_ready()
            publish(client, "kept", OURS + b"after")
            assert _ours(client) == [OURS + b"before", OURS + b"after"]
            assert broker.resident_bytes() < before + GROWTH_BYTES_MAX
        assert not pickles.mark.exists(), "somebody loaded a pickle"
    finally:
        broker.kill()


def test_the_pickles_do_what_they_are_watched_for(tmp_path: Path) -> None:
    """A process that loads one is noticed, so the tests above can fail."""
    for number, _ in enumerate(Pickles(tmp_path).payloads[::3]):
        watched = Pickles(tmp_path / str(number))
        load(watched.payloads[3 * number])
        assert watched.mark.exists()
