"""The budget of descriptors: every part has a share, and together they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.config import BrokerConfig, ClusterConfig, FlightConfig, LiftbridgeConfig, NodeConfig
from broker.errors import InvalidConfigError
from broker.process.descriptors import DescriptorBudget

ALONE = BrokerConfig()
WITH_ALL = BrokerConfig(
    node=NodeConfig(id="a"),
    liftbridge=LiftbridgeConfig(enabled=True),
    cluster=ClusterConfig(
        brokers="a=h:1,b=h:2,c=h:3", tls_ca_file="x", tls_cert_file="x", tls_key_file="x"
    ),
)


@pytest.mark.parametrize("config", [ALONE, WITH_ALL], ids=["alone", "with all"])
@pytest.mark.parametrize("limit", [256, 1024, 4096, 65_536, 1024 * 1024])
def test_the_shares_fit_into_the_limit(config: BrokerConfig, limit: int) -> None:
    """Each door has room for some, and the log for more."""
    budget = DescriptorBudget.of(limit, config)
    shares = (budget.files, budget.flight, budget.liftbridge, budget.http, budget.own)
    assert sum(shares) <= limit
    assert min(budget.files, budget.flight) >= 32
    assert (budget.liftbridge > 0) == config.liftbridge.enabled
    assert str(budget.files) in budget.said()


def test_a_bound_of_connections_is_kept() -> None:
    """The setting may lower the share, not raise it."""
    few = replace(ALONE, flight=FlightConfig(connections_max=20))
    assert DescriptorBudget.of(65_536, few).flight == 20
    many = replace(ALONE, flight=FlightConfig(connections_max=100_000))
    assert DescriptorBudget.of(1024, many).flight < 512


def test_a_door_with_tls_has_fewer_connections_unless_it_is_told() -> None:
    """Ten thousand with TLS, which say nothing, took a broker to 600 MiB."""
    tls = FlightConfig(tls_cert_file="b.crt", tls_key_file="b.key")
    assert DescriptorBudget.of(65_536, ALONE).flight == 10_000
    assert DescriptorBudget.of(65_536, replace(ALONE, flight=tls)).flight == 512
    told = replace(tls, connections_max=5_000)
    assert DescriptorBudget.of(65_536, replace(ALONE, flight=told)).flight == 5_000


@pytest.mark.parametrize("limit", [0, 64, 255])
def test_a_limit_without_room_is_refused(limit: int) -> None:
    """The broker would fail later, at an inconvenient moment."""
    with pytest.raises(InvalidConfigError, match="ulimit -n"):
        DescriptorBudget.of(limit, ALONE)
