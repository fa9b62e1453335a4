"""Issue 11, item 7: a message id takes at most 60 bytes, of one budget, given back when idle."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections import OrderedDict
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.core.message_ids import Digest, MessageIdWindow, digest_of
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.runtime.partition.id_budget import IdBudget
from cases import examples
from simkit.brokers.driver_rig import ME, DriverRig, alone_view
from simkit.brokers.memory_broker import FakeClock
from simkit.disk.disk import SimDisk

MIB: Final = 1024 * 1024
AN_ID_BYTES_MAX: Final = 60
WINDOW_US: Final = 120_000_000


# ------------------------------------------------------------------ 60 bytes an id


def test_an_id_takes_60_bytes_at_most() -> None:
    """Entry, offset, time and index together, at every size that the window grows through."""
    window = MessageIdWindow(window_us=WINDOW_US, ids_max=1_000_000)
    for number in range(123_457):
        window.add(digest_of(str(number)), Offset(number), 1)
        if number > 20_000:
            assert window.size_bytes <= AN_ID_BYTES_MAX * len(window)


_PROGRAM: Final = f"""
import gc, json, sys
count = int(sys.argv[1])
from broker.core.message_ids import MessageIdWindow, digest_of

def private_bytes():
    gc.collect()
    with open("/proc/self/smaps_rollup") as rows:
        return 1024 * sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))

window = MessageIdWindow(window_us={WINDOW_US}, ids_max=1_000_000)
for number in range(5_000):
    window.add(digest_of(str(number)), number, 0)
window.clear()
before = private_bytes()
for number in range(count):
    window.add(digest_of("a-run-of-a-publisher-" + str(number)), number, number)
full = private_bytes() - before
told = window.size_bytes
window.expire({WINDOW_US} + count)
idle = private_bytes() - before
json.dump(dict(full=full, told=told, idle=idle, ids=len(window)), sys.stdout)
"""


@pytest.mark.parametrize("count", [175_000, pytest.param(700_000, marks=pytest.mark.slow)])
def test_the_memory_of_a_process_with_many_ids(count: int) -> None:
    """As the kernel counts it: at most 60 bytes an id, as the window reports, all returned."""
    command = [sys.executable, "-c", _PROGRAM, str(count)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found["full"] <= AN_ID_BYTES_MAX * count, found
    assert abs(found["full"] - found["told"]) < 2 * MIB, found
    assert found["ids"] == 0
    assert found["idle"] < 2 * MIB, found


# ------------------------------------------------------------------ the same answers


class PlainWindow:
    """What the window was before: a dictionary of the ids themselves."""

    def __init__(self, *, window_us: int, ids_max: int) -> None:
        self._window_us, self._ids_max = window_us, ids_max
        self.seen: OrderedDict[Digest, tuple[Offset, int]] = OrderedDict()
        self.forgotten_early = 0

    def find(self, digest: Digest, now_us: int) -> Offset | None:
        """Look up an id."""
        seen = self.seen.get(digest)
        return None if seen is None or seen[1] <= now_us - self._window_us else seen[0]

    def add(self, digest: Digest, offset: Offset, now_us: int) -> None:
        """Add or renew an id."""
        self.seen[digest] = (offset, now_us)
        self.seen.move_to_end(digest)

    def oldest_offset(self) -> Offset | None:
        """The front."""
        return next(iter(self.seen.values()))[0] if self.seen else None

    def expire(self, now_us: int) -> None:
        """Drop from the front."""
        while self.seen:
            digest, (_, stamp_us) = next(iter(self.seen.items()))
            if stamp_us > now_us - self._window_us:
                if len(self.seen) <= self._ids_max:
                    return
                self.forgotten_early += 1
            del self.seen[digest]


POOL: Final = [digest_of(str(number)) for number in range(12_000)]

adds = st.tuples(
    st.just("add"), st.integers(0, len(POOL) - 1), st.sampled_from([1, 2, 50, 700, 5_000])
)
expires = st.tuples(st.just("expire"), st.just(0), st.just(0))
steps = st.tuples(st.one_of(adds, adds, expires), st.sampled_from([0, 1, 7, 40, 100, -5]))


@examples(40)
@given(
    ids_max=st.sampled_from([1, 100, 4_096, 9_000, 50_000]),
    script=st.lists(steps, min_size=1, max_size=12),
)
def test_it_answers_as_a_plain_dictionary_of_ids(
    ids_max: int, script: list[tuple[tuple[str, int, int], int]]
) -> None:
    """Limits of time and count, repeated ids, a clock that is put back: equal answers."""
    window = MessageIdWindow(window_us=100, ids_max=ids_max)
    plain = PlainWindow(window_us=100, ids_max=ids_max)
    now_us = offset = 1_000
    for (what, start, count), later_us in script:
        now_us += later_us
        for digest in POOL[start : start + count]:
            offset += 1
            window.add(digest, Offset(offset), now_us)
            plain.add(digest, Offset(offset), now_us)
        if what == "expire":
            window.expire(now_us)
            plain.expire(now_us)
            assert len(window) == len(plain.seen)
        assert window.forgotten_early == plain.forgotten_early
        assert window.oldest_offset() == plain.oldest_offset()
        looked_up = POOL[start : start + count] + POOL[:: 1 + len(POOL) // 500]
        assert [window.find(one, now_us) for one in looked_up] == [
            plain.find(one, now_us) for one in looked_up
        ]


# ------------------------------------------------------------------ one budget, given back


def _publish(rig: DriverRig, count: int, start: int = 0) -> None:
    for first in range(start, start + count, 1_000):
        ids = [f"id-{number}" for number in range(first, first + 1_000)]
        answers = rig.put_ids([b"v"] * 1_000, ids)
        rig.turns.run()
        assert not answers[0].duplicates


def _is_known(rig: DriverRig, number: int) -> bool:
    answers = rig.put_ids([b"v"], [f"id-{number}"])
    rig.turns.run()
    return bool(answers[0].duplicates)


def _maintain(rig: DriverRig) -> None:
    rig.driver.maintenance.tick()
    rig.turns.run()


def test_the_partitions_of_a_broker_stay_within_one_budget() -> None:
    """The one with many ids forgets its oldest, logs that once and counts them; the other none."""
    budget = IdBudget(1 * MIB)
    many, few = (DriverRig(SimDisk(random.Random(1)).files(), id_budget=budget) for _ in range(2))
    _publish(few, 1_000)
    with capture_logs() as logs:
        for start in range(0, 40_000, 10_000):
            _publish(many, 10_000, start)
            _maintain(many)
            _maintain(few)
            assert budget.size_bytes <= 1 * MIB
    found = many.driver.message_ids
    assert found.ids + found.forgotten == 40_000
    assert found.ids > 12_000, "the budget is used"
    assert few.driver.message_ids.forgotten == 0
    assert [one["partition"] for one in logs if one["event"] == "message_ids_forgotten_early"] == [
        "s/0"
    ]
    assert _is_known(many, 39_999)
    assert _is_known(few, 0)
    stored = many.driver.reads.log_end
    assert not _is_known(many, 0), "the record is stored again: never a positive ack for nothing"
    assert many.driver.reads.log_end == stored + 1


def test_an_idle_partition_returns_the_memory_when_the_window_has_passed() -> None:
    """The partition's regular turn returns it, without a further publish."""
    budget, clock = IdBudget(), FakeClock()
    rig = DriverRig(SimDisk(random.Random(1)).files(), id_budget=budget, clock=clock)
    _publish(rig, 10_000)
    assert budget.size_bytes > 300_000
    clock.advance(us=WINDOW_US - 1)
    _maintain(rig)
    assert rig.driver.message_ids.ids == 10_000
    clock.advance(us=1)
    _maintain(rig)
    assert (rig.driver.message_ids.ids, rig.driver.message_ids.size_bytes) == (0, 0)
    assert budget.size_bytes == 0


def test_a_partition_that_closes_returns_the_memory() -> None:
    """The next leader reads the ids from its own log."""
    budget = IdBudget()
    rig = DriverRig(SimDisk(random.Random(1)).files(), id_budget=budget)
    _publish(rig, 5_000)
    assert budget.size_bytes
    rig.close()
    assert budget.size_bytes == 0


def test_a_broker_that_leads_no_more_returns_the_memory() -> None:
    """Nobody publishes to it; when a broker leads again, it reads the ids from its log."""
    budget = IdBudget()
    files = SimDisk(random.Random(1)).files()
    rig = DriverRig(files, id_budget=budget)
    _publish(rig, 5_000)
    assert budget.size_bytes
    other = BrokerId("other")
    rig.view(
        dataclasses.replace(
            alone_view(leader_epoch=2),
            leader=other,
            replicas=(ME, other),
            isr=frozenset({ME, other}),
            broker_epochs={ME: BrokerEpoch(1), other: BrokerEpoch(1)},
        )
    )
    assert not rig.driver.leads
    assert (rig.driver.message_ids.ids, budget.size_bytes) == (0, 0)
    rig.close()
    rig = DriverRig(files, epoch=3, id_budget=budget)
    assert rig.driver.message_ids.ids == 5_000
    assert _is_known(rig, 0)
