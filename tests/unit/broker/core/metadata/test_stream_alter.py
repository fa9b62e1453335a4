"""The settings of a stream that may change, the checks, and the refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AlterStream,
    CreateStream,
    DeleteStream,
    SetFeatureLevel,
    decode,
    encode_new,
)
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.size import ORDINARY_WEIGHT_MAX, weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ALTERED,
    FEATURE_LEVEL_MAX,
    FEATURE_LEVEL_REPLICATED,
    FEATURE_LEVEL_STREAMS,
)
from broker.core.metadata.stream_alter import FIXED, refused_compaction, refused_lower_min_isr
from broker.errors import (
    FeatureLevelError,
    FixedSettingError,
    InvalidRequestError,
    InvalidStreamError,
    MetadataFullError,
    StreamChangedError,
    StreamRecreatedError,
    UnknownStreamError,
)
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from simkit.brokers.metadata_rig import A, B, C, D, MetadataRig

OTHER = StreamUuid("00000000-0000-0000-0000-000000000002")


def rig(*replicas: BrokerId, **facts: Any) -> MetadataRig:
    """Return a cluster whose brokers all know how to change a stream."""
    level = facts.pop("features_max", FEATURE_LEVEL_ALTERED)
    return MetadataRig(replicas or (A, B, C), features_max=level, **facts)


def stream_of(cluster: MetadataRig) -> Stream:
    """Return its stream as it is now."""
    return cluster.state.streams["s"]


def changed(stream: Stream, **changes: Any) -> Stream:
    """Return the stream with other settings."""
    return replace(stream, config=StreamConfig.from_dict({**stream.config.to_dict(), **changes}))


def alteration(cluster: MetadataRig, **changes: Any) -> AlterStream:
    """Return the command of an operator who sees the newest state."""
    present = stream_of(cluster)
    return AlterStream(expected=present, wanted=changed(present, **changes))


# Every setting with a value that is not the rig's, and whether it may become so.
VALUES: dict[str, Any] = {
    "key_header": "K",
    "puback": True,
    "puback_overlap": True,
    "puback_headers_only": True,
    "optimistic_concurrency": True,
    "dedup_window_ms": 1_000,
    "dedup_ids_max": 500,
    "record_bytes_max": 1 << 20,
    "segment_bytes_max": 8 << 20,
    "segment_age_ms_max": 1_000,
    "flush_interval_ms": 50,
    "compression": "zstd",
    "min_isr": 3,
    "compact": True,
    "tombstone_delay_ms": 0,
    "compact_dirty_percent": 1,
    "history": "compact",
    "local_retention_bytes": 0,
    "local_retention_ms": 1_000,
    "unshipped_bytes_max": 1 << 30,
    "local_retention_records": 5,
    "remote_retention_ms": 1_000,
    "remote_retention_bytes": 1 << 20,
    "remote_retention_records": 5,
    "remote_delete_grace_ms": 1_000,
    "protect_groups": True,
    "auto_pause_ms": 60_000,
    "auto_pause_unless_subscribed": True,
}
REFUSED: dict[str, Any] = {
    "subject": "t",
    "partitioner": "each_client",
    "queue_group": "g",
    "index_interval_bytes": 4096,
    "flush": "interval",
    "replication_factor": 3,
    "encryption": "xaes-256-gcm",
    "table_encryption": "ciphertext",
    "tiering": False,
}


def test_each_setting_is_known_to_change_or_to_stay() -> None:
    """A new setting is in one of the two lists, so its author has decided."""
    # test_stream_growth.py is about the partitions.
    assert {*VALUES, *REFUSED, "partitions"} == set(StreamConfig(subject="s").to_dict())
    assert {*FIXED, "tiering"} == set(REFUSED)


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_changes_and_nothing_else_does(name: str) -> None:
    """The stream keeps its uuid, its partitions their leaders; the same again changes nothing."""
    cluster = rig(features_max=FEATURE_LEVEL_MAX)
    before = cluster.state
    cluster.do(alteration(cluster, **{name: VALUES[name]}))
    assert stream_of(cluster) == changed(before.streams["s"], **{name: VALUES[name]})
    assert cluster.one().leader_epoch == before.partitions[stream_of(cluster).uuid][0].leader_epoch
    assert cluster.state.weight == weigh(cluster.state)
    after, reply = apply(cluster.state, alteration(cluster))
    assert (after, reply) == (cluster.state, {"uuid": stream_of(cluster).uuid, "changed": False})


def test_key_compaction_waits_for_brokers_that_can_read_what_it_writes() -> None:
    """Below feature level 5 no stream gets it, at its creation or later."""
    cluster = rig()
    refused = apply(cluster.state, alteration(cluster, compact=True))[1]
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, FeatureLevelError)


def test_key_compaction_of_a_table_waits_for_brokers_that_read_what_is_left() -> None:
    """Below feature level 6 no table gets it; that of an encrypted stream stays as it is."""
    cluster = rig(features_max=FEATURE_LEVEL_STREAMS)
    refused = apply(cluster.state, alteration(cluster, history="compact"))[1]
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, FeatureLevelError)
    cluster = rig(features_max=FEATURE_LEVEL_MAX)
    wanted = changed(stream_of(cluster), history="compact", table_encryption="ciphertext")
    assert isinstance(refused_compaction(cluster.state, wanted), InvalidStreamError)


def test_an_encrypted_stream_is_not_compacted() -> None:
    """Its records cannot be compared yet."""
    cluster = rig(features_max=FEATURE_LEVEL_STREAMS)
    wanted = changed(stream_of(cluster), encryption="xaes-256-gcm", compact=True)
    assert isinstance(refused_compaction(cluster.state, wanted), InvalidStreamError)


@pytest.mark.parametrize(("name", "value"), [("compact", False), ("tiering", True)])
def test_a_compacted_stream_without_a_table_never_gets_one(name: str, value: bool) -> None:
    """Its records are gone for good, so neither setting may change."""
    cluster = rig(features_max=FEATURE_LEVEL_STREAMS, compact=True, tiering=False)
    refused = apply(cluster.state, alteration(cluster, **{name: value}))[1]
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, FixedSettingError)
    assert "never be whole" in refused.error.message


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_stays_says_why(name: str) -> None:
    """The refusal names setting and values, gives the reason, and says what to do instead."""
    cluster = rig()
    error = cluster.refused(alteration(cluster, **{name: REFUSED[name]}))
    assert isinstance(error, FixedSettingError)
    assert (error.setting, error.wanted, error.stream) == (name, REFUSED[name], "s")
    assert error.present == getattr(stream_of(cluster).config, name)
    assert "create another stream" in error.message.lower() or "cluster move" in error.message


def test_tiering_can_be_turned_on_with_a_table_of_its_own_name() -> None:
    """The name may be taken by now; once there is a table, its name stays."""
    cluster = rig(tiering=False)
    present = stream_of(cluster)
    wanted = replace(changed(present, tiering=True), table_name="s-00000002")
    cluster.do(AlterStream(expected=present, wanted=wanted))
    assert stream_of(cluster).table_name == "s-00000002"
    again = AlterStream(expected=wanted, wanted=replace(wanted, table_name="elsewhere"))
    assert type(cluster.refused(again)) is InvalidRequestError


@pytest.mark.parametrize(
    "other", [{"uuid": OTHER}, {"created_us": 2}, {"namespace": "n"}, {"name": "t"}]
)
def test_what_finds_the_records_stays(other: dict[str, Any]) -> None:
    """A command that would make another stream of it is refused, whoever sends it."""
    cluster = rig()
    present = stream_of(cluster)
    command = AlterStream(expected=present, wanted=replace(present, **other))
    assert type(cluster.refused(command)) is InvalidRequestError


def test_two_who_change_a_stream_do_not_undo_each_other() -> None:
    """The second operator saw the earlier stream, and has to read it again."""
    cluster = rig()
    late = alteration(cluster, puback=True)
    cluster.do(alteration(cluster, local_retention_bytes=0))
    assert isinstance(cluster.refused(late), StreamChangedError)
    cluster.do(alteration(cluster, puback=True))
    assert stream_of(cluster).config.local_retention_bytes == 0


def test_the_answer_that_was_lost_is_given_again() -> None:
    """A proposer without an answer sends the command once more."""
    cluster = rig()
    command = alteration(cluster, puback=True)
    cluster.do(command)
    cluster.do(command)


def test_a_stream_that_is_gone_is_not_changed() -> None:
    """Nor is a new stream of the same name."""
    cluster = rig()
    command, present = alteration(cluster, puback=True), stream_of(cluster)
    cluster.do(DeleteStream(name="s", expected_uuid=present.uuid))
    assert isinstance(cluster.refused(command), UnknownStreamError)
    cluster.do(CreateStream(stream=replace(present, uuid=OTHER), leader=A))
    assert isinstance(cluster.refused(command), StreamRecreatedError)


def test_older_brokers_are_not_left_behind() -> None:
    """A build without the command would refuse it alone, so the feature level must allow it."""
    old = MetadataRig(features_max=FEATURE_LEVEL_REPLICATED)
    command = alteration(old, puback=True)
    assert isinstance(old.refused(command), FeatureLevelError)
    raised = SetFeatureLevel(expected=FEATURE_LEVEL_REPLICATED, level=FEATURE_LEVEL_ALTERED)
    refused = old.refused(raised)
    assert isinstance(refused, FeatureLevelError)
    assert refused.refusing == [A, B, C, D]
    for broker in (A, B, C, D):
        old.register(broker, features_max=FEATURE_LEVEL_ALTERED)
    old.do(raised)
    old.do(command)
    assert isinstance(
        old.refused_registration(B, features_max=FEATURE_LEVEL_REPLICATED), FeatureLevelError
    )


def test_a_second_stream_does_not_begin_to_answer_the_publishers_of_a_first() -> None:
    """The rule of creation holds for changes, too; other settings of such streams may change."""
    cluster = rig(puback=True)
    twin = Stream(
        name="twin", uuid=OTHER, config=StreamConfig(subject="s"), created_us=1, table_name="twin"
    )
    cluster.do(CreateStream(stream=twin, leader=A))
    answers = AlterStream(expected=twin, wanted=changed(twin, puback=True))
    error = cluster.refused(answers)
    assert isinstance(error, InvalidStreamError)
    assert error.stream == "s"
    cluster.do(AlterStream(expected=twin, wanted=changed(twin, local_retention_bytes=0)))


def test_a_change_may_not_fill_the_metadata() -> None:
    """A longer text counts, as it does at a creation; a shorter one is always taken."""
    cluster = rig()
    command = alteration(cluster, key_header="K" * 100)
    full = replace(command, weight_max=cluster.state.weight)
    assert isinstance(cluster.refused(full), MetadataFullError)
    shorter = alteration(cluster, key_header="K")
    cluster.do(replace(shorter, weight_max=0))
    assert cluster.state.weight == weigh(cluster.state)
    proposed = decode(encode_new(command))
    assert isinstance(proposed, AlterStream)
    assert proposed.weight_max == ORDINARY_WEIGHT_MAX


def test_the_state_after_a_change_survives_a_snapshot() -> None:
    """Such a snapshot needs a build of the new feature level."""
    cluster = rig()
    cluster.do(alteration(cluster, min_isr=3))
    assert decode_snapshot(encode_snapshot(cluster.state, 7)) == (cluster.state, 7)


# ---------------------------------------------------------------------------- min ISR


def test_a_higher_minimum_reaches_the_partitions() -> None:
    """The new minimum comes with a new partition epoch, which orders views and proposals."""
    cluster = rig()
    before = cluster.one()
    cluster.do(alteration(cluster, min_isr=3))
    assert (cluster.one().min_isr, cluster.one().isr) == (3, before.isr)
    assert cluster.one().partition_epoch > before.partition_epoch


def test_a_lower_minimum_ends_the_right_of_who_is_outside_the_isr() -> None:
    """From then on the leader commits without these replicas; before, nothing was committed."""
    cluster = rig()
    cluster.do(cluster.isr(A))
    assert cluster.one().eligible == (B, C)
    cluster.do(alteration(cluster, min_isr=1))
    assert (cluster.one().isr, cluster.one().eligible) == ((A,), ())


def test_without_a_leader_nobody_loses_the_right_to_lead() -> None:
    """Nothing can be committed, so complete replicas stay complete until a replica leads."""
    cluster = rig()
    cluster.do(cluster.isr(A))
    cluster.fence(A)
    assert set(cluster.one().eligible) == {A, B, C}
    cluster.do(alteration(cluster, min_isr=1))
    assert set(cluster.one().eligible) == {A, B, C}
    cluster.elect(B)
    assert (cluster.one().isr, cluster.one().eligible) == ((B,), ())


def test_a_lower_minimum_waits_for_a_leader_and_for_its_comparisons() -> None:
    """By the lower number a log that nobody compared could lead, though it lacks records."""
    cluster = rig()
    cluster.do(alteration(cluster, min_isr=2))

    def refused(min_isr: int) -> InvalidStreamError | None:
        present = stream_of(cluster)
        wanted, rows = changed(present, min_isr=min_isr), cluster.state.partitions[present.uuid]
        error = refused_lower_min_isr(present, wanted, rows)
        assert error is None or isinstance(error, InvalidStreamError)
        return error

    assert refused(1) is None
    proved = cluster.state
    cluster.fence(A)
    assert (cluster.one().leader, cluster.one().restarted) == (None, ())
    assert refused(1) is not None, "a replica may restart before one leads"
    cluster.state = proved
    cluster.register(B)
    assert cluster.one().restarted == (B,)
    unproved = refused(1)
    assert unproved is not None
    assert "compared since a restart: b" in unproved.message
    assert (refused(2), refused(3)) == (None, None)
    cluster.do(cluster.isr(A))
    assert B in cluster.one().restarted
    assert refused(1) is None, "by the lower number B is no member any more"
    cluster.fence(A)
    leaderless = refused(1)
    assert leaderless is not None
    assert "s/0 has no leader" in leaderless.message


def test_a_higher_minimum_keeps_the_right_of_who_leaves_after_it() -> None:
    """An ISR that is too small by the new number commits nothing."""
    cluster = rig(min_isr=1)
    cluster.do(cluster.isr(A, B))
    cluster.do(alteration(cluster, min_isr=2))
    cluster.do(cluster.isr(A))
    assert cluster.one().eligible == (B,)


def test_a_minimum_above_the_replicas_is_refused() -> None:
    """Nothing would ever be committed again."""
    cluster = rig(A, B)
    error = cluster.refused(alteration(cluster, min_isr=3))
    assert isinstance(error, InvalidStreamError)
    assert error.replicas_count == 2
    cluster.do(alteration(cluster, min_isr=2))
