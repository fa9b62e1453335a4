"""The status of a cluster, for people and for scripts. Pure: values in, rows and sentences out."""

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

# PAUSED and READONLY are decisions of an operator, which the metadata shows already.
_USUAL: Final = (
    ReplicaState.LEADING,
    ReplicaState.FOLLOWING,
    ReplicaState.PAUSED,
    ReplicaState.READONLY,
)


class Replicas:
    """The replicas that brokers reported, by partition. A broker that is away reports none."""

    def __init__(self, told: Sequence[ReplicaStatus] = ()) -> None:
        self._told = {(one.stream, one.partition, one.broker): one for one in told}

    def of(self, one: PartitionInfo) -> list[ReplicaStatus]:
        """Return the reported replicas of a partition."""
        found = [self._told.get((one.stream, one.partition, name)) for name in one.replicas]
        return [replica for replica in found if replica is not None]

    def on(self, one: PartitionInfo, broker: str) -> ReplicaStatus | None:
        """Return the replica on a broker, if the broker reported it."""
        return self._told.get((one.stream, one.partition, broker))

    def high_watermark(self, one: PartitionInfo) -> int | None:
        """Return the highest high watermark that any replica reported; None if none did."""
        return max((replica.high_watermark for replica in self.of(one)), default=None)

    def known_end(self, one: PartitionInfo) -> int:
        """Return the highest log end that any replica reported, or that the table proves.

        Records that another leader replaced do not count: the partition never had both.
        """
        ends = [
            max(replica.log_end, replica.high_watermark)
            if replica.undisputed_end is None
            else replica.undisputed_end
            for replica in self.of(one)
        ]
        return max([one.cold_end, *ends])

    def lags(self, one: PartitionInfo) -> dict[str, int]:
        """Return how many records each follower is behind, as the leader reported."""
        leader = self.on(one, one.leader) if one.leader is not None else None
        if leader is None:
            return {}
        return {
            follower.broker: follower.lag_records
            for follower in leader.followers
            if follower.lag_records is not None
        }


def headline(status: ClusterStatus) -> str:
    """Return the name of the cluster and its controller, in one line."""
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


def health(status: ClusterStatus, replicas: Replicas) -> str:
    """Return a summary of the partitions, in one line."""
    count = len(status.partitions)
    if not count:
        return "There are no streams yet."
    without, under = len(status.leaderless), len(status.under_replicated)
    below = sum(one.below_min_isr for one in status.partitions)
    failed = sum(bool(failures(one, replicas)) for one in status.partitions)
    if not (without or under or below or failed):
        return f"Every partition ({count}) is Online and fully replicated."
    return (
        f"Of {count} partitions: {without} without a leader, {under} under-replicated, "
        f"{below} below min ISR{f', {failed} with a failed replica' if failed else ''}."
    )


def warnings(status: ClusterStatus) -> Iterator[str]:
    """Yield warnings that a person should read before the rest of the status."""
    if not status.confirmed:
        yield (
            f"No majority of the controllers answers: this is the last status that "
            f"{status.told_by} knew, and nothing can be changed."
        )
    for what in status.missing:
        yield f"{status.told_by} cannot use a service: {what}. It keeps trying."
    for one in status.partitions:
        for loss in one.losses:
            yield (
                f"{one.name} lost records: {loss.operator} made {loss.leader} the leader of epoch "
                f"{loss.leader_epoch}; its log ended at {loss.log_end}, the highest known end was "
                f"{loss.known_end}."
            )


def broker_rows(status: ClusterStatus) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of :data:`BROKER_COLUMNS` for each broker."""
    for one in status.brokers:
        yield _broker_row(one, votes=_votes(status, one))


def brokers_json(status: ClusterStatus) -> list[dict[str, Any]]:
    """Return the brokers for scripts, with derived values."""
    return [
        {**one.to_dict(), "state": one.state, "voter": _votes(status, one)}
        for one in status.brokers
    ]


def _votes(status: ClusterStatus, one: BrokerStatus) -> bool:
    """Tell whether a broker votes on the metadata; the other brokers only copy the metadata."""
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
        ", ".join([*notes(one), *_stopped(one), *_unusual(one, replicas)]),
    )


def notes(one: PartitionInfo) -> Iterator[str]:
    """Yield remarks about the unusual states of a partition."""
    if one.candidate is not None:
        yield f"candidate {one.candidate}"
    if one.below_min_isr:
        yield f"below min ISR {one.min_isr}: refuses writes"
    elif one.under_replicated and not one.target:
        yield "under-replicated"
    if one.eligible:
        yield f"eligible {' '.join(one.eligible)}"
    if one.restarted:
        yield f"restarted, log not compared yet: {' '.join(one.restarted)}"
    if one.target:
        yield f"moving to {' '.join(one.target)}"
    if one.leader is not None and one.leader != one.preferred:
        yield f"preferred leader {one.preferred}"
    if one.losses:
        yield f"{len(one.losses)} unclean election(s)"


def _stopped(one: PartitionInfo) -> Iterator[str]:
    """Yield why a partition takes no records, if somebody decided so."""
    if one.paused:
        yield "paused"
    if one.readonly:
        yield "read-only"


def _unusual(one: PartitionInfo, replicas: Replicas) -> Iterator[str]:
    """Yield the replicas that neither lead nor follow, with their states and reasons."""
    for replica in replicas.of(one):
        if replica.failure is not None:
            yield f"{replica.broker} {replica.state or 'failed'}: {replica.failure}"
        elif replica.state and replica.state not in _USUAL:
            yield f"{replica.broker} {replica.state}"


def is_troubled(one: PartitionInfo, replicas: Replicas) -> bool:
    """Tell whether a person should look at a partition."""
    return any(True for _ in notes(one)) or any(True for _ in _unusual(one, replicas))


def failures(one: PartitionInfo, replicas: Replicas) -> dict[str, str]:
    """Return why replicas of a partition have failed, by broker."""
    return {
        replica.broker: replica.failure
        for replica in replicas.of(one)
        if replica.failure is not None
    }


def partition_json(one: PartitionInfo, replicas: Replicas) -> dict[str, Any]:
    """Return a partition for scripts, with derived values."""
    return {
        **one.to_dict(),
        "under_replicated": one.under_replicated,
        "below_min_isr": one.below_min_isr,
        "offline": one.offline,
        "high_watermark": replicas.high_watermark(one),
        "lag_records": replicas.lags(one),
        "replica_failures": failures(one, replicas),
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


def what_would_be_lost(one: PartitionInfo, chosen: BrokerStatus, replicas: Replicas) -> list[str]:
    """Return sentences about the records that an unclean election of ``chosen`` would lose."""
    broker = chosen.broker
    lines = [f"{one.name} is {STATUS_NAMES.get(one.status, one.status)}."]
    away = sorted({*one.isr, *one.eligible} - {broker})
    if away:
        lines.append(
            f"Every committed record is on {', '.join(away)}. Bring {_one_of(away)} back, and no "
            "record is lost. After the election, records there beyond the new leader's log are cut "
            "off at the return."
        )
    mine = replicas.on(one, broker)
    if mine is None or (mine.state == ReplicaState.OPENING and mine.failure):
        why = f" is {chosen.state}, so it" if chosen.state != "alive" else ""
        lines.append(f"{broker}{why} does not report the end of its log.")
        return lines
    end = mine.log_end if mine.undisputed_end is None else mine.undisputed_end
    lines.append(
        f"{broker}'s log ends at offset {mine.log_end}, its last record is of epoch "
        f"{mine.last_epoch}; its last known high watermark is {mine.high_watermark}."
    )
    if end < mine.log_end:
        lines.append(
            f"{broker}'s records from offset {end} on are not of {one.name}: a later leader, which "
            "lacked them, wrote others there. The election cuts them off."
        )
    known = replicas.known_end(one)
    if known > end:
        lines.append(f"Certainly lost, unless a replica that has them returns: [{end}, {known}).")
    if one.cold_end > end:
        lines.append(
            f"The table holds records up to {one.cold_end}. {broker} would write other records at "
            "offsets that the table already has. Do not elect this broker."
        )
    lines.append(
        f"From offset {max(end, known)} on there may be more acknowledged records; no replica that "
        "answers knows how many."
    )
    return lines


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "one of them"
