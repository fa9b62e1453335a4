"""Which brokers vote on the metadata, noted the first time: their number must never change.

Two majorities of different lists need not share a broker, so each could decide without the other.
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


def check_controllers(files: Files, controllers: Sequence[str]) -> bool:
    """Compare the configured controllers with those that were noted; tell whether any were.

    Raises:
        InvalidConfigError: they are not the same.
        MetadataCorruptError: the note is not readable.
    """
    if not files.exists(_FILE):
        return False
    file = files.open(_FILE)
    try:
        noted = json.loads(file.read_at(0, _BYTES_MAX))
    except ValueError as cause:
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE) from cause
    finally:
        file.close()
    if not isinstance(noted, list) or not all(isinstance(one, str) for one in noted):
        raise MetadataCorruptError(f"{_FILE} is not readable", path=_FILE)
    if noted != sorted(controllers):
        raise InvalidConfigError(
            f"the controllers of this cluster are {', '.join(noted)} and never change: write "
            f'cluster.controllers = "{",".join(noted)}"; other brokers may be added beside them',
            expected=",".join(noted),
            found=",".join(sorted(controllers)),
        )
    return True


def note_controllers(files: Files, controllers: Sequence[str]) -> None:
    """Note them, unless that was done before. Blocks."""
    if not files.exists(_FILE):
        write_whole(files, _FILE, [json.dumps(sorted(controllers)).encode()])
