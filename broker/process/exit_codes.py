"""The exit codes of a broker."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_CONFIG: Final = 64  # the configuration or the environment is wrong
EXIT_CRASH: Final = 70  # a bug, or a disk that cannot be trusted any more
