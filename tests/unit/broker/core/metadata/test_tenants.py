"""Tenants as commands of the metadata: bounded, weighed, idempotent, left out if there is none."""

from __future__ import annotations

from dataclasses import replace
from uuid import NAMESPACE_DNS, uuid5

import pytest

from broker.core.metadata.apply import apply
from broker.core.metadata.commands import (
    AddPartitions,
    AlterStream,
    AlterTenant,
    Command,
    CreateStream,
    CreateTenant,
    DeleteTenant,
    SetFeatureLevel,
    decode,
    encode,
    encode_new,
)
from broker.core.metadata.group_state import GroupState
from broker.core.metadata.outcome import Rejected
from broker.core.metadata.size import STATE_WEIGHT_MAX, weigh
from broker.core.metadata.snapshot import decode_snapshot, encode_snapshot
from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_SHARES,
    FEATURE_LEVEL_STREAMS,
    MetadataState,
)
from broker.errors import (
    FeatureLevelError,
    HeadwaterError,
    InvalidRequestError,
    MetadataFullError,
    QuotaExceededError,
    TenantExistsError,
    TenantInUseError,
    UnknownTenantError,
)
from broker.model.ids import BrokerId, StreamUuid
from broker.model.stream import Stream, StreamConfig
from broker.model.tenant import TENANTS_MAX, Tenant
from simkit.brokers.metadata_rig import A, MetadataRig

EMPTY = MetadataState(feature_level=FEATURE_LEVEL_ACCESS)
SHOP = Tenant(name="shop", owners=("ann",), subjects=("shop.>",))


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


def test_a_tenant_is_created_altered_and_deleted() -> None:
    """What a change does not name stays; the same again changes nothing."""
    first = done(EMPTY, CreateTenant(tenant=SHOP))
    more = done(first, AlterTenant(name="shop", principals=("bob",)))
    assert more.tenants["shop"] == Tenant(
        name="shop", owners=("ann",), principals=("bob",), subjects=("shop.>",)
    )
    limited = done(more, AlterTenant(name="shop", streams_max=3, read_bytes_per_s=4096))
    assert (limited.tenants["shop"].streams_max, limited.tenants["shop"].owners) == (3, ("ann",))
    assert done(limited, AlterTenant(name="shop", streams_max=0, read_bytes_per_s=0)) == more
    none = done(more, AlterTenant(name="shop", owners=(), principals=()))
    assert none.tenants["shop"] == Tenant(name="shop", subjects=("shop.>",))
    assert done(none, DeleteTenant(name="shop")) == EMPTY
    for again in (
        CreateTenant(tenant=SHOP),
        AlterTenant(name="shop", owners=("ann",)),
        DeleteTenant(name="hr"),
    ):
        assert apply(first, again) == (first, {"changed": False})


def test_a_snapshot_has_tenants_and_an_older_build_never_sees_the_field() -> None:
    """The text of a state without tenants is that of before."""
    state = done(EMPTY, CreateTenant(tenant=SHOP))
    assert decode_snapshot(encode_snapshot(state, 3)) == (state, 3)
    assert "tenant" not in EMPTY.to_json()


def test_another_tenant_of_the_name_or_none_is_refused() -> None:
    """Each by its type."""
    state = done(EMPTY, CreateTenant(tenant=SHOP))
    other = CreateTenant(tenant=Tenant(name="shop", owners=("bob",)))
    assert isinstance(refused(state, other), TenantExistsError)
    assert isinstance(refused(state, AlterTenant(name="hr", owners=())), UnknownTenantError)


@pytest.mark.parametrize(
    "command",
    [
        CreateTenant(tenant=Tenant(name="hr", owners=("ann",))),
        CreateTenant(tenant=Tenant(name="hr", subjects=("shop.in",))),
        CreateTenant(tenant=Tenant(name="h-r")),
        AlterTenant(name="shop", subjects=(">",)),
        AlterTenant(name="shop", subjects=("pay.in",)),
        AlterTenant(name="shop", owners=("b", "a")),
        AlterTenant(name="shop", publish_bytes_per_s=7),
        AlterTenant(name="shop", streams_max=-1),
    ],
)
def test_a_tenant_that_meets_another_or_is_malformed_is_refused(command: Command) -> None:
    """Creation and change are checked alike; a tenant does not meet itself."""
    pay = CreateTenant(tenant=Tenant(name="pay", subjects=("pay.>",)))
    state = done(EMPTY, CreateTenant(tenant=SHOP), pay)
    assert isinstance(refused(state, command), InvalidRequestError)
    done(state, AlterTenant(name="shop", owners=("an*",), subjects=("shop.in", "shop.out")))


def test_a_tenant_with_streams_or_groups_is_not_deleted() -> None:
    """Else its principals would reach, by wider grants, what it kept apart."""
    state = done(EMPTY, CreateTenant(tenant=SHOP), CreateTenant(tenant=Tenant(name="hr")))
    group = GroupState(epoch=1, coordinator=BrokerId("b1"), members={})
    used = MetadataState(
        feature_level=FEATURE_LEVEL_ACCESS, tenants=state.tenants, groups={"shop-g": group}
    )
    assert isinstance(refused(used, DeleteTenant(name="shop")), TenantInUseError)
    assert "hr" not in apply(used, DeleteTenant(name="hr"))[0].tenants


def test_the_number_of_tenants_and_their_weight_are_bounded() -> None:
    """Beyond the number, and beyond the weight of the metadata; a deletion always fits."""
    rows = {f"t{n:04}": Tenant(name=f"t{n:04}") for n in range(TENANTS_MAX)}
    full = MetadataState(feature_level=FEATURE_LEVEL_ACCESS, tenants=rows)
    assert isinstance(refused(full, CreateTenant(tenant=SHOP)), MetadataFullError)
    assert apply(full, CreateTenant(tenant=rows["t0000"])) == (full, {"changed": False})
    for command in (CreateTenant(tenant=SHOP), AlterTenant(name="shop", owners=())):
        encoded = decode(encode_new(command))
        assert isinstance(encoded, CreateTenant | AlterTenant)
        assert encoded.weight_max == STATE_WEIGHT_MAX
    small = CreateTenant(tenant=SHOP, weight_max=100)
    assert isinstance(refused(EMPTY, small), MetadataFullError)


def test_the_cluster_has_to_know_the_command() -> None:
    """A build of a lower level would refuse the command that others apply."""
    low = MetadataState(feature_level=FEATURE_LEVEL_STREAMS)
    for command in (
        CreateTenant(tenant=SHOP),
        AlterTenant(name="shop"),
        DeleteTenant(name="shop"),
    ):
        assert isinstance(refused(low, command), FeatureLevelError)


def test_shares_need_a_level_of_their_own_and_are_left_out_while_unset() -> None:
    """Builds of before know no such field: a state, a command and an answer do not have it."""
    alter = AlterTenant(name="shop", leases_max=0)
    for command in (
        CreateTenant(tenant=replace(SHOP, metadata_bytes_max=4096)),
        CreateTenant(tenant=replace(SHOP, leases_max=7)),
        AlterTenant(name="shop", metadata_bytes_max=4096),
        alter,
    ):
        assert isinstance(refused(EMPTY, command), FeatureLevelError)
        assert decode(encode(command)) == command
    newest = MetadataState(feature_level=FEATURE_LEVEL_SHARES)
    plain = done(newest, CreateTenant(tenant=SHOP), AlterTenant(name="shop", principals=("b",)))
    texts = [plain.to_json(), encode(CreateTenant(tenant=SHOP)).decode()]
    texts.append(encode(AlterTenant(name="shop", owners=("b",))).decode())
    assert not any("leases_max" in one or "metadata_bytes" in one for one in texts)
    shared = done(plain, AlterTenant(name="shop", leases_max=7, metadata_bytes_max=4096))
    assert (shared.tenants["shop"].leases_max, shared.tenants["shop"].streams_max) == (7, 0)
    assert MetadataState.from_json(shared.to_json()) == shared
    none = done(shared, alter, AlterTenant(name="shop", metadata_bytes_max=0))
    assert none == plain
    assert isinstance(
        refused(newest, CreateTenant(tenant=replace(SHOP, leases_max=-1))), InvalidRequestError
    )


def test_a_tenant_has_so_many_streams_and_partitions() -> None:
    """All its streams count, others' do not; what is there stays when the limit is lowered."""
    cluster = MetadataRig((A,), min_isr=1, features_max=FEATURE_LEVEL_ACCESS)

    def create(name: str, partitions: int) -> Command:
        config = StreamConfig(subject=name, partitions=partitions)
        uuid = StreamUuid(str(uuid5(NAMESPACE_DNS, name)))
        stream = Stream(name=name, uuid=uuid, config=config, created_us=1, table_name=name)
        return CreateStream(stream=stream, leader=A)

    def grow(name: str, partitions: int) -> Command:
        present = cluster.state.streams[name]
        return AddPartitions(expected=present, wanted=present.grown(partitions), leader=A)

    cluster.do(SetFeatureLevel(expected=cluster.state.feature_level, level=FEATURE_LEVEL_ACCESS))
    cluster.do(CreateTenant(tenant=Tenant(name="shop", streams_max=2, partitions_max=4)))
    cluster.do(create("shop-a", 1))
    cluster.do(create("hr-a", 9))
    for beyond in (create("shop-b", 4), grow("shop-a", 5)):
        error = cluster.refused(beyond)
        assert isinstance(error, QuotaExceededError)
        assert (error.tenant, error.limit) == ("shop", "partitions_max")
    cluster.do(grow("shop-a", 2))
    cluster.do(create("shop-b", 2))
    error = cluster.refused(create("shop-c", 1))
    assert isinstance(error, QuotaExceededError)
    assert error.limit == "streams_max"
    cluster.do(create("hr-b", 9))
    cluster.do(AlterTenant(name="shop", streams_max=1, partitions_max=1))
    present = cluster.state.streams["shop-a"]
    changed = replace(present, config=replace(present.config, puback=True))
    cluster.do(AlterStream(expected=present, wanted=changed))
