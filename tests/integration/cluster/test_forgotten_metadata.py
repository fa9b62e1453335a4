"""A controller's Raft folder is an old copy, or partly gone: the group loses no entry."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from clusterkit.running import Cluster, controller_of, probed

pytestmark = pytest.mark.integration

BEFORE, AFTER = "before", "after"
PROBES = ("/healthz", "/readyz", "/metrics")


@pytest.fixture
def cluster(own_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of this test's own, whose controllers wait long for each other."""
    return own_cluster(restart_grace_ms=120_000)


def _times_it_waited(cluster: Cluster, number: int) -> int:
    return len(cluster.said(number, "waiting_for_members"))


@pytest.mark.parametrize("damage", ["of an earlier moment", "partly gone"])
def test_a_folder_that_forgot_elects_nobody_who_lacks_what_is_committed(
    cluster: Cluster, damage: str
) -> None:
    """Two controllers have entries that the third lacks; one of the two loses them.

    The one that forgot and the one that never knew are a majority. They wait for the last one.
    """
    client = cluster.client()
    client.create_stream(BEFORE, replication_factor=3, min_isr=2)
    holder = cluster.plan.brokers.index(controller_of(cluster))
    forgets, never_knew = (number for number in range(3) if number != holder)
    folder = cluster.plan.folder_of(cluster.name(forgets)) / "raft"
    copy = folder.with_name("raft.copy")
    cluster.copy_folder(forgets, copy, "raft")
    cluster.kill(never_knew)
    client.create_stream(AFTER, replication_factor=1, min_isr=1)
    for number in (forgets, holder):
        cluster.kill(number)
    if damage == "of an earlier moment":
        shutil.rmtree(folder)
        copy.rename(folder)
    else:
        shutil.rmtree(copy)
        for name in ("meta", "journal"):
            (folder / name).unlink()
    waited = {at: _times_it_waited(cluster, at) for at in (forgets, never_knew)}
    for number in waited:
        name = cluster.name(number)
        cluster.servers[name] = cluster.plan.start(name, wait=False)
    for number, before in waited.items():  # on a busy machine it waited at its first start, too
        cluster.wait_for(
            lambda number=number, before=before: _times_it_waited(cluster, number) > before,  # type: ignore[misc]
            "it waits for the one that is not there",
        )
        answers = [probed(cluster, number, path) for path in PROBES]
        assert answers == [200, 503, 200], "a probe must not take it for dead"
    cluster.start_all((holder,))
    cluster.start_all()
    names = [{one.name for one in cluster.client(cluster.url_of(at)).streams()} for at in range(3)]
    assert names == [{BEFORE, AFTER}] * 3
