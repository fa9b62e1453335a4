"""The import contracts of pyproject.toml hold on this tree, and each of them bites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from projectfiles import ROOMS, ROOT, project_files

LINT_IMPORTS: Final = Path(sys.executable).with_name("lint-imports")

# The smallest tree that the contracts apply to: what stands at the top of each package, emptied.
PACKAGES: Final = (*ROOMS, "bench")
SKELETON: Final = (
    "broker/process/daemon.py",
    *(
        path
        for path in project_files()
        if path.split("/")[0] in PACKAGES
        and path.endswith(".py")
        and (path.count("/") == 1 or (path.count("/") == 2 and path.endswith("/__init__.py")))
    ),
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the packages in ``folder`` against the project's contracts."""
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
        capture_output=True,
        text=True,
    )


def build_skeleton(folder: Path) -> None:
    """Write the smallest tree, in which nothing imports anything."""
    for name in SKELETON:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def test_the_tree_keeps_its_contracts() -> None:
    """Nobody imports what the dependency rule keeps from them."""
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_the_rule_allows_is_kept(tmp_path: Path) -> None:
    """The composition root may join everything, and the command may start it."""
    build_skeleton(tmp_path)
    (tmp_path / "broker/process/daemon.py").write_text(
        "import tiering, broker.runtime, broker.adapters"
    )
    (tmp_path / "broker/__main__.py").write_text("import broker.process.daemon")
    (tmp_path / "headwater/cli/up.py").write_text("import broker.process.daemon, spark_jobs")
    (tmp_path / "spark_jobs/jobs/new.py").write_text(
        "import tiering, broker.wire, headwater.client"
    )
    (tmp_path / "tiering/ship/writer.py").write_text("import broker.ports, broker.codec, boto3")
    result = lint_imports(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("broker/core/isr.py", "import asyncio"),
        ("broker/core/isr.py", "from time import time"),
        ("broker/codec/frame.py", "import nats"),
        ("broker/model/record.py", "import pyarrow"),
        ("broker/codec/frame.py", "import broker.wire"),
        ("broker/core/isr.py", "import broker.storage"),
        ("broker/runtime/driver.py", "import broker.adapters"),
        ("broker/model/record.py", "import broker.codec"),
        ("broker/runtime/driver.py", "import tiering"),
        ("broker/adapters/lake.py", "import spark_jobs"),
        ("tiering/ship/uploader.py", "import broker.storage"),
        ("tiering/ship/uploader.py", "import spark_jobs"),
        ("tiering/ship/uploader.py", "import headwater.client"),
        ("broker/adapters/lake.py", "import headwater.client"),
        ("spark_jobs/jobs/new.py", "import headwater.cli"),
        ("headwater/client/new.py", "import spark_jobs"),
        ("spark_jobs/jobs/new.py", "import broker.runtime"),
        ("headwater/client/new.py", "import broker.runtime"),
        ("broker/newcomer.py", ""),
        ("tiering/newcomer.py", ""),
        ("spark_jobs/newcomer.py", ""),
        ("headwater/newcomer.py", ""),
        ("bench/newcomer.py", ""),
        ("broker/runtime/pumps.py", "import bench.stats"),
        ("bench/stats.py", "import bench.session"),
        ("broker/core/dedup.py", "import broker.core.election"),
        ("headwater/client/address.py", "import headwater.client.brokers"),
    ],
)
def test_a_forbidden_import_is_reported(tmp_path: Path, path: str, text: str) -> None:
    """Each contract fails on a tree with a forbidden import, or a module without place."""
    build_skeleton(tmp_path)
    (tmp_path / "broker/core/election.py").write_text("import broker.core.dedup")
    (tmp_path / "headwater/client/brokers.py").write_text("import headwater.client.address")
    (tmp_path / path).write_text(text, encoding="utf-8")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
