"""A data directory belongs to a cluster or to a single broker, and keeps its ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from headwater.cli.discovery import find_server
from headwater.cli.up_cluster import cluster_folder, planned_ports, refuse_other_kind
from headwater.embedded_cluster import BrokerPorts, plan_cluster

FIRST = BrokerPorts(peer=1, flight=2, http=3)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """Return a directory that holds a cluster of three, not running."""
    plan_cluster(cluster_folder(tmp_path), count=3, nats_url="", lake_uri="", first_ports=(FIRST,))
    return tmp_path


def test_a_new_directory_is_whatever_is_asked(tmp_path: Path) -> None:
    """One broker unless more are wanted; sizes without a majority are refused by the plan."""
    assert refuse_other_kind(tmp_path, None) == 1
    assert refuse_other_kind(tmp_path, 3) == 3
    assert planned_ports(tmp_path, flight=None, http=None) is None
    with pytest.raises(InvalidConfigError, match="1, 3 or more"):
        plan_cluster(cluster_folder(tmp_path), count=2, nats_url="", lake_uri="")


def test_a_single_brokers_directory_stays_one(tmp_path: Path) -> None:
    """Its records would be missing from the cluster."""
    (tmp_path / "broker").mkdir()
    assert refuse_other_kind(tmp_path, None) == 1
    with pytest.raises(InvalidConfigError, match="a broker alone"):
        refuse_other_kind(tmp_path, 3)


def test_a_clusters_directory_keeps_its_size(planned: Path) -> None:
    """Without --brokers it is the cluster again; another size, or one, is refused."""
    assert refuse_other_kind(planned, None) == 3
    assert refuse_other_kind(planned, 3) == 3
    for count in (1, 5):
        with pytest.raises(InvalidConfigError, match="cluster of 3 brokers"):
            refuse_other_kind(planned, count)


def test_a_clusters_directory_keeps_its_ports(planned: Path) -> None:
    """Clients know them; others cannot be asked for."""
    assert planned_ports(planned, flight=None, http=0) == FIRST
    assert planned_ports(planned, flight=2, http=3) == FIRST
    with pytest.raises(InvalidConfigError, match="--flight-port 9"):
        planned_ports(planned, flight=9, http=None)


def test_a_server_may_be_a_list() -> None:
    """Each address of --server is read as one alone would be."""
    assert find_server("a:1, grpc://b:2").flight == "grpc://a:1,grpc://b:2"
    with pytest.raises(InvalidConfigError):
        find_server("a:1,nothing")


@pytest.mark.parametrize(("count", "voters"), [(1, 1), (3, 3), (4, 3), (5, 5), (7, 5)])
def test_the_first_brokers_vote(tmp_path: Path, count: int, voters: int) -> None:
    """Three or five of them, however many there are."""
    plan = plan_cluster(cluster_folder(tmp_path), count=count, nats_url="", lake_uri="")
    assert plan.controllers == [f"broker-{number}" for number in range(voters)]
