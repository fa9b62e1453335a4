"""The text about a cluster agrees with its metadata, in all statuses of a partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.errors import EnvelopeError
from broker.model.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    FollowerStatus,
    LossStatus,
    PartitionInfo,
    ReplicaStatus,
)
from headwater.cli import cluster_view as view


def _broker(name: str, *, fenced: bool = False, controller: bool = False) -> BrokerStatus:
    return BrokerStatus(
        broker=name, epoch=3, addresses={"flight": f"grpc://{name}:1", "http": f"http://{name}:2"},
        fenced=fenced, stopping=False, controller=controller, leads=1, replicas=2, features_max=2,
    )  # fmt: skip


PARTITION = PartitionInfo(
    stream="orders", stream_uuid="u", partition=0, status="online", leader="a", candidate=None,
    leader_epoch=4, partition_epoch=9, replicas=("a", "b", "c"), isr=("a", "b", "c"), eligible=(),
    min_isr=2, target=(), last_known_leader=None, cold_end=5, losses=(),
)  # fmt: skip
OFFLINE = replace(
    PARTITION, status="offline", leader=None, isr=("b",), eligible=("a",), last_known_leader="a"
)
C = _broker("c")
LOSS = LossStatus(
    leader_epoch=6, leader="c", log_end=10, known_end=14, given_up=("a", "b"), operator="me"
)


def _status(
    *partitions: PartitionInfo, alone: bool = False, confirmed: bool = True
) -> ClusterStatus:
    return ClusterStatus(
        cluster="hw", told_by="a", alone=alone, confirmed=confirmed, controller="b",
        controllers=() if alone else ("a", "b", "c"), feature_level=2,
        brokers=(_broker("a"), _broker("b", controller=True), _broker("c", fenced=True)),
        partitions=partitions,
    )  # fmt: skip


def _replica(broker: str, log_end: int, *followers: FollowerStatus) -> ReplicaStatus:
    return ReplicaStatus(
        broker=broker, stream="orders", partition=0, role="leader" if followers else "follower",
        leader_epoch=4, last_epoch=3, log_start=0, high_watermark=min(log_end, 12),
        log_end=log_end, synced_end=log_end, failure=None, followers=followers,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("online", "Online"),
        ("election", "Election"),
        ("candidate_found", "CandidateFound"),
        ("offline", "Offline"),
    ],
)
def test_every_status_has_its_name(status: str, shown: str) -> None:
    """The statuses have the names that the docs use."""
    row = view.partition_row(replace(PARTITION, status=status), view.Replicas())
    assert row[view.PARTITION_COLUMNS.index("status")] == shown


def test_a_healthy_cluster_is_one_sentence() -> None:
    """Nothing is in trouble, so nothing is listed."""
    status = _status(PARTITION)
    assert view.headline(status) == (
        "Cluster hw: 2 of 3 brokers alive, controller b, feature level 2."
    )
    assert (
        view.health(status, view.Replicas())
        == "Every partition (1) is Online and fully replicated."
    )
    assert list(view.notes(PARTITION)) == []
    assert list(view.warnings(status)) == []


def test_a_broker_alone_says_so() -> None:
    """A user who expected a cluster learns how to get one."""
    assert "alone" in view.headline(_status(alone=True))
    assert "--brokers 3" in view.headline(_status(alone=True))


def test_trouble_is_counted() -> None:
    """Offline, under-replicated and below min ISR are three things."""
    thin = replace(PARTITION, partition=1, isr=("a", "b"))
    assert view.health(_status(PARTITION, thin, OFFLINE), view.Replicas()) == (
        "Of 3 partitions: 1 without a leader, 2 under-replicated, 1 below min ISR."
    )
    assert list(view.notes(thin)) == ["under-replicated"]
    assert list(view.notes(OFFLINE)) == ["below min ISR 2: refuses writes", "eligible a"]


def test_a_move_and_a_foreign_leader_are_noted() -> None:
    """A running move, and a leader that is not preferred, are noted beside the partition."""
    moving = replace(PARTITION, leader="b", target=("b", "c"))
    assert list(view.notes(moving)) == ["moving to b c", "preferred leader a"]
    assert list(view.notes(replace(PARTITION, candidate="c", leader=None))) == ["candidate c"]


def test_lag_is_the_leaders_word() -> None:
    """Only the leader knows how far followers are; an unknown lag is not shown as zero."""
    b = FollowerStatus(broker="b", synced_end=10, lag_records=2, silent_ms=5)
    c = FollowerStatus(broker="c", synced_end=None, lag_records=None, silent_ms=None)
    told = view.Replicas([_replica("a", 12, b, c)])
    row = dict(zip(view.PARTITION_COLUMNS, view.partition_row(PARTITION, told), strict=True))
    assert (row["behind"], row["committed"]) == ("b 2", 12)
    unknown = view.partition_row(PARTITION, view.Replicas())
    assert unknown[view.PARTITION_COLUMNS.index("behind")] is None
    assert view.partition_json(PARTITION, told)["lag_records"] == {"b": 2}


def test_without_a_majority_the_reader_is_warned() -> None:
    """A status that nobody confirmed is not shown as the truth."""
    (warning,) = view.warnings(_status(PARTITION, confirmed=False))
    assert "No majority" in warning


def test_losses_stay_visible() -> None:
    """Every status tells who gave records up, and how many are known to be lost."""
    (warning,) = view.warnings(_status(replace(PARTITION, losses=(LOSS,))))
    assert all(word in warning for word in ("orders/0", "me", "ended at 10", "end was 14"))
    assert list(view.notes(replace(PARTITION, losses=(LOSS,)))) == ["1 unclean election(s)"]


def test_what_would_be_lost_is_shown_first() -> None:
    """The operator reads who has the records, and the range that is known to be lost."""
    told = view.Replicas([_replica("c", 10), _replica("a", 14)])
    text = "\n".join(view.what_would_be_lost(OFFLINE, C, told))
    assert "orders/0 is Offline" in text
    assert "on a, b" in text
    assert "ends at offset 10" in text
    assert "[10, 14)" in text
    assert "Do not elect this broker" not in text


def test_an_election_below_the_table_is_advised_against() -> None:
    """A log that ends below the cold end would give offsets of the table out again."""
    told = view.Replicas([_replica("c", 3)])
    assert "Do not elect this broker" in "\n".join(view.what_would_be_lost(OFFLINE, C, told))


def test_a_log_that_left_the_history_is_told_by_where_it_left() -> None:
    """Its end is above the table's, and yet its records are not the table's."""
    left = replace(_replica("c", 16), undisputed_end=3)
    told = view.Replicas([left, replace(_replica("a", 14), undisputed_end=14)])
    lines = view.what_would_be_lost(OFFLINE, C, told)
    assert any("c's log ends at offset 16" in one for one in lines)
    assert any("c's records from offset 3 on are not of orders/0" in one for one in lines)
    assert any("[3, 14)" in one for one in lines)
    assert any("Do not elect this broker" in one for one in lines)
    assert told.known_end(OFFLINE) == 14, "the partition never had the records of [14, 16)"
    older = view.Replicas([_replica("c", 16)])
    assert older.known_end(OFFLINE) == 16, "an older broker does not tell"


def test_a_silent_candidate_is_said() -> None:
    """Without its answer nothing is known of its log."""
    lines = view.what_would_be_lost(OFFLINE, C, view.Replicas())
    assert lines[-1] == "c does not report the end of its log."


def test_a_status_survives_the_wire() -> None:
    """A client decodes the status that the broker has encoded; other JSON is refused."""
    status = _status(PARTITION, replace(OFFLINE, losses=(LOSS,)))
    assert ClusterStatus.from_dict(status.to_dict()) == status
    follower = FollowerStatus(broker="b", synced_end=1, lag_records=0, silent_ms=0)
    replica = _replica("a", 12, follower)
    assert ReplicaStatus.from_dict(replica.to_dict()) == replica
    for change in ({"brokers": "x"}, {"cluster": 5}, {"alone": "no"}, {"partitions": [1]}):
        with pytest.raises(EnvelopeError):
            ClusterStatus.from_dict({**status.to_dict(), **change})
    with pytest.raises(EnvelopeError):
        ClusterStatus.from_dict({})


def test_who_votes_is_shown() -> None:
    """The table and the JSON show it; a single broker always votes."""
    follows = replace(
        _status(), brokers=(*_status().brokers, _broker("d")), controllers=("a", "b", "c")
    )
    column = view.BROKER_COLUMNS.index("voter")
    rows = list(view.broker_rows(follows))
    assert all(len(row) == len(view.BROKER_COLUMNS) for row in rows)
    assert [row[column] for row in rows] == ["yes", "yes", "yes", "no"]
    assert [one["voter"] for one in view.brokers_json(follows)] == [True, True, True, False]
    assert {row[column] for row in view.broker_rows(_status(alone=True))} == {"yes"}


def test_a_replica_that_neither_leads_nor_follows_is_noted() -> None:
    """An unusual state stands in the row and in the JSON; the usual one has no text."""
    told = [
        replace(_replica("a", 20), state="leading"),
        replace(_replica("b", 20), state="following"),
        replace(_replica("c", 0), state="damaged"),
    ]
    one = replace(PARTITION, replicas=("a", "b", "c"), restarted=("b",))
    replicas = view.Replicas(told)
    notes = view.partition_row(one, replicas)[view.PARTITION_COLUMNS.index("notes")]
    assert notes.split(", ")[-1] == "c damaged"
    assert "restarted, log not compared yet: b" in notes
    states = view.partition_json(one, replicas)["replica_states"]
    assert states == {"a": "leading", "b": "following", "c": "damaged"}


def test_a_failed_replica_is_shown_with_its_reason() -> None:
    """A single broker's failed replica is shown, too, though the metadata says Online."""
    alone = replace(PARTITION, replicas=("a",), isr=("a",), min_isr=1)
    failed = replace(_replica("a", 20), state="failed", failure="fsync: EIO")
    replicas = view.Replicas([failed])
    assert view.is_troubled(alone, replicas)
    assert not view.is_troubled(alone, view.Replicas([replace(failed, failure=None, state="")]))
    assert "a failed: fsync: EIO" in view.partition_row(alone, replicas)
    assert "1 with a failed replica" in view.health(_status(alone, alone=True), replicas)
    shown = view.status_json(_status(alone, alone=True), replicas)["partitions"][0]
    assert shown["replica_failures"] == {"a": "fsync: EIO"}


def test_offline_and_leaderless_are_counted_apart() -> None:
    """As the metrics of these names do."""
    rows = (
        replace(PARTITION, status="offline"),
        replace(PARTITION, status="election", partition=1),
    )
    found = view.status_json(_status(*rows), view.Replicas())
    assert (found["offline_partitions"], found["leaderless_partitions"]) == (1, 2)
