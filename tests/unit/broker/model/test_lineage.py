"""Whose history a log holds: positions, and when two histories share one."""

from __future__ import annotations

import pytest

from broker.errors import InvalidRequestError
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import LeaderEpoch
from broker.model.lineage import (
    LINEAGE_KEPT,
    Leadership,
    Lineage,
    begun,
    common_end,
    first_lineage_id,
    holds,
    is_forgotten,
    undisputed_end,
)
from broker.model.offsets import Offset


def _leadership(epoch: int, start: int, before: int = 0) -> Leadership:
    return Leadership(
        leader_epoch=LeaderEpoch(epoch),
        lineage_id=_id(epoch),
        start=Offset(start),
        before=LeaderEpoch(before),
    )


def _id(number: int) -> str:
    return f"{number:032x}"


def test_a_position_is_held_up_to_where_the_next_leader_began() -> None:
    """An offset that a leader reached elsewhere, after the histories parted, is not ours."""
    lineage: Lineage = (_leadership(1, 0), _leadership(4, 400), _leadership(5, 730))
    held = [(1, 0), (1, 400), (4, 400), (4, 730), (5, 731), (5, 10**9)]
    assert all(holds(lineage, _id(number), end) for number, end in held)
    foreign = [(1, 401), (4, 731), (2, 0), (9, 1)]
    assert not any(holds(lineage, _id(number), end) for number, end in foreign)
    assert not holds((), _id(1), 0)


def test_the_oldest_leaderships_are_forgotten_in_time() -> None:
    """A partition that changes its leader for years does not fill the metadata."""
    lineage: Lineage = ()
    for number in range(LINEAGE_KEPT + 10):
        lineage = begun(lineage, _leadership(number + 1, number))
    assert len(lineage) == LINEAGE_KEPT
    assert lineage[-1].leader_epoch == LINEAGE_KEPT + 10
    with pytest.raises(AssertionError, match="only grow"):
        begun(lineage, _leadership(3, 9))


def test_what_is_forgotten_is_told_from_what_is_foreign() -> None:
    """An end is forgotten only below the oldest kept leadership, if older ones were dropped."""
    lineage: Lineage = ()
    for number in range(LINEAGE_KEPT):
        lineage = begun(lineage, _leadership(number + 1, 100 + number))
    assert is_forgotten(lineage, _id(999), 100)
    assert not is_forgotten(lineage, _id(999), 101)
    assert not is_forgotten(lineage[1:], _id(999), 100)
    assert not is_forgotten(lineage, _id(3), 100)


@pytest.mark.parametrize("text", ["", "x", "0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 32 + "\n"])
def test_what_no_process_drew_is_refused(text: str) -> None:
    """Ids are read from disks, buckets and peers, so they are checked."""
    with pytest.raises(InvalidRequestError):
        Leadership(leader_epoch=LeaderEpoch(1), lineage_id=text, start=Offset(0))


def test_a_new_partition_has_an_id_of_its_own() -> None:
    """The stream's uuid is random, so the first leadership needs no other chance."""
    ids = {first_lineage_id(uuid, number) for uuid in ("a", "b") for number in range(3)}
    assert len(ids) == 6


@pytest.mark.parametrize(
    ("end", "common", "history"),
    [
        (150, 150, [(1, 0)]),  # nobody else has led
        (150, 100, [(1, 0), (2, 100)]),  # a later leader stored others
        (150, 150, [(1, 0), (2, 200)]),  # and here behind them
        (150, 60, [(1, 0), (2, 100), (3, 60)]),  # one that had fewer began below its predecessor
        (150, 100, [(1, 0), (2, 100), (3, 120)]),
        (150, 0, [(2, 0)]),
        (150, 0, [(4, 400)]),  # the older ones are forgotten
        (150, 150, [(1, 90), (4, 400)]),  # one that is known is enough
        (40, 40, [(1, 0), (2, 100)]),
        (150, 0, []),
        (0, 0, [(1, 0)]),
    ],
)
def test_a_log_has_the_records_of_a_history_up_to_where_another_leader_began(
    end: int, common: int, history: list[tuple[int, int]]
) -> None:
    """A log whose records are all of epoch 1 is compared with several histories."""
    lineage = tuple(_leadership(*one) for one in history)
    log = EpochHistory.of([(LeaderEpoch(1), Offset(0))])
    assert common_end(lineage, log, Offset(end)) == common


@pytest.mark.parametrize(
    ("start", "undisputed", "history"),
    [
        (0, 150, []),  # as of a broker without lineages
        (0, 150, [(1, 0)]),
        (0, 100, [(1, 0), (2, 100)]),
        (0, 0, [(1, 0), (2, 0)]),
        (0, 150, [(4, 400)]),  # the leaderships below 400 are forgotten
        (0, 140, [(4, 140)]),  # and above it the history is known
        (120, 120, [(1, 0), (2, 100)]),  # what was freed was in the table
        (200, 150, [(1, 0), (2, 100)]),
    ],
)
def test_what_no_later_leader_replaced_is_undisputed(
    start: int, undisputed: int, history: list[tuple[int, int]]
) -> None:
    """A log whose records are all of epoch 1, with the end 150, is compared with histories."""
    lineage = tuple(_leadership(*one) for one in history)
    log = EpochHistory.of([(LeaderEpoch(1), Offset(0))])
    assert undisputed_end(lineage, log, start=Offset(start), end=Offset(150)) == undisputed


def test_a_leader_that_stored_nothing_disputes_nothing() -> None:
    """Leader 2 had fewer records and stored none: the next one began behind those of epoch 1."""
    lineage = (_leadership(1, 0), _leadership(2, 100), _leadership(3, 150, before=1))
    log = EpochHistory.of([(LeaderEpoch(1), Offset(0))])
    assert common_end(lineage, log, Offset(150)) == 150
    assert common_end(lineage, log, Offset(170)) == 150
    assert common_end(lineage, log, Offset(120)) == 120
    led = EpochHistory.of([(LeaderEpoch(one), Offset(at)) for one, at in [(1, 0), (2, 100)]])
    assert common_end(lineage, led, Offset(150)) == 100, "records of epoch 2 were left behind"
    stored = (*lineage[:2], _leadership(3, 150, before=2))
    assert common_end(stored, log, Offset(150)) == 100


def test_a_log_that_followed_two_leaders_has_the_records_of_both() -> None:
    """The newest record that both logs have decides: everything below it is the same."""
    lineage = (_leadership(1, 0), _leadership(3, 100), _leadership(4, 180))
    log = EpochHistory.of([(LeaderEpoch(one), Offset(at)) for one, at in [(1, 0), (3, 100)]])
    assert common_end(lineage, log, Offset(170)) == 170
    assert common_end(lineage, log, Offset(200)) == 180
    other = EpochHistory.of([(LeaderEpoch(one), Offset(at)) for one, at in [(1, 0), (2, 80)]])
    assert common_end(lineage, other, Offset(170)) == 80
    idle = EpochHistory.of([(LeaderEpoch(one), Offset(at)) for one, at in [(1, 0), (3, 90)]])
    assert common_end(lineage[:1], idle, Offset(90)) == 90, "epoch 3 has no record yet"
