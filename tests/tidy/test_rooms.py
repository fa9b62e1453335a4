"""The rule of rooms: none is crowded without a reason, none imports in a circle, each has a place.

The import contracts in pyproject.toml order the rooms of the product and of the benchmarks. Here is
what they do not see: sizes, circles between single modules of tiering or of the test kits, and who
imports what is around the product (tools, examples, DAGs, kits). The product imports none of it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import pytest

from projectfiles import ROOMS, ROOT, project_files
from roomrules import circles, crowded, imports, misplaced, place_of

GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
# A test folder mirrors the folder that it tests, file by file; what is crowded there is here, too.
MIRRORS: Final = "tests/unit/"

_PRODUCT: Final = ("broker/*", "tiering/*", "spark_jobs/*", "headwater/*")
_PUBLIC: Final = ("headwater/*", "broker/model/*")
_TEST: Final = (*_PRODUCT, "tests/lib/*")

# Who may import whom: a folder or a file, and the paths that it may import beside its own.
PLACES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(ROOMS, _PRODUCT),  # in which order: the import contracts
    "pyspark_headwater.py": ("spark_jobs/source/*",),
    "bench": (*_PRODUCT, "tests/lib/chaoskit/proxy.py"),  # links that can be cut one way
    "tools": ("headwater/cli/*", "spark_jobs/*"),  # the commands; the Java class and its jar
    # Programs for users use what is public. DAGs import nothing of ours: Airflow has its own
    # environment, in which Headwater is not installed.
    "examples": _PUBLIC,
    "docs/notebook.py": ("headwater/*",),
    "airflow_dags": (),
    # The kits, from the one that needs least. None imports a test, an example or a tool.
    "tests/lib/projectfiles.py": (),
    "tests/lib/roomrules.py": (),
    "tests/lib/sourcefiles.py": (),
    "tests/lib/docclaims.py": (),
    "tests/lib/cpu_report.py": (),
    "tests/lib/freezing.py": (),
    "tests/lib/lanes.py": (),
    "tests/lib/memory_folders.py": (),
    "tests/lib/lean_jvm.py": ("spark_jobs/*",),
    "tests/lib/stale_seeds.py": (),
    "tests/lib/cases.py": (),
    "tests/lib/airflowkit": (),
    "tests/lib/quickkit": (),
    "tests/lib/docfacts.py": (*_PRODUCT, "tests/lib/docclaims.py", "tests/lib/projectfiles.py"),
    "tests/lib/checkkit": ("broker/*",),
    "tests/lib/plantkit": (*_PRODUCT, "tests/lib/checkkit/*", "tests/lib/projectfiles.py"),
    "tests/lib/simkit": (*_PRODUCT, "tests/lib/checkkit/*", "tests/lib/projectfiles.py"),
    "tests/lib/clusterkit": (
        *_PRODUCT, "tests/lib/simkit/*", "tests/lib/freezing.py", "tests/lib/projectfiles.py",
    ),
    "tests/lib/crashkit": (
        *_PRODUCT, "tests/lib/checkkit/*", "tests/lib/clusterkit/*", "tests/lib/plantkit/*",
        "tests/lib/simkit/*", "tests/lib/freezing.py",
    ),
    "tests/lib/chaoskit": (
        *_PRODUCT, "tests/lib/checkkit/*", "tests/lib/clusterkit/*", "tests/lib/crashkit/*",
        "tests/lib/freezing.py",
    ),
    "tests/lib/damagekit": (*_PRODUCT, "tests/lib/freezing.py"),
    "tests/lib/fuzzkit": (
        *_PRODUCT, "tests/lib/clusterkit/*", "tests/lib/crashkit/*", "tests/lib/simkit/*",
    ),
    # Tests import kits and what they test, never each other: shared code belongs into a kit.
    "tests/conftest.py": _TEST,
    "tests/airflow": ("tests/lib/airflowkit/*", "airflow_dags/*"),
    "tests/chaos": _TEST,
    "tests/contract": _TEST,
    "tests/crash": _TEST,
    "tests/damage": _TEST,
    "tests/fuzz": _TEST,
    "tests/golden": _TEST,
    "tests/integration": _TEST,
    "tests/notebook": _TEST,
    "tests/packaging": (*_TEST, "tools/*"),
    "tests/peers": (),  # programs on libraries of others, in environments of their own
    "tests/plants": _TEST,
    "tests/property": _TEST,
    "tests/race": _TEST,
    "tests/sim": _TEST,
    "tests/tidy": (*_TEST, "tools/*"),
    "tests/typed": _TEST,
    "tests/unit": (*_TEST, "tools/*", "bench/*"),
}  # fmt: skip


@cache
def _files() -> dict[str, str]:
    return {
        path: (ROOT / path).read_text("utf-8")
        for path in project_files()
        if path.endswith((".py", "README.md")) and not path.endswith(GENERATED)
    }


def test_what_is_crowded_says_why() -> None:
    """Large folders, files and classes have a reason that a reader can use, others have none."""
    code = {path: text for path, text in _files().items() if not path.startswith(MIRRORS)}
    mirrors = {path: text for path, text in _files().items() if path.startswith(MIRRORS)}
    assert [*crowded(code), *crowded(mirrors, folders=False)] == []


def test_no_module_reaches_itself_by_its_imports() -> None:
    """A circle hidden in a function breaks when somebody moves the import to the top."""
    assert list(circles(_files())) == []


def test_every_file_has_a_place_and_keeps_to_it() -> None:
    """The product imports no tool, example or test; kits and tests import as the table says."""
    assert list(misplaced(_files(), PLACES)) == []


def test_the_table_of_places_only_shrinks() -> None:
    """A place that has no file leaves the table, and so does a permission that nobody uses."""
    taken = {place_of(path, PLACES) for path in _files()}
    assert set(PLACES) - taken == set()
    narrow = [place for place in PLACES if not place.startswith("tests/") and place not in ROOMS]
    graph = imports(_files())
    unused = [
        f"{place}: {pattern}"
        for place in narrow
        for pattern in PLACES[place]
        if not any(
            fnmatchcase(other, pattern)
            for path, found in graph.items()
            if place_of(path, PLACES) == place
            for other in found
        )
    ]
    assert unused == []


# ---------------------------------------------------------------------- each rule can fail

_WHOLE: Final = "The {} is not split: its parts make sense together only."
_LONG: Final = "\n" * 501
_METHODS: Final = "\n".join(f"    def m{number}(self): ..." for number in range(26))


def _folder(count: int, readme: str = "") -> dict[str, str]:
    return {"room/README.md": readme, **{f"room/m{number}.py": "" for number in range(count)}}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (_folder(13), "room has 13 modules"),
        (_folder(13, "The folder is not split."), "room has 13 modules"),  # no reason
        (_folder(13, _WHOLE.format("file")), "room has 13 modules"),
        (_folder(12, _WHOLE.format("folder")), "is not needed"),
        ({"a.py": f'"""Doc."""{_LONG}'}, "a.py has 501 lines"),
        ({"a.py": f'"""{_WHOLE.format("file")}"""'}, "is not needed"),
        ({"a.py": f"class A:\n{_METHODS}"}, "a.py:A has 26 methods"),
        ({"a.py": f"def f():\n  class A:\n{_METHODS.replace('  ', '    ')}"}, "a.py:A has 26"),
        ({"a.py": f'class A:\n    """{_WHOLE.format("class")}"""'}, "is not needed"),
    ],
)
def test_a_crowded_room_is_reported(files: dict[str, str], told: str) -> None:
    """Without a reason, with a word in its place, with another's reason, or with one too many."""
    assert [told in one for one in crowded(files)] == [True]


@pytest.mark.parametrize(
    "files",
    [
        _folder(12),
        {**_folder(12), "room/__init__.py": ""},
        _folder(13, _WHOLE.format("folder")),
        _folder(13, "The\nfolder is not split,\nbecause its parts make sense together only."),
        {"a.py": f'"""Doc.\n\n{_WHOLE.format("file")}\n"""{_LONG}'},
        {"a.py": f'class A:\n    """{_WHOLE.format("class")}"""\n{_METHODS}'},
        {"a.py": "class A:\n" + "    @property\n    def m(self): ...\n" * 30},
    ],
)
def test_what_has_its_reason_or_is_small_is_not_reported(files: dict[str, str]) -> None:
    """A reason may stand anywhere in the README or docstring, and break over lines."""
    assert list(crowded(files)) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("import room.b", "import room.a"),
        ("import room.b", "def f():\n    from room import a"),
        ("from room.b import name", "def f():\n    if True:\n        import room.a"),
        ("try:\n    import room.b\nexcept ImportError:\n    pass", "from room.a import f"),
        ("import room.c", "import room.a"),
    ],
)
def test_a_circle_is_reported(a: str, b: str) -> None:
    """Of two or of three modules, at the top or inside of functions."""
    files = {"room/__init__.py": "", "room/a.py": a, "room/b.py": b, "room/c.py": "import room.b"}
    assert len(list(circles(files))) == 1


@pytest.mark.parametrize(
    "b",
    [
        "import typing\nif typing.TYPE_CHECKING:\n    import room.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from room.a import A",
        "import json",
    ],
)
def test_an_import_for_checkers_closes_no_circle(b: str) -> None:
    """It never runs, so no order of loading can break."""
    files = {"room/__init__.py": "", "room/a.py": "import room.b", "room/b.py": b}
    assert list(circles(files)) == []


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("broker/core/new.py", "import bench.stats", "which broker may not"),
        ("headwater/new.py", "def f():\n    import tools.release", "which headwater may not"),
        ("broker/new.py", "from checkkit.checker import judge", "which broker may not"),
        ("examples/new.py", "import broker.storage", "which examples may not"),
        ("airflow_dags/new.py", "import headwater", "which airflow_dags may not"),
        ("tests/lib/checkkit/new.py", "import simkit.world", "which tests/lib/checkkit may not"),
        ("tests/unit/test_new.py", "import examples.first", "which tests/unit may not"),
        ("tests/lib/newkit/x.py", "", "tests/lib/newkit/x.py has no place"),
        ("newcomer/x.py", "", "newcomer/x.py has no place"),
    ],
)
def test_a_file_out_of_place_is_reported(path: str, text: str, told: str) -> None:
    """An import that the table does not allow, and a file of which the table knows nothing."""
    files = {
        "bench/stats.py": "", "tools/release.py": "", "broker/storage/__init__.py": "",
        "headwater/__init__.py": "", "examples/first.py": "import headwater",
        "tests/lib/checkkit/checker.py": "", "tests/lib/simkit/world.py": "",
    }  # fmt: skip
    assert list(misplaced(files, PLACES)) == []
    assert [told in one for one in misplaced({**files, path: text}, PLACES)] == [True]
