"""The owner of a data directory: written once, and used only if its file is undamaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.adapters.disk.files import DiskFiles
from broker.errors import InvalidConfigError, MetadataCorruptError
from broker.runtime.cluster.identity import claim_directory


def _claim(folder: Path, broker_id: str = "b1") -> str:
    files = DiskFiles(folder)
    try:
        return claim_directory(files, cluster="c", broker_id=broker_id)
    finally:
        files.close()


def test_a_directory_keeps_its_uuid(tmp_path: Path) -> None:
    """Each start gets the same uuid, and another broker is refused."""
    assert _claim(tmp_path) == _claim(tmp_path)
    with pytest.raises(InvalidConfigError, match="belongs to broker_id 'b1'"):
        _claim(tmp_path, "b2")


@pytest.mark.parametrize("drawn", [None, 7, "", "0f0e0d0c-0b0a-4908-8706-05040302010g", "x" * 36])
def test_a_damaged_uuid_is_named(tmp_path: Path, drawn: object) -> None:
    """A flipped bit in the file is a typed error, not a traceback."""
    _claim(tmp_path)
    path = tmp_path / "node.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "uuid": drawn}))
    with pytest.raises(MetadataCorruptError, match="is not a uuid"):
        _claim(tmp_path)


@pytest.mark.parametrize("left", ["metadata", "streams", "raft", "promises"])
def test_a_lost_file_is_not_written_anew(tmp_path: Path, left: str) -> None:
    """A new uuid would make the broker take its own promises for those of another directory."""
    _claim(tmp_path)
    (tmp_path / "node.json").unlink()
    (tmp_path / left).mkdir()
    with pytest.raises(MetadataCorruptError, match=r"node\.json is missing"):
        _claim(tmp_path)
