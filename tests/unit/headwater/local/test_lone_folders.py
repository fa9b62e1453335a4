"""A single broker's data directory becomes a cluster's only if it may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.errors import InvalidConfigError
from headwater.local.embedded_cluster import plan_cluster


def _lone_folder(tmp_path: Path, cluster: str = "headwater") -> Path:
    lone = tmp_path / "broker"
    lone.mkdir()
    identity = {"cluster": cluster, "broker_id": "mine"}
    (lone / "node.json").write_text(json.dumps(identity))
    return lone


def _become_three(tmp_path: Path, lone: Path) -> list[str]:
    folder = tmp_path / "cluster"
    return plan_cluster(folder, count=3, nats_url="", lake_uri="", lone=lone).controllers


def test_a_folder_that_a_broker_uses_is_not_moved_away_from_it(tmp_path: Path) -> None:
    """It would go on in a folder that has another name; its next start would find nothing."""
    lone = _lone_folder(tmp_path)
    running = DiskFiles(lone)
    with pytest.raises(InvalidConfigError, match="in use by another process"):
        _become_three(tmp_path, lone)
    assert (lone / "node.json").exists()
    running.close()
    assert _become_three(tmp_path, lone) == ["mine"]
    DiskFiles(tmp_path / "cluster" / "mine").close()


def test_a_folder_of_a_cluster_with_another_name_stays_where_it_is(tmp_path: Path) -> None:
    """Its broker would refuse the new name, and nothing would start on the folder any more."""
    lone = _lone_folder(tmp_path, "shop")
    with pytest.raises(InvalidConfigError, match="HEADWATER_NODE_CLUSTER=shop"):
        _become_three(tmp_path, lone)
    assert (lone / "node.json").exists()
    assert not (tmp_path / "cluster" / "cluster.json").exists()
