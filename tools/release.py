"""Checks that a version can be tagged, and builds it: ``make release-check``.

    python -m tools.release            # checks, then builds sdist, wheel and bill into dist/

The version stands in ``pyproject.toml`` and is set nowhere else. The wheel is built from the sdist,
so the tested wheel is the one that an installer builds from the sdist. Nothing is uploaded, and
nothing is tagged: docs/releasing.md has the next steps.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from spark_jobs.jar_hashes import SHA256
from tools.sbom import bill_of_materials

ROOT: Final = Path(__file__).resolve().parents[1]
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")


def version() -> str:
    """Return the version that the project file states."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def problems(
    stated: str,
    *,
    changelog: str,
    tags: Sequence[str],
    changed_files: Sequence[str],
    today: date,
) -> list[str]:
    """Return the reasons why the version cannot be released, one sentence each. Pure."""
    found: list[str] = []
    key = _order(stated)
    if key is None:
        return [f"version {stated} is neither MAJOR.MINOR.PATCH nor MAJOR.MINOR.PATCHrcN"]
    released = {tag: order for tag in tags if (order := _order(tag.removeprefix("v")))}
    if f"v{stated}" in released:
        found.append(f"the tag v{stated} is there already: raise the version")
    newer = [tag for tag, order in released.items() if order > key]
    if newer:
        found.append(f"{', '.join(sorted(newer))} is newer than {stated}")
    heading = re.search(
        rf"^## \[{re.escape(stated)}\] - (\S+)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if heading is None:
        found.append(f"CHANGELOG.md has no section `## [{stated}] - {today.isoformat()}`")
    else:
        if heading[1] != today.isoformat():
            found.append(f"CHANGELOG.md dates {stated} {heading[1]}; today is {today.isoformat()}")
        if "\n- " not in heading[2]:
            found.append(f"CHANGELOG.md says nothing about {stated}")
    if "## [Unreleased]" not in changelog:
        found.append("CHANGELOG.md has no section `## [Unreleased]` for what comes next")
    found.extend(f"{path} has changes that are not committed" for path in changed_files)
    return found


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, with the locked backend and no network.

    Raises:
        RuntimeError: with the output of the build, if it fails.
    """
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def write_bill(out: Path, files: Sequence[Path]) -> Path:
    """Write the bill of materials of built files beside them; return its path."""
    bill = out / f"headwater-{version()}.cdx.json"
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    text = bill_of_materials(version(), lock=lock, jars=SHA256, files=files)
    bill.write_text(text, "utf-8")
    return bill


def released_files(out: Path) -> list[Path]:
    """Return the packages and the bill of materials that a folder holds, by name."""
    patterns = ("*.tar.gz", "*.whl", "*.cdx.json")
    return sorted(path for pattern in patterns for path in out.glob(pattern))


def _order(text: str) -> tuple[int, ...] | None:
    """Return the sort key of a version; a candidate comes before its version. None: no version."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    last = (0, int(candidate)) if candidate else (1, 0)
    return int(major), int(minor), int(patch), *last


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> int:
    """Print the reasons against a release, or build; return the exit code."""
    found = problems(
        version(),
        changelog=(ROOT / "CHANGELOG.md").read_text("utf-8"),
        tags=_git("tag", "--list", "v*"),
        changed_files=[line[3:] for line in _git("status", "--porcelain")],
        today=datetime.now(tz=UTC).date(),
    )
    if found:
        sys.stderr.write("".join(f"{sentence}\n" for sentence in found))
        return 1
    out = ROOT / "dist"
    for old in released_files(out):
        old.unlink()
    files = build(out)
    for path in (*files, write_bill(out, files)):
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
