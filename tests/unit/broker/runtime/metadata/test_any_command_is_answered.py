"""Whatever a committed command says, every broker answers it, and the answer can be kept.

The entry is in the log of every broker. One that is answered by an exception, or by more bytes than
a reply may have, ends all of them, and again at each start.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import random
from collections.abc import Collection, Mapping
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import pytest

from broker.codec.disk.raft_state import REPLY_BYTES_MAX
from broker.core.metadata.commands import Command, CreateStream, RegisterBroker, decode, encode
from broker.core.metadata.state import FEATURE_LEVEL_MAX
from broker.errors import HeadwaterError
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.runtime.metadata.raft.machine import MetadataMachine
from cases import seeds

UUID = StreamUuid("0b5e0f3e-5a0c-4c7c-9a54-1f1f5a6b7c8d")
TEXTS = [
    "", "a", "s", "b1", "m", "g", "*", "a.b", "0", "__group:g", UUID, "x" * 5_000, "\x07" * 400,
    "\u00fc" * 300, "\U0001f600" * 170, "\U0001f600" * 300, "\ud800" * 300,
]  # fmt: skip
NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 7, 100, 2**31, 2**62, 2**63 - 1]
COMMANDS = 40


def drawn(rng: random.Random, kind: Any, depth: int = 0) -> Any:
    """Return a value of a type, as JSON has it; often a wrong one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return drawn(rng, kind.__supertype__, depth)
    if origin in (Union, UnionType):
        return drawn(rng, rng.choice(arguments), depth)
    if origin is Literal:
        return rng.choice(arguments)
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice(NUMBERS)
    if kind is type(None):
        return None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return rng.choice(list(kind)).value
    if dataclasses.is_dataclass(kind):
        return fields_of(rng, kind, depth + 1)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        count = rng.choice((0, 1, 2))
        return {
            str(drawn(rng, arguments[0], depth + 1)): drawn(rng, arguments[1], depth + 1)
            for _ in range(count)
        }
    if isinstance(origin, type) and issubclass(origin, Collection):
        count = rng.choice((0, 1, 2, 20) if depth < 2 else (0, 1))
        return [drawn(rng, arguments[0], depth + 1) for _ in range(count)]
    return rng.choice(TEXTS)


def fields_of(rng: random.Random, kind: Any, depth: int = 0) -> dict[str, Any]:
    """Return a command's fields; those with a default are left out now and then."""
    hints = get_type_hints(kind)
    given = {}
    for field in dataclasses.fields(kind):
        missing = dataclasses.MISSING
        has_default = field.default is not missing or field.default_factory is not missing
        if not has_default or rng.random() < 0.4:
            given[field.name] = drawn(rng, hints[field.name], depth)
    return given


@pytest.mark.parametrize("seed", seeds(20))
def test_any_command_is_answered_in_few_bytes_by_every_broker_alike(seed: int) -> None:
    """Of a group at the newest level with one stream."""
    rng = random.Random(seed)
    one, other = MetadataMachine(), MetadataMachine()
    stream = Stream(
        name="s", uuid=UUID, config=StreamConfig(subject="s"), created_us=1, table_name="s"
    )
    log = [
        encode(RegisterBroker(broker=BrokerId("b1"), features_max=FEATURE_LEVEL_MAX)),
        encode(CreateStream(stream=stream, leader=BrokerId("b1"))),
    ]
    for _ in range(COMMANDS):
        kind = rng.choice(get_args(Command))
        log.append(json.dumps({"op": kind.__name__, **fields_of(rng, kind)}).encode())
    for index, command in enumerate(log, start=1):
        reply = one.apply(index, command)
        assert len(reply) <= REPLY_BYTES_MAX, command[:200]
        assert other.apply(index, command) == reply
    restored = MetadataMachine()
    restored.restore(one.snapshot())
    assert one.hash() == other.hash() == restored.hash()


def test_most_kinds_of_commands_are_drawn_well_formed() -> None:
    """Else the test above would look at commands that do not parse."""
    rng = random.Random(1)
    parsed = set()
    for _ in range(4_000):
        kind = rng.choice(get_args(Command))
        try:
            decode(json.dumps({"op": kind.__name__, **fields_of(rng, kind)}).encode())
        except HeadwaterError:
            continue
        parsed.add(kind.__name__)
    assert len(parsed) >= 40
