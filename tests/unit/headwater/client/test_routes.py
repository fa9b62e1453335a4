"""Which broker a producer or a reader turns to next, against brokers that answer from a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.codec.flight.protocol import ReadRequest, StreamPath
from broker.errors import (
    HeadwaterError,
    NoAnswerError,
    NotLeaderError,
    SegmentCorruptError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.epochs import LeaderEpoch
from broker.model.ids import StreamUuid
from headwater.client.address import Address, resolve_addresses
from headwater.client.brokers import Brokers
from headwater.client.leader_route import LeaderRoute
from headwater.client.read_route import ReadRoute

UUID = StreamUuid("00000000-0000-4000-8000-000000000001")
URLS = {"a": "grpc://a:1", "b": "grpc://b:1", "c": "grpc://c:1"}


class World:
    """Three brokers: which are absent, which one leads, and which were asked."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.leader: str | None = "a"
        self.epoch = 1
        self.asked: list[str] = []

    def ask(self, broker: str, action: str) -> list[dict[str, Any]]:
        """Answer an action as this broker would."""
        self.asked.append(broker)
        if broker in self.gone:
            raise NoAnswerError("gone", address=URLS[broker])
        if action == "brokers":
            return [{"broker": one, "flight": url, "alive": True} for one, url in URLS.items()]
        if action == "locate":
            return [
                {
                    "stream_uuid": UUID,
                    "partition": 0,
                    "leader": self.leader,
                    "flight": self.leader and URLS[self.leader],
                    "leader_epoch": self.epoch,
                    "replicas": ["a", "b", "c"],
                    "isr": ["a", "b", "c"],
                }
            ]
        raise UnknownStreamError("none")


class ScriptedBrokers(Brokers):
    """Brokers whose connections ask the world."""

    def __init__(self, world: World, url: str) -> None:
        super().__init__(resolve_addresses(url, environment={}))
        self._world = world

    def connection(self, address: Address) -> Any:
        """Return a connection that answers from the script."""
        return _Connection(self._world, address.host)


class _Connection:
    def __init__(self, world: World, broker: str) -> None:
        self._world = world
        self.broker = broker

    def action(
        self, name: str, values: Mapping[str, Any], *, timeout_ms: int
    ) -> list[dict[str, Any]]:
        return self._world.ask(self.broker, name)

    def get(self, request: ReadRequest) -> Any:
        return self


@pytest.fixture
def world() -> World:
    """Three brokers that answer."""
    return World()


def producer_route(world: World, url: str = "a:1,b:1,c:1") -> LeaderRoute:
    """Return the route of a producer."""
    path = StreamPath(stream="s", partition=0, stream_uuid=UUID)
    return LeaderRoute(ScriptedBrokers(world, url), path)


def where(route: LeaderRoute) -> str:
    """Return the broker that a producer connects to."""
    return route.connect().address.host


def test_any_broker_answers_for_one_that_is_gone(world: World) -> None:
    """The next one is asked, and the one that answered is asked first from then on."""
    brokers = ScriptedBrokers(world, "a:1,b:1,c:1")
    world.gone = {"a"}
    brokers.action("brokers", {})
    brokers.action("brokers", {})
    assert world.asked == ["a", "b", "b"]
    world.gone = {"a", "b", "c"}
    with pytest.raises(NoAnswerError) as none_answers:
        brokers.action("brokers", {})
    assert all(url in none_answers.value.message for url in URLS.values())


def test_what_a_broker_says_is_not_asked_again(world: World) -> None:
    """Only silence is a reason to ask another one."""
    brokers = ScriptedBrokers(world, "a:1,b:1")
    with pytest.raises(UnknownStreamError):
        brokers.action("describe_stream", {})
    assert world.asked == ["a"]


def test_a_long_call_begins_with_a_short_one(world: World) -> None:
    """Nobody waits a minute for a broker that is paused, if there is another."""
    brokers = ScriptedBrokers(world, "a:1,b:1")
    with pytest.raises(UnknownStreamError):
        brokers.action("cut", {}, timeout_ms=60_000)
    assert world.asked == ["a", "a"]


def test_one_address_leads_to_the_others(world: World) -> None:
    """A client that knows one broker learns the rest from it, once."""
    brokers = ScriptedBrokers(world, "b:1")
    assert not brokers.several
    brokers.discover()
    brokers.discover()
    assert [one.host for one in brokers.known()] == ["b", "a", "c"]
    assert world.asked == ["b"]


def test_a_producer_follows_a_hint_and_then_asks(world: World) -> None:
    """A follower names the leader; if that does not help, the brokers are asked."""
    route = producer_route(world)
    assert where(route) == "a"
    route.failed(NotLeaderError("moved", leader="b", address=URLS["b"]))
    assert where(route) == "b"
    world.leader, world.epoch = "c", 2
    route.failed(NotLeaderError("ended"))
    assert where(route) == "c"


def test_two_that_name_each_other_do_not_keep_a_producer_busy(world: World) -> None:
    """After a few hints in a row another broker is asked."""
    route = producer_route(world)
    world.leader = "c"
    found = [where(route)]
    for number in range(6):
        route.failed(NotLeaderError("not me", address=URLS["ab"[number % 2]]))
        found.append(where(route))
    assert "c" in found[1:]


def test_an_old_leader_is_not_gone_back_to(world: World) -> None:
    """A broker that has not heard of the newest leader is no authority on it."""
    route = producer_route(world)
    route.succeeded(LeaderEpoch(2))
    with pytest.raises(NotLeaderError):
        route.connect()
    world.epoch = 2
    assert where(route) == "a"


def test_nobody_leads_is_worth_another_try(world: World) -> None:
    """During an election the producer waits, with the error that says so."""
    world.leader = None
    with pytest.raises(NotLeaderError) as caught:
        producer_route(world).connect()
    assert caught.value.retriable


def test_another_incarnation_is_not_written_to(world: World) -> None:
    """A stream that was created again is another stream, despite its name."""
    path = StreamPath(
        stream="s", partition=0, stream_uuid=StreamUuid("00000000-0000-4000-8000-000000000002")
    )
    with pytest.raises(StreamRecreatedError):
        LeaderRoute(ScriptedBrokers(world, "a:1,b:1"), path).connect()


def read_route(world: World, **request: Any) -> tuple[ReadRoute, ReadRequest]:
    """Return the route of a read, and its request."""
    wanted = ReadRequest(stream="s", partition=0, **request)
    return ReadRoute(ScriptedBrokers(world, "a:1,b:1,c:1"), wanted, retry_ms=60_000), wanted


def test_a_reader_asks_the_leader_then_every_other_replica(world: World) -> None:
    """Each once, before anybody is asked again."""
    route, request = read_route(world)
    found = []
    for _ in range(3):
        opened: Any = route.get(request)
        found.append(opened.broker)
        assert route.again(NoAnswerError("gone"))
    assert found[0] == "a"
    assert sorted(found) == ["a", "b", "c"]


def test_a_reader_of_uncommitted_records_asks_leaders_only(world: World) -> None:
    """Without a leader it waits for the next one."""
    route, request = read_route(world, uncommitted=True)
    opened: Any = route.get(request)
    assert opened.broker == "a"
    assert route.again(NotLeaderError("ended"))
    world.leader = None
    with pytest.raises(NotLeaderError):
        route.get(request)
    world.leader = "b"
    opened = route.get(request)
    assert opened.broker == "b"


def test_damage_is_told_once_every_replica_has_it(world: World) -> None:
    """One damaged copy is no loss; the same damage everywhere is not asked about for ever."""
    route, request = read_route(world)
    error: HeadwaterError = SegmentCorruptError("rot")
    tries = 0
    route.get(request)
    while route.again(error):
        tries += 1
        assert tries < 10
        route.get(request)
    assert tries >= 3


def test_a_broker_that_is_away_may_have_what_is_damaged_elsewhere(world: World) -> None:
    """It is waited for, also after the others were asked twice; then it is damaged, too."""
    route, request = read_route(world)
    rot: HeadwaterError = SegmentCorruptError("rot")
    away = "c"
    for _ in range(6):
        opened: Any = route.get(request)
        assert route.again(NoAnswerError("gone") if opened.broker == away else rot)
    away = ""
    tries = 0
    while route.again(rot):
        opened = route.get(request)
        tries += 1
        assert tries < 10


def test_a_follower_of_a_single_broker_waits_for_its_restart(world: World) -> None:
    """A following read asks again until its time is up; a read with an end fails at once."""
    alone = ScriptedBrokers(world, "a:1")
    assert not alone.several
    following = ReadRoute(alone, ReadRequest(stream="s", partition=0, follow=True), retry_ms=200)
    assert following.again(NoAnswerError("gone"))
    assert not following.again(SegmentCorruptError("rot"))
    while following.again(NoAnswerError("gone")):
        pass
    ending = ReadRoute(alone, ReadRequest(stream="s", partition=0), retry_ms=200)
    assert not ending.again(NoAnswerError("gone"))


def test_a_refusal_ends_a_read(world: World) -> None:
    """What can never succeed is not tried elsewhere."""
    route, request = read_route(world)
    route.get(request)
    assert not route.again(UnknownStreamError("none"))
    assert not route.again(StreamRecreatedError("another"))


def test_a_silent_broker_is_left_when_it_does_not_answer(world: World) -> None:
    """A quiet stream is not a reason to go; a broker that is gone is."""
    route, request = read_route(world)
    route.get(request)
    assert route.lost() is None
    world.gone = {"a"}
    assert isinstance(route.lost(), NoAnswerError)
