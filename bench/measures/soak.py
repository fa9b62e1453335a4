"""Memory over an hour: one broker under a mix of everything that it does.

Once in ``_CYCLE_S`` seconds, at the same time: batches of 100 B and of 1 KiB are published by
Flight, plain NATS messages are stored, acknowledged NATS messages are answered, and two streams are
read from their first record. One of these two is shipped into a table in a folder and keeps
``_KEPT_BYTES`` of its log, so that its readers begin in the table; the others keep all. Resident
memory is sampled every ten seconds, then once more when nothing has been asked for a minute.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from bench.measures.publish import ROWS, WINDOW
from bench.peers import nats_tools
from bench.processes import Load, run_loads
from bench.servers import BrokerServer, headwater
from bench.session import Session

_HOUR_S: Final = 3_600.0
_CYCLE_S: Final = 30.0
_SAMPLE_S: Final = 10.0
_REST_S: Final = 60.0
_KEPT_BYTES: Final = 256 * 2**20
_SMALL_BATCHES: Final = 100  # of ROWS records of 100 B
_LARGE_BATCHES: Final = 12  # of ROWS records of 1 KiB
_READ_RECORDS: Final = 1_000_000
_MESSAGES: Final = 100_000  # of 100 B by NATS; a fifth of them acknowledged


def run(session: Session) -> None:
    """Repeat the mix for an hour at scale 1, but at least once."""
    lake_uri = str(session.work / "lake")
    with headwater(session.work / "ours", lake_uri=lake_uri) as broker:
        client = broker.client()
        client.create_stream("shipped", local_retention_bytes=_KEPT_BYTES)
        client.create_stream("kept", tiering=False)
        client.create_stream("plain", tiering=False)
        client.create_stream("answered", tiering=False, puback=True)
        client.close()
        with _Sampled(session, broker) as sampled:
            _mixed(broker, _HOUR_S * session.scale)
            busy = sampled.highest_mib()
            time.sleep(_REST_S)
        session.recorder.add("soak/highest_mib", busy, "MiB")
        session.recorder.add("soak/first_quarter_mib", sampled.quarter_mib(0), "MiB")
        session.recorder.add("soak/last_quarter_mib", sampled.quarter_mib(3), "MiB")
        session.recorder.add("soak/rested_mib", broker.process.rss_bytes() / 2**20, "MiB")


def _mixed(broker: BrokerServer, seconds: float) -> None:
    """Run the mix once a cycle until the time is over."""
    start = time.monotonic()
    cycle = 0
    while cycle == 0 or time.monotonic() - start < seconds:
        run_loads(_loads(broker))
        cycle += 1
        time.sleep(max(0.0, start + cycle * _CYCLE_S - time.monotonic()))


def _loads(broker: BrokerServer) -> list[Load]:
    published = [
        Load(
            "flight_publish", url=broker.url, stream=stream, size=size, rows=ROWS,
            batches=batches, window=WINDOW, keyed=stream == "shipped",
        )
        for stream, size, batches in (
            ("shipped", 100, _SMALL_BATCHES), ("kept", 1024, _LARGE_BATCHES),
        )
    ]  # fmt: skip
    nats = broker.nats_url
    return [
        *published,
        Load("nats_plain", url=nats, subject="plain", size=100, count=_MESSAGES),
        Load(
            "nats_acknowledged", url=nats, subject="answered", size=100, count=_MESSAGES // 5,
            window=nats_tools.WINDOW,
        ),
        *(
            Load("flight_read", url=broker.url, stream=name, records_max=_READ_RECORDS)
            for name in ("shipped", "kept")
        ),
    ]  # fmt: skip


class _Sampled:
    """Samples resident memory in a thread of its own, from entering until leaving."""

    def __init__(self, session: Session, broker: BrokerServer) -> None:
        self._session, self._broker = session, broker
        self._found: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def highest_mib(self) -> float:
        """Return the highest sample so far."""
        return max(self._found)

    def quarter_mib(self, index: int) -> float:
        """Return the highest sample of one quarter of the busy time, counted from 0."""
        busy = self._found[: -int(_REST_S // _SAMPLE_S)] or self._found
        length = -(-len(busy) // 4)
        return max(busy[index * length : (index + 1) * length] or busy[-1:])

    def _run(self) -> None:
        start = time.monotonic()
        while True:
            found = self._broker.process.rss_bytes() / 2**20
            self._found.append(found)
            after_s = round(time.monotonic() - start, 1)
            self._session.recorder.add("soak/rss_mib", found, "MiB", after_s=after_s)
            if self._ended.wait(_SAMPLE_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
