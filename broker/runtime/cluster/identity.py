"""The owner of a data directory. A directory of another cluster or broker is never written.

Source: pitfall D14 (wrong disk mounted, restored old backup, cloned disk).
"""

from __future__ import annotations

import json
import uuid
from typing import Final

from broker.errors import InvalidConfigError, MetadataCorruptError
from broker.model.ids import is_uuid
from broker.ports.system import Files
from broker.storage.promises.promises import PROMISES_NAME
from broker.storage.whole_file import write_whole

_FILE: Final = "node.json"
_WRITTEN_LATER: Final = ("metadata", "raft", "streams", PROMISES_NAME)  # only after ``_FILE``
_BYTES_MAX: Final = 4096


def claim_directory(files: Files, *, cluster: str, broker_id: str) -> str:
    """Return the directory's uuid, writing the identity file the first time.

    Raises:
        InvalidConfigError: the directory belongs to another cluster or broker.
        MetadataCorruptError: the identity file is damaged, or missing from a directory in use.
    """
    if not files.exists(_FILE):
        if any(files.exists(one) for one in _WRITTEN_LATER):
            raise MetadataCorruptError(
                f"the file {_FILE} is missing, but this data directory was in use: put the file "
                "back from a copy of the directory",
                path=_FILE,
            )
        identity = {"cluster": cluster, "broker_id": broker_id, "uuid": str(uuid.uuid4())}
        write_whole(files, _FILE, [json.dumps(identity, sort_keys=True).encode()])
        return identity["uuid"]
    found = _read(files)
    for name, wanted in (("cluster", cluster), ("broker_id", broker_id)):
        if found.get(name) != wanted:
            raise InvalidConfigError(
                f"the data directory belongs to {name} {found.get(name)!r}, not {wanted!r}: choose "
                "another data directory, or correct node.id and node.cluster",
                expected=wanted,
                found=found.get(name),
            )
    drawn = found.get("uuid")
    if not isinstance(drawn, str) or not is_uuid(drawn):
        raise MetadataCorruptError(f"{_FILE} is damaged: {drawn!r} is not a uuid", path=_FILE)
    return drawn


def _read(files: Files) -> dict[str, object]:
    file = files.open(_FILE)
    try:
        found = json.loads(file.read_at(0, _BYTES_MAX))
    except (ValueError, RecursionError) as cause:
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE) from cause
    finally:
        file.close()
    if not isinstance(found, dict):
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE)
    return found
