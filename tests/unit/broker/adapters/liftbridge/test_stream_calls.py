"""FetchMetadata: what it costs, and what a caller may learn from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from broker.adapters.liftbridge.statuses import Code, StatusError
from broker.adapters.liftbridge.stream_calls import StreamCalls
from broker.model.access import Kind
from broker.model.stream import Stream, StreamConfig
from broker.wire.liftbridge import api_pb2 as api
from simkit.brokers.memory_broker import MemoryBroker


class AskedBroker(MemoryBroker):
    """Notes which streams were looked up one by one: an unknown one costs a round of Raft."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def get(self, name: str) -> Stream:
        """See ``StreamsApi.get``."""
        self.asked.append(name)
        return super().get(name)


@pytest.fixture
def broker() -> Iterator[AskedBroker]:
    """Give a broker with two streams, of one and two partitions."""
    found = AskedBroker()
    for number, name in enumerate(("hr-pay", "shop"), 1):
        found.create(name, StreamConfig(subject=name, partitions=number))
    found.asked.clear()
    yield found
    found.close()


def _ask(
    broker: AskedBroker, *streams: str, hidden: Sequence[str] = (), groups: Sequence[str] = ()
) -> api.FetchMetadataResponse:
    def shown(kind: Kind, names: Sequence[str]) -> Sequence[str]:
        assert kind in {"stream", "group"}
        return [one for one in names if one not in hidden]

    request = api.FetchMetadataRequest(streams=streams, groups=groups).SerializeToString()
    calls = StreamCalls(broker, advertised=lambda: "127.0.0.1:9292")
    return api.FetchMetadataResponse.FromString(calls.fetch_metadata(request, shown))


def _told(answer: api.FetchMetadataResponse) -> list[tuple[str, int]]:
    return [(one.name, len(one.partitions)) for one in answer.streamMetadata]


def test_a_name_that_is_repeated_is_described_once(broker: AskedBroker) -> None:
    """A megabyte of one short name would be an answer of gigabytes."""
    answer = _ask(broker, *["shop"] * 10_000, groups=["g"] * 10_000)
    assert _told(answer) == [("shop", 2)]
    assert [one.groupId for one in answer.groupMetadata] == ["g"]


def test_more_names_than_a_client_needs_are_refused(broker: AskedBroker) -> None:
    """The error says what to do instead."""
    with pytest.raises(StatusError, match="none for all") as refused:
        _ask(broker, *(f"s{one}" for one in range(1001)))
    assert refused.value.status.code is Code.INVALID_ARGUMENT
    assert len(_ask(broker, *(f"s{one}" for one in range(1000))).streamMetadata) == 1000


def test_many_unknown_streams_are_asked_for_once(broker: AskedBroker) -> None:
    """One wait for newer metadata is enough for all of them."""
    answer = _ask(broker, "a", "b", "shop", "c")
    assert [one.error for one in answer.streamMetadata] == [1, 1, 0, 1]
    assert [one for one in broker.asked if one not in {"hr-pay", "shop"}] == ["a"]


def test_a_hidden_stream_is_as_one_that_is_not_there(broker: AskedBroker) -> None:
    """It is in no answer and in no count, and the broker does as much work in both cases."""
    there = _ask(broker, "hr-pay", "shop", hidden=["hr-pay", "hr-none"])
    cost = list(broker.asked)
    broker.asked.clear()
    absent = _ask(broker, "hr-none", "shop", hidden=["hr-pay", "hr-none"])
    assert there == absent
    assert broker.asked == cost
    assert _told(there) == [("shop", 2)]
    assert [one.partitionCount for one in there.brokers] == [2]


def test_a_caller_who_may_know_of_nothing_is_told_the_brokers_only(broker: AskedBroker) -> None:
    """Naming a hidden stream is not naming none, which asks for all."""
    answer = _ask(broker, "hr-pay", hidden=["hr-pay"])
    assert _told(answer) == []
    assert len(answer.brokers) == 1
    assert [one for one, _ in _told(_ask(broker, hidden=["hr-pay"]))] == ["__cursors", "shop"]
