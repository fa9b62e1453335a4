"""What this machine lets chaos do; what it refuses is named with its reason, and skipped.

The checks try the thing itself on something of their own, and take it back.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from chaoskit.stories import Need

_TIMEOUT_S = 10.0


def refused_needs(*, secure: bool = False) -> dict[Need, str]:
    """Return what stories need and this machine or run does not permit, with the reason."""
    refused = {Need.CLIENT_LINKS: "brokers tell clients their own ports, not a proxy's"}
    if not secure:
        refused[Need.ACCESS] = "told with --secure"
    if why := small_disks_refused():
        refused[Need.SMALL_DISKS] = why
    return refused


def small_disks_refused() -> str:
    """Say why no small tmpfs can be mounted; empty when one can."""
    with tempfile.TemporaryDirectory(prefix="headwater-chaos-") as folder:
        why = _try("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        if not why:
            try:
                (Path(folder) / "probe").write_bytes(b"1")
            finally:
                why = _try("umount", folder)
        return why


def namespaces_refused() -> str:
    """Say why no network namespace can be made; empty when one can."""
    return _try("unshare", "-n", "true")


def _try(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or f"{command[0]} ended with {done.returncode}").splitlines()[-1]
