"""The objects of a lake in a folder are readable for their owner only, as the log is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from broker.codec.checksum import crc32c
from tiering.store.local_store import LocalStore
from tiering.store.location import StoreConfig


def test_objects_and_folders_are_their_owners(tmp_path: Path) -> None:
    """Whatever the process's umask is."""
    before = os.umask(0)
    try:
        store = LocalStore(StoreConfig.from_env(str(tmp_path / "lake"), {}))
        assert store.put_if_absent("a/b/object", b"x", crc32c=crc32c(b"x"))
    finally:
        os.umask(before)
    root = tmp_path / "lake"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert modes == {"lake": 0o700, "a": 0o700, "b": 0o700, "object": 0o600}
