"""The streaming campaign's own decisions: phases, the deck of kills, the verdict."""

from __future__ import annotations

import random

import pytest

from checkkit.anomalies import Anomaly, Verdict, Violation
from crashkit import running
from crashkit.stream_faults import SHARES, Deck
from crashkit.tier_watch import COLD, HAND_OVER, HOT, PHASES, Tier, phase_of

TIERS = {0: Tier(local_start=100, cold_end=150), 1: Tier(local_start=100, cold_end=150)}


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ({0: (0, 100), 1: (20, 80)}, COLD),
        ({0: (150, 160), 1: (170, 180)}, HOT),
        ({0: (90, 110), 1: (20, 80)}, HAND_OVER),
        ({0: (140, 160), 1: (150, 180)}, HAND_OVER),
        ({0: (110, 120), 1: (110, 120)}, HAND_OVER),
        ({0: (20, 30), 1: (150, 180)}, HAND_OVER),
        ({0: (20, 30), 1: (150, 150)}, COLD),
    ],
)
def test_a_batch_is_where_all_its_records_are(
    ranges: dict[int, tuple[int, int]], expected: str
) -> None:
    """It is in one tier only if every record is in that tier alone; otherwise it spans both."""
    assert phase_of(ranges, TIERS) == expected


def test_a_deck_meets_every_kind_in_every_phase() -> None:
    """Two hundred rounds, most of them in the log: no kind is missed anywhere."""
    dice = random.Random(3)
    deck = Deck(200, dice)
    drawn = []
    for _ in range(200):
        phase = dice.choices(PHASES, [3, 1, 6])[0]
        drawn.append((deck.draw(phase), phase))
    assert {(kind, phase) for kind in SHARES for phase in PHASES} <= set(drawn)
    kills = [kind for kind, _ in drawn]
    for kind, share in SHARES.items():
        assert abs(kills.count(kind) - 200 * share) < 3, kind


def test_what_is_put_back_is_drawn_again() -> None:
    """A kill whose process was not running is drawn again later."""
    deck = Deck(len(SHARES), random.Random(1))
    kind = deck.draw(COLD)
    deck.put_back(kind, COLD)
    assert kind in {deck.draw(COLD) for _ in SHARES}


def test_every_broken_order_is_counted_as_out_of_order() -> None:
    """The last line of a run tells disorder of each kind."""
    kinds = (Anomaly.UNSORTED, Anomaly.SENT_ORDER, Anomaly.REAL_TIME_ORDER, Anomaly.EPOCH)
    verdict = Verdict.of(Violation(kind, 0, 0, "") for kind in kinds)
    assert running.out_of_order(verdict) == 4
