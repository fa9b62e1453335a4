"""When a purge is over: two empty listings, and no broker left that could write."""

from __future__ import annotations

import pytest

from tiering.purge.rounds import LOOKS_MAX, PATIENCE_LOOKS, PurgeLook, PurgeRounds

NOTHING = PurgeLook(0)


def _steps(*looks: PurgeLook) -> list[str]:
    rounds = PurgeRounds()
    return [rounds.step(one) for one in looks]


def test_one_empty_listing_is_not_enough() -> None:
    """A pause comes between the two."""
    assert _steps(PurgeLook(7), NOTHING, NOTHING) == ["again", "pause", "finished"]


def test_an_object_that_comes_back_begins_the_count_anew() -> None:
    """As of an upload that was under way when its folder was listed."""
    looks = (PurgeLook(7), NOTHING, PurgeLook(1), NOTHING, NOTHING)
    assert _steps(*looks) == ["again", "pause", "again", "pause", "finished"]


def test_an_empty_listing_counts_for_nothing_while_a_broker_may_write() -> None:
    """The broker may be in the middle of an upload, also if the listing is empty."""
    busy = PurgeLook(0, ("b (may be writing to the table)",))
    assert _steps(busy, busy, NOTHING, busy, NOTHING, NOTHING) == [
        "pause", "pause", "pause", "pause", "pause", "finished",
    ]  # fmt: skip


@pytest.mark.parametrize("look", [PurgeLook(1), PurgeLook(0, ("b (does not answer)",))])
def test_a_purge_that_cannot_be_sure_ends_and_does_not_say_that_it_is(look: PurgeLook) -> None:
    """It ends after a number of looks."""
    steps = _steps(*[look] * LOOKS_MAX)
    assert steps[-1] == "unsure"
    assert "finished" not in steps
    assert "unsure" not in steps[:-1]


def test_nothing_is_deleted_while_a_broker_may_write_unless_it_stays_so() -> None:
    """The first deletion waits for the brokers; a dead one does not keep the table for ever."""
    rounds, mute = PurgeRounds(), ("b (does not answer)",)
    assert rounds.may_delete(())
    for _ in range(PATIENCE_LOOKS):
        assert not rounds.may_delete(mute)
        assert rounds.step(PurgeLook(0, mute)) == "pause"
    assert rounds.may_delete(mute)
