"""What members of a group note becomes one history, and the judge names what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaoskit.actors.notes import SUFFIX, Notes, read_notes
from checkkit.check_groups import GroupAnomaly, GroupHistory, judge_group


@pytest.fixture
def note(tmp_path: Path) -> Callable[[str], Notes]:
    """Return the notes of a process."""
    return lambda process: Notes(tmp_path / f"{process}{SUFFIX}")


def write(note: Callable[[str], Notes], *, second_begins: int) -> None:
    """One process reads and commits 4 of 6; another one goes on."""
    first, second = note("p1"), note("p2")
    first.given(0, 1, 0, 4, at_ms=0)
    number = first.sent(0, 1, 4)
    first.confirmed([number])
    first.given(0, 1, 4, 6, at_ms=10**12)
    first.sent(0, 1, 6)
    second.given(0, 2, second_begins, 9, at_ms=2 * 10**12)
    first.close()
    second.close()


def judged(folder: Path) -> list[GroupAnomaly]:
    """Return what is wrong with the notes."""
    return [one.kind for one in judge_group(read_notes(folder), {"0": 9})]


@pytest.mark.parametrize(
    ("begins", "wrong"),
    [(4, []), (6, []), (3, [GroupAnomaly.AGAIN]), (7, [GroupAnomaly.SKIPPED, GroupAnomaly.UNSEEN])],
)
def test_notes_are_judged(
    tmp_path: Path, note: Callable[[str], Notes], begins: int, wrong: list[GroupAnomaly]
) -> None:
    """The next owner begins at what was confirmed, or at what was sent."""
    write(note, second_begins=begins)
    assert judged(tmp_path) == wrong


def test_every_note_is_kept(tmp_path: Path, note: Callable[[str], Notes]) -> None:
    """Losses, choices and questions, each with its process and partition."""
    one = note("p1")
    one.lost(1, 7)
    one.chose(1, 7, 0)
    one.asked(1)
    one.close()
    found = read_notes(tmp_path)
    assert [kept[:2] for kept in found.lost] == [("1", 7)]
    assert [(kept.partition, kept.epoch, kept.offset) for kept in found.chosen] == [("1", 7, 0)]
    assert [kept[:2] for kept in found.asked] == [("1", "p1")]
    assert read_notes(tmp_path / "nobody") == GroupHistory()
