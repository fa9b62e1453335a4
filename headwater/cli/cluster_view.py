"""How a cluster looks to a person and to a script. Pure: values in, rows and sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from broker.model.cluster_status import (
    STATUS_NAMES,
    BrokerStatus,
    ClusterStatus,
    PartitionInfo,
    ReplicaStatus,
)
from broker.model.replica_state import ReplicaState

BROKER_COLUMNS: Final = (
    "broker", "state", "voter", "controller", "epoch", "leads", "replicas", "flight", "http",
)  # fmt: skip
PARTITION_COLUMNS: Final = (
    "partition", "status", "leader", "epoch", "replicas", "ISR", "committed", "behind", "notes",
)  # fmt: skip

_USUAL: Final = (ReplicaState.LEADING, ReplicaState.FOLLOWING)


class Replicas:
    """What brokers said of their replicas, by partition. What nobody said is not known."""

    def __init__(self, told: Sequence[ReplicaStatus] = ()) -> None:
        self._told = {(one.stream, one.partition, one.broker): one for one in told}

    def of(self, one: PartitionInfo) -> list[ReplicaStatus]:
        """Return the replicas of a partition that were told of."""
        found = [self._told.get((one.stream, one.partition, name)) for name in one.replicas]
        return [replica for replica in found if replica is not None]

    def on(self, one: PartitionInfo, broker: str) -> ReplicaStatus | None:
        """Return the replica on a broker, if that was told."""
        return self._told.get((one.stream, one.partition, broker))

    def high_watermark(self, one: PartitionInfo) -> int | None:
        """Return what is committed, as far as anybody said: the leader's word, or the highest."""
        return max((replica.high_watermark for replica in self.of(one)), default=None)

    def known_end(self, one: PartitionInfo) -> int:
        """Return the highest end of a log that anybody said, or that the table proves."""
        ends = [max(replica.log_end, replica.high_watermark) for replica in self.of(one)]
        return max([one.cold_end, *ends])

    def lags(self, one: PartitionInfo) -> dict[str, int]:
        """Return how many records each follower is behind, as the leader heard."""
        leader = self.on(one, one.leader) if one.leader is not None else None
        if leader is None:
            return {}
        return {
            follower.broker: follower.lag_records
            for follower in leader.followers
            if follower.lag_records is not None
        }


def headline(status: ClusterStatus) -> str:
    """Return who this is and who decides, in one line."""
    if status.alone:
        return (
            f"{status.told_by} is a broker alone: its own cluster {status.cluster}, without "
            f"replicas. `headwater up --brokers 3` makes a cluster of three."
        )
    alive = sum(one.state == "alive" for one in status.brokers)
    return (
        f"Cluster {status.cluster}: {alive} of {len(status.brokers)} brokers alive, controller "
        f"{status.controller or 'not known'}, feature level {status.feature_level}."
    )


def health(status: ClusterStatus) -> str:
    """Return how the partitions stand, in one line."""
    count = len(status.partitions)
    if not count:
        return "There are no streams yet."
    without, under = len(status.leaderless), len(status.under_replicated)
    below = sum(one.below_min_isr for one in status.partitions)
    if not (without or under or below):
        return f"Every partition ({count}) is Online and fully replicated."
    return (
        f"Of {count} partitions: {without} without a leader, {under} under-replicated, "
        f"{below} below min ISR."
    )


def warnings(status: ClusterStatus) -> Iterator[str]:
    """Yield what a person should know before believing the rest."""
    if not status.confirmed:
        yield (
            f"No majority of the controllers answers: this is what {status.told_by} knew last, "
            "and nothing can be changed."
        )
    for one in status.partitions:
        for loss in one.losses:
            yield (
                f"{one.name} lost records: {loss.operator} let {loss.leader} lead in epoch "
                f"{loss.leader_epoch} with a log up to {loss.log_end}, of {loss.known_end} known."
            )


def broker_rows(status: ClusterStatus) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of :data:`BROKER_COLUMNS` for each broker."""
    for one in status.brokers:
        yield _broker_row(one, votes=_votes(status, one))


def brokers_json(status: ClusterStatus) -> list[dict[str, Any]]:
    """Return the brokers for scripts, with what is derived."""
    return [
        {**one.to_dict(), "state": one.state, "voter": _votes(status, one)}
        for one in status.brokers
    ]


def _votes(status: ClusterStatus, one: BrokerStatus) -> bool:
    """Tell whether a broker votes on the metadata; the others follow them."""
    return status.alone or one.broker in status.controllers


def _broker_row(one: BrokerStatus, *, votes: bool) -> tuple[Any, ...]:
    return (
        one.broker,
        one.state,
        "yes" if votes else "no",
        "in office" if one.controller else "",
        one.epoch,
        one.leads,
        one.replicas,
        one.addresses.get("flight"),
        one.addresses.get("http"),
    )


def partition_row(one: PartitionInfo, replicas: Replicas) -> tuple[Any, ...]:
    """Return the cells of :data:`PARTITION_COLUMNS`."""
    lags = replicas.lags(one)
    behind = ", ".join(f"{name} {lag:,}" for name, lag in sorted(lags.items()) if lag)
    return (
        one.name,
        STATUS_NAMES.get(one.status, one.status),
        one.leader,
        one.leader_epoch,
        " ".join(one.replicas),
        " ".join(one.isr),
        replicas.high_watermark(one),
        behind or (None if one.leader is None or not lags else "0"),
        ", ".join([*notes(one), *_unusual(one, replicas)]),
    )


def notes(one: PartitionInfo) -> Iterator[str]:
    """Yield what is unusual about a partition."""
    if one.candidate is not None:
        yield f"candidate {one.candidate}"
    if one.below_min_isr:
        yield f"below min ISR {one.min_isr}: takes no writes"
    elif one.under_replicated and not one.target:
        yield "under-replicated"
    if one.eligible:
        yield f"eligible {' '.join(one.eligible)}"
    if one.restarted:
        yield f"restarted, to be compared: {' '.join(one.restarted)}"
    if one.target:
        yield f"moving to {' '.join(one.target)}"
    if one.leader is not None and one.leader != one.preferred:
        yield f"preferred leader {one.preferred}"
    if one.losses:
        yield f"{len(one.losses)} unclean election(s)"


def _unusual(one: PartitionInfo, replicas: Replicas) -> Iterator[str]:
    """Yield the replicas that do something else than leading or following."""
    for replica in replicas.of(one):
        if replica.state and replica.state not in _USUAL:
            yield f"{replica.broker} {replica.state}"


def partition_json(one: PartitionInfo, replicas: Replicas) -> dict[str, Any]:
    """Return a partition for scripts, with what is derived from it."""
    return {
        **one.to_dict(),
        "under_replicated": one.under_replicated,
        "below_min_isr": one.below_min_isr,
        "offline": one.offline,
        "high_watermark": replicas.high_watermark(one),
        "lag_records": replicas.lags(one),
        "replica_states": {replica.broker: replica.state for replica in replicas.of(one)},
    }


def status_json(status: ClusterStatus, replicas: Replicas) -> dict[str, Any]:
    """Return a whole status for scripts."""
    values = status.to_dict()
    values["partitions"] = [partition_json(one, replicas) for one in status.partitions]
    values["brokers"] = brokers_json(status)
    values["offline_partitions"] = len(status.offline)
    values["leaderless_partitions"] = len(status.leaderless)
    values["under_replicated_partitions"] = len(status.under_replicated)
    return values


def what_would_be_lost(one: PartitionInfo, broker: str, replicas: Replicas) -> list[str]:
    """Return what an unclean election of ``broker`` gives up, one sentence each."""
    lines = [f"{one.name} is {STATUS_NAMES.get(one.status, one.status)}."]
    away = sorted({*one.isr, *one.eligible} - {broker})
    if away:
        lines.append(
            f"Everything committed is on {', '.join(away)}. Bring one of them back, and nothing is "
            "lost. What they hold beyond the new leader's log is cut off when they return."
        )
    mine = replicas.on(one, broker)
    if mine is None or (mine.state == ReplicaState.OPENING and mine.failure):
        lines.append(f"{broker} does not say how far its log reaches.")
        return lines
    end = mine.log_end
    lines.append(
        f"{broker}'s log ends at offset {end}, its last record is of epoch {mine.last_epoch}; it "
        f"knew records up to {mine.high_watermark} as committed."
    )
    known = replicas.known_end(one)
    if known > end:
        lines.append(f"Lost for certain, unless they return: records [{end}, {known}).")
    if one.cold_end > end:
        lines.append(
            f"The table holds records up to {one.cold_end}: {broker} would write other records at "
            "offsets that the table has. Do not do this."
        )
    lines.append(
        f"How many acknowledged records there are from offset {max(end, known)} on, nobody that "
        "answers can say."
    )
    return lines
