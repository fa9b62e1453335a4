"""Only the reviewed release of pysyncobj runs, in a place of its own, without files or pickle."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pysyncobj.syncobj
import pytest

from broker.adapters.raft_pysyncobj import pinned
from broker.adapters.raft_pysyncobj.core import PysyncobjCore
from broker.core.raft.config import RaftConfig
from broker.errors import InvalidConfigError, LogFailedError
from broker.model.raft import HardState, LogImage, NodeId, Stored
from simkit.raft.rig import MemberRig

INSTALLED = Path(pysyncobj.syncobj.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the installed library's files."""
    folder = tmp_path / "pysyncobj"
    folder.mkdir()
    for path in INSTALLED.glob("*.py"):
        shutil.copy(path, folder)
    return folder


def test_the_installed_release_is_the_reviewed_one(copy: Path) -> None:
    """The lock pins it, and its bytes are those that were read."""
    pinned.check_source(copy)


@pytest.mark.parametrize("name", ["syncobj.py", "journal.py", "__init__.py"])
def test_a_changed_byte_is_refused(copy: Path, name: str) -> None:
    """The check covers every file of the library."""
    path = copy / name
    path.write_bytes(path.read_bytes().replace(b"import", b"import ", 1))
    with pytest.raises(InvalidConfigError, match=r"0\.3\.17"):
        pinned.check_source(copy)


def test_a_file_too_many_or_too_few_is_refused(copy: Path) -> None:
    """A module beside the known ones could be imported by one of them."""
    (copy / "queue.py").write_text("")
    with pytest.raises(InvalidConfigError):
        pinned.check_source(copy)
    (copy / "queue.py").unlink()
    (copy / "encryptor.py").unlink()
    with pytest.raises(InvalidConfigError):
        pinned.check_source(copy)


def test_another_library_does_not_run_a_line(tmp_path: Path) -> None:
    """It is refused before its first statement; the member does not start."""
    fake = tmp_path / "pysyncobj"
    fake.mkdir()
    marker = tmp_path / "ran"
    (fake / "__init__.py").write_text(f"open({str(marker)!r}, 'w').close()")
    (fake / "syncobj.py").write_text("class SyncObj: pass")
    code = (
        "from broker.adapters.raft_pysyncobj import pinned\n"
        "try:\n"
        "    pinned.load(clock=float, dice=float, journal=None)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    root = str(Path(__file__).parents[5])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), root))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "InvalidConfigError"
    assert not marker.exists()


def test_a_missing_library_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which package is missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    pinned._code.cache_clear()
    with pytest.raises(InvalidConfigError, match="not installed"):
        pinned.load(clock=float, dice=float, journal=None)


def test_a_member_has_the_library_for_itself() -> None:
    """What is replaced in it is not replaced in the module that others import."""
    one = pinned.load(clock=lambda: 5.0, dice=float, journal=None)
    other = pinned.load(clock=lambda: 6.0, dice=float, journal=None)
    assert (one.monotonicTime(), other.monotonicTime()) == (5.0, 6.0)
    assert sys.modules["pysyncobj.syncobj"] is pysyncobj.syncobj
    assert pysyncobj.syncobj.monotonicTime() > 6.0 or pysyncobj.syncobj.monotonicTime() < 5.0
    assert pysyncobj.syncobj.pickle.__name__ == "pysyncobj.pickle"


def test_no_name_in_it_leads_to_pickle() -> None:
    """The library's code finds a stand-in that raises, whatever it asks for."""
    module = pinned.load(clock=float, dice=float, journal=None)
    for name in ("loads", "load", "dumps", "to_bytes", "Unpickler"):
        with pytest.raises(LogFailedError, match=name):
            getattr(module.pickle, name)
    modules = {value.__name__ for value in vars(module).values() if isinstance(value, ModuleType)}
    assert not {one for one in modules if "pickle" in one}
    assert module.Serializer() is not None
    assert module.createJournal("anything") is None


def test_a_member_opens_no_file_and_no_socket() -> None:
    """Its driver gives it its disk and its network."""
    rig = MemberRig(PysyncobjCore)
    before = _open_files()
    members = tuple(NodeId(name) for name in "abc")
    for _ in range(3):
        stored = Stored(HardState(), None, LogImage(0, 0, ()))
        PysyncobjCore(
            RaftConfig(members=members), members[0], stored, random=lambda low, _: low
        ).start(0)
    rig.lead()
    assert not _open_files() - before


def _open_files() -> set[tuple[str, str]]:
    """Return the descriptors of this process and what they are, without that of the listing."""
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own, or one that another thread closed
            found.add((number.name, str(number.readlink())))
    return found


def test_loading_it_leaves_the_sockets_of_everybody_as_they_were() -> None:
    """Shipped, its first import breaks `socket.inet_ntop` for the whole process."""
    look = "import socket; print(socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])))"
    ours = (
        "from broker.adapters.raft_pysyncobj.pinned import load; "
        "load(clock=lambda: 0.0, dice=lambda: 0.5, journal=None); "
    )
    shipped, kept = (
        subprocess.run(
            [sys.executable, "-c", first + look], capture_output=True, text=True, check=False
        )
        for first in ("import pysyncobj; ", ours)
    )
    assert "TypeError" in shipped.stderr
    assert kept.stdout == "127.0.0.1\n"
