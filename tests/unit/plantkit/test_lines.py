"""Bugs in lines of the product: every list fits the tree, and the runner reports each result."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plantkit.generate import changes, drawn
from plantkit.lines import PlantedLine, PlantListError, files_of, known_tests, lists, planted_text
from plantkit.nursery import HUNG
from plantkit.planting import SITE
from plantkit.trials import Nursery
from projectfiles import ROOT

PRODUCT = '''"""Rooms."""


def is_free(taken: int, room: int) -> bool:
    """Tell whether one more fits."""
    return taken < room and room > 0
'''
TESTS = '''"""Of rooms."""

from house.rooms import is_free


def test_a_full_house_takes_nobody() -> None:
    """One too many."""
    assert not is_free(2, 2)
    assert is_free(1, 2)
'''
LISTED = """
[[bug]]
name = "one guest too many"
file = "house/rooms.py"
old = "taken < room"
new = "taken <= room"
breaks = "a full house takes nobody"
tests = ["test_rooms.py"]

[[bug]]
name = "a house without rooms"
file = "house/rooms.py"
old = "room > 0"
new = "room >= 0"
breaks = "nobody lives in a house without rooms"
tests = ["test_rooms.py"]

[[bug]]
name = "nobody can come in"
file = "house/rooms.py"
old = "def is_free"
new = "def is_full"
breaks = "a bug has to be one that tests can meet"
tests = ["test_rooms.py"]
"""
SLICE = (
    "an ack comes one record early",
    "a retry of another size is taken for the same batch",
    "a conflicting tail stays",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one module of a product, its test, and a list with three bugs."""
    for path, text in (
        ("house/__init__.py", ""),
        ("house/rooms.py", PRODUCT),
        ("tests/unit/test_rooms.py", TESTS),
        ("lists/house.toml", LISTED),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def run(*arguments: str) -> int:
    """Run ``make plant``'s program."""
    path = ROOT / "tests" / "plants" / "lines.py"
    spec = importlib.util.spec_from_file_location("plant_lines", path)
    assert spec is not None
    assert spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return int(program.main(list(arguments)))


def run_on(tree: Path, *arguments: str) -> int:
    """Run it on the small tree."""
    memory, listed = tree / "out" / "memory", tree / "lists"
    fixed = ["--root", str(tree), "--lists", str(listed), "--memory", str(memory), "--at-once", "1"]
    return run(*fixed, *arguments)


def bug_of(tree: Path, **changed: str) -> PlantedLine:
    """The first bug of the small tree, with other fields."""
    fields = {"name": "one", "file": "house/rooms.py", "old": "taken < room", "new": "True"}
    fields |= {"list_name": "house", "breaks": "a promise", **changed}
    assert (tree / "house").is_dir()
    return PlantedLine(**fields, tests=("test_rooms.py",))


@pytest.mark.slow
def test_every_planted_bug_fits_the_tree() -> None:
    """Each text is there once, the new one means something else, each test is there."""
    bugs, known = lists(), known_tests()
    for one in bugs:
        planted_text(one)
        files_of(one.tests, known=known)
        assert one.breaks, one.title
    rooms = Counter("/".join(one.file.split("/")[:2]) for one in bugs)
    assert len(bugs) >= 120
    assert all(rooms[room] >= 20 for room in ("broker/core", "broker/storage")), rooms


@pytest.mark.slow
def test_a_slice_of_the_planted_bugs_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few bugs of the lists are tried here; `make plant` tries all of them."""
    (tmp_path / "lists").mkdir()
    for one in lists():
        if one.name in SLICE:
            fields = ("name", "file", "old", "new", "breaks")
            entry = [f"{key} = {toml(getattr(one, key))}" for key in fields]
            entry.append(f"tests = [{', '.join(map(toml, one.tests))}]")
            with (tmp_path / "lists" / "few.toml").open("a") as sink:
                sink.write("\n".join(["[[bug]]", *entry, ""]))
    memory = str(tmp_path / "memory")
    given = ("--lists", str(tmp_path / "lists"), "--memory", memory, "--no-baseline")
    assert run(*given, "--at-once", "1") == 0, capsys.readouterr().out
    assert f"{len(SLICE)} of {len(SLICE)} bugs noticed" in capsys.readouterr().out


def toml(text: str) -> str:
    """Quote a text for TOML."""
    assert "'''" not in text
    return f"'''{text}'''"


@pytest.mark.slow
def test_what_survives_is_told_and_what_was_noticed_is_not_tried_again(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bug is noticed, one survives, one lets no test begin; the next run has two left."""
    before = (tree / "house" / "rooms.py").read_text()
    assert run_on(tree) == 1
    told = capsys.readouterr().out
    assert "noticed: one guest too many (test_rooms.py::test_a_full_house_takes_nobody)" in told
    assert "SURVIVED house: a house without rooms (house/rooms.py): nobody lives in" in told
    assert "BROKEN house: nobody can come in" in told
    assert "plant: 1 of 3 bugs noticed" in told
    assert (tree / "house" / "rooms.py").read_text() == before
    assert run_on(tree, "--only", "one guest") == 0
    assert "plant: 1 bugs, 1 noticed before" in capsys.readouterr().out
    (tree / "tests" / "unit" / "test_rooms.py").write_text("def test_nothing():\n    pass\n")
    assert run_on(tree, "--only", "one guest") == 1
    assert "no test loads the file" in capsys.readouterr().out


@pytest.mark.slow
def test_tests_that_fail_without_a_bug_prove_nothing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With such tests every bug would count as noticed."""
    (tree / "tests" / "unit" / "test_rooms.py").write_text("def test_it():\n    assert 0\n")
    assert run_on(tree) == 2
    assert "without a bug the tests fail already: test_rooms.py::test_it" in capsys.readouterr().out


def test_a_trial_ends_with_the_run_that_asked_for_it(tmp_path: Path) -> None:
    """A run that is killed leaves no test behind that goes on."""
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "test_it.py").write_text(
        "import threading\n\n\ndef test_it():\n"
        "    open('begun', 'w').close()\n    threading.Event().wait()\n"
    )
    asked: dict[str, object] = {
        "root": str(tmp_path),
        "arguments": ["-q", "-p", "no:cacheprovider", "test_it.py"],
        "environment": {},
        "path": [str(SITE)],
        "output": str(tmp_path / "output"),
        "timeout_s": 600,
    }
    nursery = Nursery(())
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(nursery.run, asked)
        with (tmp_path / "begun").open() as begun:
            assert begun.read() == ""
        nursery.close_input()
        assert status.result() == HUNG
    nursery.close()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"old": "taken > room"}, "0 times, not once"),
        ({"old": "room"}, "times, not once"),
        ({"new": "(taken < room)"}, "means the same"),
        ({"new": "taken <"}, "is no Python"),
        ({"file": "house/gone.py"}, "no such file"),
    ],
)
def test_a_bug_that_no_longer_fits_is_named(tree: Path, changed: dict[str, str], told: str) -> None:
    """An outdated list is an error with the bug's name and the reason."""
    with pytest.raises(PlantListError, match=f"house: one .*{told}"):
        planted_text(bug_of(tree, **changed), tree)


def test_tests_are_found_wherever_they_are(tree: Path) -> None:
    """A test is named by the end of its path; an end that fits none, or two, is an error."""
    assert files_of(("test_rooms.py",), tree) == ("tests/unit/test_rooms.py",)
    one = "test_rooms.py::test_a_full_house_takes_nobody"
    assert files_of((one,), tree) == (f"tests/unit/{one}",)
    with pytest.raises(PlantListError, match=r"'rooms\.py'"):
        files_of(("rooms.py",), tree)
    (tree / "tests" / "unit" / "house").mkdir()
    (tree / "tests" / "unit" / "house" / "test_rooms.py").touch()
    with pytest.raises(PlantListError, match="one test file"):
        files_of(("test_rooms.py",), tree)
    assert files_of(("house/test_rooms.py",), tree) == ("tests/unit/house/test_rooms.py",)


def test_an_entry_needs_its_fields_and_a_name_of_its_own(tree: Path) -> None:
    """What is missing, unknown or there twice is named."""
    path = tree / "lists" / "house.toml"
    path.write_text(LISTED.replace("breaks", "brakes"))
    with pytest.raises(
        PlantListError, match=r"lacks \['breaks'\] and has the unknown \['brakes'\]"
    ):
        lists(tree / "lists")
    path.write_text(LISTED.replace("a house without rooms", "one guest too many"))
    with pytest.raises(PlantListError, match="one guest too many"):
        lists(tree / "lists")


def test_drawn_changes_are_python_and_mean_something_else(tree: Path) -> None:
    """The same seed draws the same changes; the tests are those that the lists name."""
    text = (ROOT / "broker" / "core" / "replication" / "leader.py").read_text()
    found = changes(text)
    assert len(found) > 100
    same = ast.dump(ast.parse(text))
    assert all(ast.dump(ast.parse(one.applied(text))) != same for one in found[::20])
    first = lists(tree / "lists")
    bugs = drawn(first, 3, seed=5, root=tree)
    assert bugs == drawn(first, 3, seed=5, root=tree)
    assert len({one.new for one in bugs}) == 3
    assert all(one.tests == ("test_rooms.py",) for one in bugs)
    assert all(planted_text(one, tree) == one.new for one in bugs)
