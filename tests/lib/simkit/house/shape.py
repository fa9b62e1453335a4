"""The choices of a script for a house; a mixed life draws them from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from broker.model.records import AckPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The choices of a script; a field that is None or left out is drawn from the seed."""

    brokers: int | None = None
    streams: int | None = None
    partitions: int | None = None
    factor: int | None = None
    min_isr: int | None = None
    policies: tuple[AckPolicy, ...] | None = None  # of the publishers to each partition
    interval: bool = False  # streams sync by interval
    nats: bool = False  # publishers by message id go through NATS
    late: bool = False  # every third message comes once more, up to 300 ms later
    flight: bool = False  # publishers by sequence, and those without an id, call over Flight


def drawn_policies(more: random.Random) -> tuple[AckPolicy, ...]:
    """Draw the ack policies of the publishers to each partition."""
    policy = (AckPolicy.ALL, AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE)
    return tuple(more.choice(policy) for _ in range(more.choice((1, 2))))


def drawn_shape(more: random.Random) -> Shape:
    """Draw the shape of a mixed life."""
    return Shape(
        policies=drawn_policies(more), interval=more.random() < 0.35, late=more.random() < 0.3
    )
