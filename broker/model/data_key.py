"""A stream's data keys, as the metadata holds them: wrapped, never in plain."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidStreamError
from broker.model.ids import StreamUuid

DATA_KEY_BYTES: Final = 32  # AES-256
DATA_KEYS_MAX: Final = 256  # of one stream: a key each day for eight months
_WRAPPED_CHARS_MAX: Final = 8192  # AWS KMS answers with at most 6144 bytes
KEY_NAME_CHARS_MAX: Final = 2048  # as long as the name of a key in AWS KMS


@dataclass(frozen=True, slots=True, kw_only=True)
class DataKey:
    """One data key of a stream, encrypted by a key of the key provider. Not a secret.

    Raises:
        InvalidStreamError: a value is out of bounds.
    """

    version: int  # from 1; each encrypted batch names the version of its key
    provider: str  # the kind of provider: file, environment or aws-kms
    wrapping_key: str  # the provider's name of the key that encrypts this one
    wrapped: str  # base64
    created_us: int

    def __post_init__(self) -> None:
        named = (self.provider, self.wrapping_key)
        if not all(one.isprintable() and 0 < len(one) <= KEY_NAME_CHARS_MAX for one in named):
            raise InvalidStreamError("a data key must name its provider and its wrapping key")
        if not 1 <= self.version <= 2**31 - 1:
            raise InvalidStreamError(f"a data key's version must be 1 or more, not {self.version}")
        if len(self.wrapped) > _WRAPPED_CHARS_MAX:
            raise InvalidStreamError(
                f"a wrapped data key has {len(self.wrapped)} characters; at most "
                f"{_WRAPPED_CHARS_MAX} are allowed"
            )
        try:
            base64.b64decode(self.wrapped, validate=True)
        except (binascii.Error, ValueError) as cause:
            raise InvalidStreamError("a wrapped data key is not base64") from cause

    @property
    def wrapped_bytes(self) -> bytes:
        """The wrapped key as the provider returned it."""
        return base64.b64decode(self.wrapped)


@dataclass(frozen=True, slots=True)
class StreamDataKeys:
    """All data keys of one stream, as the metadata wrapped them at one moment. Not a secret."""

    stream_uuid: StreamUuid
    keys: tuple[DataKey, ...]  # by version, from 1


def next_version(keys: tuple[DataKey, ...]) -> int:
    """Return the version of the next data key."""
    return keys[-1].version + 1 if keys else 1


def check_data_keys(keys: Sequence[DataKey]) -> None:
    """Raise InvalidStreamError unless the versions of a stream's keys count from 1, and are few."""
    if len(keys) > DATA_KEYS_MAX:
        raise InvalidStreamError(
            f"a stream can have {DATA_KEYS_MAX} data keys at most: no more can be added"
        )
    if [one.version for one in keys] != list(range(1, len(keys) + 1)):
        raise InvalidStreamError(
            "the versions of a stream's data keys must be 1, 2, 3 and so on, without a gap"
        )


def data_keys_of(values: object) -> tuple[DataKey, ...]:
    """Return the data keys of a parsed JSON text; raises InvalidStreamError for anything else."""
    if not isinstance(values, list | tuple) or len(values) > DATA_KEYS_MAX:
        raise InvalidStreamError(f"data_keys must be a list of at most {DATA_KEYS_MAX}")
    return tuple(map(_data_key, values))


_FIELDS: Final[dict[str, type]] = {
    "version": int,
    "provider": str,
    "wrapping_key": str,
    "wrapped": str,
    "created_us": int,
}


def _data_key(values: Any) -> DataKey:
    if not isinstance(values, dict) or values.keys() != _FIELDS.keys():
        raise InvalidStreamError(f"a data key must have exactly the fields {', '.join(_FIELDS)}")
    for name, expected in _FIELDS.items():
        if type(values[name]) is not expected:
            raise InvalidStreamError(f"{name} of a data key must be of type {expected.__name__}")
    return DataKey(**values)
