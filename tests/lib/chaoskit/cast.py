"""Who plays which role of a story, out of the cluster's state when it begins. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaoskit.cluster import ChaosError, ClusterState
from chaoskit.stories import OUTSIDERS, Story


@dataclass(frozen=True, slots=True)
class Cast:
    """Roles and the brokers behind them."""

    brokers: tuple[str, ...]
    roles: dict[str, str]
    played: frozenset[str]  # roles that the story names

    def find(self, role: str, leader_now: str | None = None) -> list[str]:
        """Return who is meant: one broker, a group, an outsider, or nobody.

        Raises:
            ChaosError: the story names a role that this cluster cannot fill.
        """
        if role in OUTSIDERS:
            return [role]
        if role == "now":
            return [] if leader_now is None else [leader_now]
        if role == "all":
            return list(self.brokers)
        if role == "others":
            return [one for one in self.brokers if one != self.roles["leader"]]
        if role == "rest":
            taken = {self.roles[one] for one in self.played if one in self.roles}
            return [one for one in self.brokers if one not in taken]
        if role not in self.roles:
            raise ChaosError(f"nobody can play {role!r} among {len(self.brokers)} brokers")
        return [self.roles[role]]

    def pairs(self, sender: str, receiver: str) -> list[tuple[str, str]]:
        """Return every direction from one role to another, none from a broker to itself."""
        return [
            (one, two) for one in self.find(sender) for two in self.find(receiver) if one != two
        ]


def cast(
    story: Story, state: ClusterState, brokers: Sequence[str], *, partition: int, seed: int
) -> Cast:
    """Give the roles: replicas of the partition come before other brokers, otherwise by chance.

    Raises:
        ChaosError: the partition has no leader, or nobody leads the metadata.
    """
    chosen = state.partitions.get(partition)
    if chosen is None or chosen.leader is None or state.controller is None:
        raise ChaosError(f"partition {partition} or the metadata has no leader to begin with")
    others = [one for one in brokers if one != chosen.leader]
    random.Random(seed).shuffle(others)
    others.sort(key=lambda one: one not in chosen.isr)
    roles = {"leader": chosen.leader, "controller": state.controller}
    roles |= {f"f{number}": one for number, one in enumerate(others, 1)}
    named = {role for step in story.steps for role in (step.who, step.to) if role}
    return Cast(tuple(brokers), roles, frozenset(named))
