"""Makes the audit of a daemon, if clients are asked who they are."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.model.access import AUDIT_STREAM
from broker.ports.partition import PartitionWriter
from broker.ports.system import Clock
from broker.runtime.audit import Audit
from broker.runtime.broker import Broker
from broker.runtime.pumps import on_threads


def begin_audit(
    config: BrokerConfig,
    broker: Broker,
    clock: Clock,
    on_crash: Callable[[BaseException], None],
    undo: list[Callable[[], object]],
) -> Audit | None:
    """Begin to write the audit; append to ``undo`` what ends it. None: nobody is asked.

    The chain has a random name: a process that restarts begins another one.
    """
    if not config.access.enabled:
        return None

    def writer() -> PartitionWriter:
        broker.streams.create_audit()
        return broker.partitions.writer(AUDIT_STREAM, 0)

    audit = Audit(
        clock,
        broker=config.node.id,
        chain=f"{config.node.id}-{uuid.uuid4().hex[:16]}",
        find_writer=writer if config.access.audit_stream else None,
    )
    driven = on_threads(clock, on_crash)("audit", audit.turn)
    driven.start()
    undo.append(driven.stop)
    return audit
