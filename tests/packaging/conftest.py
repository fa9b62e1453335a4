"""The distributions, built once for all tests that look into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from projectfiles import project_files
from tools import release


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, as a release does: locked backend, no network."""
    project_files()  # listed before the build, so that a file written meanwhile is not missed
    return release.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def sdist(distributions: tuple[Path, Path]) -> Path:
    """Return the source distribution."""
    return distributions[0]


@pytest.fixture(scope="session")
def wheel(distributions: tuple[Path, Path]) -> Path:
    """Return the wheel that was built from the source distribution."""
    return distributions[1]
