"""Memory and restart: 10 GiB through a broker that keeps all of it on its local disk.

Resident memory is measured at rest after each tenth of the history. It varies with the memory that
allocators keep. So the highest value of the first half is compared with the highest value of the
second half: memory must not grow with the history. Then the broker is stopped and started on that
log, and killed and started again. The time counts from the start of the process until the broker
answers a client.
"""

from __future__ import annotations

import time
from typing import Final

from bench.measures.publish import ROWS, WINDOW
from bench.processes import Load, run_loads
from bench.servers import BrokerServer, headwater
from bench.session import Session

_HISTORY_BYTES: Final = 10 * 2**30
_SIZE: Final = 1024
_STEPS: Final = 10
_SETTLE_S: Final = 1.0


def run(session: Session) -> None:
    """Fill, measure, restart."""
    total = session.count(_HISTORY_BYTES // _SIZE, multiple=ROWS * _STEPS)
    with headwater(session.work / "ours", nats=False) as broker:
        client = broker.client()
        client.create_stream("history", tiering=False)
        client.close()
        _memory(session, broker, "memory/idle_mib", 0)
        found = []
        for step in range(1, _STEPS + 1):
            _fill(broker, total // _STEPS)
            figure = f"memory/at_{step * 10}pct_mib"
            found.append(_memory(session, broker, figure, total * step // _STEPS))
        half = _STEPS // 2
        session.recorder.add("memory/early_mib", max(found[:half]), "MiB")
        session.recorder.add("memory/late_mib", max(found[half:]), "MiB")
        for number in range(session.repeat):
            broker.process.stop()
            _restart(session, broker, "restart/stopped_s", total)
            if number == 0:
                _memory(session, broker, "memory/restarted_mib", total)
        for _ in range(session.repeat):
            _fill(broker, ROWS)  # so that the log has records after the last checkpoint
            total += ROWS
            broker.process.kill()
            _restart(session, broker, "restart/killed_s", total)


def _fill(broker: BrokerServer, records: int) -> None:
    run_loads([
        Load(
            "flight_publish",
            url=broker.url,
            stream="history",
            size=_SIZE,
            rows=ROWS,
            batches=records // ROWS,
            window=WINDOW,
        )
    ])  # fmt: skip


def _memory(session: Session, broker: BrokerServer, figure: str, records: int) -> float:
    """Record resident memory at rest, and return it in MiB."""
    time.sleep(_SETTLE_S)
    found = broker.process.rss_bytes() / 2**20
    session.recorder.add(figure, found, "MiB", records=records, history_bytes=records * _SIZE)
    return found


def _restart(session: Session, broker: BrokerServer, figure: str, records: int) -> None:
    start = time.monotonic()
    broker.start()
    client = broker.client()
    found = client.describe("history").records_count
    took_s = time.monotonic() - start
    client.close()
    assert found == records, f"only {found} of {records} records are left after a restart"
    session.recorder.add(figure, took_s, "s", records=records, history_bytes=records * _SIZE)
