"""Names this process for people who list leases and members."""

from __future__ import annotations

import getpass
import os
import socket


def default_owner() -> str:
    """Return user, host and process id of this process, for a person who lists the leases."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"
