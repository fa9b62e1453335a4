"""Which changes of files are told, and when."""

from __future__ import annotations

from pathlib import Path

from broker.adapters.changed_files import ChangedFiles


def test_a_change_is_told_once_when_it_has_settled(tmp_path: Path) -> None:
    """While files are being written, each look finds other ones."""
    cert, key = tmp_path / "cert", tmp_path / "key"
    cert.write_text("1")
    watched = ChangedFiles([cert, key])
    assert not watched.ready()
    cert.write_text("22")
    assert not watched.ready()
    key.write_text("1")
    assert not watched.ready(), "the second file has come since the last look"
    assert watched.ready()
    watched.taken()
    assert not watched.ready(at_once=True), "it was taken"


def test_an_operator_need_not_wait(tmp_path: Path) -> None:
    """A change is told at the first look; a look without a change tells none."""
    file = tmp_path / "file"
    watched = ChangedFiles([file])
    assert not watched.ready(at_once=True)
    file.write_text("1")
    assert watched.ready(at_once=True)


def test_files_that_were_not_taken_are_told_again(tmp_path: Path) -> None:
    """Their reader may have met a fault that passes; it need not say so each time."""
    file = tmp_path / "file"
    watched = ChangedFiles([file])
    file.write_text("1")
    assert watched.ready(at_once=True)
    flags = [watched.repeats]
    assert not watched.ready(), "not at each look"
    assert watched.ready(at_once=True), "an operator need not wait"
    told = [watched.ready() for _ in range(100)]
    assert told.count(True) == 4
    flags.append(watched.repeats)
    file.write_text("22")
    assert watched.ready(at_once=True)
    flags.append(watched.repeats)
    assert flags == [False, True, False], "at last there are other files"
    watched.taken()
    assert not any(watched.ready() for _ in range(100))


def test_files_behind_a_link_change_with_the_link(tmp_path: Path) -> None:
    """So are volumes of secrets replaced, all files in one step."""
    for name in ("old", "new"):
        (tmp_path / name).write_text("same")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "old")
    watched = ChangedFiles([link])
    (tmp_path / "next").symlink_to(tmp_path / "new")
    (tmp_path / "next").rename(link)
    assert watched.ready(at_once=True)
