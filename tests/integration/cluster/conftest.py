"""A real cluster of three brokers for one module, or for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterkit.running import Cluster
from headwater.local.embedded import start_nats


@pytest.fixture(scope="module")
def running_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Start a cluster for the module; its ``CLUSTER`` has settings of their cluster section."""
    folder = tmp_path_factory.mktemp("cluster")
    settings = {"cluster": getattr(request.module, "CLUSTER", {})}
    with start_nats(folder / "nats") as nats:
        cluster = Cluster(folder, nats, settings=settings)
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


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return what starts a cluster of the test's own; it takes settings of their cluster section.

    A module whose tests change disks or configurations makes its ``cluster`` of it.
    """
    with start_nats(tmp_path / "nats") as nats, ExitStack() as stack:

        def start(**settings: int | str) -> Cluster:
            cluster = Cluster(tmp_path, nats, settings={"cluster": settings})
            stack.callback(cluster.close)
            cluster.start_all()
            return cluster

        yield start
