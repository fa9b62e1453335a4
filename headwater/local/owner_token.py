"""The token of a guarded ``headwater up``: whoever can read the file owns the server.

``up --guarded`` has the token beside the runtime file, a new one at each start. By the runtime file
the commands and clients of the same user find it. A runtime file that somebody else has put there
leads to no token: both files and the process have to be this user's own, and the token's path
stands in no file. So a stranger cannot make a client send a token, or another secret, to an address
of the stranger's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from broker.errors import InvalidConfigError
from headwater.local.runtime_file import DEFAULT_DATA_DIR, FILE_NAME, RuntimeFile

TOLD: Final = "your user only; NATS takes messages of every user of this machine"
_NAME: Final = "owner.token"


def token_path(data: Path) -> Path:
    """Return the path of the token in a data directory; absent before the first guarded start."""
    return (data / _NAME).absolute()


def token_file_of(runtime_file: Path, found: RuntimeFile) -> Path | None:
    """Return the token's file beside a runtime file; None: not guarded, or not this user's own."""
    path = token_path(runtime_file.parent)
    own = found.guarded and _is_private(runtime_file) and _is_private(path) and _is_own(found.pid)
    return path if own else None


def token_file_for(url: str) -> Path | None:
    """Return the token's file of this folder's running ``up``, if it has this Flight address."""
    runtime_file = Path(DEFAULT_DATA_DIR) / FILE_NAME
    try:
        found = RuntimeFile.read(runtime_file)
    except (OSError, InvalidConfigError):
        return None
    return token_file_of(runtime_file, found) if url in found.flight.split(",") else None


def _is_private(path: Path) -> bool:
    """Tell whether a file is no link, this user's own, and readable for nobody else."""
    try:
        about = path.lstat()
    except OSError:
        return False
    shared = about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not shared


def _is_own(pid: int) -> bool:
    """Tell whether a process runs, and is this user's own."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
