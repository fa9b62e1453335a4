"""Keys for tests of encrypted streams: real ciphers and a real provider, fixed wrapping keys."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from broker.adapters.clock import SystemClock
from broker.keys.derive import derived
from broker.keys.local_keys import EnvironmentKeys, KeyringFile
from broker.keys.xaes import Xaes256Gcm
from broker.ports.system import Clock
from broker.runtime.stream_keys import StreamKeys

ENCRYPTION: Final = "xaes-256-gcm"


def text_of(key: bytes) -> str:
    """Return a key as keyrings and the environment have it."""
    return base64.b64encode(key).decode()


FIRST: Final = text_of(b"\x01" * 32)
SECOND: Final = text_of(b"\x02" * 32)


def keys_in(keyring: Path, clock: Clock | None = None) -> StreamKeys:
    """Return the keys of a process with this keyring."""
    return StreamKeys(clock or SystemClock(), KeyringFile(keyring), _for_batches)


def stream_keys(keys: Mapping[str, str], clock: Clock | None = None) -> StreamKeys:
    """Return the keys of a process whose environment has these, by name; the first wraps."""
    told = ",".join(f"{name}:{text}" for name, text in keys.items())
    provider = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": told})
    return StreamKeys(clock or SystemClock(), provider, _for_batches)


def _for_batches(key: bytes) -> Xaes256Gcm:
    return Xaes256Gcm(derived(key, "batches"))
