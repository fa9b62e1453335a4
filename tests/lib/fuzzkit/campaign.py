"""Fuzzes the decoders in this process, for a number of inputs or of seconds."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fuzzkit.corpus import kept
from fuzzkit.decoder import Decoder
from fuzzkit.guidance import Reached
from fuzzkit.judge import Finding, forget_peak, judged
from fuzzkit.mutation import mutated

_SEEDS_MAX: Final = 400  # of one decoder, with those that reached new lines
_RESEALED: Final = 0.6
_WATCHED: Final = 0.1  # of the inputs, because watching is slow
_ROUND: Final = 300


def inputs(decoder: Decoder, draw: random.Random, seeds: list[bytes]) -> Iterator[bytes]:
    """Yield changed seeds without an end; ``seeds`` may grow meanwhile."""
    while True:
        data = mutated(draw, seeds)
        if decoder.reseal is not None and draw.random() < _RESEALED:
            data = decoder.reseal(data)
        yield data


def quick(decoder: Decoder, seed: int, count: int) -> Finding | None:
    """Return the first finding of a few inputs; equal arguments give equal inputs."""
    source = inputs(decoder, random.Random(f"{seed} {decoder.name}"), decoder.seeds)
    for _ in range(count):
        found = judged(decoder, next(source), measures=False)
        if found is not None:
            return found
    return None


def replay(decoders: Mapping[str, Decoder]) -> Iterator[Finding]:
    """Yield the kept inputs that find something again."""
    for one in kept():
        found = judged(decoders[one.decoder], one.data, measures=False)
        if found is not None:
            yield found


@dataclass
class Tally:
    """What a campaign did."""

    inputs: Counter[str] = field(default_factory=Counter)
    lines: dict[str, int] = field(default_factory=dict)  # of the product, by decoder
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)  # the shortest of each

    def add(self, found: Finding) -> bool:
        """Keep a finding; tell whether it is the first of its kind."""
        key = (found.decoder, found.what)
        known = self.findings.get(key)
        if known is None or len(found.data) < len(known.data):
            self.findings[key] = found
        return known is None


def campaign(
    decoders: Mapping[str, Decoder], *, seed: int, seconds: float
) -> Iterator[tuple[Tally, Finding | None]]:
    """Go round the decoders until the time is over; yield each new finding, and each round."""
    tally = Tally()
    states = {
        name: (one, random.Random(f"{seed} {name}"), list(one.seeds), Reached())
        for name, one in decoders.items()
    }
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for name, (decoder, draw, seeds, reached) in states.items():
            forget_peak()
            source = inputs(decoder, draw, seeds)
            for _ in range(_ROUND):
                data = next(source)
                found = _run(decoder, data, draw, seeds, reached)
                if found is not None and tally.add(found):
                    yield tally, found
            tally.inputs[name] += _ROUND
            tally.lines[name] = len(reached)
            if time.monotonic() >= until_s:
                break
        yield tally, None


def _run(
    decoder: Decoder, data: bytes, draw: random.Random, seeds: list[bytes], reached: Reached
) -> Finding | None:
    if draw.random() >= _WATCHED:
        return judged(decoder, data, measures=True)
    with reached.watched() as new:
        found = judged(decoder, data, measures=False)
    if new() and len(seeds) < _SEEDS_MAX:
        seeds.append(data)
    return found
