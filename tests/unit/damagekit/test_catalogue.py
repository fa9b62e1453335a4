"""The catalogue lists every file, gives it a stable name, and damages it as described."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from damagekit.case import damage_of
from damagekit.catalogue import FILE_DAMAGES, NOTHING, Case, cases_of, entries_of
from damagekit.choice import chosen, covering, sliced
from damagekit.damages import damage
from damagekit.golden import RETENTIONS

_UUID = "{0:08d}-2222-4333-8444-{0:012d}"


def _world(folder: Path, name: str, number: int) -> None:
    """Lay out a small world: one log of two segments, one of one, one table."""
    uuid, other = _UUID.format(number), _UUID.format(number + 1)
    for moment in ("killed", "stopped", "older-stopped", "older-running"):
        is_old = moment.startswith("older")
        files = {
            f"data/streams/{uuid}/0/00.log": f"{name} first".encode(),
            f"data/streams/{uuid}/0/10.log": b"" if is_old else f"{name} second".encode(),
            f"data/streams/{other}/0/00.log": f"{name} third".encode(),
            "data/raft/journal": f"{name} {'old' if is_old else 'new'}".encode(),
            "data/promises": f"{name} {'old' if is_old else 'new'}".encode(),
            f"lake/default/orders/00-{number:x}abcdef01.parquet": f"{name} rows".encode(),
        }
        for path, content in files.items():
            target = folder / name / moment / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    info = {"names": {uuid: "orders", other: "beat"}, "cuts": {}, "lake": ""}
    (folder / name / "info.json").write_text(json.dumps(info))


@pytest.fixture
def worlds(tmp_path: Path) -> Path:
    """Return a folder with worlds of one retention."""
    _world(tmp_path, "kept", 10)
    _world(tmp_path, "kept-other", 20)
    return tmp_path


def test_every_file_and_folder_is_an_entry_whatever_it_is(worlds: Path) -> None:
    """A file of an unknown kind is in the catalogue, too; names hold no uuid."""
    added = worlds / "kept/killed/data/streams" / _UUID.format(10) / "0/of-tomorrow"
    added.write_bytes(b"x")
    names = {_UUID.format(10): "orders", _UUID.format(11): "beat"}
    entries = entries_of(worlds / "kept/killed", names)
    aliases = {one.alias for one in entries}
    assert "data/streams/orders/0/of-tomorrow" in aliases
    assert {"data", "data/streams", "data/streams/beat/0", "lake/default/orders"} <= aliases
    assert any("key0.parquet" in one for one in aliases)


def test_each_damage_changes_what_it_damages(worlds: Path, tmp_path: Path) -> None:
    """No case is a copy of the same bytes, and a running broker's case is like a killed one's."""
    cases = cases_of(worlds, "kept")
    first = [
        case
        for case in cases
        if case.entry.alias == "data/streams/orders/0/00.log" and case.state == "killed"
    ]
    assert {case.damage for case in first} == {
        *FILE_DAMAGES, "another-sibling", "another-stream", "another-broker",
    }  # fmt: skip
    second = [case.damage for case in cases if case.entry.alias == "data/streams/orders/0/10.log"]
    assert "older-running" in second
    for number, case in enumerate(first):
        target = tmp_path / "copy" / str(number)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(b"kept first")
        damage(target, case.damage, worlds / case.source if case.source else None)
        assert not target.exists() or target.read_bytes() != b"kept first", case.damage
    holes = {number: case.damage for number, case in enumerate(first) if "hole" in case.damage}
    found = {kind: (tmp_path / "copy" / str(at)).read_bytes() for at, kind in holes.items()}
    assert found == {"hole-middle": b"kep\0\0\0irst", "hole-end": b"kept f\0\0\0\0"}


def test_a_name_is_the_same_in_a_world_that_is_built_anew(worlds: Path, tmp_path: Path) -> None:
    """Uuids and random keys differ, names do not."""
    again = tmp_path / "again"
    _world(again, "kept", 30)
    _world(again, "kept-other", 40)
    assert [one.name for one in cases_of(worlds, "kept")] == [
        one.name for one in cases_of(again, "kept")
    ]


def test_a_restore_puts_the_metadata_and_the_promises_back(worlds: Path) -> None:
    """Both are of one older copy; the metadata alone are another case."""
    cases = [one for one in cases_of(worlds, "kept") if one.entry.alias == "data/raft"]
    assert {one.damage for one in cases} == {
        "gone", "emptied", "another-broker", "older-stopped", "older-running",
        "older-stopped-with-promises", "older-running-with-promises",
    }  # fmt: skip
    moment = worlds / "kept/killed"
    (case,) = (
        one for one in cases if (one.state, one.damage) == ("killed", "older-running-with-promises")
    )
    damage_of(case, worlds, moment)
    assert (moment / "data/raft/journal").read_bytes() == b"kept old"
    assert (moment / "data/promises").read_bytes() == b"kept old"


def test_a_folder_is_emptied_removed_and_put_back(worlds: Path) -> None:
    """A folder has no bytes to flip."""
    cases = cases_of(worlds, "kept")
    found = {one.damage for one in cases if one.entry.alias == "data/streams/orders/0"}
    assert found == {
        "gone", "emptied", "older-stopped", "older-running", "another-stream", "another-broker",
    }  # fmt: skip
    folder = worlds / "kept/killed/data/streams"
    damage(folder, "emptied", None)
    assert folder.is_dir()
    assert not list(folder.iterdir())


def test_the_slice_has_each_kind_with_each_damage(worlds: Path) -> None:
    """A seed always gives the same slice."""
    cases = cases_of(worlds, "kept")

    def classes(some: list[Case]) -> set[tuple[str, str]]:
        return {(one.entry.kind, one.damage.partition("-")[0]) for one in some}

    picked = sliced(cases, 3)
    assert classes(picked) == classes(cases)
    assert len(picked) == len(classes(cases))
    assert picked == sliced(cases, 3)
    assert {one.state for one in picked} == {"running", "stopped", "killed"}
    assert RETENTIONS == ("kept", "freed")


def test_a_cover_meets_each_kind_each_damage_and_each_pair_of_choices(worlds: Path) -> None:
    """It is smaller than the slice, and a seed always gives the same one."""
    cases = cases_of(worlds, "kept")

    def met(some: list[Case]) -> set[tuple[str, str]]:
        """Return what two of the choices of a case were together, and its kind and damage."""
        found = {pair for one in some for pair in (("kind", one.entry.kind), ("is", one.damage))}
        for one in some:
            if one.damage != NOTHING:
                found.add((one.damage.partition("-")[0], one.state))
                found.add((one.damage.partition("-")[0], one.entry.path.partition("/")[0]))
        return found

    picked = covering(cases, 3)
    assert met(picked) == met(cases)
    assert len(picked) < len(sliced(cases, 3))
    assert picked == covering(cases, 3)
    assert len([one for one in picked if one.damage == NOTHING]) == 3


def test_cases_are_chosen_by_name_and_number(worlds: Path) -> None:
    """A chosen case matches every pattern; an unknown case to replay is an error."""
    cases = cases_of(worlds, "kept")
    some = chosen(cases, only=["beat", "flip"])
    assert some
    assert all("beat" in one.name and "flip" in one.name for one in some)
    assert len(chosen(cases, cases=5)) == 5
    assert chosen(cases, replay=cases[7].name) == [cases[7]]
    with pytest.raises(ValueError, match="no case"):
        chosen(cases, replay="nothing")
