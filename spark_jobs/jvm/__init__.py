"""The names of our Java classes, for Spark's settings, and the jar that holds them.

``tools/spark_jar.py`` builds the jar from ``java/``; each class documents its guarantees.
"""

from __future__ import annotations

import hashlib
import os
from importlib import resources
from pathlib import Path
from typing import Final

LOG_STORE_CLASS: Final = "io.headwater.spark.ConditionalLogStore"
SPARK_JAR: Final = "headwater-spark.jar"
LOG_STORE_SETTING: Final = "spark.delta.logStore.s3a.impl"
CATALOG_CLASS: Final = "io.headwater.spark.StreamCatalog"
CATALOG_SETTING: Final = "spark.sql.catalog.headwater"
SOURCE_CLASS: Final = "io.headwater.spark.StreamSource"


def spark_jar(cache: Path) -> Path:
    """Return the jar as a file; if the package is zipped, the jar is copied to ``cache`` first."""
    found = resources.files(__name__).joinpath(SPARK_JAR)
    if isinstance(found, Path):
        return found
    data = found.read_bytes()
    copy = cache / f"{hashlib.sha256(data).hexdigest()[:16]}-{SPARK_JAR}"
    if not copy.is_file() or copy.read_bytes() != data:
        cache.mkdir(parents=True, exist_ok=True)
        draft = copy.with_suffix(f".{os.getpid()}")
        draft.write_bytes(data)
        draft.replace(copy)
    return copy
