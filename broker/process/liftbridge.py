"""Starts Liftbridge's API, and the connection to NATS by which it publishes to subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.adapters.nats.asking import NatsAsking
from broker.config import BrokerConfig
from broker.ports.access import AccessApi, AuditSink
from broker.ports.system import Clock
from broker.process.certificates import Certificates
from broker.runtime.broker import Broker

if TYPE_CHECKING:
    from broker.adapters.liftbridge.service import LiftbridgeService


async def start_liftbridge(
    config: BrokerConfig,
    broker: Broker,
    clock: Clock,
    *,
    not_ready: Callable[[], str | None],
    on_crash: Callable[[BaseException], None],
    undo: list[Callable[[], object]],
    nats_errors: dict[str, Mapping[str, int]],
    connections_max: int,
    certificates: Certificates,
    access: AccessApi,
    audit: AuditSink | None = None,
) -> LiftbridgeService | None:
    """Serve the API if it is enabled; append to ``undo`` the functions that end it.

    Raises:
        InvalidConfigError: its address or its certificates cannot be used.
    """
    if not config.liftbridge.enabled:
        return None
    # Imported late: a broker without this API, as most are, starts 30 ms sooner without HTTP/2.
    from broker.adapters.liftbridge.config import service_config  # noqa: PLC0415
    from broker.adapters.liftbridge.service import LiftbridgeService  # noqa: PLC0415

    tls = certificates.of_door("liftbridge", config.liftbridge, protocols=["h2"])
    subjects, loop = None, asyncio.get_running_loop()
    if config.nats.url:
        subjects = NatsAsking(
            config.nats, client_name=f"headwater-{config.node.id}-liftbridge", on_crash=on_crash
        )
        nats_errors["liftbridge"] = subjects.server_errors
        await subjects.start()
        end = subjects.close
        undo.append(lambda: asyncio.run_coroutine_threadsafe(end(), loop).result())
    service = LiftbridgeService(
        broker,
        clock,
        service_config(config.liftbridge, tls=tls, connections_max=connections_max),
        not_ready=not_ready,
        subjects=subjects,
        access=access,
        audit=audit,
    )
    service.start()
    undo.append(service.close)
    return service
