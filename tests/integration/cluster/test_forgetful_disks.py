"""Three real brokers, one of whose disks is put back to an older copy.

Everything is acknowledged under ALL and synced, then all brokers are killed, one disk is changed,
all are started: what was acknowledged is there, everybody is in sync again, and nobody was asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker.errors import ForeignHistoryError
from clusterkit.load import stored
from clusterkit.running import Cluster, probed

pytestmark = pytest.mark.integration

STREAM = "kept"


@pytest.fixture
def cluster(own_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of this test's own, because it damages disks."""
    return own_cluster()


def _values(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]


def _publish(cluster: Cluster, values: list[bytes]) -> None:
    for at in range(0, len(values), 50):
        cluster.publish(STREAM, *values[at : at + 50])


def _folder(cluster: Cluster, number: int) -> Path:
    return cluster.plan.folder_of(cluster.name(number))


def _start_unready(cluster: Cluster, *, times: int) -> None:
    """Start all brokers, for this time; return when they serve. Some may never say "ready"."""
    for number in range(3):
        name = cluster.name(number)
        cluster.servers[name] = cluster.plan.start(name, wait=False)
    for number in range(3):
        cluster.wait_for(
            lambda number=number: len(cluster.said(number, "broker_started")) == times,  # type: ignore[misc]
            "it serves",
        )


def _all_is_there(cluster: Cluster, values: list[bytes]) -> None:
    """Every broker serves every record, and accepts more."""
    client = cluster.client()
    cluster.wait_for(cluster.in_sync(STREAM), "everybody in sync")
    assert stored(client, STREAM) == values
    cluster.publish(STREAM, b"more")
    for number in range(3):
        assert stored(cluster.client(cluster.url_of(number)), STREAM) == [*values, b"more"]
    assert cluster.look(STREAM).losses == ()


def test_the_leader_s_disk_is_put_back_to_an_earlier_moment_of_its_session(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The copy knows the session, so its folder is proved; its log is 500 records short."""
    cluster.client().create_stream(STREAM, replication_factor=3, min_isr=2)
    _publish(cluster, _values(0, 500))
    leader = cluster.leader(STREAM)
    copy = tmp_path / "copy"
    cluster.copy_folder(leader, copy)
    _publish(cluster, _values(500, 1000))
    for number in range(3):
        cluster.kill(number)
    shutil.rmtree(_folder(cluster, leader))
    shutil.copytree(copy, _folder(cluster, leader))
    cluster.start_all()
    _all_is_there(cluster, _values(0, 1000))


@pytest.mark.parametrize("emptied", [False, True], ids=["missing", "emptied"])
def test_the_leader_s_partition_folder_is_lost(cluster: Cluster, emptied: bool) -> None:
    """An absent log is opened as an empty one, and loses the comparison."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    uuid = client.stream(STREAM).uuid
    _publish(cluster, _values(0, 500))
    leader = cluster.leader(STREAM)
    for number in range(3):
        cluster.kill(number)
    lost = _folder(cluster, leader) / "streams" / uuid / "0"
    shutil.rmtree(lost)
    if emptied:
        lost.mkdir()
    cluster.start_all()
    _all_is_there(cluster, _values(0, 500))


def test_a_follower_that_has_forgotten_is_no_copy_until_it_has_caught_up(cluster: Cluster) -> None:
    """Only this broker is killed and loses its replica; its leader had counted the lost records."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    uuid = client.stream(STREAM).uuid
    _publish(cluster, _values(0, 500))
    leader = cluster.leader(STREAM)
    victim = (leader + 1) % 3
    cluster.kill(victim)
    shutil.rmtree(_folder(cluster, victim) / "streams" / uuid)
    cluster.start(victim)
    cluster.wait_for(cluster.in_sync(STREAM), "everybody in sync")
    for number in range(3):
        if number != victim:
            cluster.kill(number)
    cluster.start_all()
    _all_is_there(cluster, _values(0, 500))


def test_a_stream_deleted_while_a_broker_was_down_leaves_nothing_there(cluster: Cluster) -> None:
    """The broker catches up and learns of the deletion before it looks for leftovers."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    client.create_stream("gone", replication_factor=3, min_isr=2)
    uuid = client.stream("gone").uuid
    _publish(cluster, _values(0, 50))
    left = _folder(cluster, 0) / "streams" / uuid
    cluster.wait_for(left.exists, "it has a replica of the stream")
    cluster.kill(0)
    cluster.client(cluster.url_of(1)).delete_stream("gone")
    cluster.start_all()
    cluster.wait_for(lambda: not left.exists(), "its log is removed")
    _all_is_there(cluster, _values(0, 50))
    assert not (_folder(cluster, 0) / "unknown").exists()


def test_streams_that_the_metadata_of_all_brokers_forgot_are_kept(
    cluster: Cluster, tmp_path: Path
) -> None:
    """All three metadata folders and promises are put back, so no broker knows the stream."""
    client = cluster.client()
    client.create_stream("before", replication_factor=3, min_isr=2)
    for number in range(3):
        cluster.stop(number)
    for number in range(3):
        shutil.copytree(_folder(cluster, number) / "raft", tmp_path / f"raft-{number}")
        shutil.copy(_folder(cluster, number) / "promises", tmp_path / f"promises-{number}")
    cluster.start_all()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    uuid = client.stream(STREAM).uuid
    _publish(cluster, _values(0, 50))
    for number in range(3):
        cluster.kill(number)
    segments = {}
    for number in range(3):
        folder = _folder(cluster, number)
        log = folder / "streams" / uuid / "0"
        segments[number] = {one.name: one.read_bytes() for one in log.glob("*.log")}
        shutil.rmtree(folder / "raft")
        shutil.copytree(tmp_path / f"raft-{number}", folder / "raft")
        shutil.copy(tmp_path / f"promises-{number}", folder / "promises")
    _start_unready(cluster, times=3)
    for number in range(3):
        assert cluster.said(number, "unknown_log_set_aside")
        (aside,) = (_folder(cluster, number) / "unknown").glob(f"{uuid}-0-*")
        assert {one.name: one.read_bytes() for one in aside.glob("*.log")} == segments[number]
        assert probed(cluster, number, "/readyz") == 503


def test_a_stream_that_syncs_by_interval_outlives_a_polite_stop_of_all(cluster: Cluster) -> None:
    """A note says that its logs were closed and synced; otherwise the records are in doubt."""
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2, flush="interval")
    _publish(cluster, _values(0, 200))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(cluster.stop, range(3)))
    cluster.start_all()
    _all_is_there(cluster, _values(0, 200))


def test_a_cluster_that_is_older_than_its_table_ends_no_read_early(
    cluster: Cluster, tmp_path: Path
) -> None:
    """All three disks were put back: the leader is refused its history, and the followers ask it.

    A follower that was told how far such a leader is would end a whole read there, as if that
    were all.
    """
    client = cluster.client()
    client.create_stream(STREAM, replication_factor=3, min_isr=2)
    _publish(cluster, _values(0, 40))
    cluster.wait_for(cluster.in_sync(STREAM), "everybody in sync")
    for number in range(3):
        cluster.copy_folder(number, tmp_path / f"copy{number}")
    _publish(cluster, _values(40, 100))
    client.tier_flush(STREAM)
    for number in range(3):
        cluster.kill(number)
        shutil.rmtree(_folder(cluster, number))
        shutil.copytree(tmp_path / f"copy{number}", _folder(cluster, number))
    _start_unready(cluster, times=2)
    with pytest.raises(ForeignHistoryError):
        cluster.publish(STREAM, b"more")
    for number in range(3):
        with pytest.raises(ForeignHistoryError):
            cluster.read_at(number, STREAM)
    with pytest.raises(ForeignHistoryError):
        stored(client, STREAM)
