"""Keys for tests of encrypted streams: real ciphers and a real provider, fixed wrapping keys."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.adapters.clock import SystemClock
from broker.errors import InvalidRequestError
from broker.keys.derive import derived
from broker.keys.local_keys import EnvironmentKeys, KeyringFile
from broker.keys.xaes import Xaes256Gcm
from broker.model.ids import StreamUuid
from broker.model.stream import Stream
from broker.ports.system import Clock
from broker.runtime.stream_keys import StreamKeys

ENCRYPTION: Final = "xaes-256-gcm"


def text_of(key: bytes) -> str:
    """Return a key as keyrings and the environment have it."""
    return base64.b64encode(key).decode()


FIRST: Final = text_of(b"\x01" * 32)
SECOND: Final = text_of(b"\x02" * 32)


def write_keyring(path: Path, **keys: str) -> None:
    """Write a keyring whose first key wraps, as its owner alone can read it."""
    lines = [f'{one} = "{text}"' for one, text in keys.items()]
    path.write_text("\n".join([f'current = "{next(iter(keys))}"', "[keys]", *lines]))
    path.chmod(0o600)


def keys_in(keyring: Path, clock: Clock | None = None) -> StreamKeys:
    """Return the keys of a process with this keyring."""
    return StreamKeys(clock or SystemClock(), KeyringFile(keyring), _for_batches)


def stream_keys(keys: Mapping[str, str], clock: Clock | None = None) -> StreamKeys:
    """Return the keys of a process whose environment has these, by name; the first wraps."""
    told = ",".join(f"{name}:{text}" for name, text in keys.items())
    provider = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": told})
    return StreamKeys(clock or SystemClock(), provider, _for_batches)


def rotated(stream: Stream, keys: StreamKeys | None, version: int) -> Stream:
    """Return a stream with another data key; refuse one without, or another version's turn."""
    if keys is None or version != len(stream.data_keys):
        raise InvalidRequestError(
            f"stream {stream.name!r} has no key {version}", stream=stream.name
        )
    return replace(stream, data_keys=keys.rotated(StreamUuid(stream.uuid), stream.data_keys))


def _for_batches(key: bytes) -> Xaes256Gcm:
    return Xaes256Gcm(derived(key, "batches"))
