"""The first voters on the metadata, noted at the first start of this broker.

The metadata log has the present voters; the list in the configuration file is for a new group only.
So the note never changes, whatever the file says later: two majorities of different lists need not
share a broker, and could decide differently (`docs/decisions/0023-*.md`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from broker.errors import InvalidConfigError, MetadataCorruptError
from broker.ports.system import Files
from broker.storage.whole_file import write_whole

_FILE: Final = "controllers.json"
_BYTES_MAX: Final = 4096


def noted_controllers(files: Files) -> tuple[str, ...]:
    """Return the first controllers that were noted, sorted; () before the first start.

    Raises:
        MetadataCorruptError: the note is not readable.
    """
    if not files.exists(_FILE):
        return ()
    file = files.open(_FILE)
    try:
        noted = json.loads(file.read_at(0, _BYTES_MAX))
    except (ValueError, RecursionError) as cause:
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE) from cause
    finally:
        file.close()
    if not isinstance(noted, list) or not all(isinstance(one, str) for one in noted):
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE)
    return tuple(sorted(noted))


def check_controllers(files: Files, controllers: Sequence[str]) -> bool:
    """Compare a single broker's list with the note; return whether there is a note.

    Raises:
        InvalidConfigError: the lists differ.
        MetadataCorruptError: the note is not readable.
    """
    noted = noted_controllers(files)
    if noted and noted != tuple(sorted(controllers)):
        raise InvalidConfigError(
            f"this data directory belongs to a cluster whose first controllers were "
            f"{', '.join(noted)}: write cluster.brokers as in the configuration of the "
            "cluster's other brokers, or choose another data directory",
            expected=",".join(noted),
            found=",".join(sorted(controllers)),
        )
    return bool(noted)


def note_controllers(files: Files, controllers: Sequence[str]) -> None:
    """Write the note, unless there is one. Blocks."""
    if not files.exists(_FILE):
        write_whole(files, _FILE, [json.dumps(sorted(controllers)).encode()])
