"""The runtime file: the addresses of a running ``headwater up``.

``up`` writes ``<data>/headwater.json`` once it serves, and removes the file when it ends, so that
other commands in the same folder need no address. The file has the id of the process. If that
process has ended, the file is stale: commands report this and do not use its addresses. The file
has no secret, and only its owner may read it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from broker.errors import InvalidConfigError
from headwater.local.private_files import write_private

FILE_NAME: Final = "headwater.json"
DEFAULT_DATA_DIR: Final = "headwater-data"
_FORMAT_VERSION: Final = 1
_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFile:
    """Addresses of one running server."""

    pid: int
    flight: str  # grpc://host:port
    nats: str  # nats://host:port
    http: str  # http://host:port, for /metrics, /healthz, /readyz
    lake: str  # URI of the folder of all tables
    moto: str | None = None  # endpoint of a throw-away S3 that ends with the server
    started_us: int = 0
    guarded: bool = False  # the token of owner_token.py is beside this file

    def running(self) -> bool:
        """Tell whether the process that wrote the file still exists."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def write(self, data_dir: Path) -> Path:
        """Write the file atomically, readable for its owner only; return its path."""
        path = data_dir / FILE_NAME
        body = {"v": _FORMAT_VERSION, **dataclasses.asdict(self)}
        if not self.guarded:
            del body["guarded"]  # a command of an older release takes the file
        write_private(path, json.dumps(body, indent=2) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; ``path`` may also be the data directory that holds it.

        Raises:
            InvalidConfigError: the file is not a runtime file.
            FileNotFoundError: there is no file.
        """
        if path.is_dir():
            path /= FILE_NAME
        if path.stat().st_size > _BYTES_MAX:
            raise InvalidConfigError(f"{path} is too large to be a runtime file")
        try:
            body: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
            version = body.pop("v")
            found = cls(**body)
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise InvalidConfigError(f"{path} is not a runtime file: {cause}") from cause
        if version != _FORMAT_VERSION or not found.well_formed():
            raise InvalidConfigError(f"{path} is not a runtime file of version {_FORMAT_VERSION}")
        return found

    def well_formed(self) -> bool:
        """Tell whether every value has its type, because JSON may have any type."""
        texts = (self.flight, self.nats, self.http, self.lake)
        return (
            all(isinstance(text, str) for text in texts)
            and type(self.pid) is int
            and self.pid > 0
            and (self.moto is None or isinstance(self.moto, str))
            and type(self.guarded) is bool
        )
