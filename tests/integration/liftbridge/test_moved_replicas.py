"""Readers whose replica is moved away, or whose cluster was restarted, over three brokers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from broker.codec.flight.protocol import ReadRequest
from broker.errors import HeadwaterError, NotLeaderError, ShuttingDownError
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge import message_pb2 as wire
from clusterkit.lift_brokers import LiftCluster, lift_cluster
from clusterkit.lift_calls import WAIT_S, LiftCalls, until
from headwater.cli.main import app
from headwater.client.address import resolve_addresses
from headwater.client.brokers import Brokers
from headwater.client.fetch import Fetch
from headwater.client.read_route import ReadRoute

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def lift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftCluster]:
    """Run three brokers."""
    with lift_cluster(tmp_path_factory.mktemp("moved")) as running:
        yield running


def _calls(lift: LiftCluster, number: int) -> LiftCalls:
    return LiftCalls(lift.addresses.split(",")[number])


def _followed_at(lift: LiftCluster, number: int, stream: str, seen: list[Any]) -> threading.Thread:
    """Follow a stream at one broker over Flight; the last thing that is seen is the error."""

    def follow() -> None:
        brokers = Brokers(resolve_addresses(lift.cluster.url_of(number)))
        request = ReadRequest(stream=stream, partition=0, follow=True)
        try:
            for part in Fetch(ReadRoute(brokers, request, retry_ms=0), request):
                seen.extend(part.batch["value"].to_pylist())
        except HeadwaterError as error:
            seen.append(error)
        finally:
            brokers.close()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


def test_readers_at_a_replica_that_is_moved_are_told_to_ask_another_broker(
    lift: LiftCluster,
) -> None:
    """They have all that is committed there, and wait for more: it comes at other brokers."""
    cluster = lift.cluster
    with _calls(lift, 0) as calls:
        stream = calls.create(replicationFactor=2)
        for number in range(3):
            calls.publish(stream, b"%d" % number, ackPolicy=wire.ALL)
    cluster.wait_for(lambda: len(cluster.look(stream).isr) == 2, "both replicas in sync")
    place = cluster.look(stream)
    (leaving,) = set(place.replicas) - {place.leader}
    (spare,) = set(cluster.plan.brokers) - set(place.replicas)
    at = cluster.plan.brokers.index(leaving)
    seen: list[Any] = []
    following = _followed_at(lift, at, stream, seen)
    with _calls(lift, at) as calls:
        call = calls.subscribe(stream, startPosition=api.EARLIEST, readISRReplica=True)
        assert [one.offset for one in itertools.islice(call, 3)] == [0, 1, 2]
        until(lambda: len(seen) == 3, "all records are followed")
        there = ("--to", f"{place.leader},{spare}", "--server", cluster.url)
        moved = CliRunner().invoke(app, ["cluster", "move", stream, "0", *there])
        assert moved.exit_code == 0, moved.output
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE, ended.value
    following.join(WAIT_S)
    assert not following.is_alive(), "the follower over Flight is told, too"
    assert isinstance(seen[-1], ShuttingDownError | NotLeaderError), seen  # it asks once more


def test_a_subscriber_goes_on_behind_its_last_record_after_every_broker_was_killed(
    lift: LiftCluster,
) -> None:
    """The first leader does not know what was committed; it sends nothing a second time."""
    cluster, count = lift.cluster, 20
    with _calls(lift, 0) as calls:
        stream = calls.create(replicationFactor=3)
        for number in range(count):
            calls.publish(stream, b"%d" % number, ackPolicy=wire.ALL)
    for number in range(3):
        cluster.kill(number)
    cluster.start_all()
    found = _soonest(lift, stream, startPosition=api.OFFSET, startOffset=count)
    assert found == [count], "nothing twice"


def _soonest(lift: LiftCluster, stream: str, **request: Any) -> list[int]:
    """Return the offset of the next record of a subscription that is asked for again and again."""
    clients = [_calls(lift, number) for number in range(3)]
    deadline_s = time.monotonic() + WAIT_S
    try:
        for calls in itertools.cycle(clients):
            assert time.monotonic() < deadline_s, "no broker accepts the subscription"
            with suppress(grpc.RpcError):
                call = calls.subscribe(stream, **request)
                calls.publish(stream, b"next", ackPolicy=wire.ALL)
                return [one.offset for one in itertools.islice(call, 1)]
    finally:
        for one in clients:
            one.__exit__()
    raise AssertionError
