"""The folder for temporary files goes with its process, also with one that was killed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiering.scratch import Scratch, scratch_folder
from tiering.table.log_copy import _Folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary files be made here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def living() -> Iterator[Scratch]:
    """The folder of a process that lives."""
    scratch = Scratch()
    (scratch.folder() / "file").touch()
    yield scratch
    scratch.remove()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(living: Scratch) -> None:
    """The kernel has given up its lock; what is in the folder goes, too."""
    path = living.folder()
    living.let_go()
    following = Scratch()
    assert following.folder() != path
    assert not path.exists()
    following.remove()


def test_the_folder_of_a_living_process_stays(living: Scratch) -> None:
    """However many others begin."""
    others = [Scratch(), Scratch()]
    assert len({one.folder() for one in [living, *others]}) == 3
    assert (living.folder() / "file").exists()
    for one in others:
        one.remove()


def test_nothing_else_is_removed(living: Scratch, temporary: Path) -> None:
    """Not a link of that name, nor what it leads to."""
    living.let_go()
    (temporary / "other" / "file").mkdir(parents=True)
    link = temporary / "headwater-scratch-link"
    link.symlink_to(temporary / "other")
    following = Scratch()
    following.folder()
    assert link.is_symlink()
    assert (temporary / "other" / "file").is_dir()
    following.remove()


def test_a_folder_that_was_cleaned_up_is_made_again(living: Scratch) -> None:
    """A long life in a folder for temporary files."""
    path = living.folder()
    (path / "file").unlink()
    path.rmdir()
    assert living.folder().is_dir()


def test_the_end_of_a_process_removes_its_folder_and_a_fork_does_not(
    living: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked child ends before its parent does."""
    path = living.folder()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        living.remove()
    assert path.is_dir()
    living.remove()
    assert not path.exists()


def test_copies_of_logs_are_in_that_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is killed leaves them to the next process."""
    scratch = Scratch()
    monkeypatch.setattr("tiering.scratch._scratch", scratch)
    copy = _Folder()
    assert copy.path.parent == scratch.folder() == scratch_folder()
    del copy
    scratch.remove()
