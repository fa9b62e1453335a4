"""A broker with everything around it, for tests that break one thing at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.model.certificate import Certificate
from checkkit.anomalies import Verdict
from checkkit.checker import Checker
from crashkit.flight_load import to_arrow
from crashkit.processes import BrokerProcess
from crashkit.reads import read_unified
from crashkit.recorder import Recorder
from crashkit.records import RecordMaker, TestRecord
from headwater.client import Client, Producer
from headwater.local import embedded


@dataclass(slots=True)
class Stage:
    """One broker, its nats-server, and a client."""

    broker: BrokerProcess
    nats: embedded.EmbeddedServer
    client: Client


class Witness:
    """Sends records by Flight to one stream, remembers the acks, and judges reads by them."""

    def __init__(self, client: Client, stream: str, *, seed: str, subject: str) -> None:
        self._client = client
        self._stream = stream
        self._maker = RecordMaker(f"w-{seed}", subject, seed=seed, large_bytes_max=8192)
        self._recorder = Recorder()
        self.random = random.Random(seed)
        with self._recorder.history() as history:
            self._checker = Checker(history)

    @property
    def acked_count(self) -> int:
        """Records acknowledged so far."""
        return self._recorder.acked_count

    def put(self, producer: Producer, count: int) -> None:
        """Send records one batch at a time, each acknowledged; raises what the producer raises."""
        while count > 0:
            size = min(count, self.random.randint(1, 20))
            count -= size
            records = [self._maker.for_flight() for _ in range(size)]
            self._recorder.send(self._maker.producer, 0, records)
            result = producer.send(to_arrow(records)).result(timeout=60)
            for place, record in enumerate(records):
                if result.duplicate:
                    self._recorder.retry(record.name)
                self._recorder.ack(
                    record.name,
                    partition=0,
                    offset=result.base_offset + place,
                    leader_epoch=result.leader_epoch,
                    duplicate=result.duplicate,
                )

    def note(self, record: TestRecord) -> None:
        """Note a record of a stranger; no reader may get it."""
        self._recorder.send(self._maker.producer, 0, [record])

    def judge(self, client: Client | None = None) -> tuple[Verdict, Certificate]:
        """Read everything and compare; raises what the read raises."""
        reading, certificate = read_unified(client or self._client, self._stream)
        return self._checker.check(reading), certificate

    def assert_exact(self, client: Client | None = None) -> Certificate:
        """Read everything; fail unless every promise is kept."""
        verdict, certificate = self.judge(client)
        assert verdict.ok, str(verdict)
        return certificate


@contextmanager
def staged(
    folder: Path,
    *,
    lake: str | None = None,
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    data_dir: Path | None = None,
) -> Iterator[Stage]:
    """Start nats-server and a broker that is ready; end both afterwards."""
    with embedded.start_nats(folder / "nats") as nats:
        broker = BrokerProcess(
            folder / "broker",
            nats_url=nats.address,
            lake=str(folder / "lake") if lake is None else lake,
            environment=environment,
            settings=settings,
            data_dir=data_dir,
        )
        broker.start()
        try:
            broker.wait_ready()
            with Client(broker.url) as client:
                yield Stage(broker, nats, client)
        finally:
            with suppress(AssertionError):
                broker.kill()


def one_value(value: bytes) -> pa.RecordBatch:
    """Return a batch of one record."""
    return pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["value"])
