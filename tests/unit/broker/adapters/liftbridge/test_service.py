"""The service's start, and work that other threads give to its event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService, LoopWorkers
from broker.errors import InvalidConfigError


def test_a_host_that_no_name_can_be_is_refused() -> None:
    """Python raises UnicodeError for it, which is not an OSError."""
    broker = cast("Any", SimpleNamespace(groups=None))
    config = LiftbridgeServiceConfig(host="a..b", port=0)
    service = LiftbridgeService(broker, SystemClock(), config)
    with pytest.raises(InvalidConfigError, match=r"a\.\.b:0"):
        service.start()


def test_work_of_other_threads_is_run_once_each_although_some_fails() -> None:
    """The event loop is woken once for much work; a bug in one outcome delays no other."""

    async def scene() -> tuple[list[int], list[str]]:
        loop = asyncio.get_running_loop()
        bugs: list[str] = []
        loop.set_exception_handler(lambda _, context: bugs.append(str(context["exception"])))
        workers = LoopWorkers(loop, LiftbridgeServiceConfig())
        ran: list[int] = []

        def outcome(number: int) -> None:
            ran.append(number)
            if number % 1000 == 0:
                raise ValueError(f"bug {number}")

        def thread(first: int) -> None:
            for number in range(first, first + 5000):
                workers.call_soon(partial(outcome, number))

        await asyncio.gather(*(asyncio.to_thread(thread, 5000 * one) for one in range(4)))
        for _ in range(21):  # what is behind one of the 20 bugs runs in the next turn of the loop
            await asyncio.sleep(0)
        workers.close()
        return ran, bugs

    ran, bugs = asyncio.run(scene())
    assert sorted(ran) == list(range(20_000))
    assert len(bugs) == 20
    for first in range(0, 20_000, 5000):  # those of one thread in their order
        own = [one for one in ran if first <= one < first + 5000]
        assert own == sorted(own)


def test_last_work_runs_behind_all_that_is_due() -> None:
    """So one write to the socket takes the answers of all outcomes that came together."""

    async def scene() -> list[str]:
        workers = LoopWorkers(asyncio.get_running_loop(), LiftbridgeServiceConfig())
        ran: list[str] = []

        def outcome() -> None:
            ran.append("outcome")
            if ran == ["outcome"]:
                workers.call_last(lambda: ran.append("write"))

        for _ in range(3):
            workers.call_soon(outcome)
        await asyncio.sleep(0)
        workers.call_last(lambda: ran.append("write of the event loop"))
        await asyncio.sleep(0)
        workers.close()
        return ran

    found = asyncio.run(scene())
    assert found == ["outcome", "outcome", "outcome", "write", "write of the event loop"]
