"""What `headwater up` writes is readable for its owner only, and never written through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from headwater.cli import server
from headwater.local.embedded_cluster import BrokerPorts, EmbeddedCluster
from headwater.local.private_files import open_lock, write_private
from headwater.local.runtime_file import FILE_NAME, RuntimeFile


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _wide_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_runtime_file_is_its_owners_and_follows_no_link(tmp_path: Path) -> None:
    """A link that another user put in its place, or in the temporary file's, is replaced."""
    other = tmp_path / "other"
    other.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(other)
    (folder / f"{FILE_NAME}.tmp").symlink_to(other)
    path = RuntimeFile(pid=1, flight="a", nats="b", http="c", lake="d").write(folder)
    assert _mode(path) == 0o600
    assert not path.is_symlink()
    assert other.read_text() == "precious"


def test_the_lock_of_up_follows_no_link(tmp_path: Path) -> None:
    """The file behind the link is neither emptied nor locked; the error names the link."""
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "up.lock").symlink_to(other)
    with pytest.raises(InvalidConfigError, match="symbolic link"), server._only_one(tmp_path):
        pass
    assert other.read_text() == "precious"


def test_two_hold_one_lock_in_turn(tmp_path: Path) -> None:
    """The second is refused while the first has it, and not after that."""
    with (
        server._only_one(tmp_path),
        pytest.raises(InvalidConfigError, match="another"),
        server._only_one(tmp_path),
    ):
        pass
    with server._only_one(tmp_path):
        assert _mode(tmp_path / "up.lock") == 0o600
    os.close(open_lock(tmp_path / "up.lock"))


def test_a_brokers_configuration_file_is_its_owners(tmp_path: Path) -> None:
    """`up --brokers 3` writes one file for each broker."""
    cluster = EmbeddedCluster(
        folder=tmp_path,
        name="c",
        ports={"b0": BrokerPorts(peer=1, flight=2, http=3)},
        nats_url="nats://127.0.0.1:4222",
        lake_uri="",
        settings={},
        voters=("b0",),
    )
    path = tmp_path / "b0.toml"
    path.write_text("old")
    write_private(path, cluster._config("b0"))
    assert _mode(path) == 0o600
    assert "[node]" in path.read_text()
