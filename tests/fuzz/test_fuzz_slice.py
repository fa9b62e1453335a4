"""A slice of ``make fuzz``: the kept corpus, and a few changed inputs for each decoder.

The inputs are the same in each run. Time and memory are judged by ``make fuzz`` only: they depend
on what else the machine does.
"""

from __future__ import annotations

import random

import pytest

from cases import each_of
from fuzzkit import corpus, registry
from fuzzkit.campaign import quick, replay
from fuzzkit.decoder import Decoder
from fuzzkit.judge import forget_peak, judged
from fuzzkit.mutation import mutated

_INPUTS: int = 100


@each_of(registry.ROOMS)
def test_seeds_are_accepted(room: object) -> None:
    """An input that is refused at its first byte would hide all that is behind."""
    for decoder in room.decoders():  # type: ignore[attr-defined]
        for seed in decoder.seeds if decoder.raw_seeds else ():
            assert decoder.accepts(seed), (decoder.name, seed)


def test_seeds_of_actions_are_accepted() -> None:
    """A body that every check accepts is found for nearly every action."""
    actions = [one for name, one in registry.decoders().items() if name.startswith("action_")]
    accepted = [one.name for one in actions if one.accepts(one.seeds[0])]
    assert len(accepted) > 0.9 * len(actions)


def test_what_was_found_before_is_not_found_again() -> None:
    """Each line of the corpus once broke a decoder."""
    assert not [(one.decoder, one.what, one.trace) for one in replay(registry.decoders())]


def test_each_line_of_the_corpus_has_its_decoder() -> None:
    """And it comes back as it was written."""
    for one in corpus.kept():
        assert one.decoder in registry.decoders()
        line = corpus.line_of(one.data, one.why)
        path = corpus.FOLDER / f"{one.decoder}.txt"
        assert line in path.read_text(encoding="ascii").splitlines()


@pytest.mark.parametrize("room", registry.ROOMS, ids=lambda room: room.__name__.split(".")[-1])
def test_changed_inputs_are_accepted_or_refused(room: object) -> None:
    """Whatever a decoder gets, it returns a value or raises one of its own errors."""
    for decoder in room.decoders():  # type: ignore[attr-defined]
        found = quick(decoder, seed=1, count=_INPUTS)
        assert found is None, (found.decoder, found.what, found.data[:200], found.trace)


def test_a_decoder_that_breaks_is_found() -> None:
    """The judge can say no: an error of another kind, memory, time."""

    def breaks(data: bytes) -> object:
        return dict[bytes, bytes]()[data]

    bad = Decoder(name="bad", covers=(), decode=breaks, make_seeds=lambda: [b"{}"])
    found = quick(bad, seed=1, count=1)
    assert found is not None
    assert found.what.startswith("KeyError")
    greedy = Decoder(
        name="greedy",
        covers=(),
        decode=lambda _: bytes([1]) * (128 << 20),
        make_seeds=lambda: [b"x"],
    )
    forget_peak()
    taken = judged(greedy, b"x", measures=True)
    assert taken is not None
    assert "MiB" in taken.what


def test_equal_seeds_make_equal_inputs() -> None:
    """So a finding is replayed by its seed."""
    seeds = [b'{"a":[1,{"b":"c"}],"d":null}', bytes(range(64))]
    one, other = ([mutated(random.Random(5), seeds) for _ in range(50)] for _ in range(2))
    assert one == other
