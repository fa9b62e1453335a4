"""moto's S3 with atomic conditional writes; run it as ``python -m headwater.local.moto_server``.

moto answers each request on a thread of its own. It checks the condition of a write (If-None-Match,
If-Match) and writes afterwards; between the two another thread may write. Then two conditional
writes of one key both succeed, and two writers of a Delta table both commit one version, which S3
never lets happen. Here a lock lets one write end before the next begins.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from moto.s3.responses import S3Response
from moto.server import main

# Requests that check a condition and write. The last one completes a multipart upload.
_WRITES: Final = ("put_object", "copy_object", "delete_object", "_key_response_post")


def serialize_writes() -> None:
    """Let one write of an object end before the next one checks its condition."""
    lock = threading.RLock()
    for name in _WRITES:
        setattr(S3Response, name, _locked(lock, getattr(S3Response, name)))


def _locked(lock: threading.RLock, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def alone(*args: Any, **options: Any) -> Any:
        with lock:
            return method(*args, **options)

    return alone


if __name__ == "__main__":
    serialize_writes()
    main()
