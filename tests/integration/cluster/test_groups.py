"""A consumer group on three real brokers: a member, a leader, the coordinator killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from broker.errors import HeadwaterError, UnknownGroupError
from clusterkit.running import Cluster
from headwater.client import Client

pytestmark = pytest.mark.integration

SESSION_MS = 4_000
WAIT_S = 180.0  # CI has two cores for five of these at a time
_PROGRAM = """
import sys, headwater
url, name = sys.argv[1:]
with headwater.Client(url).consumer(name, group="g", session_ms=4000, commit_ms=300) as consumer:
    for record in consumer:
        print(record.value.decode(), flush=True)
"""


class Publisher(threading.Thread):
    """Sends numbers to both partitions until it is told to stop; keeps what was acknowledged."""

    def __init__(self, client: Client, stream: str) -> None:
        super().__init__(daemon=True)
        self.acked: list[bytes] = []
        self._producer = client.partitioned_producer(stream, retry_ms_max=60_000)
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Send one after the other; a failed leader is waited for."""
        number = 0
        while not self._over.wait(0.005):
            value = b"%d" % number
            self._producer.send([{"key": value, "value": value}]).result(60)
            self.acked.append(value)
            number += 1

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join(90)
        self._producer.close()


class GroupReader(threading.Thread):
    """A member in this process: keeps what it is given."""

    def __init__(self, client: Client, stream: str, *, session_ms: int = SESSION_MS) -> None:
        super().__init__(daemon=True)
        self.values: list[bytes] = []
        self.consumer = client.consumer(stream, group="g", session_ms=session_ms, commit_ms=300)
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Read until the end."""
        while not self._over.is_set():
            batch = self.consumer.poll(0.1)
            if batch is not None:
                self.values += batch.rows.column("value").to_pylist()

    def stop(self) -> None:
        """Leave the group."""
        self._over.set()
        self.join(30)
        self.consumer.close()


def wait_until(true: Callable[[], bool], what: str, seen: Callable[[], object] = str) -> None:
    """Wait for what the cluster does by itself; ``seen`` says what there is instead."""
    deadline = time.monotonic() + WAIT_S
    while not _holds(true):
        assert time.monotonic() < deadline, f"no {what}: {seen()}"
        time.sleep(0.05)


def _holds(true: Callable[[], bool]) -> bool:
    try:
        return true()
    except HeadwaterError:  # a broker that is to answer was killed
        return False


def _members(client: Client) -> int:
    with suppress(UnknownGroupError):  # nobody has joined yet
        return len(client.describe_group("g").members)
    return 0


def _is_read(client: Client, name: str) -> bool:
    try:
        ends = {one.partition: one.high_watermark for one in client.describe(name).partitions}
        told = client.describe_group("g").partitions
    except HeadwaterError:
        return False
    ours = [one for one in told if one.stream == name]  # the group read others before
    return all((one.offset or 0) == ends[one.partition] for one in ours)


@pytest.mark.timeout(480)
def test_nothing_is_skipped_when_a_member_and_a_leader_are_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A process that is killed leaves its partitions to the other member, at its position."""
    client = cluster.client()
    client.create_stream("shared", partitions=2)
    program = tmp_path / "member.py"
    program.write_text(_PROGRAM)
    with (tmp_path / "printed").open("wb") as printed:
        other = subprocess.Popen([sys.executable, program, cluster.url, "shared"], stdout=printed)
    reader, publisher = GroupReader(client, "shared"), Publisher(client, "shared")
    try:
        wait_until(lambda: _members(client) == 2, "second member")
        wait_until(lambda: len(reader.consumer.assignment) == 1, "shared partitions")
        wait_until(lambda: len(publisher.acked) > 50, "records")
        other.kill()
        wait_until(lambda: len(reader.consumer.assignment) == 2, "partitions of the killed")
        count = len(publisher.acked)
        cluster.kill(cluster.leader("shared", 0))
        wait_until(lambda: len(publisher.acked) > count + 50, "records after the kill")
        publisher.stop()
        wait_until(
            lambda: _is_read(client, "shared"),
            "end",
            lambda: (reader.is_alive(), client.describe_group("g"), client.describe("shared")),
        )
        reader.stop()
        seen = Counter(reader.values)
        seen.update((tmp_path / "printed").read_bytes().split(b"\n"))
        assert set(publisher.acked) <= set(seen)
    finally:
        other.kill()
        other.wait(30)
        publisher.stop()
        reader.stop()


@pytest.mark.timeout(480)
def test_members_go_on_when_their_coordinator_is_killed(cluster: Cluster) -> None:
    """Another broker takes its place, they keep their partitions."""
    client = cluster.client()
    client.create_stream("kept", partitions=2, partitioner="each_client")
    # No session may end: a member that comes back has its partitions in another epoch.
    readers = [GroupReader(client, "kept", session_ms=30_000) for _ in range(2)]
    try:
        wait_until(lambda: all(len(one.consumer.assignment) == 1 for one in readers), "shares")
        before = client.describe_group("g")
        names = [cluster.name(number) for number in range(3)]
        cluster.kill(names.index(before.coordinator))
        wait_until(
            lambda: client.describe_group("g").coordinator != before.coordinator, "coordinator"
        )
        held = {one.partition: (one.member, one.epoch) for one in before.partitions}
        after = client.describe_group("g")
        assert {one.partition: (one.member, one.epoch) for one in after.partitions} == held
        for number in range(2):
            with client.producer("kept", number) as producer:
                producer.send([b"%d" % number]).result(60)
        wait_until(lambda: sum(len(one.values) for one in readers) == 2, "records")
    finally:
        for one in readers:
            one.stop()
