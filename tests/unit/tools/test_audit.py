"""What is locked is compared with published advisories, without a network."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.audit import AdvisoryError, Package

WHEEL = Package("PyPI", "a-wheel", "2.1", "requirements.lock")
JAR = Package("Maven", "org.x:y", "3.4.2", "spark_jobs/jar_hashes.py")


def _advisory(*events: dict[str, str], name: str = "A_Wheel", **others: Any) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges}
    return {"id": "A-1", "affected": [{**affected, **others}]}


def test_no_locked_version_has_an_advisory_that_is_not_answered() -> None:
    """By the stored list. A finding wants a newer version, or a reason in ACCEPTED."""
    known = audit.load(audit.STORED)
    found = audit.findings(audit.packages(), known.advisories)
    assert sorted({str(one["id"]) for _, one in found}) == sorted(audit.ACCEPTED)


def test_each_package_and_jar_is_compared() -> None:
    """Of all locks, and of the list of jars."""
    found = audit.packages()
    assert {one.where for one in found} == {*audit.LOCKS, JAR.where}
    assert any(one.name == "org.apache.hadoop:hadoop-aws" for one in found)


@pytest.mark.parametrize(
    ("events", "is_found"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "2.1"}, {"fixed": "2.2"}], True),
        ([{"introduced": "0"}, {"fixed": "2.1"}], False),
        ([{"introduced": "2.1.post1"}], False),
        ([{"introduced": "0"}, {"last_affected": "2.1"}], True),
        ([{"introduced": "0"}, {"last_affected": "2.0.9"}], False),
        ([{"fixed": "2.2"}, {"introduced": "2.0"}, {"fixed": "1.5"}, {"introduced": "0"}], True),
        ([{"introduced": "0"}, {"fixed": "1.9"}, {"introduced": "2.2"}], False),
        ([{"introduced": "0"}, {"limit": "1"}], True),
    ],
)
def test_ranges_are_half_open_and_may_stand_in_any_order(
    events: list[dict[str, str]], is_found: bool
) -> None:
    """As OSV defines them."""
    assert bool(audit.findings([WHEEL], [_advisory(*events)])) is is_found


def test_listed_versions_count_and_withdrawn_advisories_do_not() -> None:
    """A jar is compared with listed versions only."""
    listed = _advisory(versions=["2.1"])
    assert audit.findings([WHEEL], [listed]) == [(WHEEL, listed)]
    assert audit.findings([WHEEL], [{**listed, "withdrawn": "2024-01-01T00:00:00Z"}]) == []
    of_jar = {"package": {"ecosystem": "Maven", "name": "org.x:y"}, "versions": ["3.4.2"]}
    assert audit.findings([JAR], [{"id": "A-2", "affected": [of_jar]}])


def test_an_advisory_that_is_not_understood_is_an_error() -> None:
    """It is not taken for one that says nothing; one about other packages does not matter."""
    with pytest.raises(AdvisoryError, match="A-1 on a-wheel is not understood"):
        audit.findings([WHEEL], [_advisory({"introduced": "no version"})])
    assert audit.findings([WHEEL], [_advisory({"introduced": "no version"}, name="b")]) == []


def test_an_export_is_read_and_what_is_ours_is_kept(tmp_path: Path) -> None:
    """OSV's file has a JSON file for each advisory; the stored list has ours alone."""
    export, stored = tmp_path / "all.zip", tmp_path / "advisories.json"
    ours, other = _advisory({"introduced": "0"}), _advisory({"introduced": "0"}, name="b")
    with zipfile.ZipFile(export, "w") as file:
        file.writestr("A-1.json", json.dumps({**ours, "details": "long", "schema_version": "1"}))
        file.writestr("B-1.json", json.dumps(other))
    known = audit.load(export)
    assert len(known.advisories) == 2
    assert audit.keep(known, [WHEEL, JAR], stored) == 1
    again = audit.load(stored)
    assert (again.as_of, again.advisories) == (known.as_of, [ours])
    assert again.covers(WHEEL)
    assert not again.covers(JAR)  # the export was that of another ecosystem


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"PK\x03\x04"])
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, body: bytes) -> None:
    """With its name."""
    path = tmp_path / "list"
    path.write_bytes(body)
    with pytest.raises(AdvisoryError, match="list is no list of advisories"):
        audit.load(path)
    assert audit.main(["--advisories", str(path)]) == 2
