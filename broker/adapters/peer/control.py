"""Control messages over the link between brokers; messages to this broker use no socket."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from broker.adapters.peer.link import PeerLink
from broker.codec.peer.control_messages import decode, encode
from broker.codec.peer.frames import LaneKind
from broker.model.control_messages import ControlMessage
from broker.model.ids import BrokerId


class PeerControlTransport:
    """Implements ``ControlTransport`` over a link that other transports share. Any thread."""

    def __init__(self, link: PeerLink) -> None:
        """Use the link's lane for control messages."""
        self._link = link
        self._me = link.me
        self._lane = link.lane(LaneKind.CONTROL)
        self._own: queue.SimpleQueue[ControlMessage | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def malformed_count(self) -> int:
        """Messages dropped because they did not decode."""
        return self._lane.malformed_count

    def start(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        """See ``ControlTransport.start``."""
        self._thread = threading.Thread(
            target=self._deliver_own, args=(deliver,), name="control-own", daemon=True
        )
        self._thread.start()
        self._lane.start(lambda _, data: decode(bytes(data)), deliver)

    def send(self, to: BrokerId, message: ControlMessage) -> None:
        """See ``ControlTransport.send``."""
        if to == self._me:
            self._own.put(message)  # delivered by another thread: the caller may hold locks
        else:
            self._lane.send(to, (encode(message),))

    def close(self) -> None:
        """Deliver no more messages; the link stays open for other transports."""
        self._lane.stop()
        self._own.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _deliver_own(self, deliver: Callable[[BrokerId, ControlMessage], None]) -> None:
        while (message := self._own.get()) is not None:
            try:
                deliver(self._me, message)
            except Exception as bug:
                self._link.crashed(bug)
                raise
