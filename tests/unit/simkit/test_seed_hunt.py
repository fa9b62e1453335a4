"""The hunt for a mutant reports when the mutant is not found."""

from __future__ import annotations

import pytest

from simkit.seed_hunt import broken_seed, hunted, hunting_order, is_caught, never_seen


def _breaks_at_three(seed: int) -> None:
    assert seed != 3


def test_the_first_broken_seed_is_named() -> None:
    """Seeds before it pass; where none breaks there is none; a bug of the harness is no find."""
    assert broken_seed(_breaks_at_three, range(10)) == 3
    assert broken_seed(_breaks_at_three, range(3)) is None
    with pytest.raises(ZeroDivisionError):
        broken_seed(lambda seed: 1 // seed, range(2))


def test_a_seed_has_to_say_what_the_mutant_stands_for() -> None:
    """Another failure counts for nothing, and the hunt goes on."""

    def breaks(seed: int) -> None:
        assert seed not in {2, 4}, f"seed {seed}: " + ("KeyError" if seed == 2 else "a lost entry")

    assert broken_seed(breaks, range(10), "a lost entry") == 4
    assert not is_caught("other", {}, breaks, range(4), "a lost entry")


def test_a_hunt_begins_where_the_mutant_is_known_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seeds have their turn; the whole hunt goes through them in order."""
    monkeypatch.delenv("HEADWATER_WHOLE_HUNT", raising=False)
    assert hunting_order(3, 5) == [3, 4, 0, 1, 2]
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")
    assert hunting_order(3, 5) == [0, 1, 2, 3, 4]


def test_a_script_decides_where_there_is_one() -> None:
    """A mutant with a script is not looked for in seeds."""
    scripts = {"seen": lambda: _breaks_at_three(3), "unseen": lambda: _breaks_at_three(0)}
    assert is_caught("seen", scripts, lambda _: None, range(3))
    assert not is_caught("unseen", scripts, _breaks_at_three, range(10))
    assert is_caught("other", scripts, _breaks_at_three, range(10))
    assert not is_caught("other", scripts, _breaks_at_three, range(3))


def test_what_never_happens_is_named() -> None:
    """Only what was wanted and counted counts; no more seeds are lived than are needed."""
    lived: list[int] = []

    def run(seed: int) -> dict[str, int]:
        lived.append(seed)
        return {str(seed): 1, "more": 2, "9": 0}

    assert never_seen(["1", "9"], run, range(5)) == ["9"]
    assert never_seen(["0", "1"], run, range(5)) == []
    assert lived == [0, 1, 2, 3, 4, 0, 1]


def test_what_is_known_to_happen_in_some_seeds_is_looked_for_there_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole hunt says when the known seeds do not suffice, and which do."""
    monkeypatch.delenv("HEADWATER_WHOLE_HUNT", raising=False)
    lived: list[int] = []

    def run(seed: int) -> dict[str, int]:
        lived.append(seed)
        return {str(seed): 1}

    assert never_seen(["3", "1"], run, range(5), known=[3]) == []
    assert lived == [3, 0, 1]
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")
    assert never_seen(["3", "1"], run, range(5), known=[3, 1]) == []
    with pytest.raises(LookupError, match=r"\['1'\]; all of it is in \[1, 3\]"):
        never_seen(["3", "1"], run, range(5), known=[3])


def test_a_known_seed_that_shows_a_mutant_no_longer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hunt goes on from it, and a whole one names the seed that does."""
    monkeypatch.delenv("HEADWATER_WHOLE_HUNT", raising=False)
    assert hunted(_breaks_at_three, known=2, count=5)
    assert not hunted(_breaks_at_three, known=0, count=3)
    monkeypatch.setenv("HEADWATER_WHOLE_HUNT", "1")
    assert hunted(_breaks_at_three, known=3, count=5)
    with pytest.raises(LookupError, match="seed 2 shows it no longer; the first that does is 3"):
        hunted(_breaks_at_three, known=2, count=5)
