"""Makes the C library's allocator keep some freed memory, instead of returning it to the kernel.

Otherwise each step that handles a batch of some MiB maps, fills and unmaps memory, and the kernel
clears every new page first. That takes a third of the time of a replica's copy, and more in a
virtual machine whose host takes freed pages back.
"""

from __future__ import annotations

import ctypes
from typing import Final

# <malloc.h> of glibc; other C libraries have no mallopt, and nothing is changed there.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES_MIN: Final = 32 * 1024 * 1024  # the most that glibc takes; larger blocks are rare
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # free memory at the end of an arena


def keep_freed_memory() -> bool:
    """Set this for the process; tell whether the C library can. Call before starting threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_MMAP_THRESHOLD, _MMAP_BYTES_MIN), (_TRIM_THRESHOLD, _KEPT_BYTES_MAX))
    return all(mallopt(which, value) == 1 for which, value in wanted)
