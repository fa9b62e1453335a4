"""Scenarios of Liftbridge's API, told by python-liftbridge 0.0.7, unmodified.

usage: scenarios.py HOST:PORT SCENARIO, in the environment of requirements.lock and with
PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python. Prints "ok", or ends with an error. A scenario of a
cluster prints "!kill BROKER" or "!start BROKER", and waits for a line on its standard input.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from python_liftbridge import Lift, Message, Stream
from python_liftbridge.errors import ErrNoSuchStream, ErrStreamExists

WAIT_S = 60.0


class Rig:
    """A client, and names of this run's own."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses.split(",")
        self.client = Lift(ip_address=self.addresses[0])
        self.prefix = f"y{uuid.uuid4().hex[:8]}"

    def create(self, suffix: str, **options: Any) -> str:
        """Create a stream on a subject of the same name; return the name."""
        name = self.prefix + suffix
        self.client.create_stream(Stream(subject=name, name=name, **options))
        return name

    def publish(self, stream: str, value: str, **fields: Any) -> Any:
        """Publish and wait for all replicas; the client sends no deadline."""
        return self.client.publish(Message(value=value, stream=stream, **fields).ack_policy_all())

    def insist(self, stream: str, value: str) -> int:
        """Publish until an acknowledgement comes; return its offset.

        An error of a call that has no class of its own makes the client's error handler fail.
        """
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                offset: int = self.publish(stream, value).ack.offset
            except IndexError:
                if time.monotonic() > deadline:
                    raise
            else:
                return offset

    def read(self, stream: Stream, count: int) -> list[Any]:
        """Return the first messages of a subscription, without the empty one that precedes."""
        found: list[Any] = []

        def take() -> None:
            found.extend(itertools.islice(self.client.subscribe(stream), count + 1))

        reader = threading.Thread(target=take, daemon=True)
        reader.start()
        reader.join(WAIT_S)
        assert not reader.is_alive(), f"{len(found)} of {count} messages within {WAIT_S} s"
        assert found[0].value == b"", found[0]
        return found[1:]

    def ask(self, what: str, broker: str) -> None:
        """Let whoever runs this program do something to a broker."""
        print(f"!{what} {broker}", flush=True)
        input()

    def place(self, stream: str) -> tuple[Any, dict[str, str]]:
        """Return what a broker says of partition 0, and where the brokers listen."""
        told = self.client.fetch_metadata()
        (found,) = (one for one in told.metadata if one.name == stream)
        return found.partitions[0], {one.id: f"{one.host}:{one.port}" for one in told.brokers}


def create(rig: Rig) -> None:
    """A second stream of a name is its own error."""
    name = rig.create("s")
    try:
        rig.client.create_stream(Stream(subject="other", name=name))
    except ErrStreamExists:
        return
    raise AssertionError("a second stream of the name was made")


def publish_subscribe(rig: Rig) -> None:
    """What is published is read, from each start that the client knows."""
    name = rig.create("s")
    for number in range(10):
        told = rig.publish(name, str(number), key="k", correlation_id=f"c{number}")
        assert (told.ack.offset, told.ack.correlationId) == (number, f"c{number}"), told
    stream = Stream(subject=name, name=name)
    found = rig.read(stream.start_at_earliest_received(), 10)
    assert [one.offset for one in found] == list(range(10)), found
    assert [one.value for one in found] == [b"%d" % number for number in range(10)]
    assert {one.key for one in found} == {b"k"}
    assert {one.stream for one in found} == {name}, "this client keeps the subject there"
    assert [one.timestamp for one in found] == sorted(one.timestamp for one in found)
    assert rig.read(stream.start_at_offset(4), 6)[0].offset == 4
    # Its start_at_time makes a text of many gigabytes, so the time is told as a difference.
    past = Stream(subject=name, name=name).start_at_time_delta(timedelta(days=2))
    assert rig.read(past, 10)[-1].offset == 9
    latest = Stream(subject=name, name=name).start_at_latest_received()
    assert rig.read(latest, 1)[0].offset == 9


def to_subject(rig: Rig) -> None:
    """Each stream on the subject has what is published to it."""
    subject = rig.prefix + "shared"
    for suffix in ("a", "b"):
        rig.client.create_stream(Stream(subject=subject, name=rig.prefix + suffix))
    rig.client.publish_to_subject(Message(value="x", subject=subject).ack_policy_leader())
    for suffix in ("a", "b"):
        start = Stream(subject=subject, name=rig.prefix + suffix).start_at_earliest_received()
        assert rig.read(start, 1)[0].value == b"x"


def metadata(rig: Rig) -> None:
    """Brokers and streams, in the fields of the proto of 2020."""
    name = rig.create("s")
    partition, addresses = rig.place(name)
    assert rig.addresses[0] in addresses.values()
    assert partition.leader in addresses
    assert list(partition.replicas) == list(partition.isr) == [partition.leader]


def unknown(rig: Rig) -> None:
    """What is not there is the client's error for it."""
    missing = rig.prefix + "no"
    stream = Stream(subject="x", name=missing)
    asks: list[Callable[[], Any]] = [
        lambda: rig.publish(missing, "x"),
        lambda: next(rig.client.subscribe(stream)),
    ]
    for ask in asks:
        try:
            ask()
        except ErrNoSuchStream:
            continue
        raise AssertionError("it was answered")


def many(rig: Rig) -> None:
    """Two thousand messages, one call each, and another client that reads meanwhile."""
    name = rig.create("s")
    stream = Stream(subject=name, name=name).start_at_earliest_received()
    reader = Lift(ip_address=rig.addresses[0]).subscribe(stream)
    next(reader)
    for number in range(2000):
        rig.publish(name, str(number))
    for number in range(2000):
        assert next(reader).offset == number


def leader_kill(rig: Rig) -> None:
    """Kill -9 of a leader: what was acknowledged is read at the next one.

    The client knows one broker, so the application connects to the next one itself.
    """
    name = rig.create("s", replication_factor=3)
    for number in range(20):
        assert rig.publish(name, str(number)).ack.offset == number
    partition, addresses = rig.place(name)
    victim = partition.leader
    left = [one for one in rig.addresses if one != addresses[victim]]
    rig.ask("kill", victim)
    other = Rig(",".join(left))
    acked = [other.insist(name, str(number)) for number in range(20, 40)]
    assert acked == sorted(set(acked)), acked
    partition, addresses = other.place(name)
    assert partition.leader != victim
    leader = Rig(addresses[partition.leader])
    found = leader.read(Stream(subject=name, name=name).start_at_earliest_received(), acked[-1] + 1)
    at = {one.offset: one.value for one in found}
    for number, offset in enumerate([*range(20), *acked]):
        assert at[offset] == b"%d" % number, (offset, at[offset])
    rig.ask("start", victim)


SCENARIOS = {
    one.__name__.replace("_", "-"): one
    for one in (create, publish_subscribe, to_subject, metadata, unknown, many, leader_kill)
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[2]](Rig(sys.argv[1]))
    print("ok", flush=True)
