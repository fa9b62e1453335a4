"""Which streams may answer publishers: checked at creation (issue 11, items 1 and 4)."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import CreateStream, decode, encode, encode_new
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.state import MetadataState
from broker.errors import InvalidStreamError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.model.tenant import Tenant


def _create(
    state: MetadataState, name: str, *, older: bool = False, **config: Any
) -> tuple[MetadataState, Any]:
    stream = Stream(
        name=name,
        uuid=StreamUuid(str(uuid.uuid5(uuid.NAMESPACE_DNS, name))),
        config=StreamConfig(**{"puback": True, **config}),
        created_us=1,
        table_name=name,
    )
    command = CreateStream(stream=stream, leader=BrokerId("b1"))
    data = encode(command).replace(b'"one_answers":false,', b"") if older else encode_new(command)
    return apply(state, decode(data))


def _with_pay() -> MetadataState:
    state, reply = _create(MetadataState(), "pay", subject="pay.in")
    assert reply["created"]
    return state


def _refusal(state: MetadataState, name: str, **config: Any) -> str:
    after, reply = _create(state, name, **config)
    assert isinstance(reply, Rejected), reply
    assert isinstance(reply.error, InvalidStreamError)
    assert after is state
    return reply.error.message


def test_a_second_stream_that_answers_is_refused_with_the_firsts_name() -> None:
    """A publisher on ``pay.in`` would get two answers."""
    told = _refusal(_with_pay(), "audit", subject="pay.>")
    assert "'pay'" in told
    assert "--puback-overlap" in told


def test_a_tenant_does_not_learn_the_names_of_others() -> None:
    """The refusal names a stream of the same tenant only; to who is no tenant it names any."""
    state = replace(_with_pay(), tenants={"shop": Tenant(name="shop")})
    told = _refusal(state, "shop-in", subject="pay.>")
    assert "another stream" in told
    assert "'pay'" not in told
    state, _ = _create(state, "shop-out", subject="shop.out")
    assert "'shop-out'" in _refusal(state, "shop-in", subject="shop.>")
    assert "'shop-out'" in _refusal(state, "audit", subject="shop.>")


def test_subjects_of_partitions_count() -> None:
    """Partition 2 of ``pay`` listens to ``pay.2``, which ``pay.*`` covers."""
    state, _ = _create(MetadataState(), "pay", subject="pay", partitions=3)
    assert "'pay'" in _refusal(state, "audit", subject="*.2", puback_headers_only=True)


@pytest.mark.parametrize(
    "config",
    [
        {"subject": "pay.>", "puback_overlap": True},
        {"subject": "pay.>", "puback": False},
        {"subject": "pay.out"},
    ],
    ids=["consent", "silent", "elsewhere"],
)
def test_a_second_stream_that_confuses_nobody_is_made(config: dict[str, Any]) -> None:
    """The creator consents, or the stream does not answer, or its subjects differ."""
    _, reply = _create(_with_pay(), "audit", **config)
    assert reply["created"]


def test_streams_of_one_queue_group_are_made() -> None:
    """Each message goes to one of them, so it has one answer."""
    state, _ = _create(MetadataState(), "one", subject="foo", queue_group="g")
    _, reply = _create(state, "two", subject="foo", queue_group="g")
    assert reply["created"]
    assert "'one'" in _refusal(state, "three", subject="foo", queue_group="h")


@pytest.mark.parametrize("subject", [">", "*", "*.in", "_INBOX.>", "$SRV.>"])
def test_answering_other_peoples_requests_needs_a_word(subject: str) -> None:
    """``--puback-headers-only`` allows it; a stream that does not answer needs no option."""
    assert "--puback-headers-only" in _refusal(MetadataState(), "all", subject=subject)
    for given in ({"puback_headers_only": True}, {"puback": False}):
        _, reply = _create(MetadataState(), "all", subject=subject, **given)
        assert reply["created"]


def test_streams_of_an_older_journal_are_still_there() -> None:
    """A journal of the version before holds overlapping streams: they are made as they were."""
    state, reply = _create(_with_pay(), "audit", older=True, subject="pay.>")
    assert reply["created"]
    state, reply = _create(state, "all", older=True, subject=">")
    assert reply["created"]
    assert sorted(state.streams) == ["all", "audit", "pay"]
