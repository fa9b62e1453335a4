"""One allocator for the process: the C library's, which keeps some of the memory that was freed.

If it kept nothing, each step that handles a batch of some MiB would map, fill and unmap memory, and
the kernel clears every new page first. That takes a third of the time of a replica's copy, and more
in a virtual machine whose host takes freed pages back.

Arrow brings an allocator of its own, which keeps what each thread has freed for that thread. After
a segment was shipped, that was 60 MiB more, for good. With the C library's allocator
``release_unused`` of Arrow's pool returns the memory of both. Few arenas have less to keep than one
for each thread.

If Flight listens beyond the loopback, Arrow's memory is bounded instead. A compressed batch of a
few KiB may say that it unpacks to GiB, and Arrow allocates what it says before anybody can look at
the size. Only Arrow's own allocator, mimalloc, can be given a bound: it takes all memory from one
region that is reserved at the start, and what does not fit is an error of that one call.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

# <malloc.h> of glibc; other C libraries have no mallopt, and nothing is changed there.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_MMAP_BYTES_MIN: Final = 32 * 1024 * 1024  # the most that glibc takes; larger blocks are rare
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024  # free memory at the end of an arena
_ARENAS: Final = 2
_BOUNDED: Final = "MIMALLOC_DISALLOW_OS_ALLOC"
_RESERVED: Final = "MIMALLOC_RESERVE_OS_MEMORY"
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"  # Arrow reads it when it is loaded


def share_with_arrow(bytes_max: int = 0) -> bool:
    """Let Arrow use the C library's allocator, unless the environment names another one.

    With ``bytes_max`` Arrow's memory is bounded by it. For entry points, before anything imports
    pyarrow: afterwards it is too late, and this returns False.
    """
    if "pyarrow" in sys.modules:
        return False
    if bytes_max:
        os.environ.setdefault(_ARROW_POOL, "mimalloc")
        os.environ.setdefault(_RESERVED, f"{bytes_max // 1024}KiB")
        os.environ.setdefault(_BOUNDED, "1")
    else:
        os.environ.setdefault(_ARROW_POOL, "system")
    return True


def keep_freed_memory() -> bool:
    """Let the C library's allocator keep freed memory; return whether it can.

    Call it before the process starts threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_MMAP_THRESHOLD, _MMAP_BYTES_MIN),
        (_TRIM_THRESHOLD, _KEPT_BYTES_MAX),
        (_ARENA_MAX, _ARENAS),
    )
    return all(mallopt(which, value) == 1 for which, value in wanted)
