"""An operator who sets settings of a house's streams again and again, while they are in use."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.errors import HeadwaterError

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node


class Altering:
    """Acts on one house. ``counts`` has what became of it, by name of the deed or of its error."""

    def __init__(
        self, house: House, draws: random.Random, choices: Sequence[dict[str, Any]]
    ) -> None:
        """``choices`` are settings, of which one is set at a time; ``draws`` are its own."""
        self._house = house
        self._rng = draws
        self._choices = choices
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Act from time to time, while there is trouble."""
        self._house.world.at(self._rng.choice((60, 150, 400)), self._act)

    def _act(self) -> None:
        house = self._house
        if not house.faults.is_trouble:
            return
        node = house.nodes[self._rng.choice(sorted(house.nodes))]
        node.machine.run(node.machine.life, self._alter, node)
        self.begin()

    def _alter(self, node: Node) -> None:
        name = self._rng.choice(self._house.streams).name
        settings = self._rng.choice(self._choices)
        if not node.is_open or node.broker is None:
            return
        try:
            node.broker.streams.alter(name, settings)
            self.counts["altered"] += 1
        except HeadwaterError as error:
            self.counts[type(error).__name__] += 1
