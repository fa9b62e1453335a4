"""The bill of materials of a release: what is locked and pinned, with hashes, as CycloneDX JSON.

It says what ``requirements.lock`` and ``spark_jobs/jar_hashes.py`` say. Nothing is looked up, so no
network is needed. The lock is that of all roles and of development: what an installation has of it
depends on the extras that it asks for.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_LOCKED: Final = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\\n]+?))? \\\n"
    r"(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)
_PINNED: Final = re.compile(r"^[\w.-]+==", re.MULTILINE)
_JAR: Final = re.compile(r"(?P<group>[^_]+)_(?P<name>.+)-(?P<version>\d[^-]*)\.jar")


def bill_of_materials(
    version: str, *, lock: str, jars: Mapping[str, str], files: Iterable[Path]
) -> str:
    """Return the bill of a version as JSON: packages of ``lock``, jars, and the released files.

    Raises:
        RuntimeError: a line of the lock or the name of a jar is not understood.
    """
    ours = PackageURL("pypi", None, "headwater", version)
    released = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    bom = Bom(components=[*locked_packages(lock), *pinned_jars(jars)])
    bom.metadata.component = Component(
        name=ours.name,
        version=version,
        type=ComponentType.APPLICATION,
        purl=ours,
        bom_ref=ours.to_string(),
        external_references=[_distribution(name, [sha]) for name, sha in released.items()],
    )
    bom.register_dependency(bom.metadata.component, bom.components)
    identity = " ".join([ours.to_string(), *sorted(released.values())])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, identity)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def locked_packages(lock: str) -> Iterator[Component]:
    """Yield the packages of a lock; raises RuntimeError for a line that is not understood."""
    found = list(_LOCKED.finditer(lock))
    if len(found) != len(_PINNED.findall(lock)):
        raise RuntimeError("a lock has packages without hashes, or in another form")
    for one in found:
        purl = PackageURL("pypi", None, one["name"], one["version"])
        hashes = re.findall(r"sha256:([0-9a-f]+)", one["hashes"])
        marker = [] if one["marker"] is None else [Property(name="marker", value=one["marker"])]
        yield Component(
            name=one["name"],
            version=one["version"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=purl.to_string(),
            external_references=[_distribution(purl.to_string(), hashes)],
            properties=marker,
        )


def pinned_jars(jars: Mapping[str, str]) -> Iterator[Component]:
    """Yield jars by their names and hashes; raises RuntimeError for a name in another form."""
    for file, sha in jars.items():
        found = _JAR.fullmatch(file)
        if found is None:
            raise RuntimeError(f"the jar {file} has no name like GROUP_NAME-VERSION.jar")
        purl = PackageURL("maven", found["group"], found["name"], found["version"])
        yield Component(
            group=found["group"],
            name=found["name"],
            version=found["version"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=purl.to_string(),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha)],
        )


def _distribution(url: str, hashes: Iterable[str]) -> ExternalReference:
    """Return the files of a package, any of which may be installed, by their hashes."""
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(url),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes],
    )
