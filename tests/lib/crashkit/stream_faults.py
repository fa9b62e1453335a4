"""What the streaming campaign kills, and the deck from which it draws."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from crashkit.moments import Moment
from crashkit.processes import BrokerProcess
from crashkit.query_process import QueryProcess
from simkit.servers.tcp_proxy import TcpProxy

_CREATE, _MOVED_TO = 0x100, 0x80

DRIVER: Final = "driver and JVM"
PLANNER: Final = "planner"
WORKERS: Final = "task workers"
BROKER: Final = "broker"
FROZEN: Final = "broker frozen"
STORE: Final = "store outage"
SHARES: Final[Mapping[str, float]] = {
    DRIVER: 0.20, PLANNER: 0.18, WORKERS: 0.24, BROKER: 0.14, FROZEN: 0.12, STORE: 0.12,
}  # fmt: skip

# A driver that is killed before its spare is up takes a minute, so that is for few rounds.
_SPARED: Final = 0.8

# What Spark and the sink do to files, in the order of one batch.
MOMENTS: Final = (
    Moment.of("offsets written", _CREATE | _MOVED_TO, r".*/checkpoint/offsets/\d+"),
    Moment.of("task writes a file", _CREATE, r".*/copy/.*\.parquet"),
    Moment.of(
        "sink commit", _CREATE | _MOVED_TO,
        r".*/copy/(_delta_log/\d{20}\.json|_spark_metadata/\d+)",
    ),
    Moment.of("commit written", _CREATE | _MOVED_TO, r".*/checkpoint/commits/\d+"),
)  # fmt: skip


class Deck:
    """How often each kind is still to come; kinds that a phase has not seen come first."""

    def __init__(self, rounds: int, dice: random.Random) -> None:
        self._dice = dice
        self._left = {kind: max(1, round(share * rounds)) for kind, share in SHARES.items()}
        self._seen: set[tuple[str, str]] = set()

    def draw(self, phase: str, *, spare: bool = True) -> str:
        """Return what to kill now; without a spare driver that waits, rarely the driver."""
        left = {kind: number for kind, number in self._left.items() if number > 0}
        if not spare and len(left) > 1 and self._dice.random() < _SPARED:
            left.pop(DRIVER, None)
        fresh = {kind: left[kind] for kind in left if (kind, phase) not in self._seen}
        chosen = fresh or left or dict.fromkeys(SHARES, 1)  # rounding may leave none
        kind = self._dice.choices(list(chosen), list(chosen.values()))[0]
        self._left[kind] -= 1
        self._seen.add((kind, phase))
        return kind

    def put_back(self, kind: str, phase: str) -> None:
        """Take back a drawn fault that could not be carried out."""
        self._left[kind] += 1
        self._seen.discard((kind, phase))


class Faults:
    """Does the killing, and brings back what does not come back by itself. Blocks meanwhile."""

    def __init__(
        self,
        query: QueryProcess,
        broker: BrokerProcess,
        store: TcpProxy,
        dice: random.Random,
        *,
        start_query: Callable[[], None],
    ) -> None:
        self._query, self._broker, self._store = query, broker, store
        self._dice = dice
        self._start_query = start_query
        self._acts: dict[str, Callable[[], bool]] = {
            DRIVER: self._kill_driver,
            PLANNER: lambda: query.kill_planner(dice),
            WORKERS: lambda: query.kill_workers(dice),
            BROKER: self._kill_broker,
            FROZEN: self._freeze_broker,
            STORE: self._cut_store,
        }

    def strike(self, kind: str) -> bool:
        """Kill or cut one thing; tell whether it was there."""
        return self._acts[kind]()

    def _kill_driver(self) -> bool:
        self._query.kill()
        time.sleep(self._dice.choice([0.0, 0.0, self._dice.uniform(0, 2.0)]))
        self._start_query()
        return True

    def _kill_broker(self) -> bool:
        self._broker.kill()
        time.sleep(self._dice.choice([0.0, self._dice.uniform(0, 2.0)]))
        self._broker.start()
        self._broker.wait_ready()
        return True

    def _freeze_broker(self) -> bool:
        self._broker.pause()
        time.sleep(self._dice.uniform(0.2, 2.0))
        self._broker.resume()
        return True

    def _cut_store(self) -> bool:
        self._store.refuse(True)
        self._store.cut()
        time.sleep(self._dice.uniform(0.2, 3.0))
        self._store.refuse(False)
        return True
