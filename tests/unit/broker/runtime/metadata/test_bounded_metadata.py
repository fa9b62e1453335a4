"""A stream's and a tenant's share of the metadata is bounded at every door of a broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.core.metadata import shares
from broker.core.metadata.commands import AlterTenant, CreateTenant
from broker.core.metadata.state import FEATURE_LEVEL_SHARES
from broker.errors import MetadataFullError, QuotaExceededError
from broker.model.groups import PositionReset
from broker.model.stream import StreamConfig
from broker.model.tenant import Tenant
from broker.runtime.api.feature_levels import raise_level
from broker.runtime.broker import Broker
from simkit.brokers.brokers import disk_broker


def _set_cursors(broker: Broker, beginning: str, count: int) -> None:
    for number in range(count):
        broker.cursors.set(f"{beginning}{number}", "shop-in", 0, 1)


def test_a_stream_takes_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors and positions that are there move on, and what is deleted makes room."""
    monkeypatch.setattr(shares, "PLACES_OF_PARTITION_MAX", 3)
    with disk_broker(tmp_path) as broker:
        stream = broker.streams.create("s", StreamConfig(subject="s"))
        write = PositionReset(stream_uuid=stream.uuid, partition=0, offset=0)
        for number in range(3):
            broker.cursors.set(f"c{number}", "s", 0, 1)
            broker.members.reset(f"g{number}", [write])
        with pytest.raises(MetadataFullError, match="cursors"):
            broker.cursors.set("more", "s", 0, 1)
        with pytest.raises(MetadataFullError, match="group delete"):
            broker.members.reset("more", [write])
        broker.cursors.set("c0", "s", 0, 2)
        broker.members.reset("g0", [replace(write, offset=0)])
        broker.members.delete("g1")
        broker.members.reset("more", [write])
        broker.streams.delete("s")
        broker.cursors.set("more", "s", 0, 1)


def test_a_tenant_takes_no_more_than_its_share(tmp_path: Path) -> None:
    """Of leases and of metadata; other streams are free, and a larger share lets it go on."""
    with disk_broker(tmp_path) as broker:
        raise_level(broker._metadata, FEATURE_LEVEL_SHARES)
        tenant = Tenant(name="shop", leases_max=2, metadata_bytes_max=9_000)
        broker._metadata.propose(CreateTenant(tenant=tenant))
        broker.streams.create("shop-in", StreamConfig(subject="shop.in"))
        broker.streams.create("free", StreamConfig(subject="free"))
        for _ in range(2):
            broker.cuts.take_lease("shop-in", owner="me", ttl_ms=60_000)
        with pytest.raises(QuotaExceededError, match="2 leases"):
            broker.cuts.take("shop-in", owner="me", ttl_ms=60_000)
        broker.cuts.take_lease("free", owner="me", ttl_ms=60_000)
        wide = StreamConfig(subject="shop.wide", partitions=4)
        with pytest.raises(QuotaExceededError, match="9000 bytes"):
            broker.streams.create("shop-wide", wide)
        long = "\N{BOMB}" * 60  # 720 bytes as JSON
        broker.cursors.set(f"{long}0", "shop-in", 0, 1)
        with pytest.raises(QuotaExceededError, match="9000 bytes"):
            _set_cursors(broker, long, 20)
        broker.streams.create("wide", replace(wide, subject="wide"))
        broker._metadata.propose(AlterTenant(name="shop", metadata_bytes_max=90_000))
        broker.streams.create("shop-wide", wide)
