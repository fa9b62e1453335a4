"""To which addresses a broker answers publishers on NATS: not where its own rights are abused."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from broker.core.access.replies import ReplyAddresses
from broker.model.ids import StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.model.tenant import Tenant

TENANTS = {
    "shop": Tenant(name="shop", owners=("shop",), subjects=("shop.>",)),
    "hr": Tenant(name="hr", owners=("hr",), subjects=("hr.>",)),
}


def stream(name: str, subject: str, partitions: int = 1) -> Stream:
    """Return a stream."""
    return Stream(
        name=name,
        uuid=StreamUuid("00000000-0000-4000-8000-000000000001"),
        config=StreamConfig(subject=subject, partitions=partitions),
        created_us=1,
        table_name=name,
    )


IN = stream("shop-in", "shop.in")
STREAMS = {
    one.name: one
    for one in (IN, stream("hr-pay", "hr.pay"), stream("grown", "grown", 3), stream("w", "w.*"))
}
BROKERS = ("headwater.*.*.replicate",)


def takes(address: str, *, guarded: bool = True) -> bool:
    """Ask for a publisher of the shop's stream."""
    rule = ReplyAddresses(BROKERS, guarded=guarded)
    return rule.takes(IN, address, streams=STREAMS, tenants=TENANTS)


@pytest.mark.parametrize(
    "address", ["_INBOX.a.b", "$JS.ACK.s.c.1.2.3", "replies.7", "shop.answers"]
)
def test_a_publisher_has_addresses_of_its_own(address: str) -> None:
    """Inboxes, JetStream's acknowledgements, subjects of nobody and of the stream's tenant."""
    assert takes(address)
    assert takes(address, guarded=False)


@pytest.mark.parametrize("address", ["hr.pay", "hr.anything", "shop.in", "grown", "grown.2", "w.x"])
def test_no_answer_becomes_a_record_or_a_request_of_others(address: str) -> None:
    """Without access everybody may publish anywhere, as on a JetStream of one's own."""
    assert not takes(address)
    assert takes(address, guarded=False)


@pytest.mark.parametrize(
    "address",
    ["$JS.API.STREAM.DELETE.x", "$SYS.REQ.SERVER.PING", "$KV.b.k", "headwater.0.1.replicate"],
)
def test_no_answer_is_a_command(address: str) -> None:
    """Whether access is on or off: of NATS, or of the brokers."""
    assert not takes(address)
    assert not takes(address, guarded=False)


def test_a_new_stream_is_known_at_once() -> None:
    """Other streams and tenants are other mappings."""
    rule = ReplyAddresses((), guarded=True)
    assert rule.takes(IN, "later", streams=STREAMS, tenants={})
    more = MappingProxyType({**STREAMS, "later": stream("later", "later")})
    assert not rule.takes(IN, "later", streams=more, tenants={})
    assert rule.takes(IN, "later", streams=STREAMS, tenants={})
    later = {**TENANTS, "later": Tenant(name="later", owners=("l",), subjects=("later",))}
    assert not rule.takes(IN, "later", streams=STREAMS, tenants=later)
