"""The name of our only Java class, for Spark's settings, and the jar that holds the class.

``tools/log_store.py`` builds the jar from ``java/``; the class documents its guarantees.
"""

from __future__ import annotations

import hashlib
import os
from importlib import resources
from pathlib import Path
from typing import Final

LOG_STORE_CLASS: Final = "io.headwater.spark.ConditionalLogStore"
LOG_STORE_JAR: Final = "headwater-log-store.jar"
LOG_STORE_SETTING: Final = "spark.delta.logStore.s3a.impl"


def log_store_jar(cache: Path) -> Path:
    """Return the jar as a file; if the package is zipped, the jar is copied to ``cache`` first."""
    found = resources.files(__name__).joinpath(LOG_STORE_JAR)
    if isinstance(found, Path):
        return found
    data = found.read_bytes()
    copy = cache / f"{hashlib.sha256(data).hexdigest()[:16]}-{LOG_STORE_JAR}"
    if not copy.is_file() or copy.read_bytes() != data:
        cache.mkdir(parents=True, exist_ok=True)
        draft = copy.with_suffix(f".{os.getpid()}")
        draft.write_bytes(data)
        draft.replace(copy)
    return copy
