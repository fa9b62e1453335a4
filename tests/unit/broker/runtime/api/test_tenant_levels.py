"""A share of a tenant is stored only when every broker knows it; other changes always are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.core.metadata.state import (
    FEATURE_LEVEL_ACCESS,
    FEATURE_LEVEL_RECREATED,
    FEATURE_LEVEL_SHARES,
    BrokerState,
)
from broker.errors import FeatureLevelError, InvalidRequestError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.model.tenant import Tenant
from broker.runtime.api.access import Access
from simkit.memory_metadata import MemoryMetadata
from simkit.wall_clock import WallClock


def test_a_share_raises_the_level_when_the_last_broker_is_upgraded() -> None:
    """Until then it is refused, and so is a share of 0, which is a field for older builds, too."""
    metadata = MemoryMetadata(BrokerId("a"))
    levels = {"a": FEATURE_LEVEL_SHARES, "b": FEATURE_LEVEL_RECREATED}
    brokers = {
        BrokerId(name): BrokerState(epoch=BrokerEpoch(1), features_max=level)
        for name, level in levels.items()
    }
    metadata.state = replace(metadata.state, brokers=brokers, feature_level=FEATURE_LEVEL_ACCESS)
    off = Access(metadata, WallClock(), enabled=False, namespace="n")
    with pytest.raises(InvalidRequestError):
        off.tenants.create(Tenant(name="hr", leases_max=3))
    access = Access(metadata, WallClock(), enabled=True, namespace="n")
    assert access.tenants.create(Tenant(name="shop"))
    assert access.tenants.alter("shop", {"streams_max": 4})
    for changes in ({"leases_max": 0}, {"metadata_bytes_max": 4096}):
        with pytest.raises(FeatureLevelError):
            access.tenants.alter("shop", changes)
    with pytest.raises(FeatureLevelError):
        access.tenants.create(Tenant(name="hr", leases_max=3))
    assert metadata.state.feature_level == FEATURE_LEVEL_ACCESS
    upgraded = replace(brokers[BrokerId("b")], features_max=FEATURE_LEVEL_SHARES)
    metadata.state = replace(metadata.state, brokers={**brokers, BrokerId("b"): upgraded})
    assert access.tenants.alter("shop", {"leases_max": 3})
    assert metadata.state.feature_level == FEATURE_LEVEL_SHARES
    assert metadata.state.tenants["shop"] == Tenant(name="shop", streams_max=4, leases_max=3)
