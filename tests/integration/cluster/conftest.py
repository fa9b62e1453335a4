"""A real cluster of three brokers for one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterkit.running import Cluster
from headwater.embedded import start_nats


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster for the module."""
    folder = tmp_path_factory.mktemp("cluster")
    with start_nats(folder / "nats") as nats:
        cluster = Cluster(folder, nats)
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """Return the module's cluster, whole and in sync."""
    running_cluster.heal()
    return running_cluster
