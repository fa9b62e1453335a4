"""Compares what is locked with published advisories: ``make audit``.

    python -m tools.audit                                # with the stored list, no network
    python -m tools.audit --advisories all.zip           # with OSV's export of one ecosystem
    python -m tools.audit --advisories all.zip --keep    # and store what it says of our packages

The form of an advisory is OSV's (ossf.github.io/osv-schema). Packages are compared by the ranges of
versions, or by the versions that an advisory lists; jars by the listed versions alone, because the
order of Maven's versions is not ours to know. Exits with 1 if a locked version is affected.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_jobs.jar_hashes import SHA256
from tools.sbom import locked_packages, pinned_jars

ROOT: Final = Path(__file__).resolve().parents[1]
STORED: Final = ROOT / "tools/advisories.json"
LOCKS: Final = (
    "requirements.lock",
    "airflow_dags/requirements.lock",
    "docs/requirements.lock",
    "bench/requirements.lock",
    "tests/peers/python/requirements.lock",
)
# Advisories that name a locked version and do not concern us, with the reason.
ACCEPTED: Final[Mapping[str, str]] = {
    "PYSEC-2021-427": "mpmath 1.3.0 has the fix; the advisory names the commit, not the release",
}
_ADVISORY_BYTES_MAX: Final = 16 * 1024 * 1024

Advisory = Mapping[str, Any]


class AdvisoryError(ValueError):
    """A list of advisories cannot be read, or says what this program does not understand."""


@dataclass(frozen=True, order=True)
class Package:
    """A package that is locked or pinned, and where."""

    ecosystem: str  # PyPI or Maven
    name: str
    version: str
    where: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.where})"


@dataclass(frozen=True)
class Known:
    """A list of advisories, and which packages were looked for; None: every one."""

    as_of: str
    advisories: Sequence[Advisory]
    looked_for: frozenset[str] | None = None

    def covers(self, package: Package) -> bool:
        """Tell whether a package without an advisory is known to have none."""
        return self.looked_for is None or package.name in self.looked_for


def packages(root: Path = ROOT, jars: Mapping[str, str] = SHA256) -> list[Package]:
    """Return everything that the locks and the list of jars name, each version once for a file."""
    found = {
        Package("PyPI", canonicalize_name(one.name), str(one.version), lock)
        for lock in LOCKS
        for one in locked_packages((root / lock).read_text("utf-8"))
    }
    found |= {
        Package("Maven", f"{one.group}:{one.name}", str(one.version), "spark_jobs/jar_hashes.py")
        for one in pinned_jars(jars)
    }
    return sorted(found)


def findings(
    locked: Iterable[Package], advisories: Iterable[Advisory]
) -> list[tuple[Package, Advisory]]:
    """Return the packages with an advisory that names their version.

    Raises:
        AdvisoryError: an advisory about one of the packages is not understood.
    """
    by_name: dict[tuple[str, str], list[Package]] = {}
    for one in locked:
        by_name.setdefault((one.ecosystem, one.name), []).append(one)
    return [
        (package, advisory)
        for advisory in advisories
        if "withdrawn" not in advisory
        for affected in advisory.get("affected", ())
        for package in by_name.get(_name_of(affected), ())
        if _is_affected(package, affected, str(advisory.get("id")))
    ]


def load(path: Path) -> Known:
    """Read the stored list, or OSV's export: a ZIP file with one JSON file for each advisory.

    Raises:
        AdvisoryError: the file is neither.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as export:
                found = list(_exported(export))
            moment = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            return Known(f"{moment:%Y-%m-%d}", found)
        stored = json.loads(path.read_text("utf-8"))
        return Known(stored["as_of"], stored["advisories"], frozenset(stored["looked_for"]))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as cause:
        raise AdvisoryError(f"{path} is no list of advisories: {cause!r}") from cause


def keep(known: Known, locked: Iterable[Package], path: Path = STORED) -> int:
    """Store what a list says of our packages; return the number of advisories."""
    names = {(one.ecosystem, one.name) for one in locked}
    ours = [
        {name: one[name] for name in ("id", "aliases", "summary", "affected") if name in one}
        for one in known.advisories
        if "withdrawn" not in one and any(_name_of(it) in names for it in one.get("affected", ()))
    ]
    ours.sort(key=lambda one: str(one["id"]))
    ecosystems = {_name_of(it)[0] for one in ours for it in one["affected"]}
    looked_for = sorted(name for ecosystem, name in names if ecosystem in ecosystems)
    body = {"as_of": known.as_of, "looked_for": looked_for, "advisories": ours}
    path.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n", "utf-8")
    return len(ours)


def _exported(export: zipfile.ZipFile) -> Iterator[Advisory]:
    for entry in export.infolist():
        if entry.filename.endswith(".json"):
            if entry.file_size > _ADVISORY_BYTES_MAX:
                raise AdvisoryError(f"{entry.filename} has {entry.file_size} bytes")
            found = json.loads(export.read(entry))
            if not isinstance(found, dict):
                raise AdvisoryError(f"{entry.filename} is not an advisory")
            yield found


def _name_of(affected: Mapping[str, Any]) -> tuple[str, str]:
    package = affected.get("package", {})
    ecosystem, name = str(package.get("ecosystem")), str(package.get("name"))
    return ecosystem, canonicalize_name(name) if ecosystem == "PyPI" else name


def _is_affected(package: Package, affected: Mapping[str, Any], advisory: str) -> bool:
    if package.version in affected.get("versions", ()):
        return True
    if package.ecosystem != "PyPI":
        return False
    try:
        version = Version(package.version)
        return any(
            _is_within(version, one["events"])
            for one in affected.get("ranges", ())
            if one["type"] == "ECOSYSTEM"
        )
    except (InvalidVersion, KeyError, TypeError, AttributeError) as cause:
        raise AdvisoryError(f"{advisory} on {package.name} is not understood: {cause!r}") from cause


def _is_within(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Tell what the last event up to a version says; events may stand in any order."""
    inside = False
    for at, kind in sorted((Version(at), kind) for one in events for kind, at in one.items()):
        if kind not in {"introduced", "fixed", "last_affected"}:
            continue  # a limit of another kind, which ends nothing
        if at > version or (kind == "last_affected" and at == version):
            break
        inside = kind == "introduced"
    return inside


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found; return the exit code."""
    parser = argparse.ArgumentParser(prog="make audit", description="Look for known weaknesses.")
    parser.add_argument("--advisories", type=Path, default=STORED, help="a list; OSV's all.zip")
    parser.add_argument("--keep", action="store_true", help="store what it says of our packages")
    asked = parser.parse_args(arguments)
    try:
        known, locked = load(asked.advisories), packages()
        found = findings(locked, known.advisories)
        if asked.keep:
            sys.stdout.write(f"stored {keep(known, locked)} advisories in {STORED}\n")
    except AdvisoryError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for package, advisory in found:
        reason = ACCEPTED.get(str(advisory["id"]))
        sys.stdout.write(
            f"{package}: {', '.join([advisory['id'], *advisory.get('aliases', ())])}: "
            f"{advisory.get('summary', '')}{f' [accepted: {reason}]' if reason else ''}\n"
        )
    unknown = [one for one in locked if not known.covers(one)]
    sys.stdout.write(
        f"{len(locked)} packages and jars, {len(known.advisories)} advisories as of {known.as_of}; "
        f"of {len(unknown)} nothing is known\n"
    )
    return int(any(advisory["id"] not in ACCEPTED for _, advisory in found))


if __name__ == "__main__":
    sys.exit(main())
