"""What has to hold before a version is tagged."""

from __future__ import annotations

from datetime import date

import pytest

from broker.process.daemon import installed_version
from projectfiles import ROOT
from tools import release

TODAY = date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- A thing.\n"


def _problems(stated: str = "0.2.0", **changes: object) -> list[str]:
    facts: dict[str, object] = {
        "changelog": CHANGELOG,
        "tags": ["v0.1.0", "v0.2.0rc1", "nightly"],
        "changed_files": [],
        "today": TODAY,
    }
    return release.problems(stated, **{**facts, **changes})  # type: ignore[arg-type]


def test_a_version_that_is_ready_has_no_problems() -> None:
    """Newer than every tag, in the changelog with today's date, nothing uncommitted."""
    assert _problems() == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"stated": "0.2"}, "version 0.2 is neither MAJOR.MINOR.PATCH nor MAJOR.MINOR.PATCHrcN"),
        ({"tags": ["v0.2.0"]}, "the tag v0.2.0 is there already: raise the version"),
        ({"tags": ["v0.10.0"]}, "v0.10.0 is newer than 0.2.0"),
        (
            {"changelog": "## [Unreleased]\n"},
            "CHANGELOG.md has no section `## [0.2.0] - 2026-12-01`",
        ),
        (
            {"today": date(2026, 12, 2)},
            "CHANGELOG.md dates 0.2.0 2026-12-01; today is 2026-12-02",
        ),
        (
            {"changelog": CHANGELOG.replace("- A thing.\n", "")},
            "CHANGELOG.md says nothing about 0.2.0",
        ),
        (
            {"changelog": CHANGELOG.replace("## [Unreleased]\n", "")},
            "CHANGELOG.md has no section `## [Unreleased]` for what comes next",
        ),
        ({"changed_files": ["a.py"]}, "a.py has changes that are not committed"),
    ],
)
def test_each_problem_is_named(changes: dict[str, object], sentence: str) -> None:
    """One thing wrong is one sentence."""
    given = dict(changes)
    assert _problems(str(given.pop("stated", "0.2.0")), **given) == [sentence]


def test_the_version_is_stated_once() -> None:
    """The project file states it; the broker reads it from the installed package."""
    assert installed_version() == release.version()
    assert f'version = "{release.version()}"' in (ROOT / "pyproject.toml").read_text("utf-8")
