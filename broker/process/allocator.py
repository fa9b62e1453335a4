"""How the C library's allocator keeps memory: what was freed stays with the process, for a while.

A batch of some MiB is otherwise mapped, filled and given back for every step it goes through, and
each fresh page is faulted in and cleared first: a third of what copying it costs a replica, and
more in a virtual machine, whose host takes freed pages away.
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
    """Set it for this process; tell whether the C library knows how. Call it before threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_MMAP_THRESHOLD, _MMAP_BYTES_MIN), (_TRIM_THRESHOLD, _KEPT_BYTES_MAX))
    return all(mallopt(which, value) == 1 for which, value in wanted)
