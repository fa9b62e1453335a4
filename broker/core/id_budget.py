"""Share one budget of memory among the windows of message ids of a broker.

While the budget suffices, every window takes the memory that it needs. When it does not, no window
may keep more than the *level*, the highest size with which all windows fit into the budget. So only
the largest windows shrink, and a stream with many ids does not shorten the windows of the others.
"""

from __future__ import annotations

from collections.abc import Iterable


def fair_level(sizes_bytes: Iterable[int], bytes_max: int) -> int:
    """Return the highest level such that windows cut down to it take ``bytes_max`` together.

    If they fit as they are, this is the size of the largest.
    """
    sizes = sorted(sizes_bytes)
    left = bytes_max
    for number, size in enumerate(sizes):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return sizes[-1] if sizes else bytes_max
