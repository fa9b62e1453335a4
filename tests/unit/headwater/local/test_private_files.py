"""What `headwater up` writes is readable for its owner only, and never written through a link."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from broker.errors import InvalidConfigError
from headwater.cli import row_files, server
from headwater.local import embedded
from headwater.local.embedded_cluster import BrokerPorts, EmbeddedCluster, plan_cluster
from headwater.local.private_files import make_private_folder, open_lock, write_private
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


def test_a_log_is_its_owners_and_follows_no_link(tmp_path: Path) -> None:
    """So are the files that the child makes; a log of an earlier release becomes private, too."""
    other, log = tmp_path / "other", tmp_path / "child.log"
    other.write_text("precious")
    log.symlink_to(other)
    made = tmp_path / "made"
    command = [sys.executable, "-c", f"print('hello'); open({str(made)!r}, 'w')"]
    with pytest.raises(InvalidConfigError, match="symbolic link"):
        embedded.spawn(command, log)
    assert other.read_text() == "precious"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(InvalidConfigError, match="as a log"):
        embedded.spawn(command, log)
    log.unlink()
    log.write_text("before\n")
    log.chmod(0o644)
    assert embedded.spawn(command, log).wait() == 0
    assert log.read_text() == "before\nhello\n"
    assert (_mode(log), _mode(made)) == (0o600, 0o600)


def test_another_users_file_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner would read what is in the log."""
    log = tmp_path / "child.log"
    log.touch()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(InvalidConfigError, match=f"user {user}"):
        embedded.spawn(["/bin/true"], log)


def test_a_folder_is_made_for_its_owner(tmp_path: Path) -> None:
    """A folder that is there keeps its mode."""
    made, there = tmp_path / "made", tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    for folder in (made, there, made):
        make_private_folder(folder)
    assert (_mode(made), _mode(there)) == (0o700, 0o755)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_link: bool
) -> None:
    """Its owner could exchange each file; the owner of a link could exchange the folder."""
    folder, own = tmp_path / "folder", tmp_path / "own"
    own.mkdir()
    if is_link:
        folder.symlink_to(own)
    else:
        folder.mkdir()
    owner = os.geteuid()
    if owner == 0:
        owner = 65534
        os.chown(folder, owner, -1, follow_symlinks=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(InvalidConfigError, match=f"belongs to user {owner}"):
            make_private_folder(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    make_private_folder(folder)  # root of a container takes a folder of the host


def test_the_plan_of_a_cluster_is_its_owners_and_follows_no_link(tmp_path: Path) -> None:
    """Neither at its place nor at that of the temporary file."""
    other, folder = tmp_path / "other", tmp_path / "cluster"
    other.write_text("precious")
    folder.mkdir()
    (folder / "cluster.json.tmp").symlink_to(other)
    plan_cluster(folder, count=1, nats_url="", lake_uri="")
    assert _mode(folder / "cluster.json") == 0o600
    assert other.read_text() == "precious"


def test_natss_configuration_is_its_owners_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is replaced. Nothing is started."""
    other, folder = tmp_path / "other", tmp_path / "nats"
    other.write_text("precious")
    folder.mkdir()
    (folder / "nats-server.conf").symlink_to(other)

    def refused(_command: list[str], _log: Path) -> None:
        raise InterruptedError

    monkeypatch.setattr(embedded, "spawn", refused)
    with pytest.raises(InterruptedError):
        embedded.start_nats(folder)
    assert _mode(folder / "nats-server.conf") == 0o600
    assert not (folder / "nats-server.conf").is_symlink()
    assert other.read_text() == "precious"


def test_a_file_of_rows_follows_no_link(tmp_path: Path) -> None:
    """A link at the partial file's old, predictable name is not used, and the target is whole."""
    other, target = tmp_path / "other", tmp_path / "rows.jsonl"
    other.write_text("precious")
    (tmp_path / f".rows.jsonl.partial-{os.getpid()}").symlink_to(other)
    target.symlink_to(other)
    assert row_files.write("jsonl", iter(()), target, "base64") == 0
    assert other.read_text() == "precious"
    assert not target.is_symlink()
