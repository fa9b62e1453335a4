"""Grants and tokens as commands of the metadata: idempotent, bounded, weighed, and left out."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.metadata.access_apply import GRANTS_OF_PRINCIPAL_MAX
from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    Command,
    CreateToken,
    GrantAccess,
    RevokeAccess,
    RevokeToken,
    decode,
    encode,
    encode_new,
)
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.size import STATE_WEIGHT_MAX, weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import FEATURE_LEVEL_ACCESS, FEATURE_LEVEL_STREAMS, MetadataState
from broker.errors import FeatureLevelError, InvalidRequestError, MetadataFullError
from broker.model.access import Grant

EMPTY = MetadataState(feature_level=FEATURE_LEVEL_ACCESS)
DIGEST = "ab" * 32
ANN = Grant(principal="ann", kind="stream", pattern="a*", actions=("consume", "publish"))
TOKEN = CreateToken(token_id="0" * 16, digest=DIGEST, principal="ann", created_us=7)


def done(state: MetadataState, *commands: Command) -> MetadataState:
    """Return the state after commands, none of which is refused; each as it is replayed, too."""
    for one in commands:
        after, reply = apply(state, decode(encode(one)))
        assert not isinstance(reply, Rejected), reply
        assert after.weight == weigh(after)
        state = after
    return state


def refused(state: MetadataState, command: Command) -> Any:
    """Return the error of a command that changes nothing."""
    after, reply = apply(state, command)
    assert after is state
    assert isinstance(reply, Rejected)
    return reply.error


def test_a_grant_adds_actions_and_a_revocation_takes_them() -> None:
    """One row for a principal and a pattern; the row goes with its last action."""
    first = done(EMPTY, GrantAccess(grants=(ANN,)))
    more = Grant(principal="ann", kind="stream", pattern="a*", actions=("alter",))
    both = done(first, GrantAccess(grants=(more,)))
    assert both.access is not None
    (row,) = both.access.grants
    assert row.actions == ("alter", "consume", "publish")
    left = done(both, RevokeAccess(grants=(ANN,)))
    assert left.access is not None
    assert left.access.grants == (more,)
    gone = done(left, RevokeAccess(grants=(more,)))
    assert gone.access is not None
    assert gone.access.grants == ()
    assert gone.weight == 0
    assert [one.access.version for one in (first, both, left, gone) if one.access] == [1, 2, 3, 4]


def test_the_same_again_changes_nothing() -> None:
    """A client that got no answer asks the next broker."""
    state = done(EMPTY, GrantAccess(grants=(ANN,)), TOKEN)
    for again in (
        GrantAccess(grants=(ANN,)),
        TOKEN,
        RevokeToken(token_id="f" * 16),
        RevokeAccess(
            grants=(Grant(principal="bob", kind="group", pattern="g", actions=("alter",)),)
        ),
    ):
        after, reply = apply(state, again)
        assert after is state
        assert reply == {"changed": False}


def test_a_token_is_known_by_its_digest_and_forgotten() -> None:
    """An id is one token's; another digest or principal under it is refused."""
    state = done(EMPTY, TOKEN)
    assert state.access is not None
    assert state.access.tokens["0" * 16].principal == "ann"
    other = CreateToken(token_id="0" * 16, digest="cd" * 32, principal="ann", created_us=7)
    assert isinstance(refused(state, other), InvalidRequestError)
    thief = CreateToken(token_id="0" * 16, digest=DIGEST, principal="bob", created_us=7)
    assert isinstance(refused(state, thief), InvalidRequestError)
    gone = done(state, RevokeToken(token_id="0" * 16))
    assert gone.access is not None
    assert gone.access.tokens == {}
    assert gone.weight == 0


@pytest.mark.parametrize(
    "command",
    [
        GrantAccess(grants=(Grant(principal="", kind="stream", pattern="a", actions=("alter",)),)),
        GrantAccess(grants=(Grant(principal="a", kind="stream", pattern="", actions=("alter",)),)),
        GrantAccess(grants=(Grant(principal="a", kind="stream", pattern="a", actions=()),)),
        GrantAccess(grants=(Grant(principal="a", kind="group", pattern="a", actions=("admin",)),)),
        GrantAccess(
            grants=(Grant(principal="a", kind="cluster", pattern="x", actions=("admin",)),)
        ),
        CreateToken(token_id="x", digest=DIGEST, principal="ann", created_us=7),
        CreateToken(token_id="0" * 16, digest="x", principal="ann", created_us=7),
        CreateToken(token_id="0" * 16, digest=DIGEST, principal="*", created_us=7),
        CreateToken(token_id="0" * 16, digest=DIGEST, principal="a", created_us=7, note="a\nb"),
        CreateToken(token_id="0" * 16, digest=DIGEST, principal="a", created_us=7, expires_us=-1),
    ],
)
def test_what_nobody_can_be_or_do_is_refused(command: Command) -> None:
    """By the metadata itself, too: a broker of another build may have sent the command."""
    assert isinstance(refused(EMPTY, command), InvalidRequestError)


def test_the_number_of_grants_is_bounded() -> None:
    """A principal's grants are looked through, so they are few."""
    many = tuple(
        Grant(principal="ann", kind="stream", pattern=f"s{number}", actions=("consume",))
        for number in range(GRANTS_OF_PRINCIPAL_MAX)
    )
    state = done(EMPTY, GrantAccess(grants=many))
    assert isinstance(refused(state, GrantAccess(grants=(ANN,))), MetadataFullError)
    assert state.access is not None
    assert state.weight == state.access.weight > GRANTS_OF_PRINCIPAL_MAX * 96


def test_a_full_metadata_takes_no_grant_and_no_token() -> None:
    """The limit is in the command that a broker proposes; what is taken away always fits."""
    for command in (GrantAccess(grants=(ANN,)), TOKEN):
        assert decode(encode_new(command)).weight_max == STATE_WEIGHT_MAX  # type: ignore[union-attr]
    small = GrantAccess(grants=(ANN,), weight_max=10)
    assert isinstance(refused(EMPTY, small), MetadataFullError)


def test_the_commands_need_their_feature_level() -> None:
    """A build that does not know them would refuse what the other brokers apply."""
    older = MetadataState(feature_level=FEATURE_LEVEL_STREAMS)
    for command in (
        GrantAccess(grants=(ANN,)), RevokeAccess(grants=(ANN,)), TOKEN, RevokeToken(token_id="x"),
    ):  # fmt: skip
        assert isinstance(refused(older, command), FeatureLevelError)


def test_a_state_without_grants_has_the_text_of_older_builds() -> None:
    """And one with grants comes back from a snapshot as it was."""
    assert "access" not in EMPTY.to_json()
    state = done(EMPTY, GrantAccess(grants=(ANN,)), TOKEN)
    found, index = decode_snapshot(encode_snapshot(state, 3))
    assert (found, index, found.weight) == (state, 3, state.weight)
