"""Which files belong to the project, for tests that look at the tree itself."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
ROOMS: Final = ("broker", "tiering", "spark_jobs", "headwater")


@cache
def project_files() -> tuple[str, ...]:
    """List what is tracked, or new and not ignored, and still there; relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for path in set(listing.split("\0")) if (ROOT / path).is_file()))
