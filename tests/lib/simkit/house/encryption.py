"""Encrypted streams of a house: keys of each broker, which it may lack for a while, and rotations.

The provider is real but for its reach: a broker that cannot reach it, or lacks the key, hears what
a real one says. Nonces and keys are drawn from the life's own randomness.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from broker.core.metadata.commands import SetFeatureLevel
from broker.core.metadata.state import FEATURE_LEVEL_STREAMS
from broker.errors import EncryptionKeyError, HeadwaterError, KeyProviderUnavailableError
from broker.keys.derive import derived
from broker.keys.local_keys import EnvironmentKeys
from broker.keys.xaes import Xaes256Gcm
from broker.model.data_key import DataKey
from broker.model.ids import StreamUuid
from broker.ports.system import Clock
from broker.runtime.stream_keys import StreamKeys
from simkit.encryption_keys import FIRST

if TYPE_CHECKING:
    from simkit.house.house import House
    from simkit.house.node import Node

_TEXT: Final = f"one:{FIRST}"


class ReachableKeys:
    """Implements ``KeyProvider``: real keys, which are out of reach now and then."""

    kind = "environment"

    def __init__(self) -> None:
        self._keys = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": _TEXT})
        self.refusal: type[EncryptionKeyError] | None = None

    def wrap(self, key: bytes, context: Mapping[str, str], *, by: str = "") -> tuple[str, bytes]:
        """See the port."""
        self._look()
        return self._keys.wrap(key, context, by=by)

    def unwrap(self, name: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See the port."""
        self._look()
        return self._keys.unwrap(name, wrapped, context)

    def _look(self) -> None:
        if self.refusal is not None:
            raise self.refusal("the life took the keys away", provider=self.kind)


class HouseKeys:
    """The keys of one house. ``counts`` has what became of them."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._rng = random.Random(f"keys {seed}")
        self._providers: dict[str, ReachableKeys] = {}
        self.counts: Counter[str] = Counter()

    def of(self, name: str, clock: Clock) -> StreamKeys:
        """Return the keys of a process of a broker that begins; it has learnt nothing."""
        provider = self._providers.setdefault(name, ReachableKeys())
        draw = random.Random(f"{name} {self._rng.random()}").randbytes

        def cipher(key: bytes) -> Xaes256Gcm:
            return Xaes256Gcm(derived(key, "batches"), random=draw)

        return StreamKeys(clock, provider, cipher, random=draw)

    def first(self, uuid: StreamUuid) -> tuple[DataKey, ...]:
        """Return the data keys of a new stream; the metadata may have them from now on."""
        house = self._house
        level = house.house.state.feature_level
        if level < FEATURE_LEVEL_STREAMS:
            house.house.propose(SetFeatureLevel(expected=level, level=FEATURE_LEVEL_STREAMS))
        name = min(house.nodes)
        return self.of(name, house.nodes[name].machine).first(uuid)

    def begin(self) -> None:
        """Take keys away, give them back, and rotate, while there is trouble."""
        self._house.world.at(self._rng.choice((40, 100, 250)), self._act)

    def end(self) -> None:
        """Give every broker its keys back."""
        for provider in self._providers.values():
            provider.refusal = None

    def are_usable(self) -> bool:
        """Tell whether every open replica can use all its keys: a refusal is kept for seconds."""
        try:
            for node in self._house.nodes.values():
                for one in [] if node.broker is None else node.broker.replicas.all():
                    for key in one.stream.data_keys:
                        one._local.cipher._cipher(key.version)
        except EncryptionKeyError:
            return False
        return True

    def _act(self) -> None:
        house, rng = self._house, self._rng
        if not house.faults.is_trouble:
            self.end()
            return
        name = rng.choice(sorted(house.nodes))
        if rng.random() < 0.5:
            node = house.nodes[name]
            node.machine.run(node.machine.life, self._rotate, node)
        else:
            kinds = (EncryptionKeyError, KeyProviderUnavailableError, None, None)
            self._providers.setdefault(name, ReachableKeys()).refusal = rng.choice(kinds)
        for node in house.nodes.values():
            if node.is_open and node.broker is not None:
                refused = node.broker.replicas.unopened().values()
                self.counts["locked"] += any(isinstance(one, EncryptionKeyError) for one in refused)
        self.begin()

    def _rotate(self, node: Node) -> None:
        if not node.is_open or node.broker is None:
            return
        stream = self._rng.choice(self._house.streams)
        try:
            found = node.broker.streams.get(stream.name)
            node.broker.streams.rotate_key(stream.name, found.data_keys[-1].version)
            self.counts["rotated"] += 1
        except HeadwaterError as error:
            self.counts[type(error).__name__] += 1
