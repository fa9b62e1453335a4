"""The key providers whose keys are in the memory of this process: a file, or the environment."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256, Hash

from broker.errors import EncryptionKeyError
from broker.keys.derive import derived
from broker.keys.wrapping import WrappingKey, is_key_name, key_of_text

VARIABLE: Final = "HEADWATER_ENCRYPTION_KEY"
LIFTBRIDGE_VARIABLE: Final = "LIFTBRIDGE_ENCRYPTION_KEY"
_LIFTBRIDGE_SIZES: Final = (16, 24, 32)
_FILE_BYTES_MAX: Final = 1024 * 1024


class _LocalKeys:
    """The part of both: named keys, of which one wraps new data keys."""

    kind = ""
    _where = ""

    def _load(self) -> tuple[str, Mapping[str, WrappingKey]]:
        raise NotImplementedError

    def wrap(self, key: bytes, context: Mapping[str, str], *, by: str = "") -> tuple[str, bytes]:
        """See ``KeyProvider.wrap``."""
        current, keys = self._load()
        name = by or current
        return name, self._named(keys, name, context).wrap(key, context)

    def unwrap(self, name: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See ``KeyProvider.unwrap``."""
        _, keys = self._load()
        found = self._named(keys, name, context).unwrap(wrapped, context)
        if found is None:
            raise EncryptionKeyError(
                f"the key named {name!r} in {self._where} is not the key that wrapped the data key "
                f"of {_purpose(context)}, or the wrapped key was changed. Put the key back that "
                "had this name",
                provider=self.kind,
                wrapping_key=name,
            )
        return found

    def _named(
        self, keys: Mapping[str, WrappingKey], name: str, context: Mapping[str, str]
    ) -> WrappingKey:
        if name not in keys:
            raise EncryptionKeyError(
                f"{self._where} has no key named {name!r}, which wraps a data key of "
                f"{_purpose(context)}; it has {', '.join(sorted(keys))}. Put that key there",
                provider=self.kind,
                wrapping_key=name,
            )
        return keys[name]


class KeyringFile(_LocalKeys):
    """Keys in a TOML file that only its owner can read.

        current = "2026-11"

        [keys]
        "2026-11" = "<base64 of 32 random bytes>"

    The file is read again for each call, so a key that was added is used at once.
    """

    kind = "file"

    def __init__(self, path: Path) -> None:
        """Read ``path`` when a key is needed."""
        self._path = path
        self._where = str(path)

    def _load(self) -> tuple[str, Mapping[str, WrappingKey]]:
        current, texts = read_keyring(self._path)
        keys = {
            name: WrappingKey(key_of_text(one, f"key {name!r} of {self._path}"))
            for name, one in texts.items()
        }
        return current, keys


def read_keyring(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the name of the key that wraps new data keys, and the texts of all keys by name.

    Raises:
        EncryptionKeyError: the file cannot be read, or others can read it, or it is no keyring.
    """
    try:
        values = tomllib.loads(_private_text(path))
    except tomllib.TOMLDecodeError as cause:
        # The parser's message may quote the text, and the text has keys.
        raise EncryptionKeyError(
            f"the keyring {path} is not TOML: look {str(cause).rpartition('(')[2].rstrip(')')}"
        ) from None
    except (ValueError, RecursionError):  # of tomllib, for a number or a nesting without end
        raise EncryptionKeyError(f"the keyring {path} has a value that cannot be read") from None
    found = values.get("keys")
    current = values.get("current")
    if not isinstance(found, dict) or not isinstance(current, str) or current not in found:
        raise EncryptionKeyError(
            f"the keyring {path} needs a table [keys], and `current` must name one of its keys"
        )
    for name, one in found.items():
        if not is_key_name(name) or not isinstance(one, str):
            raise EncryptionKeyError(
                f"the keyring {path} has a key whose name is not one word, or whose value is not "
                "a text"
            )
    return current, found


def _private_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise EncryptionKeyError(
                    f"the keyring {path} can be used by other users of this machine: run "
                    f"`chmod 600 {path}`"
                )
            return file.read(_FILE_BYTES_MAX).decode()
    except UnicodeDecodeError:
        raise EncryptionKeyError(f"the keyring {path} is not text") from None
    except OSError as cause:
        raise EncryptionKeyError(f"cannot read the keyring {path}: {cause.strerror}") from cause


class EnvironmentKeys(_LocalKeys):
    """Keys in the variable ``HEADWATER_ENCRYPTION_KEY``: base64, or ``name:base64``; with commas.

    The first wraps new data keys. A key without a name is named by its fingerprint. If this
    variable is not set, ``LIFTBRIDGE_ENCRYPTION_KEY`` is used: 16, 24 or 32 characters, as
    Liftbridge takes them.
    """

    kind = "environment"
    _where = VARIABLE

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the variables once; a process cannot be given others later."""
        self._error: EncryptionKeyError | None = None
        self._keys: dict[str, WrappingKey] = {}
        try:
            self._keys = _keys_of(environ)
        except EncryptionKeyError as error:
            self._error = error

    def _load(self) -> tuple[str, Mapping[str, WrappingKey]]:
        if self._error is not None:
            raise self._error.with_traceback(None)  # else it grows with each caller
        return next(iter(self._keys)), self._keys


def _keys_of(environ: Mapping[str, str]) -> dict[str, WrappingKey]:
    text = environ.get(VARIABLE, "")
    if not text:
        return _liftbridges_key(environ.get(LIFTBRIDGE_VARIABLE, ""))
    found: dict[str, WrappingKey] = {}
    for part in text.split(","):
        name, separator, rest = part.strip().rpartition(":")
        key = key_of_text(rest, f"a key in {VARIABLE}")
        name = name if separator else _fingerprint(key)
        if not is_key_name(name) or name in found:
            raise EncryptionKeyError(
                f"{VARIABLE} needs a name of its own for each key: name:base64,name:base64",
                provider="environment",
            )
        found[name] = WrappingKey(key)
    return found


def _liftbridges_key(text: str) -> dict[str, WrappingKey]:
    if not text:
        raise EncryptionKeyError(
            f"neither {VARIABLE} nor {LIFTBRIDGE_VARIABLE} is set, so there is no key to encrypt "
            "with; `headwater keyring new -` prints one",
            provider="environment",
        )
    raw = text.encode()
    if len(raw) not in _LIFTBRIDGE_SIZES:
        raise EncryptionKeyError(
            f"{LIFTBRIDGE_VARIABLE} must have 16, 24 or 32 characters, not {len(raw)}",
            provider="environment",
        )
    digest = Hash(SHA256())
    digest.update(b"headwater liftbridge key 1" + raw)
    key = digest.finalize()
    return {_fingerprint(key): WrappingKey(key)}


def _fingerprint(key: bytes) -> str:
    digest = Hash(SHA256())
    digest.update(b"headwater fingerprint 1" + derived(key, "wrapping"))
    return f"env-{digest.finalize().hex()[:16]}"


def _purpose(context: Mapping[str, str]) -> str:
    return f"stream {context.get('headwater:stream', '?')}"
