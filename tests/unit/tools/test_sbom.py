"""The bill of materials names every locked package and every pinned jar, with their hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from projectfiles import ROOT
from spark_jobs.jar_hashes import SHA256
from tools.sbom import bill_of_materials

LOCK = """\
# a comment
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
six==1.17.0 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)
JARS = {"io.delta_delta-spark_4.2_2.13-4.4.0.jar": "c" * 64}


def _bill(lock: str = LOCK, jars: dict[str, str] = JARS, *files: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        bill_of_materials("0.2.0", lock=lock, jars=jars, files=files)
    )
    return found


def test_packages_jars_and_the_released_files_are_named_with_their_hashes(tmp_path: Path) -> None:
    """A scanner finds each of them by its package URL."""
    wheel = tmp_path / "headwater-0.2.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    bill = _bill(LOCK, JARS, wheel)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    ours = bill["metadata"]["component"]
    assert (ours["purl"], ours["version"]) == ("pkg:pypi/headwater@0.2.0", "0.2.0")
    (released,) = ours["externalReferences"]
    assert (released["url"], released["hashes"][0]["content"][:8]) == (wheel.name, "e3b0c442")
    jar, numpy, six = bill["components"]
    assert jar["purl"] == "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0"
    assert jar["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]
    assert (numpy["purl"], six["purl"]) == ("pkg:pypi/numpy@2.4.6", "pkg:pypi/six@1.17.0")
    assert [one["content"][0] for one in numpy["externalReferences"][0]["hashes"]] == ["a", "b"]
    assert numpy["properties"] == [{"name": "marker", "value": "python_full_version < '3.12'"}]
    (depends,) = [one for one in bill["dependencies"] if one["ref"] == ours["bom-ref"]]
    assert len(depends["dependsOn"]) == 3


def test_the_project_s_own_lock_and_jars_are_all_there() -> None:
    """Each pin, and no hash less than the files have."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    components = _bill(lock, dict(SHA256))["components"]
    assert len(components) == len(re.findall(r"^\S+==", lock, re.MULTILINE)) + len(SHA256)
    text = json.dumps(components)
    hashes = {*re.findall(r"sha256:([0-9a-f]{64})", lock), *SHA256.values()}
    assert {one for one in hashes if one not in text} == set()


def test_the_same_files_give_the_same_bill() -> None:
    """But for the time at which it was made."""
    first, second = _bill(), _bill()
    assert first.pop("metadata")["component"] == second.pop("metadata")["component"]
    assert first == second


@pytest.mark.parametrize(
    ("lock", "jars"), [("six==1.17.0\n", {}), (LOCK, {"strange.jar": "c" * 64})]
)
def test_what_is_not_understood_is_not_left_out(lock: str, jars: dict[str, str]) -> None:
    """A package without a hash, and a jar with a name of another form."""
    with pytest.raises(RuntimeError):
        _bill(lock, jars)
