"""Calls whose callers have gone end; many of them hold few threads, and others are served."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from pyarrow import flight

from crashkit.processes import BrokerProcess
from headwater.client import Client
from headwater.local import embedded

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CALLS: Final = 300
WAIT_S: Final = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Run a broker whose lake has gone, with a stream that has a record to ship."""
    moto = embedded.start_moto(tmp_path / "moto", bucket="gone")
    with moto:
        process = BrokerProcess(
            tmp_path / "broker",
            nats_url="",
            lake="s3://gone/lake",
            environment=embedded.moto_environment(moto.address),
        )
        process.start()
        process.wait_ready()
        with Client(process.url) as client:
            client.create_stream("s", subject="s", tiering=True)
            with client.producer("s") as producer:
                producer.send([b"x"]).result(timeout=30)
    try:
        yield process
    finally:
        with suppress(AssertionError):
            process.kill()


def until(holds: Callable[[], bool]) -> bool:
    """Wait until it holds, for a limited time; tell whether it does."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_flushes_that_nobody_awaits_hold_no_threads(broker: BrokerProcess) -> None:
    """Each asks for a minute and goes after a second; the broker keeps a few threads meanwhile."""
    threads = psutil.Process(broker.pid).num_threads
    with Client(broker.url) as client:
        before = threads()
        body = json.dumps({"name": "s", "timeout_ms": 60_000}).encode()
        answers: list[str] = []

        def ask(number: int) -> None:
            one = flight.FlightClient(broker.url)
            options = flight.FlightCallOptions(timeout=1.0)
            try:
                list(one.do_action(flight.Action("tier_flush", body), options))
            except flight.FlightError as refused:
                answers.append(str(refused))
            finally:
                one.close()
            assert number < CALLS

        with ThreadPoolExecutor(100) as pool:
            for _ in pool.map(ask, range(CALLS)):
                pass
        assert len(answers) == CALLS
        assert any("wait for the lake are open" in one for one in answers), set(answers)
        assert [one.name for one in client.streams()] == ["s"]  # others are served
        assert until(lambda: threads() < before + 40), f"{before} threads, then {threads()}"
