"""The bound and the deadline of messages that have begun, and whose fault a pause is."""

from __future__ import annotations

import h2.config
import h2.connection

from broker.adapters.liftbridge.http2 import GrpcConnection, Http2Limits, MessagesArrived, prefixed
from broker.adapters.liftbridge.unfinished import (
    LATE_S,
    STEP_BYTES,
    MessageProgress,
    UnfinishedBytes,
)

_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/proto.API/PublishAsync"),
    (":authority", "test"),
    ("content-type", "application/grpc"),
]


def test_a_message_that_goes_on_slowly_is_not_late() -> None:
    """A step within each ten seconds is enough; a byte now and then is not."""
    slow, dripping = MessageProgress(), MessageProgress()
    seconds = [step * LATE_S / 4 for step in range(40)]
    for now_s in seconds:
        slow.arrived_bytes += STEP_BYTES // 3
        assert not slow.is_late(now_s, lambda: False)
    late = []
    for now_s in seconds:
        dripping.arrived_bytes += 1
        late.append(dripping.is_late(now_s, lambda: False))
    assert late.index(True) == 4


def test_a_message_that_we_hold_back_is_not_late() -> None:
    """HTTP/2's window is closed while messages wait for their publisher's quota."""
    held = MessageProgress()
    for step in range(10):
        assert not held.is_late(step * LATE_S, lambda: True)
    assert not held.is_late(10 * LATE_S - 0.1, lambda: False)
    assert held.is_late(10 * LATE_S, lambda: False)


def test_a_connection_knows_which_of_its_calls_it_holds_back() -> None:
    """The window that whole messages use up is open again once they are handled."""
    window = 4 * STEP_BYTES
    server = GrpcConnection(Http2Limits(window_bytes=window))
    server.start()
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.receive_data(server.take_output())
    client.send_headers(1, _HEADERS)
    whole = prefixed(bytes(STEP_BYTES - 5))
    data = 3 * whole + prefixed(bytes(window))[:100]
    for at in range(0, len(data), STEP_BYTES):
        client.send_data(1, data[at : at + STEP_BYTES])
    events = server.receive(client.data_to_send())
    assert server.keeps
    assert server.late(0.0) == server.late(LATE_S) == []
    for one in events:
        if isinstance(one, MessagesArrived):
            server.used(1, sum(one.windows_bytes))
    assert server.late(2 * LATE_S - 0.1) == []
    assert server.late(2 * LATE_S) == [1]


def test_a_new_message_begins_a_new_time() -> None:
    """A publisher may send a small message now and then for years."""
    server = GrpcConnection(Http2Limits())
    server.start()
    client = h2.connection.H2Connection(h2.config.H2Configuration())
    client.initiate_connection()
    client.receive_data(server.take_output())
    client.send_headers(1, _HEADERS)
    message = prefixed(b"a message")
    client.send_data(1, message[:6])
    for step in range(5):
        server.receive(client.data_to_send())
        assert server.late(step * LATE_S) == []
        client.send_data(1, message[6:] + message[:6])
    server.receive(client.data_to_send())
    client.send_data(1, message[6:])
    server.receive(client.data_to_send())
    assert not server.keeps


def test_large_messages_of_others_refuse_no_small_one() -> None:
    """Each connection has bytes of its own; what it gives back, others may take."""
    whole = UnfinishedBytes(shared_bytes_max=100, own_bytes_max=10)
    large, small = whole.share(1000), whole.share(1000)
    large.add(111)
    small.add(10)
    seen = [large.is_too_much, small.is_too_much]
    small.add(1)
    assert [*seen, small.is_too_much] == [True, False, True]
    large.close()
    large.add(-50)  # what its calls give back at their end counts no more
    assert (large.size, whole.shared_bytes) == (0, 1)
    assert not small.is_too_much
    alone = whole.share(20)
    alone.add(21)
    assert alone.is_too_much, "the bound of the connection itself"
