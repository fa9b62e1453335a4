"""The hunt for a mutant reports when the mutant is not found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simkit.seed_hunt import (
    Hunt,
    Stale,
    broken_seed,
    hunted_here,
    hunting_order,
    never_seen,
    seed_count,
    seeds_of,
    take_stale,
)


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask for nothing, and leave no note for the summary of this run."""
    for name in ("WHOLE_HUNT", "SIM_SEED", "SIM_SEEDS"):
        monkeypatch.delenv(f"HEADWATER_{name}", raising=False)
    yield
    take_stale()


def _breaks_at_three(seed: int) -> None:
    assert seed != 3


def test_the_first_broken_seed_is_named() -> None:
    """Seeds before it pass; where none breaks there is none; a bug of the harness is no find."""
    assert broken_seed(_breaks_at_three, range(10)) == 3
    assert broken_seed(_breaks_at_three, range(3)) is None
    with pytest.raises(ZeroDivisionError):
        broken_seed(lambda seed: 1 // seed, range(2))


def test_a_simulator_that_is_out_of_date_catches_no_mutant() -> None:
    """A life that ends by a missing name is told with its seed, but is no broken promise."""

    def life(seed: int) -> None:
        try:
            seed.renamed  # type: ignore[attr-defined]  # noqa: B018
        except AttributeError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

    with pytest.raises(AssertionError, match="renamed"):
        broken_seed(life, range(2))


def test_a_seed_has_to_say_what_the_mutant_stands_for() -> None:
    """Another failure counts for nothing, and the hunt goes on."""

    def breaks(seed: int) -> None:
        assert seed not in {2, 4}, f"seed {seed}: " + ("KeyError" if seed == 2 else "a lost entry")

    assert broken_seed(breaks, range(10), "a lost entry") == 4
    assert not Hunt("", {}, 4, reasons={"one": "a lost entry"}).catches("one", breaks)
    assert Hunt("", {}, 4, reasons={"one": "KeyError"}).catches("one", breaks)


def test_a_hunt_begins_where_the_mutant_is_known_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seeds have their turn; after the known one the whole hunt goes through them in order."""
    assert hunting_order(3, 5) == [3, 4, 0, 1, 2]
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")
    assert hunting_order(3, 5) == [3, 0, 1, 2, 4]
    assert hunting_order(7, 2) == [7, 0, 1], "a known seed beyond the range is tried as well"


def test_a_script_decides_where_there_is_one() -> None:
    """A mutant with a script is not looked for in seeds."""
    scripts = {"seen": lambda: _breaks_at_three(3), "unseen": lambda: _breaks_at_three(0)}
    hunt = Hunt("", {}, 10, scripts=scripts)
    assert hunt.catches("seen", lambda _: None)
    assert not hunt.catches("unseen", _breaks_at_three)
    assert hunt.catches("other", _breaks_at_three)
    assert not Hunt("", {}, 3, scripts=scripts).catches("other", _breaks_at_three)


def test_a_known_seed_that_shows_a_mutant_no_longer_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant dies all the same; the line is the one that belongs into the table."""
    take_stale()
    assert Hunt("table", {"good": 3}, 5).catches("good", _breaks_at_three)
    assert take_stale() == []
    assert Hunt("table", {"old": 4}, 5).catches("old", _breaks_at_three)
    assert take_stale() == [Stale("table", '"old": 3,', "4 shows it no longer")]
    assert take_stale() == []
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")

    def breaks_late(seed: int) -> None:
        assert seed not in {2, 4}

    assert Hunt("table", {"old": 3}, 5).catches("old", breaks_late)
    assert [one.line for one in take_stale()] == ['"old": 2,'], "the first of all"
    assert not Hunt("table", {}, 2).catches("old", breaks_late)
    assert take_stale() == []


def test_what_never_happens_is_named() -> None:
    """Only what was wanted and counted counts; no more seeds are lived than are needed."""
    lived: list[int] = []

    def run(seed: int) -> dict[str, int]:
        lived.append(seed)
        return {str(seed): 1, "more": 2, "9": 0}

    assert never_seen(["1", "9"], run, range(5)) == ["9"]
    assert never_seen(["0", "1"], run, range(5)) == []
    assert lived == [0, 1, 2, 3, 4, 0, 1]


def test_what_is_known_to_happen_in_some_seeds_is_looked_for_there_first() -> None:
    """When the known seeds do not suffice, those that do are told; nothing is lived twice."""
    take_stale()
    lived: list[int] = []

    def run(seed: int) -> dict[str, int]:
        lived.append(seed)
        return {str(seed): 1}

    assert never_seen(["3", "1"], run, range(5), [3, 1], "table") == []
    assert take_stale() == []
    assert never_seen(["3", "1"], run, range(5), [4, 3], "table") == []
    assert lived == [3, 1, 4, 3, 0, 1]
    assert take_stale() == [Stale("table", "3, 1,", "not in the known ones: 1")]
    assert never_seen(["3", "9"], run, range(5), [3], "table") == ["9"]
    assert take_stale() == []


def test_seeds_are_shared_and_one_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have every seed once; one that is asked for alone is run once."""
    assert [[*seeds_of(group, 2, 5)] for group in range(2)] == [[0, 2, 4], [1, 3]]
    monkeypatch.setenv("HEADWATER_SIM_SEED", "7")
    assert [[*seeds_of(group, 2, 5)] for group in range(2)] == [[7], []]


def test_a_run_has_as_many_seeds_and_mutants_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower simulations take one seed in so many; `make mutants` has every mutant."""
    assert (seed_count(24, one_in=8), hunted_here("abc", "b")) == (24, ["b"])
    monkeypatch.setenv("HEADWATER_SIM_SEEDS", "2000")
    assert (seed_count(24, one_in=8), hunted_here("abc", "b")) == (250, ["a", "b", "c"])
    monkeypatch.setenv("HEADWATER_SIM_SEEDS", "")
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")
    assert (seed_count(24, one_in=8), hunted_here("abc", "b")) == (24, ["a", "b", "c"])
