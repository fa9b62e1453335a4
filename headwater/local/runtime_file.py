"""The runtime file: the addresses of a running ``headwater up``.

``up`` writes ``<data>/headwater.json`` once it serves, and removes the file when it ends, so that
other commands in the same folder need no address. The file has the id of the process. If that
process has ended, the file is stale: commands report this and do not use its addresses. The file
has no secret, and only its owner may read it.

The file decides where a command sends the user's token, the login of NATS and the requests to S3.
So it is read only if nobody but this user and root can have written it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from broker.errors import InvalidConfigError
from headwater.local.private_files import ROOT, write_private

FILE_NAME: Final = "headwater.json"
DEFAULT_DATA_DIR: Final = "headwater-data"
_FORMAT_VERSION: Final = 1
_BYTES_MAX: Final = 64 * 1024
_ADVICE: Final = (
    "give the address with --server, or take the folder over (chown) if you know what the file says"
)


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
    by_root: bool = field(default=False, compare=False)  # who owns the file; not in the file

    def running(self) -> bool:
        """Tell whether the process that wrote the file still exists.

        Another user's process is not that process, unless root wrote the file: the id was given
        out again, and the other user may listen at the addresses by now.
        """
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return self.by_root
        return True

    def write(self, data_dir: Path) -> Path:
        """Write the file atomically, readable for its owner only; return its path."""
        path = data_dir / FILE_NAME
        body = {"v": _FORMAT_VERSION, **dataclasses.asdict(self)}
        del body["by_root"]
        if not self.guarded:
            del body["guarded"]  # a command of an older release takes the file
        write_private(path, json.dumps(body, indent=2) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; ``path`` may also be the data directory that holds it.

        Raises:
            InvalidConfigError: the file is not a runtime file, or somebody else than this user and
                root can have written it.
            FileNotFoundError: there is no file.
        """
        if path.is_dir():
            path /= FILE_NAME
        with _opened(path) as file:
            owner = _trusted_owner(path, file)
            text = file.read(_BYTES_MAX + 1)
        if len(text) > _BYTES_MAX:
            raise InvalidConfigError(f"{path} is too large to be a runtime file")
        try:
            body: dict[str, Any] = dict(json.loads(text.decode()))
            version = body.pop("v")
            found = cls(**body, by_root=owner == ROOT)
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


def _opened(path: Path) -> BinaryIO:
    """Open a file without following a link at its place; a pipe does not hold this process up."""
    more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return open(path, "rb", opener=lambda at, flags: os.open(at, flags | more))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as cause:
        link = path.is_symlink()
        why = "it is a symbolic link" if link else f"it cannot be read: {cause.strerror}"
        raise InvalidConfigError(
            f"the runtime file {path} is not used: {why}{_belongs_to(path)}; {_ADVICE}"
        ) from cause


def _trusted_owner(path: Path, file: BinaryIO) -> int:
    """Return the id of the user who owns an open file.

    Raises:
        InvalidConfigError: somebody else than this user and root can have written the file.
    """
    about = os.fstat(file.fileno())  # of what is read, whatever is at the path by now
    if not stat.S_ISREG(about.st_mode):
        why = f"it is no regular file, and belongs to {_user(about.st_uid)}"
    elif about.st_uid not in (os.geteuid(), ROOT):
        why = f"it belongs to {_user(about.st_uid)}, who would get your token"
    elif about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        why = f"others than its owner, {_user(about.st_uid)}, may write it"
    else:
        return about.st_uid
    raise InvalidConfigError(f"the runtime file {path} is not used: {why}; {_ADVICE}")


def _belongs_to(path: Path) -> str:
    try:
        return f", and belongs to {_user(path.lstat().st_uid)}"
    except OSError:
        return ""


def _user(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"
