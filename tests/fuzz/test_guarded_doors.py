"""A slice of `make fuzz` at a broker whose doors ask for TLS, certificates and proofs.

Each attack some times and each story for a moment, always the same. Then the broker lives, has no
error in its log, stays below its bound of memory, and an honest client publishes and reads. How
long others wait is judged by `make fuzz` only.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from fuzzkit.doors.stage import Memory, errors_in, staged, wait_ready
from fuzzkit.doors.storm import RESIDENT_BYTES_MAX, allow_files
from fuzzkit.doors.strangers import ATTACKS, STORIES, attack, idle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TRIES: Final = 12
STORY_S: Final = 0.7
WAIT_S: Final = 60.0
IDLE: Final = 3_000  # six times what the broker keeps


def test_strangers_at_guarded_doors(tmp_path: Path) -> None:
    """Thousands of connections with TLS among them, of which the broker keeps some."""
    draw = random.Random(14)
    allow_files()
    with staged(tmp_path, guarded=True) as doors, Memory(doors.broker) as memory:
        for one in ATTACKS:
            for _ in range(TRIES):
                attack(doors, one, draw)
        for story in STORIES:
            story(doors, STORY_S) if story is not idle else idle(doors, STORY_S, count=IDLE)
        wait_ready(doors, WAIT_S)
        assert doors.liftbridge_answers()
        assert errors_in(doors.broker.log_path) == []
        with doors.client() as client:
            client.create_stream("after")
            with client.producer("after") as producer:
                producer.send([b"x"]).result(WAIT_S)
            values = [v for part in client.fetch("after") for v in part.batch["value"].to_pylist()]
    assert values == [b"x"]
    assert memory.most_bytes < RESIDENT_BYTES_MAX, f"{memory.most_bytes >> 20} MiB"
