"""What waits for a connection: urgent lanes first, bounded, old things dropped, nothing copied."""

from __future__ import annotations

from broker.adapters.peer.queue import QUEUE_BYTES_MAX, SendQueue
from broker.codec.peer.frames import PAYLOAD_BYTES_MAX, FrameAssembler, LaneKind


def _drain(queue: SendQueue) -> list[tuple[LaneKind, bytes]]:
    """Write everything; return the messages in the order in which they are whole."""
    assembler = FrameAssembler()
    found = []
    while pieces := queue.pieces():
        stream = b"".join(bytes(piece) for piece in pieces)
        while stream:
            target = assembler.target
            size = min(len(target), len(stream))
            target[:size] = stream[:size]
            stream = stream[size:]
            found += [(lane, bytes(data)) for lane, data in assembler.received(size)]
    return found


def test_an_urgent_message_goes_between_the_frames_of_a_large_one() -> None:
    """A heartbeat that comes while a batch is being sent waits for one frame, not for the batch."""
    queue = SendQueue()
    batch = bytes(3 * PAYLOAD_BYTES_MAX)
    queue.put(LaneKind.REPLICA, (batch,), 0.0)
    first = sum(len(piece) for piece in queue.pieces())
    assert first <= PAYLOAD_BYTES_MAX + 64
    queue.put(LaneKind.CONTROL, (b"heartbeat",), 0.0)
    queue.put(LaneKind.RAFT, (b"append",), 0.0)
    next_write = b"".join(bytes(piece) for piece in queue.pieces())
    assert next_write.index(b"append") < next_write.index(b"heartbeat") < 64


def test_order_holds_within_a_lane_and_buffers_join_to_one_message() -> None:
    """Empty buffers and large ones are all right; small messages share a write."""
    queue = SendQueue()
    sent = [(b"a" * 10, b"", b"b" * 9000), (b"c",), (b"", b"d" * (2 * PAYLOAD_BYTES_MAX), b"e")]
    for buffers in sent:
        assert queue.put(LaneKind.REPLICA, buffers, 0.0)
    assert _drain(queue) == [(LaneKind.REPLICA, b"".join(buffers)) for buffers in sent]
    assert not queue
    assert queue.waiting_bytes == 0
    for number in range(100):
        queue.put(LaneKind.RAFT, (b"x%d" % number,), 0.0)
    assert len(queue.pieces()) == 1


def test_a_large_buffer_is_sent_from_where_it_is() -> None:
    """A batch's body is not copied on its way to the socket."""
    queue = SendQueue()
    body = bytes(100_000)
    queue.put(LaneKind.REPLICA, (b"head", body), 0.0)
    assert any(piece is body for piece in queue.pieces())


def test_a_full_lane_drops_and_leaves_the_others_alone() -> None:
    """Bytes are bounded per lane; an empty lane takes one message of any legal size."""
    queue = SendQueue()
    assert queue.put(LaneKind.REPLICA, (bytes(QUEUE_BYTES_MAX[LaneKind.REPLICA] + 1),), 0.0)
    assert not queue.put(LaneKind.REPLICA, (b"x",), 0.0)
    assert queue.put(LaneKind.RAFT, (b"x",), 0.0)
    taken = 0
    while queue.put(LaneKind.CONTROL, (b"x",), 0.0):
        taken += 1
    assert taken < QUEUE_BYTES_MAX[LaneKind.CONTROL] / 100


def test_what_is_old_or_half_sent_goes_when_the_connection_does() -> None:
    """A new connection begins with whole messages, and with recent ones."""
    queue = SendQueue()
    queue.put(LaneKind.REPLICA, (bytes(2 * PAYLOAD_BYTES_MAX),), 1.0)
    queue.put(LaneKind.REPLICA, (b"old",), 2.0)
    queue.put(LaneKind.REPLICA, (b"new",), 5.0)
    queue.pieces()
    queue.connection_lost()
    assert queue.drop_older(3.0) == 1
    assert _drain(queue) == [(LaneKind.REPLICA, b"new")]
    assert queue.waiting_bytes == 0
