"""Quotas as commands of the metadata: bounded, weighed, idempotent, left out if there is none."""

from __future__ import annotations

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import Command, RemoveQuota, SetQuota, decode, encode, encode_new
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.quota_apply import QUOTAS_MAX
from broker.core.metadata.size import STATE_WEIGHT_MAX, weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import FeatureLevelError, HeadwaterError, InvalidRequestError, MetadataFullError
from broker.model.quota import Quota

EMPTY = MetadataState(feature_level=FEATURE_LEVEL_ACCESS)
ANN = Quota(principal="ann", publish_bytes_per_s=4096)


def done(state: MetadataState, *commands: Command) -> MetadataState:
    """Return the state after commands, none of which is refused; each as it is replayed."""
    for one in commands:
        after, reply = apply(state, decode(encode(one)))
        assert not isinstance(reply, Rejected), reply
        assert after.weight == weigh(after)
        state = after
    return state


def refused(state: MetadataState, command: Command) -> HeadwaterError:
    """Return the error of a command that changes nothing."""
    after, reply = apply(state, command)
    assert after is state
    assert isinstance(reply, Rejected)
    return reply.error


def test_a_pattern_has_one_quota_which_is_replaced_and_removed() -> None:
    """The rows are sorted, so that equal logs give equal text."""
    first = done(EMPTY, SetQuota(quota=ANN), SetQuota(quota=Quota(principal="*", open_calls=3)))
    assert [one.principal for one in first.quotas] == ["*", "ann"]
    other = Quota(principal="ann", requests_per_s=7)
    assert done(first, SetQuota(quota=other)).quotas[1] == other
    gone = done(first, RemoveQuota(principal="ann"), RemoveQuota(principal="*"))
    assert gone == EMPTY
    for again in (SetQuota(quota=ANN), RemoveQuota(principal="bob")):
        assert apply(first, again) == (first, {"changed": False})


def test_a_snapshot_has_quotas_and_an_older_build_never_sees_the_field() -> None:
    """The text of a state without quotas is that of before."""
    state = done(EMPTY, SetQuota(quota=ANN))
    assert decode_snapshot(encode_snapshot(state, 3)) == (state, 3)
    assert "quota" not in EMPTY.to_json()


@pytest.mark.parametrize(
    "quota",
    [
        Quota(principal="ann"),
        Quota(principal="", open_calls=1),
        Quota(principal="a*b", open_calls=1),
        Quota(principal="a\nb", open_calls=1),
        Quota(principal="a" * 257, open_calls=1),
        Quota(principal="ann", publish_bytes_per_s=1023),
        Quota(principal="ann", read_bytes_per_s=(1 << 50) + 1),
        Quota(principal="ann", requests_per_s=-1),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(quota: Quota) -> None:
    """Names as those of grants; numbers with bounds; something to limit."""
    assert isinstance(refused(EMPTY, SetQuota(quota=quota)), InvalidRequestError)


def test_the_number_of_quotas_and_their_weight_are_bounded() -> None:
    """Beyond the number, and beyond the weight of the metadata; a removal always fits."""
    rows = tuple(Quota(principal=f"p{n:04}", open_calls=1) for n in range(QUOTAS_MAX))
    full = MetadataState(feature_level=FEATURE_LEVEL_ACCESS, quotas=rows)
    assert isinstance(refused(full, SetQuota(quota=ANN)), MetadataFullError)
    encoded = decode(encode_new(SetQuota(quota=ANN)))
    assert isinstance(encoded, SetQuota)
    assert encoded.weight_max == STATE_WEIGHT_MAX
    assert isinstance(refused(EMPTY, SetQuota(quota=ANN, weight_max=100)), MetadataFullError)


def test_the_cluster_has_to_know_the_command() -> None:
    """A build of a lower level would refuse the command that others apply."""
    low = MetadataState(feature_level=FEATURE_LEVEL_STREAMS)
    assert isinstance(refused(low, SetQuota(quota=ANN)), FeatureLevelError)
    assert isinstance(refused(low, RemoveQuota(principal="ann")), FeatureLevelError)
